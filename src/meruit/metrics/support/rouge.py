"""ROUGE as rouge-score has it: words and pairs of words in common, and the longest common subsequence."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from meruit.metrics.support.word_numbers import (
    NumberedPair,
    count_shared_pairs,
    count_shared_words,
    number_words,
)
from meruit.model.text import SLICE_CHARS

MAX_NATIVE_CELLS = 100_000_000
"""Words times words up to which the common subsequence is computed in one call: some milliseconds without a pause."""

MAX_LCS_CELLS = 20_000_000_000
"""Words times words up to which a longest common subsequence is computed: about two seconds."""

MAX_LCS_BITS = 4_000_000_000
"""Different words times words up to which one is computed: about 250 MB of memory."""

SIEVED_FROM_CELLS = 30_000_000
"""Words times words from which it pays to leave out first what only one text has."""

TRIM_EVERY = 1024
"""Steps after which the bits that have overflowed are cut off."""

_LOWERCASE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_LETTERS_ONLY = bytes(code if code in _LOWERCASE else ord(" ") for code in bytes(range(256)).lower())


def words_alphanumeric(text: str) -> list[str]:
    """The words of a text in lower case; all but ASCII letters and digits only separate them."""
    # Every foreign character becomes a question mark, hence a space; but some are written as ASCII in lower case.
    written = text.encode() if text.isascii() else text.lower().encode("ascii", "replace")
    line = written.translate(_LETTERS_ONLY).decode()
    words, start = list[str](), 0
    # Of a long text in parts, because other threads wait during each call.
    while start + SLICE_CHARS < len(line):
        end = line.find(" ", start + SLICE_CHARS)
        end = len(line) if end < 0 else end
        words += line[start:end].split()
        start = end
    return words + line[start:].split() if words else line[start:].split()


def rouge_runs(pair: NumberedPair, order: int) -> float:
    """ROUGE-1 or ROUGE-2: the F-measure of the words (order 1) or pairs of neighbouring words (2) that both have."""
    one, other = pair.reference, pair.text
    found = count_shared_words(pair) if order == 1 else count_shared_pairs(pair)
    return _f_measure(found, len(one) - order + 1, len(other) - order + 1)


def rouge_l(reference: Sequence[str], candidate: Sequence[str]) -> float | None:
    """The F-measure of the longest common subsequence of words; None when it would take too long."""
    return rouge_sequence(number_words(reference, candidate))


def rouge_sequence(pair: NumberedPair) -> float | None:
    """ROUGE-L of numbered words; None when it would take too long."""
    reference, candidate, _ = pair
    if not reference or not candidate:
        return 0.0
    common = common_length(reference, candidate)
    return None if common is None else _f_measure(common, len(reference), len(candidate))


def _f_measure(common: int, in_reference: int, in_candidate: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / in_candidate, common / in_reference
    return 2 * precision * recall / (precision + recall)


def common_length(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The length of the longest common subsequence, or None beyond a limit."""
    if len(one) * len(other) <= min(SIEVED_FROM_CELLS, MAX_NATIVE_CELLS):
        # Equal ends are found there, too, and sooner.
        return native_common_length(one, other)
    start, end = _same_ends(one, other)
    one, other = one[start : len(one) - end], other[start : len(other) - end]
    if len(one) * len(other) > SIEVED_FROM_CELLS:
        shared = {*one} & {*other}
        one = [word for word in one if word in shared]
        other = [word for word in other if word in shared]
        most = max(len(one), len(other))
        if len(one) * len(other) > MAX_LCS_CELLS or len(shared) * most > MAX_LCS_BITS:
            return None
    if len(one) * len(other) <= MAX_NATIVE_CELLS:
        return start + end + native_common_length(one, other)
    return start + end + _bit_parallel(*sorted((one, other), key=len))


def native_common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common subsequence."""
    # Any: rapidfuzz reads sequences of any type.
    length: Any = _similarity()(one, other)
    return int(length)


@cache
def _similarity() -> Any:
    # It takes a moment to load, which other metrics should not pay.
    from rapidfuzz.distance import LCSseq

    return LCSseq.similarity


def _same_ends(one: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """How many words the two begin with alike, and how many more they end with alike."""
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    end = 0
    while end < shorter - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return start, end


def _bit_parallel(shorter: Sequence[int], longer: Sequence[int]) -> int:
    """Hyyrö's algorithm: a whole row of the usual table is one integer, and a step down one addition.

    Bit i of the row is 0 where the row's value grows from word i of the longer text to the next.
    """
    masks: dict[int, int] = {}
    for place, word in enumerate(longer):
        if word in masks:
            masks[word] |= 1 << place
        else:
            masks[word] = 1 << place
    full = row = (1 << len(longer)) - 1
    steps = list(filter(None, map(masks.get, shorter)))
    for begin in range(0, len(steps), TRIM_EVERY):
        for mask in steps[begin : begin + TRIM_EVERY]:
            hits = row & mask
            row = (row + hits) | (row ^ hits)
        row &= full
    return len(longer) - row.bit_count()
