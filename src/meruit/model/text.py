"""Makes untrusted text safe to show, and brings it into a normal form at bounded cost."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal


def escape_control_characters(text: str) -> str:
    """Escape control characters, so that untrusted text cannot fake a line or move the cursor."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else repr(char)[1:-1] for char in text
    )


SLICE_CHARS = 65_536
"""Characters that are searched or changed in one call, during which no other thread runs."""


def slices_of(text: str) -> Iterator[str]:
    """A long text in parts, for what can be done to each character alone; other threads run between them."""
    return (text[start : start + SLICE_CHARS] for start in range(0, len(text), SLICE_CHARS))


def distinct_characters(text: str) -> set[str]:
    """The characters that occur in a text."""
    found = set[str]()
    for part in slices_of(text):
        found.update(part)
    return found


_SHAPES = bytes(b" "[0] if chr(code).isspace() else b"w"[0] for code in range(128)).ljust(256, b"w")
"""Every space of ASCII as a space, every other character as a letter."""


def count_words(text: str) -> int:
    """Words between white space; a text without any has none."""
    if len(text) <= SLICE_CHARS:
        # Of ASCII without making them: each begins after a space.
        return (b" " + text.encode()).translate(_SHAPES).count(b" w") if text.isascii() else len(text.split())
    count, is_open = 0, False
    for part in slices_of(text):
        # A word that reaches over a cut is counted once.
        count += count_words(part) - (is_open and not part[0].isspace())
        is_open = not part[-1].isspace()
    return count


UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Letters and symbols that are not visible."""
_CONTROLS = bytes((*range(0x09), *range(0x0E, 0x1C), 0x7F))
"""The invisible characters of ASCII: its controls without those that are spaces."""


def strip_invisible(text: str) -> str:
    """The text without characters that are not visible: controls, joiners, fillers, variants; spaces stay."""
    if len(text) > SLICE_CHARS:
        return "".join(map(strip_invisible, slices_of(text)))
    if text.isascii():
        written = text.encode()
        visible = written.translate(None, _CONTROLS)
        return text if len(visible) == len(written) else visible.decode()
    hidden = [char for char in {*text} if _is_hidden(char)]
    return text.translate(dict.fromkeys(map(ord, hidden))) if hidden else text


def _is_hidden(char: str) -> bool:
    category = unicodedata.category(char)
    variant = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return category == "Cf" or (category == "Cc" and not char.isspace()) or variant or char in UNSEEN


MAX_MARKS = 30
"""Accents on one letter that are sorted together; languages need fewer (Unicode's stream-safe text format)."""
CHUNK_CHARS = 4_096
"""Characters that are normalised in one call, during which no other thread runs."""
MAX_LOOKAHEAD = 64
"""Characters after a chunk in which a place to cut is looked for."""
MAX_EXPANDED_CHARS = 4_000_000
"""The longest normal form that is written out in full."""
GRAPHEME_JOINER = "\u034f"
_COMPATIBILITY = ("NFKC", "NFKD")
UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]


def normalize_unicode(form: UnicodeForm, text: str) -> str:
    """The normal form of a text, in time that grows with its length only, a chunk at a time.

    `unicodedata.normalize` sorts the accents of a letter in quadratic time (17 minutes for a million of them) and holds
    every other thread meanwhile. So a grapheme joiner follows each 30 accents, as Unicode recommends. Some characters
    stand for up to 18 others: a text that would grow beyond MAX_EXPANDED_CHARS keeps the first of those.
    """
    if text.isascii():
        return text
    chars = distinct_characters(text)
    accents = "".join(char for char in chars if is_accent(char))
    if accents:
        marks = f"[{re.escape(accents)}]"
        text = re.sub(f"({marks}{{{MAX_MARKS}}})(?={marks})", rf"\1{GRAPHEME_JOINER}", text)
    if form in _COMPATIBILITY:
        text = limit_expansion(form, text, chars)
    if len(text) <= CHUNK_CHARS:
        return unicodedata.normalize(form, text)
    return "".join(unicodedata.normalize(form, chunk) for chunk in chunks_of(text))


def chunks_of(text: str) -> Iterator[str]:
    """Parts of a text that can be normalised one by one: no part begins with what joins the character before it."""
    start = 0
    while len(text) - start > CHUNK_CHARS + MAX_LOOKAHEAD:
        end = start + CHUNK_CHARS
        # Where nothing but marks follows, no reader can tell one cut from another.
        cut = next((place for place in range(end, end + MAX_LOOKAHEAD) if _begins_a_letter(text[place])), end)
        yield text[start:cut]
        start = cut
    yield text[start:]


def is_accent(char: str) -> bool:
    """Whether the character combines with the letter before it, also once it is decomposed."""
    if not unicodedata.decomposition(char):
        return unicodedata.combining(char) > 0
    return unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) > 0


def _begins_a_letter(char: str) -> bool:
    """Whether normalising never joins the character to the one before it."""
    first = unicodedata.normalize("NFKD", char)[0]
    # Vowels and final consonants of Hangul join a syllable, and are no marks.
    return not unicodedata.category(first).startswith("M") and not "\u1160" <= first <= "\u11ff"


def limit_expansion(form: UnicodeForm, text: str, chars: Iterable[str]) -> str:
    """The text, in which characters that stand for several become one where it would grow too long."""
    lengths = {char: len(unicodedata.normalize(form, char)) for char in chars if not char.isascii()}
    most = max(lengths.values(), default=1)
    if len(text) * most <= MAX_EXPANDED_CHARS:
        return text
    grown = len(text) + sum(text.count(char) * (length - 1) for char, length in lengths.items() if length > 1)
    if grown <= MAX_EXPANDED_CHARS:
        return text
    first = {ord(c): unicodedata.normalize(form, c)[0] for c, length in lengths.items() if length > 1}
    return "".join(part.translate(first) for part in slices_of(text))
