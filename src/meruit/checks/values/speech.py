"""Spoken words: case, punctuation and typography are ignored, and a number is its digits in any spoken form."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec

from meruit.model.text import normalize_unicode

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words(text: str) -> tuple[str, ...]:
    """The words of a text, in order."""
    plain = normalize_unicode("NFKC", text).casefold()
    return tuple(word.replace("’", "'") for word in _WORD.findall(plain))


def follows(spoken: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether the wanted words occur next to each other and in order."""
    size = len(wanted)
    return any(spoken[start : start + size] == wanted for start in range(len(spoken) - size + 1))


# Hearing


class SpeechPause(IntEnum):
    """The pause between a word and the one before it."""

    NONE = 0
    SHORT = 1
    """A comma."""
    LONG = 2
    """The end of a sentence, or of a turn."""


class SpeechToken(msgspec.Struct, frozen=True):
    """One word or one number."""

    units: tuple[str, ...]
    """The word; of a number its digits, one by one, so that 4471 and four four seven one compare."""
    is_number: bool = False
    pause: SpeechPause = SpeechPause.NONE
    """Before it."""


class _SpeechPiece(msgspec.Struct, frozen=True):
    """One run of letters or of digits, as it was written."""

    text: str
    pause: SpeechPause


_PIECE = re.compile(r"\d+|[^\W\d_]+(?:'[^\W\d_]+)*")
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ", "'"))
# A full stop inside 3.5 or 10.15 ends nothing.
_LONG = re.compile(r"[.!?;:]\W{0,3}\s|[\n—–]")
_SHORT = re.compile(r",\s")

_ONES = dict(zip(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], range(1, 10), strict=True))
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_BELOW_TWENTY = {"zero": 0, **_ONES, **dict(zip(_TEENS, range(10, 20), strict=True))}
_DECADES = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_TENS = dict(zip(_DECADES, range(20, 100, 10), strict=True))
_HUNDRED = "hundred"
_SCALES = {"thousand": 1_000, "million": 1_000_000}
_TIMES = {"double": 2, "triple": 3}
_OH = ("oh", "o")
MAX_FACTOR = 6
"""Digits of a number that may come before thousand."""


def tokenize_speech(text: str) -> tuple[SpeechToken, ...]:
    """Split text into spoken words and numbers."""
    pieces = _pieces(text)
    heard: list[SpeechToken] = []
    at = 0
    while at < len(pieces):
        digits, end = _number(pieces, at, after_number=bool(heard) and heard[-1].is_number)
        if digits is None:
            heard.append(SpeechToken((pieces[at].text,), pause=pieces[at].pause))
        else:
            heard.append(SpeechToken(tuple(digits), is_number=True, pause=pieces[at].pause))
        at = end
    return tuple(heard)


def units(text: str) -> tuple[str, ...]:
    """The words and digits of a phrase to search for."""
    return tuple(unit for token in tokenize_speech(text) for unit in token.units)


def digits_of(text: str) -> tuple[str, ...]:
    """The digits in a text."""
    return tuple(str(unicodedata.digit(one)) for one in normalize_unicode("NFKC", text) if one.isdecimal())


def _pieces(text: str) -> list[_SpeechPiece]:
    # Folding case can undo the normalization.
    plain = normalize_unicode("NFKC", normalize_unicode("NFKC", text).casefold()).translate(_APOSTROPHES)
    pieces: list[_SpeechPiece] = []
    end = 0
    for found in _PIECE.finditer(plain):
        between = plain[end : found.start()]
        pause = (
            SpeechPause.LONG
            if _LONG.search(between)
            else SpeechPause.SHORT
            if _SHORT.search(between)
            else SpeechPause.NONE
        )
        piece = found[0]
        pieces.append(_SpeechPiece("".join(digits_of(piece)) if piece[0].isdecimal() else piece, pause))
        end = found.end()
    return pieces


def _number(pieces: list[_SpeechPiece], at: int, *, after_number: bool) -> tuple[str | None, int]:
    """The digits of the number that begins here, None where none does, and where what follows begins."""
    word = pieces[at].text
    if word in _OH:
        return ("0" if _is_zero(pieces, at, after_number=after_number) else None), at + 1
    if word in _TIMES and (digit := _digit(pieces, at + 1)) is not None:
        return digit * _TIMES[word], at + 2
    counted = _cardinal(pieces, at)
    if counted is not None:
        return str(counted[0]), counted[1]
    return (word if word.isdecimal() else None), at + 1


def _adjacent_word(pieces: list[_SpeechPiece], at: int) -> str:
    """The word that follows without a pause; empty where none does."""
    return pieces[at].text if at < len(pieces) and pieces[at].pause is SpeechPause.NONE else ""


def _digit(pieces: list[_SpeechPiece], at: int) -> str | None:
    word = _adjacent_word(pieces, at)
    if word in _OH:
        return "0"
    number = _ONES.get(word, 0 if word == "zero" else None)
    return word if number is None and word.isdecimal() and len(word) == 1 else None if number is None else str(number)


def _is_zero(pieces: list[_SpeechPiece], at: int, *, after_number: bool) -> bool:
    """Whether "oh" is the digit 0 here, and not an exclamation."""
    if after_number and pieces[at].pause is not SpeechPause.LONG:
        following = _adjacent_word(pieces, at + 1)
        return not following or _digit(pieces, at + 1) is not None or _small(pieces, at + 1) is not None
    return _digit(pieces, at + 1) is not None and _digit(pieces, at + 2) is not None


