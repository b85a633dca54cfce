"""Kills processes in the write path of a store, and checks after each death that nothing was lost, doubled or halved.

A process of its own, with one thread: each life is a fork of it that opens the store, checks what the death before it
left, repeats what went unanswered, asks for something new, and ends itself with SIGKILL at a chosen point.
"""

import asyncio
import gc
import json
import os
import random
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, create_engine, event, select
from sqlalchemy.pool import NullPool
from tests.faults.deaths_invariants import Seen, broken, cursor_of, look, names_of
from tests.faults.deaths_requests import ROUND, WORKLOADS, Asked, Groups, Kind, Request, told

from meruit.store import tables
from meruit.store.database import Database
from meruit.store.location import FILE, Location
from meruit.store.store import Store

ROTATE = 250
"""Deaths in one data directory."""
WHOLE_EVERY = 100
"""Deaths between two checks of everything."""
MAX_BROKEN = 20
"""After so many broken rules nothing more can be learnt."""
MAX_LIVES = 3
"""Lives for each death that is wanted; a few live on, because the points are not always as many as the last time."""
_STATEMENT = re.compile(r"\s*(?:(BEGIN)|(SELECT|DELETE)\b.*?\bFROM (\w+)|INSERT INTO (\w+)|UPDATE (\w+))", re.DOTALL)

# Any: a message is JSON.
Say = Callable[..., None]


def label(statement: str) -> str:
    """The kind of a statement."""
    found = _STATEMENT.match(statement)
    if found is None:
        return statement[:30]
    begin, verb, table, inserted, updated = found.groups()
    if begin:
        return "BEGIN"
    return f"{verb} {table}" if verb else f"INSERT {inserted}" if inserted else f"UPDATE {updated}"


def watch(database: Database, before: Callable[[str], None], after: Callable[[str], None]) -> None:
    """See each statement and commit of the writer's connection, before it is executed and after."""
    writing = database._writing

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*arguments: Any, **options: Any) -> Any:
            statement = str(arguments[0]) if arguments else "COMMIT"
            before(statement)
            answer = act(*arguments, **options)
            after(statement)
            return answer

        return acting

    # Queries of SQLAlchemy's do not come past `_call`, nor does Postgres begin and commit by statements.
    names = ["_call", "execute", "ask"] if writing.style == "sqlite" else ["_call", "execute", "ask", "commit"]
    for name in names:
        setattr(writing, name, watched(getattr(writing, name)))


class Point(NamedTuple):
    """A place in the write path."""

    what: str
    """`before INSERT outcomes`."""
    time: int
    """The first, the second… of its kind that a process passes."""


class Killer:
    """Ends this process at one of the points that its writer passes: before and after each statement and commit."""

    def __init__(self, database: Database, say: Say) -> None:
        self._say = say
        self._at: Point | None = None
        self.passed: list[Point] | None = None
        self._times: Counter[str] = Counter()
        watch(database, lambda statement: self._pass(f"before {label(statement)}"), self._after)

    def arm(self, at: Point | None) -> None:
        """From here on points count; at None nobody dies."""
        self.passed, self._at = [], at

    def _after(self, statement: str) -> None:
        self._pass(f"after {label(statement)}")

    def _pass(self, what: str) -> None:
        if self.passed is None:
            return
        self._times[what] += 1
        point = Point(what, self._times[what])
        if point == self._at:
            self._say(died=what)
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed.append(point)


class Observer:
    """Looks at stores by connections of its own; made before the first life, so that no life prepares its queries."""

    def __init__(self, location: Location) -> None:
        self.location = location
        if location.url is None:
            self._engine = create_engine("sqlite+pysqlite://", creator=self._sqlite, poolclass=NullPool)
            event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        else:
            one_state = "REPEATABLE READ"
            self._engine = create_engine(
                "postgresql+psycopg://", creator=self._postgres, poolclass=NullPool, isolation_level=one_state
            )

    def looking(self) -> Connection:
        return self._engine.connect()

    def _sqlite(self) -> sqlite3.Connection:
        return sqlite3.connect(self.location.folder / FILE, isolation_level=None, timeout=300)

    def _postgres(self) -> "psycopg.Connection[Any]":
        return psycopg.connect(self.location.url or "")


@dataclass(slots=True)
class World:
    """One data directory, as whoever uses it remembers it."""

    location: Location
    observer: Observer
    asked: Asked = field(default_factory=Asked)
    seen: Seen = field(default_factory=Seen)
    unchecked: list[Request] = field(default_factory=list)
    """Asked for since the last check."""
    unanswered: list[Request] = field(default_factory=list)


