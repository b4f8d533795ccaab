"""`python -m analysis verify`: the rules of the verdict, exit codes, and folders that are no reruns."""

import tomllib
from pathlib import Path

import pytest
from builders import make_finished_run, write_run

from analysis.__main__ import main
from analysis.questions.verify import judge
from common.checks.verify_record import write_verify
from common.errors import UserError
from common.measurement.interference import Interference
from common.run_folder.records import NotRecorded
from common.run_folder.sharing import MeasuredGroups

VERDICTS = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text())["verdict"]
OTHER = {"final_weights": "other"}


def verdict_of(run, rerun, *, time_ratio=1.5):
    """Return whether a synthetic rerun reproduces a synthetic run, and rows and answer as text."""
    verdict = judge(make_finished_run(**run), make_finished_run(**rerun), time_ratio=time_ratio)
    lines = [" | ".join(str(cell) for cell in row) for row in verdict.rows]
    return not verdict.failed, "\n".join([*lines, verdict.answer, ""])


def test_the_same_bits_reproduce():
    assert verdict_of({}, {}) == (
        True,
        "first weights | first | first | same\n"
        "sample order | order | order | same\n"
        "test samples | 1000 | 1000 | same\n"
        "code | aaaaaaaaaa | aaaaaaaaaa | same\n"
        "stack | None | None | same\n"
        "final weights | final | final | same, bit for bit\n"
        "time | 2 s per epoch | 2 s per epoch | ratio 1.00, within 0.67 to 1.50\n"
        "Reproduces bit for bit.\n",
    )


@pytest.mark.parametrize("row", VERDICTS, ids=lambda row: row["says"].strip())
def test_what_differs_is_judged(row):
    holds, text = verdict_of(row.get("run", {}), row.get("rerun", {}))
    assert row["says"] in text and holds == row["holds"]


@pytest.mark.parametrize(("chosen", "holds"), [("4", True), ("one", False)])
def test_groups_that_a_run_has_measured_count_as_its_setting(chosen, holds):
    run = {
        "world": {"controller": "gloo"},
        "config": {"device": {"gradient_groups": "auto"}},
        "groups": MeasuredGroups(chosen=chosen),
    }
    reproduces, text = verdict_of(run, {**run, "hashes": OTHER})
    assert reproduces == holds == ("expected: Gloo adds tensors" in text)


@pytest.mark.parametrize(
    ("rerun", "holds", "words"),
    [
        ({"hashes": OTHER, "totals": {"test_accuracy": None}}, False, "not recorded for both, so it cannot be judged"),
        ({"hashes": OTHER, "totals": {"test_accuracy": NotRecorded("no test")}}, False, "it cannot be judged"),
        ({"seconds": (NotRecorded("no clock"),)}, True, "not judged: no epoch was timed in both"),
    ],
)
def test_what_is_not_recorded_is_not_judged(rerun, holds, words):
    reproduces, text = verdict_of({}, rerun)
    assert reproduces == holds and words in text
    with pytest.raises(UserError, match="the record is incomplete"):
        verdict_of({"hashes": NotRecorded("lost")}, rerun)


@pytest.mark.parametrize(
    ("seconds", "time_ratio", "holds"),
    [
        ((9.0, 3.0, 3.0), 1.5, True),
        ((9.0, 3.1, 3.1), 1.5, False),
        ((9.0, 1.3, 1.3), 1.5, False),
        ((4.0, 4.0, 4.0), 2.0, True),
    ],
)
def test_the_time_limit_applies_both_ways(seconds, time_ratio, holds):
    """The median of 3, 2, 2 s is 2 s; a slow first epoch has no extra weight."""
    reproduces, text = verdict_of({}, {"seconds": seconds}, time_ratio=time_ratio)
    assert reproduces is holds
    assert f"{'within' if holds else 'outside'} {1 / time_ratio:.2f} to {time_ratio:.2f}\n" in text
    assert text.endswith("\nReproduces bit for bit.\n" if holds else "\nDoes not reproduce: time.\n")


def written(run):
    write_run(run.folder, run.record, run.epochs)
    return run


def test_the_exit_code_and_what_is_shown(tmp_path, capsys):
    isolation = Interference(load_average_before=[1.0], other_processes_before=["make, 87 % of a core"],
                          throttled_cores=None, peak_memory_bytes=[1], peak_device_memory_bytes=[None])  # fmt: skip
    first = written(make_finished_run(tmp_path / "run"))
    written(make_finished_run(tmp_path / "run-verify", seconds=(8.0, 8.0), isolation=isolation))
    written(make_finished_run(tmp_path / "run-verify-2", seconds=(8.0, 8.0)))
    for name in ("run-verify", "run-verify-2"):
        write_verify(tmp_path / name, run=first.folder, time_ratio=1.5)
    assert main(["verify", str(tmp_path / "run-verify")]) == 0  # its time is not judged
    shown = capsys.readouterr().out
    assert "compared" in shown and "Reproduces bit for bit.\n" in shown
    assert "note: other programs used the machine during the rerun: make, 87 %" in shown
    assert main(["verify", str(tmp_path / "run-verify-2"), "--format", "json"]) == 1
    assert '"answer": "Does not reproduce: time."' in capsys.readouterr().out
