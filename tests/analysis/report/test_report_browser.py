"""The pages of `report` and `clouds` in a headless Chromium: nothing is loaded, nothing goes wrong, tables sort."""

import math

import pytest
from analysis_builders import EVIL, found, html_with
from browser import started_browser
from builders import write_both, write_finished_run

from analysis.__main__ import main
from analysis.output.tables import Table

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report of runs of both frameworks, with names that would break a page that does not escape them; and clouds."""
    folder = tmp_path_factory.mktemp("pages")
    runs = write_both(folder / "runs", seeds=6)
    write_finished_run(runs / "<img src=x onerror=alert(1)>", np=2, site=EVIL, host=EVIL, seed=9)
    assert main(["report", str(runs), "-o", str(folder / "report.html"), "--title", EVIL]) == 0
    assert main(["clouds", "--output", str(folder / "clouds.html")]) == 0
    return folder


@pytest.fixture
def report(pages):
    return pages / "report.html"


def show(browser, folder, text, *, width=400):
    (folder / "page.html").write_text(text, encoding="utf-8")
    browser.open((folder / "page.html").as_uri(), width=width)


def outside(browser):
    """Return the addresses that were asked for outside of this machine's files."""
    return [address for address in browser.requests if not address.startswith(("file:", "data:"))]


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", ["report", "clouds"])
def test_a_page_is_whole_by_itself_and_no_wider_than_the_screen(browser, pages, name, width):
    page = (pages / f"{name}.html").as_uri()
    browser.open(page, width=width)
    assert browser.errors == [] and outside(browser) == []
    assert [address for address in browser.requests if address.startswith("file:")] == [page]
    widths = browser.value("Array.from(document.images, image => image.naturalWidth)")
    figures = browser.value("document.querySelectorAll('figure').length")
    assert len(widths) == figures >= 3 and all(width > 0 for width in widths)
    assert browser.value("Array.from(document.images).every(image => image.complete && image.alt.length > 20)")
    open_all = "for (const one of document.querySelectorAll('details')) one.open = true"
    assert browser.value(f"(() => {{ {open_all}; return innerWidth }})()") == width
    assert browser.value("document.documentElement.scrollWidth") == width
    # What is wider scrolls in a box of its own, whose edges are on the screen.
    boxes = browser.value(
        "Array.from(document.querySelectorAll('.box'), box => [box.getBoundingClientRect().left, "
        "box.getBoundingClientRect().right, box.scrollWidth > box.clientWidth])"
    )
    assert len(boxes) > 5 and all(left >= 0 and right <= width for left, right, _ in boxes)
    assert any(scrolls for *_, scrolls in boxes) or width > 400


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


HEADINGS = "Array.from(document.querySelector('table').tHead.rows[0].cells)"
COLUMN = "Array.from(document.querySelector('table').tBodies[0].rows, row => row.cells[{place}].textContent)"
BUTTON = HEADINGS + "[{place}].querySelector('button')"


def column(browser, place):
    return browser.value(COLUMN.format(place=place))


def sort_by(browser, place):
    """Click on a heading; return the rows' names, or in the first column its cells."""
    browser.value(f"{BUTTON.format(place=place)}.click()")
    return column(browser, 0)


def sorted_as(browser):
    return browser.value(f"{HEADINGS}.map(cell => cell.getAttribute('aria-sort'))")


@pytest.fixture
def sorting(browser, tmp_path):
    rows = [
        ["run 10", 9.5, "10.5 to 11", "b"],
        ["run 9", 1234.0, "-2 to 3", 7],
        ["run 1", None, "", None],
        ["Run 2", -3.04, "1,000 to 2,000", "A"],
        ["run 3", math.nan, None, 10],
        ["run 4", math.inf, "9.75 to 11", "a"],
        ["run 5", -3.01, "1e-9 to 2", 8],
    ]
    table = Table("T", ["name", "s", "interval", "mixed"], rows, {"s": ",.1f"})
    show(browser, tmp_path, html_with(found(tables=[table])), width=1400)
    return browser


def test_tables_sort_by_number_and_by_word(sorting):
    # By the number itself, not as it is shown; what is missing stays last either way.
    assert sort_by(sorting, 1) == ["Run 2", "run 5", "run 10", "run 9", "run 4", "run 1", "run 3"]
    assert sorted_as(sorting) == [None, "ascending", None, None]
    assert sort_by(sorting, 1) == ["run 4", "run 9", "run 10", "run 5", "Run 2", "run 1", "run 3"]
    assert sorted_as(sorting) == [None, "descending", None, None]
    assert sort_by(sorting, 0) == ["run 1", "Run 2", "run 3", "run 4", "run 5", "run 9", "run 10"]
    sort_by(sorting, 2)
    expected = ["-2 to 3", "1e-9 to 2", "9.75 to 11", "10.5 to 11", "1,000 to 2,000", "", "–"]
    assert column(sorting, 2) == expected
    sort_by(sorting, 3)
    assert column(sorting, 3) == ["7", "8", "10", "a", "A", "b", "–"]
    assert sorting.errors == []


def test_tables_sort_by_the_keyboard(sorting):
    sorting.value(f"{BUTTON.format(place=1)}.focus()")
    sorting.press("Enter", code="Enter", number=13, text="\r")
    assert sorted_as(sorting) == [None, "ascending", None, None]
    sorting.press(" ", code="Space", number=32, text=" ")
    assert sorted_as(sorting) == [None, "descending", None, None]


def test_dark_and_printed_pages_keep_their_colors_apart(browser, report):
    browser.open(report.as_uri(), width=1400)
    colors = "['body', '.picture'].map(one => getComputedStyle(document.querySelector(one)).backgroundColor)"
    try:
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert browser.value(colors) == ["rgb(22, 24, 27)", "rgb(255, 255, 255)"]
        browser.call("Emulation.setEmulatedMedia", media="print")
        for element in ("nav", "details"):
            assert browser.value(f"getComputedStyle(document.querySelector('{element}')).display") == "none"
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
    show(browser, tmp_path, f"<!DOCTYPE html><title>t</title>{fault}")
    assert (outside(browser) if seen == "request" else browser.errors) != []


def test_the_policy_of_the_page_holds_back_what_slips_in(browser, report, tmp_path):
    foreign = "<img src='http://127.0.0.1:9/x.png'><script>document.title = 'taken'</script>"
    show(browser, tmp_path, report.read_text(encoding="utf-8").replace("<main>", f"<main>{foreign}"))
    assert browser.value("document.title") == EVIL
    assert len([error for error in browser.errors if "Content Security Policy" in error]) == 2
