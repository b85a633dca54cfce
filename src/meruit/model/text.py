"""Makes untrusted text safe to show."""

import unicodedata


def escape_control_characters(text: str) -> str:
    """Escape control characters, so that untrusted text cannot fake a line or move the cursor."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else repr(char)[1:-1] for char in text
    )
