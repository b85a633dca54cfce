"""Every call that was really made at a provider, by the minute, and which of them its APIs show at a moment."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import NamedTuple

import msgspec

from meruit.model.usage import Tokens

MINUTE_S = 60
"""The finest unit of time in these APIs."""
SMALLEST = Decimal("1e-12")
"""The precision of a line of the bill, in dollars."""


class Counts(NamedTuple):
    """What one call or several used; input includes what was cached."""

    input: int = 0
    output: int = 0
    requests: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def tokens(self) -> Tokens:
        """The same as everything else reads it."""
        return Tokens(*self)


class ProviderCall(msgspec.Struct, frozen=True):
    """One call that was really made."""

    at: float
    visible_at: float
    """From when the APIs show it."""
    turn: int
    """How many of the same attribution key and model came before it."""
    model: str
    key: str
    project: str
    session: str
    id: str
    counts: Counts
    cost: Decimal | None
    """In US dollars."""


class CallVisibility(msgspec.Struct, frozen=True):
    """What can be seen at a moment."""

    now: float
    lost: float = 0.0
    """The share of each attribution key that does not show although it did."""

    def shows(self, call: ProviderCall) -> bool:
        """Whether the APIs show a call."""
        if call.visible_at > self.now:
            return False
        # Spread evenly, so that two of four are lost at a half, and always the same two.
        return not self.lost or int((call.turn + 1) * self.lost) == int(call.turn * self.lost)


class CallLedger:
    """All calls; they may be written down in any order."""

    def __init__(self) -> None:
        self.written = 0
        """How many."""
        self._minutes: dict[int, list[ProviderCall]] = {}
        self._order: list[int] = []
        """The minutes, sorted when they are next read."""
        self._sorted = True
        self._turns: Counter[tuple[str, str, str, str]] = Counter()
        self._by_id: dict[str, ProviderCall] = {}

    def next_turn(self, model: str, key: str, project: str, session: str) -> int:
        """How many of the same attribution key and model there were; the next one has this number."""
        attribution_key = (model, key, project, session)
        self._turns[attribution_key] += 1
        return self._turns[attribution_key] - 1

    def write(self, call: ProviderCall) -> None:
        """Write a call down."""
        self.written += 1
        minute = int(call.at) // MINUTE_S
        if minute not in self._minutes:
            self._minutes[minute] = []
            self._sorted = self._sorted and (not self._order or self._order[-1] < minute)
            self._order.append(minute)
        self._minutes[minute].append(call)
        if call.id:
            self._by_id[call.id] = call

    def find(self, call_id: str) -> ProviderCall | None:
        """A call by its id."""
        return self._by_id.get(call_id)

    def between(self, start: float, end: float) -> Iterator[ProviderCall]:
        """Those made from one moment to before another."""
        for calls in self._spans(start, end):
            yield from (call for call in calls if start <= call.at < end)

    def _spans(self, start: float, end: float) -> Iterator[list[ProviderCall]]:
        if not self._sorted:
            self._order.sort()
            self._sorted = True
        for place in range(bisect_left(self._order, start // MINUTE_S), len(self._order)):
            if self._order[place] * MINUTE_S >= end:
                return
            yield self._minutes[self._order[place]]


Group = tuple[str | None, ...]


def total(calls: Iterable[ProviderCall]) -> Counts:
    """All together."""
    return sum_by_group(calls, lambda _: ()).get((), Counts())


def sum_by_group(calls: Iterable[ProviderCall], by: Callable[[ProviderCall], Group]) -> dict[Group, Counts]:
    """Together by group."""
    sums: dict[Group, list[int]] = {}
    for call in calls:
        row = sums.setdefault(by(call), [0] * len(Counts._fields))
        for place, count in enumerate(call.counts):
            row[place] += count
    return {group: Counts(*row) for group, row in sums.items()}


class CallCostLine(msgspec.Struct, frozen=True):
    """One side of a call, as a line of the bill."""

    call: ProviderCall
    side: str
    """`input` or `output`."""
    quantity: int
    amount: Decimal
    """In US dollars."""


def call_of(one: ProviderCall | CallCostLine) -> ProviderCall:
    """The call that it is, or is a side of."""
    return one.call if isinstance(one, CallCostLine) else one


def cost_lines(calls: Iterable[ProviderCall]) -> Iterator[CallCostLine]:
    """What calls cost, two lines for each that come to the whole; those whose cost is not known have none."""
    for call in calls:
        if call.cost is not None:
            used = call.counts.input + call.counts.output
            asking = (call.cost * call.counts.input / used).quantize(SMALLEST) if used else Decimal(0)
            yield CallCostLine(call=call, side="input", quantity=call.counts.input, amount=asking)
            yield CallCostLine(call=call, side="output", quantity=call.counts.output, amount=call.cost - asking)


def bill_by_group(
    several: Iterable[CallCostLine], by: Callable[[CallCostLine], Group]
) -> dict[Group, tuple[Decimal, int]]:
    """Amounts and quantities together by group."""
    sums: dict[Group, tuple[Decimal, int]] = {}
    for line in several:
        amount, quantity = sums.get(by(line), (Decimal(0), 0))
        sums[by(line)] = (amount + line.amount, quantity + line.quantity)
    return sums


def sort_key(group: Group) -> tuple[str, ...]:
    """By what groups are sorted."""
    return tuple(one or "" for one in group)
