"""How a source is read: completely or with the reason why not, with retries, and until it has settled.

Nothing here judges. A source that cannot be read is not the agent's failure; its snapshot says so.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from meruit.errors import SourceError
from meruit.model.environment import Item, Read, Snapshot, SourceKind
from meruit.model.record import Record

T = TypeVar("T")
Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Timer: TypeAlias = Callable[[], float]
"""Seconds since some moment, never backwards."""

MAX_PAGES = 1_000
MAX_ITEMS = 100_000
MAX_BYTES = 256 * 1024 * 1024
"""How many bytes one reading may receive in all."""
MAX_REPLY_BYTES = 32 * 1024 * 1024
"""How long one reply may be."""
TIMEOUT_S = 30.0
"""How long one request may take, from the DNS request to the last byte of the reply."""
CONNECT_S = 10.0
"""How long a server may take to accept a connection."""
READ_S = 300.0
"""How long a whole reading may take."""
MAX_WAIT_S = 30.0
"""The longest wait that a server may ask for."""
MAX_READINGS = 100
"""How often a source is read until it has settled."""
MAX_CONCURRENT = 4
"""How many requests run at the same time."""
MAX_NAMED_KEYS = 3
"""How many keys a message names before it says how many more there are."""

INCOMPLETE = "incomplete_read"
"""The prefix of an error when there was more than was read."""
UNSETTLED = "unsettled"
"""The prefix of an error when the source changed while it was read."""


class Source(Protocol):
    """A system outside that can be read completely."""

    @property
    def kind(self) -> SourceKind:
        """The kind of system."""

    async def read(self) -> Snapshot:
        """Read everything; failures of the system are the snapshot's `trouble`, not exceptions."""


@runtime_checkable
class LaggingSource(Source, Protocol):
    """A source whose lists may lag behind writes without a sign of it."""

    @property
    def apart_s(self) -> float:
        """The time between two readings that may count as equal, from what the last one found; 0 for none."""


class BackoffSchedule(Record, frozen=True):
    """How often a request is tried, and the waits between."""

    tries: int = 3
    first_wait_s: float = 0.2
    factor: float = 2.0

    def waits_s(self) -> Iterator[float]:
        """Yield the wait after each try but the last."""
        wait_s = self.first_wait_s
        for _ in range(self.tries - 1):
            yield wait_s
            wait_s *= self.factor


class ReadLimits(Record, frozen=True):
    """How much one reading may take; reaching a limit is an error, never silence."""

    pages: int = MAX_PAGES
    """Pages of one list."""
    items: int = MAX_ITEMS
    bytes_total: int = MAX_BYTES
    reply_bytes: int = MAX_REPLY_BYTES
    timeout_s: float = TIMEOUT_S
    connect_s: float = CONNECT_S
    read_s: float = READ_S


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """The retries and limits of a source."""

    retry: BackoffSchedule = field(default_factory=BackoffSchedule)
    limits: ReadLimits = field(default_factory=ReadLimits)
    sleep: Sleep = asyncio.sleep


DEFAULT = ReadPolicy()


@dataclass(slots=True)
class SourceReading:
    """What one reading has collected so far."""

    limits: ReadLimits
    items: dict[str, Item] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    taken_bytes: int = 0

    def add(self, one: Item) -> None:
        """Add an item, in place of one with its key; raises SourceError for one too many."""
        self.items[one.key] = one
        if len(self.items) > self.limits.items:
            raise SourceError(
                f"{INCOMPLETE}: there are more than {self.limits.items:,} items; read fewer types or folders"
            )

    def take(self, size: int, what: str) -> None:
        """Count received bytes; raises SourceError for too many."""
        self.taken_bytes += size
        if self.taken_bytes > self.limits.bytes_total:
            raise SourceError(
                f"{INCOMPLETE}: more than {self.limits.bytes_total:,} bytes altogether, at {what}; "
                "read fewer types or folders"
            )

    def note(self, what: str, items: int | None = None) -> None:
        """Record something that a reader of the snapshot should know."""
        self.reads.append(Read(what, items=items))


async def take_snapshot(
    kind: SourceKind, where: str, policy: ReadPolicy, gather: Callable[[SourceReading], Awaitable[None]]
) -> Snapshot:
    """Build a snapshot of what `gather` collects, with what it had if it failed."""
    reading = SourceReading(policy.limits)
    trouble = None
    try:
        async with asyncio.timeout(policy.limits.read_s):
            await gather(reading)
    except SourceError as problem:
        trouble = str(problem)
    except TimeoutError:
        trouble = f"{where} could not be read within {policy.limits.read_s:g} s; read less of it, or try again later"
    items = [reading.items[key] for key in sorted(reading.items)]
    return Snapshot(kind, items, reading.reads, trouble)


