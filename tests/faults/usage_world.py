"""An account, the provider that counts for it, and runs that use it, under a clock that tests move."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Self

from sqlalchemy import func, select
from tests.usage.oracle import Opinion, opinion

from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    UsageAccount,
    UsageRecord,
)
from meruit.model.usage import Observation, Tokens
from meruit.playground.billing.server import ADMIN_KEY, ProviderServer
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.usage.providers.support.source_factory import credential_fingerprint, open_source
from meruit.usage.reconcile.reconciler import Account, AccountSummary, Reconciler, ReconcileSummary
from meruit.usage.store import read as usage_reading
from meruit.usage.store.due import UsageRunFilter
from meruit.usage.store.record_runs import RecordRun

TENANT = "acme"
ACCOUNT = "main"
MODEL = "gpt-4o-2024-08-06"
NOON = datetime(2026, 9, 8, 12, 0, tzinfo=UTC)
USED = Tokens(100, 10, 1, 0, 0)
"""By one call."""
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


async def at_once(_seconds: float) -> None:
    """Nobody waits by a clock that stands still."""


class World:
    """A store, a provider, and the time."""

    # Any: whatever a provider may be told.
    def __init__(self, location: Location, **provider: Any) -> None:
        self.clock = Clock()
        self.location = location
        self.server = ProviderServer(clock=self.clock, **provider)
        self.environment: dict[str, str] = {"THE_KEY": ADMIN_KEY}
        self.store = self.another_store()
        self._others: list[Store] = []

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)
        for one in (self.store, *self._others):
            one.close()

    def another_store(self) -> Store:
        """As another process opens it."""
        return Store.open(self.location, ClockAndEntropy(clock=self.clock))

    def restart(self) -> None:
        """Everything that was in memory is gone."""
        self.store.close()
        self.store = self.another_store()

    def beside(self) -> Store:
        """A second process at the same time."""
        self._others.append(self.another_store())
        return self._others[-1]

    def account(self, provider: str = "openai", name: str = ACCOUNT, **options: str) -> Account:
        """It, as its settings and the environment of this moment make it."""
        # Of what nobody here uses nothing is asked.
        usual = {"kinds": "completions"} if provider == "openai" else {}
        settings = UsageAccount(
            provider=provider, base_url=self.server.url, key_variable="THE_KEY", options={**usual, **options}
        )
        source = open_source(settings, client=None, environment=self.environment, clock=self.clock, sleep=at_once)
        return Account(name, provider, source, credential_fingerprint(settings, self.environment))

    # Any: whatever a reconciler takes.
    def reconciler(self, *accounts: Account, store: Store | None = None, **more: Any) -> Reconciler:
        known = accounts or (self.account(),)
        return Reconciler(store or self.store, {one.name: one for one in known}, **more)

    def round(
        self,
        *accounts: Account,
        choice: UsageRunFilter = UsageRunFilter(),  # noqa: B008 - frozen
        said: list[tuple[str, str]] | None = None,
    ) -> ReconcileSummary:
        """One round now, by a process that has just been started."""
        heard = [] if said is None else said
        return asyncio.run(self.reconciler(*accounts).run_once(choice, lambda about, text: heard.append((about, text))))

    def asked(self, *accounts: Account, choice: UsageRunFilter = UsageRunFilter()) -> AccountSummary:  # noqa: B008
        """One round that concerns one account."""
        (passed,) = self.round(*accounts, choice=choice).accounts
        return passed

    def wait(self, **time: float) -> None:
        self.clock.now += timedelta(**time)

    def until(self, moment: datetime) -> None:
        assert moment >= self.clock.now
        self.clock.now = moment

    def ran(
        self,
        run_id: str = "r",
        start: datetime | None = None,
        *,
        minutes: float = 5,
        calls: int = 2,
        attribution_key: AttributionKey = AttributionKey(AttributionKind.KEY, "key_1"),  # noqa: B008 - frozen
        used: Tokens = USED,
        visible_after: timedelta | None = None,
        framework: str = "f",
        account: str = ACCOUNT,
        counted: bool = True,
        cost: Decimal | None = None,
        **more: Any,
    ) -> MeteredRun:
        """A run of one step a call, which was really there: the provider counts it, and it is recorded at its end."""
        begun = start or self.clock.now
        lasts = timedelta(minutes=minutes)
        moments = [begun + lasts * number / calls for number in range(calls)]
        steps = tuple(
            MeteredStep(
                f"s{number}", at, at + lasts / calls, True, None, (_call(at, used, run_id, number, attribution_key),)
            )
            for number, at in enumerate(moments)
        )
        for step in steps if counted else ():
            # Any: one of several names.
            attribution_keys: dict[str, Any] = (
                {attribution_key.kind.value: attribution_key.value} if attribution_key.kind in _NAMED else {}
            )
            call = step.calls[0]
            self.server.use(
                call.at, MODEL, used, call_id=call.id, visible_after=visible_after, cost=cost, **attribution_keys
            )
        run = MeteredRun(run_id, framework, account, attribution_key, begun, begun + lasts, steps, **more)
        self.record(run)
        return run

    def record(self, run: MeteredRun) -> UsageRecord:
        """Write a run down, as whoever made it does."""
        found = self.store.recorder.write(RecordRun(TENANT, "me", run))
        assert isinstance(found, UsageRecord)
        return found

    def found(self, run_id: str = "r") -> UsageRecord:
        with self.store.database.reading() as connection:
            return usage_reading.find(connection, TENANT, run_id)

    def attempts(self, run_id: str = "r") -> list[Observation]:
        with self.store.database.reading() as connection:
            return usage_reading.find_observations(connection, TENANT, run_id)

    def stands(self, run_id: str = "r") -> str:
        """Status and code, which an independent opinion shares."""
        record, attempts = self.found(run_id), self.attempts(run_id)
        verdict = record.verdict
        said = opinion(record.run.for_judging, attempts, acknowledged=record.acknowledged)
        assert said == Opinion(verdict.status, verdict.code, verdict.withdrawn)
        assert record.attempts == len({one.id for one in attempts}) == len(attempts)
        return f"{verdict.status} {verdict.code}"

    def kept_pages(self) -> int:
        with self.store.database.reading() as connection:
            return connection.execute(select(func.count()).select_from(tables.usage_fetches)).scalar_one()


def key(name: str) -> AttributionKey:
    return AttributionKey(AttributionKind.KEY, name)


def _call(at: datetime, used: Tokens, run_id: str, number: int, attribution_key: AttributionKey) -> MeteredCall:
    call_id = f"{run_id}-{number}" if attribution_key.kind is AttributionKind.REQUESTS else ""
    return MeteredCall(at, MODEL, used, id=call_id)


_NAMED = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
