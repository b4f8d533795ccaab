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
             as a list, of one row. "" where nothing is known. {}: there are no tables at all
"""

import tomllib

import pytest
from analysis_builders import rows_of, said, select, spread_runs, study

BUILDERS = {"spread_runs": spread_runs, "study": study}


def cases_in(file):
    """Return the cases of a file as parameters of a test, each with the settings of all its runs."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    build, known = BUILDERS[content.get("made_by", "spread_runs")], content.get("runs", {})
    return [
        pytest.param(case | {"made": [made(build, known, one) for one in case["runs"]]}, id=case["id"])
        for case in content["case"]
    ]


def runs_in(file, case):
    """Return the runs of the case of this name, in groups."""
    (found,) = [param.values[0] for param in cases_in(file) if param.id == case]
    return [build(number) for number, build in enumerate(found["made"])]


def made(build, known, wanted):
    """Return what makes runs: when a case begins, not when it is collected."""
    settings = {"like": wanted} if isinstance(wanted, str) else dict(wanted)
    name = settings.pop("like", "run")
    settings = known.get(name, {}) | settings
    return lambda number: build(**{"name": f"{name}{number}", **settings})


def check_case(case, find):
    """Check what a question finds in the runs of a case."""
    runs = [build(number) for number, build in enumerate(case["made"])]
    found = find(select(*runs), **case.get("options", {}))
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
