"""The report in a real headless Chromium: nothing is loaded, nothing goes wrong, tables sort, pictures are there."""

import math

import pytest
from analysis_builders import EVIL, found
from browser import started_browser
from builders import finished_record, write_both, write_run
from matplotlib.figure import Figure

from analysis.__main__ import main
from analysis.output.finding import Plot
from analysis.output.tables import Table
from analysis.report.page import Chapter, Page, html_of
from analysis.report.pictures import MOST_POINTS

pytestmark = pytest.mark.browser

WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of runs of both frameworks, with names that would break a page that does not escape them."""
    folder = tmp_path_factory.mktemp("report")
    runs = write_both(folder / "runs", seeds=6)
    write_run(runs / "<img src=x onerror=alert(1)>", finished_record(np=2, site=EVIL, host=EVIL, seed=9))
    assert main(["report", str(runs), "-o", str(folder / "report.html"), "--title", EVIL]) == 0
    return folder / "report.html"


def left_page(browser):
    return [address for address in browser.requests if not address.startswith(("file:", "data:"))]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_is_whole_by_itself(browser, report, width):
    browser.open(report.as_uri(), width=width)
    assert browser.errors == []
    assert [address for address in browser.requests if address.startswith("file:")] == [report.as_uri()]
    assert left_page(browser) == []
    widths = browser.value("Array.from(document.images, image => image.naturalWidth)")
    figures = browser.value("document.querySelectorAll('figure').length")
    assert len(widths) == figures >= 3 and all(width > 0 for width in widths)
    assert browser.value("Array.from(document.images).every(image => image.complete && image.alt.length > 20)")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_no_wider_than_the_screen(browser, report, width):
    browser.open(report.as_uri(), width=width)
    open_all = "for (const one of document.querySelectorAll('details')) one.open = true"
    assert browser.value(f"(() => {{ {open_all}; return innerWidth }})()") == width
    assert browser.value("document.documentElement.scrollWidth") == width
    # What is wider scrolls in a box of its own, whose edges are on the screen.
    edges = browser.value(
        "Array.from(document.querySelectorAll('.box'), box => box.getBoundingClientRect()).map(box => [box.left, "
        "box.right])"
    )
    assert len(edges) > 10 and all(left >= 0 and right <= width for left, right in edges)
    wide = browser.value(
        "Array.from(document.querySelectorAll('.box')).filter(b => b.scrollWidth > b.clientWidth).length"
    )
    assert wide > 0 or width > 400


def test_the_figures_are_not_too_small_to_read_on_a_phone(browser, report):
    browser.open(report.as_uri(), width=400)
    shown = browser.value("Array.from(document.querySelectorAll('section:not(#in-short) img'), one => one.clientWidth)")
    assert shown and all(width >= 600 for width in shown)  # of 8 inches: letters of 7 points and more
    shown, inches = (
        browser.value(f"Array.from(document.querySelectorAll('#in-short img'), image => image.{width})")
        for width in ("clientWidth", "naturalWidth / 96")
    )
    assert len(shown) == 2 and all(width < 400 for width in shown), "what opens the page is seen whole"
    assert max(inches) < 4.5  # and so its letters are as large


COLUMN = """(heading => {{
    const table = document.querySelectorAll('table')[{table}];
    const place = Array.from(table.tHead.rows[0].cells).findIndex(cell => cell.textContent === heading);
    return Array.from(table.tBodies[0].rows, row => row.cells[place].textContent);
}})({heading!r})"""
HEADINGS = "Array.from(document.querySelectorAll('table')[{table}].tHead.rows[0].cells)"
HEADING = HEADINGS + ".find(cell => cell.textContent === {heading!r})"


def column(browser, heading, *, table=0):
    return browser.value(COLUMN.format(table=table, heading=heading))


def click(browser, heading, *, table=0):
    browser.value(f"{HEADING.format(table=table, heading=heading)}.querySelector('button').click()")


def sorted_as(browser, *, table=0):
    return browser.value(HEADINGS.format(table=table) + ".map(cell => cell.getAttribute('aria-sort'))")


@pytest.fixture
def sorting(browser, tmp_path):
    table = Table(
        "T", ["name", "s", "interval", "mixed"],
        [
            ["run 10", 9.5, "10.5 to 11", "b"],
            ["run 9", 1234.0, "-2 to 3", 7],
            ["run 1", None, "", None],
            ["Run 2", -3.04, "1,000 to 2,000", "A"],
            ["run 3", math.nan, None, 10],
            ["run 4", math.inf, "9.75 to 11", "a"],
            ["run 5", -3.01, "1e-9 to 2", 8],
        ],
        {"s": ",.1f"},
    )  # fmt: skip
    none = Table("", ["folder, and why"], [], {})
    page = Page(title="t", facts={}, chapters=[Chapter.of(found(tables=[table]), command="c")], left_out=none)
    (tmp_path / "page.html").write_text(html_of(page), encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri(), width=1400)
    return browser


def test_tables_sort_by_number_and_by_word(sorting):
    assert sorted_as(sorting) == [None] * 4
    click(sorting, "s")
    # By the number itself, not as it is shown; what is missing stays last either way.
    assert column(sorting, "name") == ["Run 2", "run 5", "run 10", "run 9", "run 4", "run 1", "run 3"]
    assert sorted_as(sorting) == [None, "ascending", None, None]
    click(sorting, "s")
    assert column(sorting, "name") == ["run 4", "run 9", "run 10", "run 5", "Run 2", "run 1", "run 3"]
    assert sorted_as(sorting) == [None, "descending", None, None]
    click(sorting, "name")
    assert column(sorting, "name") == ["run 1", "Run 2", "run 3", "run 4", "run 5", "run 9", "run 10"]
    assert sorted_as(sorting) == ["ascending", None, None, None]
    click(sorting, "interval")
    assert column(sorting, "interval") == [
        "-2 to 3", "1e-9 to 2", "9.75 to 11", "10.5 to 11", "1,000 to 2,000", "", "–"
    ]  # fmt: skip
    click(sorting, "mixed")
    assert column(sorting, "mixed") == ["7", "8", "10", "a", "A", "b", "–"]
    assert sorting.errors == []


def test_tables_sort_by_the_keyboard(sorting):
    sorting.value(f"{HEADING.format(table=0, heading='s')}.querySelector('button').focus()")
    sorting.press("Enter", code="Enter", number=13, text="\r")
    assert sorted_as(sorting) == [None, "ascending", None, None]
    sorting.press(" ", code="Space", number=32, text=" ")
    assert sorted_as(sorting) == [None, "descending", None, None]
    sorting.press("Tab", code="Tab", number=9)
    assert sorting.value("document.activeElement.textContent") == "interval"


def test_every_table_of_the_report_sorts(browser, report):
    browser.open(report.as_uri(), width=1400)
    count = browser.value("document.querySelectorAll('table').length")
    assert count > 8
    sorts = """(() => Array.from(document.querySelectorAll('thead button'), button => {
        button.click();
        return button.closest('th').getAttribute('aria-sort');
    }))()"""
    assert set(browser.value(sorts)) == {"ascending"}
    assert browser.errors == []


def test_pictures_of_pixels_are_there_too(browser, tmp_path):
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot(range(MOST_POINTS + 1), "o")
    plot = Plot("cloud", figure, Table("Cloud", ["x"], [[1]], {}))
    none = Table("", ["folder, and why"], [], {})
    page = Page(title="t", facts={}, chapters=[Chapter.of(found(plots=[plot]), command="c")], left_out=none)
    (tmp_path / "page.html").write_text(html_of(page), encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri(), width=400)
    assert browser.errors == [] and browser.value("document.images[0].naturalWidth") == 640


def test_dark_and_printed_pages_keep_their_colors_apart(browser, report):
    browser.open(report.as_uri(), width=1400)
    colors = "['body', '.picture'].map(one => getComputedStyle(document.querySelector(one)).backgroundColor)"
    try:
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert browser.value(colors) == ["rgb(22, 24, 27)", "rgb(255, 255, 255)"]
        browser.call("Emulation.setEmulatedMedia", media="print")
        assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert browser.value("getComputedStyle(document.querySelector('details')).display") == "none"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])


# The checks themselves: pages with faults


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("<img src='http://127.0.0.1:9/x.png'>", "request"),
        ("<script>throw new Error('broken')</script>", "error"),
        ("<script>console.error('broken')</script>", "error"),
        ("<img src='missing.png'>", "error"),
    ],
)
def test_faults_are_found(browser, tmp_path, fault, seen):
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><title>t</title>{fault}", encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri(), width=400)
    assert (left_page(browser) if seen == "request" else browser.errors) != []


def test_the_policy_of_the_page_holds_back_what_slips_in(browser, report, tmp_path):
    foreign = "<img src='http://127.0.0.1:9/x.png'><script>document.title = 'taken'</script>"
    text = report.read_text(encoding="utf-8").replace("<main>", f"<main>{foreign}")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri(), width=400)
    assert browser.value("document.title") == EVIL
    assert len([error for error in browser.errors if "Content Security Policy" in error]) == 2
