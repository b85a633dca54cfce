"""Bring texts into one form, so that a disguised copy equals its original; all of it at bounded cost.

The fold drops what readers do not see, or see as the same: case, accents, spaces, punctuation, invisible characters,
and letters of other scripts that look alike. Encodings that anyone can undo are undone first.
"""

import re
import unicodedata
from base64 import b64decode
from binascii import Error as NotBase64
from codecs import encode
from collections import Counter
from html import unescape
from urllib.parse import unquote
from zlib import crc32

from meruit.governance.history import normalise_text
from meruit.model.text import normalize_unicode

MAX_FOLDED_CHARS = 250_000
"""Of a longer text, only the beginning is compared."""
MAX_DECODINGS = 3
"""How often an encoding inside an encoding is undone."""
MIN_ENCODED_CHARS = 12
GRAM = 8
"""Characters in one shingle."""
MAX_SEARCHED_CHARS = 4096
"""A longer text is not searched for each shingle: its own are looked up in a set."""
ROUNDING = 1e-6
BINS, BANDS = 64, 4
"""Values of a signature, and how many groups of them are looked up."""
BIN_DIGITS = 4
"""Hex digits of each value."""
SIGNATURE_CHARS = BINS * BIN_DIGITS

_CONFUSABLE = str.maketrans(
    {
        letter: latin
        for latin, letters in {
            "a": "аαɑ∂ạ",
            "b": "ьвƅβ",
            "c": "сϲᴄç",
            "d": "ԁɗ",
            "e": "еєεҽ℮",
            "f": "ғƒ",
            "g": "ɡցԍ",
            "h": "һհнη",
            "j": "јϳ",
            "k": "кκқᴋ",
            "l": "і1iıӏ|ιɩɪїĺ",
            "m": "мᴍ",
            "n": "пոռɴ",
            "o": "о0οօσøᴏө",
            "p": "рρþ",
            "q": "ԛզ",
            "r": "гɾᴦ",
            "s": "ѕꜱʂ",
            "t": "тτᴛ",
            "u": "սυʋᴜц",
            "v": "ѵνᴠ",
            "w": "ԝωѡᴡшɯ",
            "x": "хχ×",
            "y": "уγүყʏ",
            "z": "ᴢʐ",
        }.items()
        for letter in letters
    }
)
"""Letters and digits, in lower case, by the Latin letter that they look like."""
_ASCII_LOOKALIKES = bytes(ord(chr(code).translate(_CONFUSABLE)) for code in range(128)) + bytes(range(128, 256))
_DROPPED_ASCII = bytes(code for code in range(128) if not (chr(code).isalnum() or chr(code) in ".-"))
_NOT_A_LETTER = re.compile(r"[\W_]+")
_NOT_IN_NUMBERS = re.compile(r"[^\w.\-]+|_+|[.\-]+(?!\d)")
_LOOSE_MARKS = re.compile(r"[.\-]+(?!\d)")
_BASE64 = re.compile(rf"[A-Za-z0-9+/_\-]{{{MIN_ENCODED_CHARS},}}={{0,2}}")
_HEX = re.compile(rf"(?:[0-9a-fA-F]{{2}}[\s:]?){{{MIN_ENCODED_CHARS // 2},}}")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")


def fold(text: str) -> str:
    """The letters and digits of a text in one form; equal for texts that look the same."""
    return _NOT_A_LETTER.sub("", _plain(text).translate(_CONFUSABLE))


def fold_with_numbers(text: str) -> str:
    """The same, in which 1.5, 15 and -15 stay different."""
    plain = _plain(text)
    if not plain.isascii():
        return _NOT_IN_NUMBERS.sub("", plain).translate(_CONFUSABLE)
    # The same in one pass. Marks go first: whether one belongs to a number depends on what follows it.
    if "." in plain or "-" in plain:
        plain = _LOOSE_MARKS.sub("", plain)
    return plain.encode().translate(_ASCII_LOOKALIKES, _DROPPED_ASCII).decode()


def _plain(text: str) -> str:
    """The text without case, accents and invisible characters, cut to a bounded length."""
    # Some characters stand for many others, so the result is cut too.
    seen = normalise_text(text[:MAX_FOLDED_CHARS])[:MAX_FOLDED_CHARS]
    if not seen.isascii():
        # Accents are dropped; letters that contain none stay.
        seen = "".join(char for char in normalize_unicode("NFD", seen) if not unicodedata.combining(char))
    return seen


def decode_obvious(text: str) -> str:
    """The text with base64, hex, percent, HTML and backslash encodings undone where they hold readable text."""
    text = text[:MAX_FOLDED_CHARS]
    for _ in range(MAX_DECODINGS):
        plain = _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), text) if "\\" in text else text
        plain = unescape(unquote(plain)) if "%" in plain or "&" in plain else plain
        plain = _HEX.sub(lambda found: _read_hex(found[0]), plain)
        plain = _BASE64.sub(lambda found: _read_base64(found[0]), plain)[:MAX_FOLDED_CHARS]
        if plain == text:
            break
        text = plain
    return text


