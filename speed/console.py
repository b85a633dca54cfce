"""Pages of the console at 10^3, 10^5 and 10^6 outcomes: CPU and bytes of each, `python -m speed.console [SIZE …]`.

The store has 100,000 usage runs, 10,000 contracts and an evaluation of 20,000 cases beside the largest number of
outcomes, and a tenth or hundredth of them beside the others. Outcomes go through the recorder in large groups, so the
log is a real one; usage runs and contracts are copies of the demo's rows.
"""

import asyncio
import gzip
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from sqlalchemy import select

from meruit.api.app import build_app, build_service
from meruit.api.server import ShutdownSignal
from meruit.cli.demo.fill import Amounts, fill_store
from meruit.cli.demo.support_replies import CRITERIA, make_cases
from meruit.config import Settings
from meruit.console.app import build_pages
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.access import DEFAULT_TENANT, Caller, Role
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store.write import RecordAll
from meruit.store import tables
from meruit.store.location import FILE, Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

SIZES = (1_000, 100_000, 1_000_000)
USAGE_SHARE, CONTRACT_SHARE, CASE_SHARE = 10, 100, 50
"""Of so many outcomes, one has a usage run, a contract, a case of an evaluation."""
GROUP = 1_000
DAYS = 30
TRIES = 7
TARGET_MS = 25
FEW = Amounts(cases=60, outcomes_a_day=3, attempts=1, labels=12)


class PageCost(NamedTuple):
    """What a page takes."""

    address: str
    first_ms: float
    """CPU of the first time, which fills what is kept."""
    ms: float
    """CPU of the best of the next ones."""
    size: int
    packed: int


