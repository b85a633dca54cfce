"""BLEU as WMT reports it: mteval's 13a words, up to four of them in a row, exponential smoothing."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, repeat
from math import exp, log

ORDERS = 4
"""BLEU looks at up to four words in a row."""

NOWHERE = -2
"""The place of a run that the reference has not; no place is next to it."""

Run = tuple[str, ...]

# What 13a sets apart wherever it stands; with full stop, comma and dash it depends on the digits around.
_SYMBOLS = [(symbol, f" {symbol} ") for symbol in '!"#$%&()*+/:;<=>?@[\\]^_`{|}~']
# In this order, so that `&amp;lt;` becomes `<`, as it does in mteval.
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
# Each pattern begins with the character it looks for: then the search runs at the speed of memchr.
_STOP = re.compile(r"\.(?:(?<![0-9]\.)|(?![0-9]))")
_COMMA = re.compile(r",(?:(?<![0-9],)|(?![0-9]))")
_DASH = re.compile(r"-(?<=[0-9]-)")
_STOP_MARK_DIGIT = re.compile(r"\.[.,][0-9]")
_COMMA_MARK_DIGIT = re.compile(r",[.,][0-9]")
_MARKS_BEFORE_DIGIT = re.compile(r"([.,]++(?=[0-9]))")
_DIGITS = frozenset("0123456789")


def words_13a(text: str) -> list[str]:
    """The words of a text as mteval-v13a cuts it."""
    line = text.rstrip().replace("<skipped>", "")
    if "\n" in line:
        line = line.replace("-\n", "").replace("\n", " ")
    if "&" in line:
        for entity, meaning in _ENTITIES:
            line = line.replace(entity, meaning)
    # Searching for each symbol costs less than asking of each character whether it is one.
    for symbol, apart in _SYMBOLS:
        if symbol in line:
            line = line.replace(symbol, apart)
    line = f" {line} "
    if _STOP_MARK_DIGIT.search(line) or _COMMA_MARK_DIGIT.search(line):
        line = _marks_apart(line)
    else:
        # Full stop and comma stand apart but in a number: 3.14, 1,000.
        line = _COMMA.sub(" , ", _STOP.sub(" . ", line))
    if "-" in line:
        line = _DASH.sub(" - ", line)
    return line.split()


def _marks_apart(line: str) -> str:
    """Set full stops and commas apart where several stand before a digit.

    mteval first cuts after each mark that follows no digit, two characters at a time, then before each that
    precedes none. So the last of several stays with the digit or not, as their number is odd or even.
    """
    pieces = _MARKS_BEFORE_DIGIT.split(line)
    for at in range(1, len(pieces), 2):
        marks = pieces[at]
        after_digit = pieces[at - 1][-1] in _DIGITS
        if len(marks) % 2 != after_digit:
            pieces[at] = f" {' '.join(marks)} "
        elif len(marks) > 1:
            pieces[at] = f" {' '.join(marks)}"
    pieces[::2] = [piece.replace(".", " . ").replace(",", " , ") for piece in pieces[::2]]
    return "".join(pieces)


def shared_words(reference: Sequence[str], candidate: Sequence[str]) -> int:
    """How many words both have; one that comes twice in both counts twice."""
    left: dict[str, int] = {}
    get = left.get
    for word in reference:
        left[word] = get(word, 0) + 1
    found = 0
    for word in candidate:
        if count := get(word):
            left[word] = count - 1
            found += 1
    return found


def shared_runs(had: Counter[Run], candidate: Iterable[Run]) -> int:
    """How many runs of words the candidate shares with those counted; twice in both counts twice."""
    found = Counter(filter(had.__contains__, candidate))
    # Most are found once, and then there is no need to ask how often the other text has them.
    return len(found) + sum([min(count, had[run]) - 1 for run, count in found.items() if count > 1])


def runs_of(words: Sequence[str], order: int) -> Iterator[Run]:
    """Every so many neighbouring words."""
    # The last tail is the shortest and ends the zip.
    return zip(*[words[start:] for start in range(order)], strict=False)


def shared_by_order(reference: Sequence[str], candidate: Sequence[str]) -> Iterator[int]:
    """How many words both have, then how many runs of two, of three, and so on up to ORDERS."""
    found = shared_words(reference, candidate)
    yield found
    order = 2
    while found and order <= ORDERS:
        had = Counter(runs_of(reference, order))
        if len(had) == len(reference) - order + 1:
            yield from _shared_from_places(had, candidate, order)
            return
        found = shared_runs(had, runs_of(candidate, order))
        yield found
        order += 1
    # What has no two words in common has no three either.
    yield from [0] * (ORDERS + 1 - order)


def _shared_from_places(reference: Iterable[Run], candidate: Sequence[str], order: int) -> Iterator[int]:
    """The same from the order on at which no run comes twice in the reference.

    Each run then has one place there. A longer one is shared where two that overlap stand there side by side, so
    that no longer run need be made or looked up.
    """
    place = dict(zip(reference, count())).get
    places = list(map(place, runs_of(candidate, order), repeat(NOWHERE)))
    yield len({*places, NOWHERE}) - 1
    for _ in range(order, ORDERS):
        places = [
            here if following - here == 1 else NOWHERE
            for here, following in zip(places, places[1:], strict=False)
        ]
        yield len({*places, NOWHERE}) - 1


def bleu(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """Between 0 and 1: the geometric mean of the four overlaps, less if the candidate is the shorter one."""
    length = len(candidate)
    if length < ORDERS:
        # Some order has nothing to be alike.
        return 0.0
    logs, smoothing = 0.0, 1
    for order, found in enumerate(shared_by_order(reference, candidate)):
        if found:
            logs += log(100.0 * found / (length - order))
        elif order == 0:
            return 0.0
        else:
            smoothing *= 2
            logs += log(100.0 / (smoothing * (length - order)))
    brevity = min(1.0, exp(1 - len(reference) / length))
    # In percent up to here, as sacrebleu has it, for equal rounding; which may leave a perfect match above 1.
    return min(1.0, brevity * exp(logs / ORDERS) / 100)