class Life(NamedTuple):
    """How a process went."""

    died: str | None
    """At which point; None when it lived to its end."""
    passed: Sequence[Point]
    broken: Sequence[str]


def live(world: World, groups: Groups, *, at: Point | None, whole: bool, say: Say) -> None:
    """What a process does until it dies."""
    store = Store.open(world.location)
    killer = Killer(store.database, say)
    with world.observer.looking() as connection:
        requests = world.asked.requests if whole else world.unchecked
        started = {request.number for group in groups for request in group}
        asked = [request for request in requests if request.number not in started]
        view = look(
            store, connection, Seen(delivered=world.seen.delivered) if whole else world.seen, world.asked, asked
        )
        say(broken=broken(view))
        there = {request.number for request in world.unanswered if view.is_there(request)}
        say(
            seen=[view.state.size, view.state.peaks.hex(), view.state.outcomes, view.state.events],
            told=[(name, row.seq) for row in view.events for name in names_of(row)],
        )
        cursor = cursor_of(connection)
        events = select(tables.events.c.seq).where(tables.events.c.seq > cursor).order_by(tables.events.c.seq)
        say(delivered=[*connection.execute(events).scalars()])
    for request in world.unanswered:
        answer = told(request, store.recorder.write(request.write(store)))
        if request.repeats and ("reply" in answer) != (request.number in there):
            say(
                broken=[
                    f"a retry of {request.kind} {request.number} had {answer}; it was there: {request.number in there}"
                ]
            )
        say(number=request.number, answer=answer)
    killer.arm(at)
    for group in groups:
        if len(group) == 1:
            answer = store.recorder.write(group[0].write(store), sign_now=group[0].kind is Kind.SIGN)
            say(number=group[0].number, answer=told(group[0], answer))
        else:
            asyncio.run(_together(store, group, say))
    say(passed=killer.passed)


async def _together(store: Store, group: Sequence[Request], say: Say) -> None:
    """One transaction for all of them; each is told of as soon as it is answered."""

    async def one(request: Request) -> None:
        answer = await store.recorder.record(request.write(store), sign_now=request.kind is Kind.SIGN)
        say(number=request.number, answer=told(request, answer))

    # The recorder takes nobody while this is held, then all of them.
    with store.recorder._work:
        callers = [asyncio.ensure_future(one(request)) for request in group]
        await asyncio.sleep(0)
    await asyncio.gather(*callers)


