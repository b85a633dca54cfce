"""One account, asked once for each day on which runs ended that are due; what it says is held to every one of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection

from meruit.documents.sanitize import describe
from meruit.errors import FetchError, FetchFailed, MeruitError, PriceAlreadyFrozen
from meruit.model.metering import AttributionKind, CostRow, MeteredRun, Page, UsageRecord, UsageSource, Window
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Assurance, Observation, UsagePolicy, UsageStatus
from meruit.store.store import Store
from meruit.usage.attribution.cohorts import GUARD, AccountCohorts, window_of
from meruit.usage.attribution.columns import OPEN
from meruit.usage.attribution.project import DueUsageRun, Fetch, ProviderCounts, build_failed_observation
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.followers import UsageWrite
from meruit.usage.pricing import ledger_of, quotes_for
from meruit.usage.reconcile.response import DAILY_COST_KINDS, AccountResponse, UsagePageCollector, failure_time
from meruit.usage.schedule import Schedule
from meruit.usage.store.accounts import StorePages
from meruit.usage.store.call_owners import find_claimed_calls
from meruit.usage.store.due import (
    DAY,
    AccountQuery,
    DueDay,
    UsageRunCursor,
    account_page,
    days_due,
    due_page,
    newest_seq,
)
from meruit.usage.store.read import ATTRIBUTION_BLOCK, find_many, iterate_account
from meruit.usage.store.write import RecordObservations, RecordPrices, RunObservation

if TYPE_CHECKING:
    from meruit.store.recorder import Write

BY = "reconciler"
"""Who moves contracts, in the records."""
BLOCK = 500
"""Runs whose looks are written together."""
CALLS_BLOCK = 50
"""The same where each call is asked for: what was asked is lost with whoever dies before it is written."""
WITHIN_DAYS = 7
"""How many days before and after their own are asked for, to tell runs from those that they share an attribution key with."""
COSTS_AFTER = timedelta(hours=6)
"""After the end of a day, until when its costs may not be told yet."""
PER_CALL_ERRORS = frozenset({FetchError.MALFORMED, FetchError.PARTIAL_PAGE})
"""Why the record of one call cannot be read while those of others can."""
CLAIMING_STATUSES = frozenset({UsageStatus.VERIFIED.value, UsageStatus.WARNING.value})
"""Statuses that claim something of a count, and so must not outlast it."""

T = TypeVar("T")
Watch = Callable[[str, str], None]
RenewLease = Callable[[], Awaitable[None]]
"""Keep an account to oneself for a while longer; raises where it is another's by now."""


class Account(NamedTuple):
    """An account at a provider that can be asked."""

    name: str
    provider: str
    source: UsageSource
    fingerprint: str = ""
    """Of its key."""
    self_reported: bool = False
    """Whether it tells only what callers say of themselves; nothing of that is ever verified."""


class AccountSummary(Record, frozen=True):
    """What came of asking one account."""

    tenant: str
    account: str
    observed: int = 0
    """Runs."""
    recorded: int = 0
    """Looks that were added."""
    early: int = 0
    """Looks that were equal and too early to count."""
    failed: int = 0
    """Looks that found nothing out."""
    pages: int = 0
    """What the provider was asked for."""
    error: FetchError | None = None
    trouble: str = ""


class ReconcileRules(NamedTuple):
    """By what runs are judged, and how often they are looked at."""

    policy: UsagePolicy = UsagePolicy()
    schedule: Schedule = Schedule()


class _SharedWindow(NamedTuple):
    """Who shares minutes with whom, and what must be asked for to tell them apart."""

    cohorts: AccountCohorts
    window: Window
    known: int
    """The newest run among them; of a later one nobody knows whether it is alone."""


class _NextPage(Protocol):
    def __call__(self, connection: Connection, *, after: UsageRunCursor) -> list[AttributionRun]: ...


