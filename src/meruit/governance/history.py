"""What is remembered of an agent: statistics and fingerprints of bounded size, updated with each outcome."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from zlib import crc32

import msgspec

from meruit.model.governance import Action, Baseline, Disposition, GovernanceResult, MetricFact
from meruit.model.kinds import MetricType
from meruit.model.record import Record
from meruit.model.text import (
    CHUNK_CHARS,
    MAX_MARKS,
    distinct_characters,
    is_accent,
    limit_expansion,
    normalize_unicode,
    strip_invisible,
)

WINDOW = 60
"""How many margins and accuracies are stored."""
MAX_DAYS = 30
MAX_METRICS = 64
LARGEST = 1e100
"""Values beyond it are not stored, because their squares would overflow."""

SHINGLE = 3
"""Words per shingle."""
BLOCKS = 50
BLOCK_WORDS = 100
"""A long text is sampled in BLOCKS blocks of BLOCK_WORDS words, so that one changed word shifts little."""
SKETCH_BYTES = 8
NEAR_BITS = 3
"""Sketches of nearly equal texts differ in at most so many of their 64 bits."""
_BITS = [bytes(byte >> bit & 1 for byte in range(256)) for bit in range(7, -1, -1)]
"""For each bit of a byte, the table that maps a byte to it."""


MAX_WORD_MARKS = 64
"""Hashes of words that are stored of one try."""
MIN_WORDS = 4
"""Shorter tries are near each other only if they are equal."""
NEAR_WORDS = 0.75
"""Two tries are nearly the same if the smaller one has this share of its words from the larger one."""
HALF = (0.4, 0.6)
MIN_HALVED = 8
"""Fewer words than this are not taken for half of an earlier try."""
MIN_HALVINGS = 3
"""How often in a row tries must be halved to be a search: some hundred words, then fifty, twenty-five and twelve."""
MAX_STRANGE = 0.05
"""The two halves of a list share no words; other texts share more, because every language has words that recur."""
_FIGURES = re.compile(r"\d+(?:[.,]\d+)*")

COPIES = frozenset({"replayed_output", "sybil_output"})
"""Flags of outputs that were seen before; only their first agent is remembered."""

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
MAX_WORD_CHARS = 60_000
"""How far the next space is looked for where a long text is cut."""
MAX_SKETCHED_CHARS = 1_000_000
"""A longer text is sampled before it is normalised."""
_SPACE = re.compile(r"\s")


class SubmissionFingerprints(msgspec.Struct, frozen=True):
    """Fingerprints of an output, its input and its run, which do not reveal their content."""

    input: str
    output: str | None = None
    """None for an output that is too short to be recognised."""
    evidence: str | None = None
    """Of the run; None where the run has no id and no times."""
    sketch: str = ""
    """Of the output; similar outputs have similar sketches."""
    task: str = ""
    """Of the input and the task; empty where only the input is known."""
    parts: tuple[str, ...] = ()
    """Of long texts that are only part of the output."""
    signature: str = ""
    """Of the output's shingles; empty for an output that is too short."""
    words: str = ""
    """Of the output's words, with figures left out; empty where it does not count as a try."""


