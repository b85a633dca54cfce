"""How the cost of one action grows with what is recorded already: `python -m speed.growth`, or with sizes of your own.

Each action is measured over pasts of 1,000 to 1,000,000, in CPU time of this process, the best of several. An
action that reads by key must stay flat. One that reads all it shows may take 12 times as long for 10 times as much.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
from pydantic import BaseModel

from meruit.contracts import records as ledger
from meruit.errors import VerificationRejected
from meruit.gate.gate import Gate
from meruit.log.merkle import inclusion_proof
from meruit.model.access import Scope
from meruit.model.criterion import SuccessCriteria
from meruit.model.metering import AttributionKey, AttributionKind, MeteredRun, MeteredStep
from meruit.model.outcome import Labels
from meruit.model.usage import Assurance, Observation, Tokens
from meruit.outcomes import records as outcomes
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.log import log_size
from meruit.store.log_tiles import Tiles
from meruit.store.store import Store, utc_now
from meruit.usage import records as usage
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_runs import RecordRun, RecordRuns
from meruit.verify.engine import VerificationEngine
from speed import service, settle

SIZES = (1_000, 10_000, 100_000, 1_000_000)
OBSERVED, SUBMITTED = (10, 100, 1_000), (10, 100, 900)
"""Observations and submissions of one run, of which a gate allows 1,000."""
MAX_ATTEMPTS = 1_000
TENANT = "default"
SCOPE = Scope(TENANT)
FILLED_AT_ONCE = 500
RESCORED = 100
RARE = Submission({}, {"text": "the tenth weir"}, {"duration_ms": 5}, Labels(agent_id="heron"))
"""Work of an agent that has few outcomes among many."""

Measured = tuple[str, int, float]
"""What was done, over how many, and the milliseconds that it took."""


def growth(sizes: tuple[int, ...] = SIZES) -> Iterator[Measured]:
    """Every action over every past."""
    for size in sizes:
        yield from _over_outcomes(size)
    for size in sizes:
        yield from _over_contracts(size)
    for size in sizes:
        yield from _over_usage_runs(size)
    yield from _observe(OBSERVED)
    yield from _submit(SUBMITTED)


def _ms(action: Callable[[], object], times: int = 5) -> float:
    took = []
    for _ in range(times):
        start = time.process_time()
        action()
        took.append(time.process_time() - start)
    return min(took) * 1e3


def _over_outcomes(size: int) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)))
        try:
            registrar = Registrar(VerificationEngine(), store)
            ready = registrar.compile({"criteria": service.CRITERIA})
            judged = registrar.judge_sync(ready, Submission({}, {"text": "the ninth weir"}, {"duration_ms": 5}))
            draft = registrar.draft(TENANT, judged)

            def record(count: int) -> list[str]:
                new = [store.surroundings.new_id("out") for _ in range(count)]
                made = tuple(msgspec.structs.replace(draft, id=one) for one in new)
                store.recorder.write(outcomes.RecordAll(TENANT, made))
                return new

            rare = registrar.draft(TENANT, registrar.judge_sync(ready, RARE))
            store.recorder.write(
                outcomes.RecordAll(
                    TENANT,
                    tuple(msgspec.structs.replace(rare, id=store.surroundings.new_id("out")) for _ in range(RESCORED)),
                )
            )
            for start in range(0, size, FILLED_AT_ONCE):
                ids = record(min(FILLED_AT_ONCE, size - start))
            yield "record an outcome", size, _ms(lambda: record(100)) / 100
            yield "rescore an outcome of one agent", size, _rescore(store) / RESCORED
            with store.database.reading() as connection:
                yield "list outcomes, a page", size, _ms(lambda: outcomes.page(connection, SCOPE, limit=50))
                yield "show an outcome", size, _ms(lambda: outcomes.full_record(connection, SCOPE, ids[0], store.blobs))
                all_leaves = log_size(connection)
                yield (
                    "prove an entry of the log",
                    size,
                    _ms(lambda: inclusion_proof(all_leaves // 3, all_leaves, Tiles(connection).subtree)),
                )
        finally:
            store.close()


def _rescore(store: Store) -> float:
    """Milliseconds to rescore the outcomes of one agent from their evidence, with another threshold each time."""
    thresholds = iter(range(1, 100))

    def again() -> None:
        criteria = [{**service.CRITERIA[0], "threshold": 2_000 + next(thresholds)}, *service.CRITERIA[1:]]
        done = rescore(
            store,
            VerificationEngine(),
            TENANT,
            SuccessCriteria.model_validate({"criteria": criteria}),
            narrowed=outcomes.OutcomeFilter(agent_id=RARE.labels.agent_id),
            reason="benchmark",
            runner=LocalRunner(),
            now=utc_now(),
            progress=lambda _done, _total: None,
        )
        assert done.rescored == RESCORED

    return _ms(again, 3)


def _over_usage_runs(size: int) -> Iterator[Measured]:
    """Runs of 20 accounts, each observed never or once."""
    ended = datetime(2026, 5, 4, 3, 5, tzinfo=UTC)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)))
        try:
            for start in range(0, size, FILLED_AT_ONCE):
                many = [_usage_run(f"r{number}", ended) for number in range(start, min(start + FILLED_AT_ONCE, size))]
                store.recorder.write(RecordRuns(TENANT, "me", many))

            def observe(number: int) -> None:
                seen = Observation(
                    f"o{number}",
                    ended + timedelta(minutes=30),
                    Tokens(10, 5),
                    assurance=Assurance.ATTRIBUTION_KEY,
                    digest="d",
                )
                store.recorder.write(RecordObservations(TENANT, [RunObservation(f"r{number}", seen)]))

            numbers = iter(range(size))
            yield "observe a usage run", size, _ms(lambda: observe(next(numbers)), 20)
            with store.database.reading() as connection:
                yield "list usage runs, a page", size, _ms(lambda: usage.page(connection, TENANT, limit=50))
                yield "totals of provider accounts", size, _ms(lambda: usage.sum_accounts(connection, TENANT))
        finally:
            store.close()


def _usage_run(name: str, ended: datetime) -> MeteredRun:
    """A run with an attribution key of its own."""
    return MeteredRun(
        name,
        framework="f",
        source=f"account-{int(name[1:] or 0) % 20}",
        attribution_key=AttributionKey(AttributionKind.KEY, name),
        started_at=ended - timedelta(minutes=5),
        ended_at=ended,
        steps=(MeteredStep("s", tokens=Tokens(10, 5)),),
    )


def _over_contracts(size: int) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        location = Location(Path(folder))
        settle.fill(location, size)
        store = Store.open(location)
        try:
            market, work = settle._opened(store)  # noqa: SLF001 - the suite's own
            settle._settle_all(market, settle._awarded(market, work, 64), 64)  # noqa: SLF001
            ids = settle._awarded(market, work, 256)  # noqa: SLF001
            yield "settle a contract", size, _ms(lambda: settle._settle_all(market, ids, 64), 1) / len(ids)  # noqa: SLF001
            now = datetime.now(UTC)
            with store.database.reading() as connection:
                yield "balances", size, _ms(lambda: ledger.balances(connection, TENANT))

                def read_statement(since: datetime) -> None:
                    ledger.statement(connection, TENANT, "platform", "USD", since, limit=50)

                yield (
                    "statement, 50 lines from the start",
                    size,
                    _ms(lambda: read_statement(datetime(2020, 1, 1, tzinfo=UTC))),
                )
                yield "statement of the last minute", size, _ms(lambda: read_statement(now - timedelta(minutes=1)))
        finally:
            store.close()


def _observe(sizes: tuple[int, ...]) -> Iterator[Measured]:
    """One more observation of a run that has so many."""
    ended = datetime(2026, 5, 4, 3, 5, tzinfo=UTC)
    run = _usage_run("r", ended)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)))
        try:
            store.recorder.write(RecordRun(TENANT, "me", run))
            done = 0

            def observe(count: int) -> None:
                nonlocal done
                for _ in range(count):
                    done += 1
                    seen = Observation(
                        f"o{done}",
                        ended + timedelta(minutes=done),
                        Tokens(done, done),
                        assurance=Assurance.ATTRIBUTION_KEY,
                        digest="d",
                    )
                    store.recorder.write(RecordObservations(TENANT, [RunObservation("r", seen)]))

            for size in sizes:
                observe(size - done)
                yield "record one observation more of a run", size, _ms(lambda: observe(5), 3) / 5
        finally:
            store.close()


class Text(BaseModel):
    """A candidate that is never good enough."""

    text: str

    async def verify(self) -> "Text":
        raise VerificationRejected(f"{self.text} is not it", code="no")


def _submit(sizes: tuple[int, ...]) -> Iterator[Measured]:
    """One more submission to a run that has so many."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)))
        try:
            gate = Gate(Text, store=store, max_attempts=MAX_ATTEMPTS)
            done = 0

            async def submit(count: int) -> None:
                nonlocal done
                for _ in range(count):
                    done += 1
                    await gate.submit({"text": str(done)})

            for size in sizes:
                asyncio.run(submit(size - done))
                yield "record one submission more of a run", size, _ms(lambda: asyncio.run(submit(5)), 3) / 5
        finally:
            store.close()


def to_markdown(measured: Iterator[Measured]) -> str:
    """The table of the page on performance: a line for each action, with what 10 times as many cost."""
    found: dict[str, dict[int, float]] = {}
    for name, size, ms in measured:
        print(f"{name}, {size:,}: {ms:.3g} ms", file=sys.stderr, flush=True)
        found.setdefault(name, {})[size] = ms
    sizes = sorted({size for by_size in found.values() for size in by_size})
    lines = [f"| action, in ms of CPU | {' | '.join(f'{size:,}' for size in sizes)} | for 10 times as many |"]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for name, by_size in found.items():
        taken = [by_size[size] for size in sorted(by_size)]
        steps = max(later / earlier for earlier, later in pairwise(taken)) if len(taken) > 1 else 1
        cells = " | ".join(f"{by_size[size]:.3g}" if size in by_size else "–" for size in sizes)
        lines.append(f"| {name} | {cells} | {steps:.2g} times |")
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = tuple(map(int, sys.argv[1:])) or SIZES
    print(to_markdown(growth(chosen)))
