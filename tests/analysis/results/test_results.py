"""`python -m analysis results`: pages equal what the command writes; the committed data is small and neutral."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest
from builders import make_environment, make_status, write_both, write_finished_run

from analysis.output.plots import save_figure
from analysis.projection.study import STUDY_FILE
from analysis.results import command
from analysis.results.command import DATA, PAGES, ROOT, with_results
from analysis.results.data import HOST, add_data
from analysis.results.tables import FIGURES, TABLES, bench_table
from analysis.results.tables import plots as plots_of
from analysis.runs.reading import load_runs
from analysis.runs.table import runs_in
from common.checks.bench_record import BENCH_FILE
from common.checks.chaos_record import TRIALS_FILE
from common.errors import UserError
from common.measurement.memory_limit import OVER_LIMIT
from common.run_folder.environment import TUNING_VARIABLES
from common.run_folder.records import EPOCHS_FILE, RUN_FILE, now
from common.run_folder.search_record import SEARCH_FILE

MOST_BYTES = 8_600_000  # of all committed data
pytestmark = pytest.mark.usefixtures("plots")  # findings of committed data are kept for the whole process


@pytest.mark.parametrize("name", [PAGES[0], *(pytest.param(page, marks=pytest.mark.ci) for page in PAGES[1:])])
def test_the_tables_of_a_page_are_what_the_command_writes(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert with_results(page, data=DATA) == page
    assert page.count("<!-- results: ") == page.count("<!-- end of results -->") > 0


def test_every_table_is_in_a_page_and_one_that_was_edited_by_hand_is_replaced():
    pages = "".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    assert [name for name in TABLES if f"<!-- results: {name} -->" not in pages] == []
    page = "Before\n<!-- results: parity -->\n| model | by hand |\n<!-- end of results -->\nAfter\n"
    written = with_results(page, data=DATA)
    assert written.startswith("Before\n<!-- results: parity -->\n| model ") and "by hand" not in written
    assert written.endswith("|\n<!-- end of results -->\nAfter\n")
    with pytest.raises(UserError, match="no such table of results"):
        with_results(page.replace("parity", "speed"), data=DATA)


@pytest.mark.ci
@pytest.mark.usefixtures("drawn")
def test_every_figure_is_committed_and_has_no_formula_that_is_shown_as_its_source(tmp_path):
    """matplotlib labels logarithmic axes by formulas, which plots do not typeset, as a name may have dollar signs."""
    figures = plots_of(DATA)
    assert {plot.name for plot in figures} == set(FIGURES)
    assert all((command.FIGURES / f"{name}.png").is_file() for name in FIGURES)
    for plot in figures:
        if not any("log" in (ax.get_xscale(), ax.get_yscale()) for ax in plot.figure.axes):
            continue
        save_figure(plot.figure, tmp_path, plot.name)
        shown = " ".join(ElementTree.parse(tmp_path / f"{plot.name}.svg").getroot().itertext())
        assert "mathdefault" not in shown
        assert ("1e\N{MINUS SIGN}08" in shown) == (plot.name == "losses")


def test_the_committed_data_is_small_neutral_and_valid():
    files = [file for file in DATA.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    assert {file.name for file in files} <= {
        *(RUN_FILE, EPOCHS_FILE, SEARCH_FILE, TRIALS_FILE, BENCH_FILE, "parity.json", STUDY_FILE.name)
    }
    for record in DATA.rglob("*.json"):
        found = json.loads(record.read_text(encoding="utf-8"))
        if record != STUDY_FILE and record.name != SEARCH_FILE:  # which have no environment
            assert found["environment"]["host"] == HOST
            assert set(found["environment"]["variables"]) <= set(TUNING_VARIABLES)
        paths = re.findall(r'"(?:~|/(?!sys/))[^"]*"(?!:)', record.read_text(encoding="utf-8"))
        assert not paths, record
    selection = load_runs([DATA])
    assert selection.left_out == []
    for run in runs_in(selection.runs):  # a run that its memory limit ended is a result
        assert run.state == ("failed" if OVER_LIMIT in str(getattr(run.record.status, "message", "")) else "finished")


def test_results_keep_their_numbers_and_lose_host_and_paths_and_other_runs_are_not_added(tmp_path):
    runs = write_both(tmp_path / "results", seeds=2)
    (runs / "torch-1" / "weights.safetensors").write_bytes(b"large")
    environment = make_environment(
        host="gpu17.example.org", command=["train.py", "--runs-folder", "/home/somebody/runs"]
    )
    write_finished_run(runs / "hosts", np=2, host="gpu17.example.org", environment=environment)
    assert add_data(runs, data=tmp_path / "data") == 5
    added = tmp_path / "data" / "results"
    assert {file.name for file in added.rglob("*") if file.is_file()} == {RUN_FILE, EPOCHS_FILE}
    text = "".join(file.read_text(encoding="utf-8") for file in added.rglob("*.json"))
    assert "gpu17" not in text and "node1" not in text and "/home" not in text
    before, after = (load_runs([folder]).runs for folder in (runs, added))
    for part in ("totals", "hashes"):
        assert [getattr(one, part) for one in before["record"]] == [getattr(one, part) for one in after["record"]]
    (runs / "hosts" / RUN_FILE).unlink()
    over = f"rank 0 {OVER_LIMIT}. Received: --memory-limit 600"  # which is a result
    for name, message in {"over": over, "broken": "no space left", "none": None}.items():
        write_finished_run(runs / name, status=make_status(state="failed", ended_at=now(), message=message))
    assert add_data(runs, data=tmp_path / "data") == 5
    assert {folder.name for folder in added.iterdir()} == {"torch-1", "torch-2", "keras-1", "keras-2", "over"}


def test_of_a_campaign_the_runs_whose_ranks_came_and_went_are_added(tmp_path):
    source, added = tmp_path / "chaos", tmp_path / "data" / "chaos"
    shutil.copytree(DATA / "chaos", source)
    names = {path.name for path in source.iterdir()}
    trial = source / "trial-3-1" / RUN_FILE
    trial.write_text(trial.read_text().replace(f'["{HOST}', '["node1'))
    write_finished_run(source / "over-mpi")
    assert add_data(source, data=tmp_path / "data") == len(names) - 1
    assert {path.name for path in added.iterdir()} == names
    text = (added / "trial-3-1" / RUN_FILE).read_text()
    assert f'"{HOST}, process 4608"' in text and "node1" not in text
    (source / TRIALS_FILE).write_text("{}\n")
    with pytest.raises(UserError, match="is not a record of `launch chaos`"):
        add_data(source, data=tmp_path / "data")
    (source / TRIALS_FILE).unlink()
    trial.with_name(EPOCHS_FILE).unlink()
    with pytest.raises(UserError, match="copying results failed"):
        add_data(source, data=tmp_path / "data")
    assert {path.name for path in added.iterdir()} == names  # nothing is lost


def test_a_benchmark_is_added_without_host_and_paths_and_becomes_a_table(tmp_path):
    assert "not measured yet" in bench_table(tmp_path / "data")
    record = json.loads((DATA / "bench" / BENCH_FILE).read_text())
    variables = {"HOME": "/root", "HOROVOD_CYCLE_TIME": "1"}
    parts = [record, *record["starts"]]
    for part in parts:
        part["environment"] |= {"host": "gpu17", "command": ["--output", "/home/me/b.json"], "variables": variables}
    (tmp_path / "bench-1.json").write_text(json.dumps(record))
    assert add_data(tmp_path / "bench-1.json", data=tmp_path / "data") == 1
    text = (tmp_path / "data" / "bench" / BENCH_FILE).read_text()
    assert not any(word in text for word in ("gpu17", "/home", "/root"))
    assert text.count("HOROVOD_CYCLE_TIME") == len(parts)
    assert bench_table(tmp_path / "data") == bench_table(DATA)
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(UserError, match="is not a result of `python -m launch bench`"):
        add_data(tmp_path / "mine.json", data=tmp_path / "data")
