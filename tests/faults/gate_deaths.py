"""Kills the workers of gated runs at every step, and checks that each run ends as if nobody had died.

A process of its own, with one thread: each life is a fork of it that opens the store, takes up the run where the death
before it left it, and ends itself with SIGKILL at a chosen point. Some only sleep there, and wake up when another has
brought the run to its end.

python -m tests.faults.gate_deaths FOLDER URL inline|dbos DEATHS SEED [count|owner]
"""

import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from sqlalchemy import update
from tests.faults.deaths import Observer
from tests.faults.gate_doomed import STORIES, World, live
from tests.faults.gate_killing import BEGIN, COMMIT, COMMITTED, Killer, Point
from tests.faults.gate_naive import NAIVE
from tests.faults.gate_rules import Death, Ending, Told, broken, broken_log, ending
from tests.faults.gate_stories import ITEMS, Story, made_up, told_stories

from meruit.gate import state
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

MAX_DEATHS = 4
"""Of one run: a worker more, and nobody would take it any more."""
MAX_BROKEN = 20
MAX_LIVES = 4
"""Lives for each death that is wanted."""
LIFE_S = 45
"""Longer than a life takes on any machine."""
LOG_EVERY = 25
"""Stories between two looks at the whole log."""
NEW_EVERY = 5
"""One in so many stories is one that nobody has thought of."""
OPEN_EVERY = 6
"""Lives between two that open the store as a new process does; the others need not prepare what was prepared."""
SLEEP_EVERY = 3
"""On a server, one in so many stories has a worker that sleeps instead of dying."""

TAKING_OVER = [Point(f"take over: {when}", 1) for when in (BEGIN, COMMIT, COMMITTED)]
"""What nobody passes who is the first."""


