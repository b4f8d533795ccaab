"""What all ranks refuse together (`tests/refusals/ranks.toml`): one line from rank 0, exit code 2 of every rank."""

import re
import shlex
import tomllib

import pytest
from jobs import FRAMEWORKS, Job, Jobs, on_frameworks, train
from processes import ROOT

pytestmark = pytest.mark.ranks

TABLE = tomllib.loads((ROOT / "tests/refusals/ranks.toml").read_text())["refusal"]
ROWS = {row["id"]: row for row in TABLE}
SETTINGS = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--batch-size", "32"]
SETTINGS += ["--model", "mlp", "--epochs", "2", "--steps-per-epoch", "5"]
SERVED = ["--batch-size", "48", "--strategy", "server", "--servers", "2", "--threads", "1", "--lr-scaling", "none"]
GIVEN = {
    "mlp": train("mlp", *SETTINGS, "--epochs", "1"),
    "averaged": train("averaged", *SETTINGS, "--epochs", "1", "--strategy", "averaging", "--average-every", "5"),
    "in step": train("in step", *SETTINGS, *SERVED, launcher="mpirun4"),
    "free": train("free", *SETTINGS, *SERVED, "--staleness", "none", launcher="mpirun4"),
}


def job_of(row):
    """Return the job of a row: of the settings above, unless a run is resumed."""
    arguments = shlex.split(row["arguments"])
    if "--resume" not in arguments:
        arguments = [*SETTINGS, *arguments, "--name", row["id"].replace(" ", "_").replace(",", "")]
    launcher = row.get("launcher", "mpirun2")
    return Job(row["id"], tuple(arguments), launcher=launcher, after=tuple(row.get("given", ())))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("refused"), [*GIVEN.values(), *map(job_of, TABLE)])


@on_frameworks(ROWS, frameworks=lambda name: ROWS[name].get("frameworks", FRAMEWORKS), quick=lambda name: ("torch",))
def test_all_ranks_refuse_together(jobs, framework, name):
    ranks = jobs.outcomes(framework, name)
    assert [rank.code for rank in ranks] == [2] * len(ranks)
    line = rf"{framework}_impl/train\.py: error: {ROWS[name]['line']}\n"
    assert re.fullmatch(line, ranks[0].stderr), ranks[0].stderr
    assert all(rank.stderr == rank.stdout == "" for rank in ranks[1:])
