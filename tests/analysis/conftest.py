"""For all tests of the analysis: answers are short, and a picture is drawn only where a test looks at it."""

import os
import re
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from made_steps import made_study
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from analysis.output.finding import Finding
from analysis.questions import frameworks, times
from analysis.questions.clouds import finding as clouds
from analysis.questions.projection import command as projection
from analysis.questions.projection import errors
from analysis.questions.scaling import command as scaling
from analysis.questions.strategies import command as strategies
from common.utils import workers

MOST_FIGURES = 3  # of a sentence
MOST_WORDS = 60  # of a line, of which a reader takes in about 50 in ten seconds
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
# A number that stands alone, and not in a name such as resnet34, 28x28, E5-2620 or --nodes=2.
_INTERVAL = re.compile(r"95 % interval [-+\d.]+ to [-+\d.]+")
_FIGURE = re.compile(r"(?<![\w.:/=-])[-+]?\d[\d,]*(?:\.\d+)?(?![\w:/-]|\.\d)")


def figures_of(sentence):
    """Return the numbers of a sentence; an interval is one."""
    return _FIGURE.findall(_INTERVAL.sub("1", sentence))


def check_answer(answer):
    """Check that each sentence names few figures, and each line, the answer to one question, few words."""
    for sentence in _SENTENCES.split(answer):
        assert len(figures_of(sentence)) <= MOST_FIGURES, f"more than {MOST_FIGURES} figures: {sentence}"
    for line in answer.splitlines():
        words = len(line.split())
        assert words <= MOST_WORDS, f"{words} words, more than can be taken in at once: {line}"


# What makes the plots of the commands that tests ask most: an axis takes as long as all else of a finding.
# Module, name -> what it returns without data.
MAKERS = [
    (frameworks, "_plots", []),
    *((clouds, name, []) for name in ("_plots", "owned_plots", "startup_plots")),
    (scaling, "plots_of", []),
    (strategies, "plots_of", ([], [])),
    (times, "plot_epochs", None),
    (times, "plot_totals", None),
]


@pytest.fixture(autouse=True, scope="session")
def _answers_are_short():
    """Every finding that a test builds is checked: its answer can be taken in at once."""
    build = Finding.__post_init__

    def checked(finding):
        build(finding)
        check_answer(finding.answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finding, "__post_init__", checked)
        yield


def _save_texts(figure, file, *, format=None, metadata=None, **_):
    """Stand in for `Figure.savefig`, which takes most of the time of a command: a small file with the same texts."""
    described = (metadata or {}).get("Description", "")
    if (format or Path(file).suffix[1:]) == "png":
        description = PngInfo()
        description.add_text("Description", described)
        Image.new("RGB", (1, 1)).save(file, format="png", pnginfo=description)
        return
    if not isinstance(file, Path):
        file.write(b"<svg/>")  # of a page
        return
    texts = "".join(f"<text>{escape(text.get_text())}</text>" for text in figure.findobj(Text))
    file.write_text(f'<svg xmlns="http://www.w3.org/2000/svg"><desc>{escape(described)}</desc>{texts}</svg>')


@pytest.fixture(autouse=True, scope="session")
def _disks_and_fits_are_quick():
    """Nothing here is about a crash of the machine; and the fits of a study are made once, not for every page of it."""
    project, fits = errors.projected_steps, {}

    def projected(study):
        key = study.machine, *(step.seconds for step in study.steps)
        if key not in fits:
            fits[key] = project(study)
        return fits[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        for module in (errors, projection):
            patch.setattr(module, "projected_steps", projected)
        yield


@pytest.fixture(scope="session")
def study():
    return made_study()


@pytest.fixture
def plots():
    """For a test that looks at the plots of a finding, or at what they do with odd values: they are made."""


@pytest.fixture
def drawn(plots):
    """For a test that looks at pictures: they are drawn."""


@pytest.fixture(autouse=True)
def _plots_are_made_and_drawn_only_where_a_test_looks_at_them(request):
    if "drawn" in request.fixturenames or request.node.get_closest_marker("browser"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module, maker, nothing in MAKERS if "plots" not in request.fixturenames else ():
            patch.setattr(module, maker, lambda *_, nothing=nothing, **__: nothing)
        patch.setattr(Figure, "savefig", _save_texts)
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)
        patch.setattr(workers, "usable_cores", lambda: 1)  # to copy this process takes longer than what is left
        yield
