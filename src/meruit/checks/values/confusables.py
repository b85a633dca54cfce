"""Text as a person reads it: look-alike letters are replaced, invisible characters removed.

A forbidden word is compared with the text as people read it, so that a Cyrillic letter does not hide it. A required
word is compared exactly: a word that only looks right is not the word.
"""

import re
import unicodedata
from typing import Any

from meruit.model.text import normalize_unicode

MAX_DEPTH = 64
"""The deepest nesting that is converted."""

LETTERS = {
    # Cyrillic
    **dict(zip("АВЕЅІЈКМНОРСТУХѴԚԜӀ", "ABESIJKMHOPCTYXVQWI", strict=True)),
    **dict(zip("авеѕіјкмнорстухѵԛԝӏһԁ", "abesijkmhopctyxvqwlhd", strict=True)),
    # Greek
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX", strict=True)),
    **dict(zip("αβγεηικνορςτυχω", "abyenikvopctuxw", strict=True)),
    # Latin letters that are drawn a little otherwise
    **dict(zip("ıɑɡ", "iag", strict=True)),
}
"""Letters and the Latin letters they look like; other letters stay as they are."""

_TO_LATIN = str.maketrans(LETTERS)
_BLANK = str.maketrans(dict.fromkeys("\u115f\u1160\u2800\u3164\uffa0", " "))
"""What is drawn as a blank and is none to Unicode."""
_PLAIN = re.compile(r"[\t\n\r -~]*")
# Format characters are found by their category; these are the others that Unicode says to draw as nothing, controls,
# and marks over or under a letter that no letter is written with, as composing has left them over.
_UNSEEN = re.compile(
    "[\u034f\u17b4\u17b5\u180b-\u180f\u2065\ufe00-\ufe0f\ufff0-\ufff8\U000e0000-\U000e0fff"
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]"
)


def is_plain(text: str) -> bool:
    """Whether there is nothing in it to see through."""
    return _PLAIN.fullmatch(text) is not None


def unmask(text: str) -> str:
    """The text as it is read."""
    if is_plain(text):
        return text
    seen = normalize_unicode("NFKC", text.translate(_BLANK))
    bare = _UNSEEN.sub("", "".join(one for one in seen if unicodedata.category(one) != "Cf"))
    return normalize_unicode("NFKC", bare.translate(_TO_LATIN))


# Any: a document, a part of one, or what an author wrote.
def unmask_value(value: Any, depth: int = 0) -> Any:
    """The same with every text in it as it is read; keys stay, and so does what was filled in."""
    if type(value) is str:
        return unmask(value)
    if depth == MAX_DEPTH:
        return value
    if type(value) in (list, tuple):
        return type(value)(unmask_value(one, depth + 1) for one in value)
    # Only what was parsed as JSON: other documents have values by path.
    return {name: unmask_value(one, depth + 1) for name, one in value.items()} if type(value) is dict else value
