"""Sorted lists: every row once and in order, however long the list is and whatever is recorded between two pages."""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text, create_engine, event, func, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.pool import StaticPool

from meruit.benchmarks.store.read import RUN_SORTS, benchmark_runs_sorted
from meruit.contracts.store.holds import HOLD_SORTS, page_holds_sorted
from meruit.contracts.store.read import SORTS as CONTRACT_SORTS
from meruit.contracts.store.read import ContractFilter
from meruit.contracts.store.read import page_sorted as contracts_sorted
from meruit.evaluations.evaluation import EvaluationRecord, EvaluationStatus
from meruit.evaluations.reader import CaseFilter, EvaluationFilter, Evaluations
from meruit.evaluations.store.read import CASE_SORTS
from meruit.evaluations.store.read import SORTS as EVALUATION_SORTS
from meruit.gate.store.read import SORTS as AGENT_RUN_SORTS
from meruit.gate.store.read import page_sorted as agent_runs_sorted
from meruit.model.access import Scope
from meruit.model.verdict import Verdict
from meruit.outcomes.store.read import SORTS as OUTCOME_SORTS
from meruit.outcomes.store.read import OutcomeFilter
from meruit.outcomes.store.read import page_sorted as outcomes_sorted
from meruit.store.access.keys import SORTS as KEY_SORTS
from meruit.store.access.keys import page_sorted as keys_sorted
from meruit.store.location import Location
from meruit.store.sorting import IndexGroups, ListOrder, SortedPage, SortKey, read_sorted
from meruit.store.store import Store
from meruit.usage.store.read import SORTS as USAGE_SORTS
from meruit.usage.store.read import page_sorted as usage_sorted

ROWS = Table(
    "rows", MetaData(), Column("seq", BigInteger, primary_key=True), Column("score", Float), Column("name", Text)
)
KEYS = {
    "score": SortKey(ROWS.c.score, float, ROWS.c.seq, nullable=True),
    "name": SortKey(ROWS.c.name, str, ROWS.c.seq),
    "seq": SortKey(ROWS.c.seq, int, ROWS.c.seq),
    "grouped": SortKey(
        func.coalesce(ROWS.c.score, 0.0), float, ROWS.c.seq, grouped=IndexGroups(ROWS.c.name, ("a", "b", "é"))
    ),
}
Entry = tuple[float | None, str]
ENTRIES = st.lists(st.tuples(st.none() | st.sampled_from([-1.5, 0.0, 0.1, 2.0]), st.sampled_from("abé")), max_size=12)


@pytest.fixture(scope="module")
def memory() -> Iterator[Connection]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.connect() as connection:
        ROWS.create(connection)
        yield connection
    engine.dispose()


def fill(connection: Connection, entries: list[Entry], first: int = 0) -> None:
    rows = [{"seq": seq, "score": score, "name": name} for seq, (score, name) in enumerate(entries, first)]
    if rows:
        connection.execute(insert(ROWS), rows)


def pages(connection: Connection, order: ListOrder, size: int) -> Iterator[list[Any]]:
    while True:
        found = read_sorted(connection, select(ROWS), KEYS, order, size)
        yield found.entries
        if found.next is None:
            return
        order = msgspec.structs.replace(order, after=found.next)


def expected(entries: list[Entry], by: str, *, down: bool) -> list[int]:
    """Values in order, equal ones by their number, and those without a value last."""
    values: list[Any] = [
        {"score": score, "name": name, "seq": at, "grouped": score or 0.0}[by]
        for at, (score, name) in enumerate(entries)
    ]
    known = [at for at, value in enumerate(values) if value is not None]
    unknown = [at for at, value in enumerate(values) if value is None]
    return sorted(known, key=lambda at: (values[at], at), reverse=down) + (unknown[::-1] if down else unknown)


@given(ENTRIES, st.sampled_from([*KEYS]), st.booleans(), st.integers(1, 5))
def test_pages_hold_every_row_once_and_in_order(
    memory: Connection, entries: list[Entry], by: str, down: bool, size: int
) -> None:
    memory.execute(ROWS.delete())
    fill(memory, entries)
    seen = [*pages(memory, ListOrder(by, down), size)]
    assert [row.seq for page in seen for row in page] == expected(entries, by, down=down)
    assert all(len(page) == size for page in seen[:-1])


@given(ENTRIES, ENTRIES, st.sampled_from([*KEYS]), st.booleans())
def test_what_is_recorded_meanwhile_moves_no_row(
    memory: Connection, entries: list[Entry], later: list[Entry], by: str, down: bool
) -> None:
    memory.execute(ROWS.delete())
    fill(memory, entries)
    walk = pages(memory, ListOrder(by, down), 2)
    seen = [*next(walk)]
    fill(memory, later, first=100)
    seen += [row for page in walk for row in page]
    assert [row.seq for row in seen if row.seq < 100] == expected(entries, by, down=down)
    assert len({row.seq for row in seen}) == len(seen)


