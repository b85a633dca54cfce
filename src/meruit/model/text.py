"""Strangers' text, made safe to show."""

import unicodedata


def escape_control_characters(text: str) -> str:
    """Spell out control characters, so that no stranger's text fakes a line or moves the cursor."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else repr(char)[1:-1] for char in text
    )
