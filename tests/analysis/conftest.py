"""For all tests of the analysis: answers are short, and a picture is drawn only where a test looks at it."""

from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from answers import check_answer
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from analysis.output.finding import Finding
from common.utils import workers


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
    texts = "".join(f"<text>{escape(text.get_text())}</text>" for text in figure.findobj(Text))
    content = f'<svg xmlns="http://www.w3.org/2000/svg"><desc>{escape(described)}</desc>{texts}</svg>'.encode()
    if isinstance(file, Path):
        file.write_bytes(content)
    else:
        file.write(content)


@pytest.fixture
def drawn():
    """For a test that looks at pictures: they are drawn."""


@pytest.fixture(autouse=True)
def _pictures_are_not_drawn(request):
    if "drawn" in request.fixturenames or request.node.get_closest_marker("browser"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _save_texts)
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)
        patch.setattr(workers, "usable_cores", lambda: 1)  # to copy this process takes longer than what is left
        yield
