"""What a folder holds before `python -m analysis` refuses a command line: see tests/refusals/analysis.toml."""

import json
from dataclasses import asdict
from pathlib import Path

from analysis_builders import made_search, made_trial, write_searched
from builders import make_environment, make_trace, make_world, write_finished_run, write_study
from made_thesis import make_thesis

from common.checks.bench_record import BenchRecord
from common.measurement.step_profile import PARTS, LayerSeconds, StepProfile
from common.run_folder.records import RUN_FILE

TESTS = Path(__file__).resolve().parents[2]


def written(name, content):
    """Return what writes a text into a file, in place of what it had."""
    return lambda folder: (folder / name).write_text(content)


a_parity_record = written("parity.json", (TESTS / "analysis" / "parity.json").read_text())
nested_record = written("run/run.json", "[" * 100_000)
nested_epochs = written("run/epochs.jsonl", "[" * 100_000)
many_digits = written("run/run.json", '{"schema_version": 1' + "0" * 5000 + "}")


def newer_bench(folder):
    record = BenchRecord(
        schema_version=2, started="2026-01-01T00:00:00+00:00", settings={}, environment=make_environment(),
        threads_per_rank=1, load_average_before=(0.1, 0.1, 0.1), starts=[],
    )  # fmt: skip
    (folder / "bench.json").write_text(json.dumps(asdict(record)))


def an_empty_folder(folder):
    (folder / "empty").mkdir()


def runs(folder):
    write_study(folder / "runs", seconds=[5.0, 5.5])


def other_framework(folder):
    write_study(folder / "runs", name="other", seconds=[5.0, 5.5], framework="keras")


def other_ranks(folder):
    write_study(folder / "runs", name="other", seconds=[5.0, 5.5], np=2)


def other_settings(folder):
    write_study(folder / "runs", name="other", seconds=[5.0, 5.5], settings={"optimizer": {"momentum": 0.5}})


def three_runs(folder):
    for name in ("first", "second", "third"):
        write_finished_run(folder / name)


def a_run(folder):
    write_finished_run(folder / "run")


def nested_site(folder):
    file = folder / "run" / RUN_FILE
    file.write_text(file.read_text().replace('"site": "local"', '"site": ' + '{"a":' * 500 + "1" + "}" * 500))


def a_broken_run(folder):
    write_finished_run(folder / "broken")
    (folder / "broken" / RUN_FILE).write_text("{")


def sites(folder):
    for site in ("cte-power", "aws-p3-8xlarge"):
        write_finished_run(folder / "runs" / site, site=site)


def metered_runs(folder):
    for ranks in (1, 2):
        trace = make_trace({"training": 10}, {"cpu0": {"training": 50.0}})
        write_finished_run(folder / "runs" / f"np{ranks}", traces=[trace], world=make_world(*["cuda:0"] * ranks))


def profiled_run(folder):
    profile = StepProfile(
        steps=6, left_out_steps=5, step_seconds=0.7, parts_seconds=dict.fromkeys(PARTS, 0.1), parts_over_step=1.0,
        step_seconds_of_ranks=[0.7], parts_seconds_of_ranks={part: [0.1] for part in PARTS},
        layers={"fc1": LayerSeconds(forward=0.01, backward=0.02)},
    )  # fmt: skip
    write_finished_run(folder / "runs" / "profiled", profile=profile)


def machines(folder):
    """Write runs of a processor, of a GPU, and of two of them."""
    for name, seconds, devices in (
        ("slow", [1200.0, 1210.0], ["cpu"]),
        ("fast", [100.0, 101.0], ["cuda:0"]),
        ("fast2", [60.0, 61.0], ["cuda:0", "cuda:1"]),
    ):
        write_study(folder / "runs", name=name, seconds=seconds, np=len(devices), world=make_world(*devices))


def a_search(folder):
    write_searched(folder / "search", made_search([made_trial("torch", 0, score=0.5)]))


def a_failed_search(folder):
    write_searched(folder / "search", made_search([made_trial("torch", 0, score=0.1, state="failed")]))


def a_broken_search(folder):
    a_search(folder)
    file = folder / "search" / "search.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"metric": "speed"}))


def thesis(folder):
    make_thesis(folder / "thesis")
