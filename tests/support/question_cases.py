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
"""

import tomllib

import pytest
from analysis_builders import rows_of, said, select, spread_runs, study

BUILDERS = {"spread_runs": spread_runs, "study": study}
KEYS = {"id", "runs", "options", "answer", "says", "silent", "tables"}


def cases_in(file):
    """Return the cases of a file as parameters of a test."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    of_all = {"made_by": content.get("made_by", "spread_runs"), "known": content.get("runs", {})}
    for case in content["case"]:
        assert case.keys() <= KEYS, f"{file.name}: {case}"
    return [pytest.param(case | of_all, id=case["id"]) for case in content["case"]]


def case_in(file, name):
    """Return the case of this name."""
    (case,) = [param.values[0] for param in cases_in(file) if param.id == name]
    return case


def selection_of(case):
    """Return what a question works on: the runs of a case."""
    groups = []
    for number, wanted in enumerate(case["runs"]):
        settings = {"like": wanted} if isinstance(wanted, str) else dict(wanted)
        name = settings.pop("like", None)
        settings = (case["known"][name] if name else case["known"].get("run", {})) | settings
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
        rows = rows_of(found, title)
        if isinstance(expected, dict):
            assert any(values_of(row, expected) == expected_of(expected) for row in rows), rows
        else:
            shown = [values_of(row, columns) for row, columns in zip(rows, expected, strict=True)]
            assert shown == [expected_of(columns) for columns in expected], shown
    if case.get("tables") == {}:
        assert not found.tables and not found.plots


def values_of(row, columns):
    return {column: row[column] for column in columns}


def expected_of(columns):
    return {
        column: None if value == "" else pytest.approx(value) if isinstance(value, float) else value
        for column, value in columns.items()
    }