class DailyStatistics(Record, frozen=True, array_like=True):
    """The mean and spread of one metric's values on one day."""

    day: int
    """Counted from 1970."""
    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared distances from the mean, which is more exact than a sum of squares."""


class AgentHistory(Record, frozen=True):
    """The history of an agent, of bounded size."""

    margins: list[float] = msgspec.field(default_factory=list)
    """The last 60, the oldest first."""
    accuracies: list[float] = msgspec.field(default_factory=list)
    """The last 60, the oldest first."""
    mismatches: int = 0
    """How often the agent claimed to be faster than was observed."""
    days: dict[str, list[DailyStatistics]] = msgspec.field(default_factory=dict)
    """By metric, for at most 64 of them: those of the last 30 days that had values, the oldest first."""


def baselines(memory: AgentHistory, metrics: Iterable[str], day: int) -> dict[str, Baseline]:
    """The baseline of each metric with values in the 30 days up to `day`."""
    found = {}
    for metric in metrics:
        whole = DailyStatistics(day)
        for part in memory.days.get(metric, ()):
            if day - MAX_DAYS < part.day <= day:
                whole = _merge_days(whole, part)
        if whole.n:
            deviation = math.sqrt(whole.squares / (whole.n - 1)) if whole.n > 1 else 0.0
            found[metric] = Baseline(whole.n, whole.mean, deviation)
    return found


def update_history(memory: AgentHistory, facts: Sequence[MetricFact], day: int, *, mismatch: bool) -> AgentHistory:
    """The history after one more outcome."""
    margins, accuracies = recent(memory, facts)
    days = dict(memory.days)
    for fact in facts:
        if fact.value is not None and abs(fact.value) <= LARGEST:
            days[fact.metric] = _add_value(days.get(fact.metric, []), day, float(fact.value))
    return AgentHistory(margins, accuracies, memory.mismatches + mismatch, _prune_days(days))


def recent(memory: AgentHistory, facts: Sequence[MetricFact]) -> tuple[list[float], list[float]]:
    """The last margins and accuracies, including those of this outcome."""
    margins = [fact.margin for fact in facts if fact.margin is not None and math.isfinite(fact.margin)]
    accuracies = [fact.value for fact in facts if fact.value is not None and _is_accuracy(fact)]
    return [*memory.margins, *margins][-WINDOW:], [*memory.accuracies, *accuracies][-WINDOW:]


def _is_accuracy(fact: MetricFact) -> bool:
    named = fact.kind is MetricType.ACCURACY or fact.metric == "accuracy"
    return named and fact.value is not None and math.isfinite(fact.value)


def _add_value(days: list[DailyStatistics], day: int, value: float) -> list[DailyStatistics]:
    today = next((one for one in days if one.day == day), DailyStatistics(day))
    others = [one for one in days if one.day != day]
    return sorted([*others, _merge_days(today, DailyStatistics(day, 1, value))], key=lambda one: one.day)


def _merge_days(one: DailyStatistics, other: DailyStatistics) -> DailyStatistics:
    """Both days combined, by Chan's formula; the second must not be empty."""
    n = one.n + other.n
    apart = other.mean - one.mean
    squares = one.squares + other.squares + apart * apart * (one.n * other.n / n)
    return DailyStatistics(one.day, n, one.mean + apart * (other.n / n), squares)


def _prune_days(days: Mapping[str, list[DailyStatistics]]) -> dict[str, list[DailyStatistics]]:
    newest = max((several[-1].day for several in days.values()), default=0)
    left = {metric: [one for one in several if one.day > newest - MAX_DAYS] for metric, several in days.items()}
    left = {metric: several for metric, several in left.items() if several}
    if len(left) <= MAX_METRICS:
        return left

    # Recent and frequent metrics stay; the name makes the choice deterministic.
    def worth(metric: str) -> tuple[int, int, str]:
        return left[metric][-1].day, sum(one.n for one in left[metric]), metric

    return {metric: left[metric] for metric in sorted(left, key=worth)[-MAX_METRICS:]}


def is_first_output(result: GovernanceResult | None) -> bool:
    """Whether to remember an output as its agent's own; not if it is invalid or a copy.

    Otherwise an unpaid copy would turn the original into a copy.
    """
    if result is None:
        return True
    copied = any(
        flag in COPIES if isinstance(flag, str) else flag.rule in COPIES and flag.action is not Action.FLAG
        for flag in result.flags
    )
    return result.conclusion is not Disposition.INVALID and not copied


def normalise_text(text: str) -> str:
    """A text as readers see it: without case, hidden characters, and kinds of dashes and spaces."""
    # Long texts in chunks, because other threads wait during each step.
    if len(text) > CHUNK_CHARS and not text.isascii():
        text = limit_expansion("NFKC", text, distinct_characters(text))
    parts = [text] if len(text) <= CHUNK_CHARS else _chunks_at_spaces(text)
    return " ".join(filter(None, (" ".join(_fold(part).split()) for part in parts)))


