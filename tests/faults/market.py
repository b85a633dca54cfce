"""Kills processes on the way from work to money, and checks after each death that nothing is lost or paid twice.

Three kinds of process: one that only forks; those that it forks, each of which makes one step of a story and ends
itself with SIGKILL at a chosen point; and one that has the store open all the while, as another instance of the service
would. It checks what each death left, asks again for what went unanswered, and now and then closes everything and opens
the store anew. A story that was interrupted by deaths must end as the same story without any.
"""

import gc
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

from sqlalchemy import Connection, select
from tests.contracts.trading import BEGINNING, sent
from tests.faults import deaths_invariants as log_rules
from tests.faults.deaths import Killer, Point
from tests.faults.deaths_invariants import Seen, look, names_of
from tests.faults.deaths_requests import Asked, Kind
from tests.faults.deaths_requests import Request as Rescored
from tests.faults.market_stories import Ask, Caller, Story, stories
from tests.outcomes.making import together

from meruit.contracts.invariants import find_violations as broken_books
from meruit.contracts.store import work as works
from meruit.contracts.store.ledger import books
from meruit.contracts.store.read import ContractSnapshot
from meruit.store import tables
from meruit.store.idempotency import IdempotentReplay
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

ROTATE = 250
"""Deaths in one data directory; a server's database is kept."""
LOG_EVERY = 6
"""Deaths between two looks at what the audit log has gained; books are looked at after each."""
WHOLE_EVERY = 250
"""Deaths between two checks of everything."""
REOPEN_EVERY = 12
"""Deaths between two after which nobody has the store open, so that it is opened as after a power cut."""
IN_A_TENANT = 3
"""Stories whose money is in the same books."""
MAX_BROKEN = 20
MAX_LIVES = 2
"""Lives for each death that is wanted; a few live on, because the points are not always the same."""

LOG_RULES = (
    log_rules.the_log_only_grew,
    log_rules.events_have_no_gap,
    log_rules.nothing_is_doubled,
    log_rules.no_verdict_is_half_there,
    log_rules.no_outcome_is_half_there,
    log_rules.entries_of_a_contract_have_no_gap,
    log_rules.criteria_are_committed_before_they_judge,
    log_rules.checkpoints_are_of_this_log,
)
Say = Callable[..., None]
Touched = Iterable[tuple[str, tuple[str, ...]]]
"""Contracts by their tenant."""


# Making a step of a story.


class Turn(NamedTuple):
    """A step of a story, in the books of one tenant, at a moment."""

    tenant: str
    story: Story
    place: int
    now: datetime
    number: int

    @property
    def name(self) -> str:
        return f"{self.story.name} {self.place}"

    @property
    def asks(self) -> Sequence[Ask]:
        return self.story.steps[self.place].asks

    @property
    def is_last(self) -> bool:
        return self.place + 1 == len(self.story.steps)


def ask(store: Store, turn: Turn, attempt: int) -> tuple[list[str], list[str]]:
    """Make the moves of the step: a digest of what each caller is answered, and what was refused."""
    callers = [Caller(store, turn.tenant, one.name, turn.number * 10 + attempt) for one in turn.asks]
    writes = [one.write(caller) for one, caller in zip(turn.asks, callers, strict=True)]
    answers = together(store, writes) if len(writes) > 1 else [store.recorder.write(writes[0])]
    refused = [f"{turn.name} was refused: {answer!r}" for answer in answers if isinstance(answer, BaseException)]
    return [_digest(one, answer) for one, answer in zip(turn.asks, answers, strict=True)], refused


# Any: each move has an answer of its own kind.
def _digest(one: Ask, answer: Any) -> str:
    """What was sent, or would have been; what has no key is not answered alike twice."""
    match answer:
        case IdempotentReplay():
            told = answer.reply
        case ContractSnapshot():
            told = sent(answer)
        case works.WorkRow():
            told = works.to_work_view(answer).to_json()
        case _:
            told = one.name.encode()
    return hashlib.sha256(told).hexdigest()


# What must hold after a death.


class Ending(NamedTuple):
    """How a story stands; times and ids left out."""

    contracts: list[list[Any]]
    moves: list[list[Any]]
    events: list[str]
    balance: int
    """Of its agent."""


