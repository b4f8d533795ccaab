"""How plots look and how they are written: as PNG for a page, as SVG for a paper."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from common.errors import from_os_error

matplotlib.use("Agg")  # no window, also where there is a screen
# Told apart by readers who do not see all colours (Okabe and Ito 2008), and by their dashes in print.
STYLES: dict[str, dict[str, Any]] = {
    "torch": {"color": "#D55E00", "linestyle": "-", "label": "PyTorch"},
    "keras": {"color": "#0072B2", "linestyle": "--", "label": "Keras"},
}
SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 130,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "horovod-twins",  # the same figure gives the same file
}


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `<name>.png` and `<name>.svg`; return their paths.

    Raises:
        UserError: the folder cannot be made or written.
    """
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(SETTINGS):
            for file in files:
                figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    except OSError as error:
        raise from_os_error(error, doing="writing a plot") from None
    return files
