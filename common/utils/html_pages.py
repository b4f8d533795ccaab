"""How HTML pages are made of templates: everything is escaped, and a name without a value is an error."""

from pathlib import Path

import jinja2


def page_environment(folder: Path) -> jinja2.Environment:
    """Return the environment of the templates in a folder."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
