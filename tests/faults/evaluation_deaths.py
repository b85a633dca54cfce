"""Kills an evaluation again and again while a slow and flaky target makes its outputs; prints what was left as JSON."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from meruit.errors import CostLimitReached, EvaluationConflict
from meruit.evaluations.evaluation import Case, EvaluationStatus
from meruit.evaluations.journal import FOLDER
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import RunLimits
from meruit.evaluations.run_target import run_target
from meruit.evaluations.segment import entries_of, unpack
from meruit.evaluations.service import Evaluator
from meruit.evaluations.targets import FunctionTarget
from meruit.log.entries import SegmentEntry, read_entry
from meruit.log.segment import segment_root
from meruit.outcomes.service import Registrar
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

TENANT, NAME = "acme", "doomed"
CONCURRENCY = 8
COSTS = (0.01, 0.02, 0.04)
"""Dollars of one output."""
FLAKY = 0.1
CRITERIA = {"criteria": [{"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True}]}
PATIENCE_S = 120.0
FINISHED, LIMITED, CRASHED = 0, 7, 9
"""How a run ends that is not killed."""


def live(folder: Path, count: int, limit_micros: int | None) -> int:
    """Run the evaluation until it ends by itself."""
    calls = os.open(folder / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def answer(given: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(random.random() * 0.02)
        if random.random() < FLAKY:
            raise ConnectionError("flaky")
        cost = random.choice(COSTS)
        # The provider bills before it answers.
        os.write(calls, f"{given['n']} {round(cost * 1_000_000)}\n".encode())
        await asyncio.sleep(random.random() * 0.02)
        return {"output": "yes" if given["n"] % 4 else "no", "cost": cost}

    store = Store.open(Location(folder))
    evaluator = Evaluator(Registrar(VerificationEngine(), store), TENANT)
    criteria = evaluator.compile(CRITERIA)
    cases = [Case(f"c{n}", {"n": n, "reference": "yes"}) for n in range(count)]
    limits = RunLimits(concurrency=CONCURRENCY, retries=20, cost_limit_micros=limit_micros)
    try:
        started = evaluator.start(NAME, criteria, dataset_digest="d", planned=count)
        asyncio.run(run_target(evaluator, started, criteria, cases, FunctionTarget(answer), limits))
    except CostLimitReached:
        return LIMITED
    except EvaluationConflict:
        # The process before this one was killed when all was done, or ended by itself.
        if Evaluations(store, TENANT).find(NAME).status is not EvaluationStatus.FINISHED:
            raise
    finally:
        store.close()
    return FINISHED


def paid(folder: Path) -> list[tuple[str, int]]:
    """Every call that was billed: the case and its cost."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / "calls").read_text().splitlines()
        return [(line.split()[0], int(line.split()[1])) for line in lines]
    return []


def die(folder: Path, count: int, limit_micros: int | None, after: int) -> bool:
    """Run it in a child that is killed after so many more calls; whether it was, rather than ended by itself."""
    child = os.fork()
    if child == 0:
        random.seed(os.getpid())
        code = CRASHED
        try:
            from meruit.evaluations import run_target as running

            running.BACKOFF_S = 0.01
            running.FLUSH_S = 0.05
            code = live(folder, count, limit_micros)
        except BaseException:  # noqa: BLE001 - shown, and the child ends here
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)
    wanted = len(paid(folder)) + after
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code not in (FINISHED, LIMITED):
                raise RuntimeError(f"a run ended with {code}")
            return False
        if len(paid(folder)) >= wanted:
            time.sleep(random.random() * 0.06)
            break
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def roots(store: Store) -> Iterator[bool]:
    """Whether each segment is what the log says it is."""
    segments, leaves = tables.evaluation_segments, tables.log_leaves
    with store.database.reading() as connection:
        for row in connection.execute(select(segments)).all():
            entry = read_entry(connection.execute(select(leaves.c.body).where(leaves.c.seq == row.leaf)).scalar_one())
            cases = entries_of(unpack(store.blobs.content(connection, TENANT, row.address)))
            assert isinstance(entry, SegmentEntry)
            yield (entry.number, entry.cases, entry.root) == (row.number, len(cases), segment_root(cases).hex())


def look(folder: Path) -> dict[str, Any]:
    """What is there in the end."""
    store = Store.open(Location(folder))
    try:
        reader = Evaluations(store, TENANT)
        found = reader.find(NAME)
        details = [*reader.details(found)]
        with store.database.reading() as connection:
            blobs = connection.execute(select(func.count()).select_from(tables.blobs)).scalar_one()
        return {
            "status": found.status.value,
            "cases": sorted(one.summary.case_id for one in details),
            "judged": sum(one.result is not None and one.output is not None for one in details),
            "cost_micros": reader.summary(found).cost_micros,
            "segments": found.segments,
            "blobs": blobs,
            "files": sum(one.is_file() for one in (folder / "blobs").rglob("*")),
            "journals": len([*(folder / FOLDER).iterdir()]),
            "proven": all(roots(store)),
        }
    finally:
        store.close()


def main(folder: Path, count: int, deaths: int, seed: int) -> None:
    """Die under a cost limit, then without one, and end."""
    chance = random.Random(seed)
    limit = round(count * sum(COSTS) / len(COSTS) * 0.6 * 1_000_000)
    apart = max(1, count // deaths)
    died = 0
    while die(folder, count, limit, chance.randint(1, apart)):
        died += 1
    at_limit = sum(cost for _, cost in paid(folder))
    while died < deaths:
        # Those that are left are few: they die sooner.
        left = count - len({case for case, _ in paid(folder)})
        if not die(folder, count, None, chance.randint(1, max(1, left // (deaths - died + 1)))):
            break
        died += 1
    while die(folder, count, None, count):
        died += 1
    billed = paid(folder)
    print(
        json.dumps(
            {
                "deaths": died,
                "limit_micros": limit,
                "spent_at_limit_micros": at_limit,
                "in_flight_micros": round(CONCURRENCY * max(COSTS) * 1_000_000),
                "calls": len(billed),
                "billed_micros": sum(cost for _, cost in billed),
                **look(folder),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