def rotate_13(text: str) -> str:
    """The text in the cipher that shifts each letter by 13."""
    return encode(text, "rot13")


def _read_hex(found: str) -> str:
    try:
        return _readable(bytes.fromhex(re.sub(r"[\s:]", "", found)), found)
    except ValueError:
        return found


def _read_base64(found: str) -> str:
    # A word of letters alone, or a number, decodes to something by chance only.
    if len(found) % 4 == 1:
        return found
    try:
        raw = b64decode(found.rstrip("=") + "=" * (-len(found.rstrip("=")) % 4), altchars=_altchars(found))
    except (NotBase64, ValueError):
        return found
    return _readable(raw, found)


def _altchars(found: str) -> bytes | None:
    return b"-_" if "-" in found or "_" in found else None


def _readable(raw: bytes, found: str) -> str:
    """The text that the bytes hold; what was found where they are not plausible text."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return found
    visible = sum(char.isprintable() or char.isspace() for char in text)
    return text if text and visible == len(text) else found


def canonical_text(text: str) -> str:
    """The folded text, decoded, in one of its two directions: a reversed copy has the same."""
    return canonical_form(decode_obvious(text))


def canonical_form(text: str) -> str:
    """The canonical form of a text that is decoded already."""
    folded = fold_with_numbers(text)
    return min(folded, folded[::-1])


def signature_of(folded: str, kind: str = "") -> str:
    """A signature of a folded text: texts that share most of their shingles agree in most of its 64 values.

    One-permutation MinHash: one hash for each shingle, the smallest in each bin. Its cost grows with the length only.
    Signatures of different kinds are never found under the same band.
    """
    least = [1 << 32] * BINS
    encoded = folded.encode("utf-8", "surrogatepass")
    for start in range(max(1, len(encoded) - GRAM + 1)):
        gram = encoded[start : start + GRAM]
        # The same forwards and backwards, so that a reversed copy has the same shingles.
        value = crc32(min(gram, gram[::-1]))
        bin_number, rest = value & (BINS - 1), value >> 6
        least[bin_number] = min(least[bin_number], rest)
    # An empty bin takes the value of the next one that is filled, so that short texts compare too.
    filled = next((value for value in least if value < 1 << 32), 0)
    for number in reversed(range(BINS)):
        if least[number] == 1 << 32:
            least[number] = filled
        filled = least[number]
    return kind + "".join(f"{value & 0xFFFF:0{BIN_DIGITS}x}" for value in least)


def bands_of(signature: str) -> tuple[str, ...]:
    """The parts of a signature under which it is found; nearly equal texts share at least one."""
    kind, values = signature[:-SIGNATURE_CHARS], signature[-SIGNATURE_CHARS:]
    size = SIGNATURE_CHARS // BANDS
    return tuple(f"{kind}{number}:{values[number * size : (number + 1) * size]}" for number in range(BANDS))


def likeness(one: str, other: str) -> float:
    """The estimated share of shingles that two texts have in common, from their signatures."""
    values = (one[-SIGNATURE_CHARS:], other[-SIGNATURE_CHARS:])
    places = range(0, SIGNATURE_CHARS, BIN_DIGITS)
    same = sum(values[0][start : start + BIN_DIGITS] == values[1][start : start + BIN_DIGITS] for start in places)
    return same / BINS


def may_share_shingles(one: str, other: str, least: float) -> bool:
    """False only where `shared_shingles` is less than `least`, above 0; much quicker than counting them.

    Where the share is high, few shingles of one text are missing from the other. So those that lie side by side are
    looked up, until too many are missing.
    """
    if one == other:
        return True
    if _differ_in_length(one, other):
        return False
    count, others = len(one) - GRAM + 1, len(other) - GRAM + 1
    # A little more, because the share is rounded.
    may_miss = count - least * (count + others) / 2 + ROUNDING
    known: str | set[str] = other
    if len(other) > MAX_SEARCHED_CHARS:
        known = {other[start : start + GRAM] for start in range(others)}
    for start in range(0, count, GRAM):
        gram = one[start : start + GRAM]
        if gram not in known and gram[::-1] not in known:
            may_miss -= 1
            if may_miss < 0:
                return False
    return True


def _differ_in_length(one: str, other: str) -> bool:
    """Whether texts are too short for a shingle, or their lengths differ by a tenth."""
    return min(len(one), len(other)) < GRAM or abs(len(one) - len(other)) * 10 > max(len(one), len(other))


def shared_shingles(one: str, other: str) -> float:
    """The exact share of shingles that two folded texts have in common; 0 where their lengths differ by a tenth."""
    if one == other:
        return 1.0
    if _differ_in_length(one, other):
        return 0.0
    a, b = (
        Counter(min(gram, gram[::-1]) for gram in (text[start : start + GRAM] for start in range(len(text) - GRAM + 1)))
        for text in (one, other)
    )
    return 2 * (a & b).total() / (a.total() + b.total())
