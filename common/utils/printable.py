"""Text that was received, made safe to show; and what was probably meant by it."""

import difflib
import unicodedata
from collections.abc import Iterable


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with control characters, and bytes that are no text, as escapes such as \\x1b.

    Args:
        keep: control characters that stay, such as "\\n".
    """
    return "".join(
        character
        if character in keep or not unicodedata.category(character).startswith("C")
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def suggestion(text: str, choices: Iterable[str]) -> str:
    """Return "Did you mean ...? " with those of the choices that begin alike, or the nearest; empty if none is near."""
    folded, text = {choice.lower(): choice for choice in choices}, text.lower()
    begin_alike = [choice for choice in folded if choice.startswith(text) and len(text) > 3][:3]
    nearest = [text] if text in folded else begin_alike or difflib.get_close_matches(text, folded, n=1, cutoff=0.7)
    near = [folded[choice] for choice in nearest]
    return f"Did you mean {' or '.join(near)}? " if near else ""