def fill(location: Location, outcomes: int) -> None:
    """A store of this many outcomes, and its share of everything else."""
    stories = files("meruit.cli.demo") / "stories"
    fill_store(location, lambda story, name: (stories / story / name).read_text("utf-8"), datetime.now(UTC), FEW)
    store = Store.open(location)
    try:
        registrar = Registrar(VerificationEngine(), store)
        _record_outcomes(registrar, outcomes)
        _evaluate(registrar, outcomes // CASE_SHARE)
    finally:
        store.close()
    _copy_rows(location.folder / FILE, "usage_runs", outcomes // USAGE_SHARE)
    _sum_usage(location.folder / FILE)
    _copy_rows(location.folder / FILE, "contracts", outcomes // CONTRACT_SHARE, ("contract_transitions", "settlements"))


def _sum_usage(database: Path) -> None:
    """The totals that the store would have kept, had it recorded the copies."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM usage_account_totals")
        connection.execute(
            "INSERT INTO usage_account_totals SELECT tenant, account, status, count(*), "
            "sum(coalesce(last_input, 0) + coalesce(last_output, 0)), sum(code = 'unattributed') "
            "FROM usage_runs GROUP BY tenant, account, status"
        )
        connection.commit()


def _record_outcomes(registrar: Registrar, number: int) -> None:
    """The same few pieces of work again and again, spread over 30 days."""
    store, now = registrar.store, datetime.now(UTC)
    compiled = registrar.compile(CRITERIA)
    cases = [*make_cases("heron-2", 20)]
    drafts = [
        registrar.draft(
            DEFAULT_TENANT,
            registrar.judge_sync(
                compiled, Submission(dict(one.input or {}), dict(one.output), dict(one.metadata or {}))
            ),
        )
        for one in cases
        if one.output is not None
    ]
    entropy = store.surroundings.entropy
    for start in range(0, number, GROUP):
        at = now - timedelta(days=DAYS) * (1 - start / number)
        results = [msgspec.structs.replace(one.result, verified_at=at) for one in drafts]
        group = []
        for place in range(min(GROUP, number - start)):
            which = place % len(drafts)
            group.append(
                msgspec.structs.replace(
                    drafts[which],
                    id=store.surroundings.new_id("out"),
                    result=results[which],
                    salts=entropy(len(drafts[which].salts)),
                )
            )
        store.recorder.write(RecordAll(DEFAULT_TENANT, tuple(group)))


def _evaluate(registrar: Registrar, number: int) -> None:
    evaluator = Evaluator(registrar, DEFAULT_TENANT)
    compiled = evaluator.compile(CRITERIA)
    for agent in ("heron-2", "heron-3"):
        started = evaluator.start(f"large, {agent}", compiled, tags={"agent": agent}, planned=number)
        run_cases(evaluator, started, compiled, make_cases(agent, number))


def _copy_rows(file: Path, name: str, number: int, parts: tuple[str, ...] = ()) -> None:
    """Copy the rows of a table with other ids and numbers, and what other tables hold of each."""
    with closing(sqlite3.connect(file)) as connection, connection:
        ((have, last),) = connection.execute(f"SELECT count(*), max(seq) FROM {name}")
        copies = -(-number // have)
        for table, key in ((name, "id"), *((part, "contract_id") for part in parts)):
            columns = [one.name for one in tables.metadata.tables[table].c]
            changed = {key: f"t.{key} || '-' || n"}
            if table == name:
                changed["seq"] = f"{last} + row_number() OVER (ORDER BY n, t.seq)"
            connection.execute(
                f"WITH RECURSIVE copies(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < {copies}) "
                f"INSERT INTO {table} ({', '.join(columns)}) "
                f"SELECT {', '.join(changed.get(one, f't.{one}') for one in columns)} "
                f"FROM copies, (SELECT * FROM {table}) AS t"
            )


def addresses(store: Store) -> Iterator[str]:
    """One address of each kind of page."""
    yield from (
        "/",
        "/evaluations",
        "/outcomes",
        "/outcomes?verdict=fail",
        "/outcomes?verdict=error",
        "/outcomes?agent=none",
    )
    yield from (
        "/reviews",
        "/agent-runs",
        "/benchmarks",
        "/contracts",
        "/contracts?state=disputed",
        "/holds",
        "/ledger",
    )
    yield from ("/usage", "/usage?status=warning", "/usage?code=discrepancy", "/usage?account=demo", "/audit")
    yield from ("/webhooks", "/service", "/reference", "/reference/contracts")
    yield from ("/contracts?view=board", "/usage/accounts", "/search?q=heron", "/evaluations?sort=-rate")
    yield from (
        "/outcomes?sort=score",
        "/outcomes?sort=-score&verdict=fail",
        "/outcomes?sort=score&verdict=pass",
        "/outcomes?sort=agent&verdict=fail",
        "/contracts?sort=-paid",
        "/holds?sort=since",
    )
    yield from ("/usage?sort=-cost", "/usage?sort=-tokens&status=warning", "/usage?sort=ended")
    yield from ("/usage?sort=-tokens", "/usage?sort=run_tokens&account=demo", "/usage?sort=-tokens&code=discrepancy")
    with store.database.reading() as connection:
        found = connection.execute(
            select(tables.evaluations.c.id).where(tables.evaluations.c.name.like("large%")).order_by("name")
        ).scalars()
        large = [*found]
        yield f"/evaluations/{large[0]}"
        yield f"/evaluations/{large[0]}?show=all&sort=-ms"
        yield f"/compare?e={large[0]}&e={large[1]}"
        for kind, table in (
            ("outcomes", tables.outcomes),
            ("contracts", tables.contracts),
            ("usage", tables.usage_runs),
            ("agent-runs", tables.agent_runs),
        ):
            yield f"/{kind}/{connection.execute(select(table.c.id).order_by(table.c.seq).limit(1)).scalar_one()}"
        case = connection.execute(select(tables.evaluation_cases.c.outcome_id).order_by("seq").limit(1)).scalar_one()
        yield f"/outcomes/{case}?of=evaluation"


async def measure(app: Any, several: list[str]) -> list[PageCost]:
    """Open each page some times; only CPU counts."""
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 50_000))
    found = []
    for address in several:
        times, content = [], b""
        for _ in range(TRIES):
            start = time.process_time_ns()
            request = httpx.Request("GET", f"http://127.0.0.1{address}")
            reply = await transport.handle_async_request(request)
            content = await reply.aread()
            times.append((time.process_time_ns() - start) / 1e6)
            if reply.status_code != 200:
                raise SystemExit(f"{address} answers {reply.status_code}: {content[:300]!r}")
        found.append(PageCost(address, times[0], min(times[1:]), len(content), len(gzip.compress(content, 5))))
    return found


def open_pages(location: Location) -> list[PageCost]:
    """The cost of each page of a store."""
    store = Store.open(location)
    try:
        service = build_service(Settings(), store, ShutdownSignal())
        visitor = Caller(DEFAULT_TENANT, Role.AUDITOR, "")
        app = build_app(service, build_pages(store, visitor=visitor), working=False)
        return asyncio.run(measure(app, [*addresses(store)]))
    finally:
        store.close()


def main(sizes: tuple[int, ...], folder: Path) -> None:
    """Print what each page takes at each size; a store that the folder has already is used again."""
    by_kind: dict[str, dict[int, PageCost]] = {}
    for size in sizes:
        location = Location(folder / str(size))
        if not (folder / str(size)).exists():
            start = time.process_time()
            fill(location, size)
            print(f"filled {size:,} outcomes in {time.process_time() - start:.0f} s of CPU", file=sys.stderr)
        for one in open_pages(location):
            by_kind.setdefault(_kind(one.address), {})[size] = one
    print(f"{'page':34}" + "".join(f"{f'{size:,}':>32}" for size in sizes))
    print(f"{'':34}" + f"{'first ms':>10}{'ms':>8}{'bytes':>14}" * len(sizes))
    for kind, found in by_kind.items():
        cells = "".join(_cell(found.get(size)) for size in sizes)
        print(f"{kind:34}{cells}{'  over' if any(one.ms > TARGET_MS for one in found.values()) else ''}")


def _cell(one: PageCost | None) -> str:
    return f"{'–':>32}" if one is None else f"{one.first_ms:>10.1f}{one.ms:>8.1f}{f'{one.size:,}':>14}"


def _kind(address: str) -> str:
    """The address without the ids of one store."""
    path, _, query = address.partition("?")
    parts = path.split("/")
    if len(parts) > 2 and parts[1] != "reference" and parts[2] != "accounts":
        path = f"/{parts[1]}/ID"
    return f"{path}?{'e=A&e=B' if query.startswith('e=') else query}" if query else path


if __name__ == "__main__":
    chosen = tuple(int(one) for one in sys.argv[1:] if one.isdecimal()) or SIZES
    kept = [one for one in sys.argv[1:] if not one.isdecimal()]
    if kept:
        main(chosen, Path(kept[0]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(chosen, Path(made))