async def with_retries(attempt: Callable[[], Awaitable[T]], policy: ReadPolicy) -> T:
    """Try by the policy while a retry may help; raises the last SourceError."""
    for wait_s in policy.retry.waits_s():
        try:
            return await attempt()
        except SourceError as trouble:
            if not trouble.again:
                raise
            await policy.sleep(wait_s if trouble.wait_s is None else trouble.wait_s)
    return await attempt()


async def for_each(things: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
    """Process all things, a few at a time; the first SourceError stops the rest and is raised."""
    waiting = iter(things)
    troubles: list[SourceError] = []

    async def work() -> None:
        for thing in waiting:
            if troubles:
                return
            try:
                await do(thing)
            except SourceError as trouble:
                troubles.append(trouble)

    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_CONCURRENT):
            group.create_task(work())
    if troubles:
        raise troubles[0]


async def read_until_settled(
    source: Source,
    *,
    stable: int = 2,
    within_s: float = 30.0,
    pause_s: float = 0.5,
    sleep: Sleep = asyncio.sleep,
    timer: Timer = time.monotonic,
) -> Snapshot:
    """Read until `stable` successive readings are equal; the snapshot of a source that does not settle has trouble.

    An incomplete or changing list is read again within the time; any other trouble ends the waiting. The time between
    readings of a lagging source is as long as it says.
    """
    started = timer()
    earlier, found, same = None, await source.read(), 1
    for _ in range(MAX_READINGS):
        if found.trouble is not None and not found.trouble.startswith((INCOMPLETE, UNSETTLED)):
            return found
        left_s = started + within_s - timer()
        if found.trouble is None and same >= stable:
            return msgspec.structs.replace(found, settled_after_ms=round((within_s - left_s) * 1000))
        apart_s = source.apart_s if isinstance(source, LaggingSource) else 0.0
        if left_s <= 0 or left_s < apart_s:
            break
        await sleep(min(max(pause_s, apart_s), left_s))
        earlier, found = found, await source.read()
        same = same + 1 if _agree(earlier, found) else 1
    if found.trouble is not None:
        return found
    reads = [*earlier.reads, *found.reads] if earlier else found.reads
    return msgspec.structs.replace(found, reads=reads, trouble=_explain_unsettled(earlier, found, within_s))


def _agree(one: Snapshot, other: Snapshot) -> bool:
    return one.trouble is None and other.trouble is None and one.manifest() == other.manifest()


def _explain_unsettled(earlier: Snapshot | None, found: Snapshot, within_s: float) -> str:
    advice = "wait until it is idle, or give it more time with `settle: {within: …}`"
    if earlier is None or _agree(earlier, found):
        return f"{UNSETTLED}: {within_s:g} s were not enough for readings that agree; {advice}"
    if earlier.trouble is not None:
        return f"{UNSETTLED}: after {within_s:g} s the last reading but one had trouble ({earlier.trouble}); {advice}"
    difference = describe_difference(earlier, found)
    return f"{UNSETTLED}: two readings still differed after {within_s:g} s ({difference}); {advice}"


def describe_difference(earlier: Snapshot, later: Snapshot) -> str:
    """Describe what changed between two readings: `appeared Patient/2; changed Patient/1`."""
    old, new = earlier.manifest(), later.manifest()
    parts = {
        "appeared": [key for key in new if key not in old],
        "gone": [key for key in old if key not in new],
        "changed": [key for key in new if key in old and old[key] != new[key]],
    }
    return "; ".join(f"{word} {format_keys(keys)}" for word, keys in parts.items() if keys)


def format_keys(keys: Sequence[str]) -> str:
    """Format the first few keys, and how many more there are."""
    more = f" and {len(keys) - MAX_NAMED_KEYS:,} more" if len(keys) > MAX_NAMED_KEYS else ""
    return ", ".join(keys[:MAX_NAMED_KEYS]) + more


@asynccontextmanager
async def time_limit(timeout_s: float, where: str) -> AsyncIterator[None]:
    """Limit the time of what is awaited inside; raises a SourceError that may be retried."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise SourceError(f"{where} did not answer within {timeout_s:g} s; check that it is up", again=True) from None