def cursor(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "after",
    [
        *("x", "é", "====", cursor("null"), cursor("[1]"), cursor('["a", 1]'), cursor("[1.5, 1.5]")),
        *(cursor("[1e999, 1]"), cursor(f"[{10**400}, 1]"), cursor(f"[0.1, {2**64}]"), cursor('[0.1, "1"]')),
        *(cursor('["\\u0000", 1]'), cursor("[true, 1]"), cursor('["\\ud800", 1]')),
    ],
)
@pytest.mark.parametrize("by", [*KEYS])
def test_a_cursor_that_does_not_fit_begins_again(memory: Connection, after: str, by: str) -> None:
    memory.execute(ROWS.delete())
    fill(memory, [(0.1, "a"), (None, "b")])
    # "a" as a cursor fits the names only.
    fits = by == "name" and after == cursor('["a", 1]')
    assert len(read_sorted(memory, select(ROWS), KEYS, ListOrder(by, after=after), 9).entries) == (1 if fits else 2)


Read = Callable[[Connection, Scope, ListOrder], SortedPage[Any]]
LISTS: dict[str, tuple[Mapping[str, SortKey], Read]] = {
    "all outcomes": (OUTCOME_SORTS, outcomes_sorted),
    "outcomes": (OUTCOME_SORTS, lambda c, s, o: outcomes_sorted(c, s, o, narrowed=OutcomeFilter(verdict="fail"))),
    "contracts": (CONTRACT_SORTS, lambda c, s, o: contracts_sorted(c, s, o, wanted=ContractFilter(state="settled"))),
    "holds": (HOLD_SORTS, page_holds_sorted),
    "usage": (USAGE_SORTS, lambda c, s, o: usage_sorted(c, s.tenant, o, status="warning")),
    "usage of an account": (USAGE_SORTS, lambda c, s, o: usage_sorted(c, s.tenant, o, account="a", code="stable")),
    "agent runs": (AGENT_RUN_SORTS, lambda c, s, o: agent_runs_sorted(c, s.tenant, o, agent="a")),
    "benchmark runs": (RUN_SORTS, benchmark_runs_sorted),
    "keys": (KEY_SORTS, lambda c, s, o: keys_sorted(c, o, tenant=s.tenant)),
}
PLACES = {int: "7", float: "0.5", str: '"a"'}


def orders(keys: Mapping[str, SortKey]) -> Iterator[ListOrder]:
    """Every order of a list, on its first page, behind a value, and behind rows without one."""
    for name, key in keys.items():
        places = [PLACES[key.kind], *(["null"] if key.nullable else [])]
        for after in ("", *(cursor(f"[{place}, {PLACES[key.tie_kind]}]") for place in places)):
            yield from (ListOrder(name, down, after) for down in (False, True))


@pytest.mark.parametrize("name", [*LISTS])
def test_both_databases_sort_every_list(shared: Store, new_tenant: Callable[[], str], name: str) -> None:
    keys, read = LISTS[name]
    with shared.database.reading() as connection:
        for order in orders(keys):
            assert read(connection, Scope(new_tenant()), order) == SortedPage([], None)


def plans(connection: Connection, read: Callable[..., object], *values: Any, **named: Any) -> list[str]:
    """How SQLite finds the rows of each statement that reads a list in order."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        seen.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    read(connection, *values, **named)
    event.remove(connection, "before_cursor_execute", note)
    ordered = [one for one in seen if "ORDER BY" in one[0]]
    found = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {one}", given).all() for one, given in ordered]
    return ["; ".join(row[-1] for row in steps) for steps in found]


def test_sorted_lists_of_large_stores_are_read_from_an_index(tmp_path: Path) -> None:
    order = ListOrder("score", descending=True, after=cursor("[0.5, 7]"))
    with closing(Store.open(Location(tmp_path))) as store, store.database.reading() as connection:
        for verdict in (None, "fail"):
            found = plans(connection, outcomes_sorted, Scope("t"), order, narrowed=OutcomeFilter(verdict=verdict))
            assert len(found) == (1 if verdict else len(Verdict))
            for plan in found:
                assert "outcomes_by_score (tenant=? AND verdict=?" in plan
                assert "TEMP B-TREE" not in plan
        for by in ("tokens", "run_tokens", "ended"):
            for wanted in ({}, {"status": "warning"}, {"account": "a", "code": "stable"}):
                # Runs without a value are read behind those with one.
                known, *_ = plans(connection, usage_sorted, "t", ListOrder(by), **wanted)
                assert "COVERING INDEX" in known, (by, wanted)


def test_both_databases_sort_evaluations_and_cases(shared: Store, new_tenant: Callable[[], str]) -> None:
    evaluations = Evaluations(shared, new_tenant())
    none = EvaluationRecord("ev_1", "a", EvaluationStatus.RUNNING, "", 0, 0, datetime(2026, 1, 1, tzinfo=UTC))
    for order in orders(EVALUATION_SORTS):
        assert evaluations.page_sorted(EvaluationFilter(text="a"), order) == SortedPage([], None)
    for order in orders(CASE_SORTS):
        for wanted in (CaseFilter(failing=True), CaseFilter(text="a"), CaseFilter(tags=(("a", "b"),))):
            assert evaluations.cases_sorted(none, wanted, order, 5) == SortedPage([], None)