class Heard(NamedTuple):
    """What a process has said, and whether it is still there."""

    process: int
    pipe: IO[bytes]

    def until_gone(self) -> Iterator[dict[str, Any]]:
        """All that it still says."""
        with self.pipe:
            yield from map(json.loads, self.pipe)
        _, status = os.waitpid(self.process, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            yield {"broken": f"a life ended with the signal {os.WTERMSIG(status)}"}

    def until_asleep(self) -> Iterator[dict[str, Any]]:
        """All that it says before it sleeps; one that never does is heard to its end."""
        for line in self.pipe:
            message = json.loads(line)
            yield message
            if "died" in message:
                os.waitpid(self.process, os.WUNTRACED)
                return


@dataclass
class Witness:
    """What was seen of one story outside the store."""

    run_id: str
    story: Story
    deaths: list[Death] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    heard: dict[str, set[str]] = field(default_factory=dict)
    passed: list[Point] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def listen(self, messages: Iterator[dict[str, Any]], *, asleep: bool = False) -> bool:
        """Take down what a process says; answers whether it met its point."""
        met = False
        for message in messages:
            if "did" in message:
                self.done[message["did"]] += 1
            if "heard" in message:
                self.heard.setdefault(message["did"], set()).add(message["heard"])
            if "died" in message:
                met = True
                self.deaths.append(Death(message["died"], message["run"], message["place"], asleep))
            if "broken" in message:
                self.broken.append(f"{self.story.name} ({self.run_id}): {message['broken']}")
            self.passed = [Point(*point) for point in message.get("passed", self.passed)]
        return met

    def told(self) -> Told:
        """For the rules."""
        return Told(self.run_id, self.story, self.deaths, self.done, self.heard)


class Chooser:
    """Chooses where to die: every kind of point that a story has, the least tried first."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.known: dict[str, list[Point]] = {}
        self.kinds: Counter[str] = Counter()
        self._tried: Counter[tuple[str, Point]] = Counter()

    def learn(self, story: str, points: Sequence[Point]) -> None:
        """What it passed when nobody died."""
        self.known[story] = [*points]

    def choose(self, story: str, *, taken_over: bool) -> Point:
        """Where the next one dies."""
        points = self.known[story] + (TAKING_OVER if taken_over else [])

        def tried(point: Point) -> tuple[int, int, float]:
            return self.kinds[point.what], self._tried[story, point], self.chance.random()

        chosen = min(points, key=tried)
        self._tried[story, chosen] += 1
        return chosen

    def neediest(self, stories: Sequence[Story]) -> Story:
        """The one with a kind of point that was tried least; of several, any."""

        def tried(story: Story) -> tuple[int, float]:
            return min(self.kinds[point.what] for point in self.known[story.name]), self.chance.random()

        return min(stories, key=tried)

    def all_kinds(self) -> set[str]:
        """Every kind of point that any story has."""
        return {point.what for points in (TAKING_OVER, *self.known.values()) for point in points}


@dataclass
class Matrix:
    """All deaths of one run of this script."""

    warm: Store
    """Closed, with all that its engines have prepared."""
    dbos: bool
    chooser: Chooser
    observer: Observer
    endings: dict[str, Ending] = field(default_factory=dict)
    hits: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    deaths: int = 0
    slept: int = 0
    lives: int = 0
    stories: int = 0
    most_broken: int = MAX_BROKEN

    def fork(self, witness: Witness, at: Point | None = None, *, asleep: bool = False, learning: bool = False) -> Heard:
        """A life in a process of its own."""
        reading, writing = os.pipe()
        self.lives += not learning
        child = os.fork()
        if child == 0:
            os.close(reading)
            # Who hangs is ended, and told of as broken.
            signal.alarm(LIFE_S)

            def say(**message: Any) -> None:
                # In one go, so that a death leaves the whole message or none of it.
                os.write(writing, json.dumps(message).encode() + b"\n")

            killer = Killer(say, at, asleep=asleep)
            try:
                store = self._opened()
                killer.watch(store)
                world = World(killer, say, Counter(witness.done))
                live(store, witness.run_id, witness.story, world, dbos=self.dbos and not learning)
                world.leave()
            except BaseException as problem:  # noqa: BLE001 - whatever it is, the parent must hear of it
                say(broken=f"a life ended in {type(problem).__name__}: {problem}")
            os._exit(0)
        os.close(writing)
        return Heard(child, os.fdopen(reading, "rb"))

    @property
    def location(self) -> Location:
        """Where the store is."""
        return self.warm.database.location

    def _opened(self) -> Store:
        """The store, now and then with all that opening it checks."""
        if self.lives % OPEN_EVERY == 0:
            return Store.open(self.location)
        return Store(self.warm.database, self.warm.signer, ClockAndEntropy())

    def undisturbed(self, story: Story) -> None:
        """Tell a story once without a death, to learn its points and its end."""
        witness = Witness(f"undisturbed-{len(self.endings)}", story)
        # Without DBOS, which takes longer and has no points of its own.
        witness.listen(self.fork(witness, learning=True).until_gone())
        self.chooser.learn(story.name, witness.passed)
        with self.observer.looking() as connection:
            self.endings[story.name] = ending(connection, witness.run_id)
        self._check(witness)

    def tell(self, story: Story) -> None:
        """Tell it again, with deaths on the way."""
        self.stories += 1
        witness = Witness(f"run-{self.stories}", story)
        sleeper = None
        # In a team or under DBOS another thread's transaction may be open, and a server waits for who sleeps in one.
        alone = not story.members and not self.dbos
        if self.location.url is not None and self.stories % SLEEP_EVERY == 0 and alone:
            sleeper = self._sleep(witness)
        deaths = self.chooser.chance.randint(1, MAX_DEATHS)
        while len(witness.deaths) < deaths and self._die(witness):
            self._lease_is_over()
        witness.listen(self.fork(witness).until_gone())
        if sleeper is not None:
            # The others were there all the while; now it goes on as if nothing had happened.
            os.kill(sleeper.process, signal.SIGCONT)
            witness.listen(sleeper.until_gone())
        self._check(witness)

    def _die(self, witness: Witness) -> bool:
        at = self.chooser.choose(witness.story.name, taken_over=bool(witness.deaths))
        met = witness.listen(self.fork(witness, at).until_gone())
        if met:
            self.deaths += 1
            self.hits[at.what] += 1
            self.chooser.kinds[at.what] += 1
        return met

    def _sleep(self, witness: Witness) -> Heard | None:
        # Not within a transaction: a server would wait for who sleeps there, as it does for the living.
        outside = [point for point in self.chooser.known[witness.story.name] if point.what.rpartition(" ")[2] in AWAKE]
        at = self.chooser.chance.choice(outside)
        sleeper = self.fork(witness, at, asleep=True)
        if not witness.listen(sleeper.until_asleep(), asleep=True):
            witness.listen(sleeper.until_gone())
            return None
        self.slept += 1
        self._lease_is_over()
        return sleeper

    def _lease_is_over(self) -> None:
        """Nobody has heard of a worker for long."""
        if self.location.url is not None:
            with self.observer.looking() as connection:
                connection.execute(update(tables.workers).values(until=0))
                connection.commit()

    def _check(self, witness: Witness) -> None:
        self.broken += witness.broken
        with self.observer.looking() as connection:
            self.broken += broken(connection, witness.told(), self.endings[witness.story.name])

    def check_log(self) -> None:
        """All of the audit log, by a process of its own: a store has threads."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            store = Store.open(self.location)
            with self.observer.looking() as connection:
                os.write(writing, json.dumps(broken_log(store, connection)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        self.broken += json.loads(said) if status == 0 else [f"looking at the log ended with {status}"]

    def enough(self, wanted: int) -> bool:
        """Whether nothing more can be learnt."""
        return self.deaths >= wanted or self.lives >= wanted * MAX_LIVES or len(self.broken) >= self.most_broken


AWAKE = ("asked", "done", "written")
"""How the names of points end at which nothing is locked."""


def remember(story: Story) -> Story:
    """Let agents find it by what their runs are asked for."""
    STORIES[story.name] = story
    for item, name in zip(ITEMS, story.members, strict=False):
        STORIES[f"{story.name}/{item}"] = STORIES[name]._replace(name=f"{story.name}/{item}")
    return story


def run(location: Location, wanted: int, seed: int, *, dbos: bool, most_broken: int) -> Matrix:
    """So many deaths."""
    # A verifier that broke is asked again at once.
    state.FIRST_PAUSE_S = 0.0
    stories = [remember(story) for story in told_stories()]
    matrix = Matrix(_warmed_up(location), dbos, Chooser(seed), Observer(location), most_broken=most_broken)
    new = map(remember, made_up(seed))
    for story in stories:
        matrix.undisturbed(story)
    while not matrix.enough(wanted):
        story = matrix.chooser.neediest(stories)
        if matrix.stories % NEW_EVERY == NEW_EVERY - 1:
            story = next(new)
            matrix.undisturbed(story)
        matrix.tell(story)
        if matrix.stories % LOG_EVERY == 0:
            matrix.check_log()
    matrix.check_log()
    return matrix


def _warmed_up(location: Location) -> Store:
    """Do all that lives do once, so that none has to prepare it; nothing stays open, and no second thread."""
    store = Store.open(location)
    for story in ("tools", "somebody is asked"):
        warm = Store(store.database, store.signer, ClockAndEntropy())
        live(warm, f"warming up: {story}", STORIES[story], World(Killer(_silent), _silent, Counter()))
    store.close()
    # What the collector never touches need not be copied for each life.
    gc.collect()
    gc.disable()
    gc.freeze()
    return store


def _silent(**_message: Any) -> None:
    """Nobody listens."""


def main() -> None:
    folder, url, engine, wanted, seed, *naive = sys.argv[1:]
    began = time.monotonic()
    if engine == "dbos":
        import meruit.gate.runner.dbos as _loaded  # noqa: F401 - before any fork: it takes long
    for name in naive:
        NAIVE[name]()
    # Of a mistake that is made on purpose, the first sign is enough.
    most = 1 if naive else MAX_BROKEN
    where = Location(Path(folder), url or None)
    matrix = run(where, int(wanted), int(seed), dbos=engine == "dbos", most_broken=most)
    print(
        json.dumps(
            {
                "deaths": matrix.deaths,
                "slept": matrix.slept,
                "lives": matrix.lives,
                "stories": matrix.stories,
                "hits": dict(sorted(matrix.hits.items())),
                "known": sorted(matrix.chooser.all_kinds()),
                "broken": matrix.broken[:MAX_BROKEN],
                "seconds": round(time.monotonic() - began, 1),
                "cpu_seconds": round(sum(os.times()[:4]), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
