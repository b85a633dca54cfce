"""BLEU as WMT reports it: mteval's 13a words, up to four of them in a row, exponential smoothing."""

import re
from collections.abc import Iterator, Sequence
from math import exp, log

from meruit.metrics.support.word_numbers import (
    count_placed,
    count_shared_runs,
    count_shared_words,
    number_words,
    place_longer,
    place_words,
)

ORDERS = 4
"""BLEU compares runs of up to four words."""

# Symbols that 13a always separates; full stop, comma and dash depend on the digits around them.
_SYMBOLS = [(symbol, f" {symbol} ") for symbol in '!"#$%&()*+/:;<=>?@[\\]^_`{|}~']
# In this order, so that `&amp;lt;` becomes `<`, as it does in mteval.
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
# Each pattern begins with a literal character, so that the search runs at the speed of memchr.
_STOP = re.compile(r"\.(?:(?<![0-9]\.)|(?![0-9]))")
_COMMA = re.compile(r",(?:(?<![0-9],)|(?![0-9]))")
_DASH = re.compile(r"-(?<=[0-9]-)")
_STOP_BEFORE_DIGIT = re.compile(r"\.[.,]?[0-9]")
_COMMA_BEFORE_DIGIT = re.compile(r",[.,]?[0-9]")
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
    # Searching for each symbol is faster than testing each character.
    for symbol, apart in _SYMBOLS:
        if symbol in line:
            line = line.replace(symbol, apart)
    line = f" {line} "
    stop, comma = _STOP_BEFORE_DIGIT.search(line), _COMMA_BEFORE_DIGIT.search(line)
    if (stop and _STOP_MARK_DIGIT.search(line, stop.start())) or (
        comma and _COMMA_MARK_DIGIT.search(line, comma.start())
    ):
        line = _marks_apart(line)
    else:
        # Full stop and comma are separated, except inside a number: 3.14, 1,000.
        line = _STOP.sub(" . ", line) if stop else line.replace(".", " . ")
        line = _COMMA.sub(" , ", line) if comma else line.replace(",", " , ")
    if "-" in line:
        line = _DASH.sub(" - ", line)
    return line.split()


def _marks_apart(line: str) -> str:
    """Separate full stops and commas where several come before a digit.

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


def bleu(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """Between 0 and 1: the geometric mean of the four overlaps, less if the candidate is the shorter one."""
    length = len(candidate)
    shared = _count_runs(reference, candidate)
    found = next(shared)
    if not found or length < ORDERS:
        # No overlap, or a text shorter than four words.
        return 0.0
    logs, smoothing = log(100.0 * found / length), 1
    for order in range(2, ORDERS + 1):
        # Without a common pair of words there is no common triple, and so on.
        if found:
            found = next(shared)
        if found:
            logs += log(100.0 * found / (length - order + 1))
        else:
            smoothing *= 2
            logs += log(100.0 / (smoothing * (length - order + 1)))
    brevity = min(1.0, exp(1 - len(reference) / length))
    # In percent up to here, as sacrebleu has it, for equal rounding; which may leave a perfect match above 1.
    return min(1.0, brevity * exp(logs / ORDERS) / 100)


def _count_runs(reference: Sequence[str], candidate: Sequence[str]) -> Iterator[int]:
    """How many words both have, then how many pairs, triples and runs of four."""
    pair = number_words(reference, candidate)
    yield count_shared_words(pair)
    if runs := place_words(pair):
        while True:
            runs = place_longer(runs)
            yield count_placed(runs)
    yield from count_shared_runs(pair, ORDERS)
