"""Two texts as numbers, one for each word: runs of words are then numbers too, and quickly counted."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, compress, count, repeat
from struct import pack, unpack
from typing import NamedTuple, TypeVar

T = TypeVar("T")

SLICE_WORDS = 16_384
"""Words that are numbered or counted in one call, during which no other thread runs."""
MAX_BYTES = 255
"""Words of both texts up to which a word's number is one byte, and so is the place of a run of words."""
MAX_SOUGHT = 6
"""Runs of a short text up to which they are sought one by one."""
MAX_NUMBERED = 65_535
"""Words of both texts up to which a run of four words is a number of 64 bits; and all are made in one call."""
MAX_FOLLOWED = 1_500
"""Words of both texts up to which pairs are counted by what follows each word: looking there could take long else."""

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
    """Reference and text as numbers, as bytes where all fit: equal words of the reference have equal numbers.

    What only the text has is 0, which no word of the reference is.
    """

    reference: Sequence[int]
    text: Sequence[int]
    base: int
    """More than any number."""


def number_words(reference: Sequence[Hashable], text: Sequence[Hashable]) -> NumberedPair:
    """Number each word of the reference from 1 on, in a short one by the place where it first comes."""
    middle = len(reference)
    if middle + len(text) <= MAX_BYTES:
        places = bytes(map(dict[Hashable, int]().setdefault, [*reference, *text], count(1)))
        known = (b"\0" + _PLACES[:middle]).ljust(_CODES, b"\0")
        return NumberedPair(places[:middle], places[middle:].translate(known), middle + 1)
    number: defaultdict[Hashable, int] = defaultdict(count(1).__next__)
    first = _number_all(reference, number.__getitem__)
    return NumberedPair(first, _number_all(text, number.get, repeat(0)), len(number) + 1)


def _number_all(words: Sequence[Hashable], number: Callable[..., int], *unless_known: Iterable[int]) -> list[int]:
    if len(words) <= SLICE_WORDS:
        return [*map(number, words, *unless_known)]
    return [*chain.from_iterable([*map(number, some, *unless_known)] for some in in_slices(words))]


def in_slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values, as many at once as may be counted in one call, during which no other thread runs."""
    return (values[start : start + SLICE_WORDS] for start in range(0, len(values), SLICE_WORDS))


def number_runs(pair: NumberedPair, longest: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The runs of 2 words of both texts as numbers; then those of 3 words, up to the longest.

    All words are one long integer of 32 or 64 bits each, so that one multiplication numbers every run: w[0], w[1], …
    times the base, plus w[1], w[2], …
    """
    reference, text, base = pair
    middle, length = len(reference), len(reference) + len(text)
    code, width = ("I", 4) if base**longest <= 1 << 32 else ("Q", 8)
    rest = runs = int.from_bytes(pack(f"<{length}{code}", *reference, *text), "little")
    for order in range(2, longest + 1):
        rest >>= 8 * width
        runs = runs * base + rest
        numbers = unpack(f"<{length}{code}", runs.to_bytes(length * width, "little"))
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
    reference, text, _ = pair
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
    if words := place_words(pair):
        return count_placed(place_longer(words))
    one, other, base = pair
    if len(one) + len(other) > MAX_FOLLOWED:
        return next(count_shared_runs(pair, 2))
    # Most words are followed by few others, which are found sooner than a number for the pair would be made.
    # Unlike pairwise, zip uses one tuple again and again.
    followers: list[list[int] | None] = [None] * base
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


def count_shared_runs(pair: NumberedPair, longest: int) -> Iterator[int]:
    """How many runs of 2 words both texts have, of 3, and up to the longest, which is 4 at most."""
    if len(pair.reference) + len(pair.text) > MAX_NUMBERED:
        yield from _count_renumbered_runs(pair, longest)
        return
    count_shared = _count_shared
    for one, other in number_runs(pair, longest):
        yield count_shared(one, other)
        count_shared = _count_shared_longer


def _count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many numbers both have; one that comes twice in both counts twice."""
    had: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for some in in_slices(one):
        had.update(some)
    for some in in_slices(other):
        found.update(filter(had.__contains__, some))
    # Most runs occur once, and then their number in the reference does not matter.
    return len(found) + sum([min(times, had[run]) - 1 for run, times in found.items() if times > 1])


def _count_shared_longer(one: Sequence[int], other: Sequence[int]) -> int:
    """The same, and sooner where no number comes twice in the first, as is usual of three words and more."""
    if len(one) > SLICE_WORDS:
        return _count_shared(one, other)
    once = {*one}
    return len(once.intersection(other)) if len(once) == len(one) else _count_shared(one, other)


def _count_renumbered_runs(pair: NumberedPair, longest: int) -> Iterator[int]:
    """The same of texts of any length: each run is numbered as two shorter ones, which begin at neighbouring words."""
    for _ in range(2, longest + 1):
        one, other, base = pair
        pair = number_words(_pair_up(one, base), _pair_up(other, base))
        yield count_shared_words(pair)


def _pair_up(words: Sequence[int], base: int) -> list[int]:
    # Slower than one call of many words would be, but other threads run meanwhile.
    return [word * base + following for word, following in zip(words, words[1:], strict=False)]  # noqa: RUF007