def ending(connection: Connection, tenant: str, story: Story) -> Ending:
    """Read it."""
    of, moves, events, balances = tables.contracts, tables.contract_transitions, tables.events, tables.balances
    here = select(of).where(of.c.tenant == tenant, of.c.id.in_(story.contracts)).order_by(of.c.id)
    told = (
        select(events.c.type)
        .where(events.c.tenant == tenant, events.c.subject.in_(story.contracts))
        .order_by(events.c.seq)
    )
    done = (
        select(moves.c.contract_id, moves.c.operation, moves.c.number)
        .where(moves.c.tenant == tenant, moves.c.contract_id.in_(story.contracts))
        .order_by(moves.c.contract_id, moves.c.operation, moves.c.number)
    )
    owned = balances.c.account == f"agent:agent_{story.name}"
    balance = connection.execute(select(balances.c.micros).where(balances.c.tenant == tenant, owned)).scalar()
    return Ending(
        [
            [row.state, row.escrow, row.settlement, row.settlements, row.version, row.total_micros, row.disputes]
            for row in connection.execute(here)
        ],
        [[*row] for row in connection.execute(done)],
        [*connection.execute(told).scalars()],
        int(balance or 0),
    )


class Heard(NamedTuple):
    """What is known of a process that ended."""

    died: str | None
    """At which point; None when it lived to its end."""
    answers: list[str] | None
    """None when nobody was answered."""
    broken: list[str]
    passed: Sequence[Point]


@dataclass(slots=True)
class Checker:
    """The instance that lives on."""

    store: Store
    endings: dict[str, Ending]
    """How each story ends when nobody dies."""
    seen: Seen = field(default_factory=Seen)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    """By tenant and key, the digest of what was acknowledged."""
    tenants: dict[str, None] = field(default_factory=dict)
    touched: dict[tuple[str, tuple[str, ...]], None] = field(default_factory=dict)
    """Contracts that moved since the log was looked at."""
    now: datetime = BEGINNING

    def reopen(self) -> None:
        """Close everything; then open the store with all that opening checks, and go on as before."""
        self.store.close()
        opened = Store.open(self.store.database.location)
        opened.close()
        # The same engines again: what they have prepared need not be prepared anew after each death.
        self.store = Store(self.store.database, opened.signer, ClockAndEntropy(clock=lambda: self.now))

    def check(self, turn: Turn, answers: Sequence[str] | None) -> list[str]:
        """What a death left, and what a second and a third request find."""
        self.now = turn.now
        self.tenants[turn.tenant] = None
        found = self._found(turn, answers)
        if answers is None:
            answers, refused = ask(self.store, turn, 1)
            found += refused
        again, refused = ask(self.store, turn, 2)
        found += refused
        keyed = [number for number, one in enumerate(turn.asks) if one.keyed]
        if [answers[number] for number in keyed] != [again[number] for number in keyed]:
            found.append(f"{turn.name} is answered otherwise when it is asked for again")
        self.answers.update({(turn.tenant, turn.asks[number].name): answers[number] for number in keyed})
        if turn.is_last:
            found += self._ended(turn)
        return found

    def _found(self, turn: Turn, answers: Sequence[str] | None) -> list[str]:
        with self.store.database.reading() as connection:
            parts = {*_parts(connection, turn)}
            if len(parts) > 1:
                return [f"{turn.name} is half there"]
            if answers is not None and False in parts:
                return [f"{turn.name} was acknowledged, and is gone"]
            found = [f"{turn.name}: {problem}" for problem in broken_books(books(connection, turn.tenant))]
            self.touched[turn.tenant, turn.story.contracts] = None
            if turn.number % LOG_EVERY:
                return found
            found += self._of_the_log(connection, self.seen, self.touched)
            # What is asked for again now is looked at the next time.
            self.touched = {(turn.tenant, turn.story.contracts): None}
            return found

    def _of_the_log(self, connection: Connection, seen: Seen, touched: Touched) -> list[str]:
        view = look(self.store, connection, seen, Asked(), _judged(connection, touched))
        found = [f"{rule.__name__}: {problem}" for rule in LOG_RULES for problem in rule(view)]
        state = view.state
        self.seen.size, self.seen.peaks = state.size, state.peaks
        self.seen.outcomes, self.seen.events = state.outcomes, state.events
        self.seen.told.update({name: row.seq for row in view.events for name in names_of(row)})
        return found

    def _ended(self, turn: Turn) -> Iterator[str]:
        with self.store.database.reading() as connection:
            found = ending(connection, turn.tenant, turn.story)
        if found != self.endings[turn.story.name]:
            yield f"{turn.story.name} ended as {found}, without deaths as {self.endings[turn.story.name]}"

    def check_whole(self) -> list[str]:
        """Everything from the beginning: all books, the whole log, all that was ever acknowledged."""
        with self.store.database.reading() as connection:
            found = [problem for tenant in self.tenants for problem in broken_books(books(connection, tenant))]
            found += self._of_the_log(connection, Seen(), ())
            table = tables.idempotency
            rows = connection.execute(select(table.c.tenant, table.c.key, table.c.reply))
            kept = {(row.tenant, row.key): hashlib.sha256(row.reply).hexdigest() for row in rows}
            lost = [key for key, told in self.answers.items() if kept.get(key) != told]
            found += [f"{key} was acknowledged, and is not there as it was" for key in lost]
            if self.store.database.location.kind == "sqlite":
                said = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
                found += [f"SQLite finds {problem}" for problem in said if problem != "ok"]
        return found