def _cardinal(pieces: list[_SpeechPiece], at: int) -> tuple[int, int] | None:
    """`one hundred and twenty`, `four thousand four hundred seventy one`; and where it ends."""
    found = _group(pieces, at)
    if found is None:
        return None
    total, scale = 0, max(_SCALES.values()) + 1
    while found is not None:
        value, end = found
        factor = _SCALES.get(_adjacent_word(pieces, end), 1)
        if factor >= scale:
            break  # "two thousand three thousand" is two numbers.
        total, at, scale = total + value * factor, end + (factor > 1), factor
        found = (
            _group(pieces, at + (_adjacent_word(pieces, at) == "and"))
            if factor > 1 and _adjacent_word(pieces, at)
            else None
        )
    return total, at


def _group(pieces: list[_SpeechPiece], at: int) -> tuple[int, int] | None:
    """A number below a thousand, or one written in digits of which there are so many hundreds or thousands."""
    found = _small(pieces, at)
    if found is None or _adjacent_word(pieces, found[1]) != _HUNDRED:
        return found
    value, end = found[0] * 100, found[1] + 1
    rest = _small(pieces, end + (_adjacent_word(pieces, end) == "and")) if _adjacent_word(pieces, end) else None
    # "between one hundred and two hundred" is two numbers.
    if rest is None or _adjacent_word(pieces, rest[1]) == _HUNDRED:
        return value, end
    return value + rest[0], rest[1]


def _small(pieces: list[_SpeechPiece], at: int) -> tuple[int, int] | None:
    if at >= len(pieces):
        return None
    word, following = pieces[at].text, _adjacent_word(pieces, at + 1)
    if word in _TENS:
        return (_TENS[word] + _ONES[following], at + 2) if following in _ONES else (_TENS[word], at + 1)
    if word in _BELOW_TWENTY:
        return _BELOW_TWENTY[word], at + 1
    if word.isdecimal() and len(word) <= MAX_FACTOR and (following == _HUNDRED or following in _SCALES):
        return int(word), at + 1
    return None


# Finding


class SpeechSpan(msgspec.Struct, frozen=True):
    """Where a phrase was said."""

    start: int
    end: int
    """Behind the last of its tokens."""
    between: tuple[int, ...]
    """Tokens inside that are not the phrase's."""


def find_spans(
    spoken: Sequence[SpeechToken],
    wanted: tuple[str, ...],
    *,
    near: int = 0,
    turns: Sequence[int] = (),
    within_turns: int = 1,
    start: int = 0,
) -> Iterator[SpeechSpan]:
    """Where the wanted units are said in order, whole words only, up to `near` other words between two of them.

    `turns` says in which turn each token stands; one span may touch as many turns as `within_turns`.
    """
    for first in range(start, len(spoken)):
        # The first unit decides nearly always, and cheaply.
        if spoken[first].units[0] != wanted[0]:
            continue
        last = bisect_left(turns, turns[first] + within_turns) if turns else len(spoken)
        used = _tokens(spoken, wanted, first, last, near)
        if used is not None:
            inside = set(used)
            yield SpeechSpan(
                start=first,
                end=used[-1] + 1,
                between=tuple(place for place in range(first, used[-1]) if place not in inside),
            )


def _tokens(
    spoken: Sequence[SpeechToken], wanted: tuple[str, ...], first: int, last: int, near: int
) -> list[int] | None:
    """The tokens that say it, starting with `first` and ending before `last`, as early as can be."""
    begun = (first, len(spoken[first].units))
    if spoken[first].units != wanted[: begun[1]]:
        return None
    origin: dict[tuple[int, int], tuple[int, int] | None] = {begun: None}
    """By token and number of units said up to it, where that was come from."""
    states = [begun]
    for place, done in states:  # It grows while it is walked through.
        for following in range(place + 1, min(place + 2 + near, last)):
            own = spoken[following].units
            state = (following, done + len(own))
            if own == wanted[done : state[1]] and state not in origin:
                origin[state] = (place, done)
                states.append(state)
    step = min((state for state in states if state[1] == len(wanted)), default=None)
    used: list[int] = []
    while step is not None:
        used.append(step[0])
        step = origin[step]
    return used[::-1] or None


# Negation

NEGATORS = frozenset(
    {
        *("not", "no", "never", "without", "cannot", "neither", "nor", "none", "nobody"),
        *("deny", "denies", "denied", "denying"),
        # As they are transcribed by those who leave apostrophes out.
        *("aint", "arent", "cant", "couldnt", "didnt", "doesnt", "dont", "hadnt", "hasnt", "havent", "isnt"),
        *("shouldnt", "wasnt", "werent", "wont", "wouldnt"),
    }
)
"""Words that negate what follows; words in n't are recognised by their ending."""
NEGATION_REACH = 3
"""Words before a phrase in which a negator still applies, as in `has not yet been approved`."""


def find_negator(spoken: Sequence[SpeechToken], span: SpeechSpan) -> str | None:
    """The word that negates the phrase: just before it in the same sentence, or between its words."""
    before = []
    for place in range(span.start - 1, max(span.start - 1 - NEGATION_REACH, -1), -1):
        if spoken[place + 1].pause is SpeechPause.LONG:
            break
        before.append(place)
    for place in (*before, *span.between):
        word = spoken[place].units[0]
        # "No, it is approved" answers a question; only "no authorization" denies what follows.
        answers = word == "no" and spoken[place + 1].pause is not SpeechPause.NONE
        if (word in NEGATORS or word.endswith("n't")) and not answers:
            return word
    return None
