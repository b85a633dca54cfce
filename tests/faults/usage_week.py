"""A week of runs at one provider, who is late, silent, wrong and out of step; two who reconcile, and die of it."""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, cast

import httpx
import msgspec
from sqlalchemy import select
from tests.faults.usage_world import ACCOUNT, DAY, HOUR, MINUTE, MODEL, NOON, TENANT, USED, World, at_once, key
from tests.usage.oracle import Opinion, opinion

from meruit.errors import FetchError
from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    Page,
    UsageAccount,
    UsageRecord,
    Window,
)
from meruit.model.usage import Observation, Tokens, UsagePolicy, UsageStatus
from meruit.playground.billing.faults import Dip, Faults, Outage, OutageKind
from meruit.store import tables
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.usage.decision import is_equal
from meruit.usage.providers.support.source_factory import open_source
from meruit.usage.reconcile.reconciler import LEASE, Account, Reconciler, ReconcileSummary
from meruit.usage.store.record_observations import RecordObservations
from meruit.usage.store.record_runs import RecordRuns
from meruit.usage.store.rows import decode_observation, record_of

MONDAY = NOON.replace(hour=0) - timedelta(days=NOON.weekday())
RUNS_A_LANE = 40
"""In the whole week; some of them overlap."""
SKEWS = (timedelta(0), timedelta(seconds=90), timedelta(minutes=-7), timedelta(minutes=40), timedelta(minutes=-25))
"""How far the provider's clock is ahead, day by day."""
ODD = ("shown late", "lost", "strangers", "empty", "silent", "told late", "idle", "long")
"""What may be odd about a run: when the provider shows it, whether it does, who else used its key…"""
OUTAGES = ((30, 33, OutageKind.UNAVAILABLE), (80, 81, OutageKind.HANG_UP), (120, 126, OutageKind.ERROR))
DIPS = ((55, 58, 0.3), (100, 102, 1.0))
REFUSING, ASTRAY = (86, 94), (134, 142)
"""From one hour of the week to another: silence, less than was there before, too many questions, a wrong clock."""
PAUSES = (10, 60, 120, 180)
"""Minutes between two ticks."""
POLICY = UsagePolicy()


class Death(BaseException):
    """The process is no more."""


class Planned(NamedTuple):
    """A run, when it is recorded, and what it really used."""

    at: datetime
    run: MeteredRun
    used: int


class Life:
    """How long somebody lives: so many points on the way of a round, and not one more."""

    def __init__(self, points: int | None, *, is_stopped: bool = False) -> None:
        self._left = -1 if points is None else points
        self._is_stopped = is_stopped
        """Whether it is asked to stop, and may clear up after itself."""
        self.died_at = ""

    def reach(self, point: str) -> None:
        if self.died_at and not self._is_stopped:
            raise Death
        self._left -= 1
        if self._left == 0:
            self.died_at = point
            raise asyncio.CancelledError if self._is_stopped else Death


class MortalRecorder:
    """Writes until its owner dies, before or after what is written; hears of all that was acknowledged."""

    def __init__(self, store: Store, life: Life, heard: "Heard") -> None:
        self._recorder, self._life, self._heard = store.recorder, life, heard

    # Any: each write has an answer of its own kind.
    async def record(self, write: Write[Any]) -> Any:
        what = type(write).__name__
        self._life.reach(f"before {what}")
        answer = await self._recorder.record(write)
        if isinstance(write, RecordObservations):
            self._heard.take(write)
        self._life.reach(f"after {what}")
        return answer


class MortalSource:
    """Asks until its owner dies, before or after an answer."""

    def __init__(self, account: Account, life: Life) -> None:
        self._source, self._life = account.source, life
        self.kinds, self.bucket, self.longest = self._source.kinds, self._source.bucket, self._source.longest

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        self._life.reach("before a question")
        async for page in self._source.usage(window):
            self._life.reach("after an answer")
            yield page

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        return self._source.calls(ids)

    def costs(self, window: Window) -> AsyncIterator[Page]:
        return self._source.costs(window)


class MortalStore:
    """A store whose writer dies."""

    def __init__(self, store: Store, life: Life, heard: "Heard") -> None:
        self.database, self.surroundings = store.database, store.surroundings
        self.recorder = MortalRecorder(store, life, heard)


class Heard:
    """Every look that was acknowledged."""

    def __init__(self) -> None:
        self.looks: dict[str, list[Observation]] = {}

    def take(self, write: RecordObservations) -> None:
        for one in write.observations:
            self.looks.setdefault(one.run_id, []).append(one.observation)


@dataclass
class Lived:
    """What came of it."""

    ticks: int = 0
    looked: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    errors: Counter[FetchError] = field(default_factory=Counter)


