"""Two texts as numbers, one for each word: runs of words are then numbers too, and quickly counted."""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice, pairwise
from struct import pack, unpack
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

SLICE_WORDS = 16_384
"""Words that are numbered or counted in one call."""
WORD_BITS = 64
MAX_ORDER = 4
MAX_BYTES = 256
"""Words of both texts up to which a word's number is one byte, and a run of MAX_ORDER words four."""
MAX_NUMBERED = 38_000
"""Words of both texts up to which a run of MAX_ORDER words is a number below 2^61, which is its own hash."""
MAX_SHORT = 2_048
"""Words of both texts up to which pairs are counted by what follows each word: looking there could take long else."""
MAX_NATIVE_CELLS = 100_000_000
"""Words times words up to which the common subsequence is computed in one call: some milliseconds without a pause."""


class NumberedPair(NamedTuple):
    """Reference and text as numbers, as bytes where all fit; equal words have equal numbers."""

    reference: Sequence[int]
    text: Sequence[int]

    @property
    def base(self) -> int:
        """More than any number."""
        return len(self.reference) + len(self.text)


def number_words(reference: Sequence[Hashable], text: Sequence[Hashable]) -> NumberedPair:
    """Number each word by where it first comes."""
    number = dict[Hashable, int]().setdefault
    if len(reference) + len(text) <= MAX_BYTES:
        return NumberedPair(bytes(map(number, reference, count())), bytes(map(number, text, count(len(reference)))))
    return NumberedPair(
        _number_all(reference, number, count()),
        _number_all(text, number, count(len(reference))),
    )


def _number_all(words: Sequence[Hashable], number: Callable[[Hashable, int], int], places: Iterator[int]) -> list[int]:
    if len(words) <= SLICE_WORDS:
        return [*map(number, words, places)]
    found: list[int] = []
    for some in in_slices(words):
        found.extend(map(number, some, places))
    return found


def in_slices(values: Iterable[T]) -> Iterator[list[T]]:
    """The values, as many at once as may be counted in one call, during which no other thread runs."""
    waiting = iter(values)
    while some := [*islice(waiting, SLICE_WORDS)]:
        yield some


def count_values(values: Iterable[T]) -> Counter[T]:
    """How often each value comes."""
    counts = Counter[T]()
    for some in in_slices(values):
        counts.update(some)
    return counts


def count_known(values: Iterable[T], known: Container[T]) -> Counter[T]:
    """How often each of the known values comes."""
    counts = Counter[T]()
    for some in in_slices(values):
        counts.update(filter(known.__contains__, some))
    return counts


def number_runs(
    pair: NumberedPair, longest: int, shortest: int = 2
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The runs of both texts as numbers: of 2 words each, or of the shortest length wanted, up to the longest.

    All words are one long integer of 64 bits each, so that one multiplication numbers every run: w[0], w[1], … times
    the base, plus w[1], w[2], …
    """
    middle, length, base = len(pair.reference), pair.base, pair.base
    rest = runs = int.from_bytes(pack(f"<{length}Q", *pair.reference, *pair.text), "little")
    for order in range(2, longest + 1):
        rest >>= WORD_BITS
        runs = runs * base + rest
        if order < shortest:
            continue
        numbers = unpack(f"<{length}Q", runs.to_bytes(length * WORD_BITS // 8, "little"))
        # What begins too near the end of a text is not a run.
        yield numbers[: max(0, middle - order + 1)], numbers[middle : max(middle, length - order + 1)]


def number_byte_runs(one: bytes, other: bytes) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The runs of 3 words of both texts as numbers, then those of 4: each word is one byte of the number."""
    middle, length = len(one), len(one) + len(other)
    words = one + other + bytes(MAX_ORDER)
    runs = bytearray(MAX_ORDER * length)
    for place in range(MAX_ORDER):
        # This word of all runs at once: every fourth byte.
        runs[place::MAX_ORDER] = words[place : place + length]
        if place >= MAX_ORDER - 2:
            numbers = unpack(f"<{length}I", runs)
            # What begins too near the end of a text is not a run.
            yield numbers[: max(0, middle - place)], numbers[middle : max(middle, length - place)]


def count_shared_words(pair: NumberedPair) -> int:
    """How many words both texts have; one that comes twice in both counts twice."""
    # As short as a loop can be: for words, this is faster than a dict or a sort.
    left, found = [0] * pair.base, 0
    for word in pair.reference:
        left[word] += 1
    for word in pair.text:
        if times := left[word]:
            left[word] = times - 1
            found += 1
    return found


def count_shared_pairs(pair: NumberedPair) -> int:
    """How many pairs of neighbouring words both texts have; one that comes twice in both counts twice."""
    if pair.base > MAX_SHORT:
        return count_shared(*next(number_runs(pair, 2)))
    # Most words are followed by few others, which are found sooner than a number for the pair would be made.
    followers: list[list[int] | None] = [None] * pair.base
    for word, following in pairwise(pair.reference):
        known = followers[word]
        if known is None:
            followers[word] = [following]
        else:
            known.append(following)
    found = 0
    for word, following in pairwise(pair.text):
        known = followers[word]
        if known is not None and following in known:
            known.remove(following)
            found += 1
    return found


def count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many numbers both have; one that comes twice in both counts twice."""
    once = {*one}
    if len(once) == len(one):
        return len(once.intersection(other))
    if len(one) * len(other) <= MAX_NATIVE_CELLS:
        # The longest common subsequence of sorted lists is what they share.
        return native_common_length(sorted(one), sorted(other))
    had = count_values(one)
    found = count_known(other, had)
    return sum([min(times, had[number]) for number, times in found.items()])


def native_common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common subsequence of numbers below 2^61."""
    # Any: rapidfuzz reads sequences of any type.
    length: Any = _similarity()(one, other)
    return int(length)


@cache
def _similarity() -> Any:
    # It takes a moment to load, which other metrics should not pay.
    from rapidfuzz.distance import LCSseq

    return LCSseq.similarity
