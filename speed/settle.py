"""Contracts completed, believed, billed and settled, against the least that could be written; and over a long past."""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg

from meruit.contracts.marketplace import Marketplace
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.store.transaction import Actor, ContractRequest
from meruit.contracts.store.work import WorkRow
from meruit.contracts.transitions import AwardContract
from meruit.documents.authoring import parse_work
from meruit.governance.dossier import HandedIn
from meruit.model.access import Scope
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store, utc_now
from meruit.verify.engine import VerificationEngine
from speed.measure import Row
from speed.past import copy_contract

CONTRACTS = 2_000
AT_ONCE = 64
INSERTS = 1_000
PAST = (100_000, 1_000_000)
TRIED = 1_000
"""Contracts completed over each past."""
WORK = {
    "title": "Summarise",
    "input": {"article": "A storm is coming. " * 20},
    "success_criteria": {
        "criteria": [
            {
                "metric": "word_count",
                "metric_type": "count",
                "comparison": "in_range",
                "threshold": [3, 40],
                "bonus": 0.03,
            },
            {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": 0.02},
        ]
    },
    "terms": {"cpc_rate": "0.05", "platform_fee_rate": 0.15},
}
ACTOR = Actor(Scope("default"), "benchmark")
REQUEST = ContractRequest(ACTOR)
_BASELINE = "one row inserted and committed, one at a time"


def rows() -> Iterator[Row]:
    """Complete-and-settle with 64 at once and one by one, on both stores, against a single-row insert."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _measured("SQLite", Location(Path(folder)), _sqlite_inserts(Path(folder)))
    with _postgres() as (ours, theirs), tempfile.TemporaryDirectory() as folder:
        yield from _measured("Postgres", Location(Path(folder), ours), _postgres_inserts(theirs))


def growth() -> Iterator[tuple[str, int, float]]:
    """A thousand contracts completed and settled over a past of so many settled ones."""
    for past in PAST:
        with tempfile.TemporaryDirectory() as folder:
            yield "complete and settle 1,000, SQLite", past, _over(Location(Path(folder)), past)
    for past in PAST:
        with _postgres() as (ours, _), tempfile.TemporaryDirectory() as folder:
            yield "complete and settle 1,000, Postgres", past, _over(Location(Path(folder), ours), past)


def _measured(kind: str, location: Location, insert_us: float) -> Iterator[Row]:
    store = Store.open(location)
    try:
        market, work = _opened(store)
        _settle_all(market, _awarded(market, work, AT_ONCE), AT_ONCE)
        for at_once, count in ((AT_ONCE, CONTRACTS), (1, CONTRACTS // 8)):
            ours_us = _settle_all(market, _awarded(market, work, count), at_once) / count * 1e6
            remark = f"{1e6 / ours_us:,.0f} a second against {1e6 / insert_us:,.0f}"
            yield Row(f"complete and settle, {kind}, {at_once} at once", ours_us, insert_us, _BASELINE, None, remark)
    finally:
        store.close()


def _opened(store: Store) -> tuple[Marketplace, WorkRow]:
    market = Marketplace(Registrar(VerificationEngine(clock=store.surroundings.clock), store))
    work = store.recorder.write(market.publish(ACTOR, parse_work(WORK)))
    assert isinstance(work, WorkRow)
    return market, work


def _awarded(market: Marketplace, work: WorkRow, count: int) -> list[str]:
    store = market.store

    async def award() -> list[str]:
        ids = [store.surroundings.new_id("con") for _ in range(count)]
        for some in (ids[start : start + 256] for start in range(0, count, 256)):
            awards = [AwardContract(REQUEST, one, work.id, f"agent-{number % 20}") for number, one in enumerate(some)]
            await asyncio.gather(*(store.recorder.record(one) for one in awards))
        return ids

    return asyncio.run(award())


def _settle_all(market: Marketplace, ids: list[str], at_once: int, *, with_run: bool = True) -> float:
    """Seconds for all of them; a run is paid once, so a contract that is copied names none."""

    async def complete(waiting: list[str]) -> None:
        while waiting:
            number, contract_id = len(waiting), waiting.pop()
            text = f"A storm of strength {number % 12} is coming on day {number}; stay inside and keep candles near."
            run = {"run_id": contract_id} if with_run else {}
            handed = HandedIn({"text": text}, {"duration_ms": 800 + number % 400, **run})
            case = market.find_contract(ACTOR, contract_id)
            done = await market.store.recorder.record(await market.completion(REQUEST, case, handed))
            assert isinstance(done, ContractSnapshot)
            assert done.bill is not None, done.contract.hold_reason

    async def run() -> float:
        waiting = list(reversed(ids))
        start = time.perf_counter()
        await asyncio.gather(*(complete(waiting) for _ in range(at_once)))
        return time.perf_counter() - start

    return asyncio.run(run())


def _sqlite_inserts(folder: Path) -> float:
    """Microseconds for one durable row."""
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, body BLOB)")
    start = time.perf_counter()
    for _ in range(INSERTS):
        connection.execute("INSERT INTO plain (body) VALUES (?)", (b"x" * 500,))
    spent = time.perf_counter() - start
    connection.close()
    return spent / INSERTS * 1e6


def _postgres_inserts(url: str) -> float:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE plain (id bigserial PRIMARY KEY, body bytea)")
        start = time.perf_counter()
        for _ in range(INSERTS):
            connection.execute("INSERT INTO plain (body) VALUES (%s)", (b"x" * 500,))
        return (time.perf_counter() - start) / INSERTS * 1e6


@contextmanager
def _postgres() -> Iterator[tuple[str, str]]:
    # Postgres comes with the tests.
    from tests.postgres import running

    with running({}) as server:
        server.ask("CREATE DATABASE ours", "CREATE DATABASE theirs")
        yield server.url("ours"), server.url("theirs")


def fill(location: Location, past: int) -> None:
    """A new store with a past of copies of one contract that was really settled, an hour ago."""
    store = Store.open(location, ClockAndEntropy(clock=lambda: utc_now() - timedelta(hours=1)))
    try:
        market, work = _opened(store)
        (first,) = _awarded(market, work, 1)
        _settle_all(market, [first], 1, with_run=False)
    finally:
        store.close()
    copy_contract(location, first, past)


def _over(location: Location, past: int) -> float:
    """Milliseconds for a thousand contracts, over such a past."""
    fill(location, past)
    store = Store.open(location)
    try:
        market, work = _opened(store)
        _settle_all(market, _awarded(market, work, AT_ONCE), AT_ONCE)
        return _settle_all(market, _awarded(market, work, TRIED), AT_ONCE) * 1e3
    finally:
        store.close()
