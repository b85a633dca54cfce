"""The fence around work: a judge is shown work as data, between two marks that the work cannot write.

The marks hold a nonce, computed from everything that is shown. Work that contains its own nonce would have to contain
its own hash; should a text hold the nonce all the same, another one is computed.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from meruit.model.canonical import digest

MAX_PART_CHARS = 60_000
"""Characters of one part of the work that a judge is shown; the rest is cut with a note."""
NONCE_CHARS = 32

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters and marks that show nothing."""
_VARIATIONS = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
"""Selectors of a character's form, in which a text can be hidden."""


class Fenced(msgspec.Struct, frozen=True):
    """Work inside its fence, and the note that stands before it."""

    text: str
    nonce: str


class CleanText(msgspec.Struct, frozen=True):
    """A text without invisible characters, cut to what a judge is shown."""

    text: str
    removed: int
    """Invisible characters that were removed."""
    cut: int
    """Characters at the end that are not shown."""


def clean(text: str) -> CleanText:
    """Remove control and invisible characters, and cut what is too long."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    visible = _SUSPECT.sub(lambda found: _visible(found[0]), lines)
    return CleanText(
        text=visible[:MAX_PART_CHARS], removed=len(lines) - len(visible), cut=max(0, len(visible) - MAX_PART_CHARS)
    )


@lru_cache(maxsize=4_096)
def _visible(character: str) -> str:
    """The character, or nothing where a reader would not see it."""
    hidden = unicodedata.category(character) in _INVISIBLE or character in _BLANK
    return "" if hidden or any(low <= ord(character) <= high for low, high in _VARIATIONS) else character


def build_fence(parts: Mapping[str, str], seed: str) -> Fenced:
    """Put each part of the work inside its own fence; only our own words and numbers stand outside."""
    cleaned = {name: clean(text) for name, text in parts.items()}
    nonce = _nonce([one.text for one in cleaned.values()], seed)
    blocks = [_block(name, one, nonce) for name, one in cleaned.items()]
    return Fenced("\n\n".join(blocks), nonce)


def opening(name: str, nonce: str) -> str:
    """The mark before a part."""
    return f'<work-{nonce} part="{name}">'


def closing(nonce: str) -> str:
    """The mark after a part."""
    return f"</work-{nonce}>"


def _block(name: str, part: CleanText, nonce: str) -> str:
    notes = []
    if part.removed:
        notes.append(f"{part.removed} invisible characters were removed")
    if part.cut:
        notes.append(f"the last {part.cut} characters are not shown")
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"The {name} of the work{note}:\n{opening(name, nonce)}\n{part.text}\n{closing(nonce)}"


def _nonce(texts: list[str], seed: str) -> str:
    for attempt in range(1_000):
        nonce = digest([seed, texts, attempt])[:NONCE_CHARS]
        if not any(nonce in text.casefold() for text in texts):
            return nonce
    raise AssertionError("a thousand hashes of a text cannot all be inside it")