class AccountReconciliation:
    """All days of one account on which runs ended that are due."""

    def __init__(
        self, store: Store, account: Account, asked: AccountQuery, rules: ReconcileRules, watch: Watch, hold: RenewLease
    ) -> None:
        self._store = store
        self._account = account
        self._asked = asked
        self._rules = rules
        self._watch = watch
        self._hold = hold
        self._now = from_micros(asked.now)
        self._until = self._now.replace(second=0, microsecond=0)
        """The end of the last whole minute."""
        self._costs: dict[Window, tuple[CostRow, ...]] = {}
        self.statuses: Counter[UsageStatus] = Counter()
        self.summary = AccountSummary(asked.tenant, account.name)

    async def run(self) -> None:
        """Look at all that is due, and at that of which something else is counted than what is claimed."""
        for day in await self._read(partial(days_due, asked=self._asked)):
            await self._hold()
            if self._account.source.kinds == {AttributionKind.REQUESTS}:
                await self._observe_calls(day)
            else:
                await self._observe_window(day)

    async def _observe_window(self, day: DueDay) -> None:
        together = await self._read(partial(self._find_shared_window, day))
        try:
            answered = await self._fetch(self._usage_pages(together.window), together.window)
        except FetchFailed as failed:
            self._note_failure(failed)
            async for block in self._due_blocks(day, BLOCK):
                await self._record_failure(failed, block)
            return
        async for block in self._candidates(day, together):
            due = answered.counts.due_runs(block, together.cohorts, self._now)
            for some in _blocks((one for one in due if self._is_observed(one, day, answered)), BLOCK):
                await self._record_observations(answered, some)

    async def _observe_calls(self, day: DueDay) -> None:
        """An account that is asked for one call after the other; not for more of them while it does not answer."""
        trouble: FetchFailed | None = None
        async for block in self._due_blocks(day, CALLS_BLOCK):
            if trouble is None:
                trouble = await self._observe_call_block(block)
            else:
                await self._record_failure(trouble, block)

    async def _observe_call_block(self, block: Sequence[AttributionRun]) -> FetchFailed | None:
        """Ask for the calls of some runs; answers what keeps every call from being asked for, if something does."""
        runs = await self._runs(block)
        ids = [call.id for run in runs.values() for call in run.run.calls if call.id]
        try:
            answered = await self._fetch(self._call_pages(ids), None)
        except FetchFailed as failed:
            if failed.kind in PER_CALL_ERRORS and len(block) > 1:
                # One answer of many is at fault, and one run waits for it.
                middle = len(block) // 2
                troubles = [await self._observe_call_block(half) for half in (block[:middle], block[middle:])]
                return troubles[0] or troubles[1]
            self._note_failure(failed)
            await self._record_failure(failed, block)
            return None if failed.kind in PER_CALL_ERRORS else failed
        await self._record_observations(answered, [DueUsageRun(one, None) for one in block])
        return None

    def _candidates(self, day: DueDay, together: _SharedWindow) -> AsyncIterator[list[AttributionRun]]:
        """Those that may have to be looked at: only what is due where some were chosen."""
        if not self._asked.run_filter.is_unfiltered:
            return self._due_blocks(day, ATTRIBUTION_BLOCK)
        until = max(to_micros(together.window.end), day.last + 1)
        page = partial(account_page, asked=self._asked, until=until, known=together.known, limit=ATTRIBUTION_BLOCK)
        return self._read_blocks(page, UsageRunCursor(to_micros(together.window.start)))

    def _due_blocks(self, day: DueDay, limit: int) -> AsyncIterator[list[AttributionRun]]:
        return self._read_blocks(partial(due_page, asked=self._asked, day=day.day, limit=limit), UsageRunCursor(0))

    async def _read_blocks(self, page: _NextPage, place: UsageRunCursor) -> AsyncIterator[list[AttributionRun]]:
        """Block by block, each read for itself: nothing is held open while others write."""
        while rows := await self._read(partial(page, after=place)):
            await self._hold()
            yield rows
            place = _cursor_of(rows[-1])

    def _is_due(self, run: AttributionRun) -> bool:
        return run.next_observation_at is not None and run.next_observation_at <= self._asked.now

    def _is_observed(self, one: DueUsageRun, day: DueDay, answered: AccountResponse) -> bool:
        """A run that is due with its own day; one that is not, where more or less is counted than what is claimed.

        Of those that share an attribution key, each new one changes what is counted for all: whoever claims nothing of it waits.
        """
        if self._is_due(one.run):
            return one.run.ended_at is not None and one.run.ended_at // DAY == day.day
        return self._is_window_complete(one, answered) and (
            one.cohort_span is None or one.run.status in CLAIMING_STATUSES
        )

    def _is_window_complete(self, one: DueUsageRun, answered: AccountResponse) -> bool:
        """Whether all was asked for that is counted so far, also of those that have not ended."""
        if one.cohort_span is None or one.cohort_span.end < OPEN or answered.window is None:
            return True
        return answered.window.end >= self._until

    def _find_shared_window(self, day: DueDay, connection: Connection) -> _SharedWindow:
        """By whole days, as many as it takes, within limits: what is beyond them is told by no look."""
        window = self._whole_days(day, self._span(day))
        neighbours = self._read_cohorts(connection, day, window)
        # Each time it grows by a day at least.
        for _ in range(2 * WITHIN_DAYS):
            wider = self._whole_days(day, self._widen(connection, day, neighbours, window))
            if wider == window:
                break
            window, neighbours = wider, self._read_cohorts(connection, day, wider)
        return _SharedWindow(neighbours, window, newest_seq(connection, self._asked.tenant))

    def _read_cohorts(self, connection: Connection, day: DueDay, window: Window) -> AccountCohorts:
        source, asked = self._account.source, self._asked
        neighbours = AccountCohorts(source.bucket)
        # Whoever ended just before may still be counted in the first minutes.
        first, last = window.start - GUARD - source.bucket, max(window.end, self._span(day).end)
        for block in _blocks(iterate_account(connection, asked.account, first, last), ATTRIBUTION_BLOCK):
            neighbours.add(block)
        return neighbours

    def _widen(self, connection: Connection, day: DueDay, neighbours: AccountCohorts, window: Window) -> Window:
        """The window, and what must be known beside it of those that share minutes with runs that are due."""
        start, end, place = window.start, window.end, UsageRunCursor(0)
        while rows := due_page(connection, self._asked, day.day, after=place, limit=ATTRIBUTION_BLOCK):
            needed = neighbours.window_for(rows, self._now) or window
            start, end = min(start, needed.start), max(end, needed.end)
            place = _cursor_of(rows[-1])
        return Window(start, end)

    def _span(self, day: DueDay) -> Window:
        """The minutes in which those that are due may be counted."""
        return Window(*map(from_micros, window_of(day.first, day.last, self._account.source.bucket)))

    def _whole_days(self, day: DueDay, window: Window) -> Window:
        """The days that a window touches, not too many of them, up to now."""
        first = max(to_micros(window.start) // DAY, day.day - WITHIN_DAYS)
        last = min(-(-to_micros(window.end) // DAY), day.day + 1 + WITHIN_DAYS)
        start = from_micros(first * DAY)
        return Window(start, max(start, min(from_micros(last * DAY), self._until)))

    async def _usage_pages(self, window: Window) -> AsyncIterator[Page]:
        """All that the account counts in a window, in as few questions as it takes; raises FetchFailed."""
        source, start = self._account.source, window.start
        while start < window.end:
            end = min(start + source.longest, window.end)
            async for page in source.usage(Window(start, end)):
                yield page
            start = end

    async def _fetch(self, pages: AsyncIterator[Page], window: Window | None) -> AccountResponse:
        """What it answers, kept by its content; raises FetchFailed."""
        taken = UsagePageCollector(ProviderCounts(self._account.source.bucket, window))
        async for page in self._guard_source(pages):
            await self._hold()
            taken.add(page, await self._find_claims(page))
        at = taken.at or self._now
        digest = await self._store_pages(taken.raw, window or Window(at, at), at)
        return taken.build_response(self._account.name, self._now, digest, window)

    async def _find_claims(self, page: Page) -> frozenset[str]:
        """Calls of a page that runs have named: where attribution keys are told as well, nobody else is counted them."""
        ids = [row.request_id for row in page.rows if row.request_id]
        if not ids or AttributionKind.REQUESTS not in self._account.source.kinds:
            return frozenset()
        return await self._read(partial(find_claimed_calls, account=self._account.name, call_ids=ids))

    async def _call_pages(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        async for page in self._account.source.calls(ids):
            yield page

    async def _guard_source(self, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
        """What a source tells: where it breaks, it has not answered, and nobody else's account waits for its author."""
        try:
            async for page in pages:
                yield page
        except MeruitError:
            raise
        except Exception as crash:
            said = f"the source of account {self._account.name} broke: {describe(crash)}"
            raise FetchFailed(FetchError.MALFORMED, said) from crash

    async def _store_pages(self, raw: Sequence[bytes], window: Window, at: datetime) -> str:
        if not raw:
            return ""
        self.summary = _add_to(self.summary, pages=len(raw))
        keep = await asyncio.to_thread(StorePages.pack, self._asked.tenant, self._account.name, window, raw, at)
        return await self._store.recorder.record(keep)

    def _note_failure(self, failed: FetchFailed) -> None:
        self._watch(self._account.name, str(failed))
        self.summary = _add_to(self.summary, error=failed.kind, trouble=str(failed))

    async def _record_failure(self, failed: FetchFailed, block: Sequence[AttributionRun]) -> None:
        """That nothing was found out is kept too, for each run that was to be looked at."""
        fetch = Fetch(self._account.name, failure_time(failed, self._now))
        runs = await self._runs(block)
        await self._write(
            [RunObservation(one, build_failed_observation(one, fetch, failed.kind, str(failed))) for one in runs], runs
        )

    async def _record_observations(self, answered: AccountResponse, due: Sequence[DueUsageRun]) -> None:
        """Look at each in detail, and keep what is seen."""
        runs = await self._runs([one.run for one in due])
        there = [one for one in due if one.run.id in runs]
        looked = [RunObservation(one.run.id, self._observe(answered, one, runs[one.run.id].run)) for one in there]
        await self._price(answered, await self._write(looked, runs))

    def _observe(self, answered: AccountResponse, one: DueUsageRun, run: MeteredRun) -> Observation:
        kinds = self._account.source.kinds
        if run.attribution_key.kind not in kinds:
            said = f"account {self._account.name} tells runs apart by {', '.join(sorted(kinds))}, and not by "
            said += f"{run.attribution_key.kind}; record runs with an attribution key that it knows"
            return build_failed_observation(run.id, answered.fetch, FetchError.MALFORMED, said)
        if not self._is_window_complete(one, answered):
            said = f"it shares its attribution key with runs that are still open; more than {WITHIN_DAYS} days of that are not "
            said += "asked for: end them, or give each run an attribution key of its own"
            return build_failed_observation(run.id, answered.fetch, FetchError.NOT_READY, said)
        seen = answered.observe(run, one.cohort_span)
        return msgspec.structs.replace(seen, assurance=Assurance.LOCAL) if self._account.self_reported else seen

    async def _runs(self, light: Sequence[AttributionRun]) -> dict[str, UsageRecord]:
        ids = [one.id for one in light]
        return await self._read(partial(find_many, tenant=self._asked.tenant, run_ids=ids))

    async def _write(self, looked: Sequence[RunObservation], before: Mapping[str, UsageRecord]) -> list[UsageRecord]:
        """The runs as they stand after these looks."""
        if not looked:
            return []
        look: "Write[list[UsageRecord]]" = RecordObservations(self._asked.tenant, looked, *self._rules, since=self._now)
        if any(one.run.contract_id for one in before.values()):
            look = UsageWrite(self._asked.tenant, BY, look)
        records = await self._store.recorder.record(look)
        kept = sum(one.attempts - before[one.run.id].attempts for one in records)
        failed = sum(one.observation.error is not None for one in looked)
        self.summary = _add_to(
            self.summary, observed=len(looked), recorded=kept, early=max(0, len(looked) - kept), failed=failed
        )
        for one in records:
            self.statuses[one.verdict.status] += 1
            if before[one.run.id].verdict.status is not one.verdict.status:
                self._watch(one.run.id, one.verdict.message)
        return records

    async def _price(self, answered: AccountResponse, records: Sequence[UsageRecord]) -> None:
        """Prices are frozen with a run when it is first looked at; its costs are told once its tokens are verified."""
        costs = await self._daily_costs(answered) if any(map(_can_be_billed, records)) else ()
        priced = [(self._build_prices(answered, record, costs), bool(record.run.contract_id)) for record in records]
        await asyncio.gather(*(self._freeze(one, is_contracts=is_its) for one, is_its in priced if one is not None))

    def _build_prices(
        self, answered: AccountResponse, record: UsageRecord, costs: Sequence[CostRow]
    ) -> RecordPrices | None:
        quotes = () if record.quotes else quotes_for(record.run, self._account.provider)
        known = msgspec.structs.replace(record, quotes=quotes) if quotes else record
        billed = answered.amount_billed(record, costs) if record.ledger.billed is None else None
        ledger = ledger_of(known, billed=billed)
        if not quotes and ledger == record.ledger:
            return None
        return RecordPrices(self._asked.tenant, record.run.id, quotes, ledger)

    async def _freeze(self, price: RecordPrices, *, is_contracts: bool) -> None:
        try:
            # Contracts that pass costs through move with them; others ask for nothing here.
            await self._store.recorder.record(UsageWrite(self._asked.tenant, BY, price) if is_contracts else price)
        except PriceAlreadyFrozen as stands:
            # Somebody has priced it meanwhile, and what stands first stays.
            self._watch(price.run_id, str(stands))

    async def _daily_costs(self, answered: AccountResponse) -> tuple[CostRow, ...]:
        """What is billed for the days of an asking that are long over; without it tokens are told all the same."""
        window = answered.window
        over = from_micros(to_micros(self._now - COSTS_AFTER) // DAY * DAY)
        if window is None or over <= window.start:
            return ()
        days = Window(window.start, min(window.end, over))
        if days not in self._costs:
            self._costs = {days: await self._ask_costs(days)}
        return self._costs[days]

    async def _ask_costs(self, days: Window) -> tuple[CostRow, ...]:
        try:
            pages = [page async for page in self._guard_source(self._account.source.costs(days))]
        except FetchFailed as failed:
            self._watch(self._account.name, f"its costs could not be read: {failed}")
            return ()
        await self._store_pages([page.raw for page in pages], days, self._now)
        return tuple(cost for page in pages for cost in page.costs)

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        return await read_in_thread(self._store, ask)


async def read_in_thread(store: Store, ask: Callable[[Connection], T]) -> T:
    """What the database says, asked beside the event loop."""

    def read() -> T:
        with store.database.reading() as connection:
            return ask(connection)

    return await asyncio.to_thread(read)


def _cursor_of(row: AttributionRun) -> UsageRunCursor:
    return UsageRunCursor(row.ended_at or 0, row.seq)


def _can_be_billed(record: UsageRecord) -> bool:
    is_verified = record.verdict.status is UsageStatus.VERIFIED
    return is_verified and record.ledger.billed is None and record.run.attribution_key.kind in DAILY_COST_KINDS


def _blocks(several: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(several)
    while block := [*islice(left, size)]:
        yield block


# Any: a number is added to, anything else takes the place of what was there.
def _add_to(passed: AccountSummary, **more: Any) -> AccountSummary:
    together = {
        name: getattr(passed, name) + value if isinstance(value, int) else value for name, value in more.items()
    }
    return msgspec.structs.replace(passed, **together)
