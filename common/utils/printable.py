"""Text from files and folder names, made safe to show."""

import unicodedata


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