def _parts(connection: Connection, turn: Turn) -> Iterator[bool]:
    """Of each part of a step, whether it is there: the reply that is kept, and the row that tells of the move."""
    replies, moves = tables.idempotency, tables.contract_transitions
    of_keys = replies.c.key.in_([one.name for one in turn.asks])
    kept = {*connection.execute(select(replies.c.key).where(replies.c.tenant == turn.tenant, of_keys)).scalars()}
    of_contracts = moves.c.contract_id.in_(turn.story.contracts)
    query = select(moves.c.contract_id, moves.c.operation, moves.c.number)
    done = {tuple(row) for row in connection.execute(query.where(moves.c.tenant == turn.tenant, of_contracts))}
    for one in turn.asks:
        if one.keyed:
            yield one.name in kept
        if one.moved is not None:
            yield (one.contract, *one.moved) in done


def _judged(connection: Connection, touched: Touched) -> list[Rescored]:
    """The outcomes of the contracts, so that later versions are looked at with them."""
    of = tables.outcomes
    found = [
        (tenant, one)
        for tenant, several in touched
        for one in connection.execute(
            select(of.c.id).where(of.c.tenant == tenant, of.c.contract_id.in_(several))
        ).scalars()
    ]
    return [Rescored(0, Kind.VERSIONS, tenant, expected=((one, 1),)) for tenant, one in found]


# The processes.


