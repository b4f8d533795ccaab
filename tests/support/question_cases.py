"""Cases of a question of `python -m analysis` as data: made runs, and what is found in them.

A file has a table `[runs]`, name -> settings of runs as `spread_runs` takes them (or `study`, where the file says
`made_by = "study"`), and a table `[[case]]` for each:

    id       of the test
    runs     names of these, or tables of settings; `like`: a name whose settings these change
    options  of the question
    answer   all of it; may be left out
    says     words in the answer, in a flag or in a note, each in a line of its own; flags begin with "flag: "
    silent   words that are in none of them
    tables   beginning of a title -> the values of some columns: of all rows, in their order; or, as one table and not
             as a list, of one row. "" where nothing is known. {}: there are no tables, and no plots
    drawn    names of all plots
    plots    name of a plot -> values of its data, as of tables

Settings are as in Python, but for `{ not_recorded = "why" }`, those of `PARTS`, which are tables of arguments, and
`traces`, a list of arguments of `make_trace`.
"""

import tomllib

import pytest
from analysis_builders import plot_of, rows_of, said, select, spread_runs, study
from builders import make_environment, make_status, make_trace

from common.measurement.interference import Interference
from common.run_folder.records import Hashes, NotRecorded
from common.run_folder.sharing import PassRecord, SharingRecord, StageRecord, WorkerShare


def sharing_of(*, sent=4e6, seconds=1.0, staleness=None, stages=None):
    """Return what workers exchanged in 100 updates of 64 images together, every second twice as long; or what stages
    of a pipeline sent, each of which computed one microbatch.
    """
    workers = [
        WorkerShare(batch_size=32, images=3200, updates=100, sent_bytes=sent, received_bytes=sent,
                    exchange_seconds=seconds if isinstance(seconds, NotRecorded) else seconds * (worker % 2 + 1))
        for worker in range(stages or 2)
    ]  # fmt: skip
    passes = [PassRecord(is_forward=kind, microbatch=0, start=0.001 * kind, end=0.002) for kind in (True, False)]
    ends = (("flatten", "fc1"), ("sigmoid1", "fc2")) * 2
    pipeline = [
        StageRecord(first_layer=first, last_layer=last, parameters=10, multiply_adds=10, held_microbatches=1,
                    waiting_seconds=1.0, passes=passes)
        for first, last in ends[:stages]
    ] if stages else None  # fmt: skip
    return SharingRecord(workers=workers, formula="ring: 2 (N-1)/N S", formula_bytes=4e6, staleness=staleness,
                         pipeline=pipeline)  # fmt: skip


def memory_of(*, ranks):
    """Return what was seen on a quiet host, with the most bytes of each rank."""
    return Interference(
        load_average_before=[0.1], other_processes_before=[], throttled_cores=None, peak_memory_bytes=ranks,
        peak_device_memory_bytes=[None] * len(ranks), memory_before_bytes=[rank // 4 for rank in ranks],
    )  # fmt: skip


BUILDERS = {"spread_runs": spread_runs, "study": study}
PARTS = {
    "environment": make_environment,
    "status": make_status,
    "hashes": Hashes,
    "sharing": sharing_of,
    "isolation": memory_of,
}
KEYS = {"id", "runs", "options", "answer", "says", "silent", "tables", "drawn", "plots"}


def cases_in(file):
    """Return the cases of a file as parameters of a test."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    of_all = {"made_by": content.get("made_by", "spread_runs"), "known": content.get("runs", {})}
    for case in content["case"]:
        assert case.keys() <= KEYS, f"{file.name}: {case}"
    return [pytest.param(case | of_all, id=case["id"]) for case in content["case"]]


def case_in(file, name):
    (case,) = [param.values[0] for param in cases_in(file) if param.id == name]
    return case


def made(name, value):
    """Return a setting as Python has it."""
    if name == "traces":
        return [make_trace(**one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"not_recorded"}:
        return NotRecorded(value["not_recorded"])
    inner = {key: made(key, one) for key, one in value.items()}
    return PARTS[name](**inner) if name in PARTS else inner


def selection_of(case):
    """Return what a question works on: the runs of a case."""
    groups = []
    for number, wanted in enumerate(case["runs"]):
        settings = {"like": wanted} if isinstance(wanted, str) else dict(wanted)
        name = settings.pop("like", None)
        settings = made("", (case["known"][name] if name else case["known"].get("run", {})) | settings)
        groups.append(BUILDERS[case["made_by"]](**{"name": f"{name or 'run'}{number}", **settings}))
    return select(*groups)


def check_case(case, find):
    """Check what a question finds in the runs of a case."""
    found = find(selection_of(case), **case.get("options", {}))
    text = said(found)
    assert found.answer == case.get("answer", found.answer), found.answer
    for words in case.get("says", ()):
        assert words in text, text
    for words in case.get("silent", ()):
        assert words not in text, text
    for title, expected in case.get("tables", {}).items():
        check_rows(rows_of(found, title), expected)
    for name, expected in case.get("plots", {}).items():
        check_rows(rows_of(plot_of(found, name).data), expected)
    names = [plot.name for plot in found.plots]
    assert names == case.get("drawn", names)
    if case.get("tables") == {}:
        assert not found.tables and not found.plots


def check_rows(rows, expected):
    if isinstance(expected, dict):
        assert any(values_of(row, expected) == expected_of(expected) for row in rows), rows
    else:
        shown = [values_of(row, columns) for row, columns in zip(rows, expected, strict=True)]
        assert shown == [expected_of(columns) for columns in expected], shown


def values_of(row, columns):
    return {column: row[column] for column in columns}


def expected_of(columns):
    return {
        column: None if value == "" else pytest.approx(value) if isinstance(value, float) else value
        for column, value in columns.items()
    }