class Week:
    """All that happens, by chance."""

    def __init__(self, world: World, runs: int, seed: int) -> None:
        self.world = world
        self.chance = Random(seed)
        self.heard = Heard()
        self.lived = Lived()
        self._stores = (world.store, world.beside())
        self._lanes = max(2, runs // RUNS_A_LANE)
        self.told = 0
        """How many of the runs are recorded."""
        world.clock.now = MONDAY
        self.planned = sorted((self._plan(number) for number in range(runs)), key=lambda one: (one.at, one.run.id))

    def _plan(self, number: int) -> Planned:
        """A run; of one in eight something is odd."""
        chance = self.chance
        odd = chance.choice(ODD) if chance.random() < 1 / 8 else ""
        start = MONDAY + chance.random() * 7 * DAY
        lasts = timedelta(hours=chance.choice((1, 2, 26))) if odd == "long" else chance.choice((1, 3, 5, 12)) * MINUTE
        attribution_key = (
            AttributionKey(AttributionKind.PROJECT, f"proj_{number}") if number % 500 == 0 else self._key()
        )
        calls = 0 if odd == "idle" else chance.choice((1, 1, 2))
        moments = [start + lasts * (place + chance.random()) / calls for place in range(calls)]
        steps = [
            MeteredStep(f"s{place}", start + lasts * place / calls, start + lasts * (place + 1) / calls, True)
            for place in range(calls)
        ]
        used = 0
        for place, at in enumerate(moments):
            call = MeteredCall(at, MODEL, Tokens(chance.randrange(1, 5_000), chance.randrange(1, 900), 1, 0, 0))
            used += self._use(call, attribution_key, odd)
            told = msgspec.structs.replace(call, tokens=None) if odd == "silent" else call
            steps[place] = msgspec.structs.replace(steps[place], calls=(told,))
        if odd == "empty":
            steps.append(MeteredStep("never", start, start + lasts))
        run = MeteredRun(
            f"run-{number:05}", f"f{number % 3}", ACCOUNT, attribution_key, start, start + lasts, tuple(steps)
        )
        run = msgspec.structs.replace(run, declares_no_usage=odd == "idle")
        return Planned(start + lasts + (20 * HOUR if odd == "told late" else MINUTE) * chance.random(), run, used)

    def _key(self) -> AttributionKey:
        return key(f"key_{self.chance.randrange(self._lanes)}")

    def _use(self, call: MeteredCall, attribution_key: AttributionKey, odd: str) -> int:
        """What the provider really counts for a call, sooner or later."""
        assert call.tokens is not None
        # Any: one of several names.
        of: dict[str, Any] = {attribution_key.kind.value: attribution_key.value}
        late = 30 * HOUR * self.chance.random() if odd == "shown late" else None
        if odd != "lost":
            self.world.server.use(call.at, MODEL, call.tokens, visible_after=late, **of)
        if odd == "strangers":
            self.world.server.use(call.at, MODEL, USED, **of)
        return call.tokens.total

    async def live(self, until: datetime, mortality: float) -> None:
        """Let the time pass: at each tick what has ended is recorded, and both have their round, or die in it."""
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            while self.world.clock.now < until:
                self._weather()
                await self._record()
                # Somebody lives to see what else can go wrong.
                rare = _is_within(REFUSING, self.world.clock.now) or _is_within(ASTRAY, self.world.clock.now)
                died = await self._tick(client, 0 if rare else mortality)
                # Who has died keeps an account for that long.
                self.world.clock.now += LEASE + MINUTE if died else self.chance.choice(PAUSES) * MINUTE

    async def _record(self) -> None:
        """Whatever has ended, and is told by now."""
        told = bisect_right(self.planned, self.world.clock.now, key=lambda one: one.at)
        runs = [one.run for one in self.planned[self.told : told]]
        self.told = told
        await self.world.store.recorder.record(RecordRuns(TENANT, "me", runs))

    async def _tick(self, client: httpx.AsyncClient, mortality: float) -> bool:
        """Whether somebody died."""
        self.lived.ticks += 1
        both = self.chance.sample(self._stores, len(self._stores))
        rounds = [self._round(store, client, mortality) for store in both]
        if self.chance.random() < 1 / 2:
            return any(await asyncio.gather(*rounds))
        return any([await one for one in rounds])

    async def _round(self, store: Store, client: httpx.AsyncClient, mortality: float) -> bool:
        """A process that has just been started, until its round is done or it dies."""
        points = self.chance.randrange(1, self.chance.choice((8, 15, 300)))
        life = Life(points if self.chance.random() < mortality else None, is_stopped=self.chance.random() < 1 / 4)
        account = self._account(client)
        mortal = msgspec.structs.replace(account, source=MortalSource(account, life))
        # It is all that a reconciler asks of a store.
        reconciler = Reconciler(cast("Store", MortalStore(store, life, self.heard)), {ACCOUNT: mortal})
        (passed,) = await asyncio.gather(reconciler.run_once(), return_exceptions=True)
        if isinstance(passed, ReconcileSummary):
            self.lived.looked += sum(one.observed for one in passed.accounts)
            self.lived.errors.update(one.error for one in passed.accounts if one.error is not None)
        elif not life.died_at:
            raise passed
        else:
            self.lived.deaths[life.died_at] += 1
        return bool(life.died_at)

    def _account(self, client: httpx.AsyncClient) -> Account:
        world = self.world
        settings = UsageAccount(
            provider="openai", base_url=world.server.url, key_variable="THE_KEY", options={"kinds": "completions"}
        )
        source = open_source(settings, client=client, environment=world.environment, clock=world.clock, sleep=at_once)
        return Account(ACCOUNT, "openai", source, "the same")

    def _weather(self) -> None:
        """What goes wrong at the provider's at this hour."""
        now = self.world.clock.now
        skew = SKEWS[(now - MONDAY) // DAY % len(SKEWS)]
        self.world.server.faults = Faults(
            outages=[Outage(_hour(first), _hour(last), how) for first, last, how in OUTAGES],
            dips=[Dip(_hour(first), _hour(last), share) for first, last, share in DIPS],
            rate_limited=1.0 if _is_within(REFUSING, now) else 0.05,
            broken_off=0.02,
            unfinished=0.02,
            malformed=0.02,
            skew=2 * HOUR if _is_within(ASTRAY, now) else skew,
        )


def _hour(number: int) -> datetime:
    return MONDAY + number * HOUR


def _is_within(hours: tuple[int, int], now: datetime) -> bool:
    return _hour(hours[0]) <= now < _hour(hours[1])


class Stood(NamedTuple):
    """A run as it is kept, and all looks at it."""

    # Any: a row has its columns as attributes, which no type says.
    row: Any
    attempts: list[Observation]


def kept(store: Store, run_id: str | None = None) -> Iterator[Stood]:
    """Every run, or one."""
    runs, of = tables.usage_runs, tables.usage_observations
    about_runs, about_looks = select(runs), select(of.c.run_id, of.c.number, of.c.body)
    if run_id is not None:
        about_runs, about_looks = about_runs.where(runs.c.id == run_id), about_looks.where(of.c.run_id == run_id)
    looks: dict[str, list[Observation]] = {}
    with store.database.reading() as connection:
        for one in connection.execute(about_looks.order_by(of.c.run_id, of.c.number)):
            several = looks.setdefault(one.run_id, [])
            assert one.number == len(several) + 1
            several.append(decode_observation(one.body).observation)
        for row in connection.execute(about_runs):
            yield Stood(row, looks.get(row.id, []))


def check(stood: Stood, heard: Sequence[Observation], policy: UsagePolicy = POLICY) -> UsageRecord:
    """The run; raises AssertionError where something was lost, doubled, or judged otherwise than by all its looks."""
    record, attempts = record_of(stood.row), stood.attempts
    verdict, run = record.verdict, record.run.for_judging
    said = opinion(run, attempts, policy)
    assert said == Opinion(verdict.status, verdict.code, verdict.withdrawn), record.run.id
    assert said == (stood.row.status, stood.row.code, stood.row.withdrawn)
    assert record.attempts == len(attempts) == len({one.id for one in attempts})
    known = {one.id for one in attempts}
    for look in heard:
        assert look.id in known or any(_is_early(one, look, policy) for one in attempts), (record.run.id, look)
    for one, following in pairwise(_counting(record.run, attempts)):
        if _is_early(one, following, policy):
            before = [other for other in attempts if (other.at, other.id) <= (one.at, one.id)]
            assert opinion(run, before, policy).status is UsageStatus.VERIFIED, record.run.id
    return record


def _is_early(one: Observation, following: Observation, policy: UsagePolicy) -> bool:
    """Whether a look proves nothing beside one that was kept."""
    if one.error is not None or not is_equal(one, following, policy):
        return False
    return timedelta(0) <= following.at - one.at < policy.interval


def _counting(run: MeteredRun, attempts: Sequence[Observation]) -> list[Observation]:
    """The looks that found tokens, in order; where there are none, anybody may look as often as it pleases."""
    since = [one for one in attempts if run.ended_at is not None and one.at >= run.ended_at and not one.early]
    found = [one for one in since if one.error is None and one.total is not None and one.total.total]
    return sorted(found, key=lambda one: (one.at, one.id))