def _chunks_at_spaces(text: str) -> Iterator[str]:
    """Parts of a text that end before a space; texts without spaces are cut after MAX_WORD_CHARS."""
    start = 0
    while start < len(text):
        found = _SPACE.search(text, start + CHUNK_CHARS, start + CHUNK_CHARS + MAX_WORD_CHARS)
        end = found.start() if found else start + CHUNK_CHARS + MAX_WORD_CHARS
        yield text[start:end]
        start = end
        # Accents beyond so many are dropped in any case.
        while found is None and start < len(text) and is_accent(text[start]):
            start += 1


def _fold(text: str) -> str:
    if text.isascii():
        return strip_invisible(text).lower()
    seen = normalize_unicode("NFKC", normalize_unicode("NFKC", _strip_padding(text)).casefold())
    for dash in DASHES:
        seen = seen.replace(dash, "-")
    return seen


def _strip_padding(text: str) -> str:
    """The text without invisible characters and excessive accents."""
    text = strip_invisible(text)
    chars = {*text}
    accents = re.escape("".join(char for char in chars if is_accent(char)))
    return re.sub(f"([{accents}]{{{MAX_MARKS}}})[{accents}]+", r"\1", text) if accents else text


def sketch(text: str) -> str:
    """A 64-bit simhash of the words, three at a time, as 16 hex digits: nearly equal texts differ in few bits."""
    return _sketch(_word_blocks(text))


def _sketch(blocks: list[list[str]]) -> str:
    shingles = [
        " ".join(block[start : start + SHINGLE])
        for block in blocks
        for start in range(max(1, len(block) - SHINGLE + 1))
    ]
    digests = b"".join(
        # A Python text may hold half of a surrogate pair, which UTF-8 cannot.
        blake2b(shingle.encode(errors="surrogatepass"), digest_size=SKETCH_BYTES).digest()
        for shingle in shingles
    )
    # One plane per bit: bytes.count then counts the ones.
    planes = [digests.translate(ones) for ones in _BITS]
    votes = (plane[place::SKETCH_BYTES].count(1) for place in range(SKETCH_BYTES) for plane in planes)
    bits = "".join("1" if 2 * ones > len(shingles) else "0" for ones in votes)
    return f"{int(bits, 2):0{2 * SKETCH_BYTES}x}"


