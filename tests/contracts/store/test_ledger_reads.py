"""What reads of the ledger cost: escrows are not read for balances, and a short statement reads its own lines only."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from tests.contracts.trading import GOOD, Hands, Trading

from meruit.contracts import records as ledger
from meruit.store.database import Database
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store


@pytest.fixture
def trading(tmp_path: Path) -> Iterator[Trading]:
    store = Store.open(Location(tmp_path), ClockAndEntropy(clock=Hands()))
    made = Trading(store)
    for number in range(4):
        contract = made.given("usual", f"a{number}")
        made.complete(contract.id, f"{GOOD} {number}")
    yield made
    store.close()


@contextmanager
def asked(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are executed meanwhile, with their parameters."""
    found: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        found.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def plans(database: Database, statements: list[tuple[str, Any]]) -> list[str]:
    """How SQLite executes the queries on a table of money."""
    with database.reading() as connection:
        return [
            " ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters))
            for statement, parameters in statements
            if statement.startswith("SELECT")
        ]


def tenant_of(trading: Trading) -> str:
    with trading.store.database.reading() as connection:
        (found,) = ledger.tenants(connection)
    return found


def test_balances_do_not_read_escrows(trading: Trading) -> None:
    tenant, database = tenant_of(trading), trading.store.database
    with asked(database.reader) as statements, database.reading() as connection:
        found = ledger.balances(connection, tenant)
        everything = ledger.balances(connection, tenant, escrows=True)
    assert "USING COVERING INDEX balances_of_parties" in plans(database, statements)[0]
    escrows = [one for one in everything if one.account.startswith("escrow:")]
    assert [one for one in everything if one not in escrows] == found[:-1]
    assert (found[-1].account, found[-1].micros) == ("escrow", sum(one.micros for one in escrows))


def test_an_opening_balance_is_summed_from_an_index(trading: Trading) -> None:
    tenant, database = tenant_of(trading), trading.store.database
    with database.reading() as connection:
        whole = ledger.statement(connection, tenant, "platform", "USD")
    since = whole.lines[2].at
    with asked(database.reader) as statements, database.reading() as connection:
        found = ledger.statement(connection, tenant, "platform", "USD", since)
    assert found.opening + sum(line.micros for line in whole.lines if line.at >= since) == whole.closing
    sums = [plan for plan in plans(database, statements) if "COVERING INDEX postings_by_account" in plan]
    assert sums


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_short_statement_reads_its_own_lines(trading: Trading, limit: int) -> None:
    tenant, database = tenant_of(trading), trading.store.database
    with database.reading() as connection:
        whole = ledger.statement(connection, tenant, "platform", "USD")
    with asked(database.reader) as statements, database.reading() as connection:
        found = ledger.statement(connection, tenant, "platform", "USD", limit=limit)
    assert found.lines == whole.lines[:limit]
    assert found.closing == found.lines[-1].balance
    (first,) = [parameters for statement, parameters in statements if "transfers" in statement][:1]
    assert min(limit, 2_000) in first


def test_lines_of_several_pages_are_those_of_one(trading: Trading) -> None:
    tenant = tenant_of(trading)
    with trading.store.database.reading() as connection:
        whole = ledger.statement(
            connection, tenant, "platform", "USD", trading.store.surroundings.clock() - timedelta(days=9)
        )
        paged = [*ledger.iterate_lines(connection, tenant, whole, page=2)]
    assert paged == whole.lines
    assert len(paged) == 4
