"""What all ranks refuse together (`tests/refusals/ranks.toml`): one line from rank 0, exit code 2 of every rank."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from jobs import FRAMEWORKS, Job, Jobs, cases_of, jobs_in, last_value, words_of
from made_images import write_image
from processes import ROOT

pytestmark = pytest.mark.ranks

TABLE = tomllib.loads((ROOT / "tests/refusals/ranks.toml").read_text())["refusal"]
# A launcher that one row alone needs is left to CI.
ROWS = {row["id"]: {"quick": [] if "launcher" in row else ["torch"]} | row for row in TABLE}
FILE = Path(__file__).with_name("refused.toml")
SETTINGS = words_of("mlp", tomllib.loads(FILE.read_text())["settings"])


def job_of(row):
    """Return the job of a row: of the settings above, unless a run is resumed, whose folder is watched."""
    arguments, runs = shlex.split(row["arguments"]), tuple(row.get("given", ()))
    watch = last_value("--resume", arguments) or f"runs/{last_value('--name', arguments) or 'none'}"
    if "--resume" not in arguments:
        arguments = [*SETTINGS, "--name", "none", *arguments]
    return Job(row["id"], tuple(arguments), launcher=row.get("launcher", "mpirun2"), watch=watch, after=runs)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Also a file in the place of a folder, and images of different sizes."""
    made = Jobs(tmp_path_factory.mktemp("refused"), [*jobs_in(FILE), *map(job_of, TABLE)])
    for framework in FRAMEWORKS:
        place = made.place(framework)
        (place / "file").write_text("no folder")
        for number in range(4):
            write_image(place / f"mixed/class {number % 2}/{number}.png", number, size=(28 + number, 28))
    return made


@cases_of(ROWS)
def test_all_ranks_refuse_together_and_write_nothing(jobs, framework, name):
    ranks = jobs.outcomes(framework, name)
    assert [rank.code for rank in ranks] == [2] * len(ranks)
    line = rf"{framework}_impl/train\.py: error: {ROWS[name]['line']}\n"
    assert re.fullmatch(line, ranks[0].stderr), ranks[0].stderr
    assert all(rank.stderr == rank.stdout == "" for rank in ranks[1:])
    assert all(rank.untouched for rank in ranks) and not (jobs.place(framework) / "runs/none").exists()