def fork(world: World, groups: Groups, *, at: Point | None, whole: bool = False) -> Life:
    """A life in a process of its own, and what was heard of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)

        def say(**message: Any) -> None:
            # In one go, so that a death leaves the whole message or none of it.
            os.write(writing, json.dumps(message).encode() + b"\n")

        try:
            live(world, groups, at=at, whole=whole, say=say)
        except BaseException as problem:  # noqa: BLE001 - whatever it is, the parent must hear of it
            say(broken=[f"a life ended in {type(problem).__name__}: {problem}"])
        # Nothing is closed: it is as if the machine had gone.
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading, "rb") as heard:
        messages = [json.loads(line) for line in heard]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return _heard(world, groups, messages)


def _heard(world: World, groups: Groups, messages: Sequence[dict[str, Any]]) -> Life:
    asked = world.asked
    retried = world.unanswered
    died: str | None = None
    passed: Sequence[Point] = ()
    found: list[str] = []
    answered: set[int] = set()
    for message in messages:
        found += message.get("broken", ())
        if "seen" in message:
            size, peaks, outcomes, events = message["seen"]
            world.seen.size, world.seen.peaks = size, bytes.fromhex(peaks)
            world.seen.outcomes, world.seen.events = outcomes, events
            world.seen.told.update(dict(message["told"]))
        if "delivered" in message:
            world.seen.delivered.update(message["delivered"])
            asked.events = max([asked.events, *message["delivered"]])
        if "answer" in message:
            asked.heard(message["number"], message["answer"])
            answered.add(message["number"])
        died = message.get("died", died)
        passed = [Point(*point) for point in message["passed"]] if "passed" in message else passed
    fresh = {request.number: request for group in groups for request in group}
    world.unchecked = [*retried, *fresh.values()]
    # A key is nobody's until its secret was shown, and has no second try.
    once = (Kind.KEY, Kind.SIGN, Kind.ADVANCE)
    world.unanswered = [one for one in world.unchecked if one.number not in answered and one.kind not in once]
    return Life(died, passed, found)


@dataclass(slots=True)
class Tally:
    """What a whole run comes to."""

    deaths: int = 0
    lives: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    checked_whole: int = 0


class Chooser:
    """Chooses where to die, so that every kind of point is met, and every point of it in turn."""

    def __init__(self, seed: int) -> None:
        self._points: dict[str, Sequence[Point]] = {}
        self._tried: Counter[tuple[str, Point]] = Counter()
        self._kinds: Counter[str] = Counter()
        self._chance = random.Random(seed)

    def learn(self, workload: str, points: Sequence[Point]) -> None:
        """The points that a workload passed when nobody died."""
        self._points[workload] = points

    def choose(self, workload: str) -> Point:
        """The point at which the next process of this workload dies."""

        def tried(point: Point) -> tuple[int, int, float]:
            return self._kinds[point.what], self._tried[workload, point], self._chance.random()

        chosen = min(self._points[workload], key=tried)
        self._kinds[chosen.what] += 1
        self._tried[workload, chosen] += 1
        return chosen


def run(folder: Path, url: str | None, wanted: int, seed: int) -> Tally:
    """So many deaths."""
    tally, chooser = Tally(), Chooser(seed)
    # On Postgres there is one database for all of it, and one folder with its signing key.
    observer = _warm_up(Location(folder / ("warm" if url is None else "0"), url))
    world = _new_world(Location(folder / "0", url), observer, tally, chooser)
    here = 0
    for turn in count():
        if tally.deaths >= wanted or tally.lives >= wanted * MAX_LIVES or len(tally.broken) >= MAX_BROKEN:
            break
        if here >= ROTATE and url is None:
            _finish(world, tally)
            world, here = _new_world(Location(folder / str(turn), url), observer, tally, chooser), 0
        workload = ROUND[turn % len(ROUND)]
        groups = WORKLOADS[workload](world.asked)
        whole = here % WHOLE_EVERY == WHOLE_EVERY - 1
        life = fork(world, groups, at=chooser.choose(workload), whole=whole)
        here += 1
        tally.lives += 1
        tally.checked_whole += whole
        tally.broken += life.broken
        if life.died is not None:
            tally.deaths += 1
            tally.hits[life.died] += 1
        elif life.passed:
            chooser.learn(workload, life.passed)
    _finish(world, tally)
    return tally


def _new_world(location: Location, observer: Observer, tally: Tally, chooser: Chooser) -> World:
    """A new store, in which each workload is done once without a death, to learn its points."""
    observer.location = location
    world = World(location, observer)
    # A consumer that has begun: its cursor is there, to be moved.
    tally.broken += fork(world, [[world.asked.advance()]], at=None).broken
    for name, workload in WORKLOADS.items():
        life = fork(world, workload(world.asked), at=None)
        assert life.passed, life.broken
        tally.broken += life.broken
        chooser.learn(name, life.passed)
        tally.known.update(point.what for point in life.passed)
    return world


def _finish(world: World, tally: Tally) -> None:
    """Repeat what went unanswered, then look at everything; the consumer has been given every event by then."""
    for whole in (False, True):
        life = fork(world, [], at=None, whole=whole)
        tally.broken += life.broken
        tally.checked_whole += whole
    if world.seen.delivered != set(range(1, world.seen.events + 1)):
        tally.broken.append("the consumer was not given every event")
    if world.unanswered:
        tally.broken.append(f"still unanswered: {world.unanswered}")


def _warm_up(location: Location) -> Observer:
    """Load everything once, so that no life has to; nothing stays open, and no second thread."""
    store, observer, asked = Store.open(location), Observer(location), Asked()
    requests = [request for workload in WORKLOADS.values() for group in workload(asked) for request in group]
    with observer.looking() as connection:
        state = connection.execute(select(tables.log_state)).one()
        for seen in (Seen(), Seen(state.size, state.peaks)):
            broken(look(store, connection, seen, asked, requests))
    store.close()
    # What the collector never touches need not be copied for each life.
    gc.disable()
    gc.freeze()
    return observer


def main() -> None:
    folder, url, wanted, seed = sys.argv[1:]
    began = time.monotonic()
    tally = run(Path(folder), url or None, int(wanted), int(seed))
    print(
        json.dumps(
            {
                "deaths": tally.deaths,
                "lives": tally.lives,
                "hits": dict(sorted(tally.hits.items())),
                "known": sorted(tally.known),
                "checked_whole": tally.checked_whole,
                "broken": tally.broken[:MAX_BROKEN],
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