def _word_blocks(text: str) -> list[list[str]]:
    if len(text) <= MAX_SKETCHED_CHARS:
        return _blocks(normalise_text(text).split())
    starts = (number * (len(text) - CHUNK_CHARS) // (BLOCKS - 1) for number in range(BLOCKS))
    return [normalise_text(text[start : start + CHUNK_CHARS]).split()[:BLOCK_WORDS] for start in starts]


def _blocks(words: list[str]) -> list[list[str]]:
    """All words as one block; of a very long text, blocks spread evenly over it."""
    if len(words) <= BLOCKS * BLOCK_WORDS:
        return [words]
    starts = (number * (len(words) - BLOCK_WORDS) // (BLOCKS - 1) for number in range(BLOCKS))
    return [words[start : start + BLOCK_WORDS] for start in starts]


def is_near(one: str, other: str) -> bool:
    """Whether two sketches are of nearly equal texts."""
    return (int(one, 16) ^ int(other, 16)).bit_count() <= NEAR_BITS


class NearTries(msgspec.Struct, frozen=True):
    """Earlier tries at the same criteria with nearly the same words."""

    near: int = 0
    failed: int = 0
    """How many of them did not pass."""


class TryMark(msgspec.Struct, frozen=True):
    """One try at criteria, as it is compared with later ones."""

    passed: bool
    group: int
    """Tries that are near each other, or near to one that is near to both, have the same group."""
    words: str
    """As `word_marks` writes them."""

    def __str__(self) -> str:
        """The try as it is stored."""
        return f"{int(self.passed)}.{self.group}.{self.words}"

    @classmethod
    def parse(cls, text: str) -> "TryMark":
        """A stored try."""
        passed, group, words = text.split(".")
        return cls(passed=passed == "1", group=int(group), words=words)


def sketch_and_words(text: str) -> tuple[str, str]:
    """The sketch of a text, and the marks of its words; both at once, because normalising costs most."""
    blocks = _word_blocks(text)
    return _sketch(blocks), _word_marks(blocks)


def word_marks(text: str) -> str:
    """Hashes of the words of a text, without figures: all of them, or the smallest of many, after their number."""
    return _word_marks(_word_blocks(text))


def _word_marks(blocks: list[list[str]]) -> str:
    words = {*_FIGURES.sub("#", " ".join(chain.from_iterable(blocks))).split()}
    hashes = sorted({crc32(word.encode(errors="surrogatepass")) for word in words})
    return ":".join([f"{len(hashes):x}", *(f"{one:08x}" for one in hashes[:MAX_WORD_MARKS])])


def find_near_tries(tries: Iterable[TryMark], words: str) -> NearTries:
    """How many of the tries are in a group with one that has nearly the same words, or search by halves with it."""
    known = [*tries]
    found = max(_near_groups(known, words), _find_halves(known, words), key=len)
    return NearTries(len(found), sum(not one.passed for one in found))


def _find_halves(tries: Sequence[TryMark], words: str) -> list[TryMark]:
    """The earlier tries of the search by halves that this one belongs to; empty where it belongs to none.

    Such a search asks for half of a list, then for half of that half or of the other one, which shares no word with it.
    """
    marks = [*(one.words for one in tries), words]
    sizes = [count_words(one) for one in marks]
    halvings = [0] * len(marks)
    search = [*range(len(marks))]
    for later, size in enumerate(sizes):
        for earlier in range(later) if size >= MIN_HALVED else ():
            if HALF[0] * sizes[earlier] <= size <= HALF[1] * sizes[earlier]:
                shared = share_words(marks[earlier], marks[later])
                if shared <= MAX_STRANGE or shared >= NEAR_WORDS:
                    halvings[later] = max(halvings[later], halvings[earlier] + 1)
                    joined, left = search[earlier], search[later]
                    search = [joined if one == left else one for one in search]
    members = [place for place, one in enumerate(search) if one == search[-1]]
    if max(halvings[place] for place in members) < MIN_HALVINGS:
        return []
    return [tries[place] for place in members[:-1]]


def count_words(words: str) -> int:
    """How many different words a text has, from their marks."""
    return int(words.partition(":")[0], 16)


def add_try(tries: Sequence[TryMark], words: str, *, passed: bool) -> list[TryMark]:
    """The tries with one more, in the group of those near to it."""
    found = _near_groups(tries, words)
    near = {one.group for one in found}
    group = min(near) if near else max((one.group for one in tries), default=-1) + 1
    joined = [msgspec.structs.replace(one, group=group) if one.group in near else one for one in tries]
    return [*joined, TryMark(passed=passed, group=group, words=words)]


def _near_groups(tries: Sequence[TryMark], words: str) -> list[TryMark]:
    near = {one.group for one in tries if share_words(one.words, words) >= NEAR_WORDS}
    return [one for one in tries if one.group in near]


def share_words(one: str, other: str) -> float:
    """The share of the smaller text's words that the larger one has, from their marks; estimated for long texts.

    A search by halves leaves words out, and a search word by word adds them: both keep the words that they share.
    """
    if one == other:
        return 1.0
    (count, *marks), (other_count, *other_marks) = one.split(":"), other.split(":")
    sizes = int(count, 16), int(other_count, 16)
    if min(sizes) < MIN_WORDS:
        return 0.0
    shared = {*marks} & {*other_marks}
    if max(sizes) <= MAX_WORD_MARKS or not shared:
        return len(shared) / min(sizes)
    # The smallest hashes of the union are a random sample of it.
    sample = sorted({*marks, *other_marks})[:MAX_WORD_MARKS]
    alike = len(shared.intersection(sample)) / len(sample)
    return min(1.0, alike * sum(sizes) / ((1 + alike) * min(sizes)))
