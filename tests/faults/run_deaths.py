"""Kills processes that start and complete task runs, and checks after each death that nothing is lost or half done.

A process of its own, with one thread: each life is a fork of it that opens the store, moves one run on, and ends itself
with SIGKILL at a chosen point of the write path. The next one goes on with what it finds.

python -m tests.faults.run_deaths FOLDER URL DEATHS SEED
"""

import asyncio
import gc
import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select
from tests.benchmarks.benching import DONE, UNTOUCHED, MemoryGround, asked, benchmark, task
from tests.faults.deaths import Killer, Observer, Point
from tests.outcomes.making import naive_root

from meruit.app import build_benchmarks
from meruit.benchmarks.service import Benchmarks
from meruit.config import Settings
from meruit.log.merkle import Frontier
from meruit.model.access import Scope
from meruit.model.environment import EnvironmentState
from meruit.model.task import Task
from meruit.model.task_run import ENDED, RunStatus
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store

TENANT = "acme"
CRITERIA = 3
STEPS = 3
"""To create runs, to start one, to complete one."""
REPEATS = 2
"""Task runs of one benchmark run, all of which one life after another brings to an end."""


class Lasting(MemoryGround):
    """Worlds that outlive us: whoever asks finds what its agent did."""

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """The seed before, and what was done after."""
        rows = {"member/M1": {"name": "Ann"}}
        self.rows[place_id or ""] = rows if before is None else {**rows, **DONE}
        return await super().read(task, place_id, before)


class Life(NamedTuple):
    """How a process went."""

    died: str | None
    passed: Sequence[Point]


async def move(benchmarks: Benchmarks, run_id: str | None) -> None:
    """One step of one run, or a new benchmark run where there is none."""
    scope = Scope(TENANT)
    if run_id is None:
        await benchmarks.create(TENANT, "me", "demo", repeats=REPEATS, agent_id="a1")
        return
    run = benchmarks.reader.run(scope, run_id)
    if run.status is RunStatus.PENDING:
        await benchmarks.start(scope, run_id)
    else:
        await benchmarks.complete(scope, run_id)


def live(location: Location, run_id: str | None, at: Point | None, pipe: int) -> None:
    """What a process does until it dies."""

    def say(**message: Any) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    store = Store.open(location)
    killer = Killer(store.database, say)
    benchmarks = build_benchmarks(Settings(), store, Lasting())
    killer.arm(at)
    asyncio.run(move(benchmarks, run_id))
    say(passed=killer.passed)
    store.close()


