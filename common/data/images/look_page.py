"""The page of a look at images: one HTML file, which loads nothing and runs nothing."""

import base64
import io
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common.data.images.findings import Findings, Shown
from common.data.images.listing import PARTS
from common.utils.html_pages import page_environment
from common.utils.printable import printable

MOST_ROWS, MOST_NAMES = 12, 200  # of a table of sizes or formats, and of a list of names
QUALITY = 85  # of WebP


def html_of(findings: Findings) -> str:
    """Return the page; all names on it are escaped."""
    names = [printable(name) for name in findings.class_names]
    sizes = Counter({f"{height}x{width}": count for (height, width), count in findings.sizes.items()})
    sheets = {row: [_picture(shown) for shown in sheet] for row, sheet in findings.sheets.items()}
    template = page_environment(Path(__file__).parent).get_template("look.html.jinja")
    return template.render(
        title=printable(findings.path.name),
        path=printable(str(findings.path)),
        summary=printable(findings.summary()),
        created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        flags=findings.flags(),
        notes=findings.all_notes(),
        parts=PARTS,
        classes=list(zip(names, findings.counts.tolist(), strict=True)),
        most=int(findings.counts.sum(axis=1).max()),
        tables=[("height x width", sizes), ("format", findings.kinds)],
        most_rows=MOST_ROWS,
        examples=[(name, sheets[label]) for label, name in enumerate(names) if label in sheets],
        odd=[
            (kind, sheets.get(kind, []), [printable(image) for image in images])
            for kind, images in findings.odd.items()
        ],
        most_names=MOST_NAMES,
    )


def _picture(shown: Shown) -> dict[str, Any]:
    """Return the address of a picture, which contains it, its sides and the text below it."""
    file = io.BytesIO()
    shown.picture.save(file, "WEBP", quality=QUALITY)
    source = f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
    width, height = shown.picture.size
    return {"source": source, "width": width, "height": height, "caption": shown.caption}
