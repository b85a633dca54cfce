"""Reconcile one account: one request for each day on which due runs ended, and an observation of each run."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection

from meruit.documents.sanitize import describe
from meruit.errors import FetchError, FetchFailed, MeruitError, PriceAlreadyFrozen
from meruit.model.metering import AttributionKind, CostRow, MeteredRun, Page, UsageRecord, UsageSource, Window
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import BY_FILE_ACCOUNT, Assurance, Observation, UsagePolicy, UsageStatus
from meruit.store.store import Store
from meruit.usage.attribution.cohorts import GUARD, AccountCohorts, window_of
from meruit.usage.attribution.columns import OPEN
from meruit.usage.attribution.project import DueUsageRun, Fetch, ProviderCounts, build_failed_observation
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.followers import UsageWrite
from meruit.usage.pricing import ledger_of, quotes_missing
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
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_prices import RecordPrices

if TYPE_CHECKING:
    from meruit.store.recorder import Write

BY = "reconciler"
"""The actor that is recorded when contracts follow."""
BLOCK = 500
"""How many observations are written together."""
CALLS_BLOCK = 50
"""The same where each call is a request: a process that dies loses the requests that were not written."""
WITHIN_DAYS = 7
"""How many days before and after the day of the runs are requested, to cover the runs of their cohorts."""
COSTS_AFTER = timedelta(hours=6)
"""How long after the end of a day its costs may still be incomplete."""
PER_CALL_ERRORS = frozenset({FetchError.MALFORMED, FetchError.PARTIAL_PAGE})
"""Failures that concern one call, while other calls can be read."""
CLAIMING_STATUSES = frozenset({UsageStatus.VERIFIED.value, UsageStatus.WARNING.value})
"""Statuses that make a claim about a count, so that a new count must be observed."""

T = TypeVar("T")
Watch = Callable[[str, str], None]
RenewLease = Callable[[], Awaitable[None]]
"""Renew the lease on the account; raises where another reconciler holds it."""


class Account(msgspec.Struct, frozen=True):
    """An account at a provider, ready for requests."""

    name: str
    provider: str
    source: UsageSource
    fingerprint: str = ""
    """Digest of its key."""
    self_reported: bool = False
    """Whether it has only what clients report of themselves, which is never verified."""
    is_file: bool = False
    """Whether it reads files, so that the provider is not asked."""
    shared_by: tuple[str, ...] = ()
    """Tenants whose runs the provider counts together; a tenant that is not among them is judged by itself."""

    def sharers(self, tenant: str) -> tuple[str, ...]:
        """The tenants whose runs count together with those of this one, which is among them."""
        return self.shared_by if tenant in self.shared_by else (tenant,)


class AccountSummary(Record, frozen=True):
    """The result of reconciling one account."""

    tenant: str
    account: str
    observed: int = 0
    """Runs that were observed."""
    recorded: int = 0
    """Observations that were recorded."""
    early: int = 0
    """Observations that were equal and too early to count."""
    failed: int = 0
    """Observations that failed."""
    pages: int = 0
    """Pages that were requested."""
    error: FetchError | None = None
    trouble: str = ""


class ReconcileRules(msgspec.Struct, frozen=True):
    """The rules of decisions and of the schedule."""

    policy: UsagePolicy = UsagePolicy()
    schedule: Schedule = Schedule()


class _SharedWindow(msgspec.Struct, frozen=True):
    """The cohorts of a day, and the window that a request must cover for them."""

    cohorts: AccountCohorts
    window: Window
    known: int
    """The `seq` of the newest run that was read; the cohort of a later run is not known."""


class _NextPage(Protocol):
    def __call__(self, connection: Connection, *, after: UsageRunCursor) -> list[AttributionRun]: ...


class AccountReconciliation:
    """Reconciles the due runs of one account, day by day."""

    def __init__(
        self,
        store: Store,
        account: Account,
        query: AccountQuery,
        rules: ReconcileRules,
        watch: Watch,
        renew_lease: RenewLease,
    ) -> None:
        self._store = store
        self._account = account
        self._query = query
        self._rules = rules
        self._watch = watch
        self._renew_lease = renew_lease
        self._now = from_micros(query.now)
        self._until = self._now.replace(second=0, microsecond=0)
        """The end of the last complete minute."""
        self._costs: dict[Window, tuple[CostRow, ...]] = {}
        self.statuses: Counter[UsageStatus] = Counter()
        self.summary = AccountSummary(query.tenant, account.name)

    async def run(self) -> None:
        """Observe the runs that are due, and those whose count differs from what was claimed."""
        for day in await self._read(partial(days_due, account_query=self._query)):
            await self._renew_lease()
            if self._account.source.kinds == {AttributionKind.REQUESTS}:
                await self._observe_calls(day)
            else:
                await self._observe_window(day)

    async def _observe_window(self, day: DueDay) -> None:
        shared = await self._read(partial(self._find_shared_window, day))
        try:
            response = await self._fetch(self._usage_pages(shared.window), shared.window)
        except FetchFailed as failed:
            self._note_failure(failed)
            async for block in self._due_blocks(day, BLOCK):
                await self._record_failure(failed, block)
            return
        async for block in self._candidates(day, shared):
            due = response.counts.due_runs(block, shared.cohorts, self._now)
            for some in _blocks((one for one in due if self._is_observed(one, day, response)), BLOCK):
                await self._record_observations(response, some)

    async def _observe_calls(self, day: DueDay) -> None:
        """Observe runs call by call; stop sending requests after a failure that concerns the account."""
        trouble: FetchFailed | None = None
        async for block in self._due_blocks(day, CALLS_BLOCK):
            if trouble is None:
                trouble = await self._observe_call_block(block)
            else:
                await self._record_failure(trouble, block)

    async def _observe_call_block(self, block: Sequence[AttributionRun]) -> FetchFailed | None:
        """Request the calls of some runs; return a failure that concerns the whole account, if there is one."""
        runs = await self._runs(block)
        ids = [call.id for run in runs.values() for call in run.run.calls if call.id]
        try:
            response = await self._fetch(self._call_pages(ids), None)
        except FetchFailed as failed:
            if failed.kind in PER_CALL_ERRORS and len(block) > 1:
                # One call of many has failed; halve the block until only its run waits.
                middle = len(block) // 2
                troubles = [await self._observe_call_block(half) for half in (block[:middle], block[middle:])]
                return troubles[0] or troubles[1]
            self._note_failure(failed)
            await self._record_failure(failed, block)
            return None if failed.kind in PER_CALL_ERRORS else failed
        await self._record_observations(response, [DueUsageRun(one, None) for one in block])
        return None

    def _candidates(self, day: DueDay, shared: _SharedWindow) -> AsyncIterator[list[AttributionRun]]:
        """The runs that may have to be observed; with a filter, only those that are due."""
        if not self._query.run_filter.is_unfiltered:
            return self._due_blocks(day, ATTRIBUTION_BLOCK)
        until = max(to_micros(shared.window.end), day.last + 1)
        page = partial(
            account_page, account_query=self._query, until=until, known=shared.known, limit=ATTRIBUTION_BLOCK
        )
        return self._read_blocks(page, UsageRunCursor(to_micros(shared.window.start)))

    def _due_blocks(self, day: DueDay, limit: int) -> AsyncIterator[list[AttributionRun]]:
        return self._read_blocks(
            partial(due_page, account_query=self._query, day=day.day, limit=limit), UsageRunCursor(0)
        )

    async def _read_blocks(self, page: _NextPage, cursor: UsageRunCursor) -> AsyncIterator[list[AttributionRun]]:
        """Read block by block, each in its own transaction, so that writers do not wait."""
        while rows := await self._read(partial(page, after=cursor)):
            await self._renew_lease()
            yield rows
            cursor = _cursor_of(rows[-1])

    def _is_due(self, run: AttributionRun) -> bool:
        return run.next_observation_at is not None and run.next_observation_at <= self._query.now

    def _is_observed(self, one: DueUsageRun, day: DueDay, response: AccountResponse) -> bool:
        """Whether to observe a run: one that is due, with its own day; another, where its count has changed.

        Each new run of a cohort changes the count of all; those without a claim wait for their own time.
        """
        if self._is_due(one.run):
            return one.run.ended_at is not None and one.run.ended_at // DAY == day.day
        return self._is_window_complete(one, response) and (
            one.cohort_span is None or one.run.status in CLAIMING_STATUSES
        )

    def _is_window_complete(self, one: DueUsageRun, response: AccountResponse) -> bool:
        """Whether the request covers the time up to now, where the cohort has an open run."""
        if one.cohort_span is None or one.cohort_span.end < OPEN or response.window is None:
            return True
        return response.window.end >= self._until

    def _find_shared_window(self, day: DueDay, connection: Connection) -> _SharedWindow:
        """Find the window of whole days that covers the cohorts of a day, within limits."""
        window = self._whole_days(day, self._span(day))
        cohorts = self._read_cohorts(connection, day, window)
        # Each step adds at least one day.
        for _ in range(2 * WITHIN_DAYS):
            wider = self._whole_days(day, self._widen(connection, day, cohorts, window))
            if wider == window:
                break
            window, cohorts = wider, self._read_cohorts(connection, day, wider)
        return _SharedWindow(cohorts=cohorts, window=window, known=newest_seq(connection, self._query.tenant))

    def _read_cohorts(self, connection: Connection, day: DueDay, window: Window) -> AccountCohorts:
        source, query = self._account.source, self._query
        cohorts = AccountCohorts(source.bucket)
        # A run that ended just before may still be counted in the first minutes.
        first, last = window.start - GUARD - source.bucket, max(window.end, self._span(day).end)
        sharers = self._account.sharers(query.tenant)
        for block in _blocks(iterate_account(connection, sharers, query.account, first, last), ATTRIBUTION_BLOCK):
            cohorts.add(block)
        return cohorts

    def _widen(self, connection: Connection, day: DueDay, cohorts: AccountCohorts, window: Window) -> Window:
        """Widen the window to cover the cohorts of the due runs."""
        start, end, cursor = window.start, window.end, UsageRunCursor(0)
        while rows := due_page(connection, self._query, day.day, after=cursor, limit=ATTRIBUTION_BLOCK):
            needed = cohorts.window_for(rows, self._now) or window
            start, end = min(start, needed.start), max(end, needed.end)
            cursor = _cursor_of(rows[-1])
        return Window(start, end)

    def _span(self, day: DueDay) -> Window:
        """The minutes in which the due runs of a day may be counted."""
        return Window(*map(from_micros, window_of(day.first, day.last, self._account.source.bucket)))

    def _whole_days(self, day: DueDay, window: Window) -> Window:
        """Round a window to whole days, within limits, up to now."""
        first = max(to_micros(window.start) // DAY, day.day - WITHIN_DAYS)
        last = min(-(-to_micros(window.end) // DAY), day.day + 1 + WITHIN_DAYS)
        start = from_micros(first * DAY)
        return Window(start, max(start, min(from_micros(last * DAY), self._until)))

    async def _usage_pages(self, window: Window) -> AsyncIterator[Page]:
        """Request all counts of a window, in as few requests as possible; raises FetchFailed."""
        source, start = self._account.source, window.start
        while start < window.end:
            end = min(start + source.longest, window.end)
            async for page in source.usage(Window(start, end)):
                yield page
            start = end

    async def _fetch(self, pages: AsyncIterator[Page], window: Window | None) -> AccountResponse:
        """Read and store all pages of a request; raises FetchFailed."""
        collector = UsagePageCollector(ProviderCounts(self._account.source.bucket, window))
        async for page in self._guard_source(pages):
            await self._renew_lease()
            collector.add(page, await self._find_claims(page))
        at = collector.at or self._now
        digest = await self._store_pages(collector.raw, window or Window(at, at), at)
        return collector.build_response(self._account.name, self._now, digest, window)

    async def _find_claims(self, page: Page) -> frozenset[str]:
        """Find the calls of a page that runs have claimed; they do not count for attribution keys."""
        ids = [row.request_id for row in page.rows if row.request_id]
        if not ids or AttributionKind.REQUESTS not in self._account.source.kinds:
            return frozenset()
        sharers = self._account.sharers(self._query.tenant)
        return await self._read(partial(find_claimed_calls, tenants=sharers, account=self._account.name, call_ids=ids))

    async def _call_pages(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        async for page in self._account.source.calls(ids):
            yield page

    async def _guard_source(self, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
        """Turn any exception of a source into FetchFailed, so that other accounts are still reconciled."""
        try:
            async for page in pages:
                yield page
        except MeruitError:
            raise
        except Exception as crash:
            message = f"the source of account {self._account.name} raised an exception: {describe(crash)}"
            raise FetchFailed(FetchError.MALFORMED, message) from crash

    async def _store_pages(self, raw: Sequence[bytes], window: Window, at: datetime) -> str:
        if not raw:
            return ""
        self.summary = _add_to(self.summary, pages=len(raw))
        keep = await asyncio.to_thread(StorePages.pack, self._query.tenant, self._account.name, window, raw, at)
        return await self._store.recorder.record(keep)

    def _note_failure(self, failed: FetchFailed) -> None:
        self._watch(self._account.name, str(failed))
        self.summary = _add_to(self.summary, error=failed.kind, trouble=str(failed))

    async def _record_failure(self, failed: FetchFailed, block: Sequence[AttributionRun]) -> None:
        """Record a failed observation of each run."""
        fetch = Fetch(self._account.name, failure_time(failed, self._now))
        runs = await self._runs(block)
        await self._write(
            [RunObservation(one, build_failed_observation(one, fetch, failed.kind, str(failed))) for one in runs], runs
        )

    async def _record_observations(self, response: AccountResponse, due: Sequence[DueUsageRun]) -> None:
        """Observe each run, and record the observations and prices."""
        runs = await self._runs([one.run for one in due])
        there = [one for one in due if one.run.id in runs]
        observed = [RunObservation(one.run.id, self._observe(response, one, runs[one.run.id].run)) for one in there]
        await self._price(response, await self._write(observed, runs))

    def _observe(self, response: AccountResponse, one: DueUsageRun, run: MeteredRun) -> Observation:
        kinds = self._account.source.kinds
        if run.attribution_key.kind not in kinds:
            message = (
                f"account {self._account.name} counts by {', '.join(sorted(kinds))}, not by "
                f"{run.attribution_key.kind}; record runs with one of these attribution keys"
            )
            return build_failed_observation(run.id, response.fetch, FetchError.MALFORMED, message)
        if not self._is_window_complete(one, response):
            message = (
                "the run shares its attribution key with runs that are still open, and a request covers at most "
                f"{WITHIN_DAYS} days after it; end those runs, or give each run its own attribution key"
            )
            return build_failed_observation(run.id, response.fetch, FetchError.NOT_READY, message)
        seen = response.observe(run, one.cohort_span)
        if self._account.is_file:
            seen = msgspec.structs.replace(seen, reported_by=BY_FILE_ACCOUNT)
        return msgspec.structs.replace(seen, assurance=Assurance.LOCAL) if self._account.self_reported else seen

    async def _runs(self, runs: Sequence[AttributionRun]) -> dict[str, UsageRecord]:
        ids = [one.id for one in runs]
        return await self._read(partial(find_many, tenant=self._query.tenant, run_ids=ids))

    async def _write(self, observed: Sequence[RunObservation], before: Mapping[str, UsageRecord]) -> list[UsageRecord]:
        """Record observations; return the runs after them."""
        if not observed:
            return []
        write: "Write[list[UsageRecord]]" = RecordObservations(
            self._query.tenant,
            observed,
            policy=self._rules.policy,
            schedule=self._rules.schedule,
            since=self._now,
        )
        if any(one.run.contract_id for one in before.values()):
            write = UsageWrite(tenant=self._query.tenant, by=BY, write=write)
        records = await self._store.recorder.record(write)
        # Early observations are recorded too, and do not count.
        recorded = sum(_counting(one) - _counting(before[one.run.id]) for one in records)
        failed = sum(one.observation.error is not None for one in observed)
        self.summary = _add_to(
            self.summary,
            observed=len(observed),
            recorded=recorded,
            early=max(0, len(observed) - recorded),
            failed=failed,
        )
        for one in records:
            self.statuses[one.verdict.status] += 1
            if before[one.run.id].verdict.status is not one.verdict.status:
                self._watch(one.run.id, one.verdict.message)
        return records

    async def _price(self, response: AccountResponse, records: Sequence[UsageRecord]) -> None:
        """Freeze prices with the first observation of a run, and add its costs once its tokens are verified."""
        costs = await self._daily_costs(response) if any(map(_can_be_billed, records)) else ()
        priced = [(self._build_prices(response, record, costs), bool(record.run.contract_id)) for record in records]
        await asyncio.gather(*(self._freeze(one, is_contracts=is_its) for one, is_its in priced if one is not None))

    def _build_prices(
        self, response: AccountResponse, record: UsageRecord, costs: Sequence[CostRow]
    ) -> RecordPrices | None:
        quotes = quotes_missing(record, self._account.provider)
        known = msgspec.structs.replace(record, quotes=(*record.quotes, *quotes)) if quotes else record
        billed = response.amount_billed(record, costs) if record.ledger.billed is None else None
        ledger = ledger_of(known, billed=billed)
        if not quotes and ledger == record.ledger:
            return None
        return RecordPrices(tenant=self._query.tenant, run_id=record.run.id, quotes=quotes, ledger=ledger)

    async def _freeze(self, price: RecordPrices, *, is_contracts: bool) -> None:
        try:
            # Contracts that pass costs through follow the price; other runs need no follower.
            await self._store.recorder.record(
                UsageWrite(tenant=self._query.tenant, by=BY, write=price) if is_contracts else price
            )
        except PriceAlreadyFrozen as frozen:
            # Another reconciler has frozen a price meanwhile; the first one stays.
            self._watch(price.run_id, str(frozen))

    async def _daily_costs(self, response: AccountResponse) -> tuple[CostRow, ...]:
        """The costs of the days of a request that are complete; empty where they cannot be read."""
        window = response.window
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
            self._watch(self._account.name, f"the costs could not be read: {failed}")
            return ()
        await self._store_pages([page.raw for page in pages], days, self._now)
        return tuple(cost for page in pages for cost in page.costs)

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        return await read_in_thread(self._store, ask)


async def read_in_thread(store: Store, ask: Callable[[Connection], T]) -> T:
    """Read from the database in a thread, so that the event loop is not blocked."""

    def read() -> T:
        with store.database.reading() as connection:
            return ask(connection)

    return await asyncio.to_thread(read)


def _cursor_of(row: AttributionRun) -> UsageRunCursor:
    return UsageRunCursor(row.ended_at or 0, row.seq)


def _counting(record: UsageRecord) -> int:
    return record.attempts - record.verdict.early


def _can_be_billed(record: UsageRecord) -> bool:
    is_verified = record.verdict.status is UsageStatus.VERIFIED
    return is_verified and record.ledger.billed is None and record.run.attribution_key.kind in DAILY_COST_KINDS


def _blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while block := [*islice(left, size)]:
        yield block


# Any: numbers are added, other values are replaced.
def _add_to(summary: AccountSummary, **more: Any) -> AccountSummary:
    changes = {
        name: getattr(summary, name) + value if isinstance(value, int) else value for name, value in more.items()
    }
    return msgspec.structs.replace(summary, **changes)