def fork(location: Location, run_id: str | None, at: Point | None) -> Life:
    """One life."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(ours)
            live(location, run_id, at, theirs)
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    with os.fdopen(ours, "rb") as heard:
        messages = [json.loads(line) for line in heard]
    _, status = os.waitpid(child, 0)
    died = next((message["died"] for message in messages if "died" in message), None)
    assert died is not None or status == 0, f"a life ended with {status}"
    passed = [Point(*point) for message in messages for point in message.get("passed", ())]
    return Life(died, passed)


def next_run(connection: Connection) -> tuple[str | None, str]:
    """The oldest run that has not ended, and how it stands."""
    of = tables.task_runs
    ended = [str(status) for status in ENDED]
    row = connection.execute(select(of.c.id, of.c.status).where(of.c.status.not_in(ended)).order_by(of.c.seq)).first()
    return (None, "none") if row is None else (row.id, row.status)


def broken(connection: Connection) -> list[str]:
    """Every rule that does not hold."""
    found = []
    counted = {
        name: Counter(connection.execute(select(column)).scalars().all())
        for name, column in (
            ("outcomes", tables.outcomes.c.contract_id),
            ("criterion runs", tables.criterion_runs.c.task_run_id),
            ("entries", tables.log_leaves.c.contract_id),
            ("events", tables.events.c.idempotency_key),
        )
    }
    # A run that is started again has an event for each start, with its time.
    counted["events"] = Counter(re.sub(r":[0-9]+$", "", key) for key in counted["events"].elements())
    runs = connection.execute(select(tables.task_runs)).all()
    open_runs: Counter[str] = Counter()
    refs = 0
    for run in runs:
        done = run.status == RunStatus.COMPLETED
        open_runs[run.benchmark_run_id] += not done
        refs += 3 * done + (run.status == RunStatus.RUNNING)
        wanted = {"outcomes": int(done), "criterion runs": CRITERIA * done, "entries": 2 * done}
        found += [
            f"{run.id} is {run.status} and has {counted[name][run.id]} {name}"
            for name, number in wanted.items()
            if counted[name][run.id] != number
        ]
        told = {"created": 1, "started": int(run.status != RunStatus.PENDING), "completed": int(done)}
        found += [
            f"{run.id} is {run.status} and {what} was told {counted['events'][f'{run.id}:{what}']} times"
            for what, number in told.items()
            if counted["events"][f"{run.id}:{what}"] != number
        ]
        if done != (run.outcome_id is not None):
            found.append(f"{run.id} is {run.status} with the outcome {run.outcome_id}")
    for run_id, left in open_runs.items():
        if counted["events"][f"{run_id}:ended"] != (not left):
            found.append(f"{run_id} has {left} open runs, and its end was told otherwise")
    if connection.execute(select(func.coalesce(func.sum(tables.blobs.c.refs), 0))).scalar_one() != refs:
        found.append("evidence is referred to by nobody, or by more than there are")
    state = connection.execute(select(tables.log_state)).one()
    leaves = tables.log_leaves
    hashes = connection.execute(select(leaves.c.hash).order_by(leaves.c.seq)).scalars().all()
    if len(hashes) != state.size or Frontier.from_bytes(state.size, state.peaks).root() != naive_root(hashes):
        found.append("the log is not what its state says")
    return found


def chosen(passed: Sequence[Point], number: int, chance: random.Random) -> list[Point]:
    """Some of the points that a step passes, by chance; around the commit always, after it last."""
    always = [point for point in passed if "COMMIT" in point.what]
    others = [point for point in passed if point not in always]
    return [*reversed(always), *chance.sample(others, min(len(others), number - len(always)))]


def run(location: Location, wanted: int, seed: int) -> dict[str, Any]:
    """So many deaths, spread over the points of each step."""
    chance = random.Random(seed)
    observer = Observer(location)
    store = Store.open(location)
    several = (asked("one"), asked("two"), UNTOUCHED)
    asyncio.run(build_benchmarks(Settings(), store, Lasting()).publish(TENANT, "me", benchmark(task("t1", *several))))
    store.close()
    gc.freeze()
    points: dict[str, list[Point]] = {}
    hits: Counter[str] = Counter()
    wrong: list[str] = []
    lives = 0
    while sum(hits.values()) < wanted and lives < 4 * wanted and not wrong:
        with observer.looking() as connection:
            run_id, step = next_run(connection)
        known = points.get(step)
        if known is None:
            at = None
        elif known:
            at = known.pop()
        else:
            at, points[step] = None, []
        life = fork(location, run_id, at)
        lives += 1
        if life.died is not None:
            hits[f"{step}: {life.died}"] += 1
        if at is None:
            points[step] = chosen(life.passed, -(-wanted // STEPS), chance)
        with observer.looking() as connection:
            wrong += broken(connection)
    while True:
        with observer.looking() as connection:
            run_id, _ = next_run(connection)
        if run_id is None or wrong:
            break
        fork(location, run_id, None)
    with observer.looking() as connection:
        wrong += broken(connection)
        done = connection.execute(select(func.count()).select_from(tables.task_runs)).scalar_one()
    return {"deaths": sum(hits.values()), "lives": lives, "runs": done, "hits": hits, "broken": wrong}


if __name__ == "__main__":
    folder, url, deaths, number = sys.argv[1:]
    print(json.dumps(run(Location(Path(folder), url or None), int(deaths), int(number))))