def fork(turn: Turn, store: Store, killer: Killer, mouth: "Mouth", at: Point) -> Heard:
    """A process that makes one step and dies on the way, and what was heard of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)

        def say(**message: Any) -> None:
            # In one go, so that a death leaves the whole message or none of it.
            os.write(writing, json.dumps(message).encode() + b"\n")

        mouth.say = say
        try:
            opened = Store(store.database, store.signer, ClockAndEntropy(clock=lambda: turn.now))
            arm(killer, at)
            answers, refused = ask(opened, turn, 0)
            say(answers=answers, broken=refused, passed=killer.passed)
        except BaseException as problem:  # noqa: BLE001 - whatever it is, the parent must hear of it
            say(broken=[f"{turn.name} ended in {type(problem).__name__}: {problem}"])
        # Nothing is closed: it is as if the machine had gone.
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading, "rb") as heard:
        said: dict[str, Any] = {}
        for line in heard:
            said |= json.loads(line)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    points = [Point(*point) for point in said.get("passed", ())]
    return Heard(said.get("died"), said.get("answers"), said.get("broken", []), points)


class Mouth:
    """Where a killer tells of a death: whichever process it is in."""

    say: Say

    def __call__(self, **message: Any) -> None:
        self.say(**message)


def arm(killer: Killer, at: Point | None) -> None:
    """From here on points count, from the first of each kind; at None nobody dies."""
    killer._times.clear()
    killer.arm(at)


class Instance:
    """The instance that lives on, in a process of its own that never forks."""

    def __init__(self, checker: Checker, told: Sequence[Story]) -> None:
        (theirs, ours), (mine, yours) = os.pipe(), os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(ours)
            os.close(mine)
            with os.fdopen(theirs, "r") as asked, os.fdopen(yours, "w") as saying:
                _serve(checker, {story.name: story for story in told}, asked, saying)
            os._exit(0)
        os.close(theirs)
        os.close(yours)
        self._asking, self._heard = os.fdopen(ours, "w"), os.fdopen(mine, "r")

    # Any: what it is asked is JSON.
    def ask(self, what: str, **more: Any) -> list[str]:
        """What it finds broken."""
        self._asking.write(json.dumps({"what": what, **more}) + "\n")
        self._asking.flush()
        found: list[str] = json.loads(self._heard.readline())
        return found

    def end(self) -> None:
        """It closes its store, and goes."""
        self._asking.close()
        os.waitpid(self._process, 0)


def _serve(checker: Checker, told: dict[str, Story], asked: IO[str], saying: IO[str]) -> None:
    checker.store = Store(checker.store.database, checker.store.signer, ClockAndEntropy(clock=lambda: checker.now))
    for line in asked:
        message = json.loads(line)
        try:
            found = _answered(checker, told, message)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the one who asks must hear of it
            found = [f"{message}: {type(problem).__name__}: {problem}"]
        saying.write(json.dumps(found) + "\n")
        saying.flush()
    checker.store.close()


def _answered(checker: Checker, told: dict[str, Story], message: dict[str, Any]) -> list[str]:
    match message["what"]:
        case "check":
            name, place, number, now = message["turn"]
            turn = Turn(message["tenant"], told[name], place, datetime.fromisoformat(now), number)
            if number % REOPEN_EVERY == 0:
                checker.reopen()
            return checker.check(turn, message["answers"])
        case "close":
            checker.store.close()
        case _:
            return checker.check_whole()
    return []


def _make(location: Location) -> None:
    """A new store, made by a process of its own: what only that needs would be copied for every life."""
    child = os.fork()
    if child == 0:
        Store.open(location, ClockAndEntropy(clock=lambda: BEGINNING)).close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# Many deaths.


class Chooser:
    """Chooses where to die: each step at each of its points in turn, those of its own share first."""

    def __init__(self, shard: int, shards: int) -> None:
        self._shard, self._shards = shard, shards
        self._points: dict[str, Sequence[Point]] = {}
        self._tried: Counter[tuple[str, Point]] = Counter()
        self._kinds: Counter[str] = Counter()
        self._chance = random.Random(shard)

    @property
    def known(self) -> set[str]:
        """Every kind of point."""
        return {point.what for points in self._points.values() for point in points}

    def learn(self, step: str, points: Sequence[Point]) -> None:
        """The points that a step passed when nobody died."""
        self._points[step] = points

    def choose(self, step: str) -> Point:
        """The point at which the next process that takes this step dies."""
        points = self._points[step]

        def tried(place: int) -> tuple[int, int, float]:
            point = points[place]
            return self._tried[step, point] + self._is_others(place), self._kinds[point.what], self._chance.random()

        chosen = points[min(range(len(points)), key=tried)]
        self._kinds[chosen.what] += 1
        self._tried[step, chosen] += 1
        return chosen

    def untried(self) -> int:
        """Points of this share at which nobody was to die."""
        return sum(
            not self._tried[step, point]
            for step, points in self._points.items()
            for place, point in enumerate(points)
            if not self._is_others(place)
        )

    def _is_others(self, place: int) -> bool:
        # Before a statement and after it belong together.
        return place // 2 % self._shards != self._shard


@dataclass(slots=True)
class Tally:
    """What a whole run comes to."""

    deaths: int = 0
    lives: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    checked_whole: int = 0


class Run:
    """All deaths of one run."""

    def __init__(self, folder: Path, url: str | None, chooser: Chooser) -> None:
        self.tally, self.chooser = Tally(), chooser
        self._mouth = Mouth()
        self._location = Location(folder / "data", url)
        for location in (self._location, Location(folder / "templates")):
            _make(location)
        templates = Store.open(Location(folder / "templates"), ClockAndEntropy(clock=lambda: BEGINNING))
        self._stories = stories(templates)
        templates.close()
        self._store = Store.open(self._location)
        self._store.close()
        shutil.copytree(self._location.folder, folder / "new")
        self._killer = Killer(self._store.database, self._mouth)
        self._endings: dict[str, Ending] = {}
        self._now = self._learn()

    def _learn(self) -> datetime:
        """Tell each story once without a death, to learn its points and its end; nothing stays open, and no thread.

        The other processes are forks, so what is loaded, prepared and judged here need not be by them.
        """
        checker = Checker(self._store, self._endings)
        checker.store = Store(self._store.database, self._store.signer, ClockAndEntropy(clock=lambda: checker.now))
        for turn in _turns(self._stories, BEGINNING):
            if turn.number >= sum(len(story.steps) for story in self._stories):
                break
            here = turn._replace(tenant=f"rehearsal-{turn.tenant}")
            checker.now = turn.now
            arm(self._killer, None)
            answers, refused = ask(checker.store, here, 0)
            self.chooser.learn(turn.name, self._killer.passed or ())
            self._killer.passed = None
            with checker.store.database.reading() as connection:
                self._endings[turn.story.name] = ending(connection, here.tenant, turn.story)
            self.tally.broken += refused + checker.check(here, answers)
        self.tally.broken += checker.check_whole()
        checker.store.close()
        # What the collector never touches need not be copied for each life.
        gc.collect()
        gc.disable()
        gc.freeze()
        return checker.now

    def die(self, wanted: int) -> None:
        """So many deaths."""
        tally, here = self.tally, 0
        instance = self._begun()
        for turn in _turns(self._stories, self._now):
            done = tally.deaths >= wanted or tally.lives >= wanted * MAX_LIVES or len(tally.broken) >= MAX_BROKEN
            if done or (here >= ROTATE and turn.place == 0 and self._location.url is None):
                tally.broken += instance.ask("whole")
                tally.checked_whole += 1
                instance.end()
                if done:
                    return
                instance, here = self._begun(), 0
            here += 1
            self._die(turn, instance)

    def _die(self, turn: Turn, instance: Instance) -> None:
        tally = self.tally
        if turn.number % REOPEN_EVERY == 0:
            # The one who dies is the only one who has it open, and leaves its log as it is.
            instance.ask("close")
        life = fork(turn, self._store, self._killer, self._mouth, self.chooser.choose(turn.name))
        asked = [turn.story.name, turn.place, turn.number, turn.now.isoformat()]
        tally.broken += life.broken
        tally.broken += instance.ask("check", tenant=turn.tenant, turn=asked, answers=life.answers)
        tally.lives += 1
        if life.died is not None:
            tally.deaths += 1
            tally.hits[life.died] += 1
            tally.steps[turn.name] += 1
            if tally.deaths % WHOLE_EVERY == 0:
                tally.broken += instance.ask("whole")
                tally.checked_whole += 1

    def _begun(self) -> Instance:
        """A new data directory, and an instance that has it open."""
        folder = self._location.folder
        if self._location.url is None:
            shutil.rmtree(folder)
            shutil.copytree(folder.with_name("new"), folder)
        return Instance(Checker(self._store, self._endings), self._stories)


def _turns(told: Sequence[Story], now: datetime) -> Iterator[Turn]:
    """The steps of all stories, again and again, a second apart or more; some stories share their books."""
    number = 0
    for lap in count():
        for index, story in enumerate(told):
            for place, step in enumerate(story.steps):
                now += timedelta(hours=step.after_h, seconds=1)
                yield Turn(f"tenant-{lap}-{index // IN_A_TENANT}", story, place, now, number)
                number += 1


def main() -> None:
    folder, url, wanted, shard, shards = sys.argv[1:]
    began = time.monotonic()
    run = Run(Path(folder), url or None, Chooser(int(shard), int(shards)))
    run.die(int(wanted))
    tally = run.tally
    print(
        json.dumps(
            {
                "deaths": tally.deaths,
                "lives": tally.lives,
                "hits": dict(sorted(tally.hits.items())),
                "steps": len(tally.steps),
                "known": sorted(run.chooser.known),
                "untried": run.chooser.untried(),
                "checked_whole": tally.checked_whole,
                "broken": tally.broken[:MAX_BROKEN],
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
