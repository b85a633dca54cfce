"""Two texts as numbers, one for each word: runs of words are then numbers too, and quickly counted."""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import compress, count, islice
from struct import pack, unpack
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

SLICE_WORDS = 16_384
"""Words that are numbered or counted in one call."""
WORD_BITS = 64
MAX_BYTES = 255
"""Words of both texts up to which a word's number is one byte, and so is the place of a run of words."""
MAX_SOUGHT = 6
"""Runs of a short text up to which they are sought one by one."""
MAX_NUMBERED = 38_000
"""Words of both texts up to which a run of four words is a number below 2^61, which is its own hash."""
MAX_SHORT = 2_048
"""Words of both texts up to which pairs are counted by what follows each word: looking there could take long else."""
MAX_NATIVE_CELLS = 100_000_000
"""Words times words up to which the common subsequence is computed in one call: some milliseconds without a pause."""

_CODES = 256
_PLACES = bytes(range(1, _CODES))
_NOWHERE = b"\xff"
"""Nothing to be found has this place, since each text has a word."""
_FULL_IF_ZERO = b"\xff" + bytes(_CODES - 1)
_MIXED = bytes(59 * code % _CODES for code in range(_CODES))
"""Spreads places over all bytes, so that few pairs have the same sum."""


# One byte after the other, from the first on, which is the highest.
_integer = int.from_bytes


class NumberedPair(NamedTuple):
    """Reference and text as numbers, as bytes where all fit; equal words have equal numbers."""

    reference: Sequence[int]
    text: Sequence[int]

    @property
    def base(self) -> int:
        """No number is more, and none of a long text as much."""
        return len(self.reference) + len(self.text)


def number_words(reference: Sequence[Hashable], text: Sequence[Hashable]) -> NumberedPair:
    """Number each word by where it first comes; in a short text, as a place in the reference or 0."""
    number, middle = dict[Hashable, int]().setdefault, len(reference)
    if middle + len(text) <= MAX_BYTES:
        places = bytes(map(number, [*reference, *text], count(1)))
        known = (b"\0" + _PLACES[:middle]).ljust(_CODES, b"\0")
        return NumberedPair(places[:middle], places[middle:].translate(known))
    return NumberedPair(
        _number_all(reference, number, count()),
        _number_all(text, number, count(middle)),
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


class PlacedRuns(NamedTuple):
    """Runs of words of two short texts, each as a place from 1 on where the reference has it, or 0 if it has none.

    Equal runs have one place. A place is a byte, so that one translation looks up all runs of a text.
    """

    reference: bytes
    text: bytes


def place_words(pair: NumberedPair) -> PlacedRuns | None:
    """The words of two texts as runs; None if their numbers are not places."""
    reference, text = pair
    return PlacedRuns(reference, text) if isinstance(reference, bytes) and isinstance(text, bytes) else None


def place_longer(runs: PlacedRuns) -> PlacedRuns:
    """The runs of one word more: all at once, each a byte of a long integer."""
    one, both = runs.reference, runs.reference + runs.text
    last, following = max(0, len(one) - 1), _integer(both[1:] + b"\0")
    # Where a run goes on as it does at its place in the reference, the longer run has the same place.
    ahead = _integer(both.translate(one.ljust(_CODES, _NOWHERE)))
    found = _integer(both) & _full_where_zero(ahead ^ following, len(both))
    if found.to_bytes(len(both)).count(0, 0, last) > MAX_SOUGHT:
        found |= _places_by_sum(one, both, following, found)
    places = bytearray(found.to_bytes(len(both)))
    # The few that are left of the reference are sought one by one.
    place = places.find(0, 0, last)
    while place >= 0:
        run, at = both[place : place + 2], place
        while at >= 0:
            places[at] = place + 1
            at = both.find(run, at + 1)
        place = places.find(0, place + 1, last)
    # What begins with the last run of a text is not a longer one.
    done = bytes(places)
    return PlacedRuns(done[:last], done[len(one) : -1])


def _places_by_sum(one: bytes, both: bytes, following: int, found: int) -> int:
    """The places of longer runs that are not found yet: where a run has the same sum, if it is the same run."""
    size, last = len(both), len(one) - 1
    still = _full_where_zero(found, size)
    sums = ((_integer(both.translate(_MIXED)) ^ following) & still).to_bytes(size)
    guess = sums.translate(bytes.maketrans(sums[:last], _PLACES[:last]))
    here = guess.translate((b"\0" + one).ljust(_CODES, _NOWHERE))
    ahead = guess.translate(one.ljust(_CODES, _NOWHERE))
    wrong = (_integer(here) ^ _integer(both)) | (_integer(ahead) ^ following)
    return _integer(guess) & _full_where_zero(wrong, size) & still


def _full_where_zero(number: int, size: int) -> int:
    """All bits of each byte that is zero, and none of the others."""
    return _integer(number.to_bytes(size).translate(_FULL_IF_ZERO))


def count_placed(runs: PlacedRuns) -> int:
    """How many runs both texts have; one that comes twice in both counts twice."""
    reference, text = runs
    known = text.translate(None, b"\0")
    once = {*known}
    found = len(once)
    if found < len(known):
        # What comes again in the reference has another place than its own.
        again = _integer(reference) ^ _integer(_PLACES[: len(reference)])
        for place in once.intersection(compress(reference, again.to_bytes(len(reference)))):
            found += min(reference.count(place), known.count(place)) - 1
    return found


def count_shared_words(pair: NumberedPair) -> int:
    """How many words both texts have; one that comes twice in both counts twice."""
    # As short as a loop can be: for words, this is faster than a dict or a sort.
    left, found = [0] * (pair.base + 1), 0
    for word in pair.reference:
        left[word] += 1
    for word in pair.text:
        if times := left[word]:
            left[word] = times - 1
            found += 1
    return found


def count_shared_pairs(pair: NumberedPair) -> int:
    """How many pairs of neighbouring words both texts have; one that comes twice in both counts twice."""
    one, other = pair
    if words := place_words(pair):
        return count_placed(place_longer(words))
    if pair.base > MAX_SHORT:
        return count_shared(*next(number_runs(pair, 2)))
    # Most words are followed by few others, which are found sooner than a number for the pair would be made.
    # Unlike pairwise, zip uses one tuple again and again.
    followers: list[list[int] | None] = [None] * pair.base
    for word, following in zip(one, one[1:], strict=False):  # noqa: RUF007
        known = followers[word]
        if known is None:
            followers[word] = [following]
        else:
            known.append(following)
    found = 0
    for word, following in zip(other, other[1:], strict=False):  # noqa: RUF007
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
