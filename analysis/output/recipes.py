"""Recipe files: TOML that the trainers read by `--recipe FILE`."""

import json
from pathlib import Path
from typing import Any

from common.errors import UserError, user_errors


def write_new(file: Path, text: str) -> None:
    """Write a recipe.

    Raises:
        UserError: the file exists or cannot be written.
    """
    with user_errors("writing the recipe"):
        try:
            with file.open("x", encoding="utf-8") as recipe:
                recipe.write(text)
        except FileExistsError:
            raise UserError(
                f"the recipe exists already and is not overwritten. Received: --recipe-out {file}. Name another file"
            ) from None


def toml_table(name: str, values: dict[str, Any]) -> str:
    """Return a table of TOML."""
    # JSON's texts, numbers, lists and true/false are TOML's.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    return f"[{name}]\n{''.join(lines)}"
