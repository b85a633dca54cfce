"""Rows that may be there already: added to, replaced or kept, by callers that share a transaction or not."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, select
from tests.events.emitting import read
from tests.outcomes.making import together

from meruit.errors import BalanceTooLarge, MeruitError
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.store.transaction import MAX_ROWS, MergeRule, WriteTransaction

TABLES = {
    MergeRule.ADDED: tables.balances,
    MergeRule.REPLACED: tables.output_sketches,
    MergeRule.KEPT: tables.first_outputs,
}
"""One that is merged in each way."""
Merge = tuple[MergeRule, str, int]
"""How, under which name, and what."""
_NUMBERS = count()


def row_of(how: MergeRule, tenant: str, name: str, value: int) -> dict[str, Any]:
    match how:
        case MergeRule.ADDED:
            return {"tenant": tenant, "currency": "USD", "account": name, "micros": value}
        case MergeRule.REPLACED:
            return {"tenant": tenant, "agent_id": "agent", "input_hash": name, "sketches": str(value)}
        case MergeRule.KEPT:
            return {
                "tenant": tenant,
                "output_hash": "",
                "agent_id": "agent",
                "input_hash": name,
                "contract_id": str(value),
                "signature": "",
            }


def merging(tenant: str, *merges: Merge, refused: bool = False) -> Write[None]:
    """A caller that wants these rows, and is perhaps refused in the end."""

    def write(writing: WriteTransaction) -> None:
        for how, name, value in merges:
            writing.merge(TABLES[how], how, **row_of(how, tenant, name, value))
        if refused:
            raise MeruitError("no")

    return write


def found(store: Store, tenant: str, how: MergeRule) -> dict[str, int]:
    """What stands, by name."""
    table: Table = TABLES[how]
    name, value = [column.name for column in table.columns if column.name != "signature"][-2:]
    query = select(table.c[name], table.c[value]).where(table.c.tenant == tenant)
    return {row[0]: int(row[1]) for row in read(store, lambda connection: connection.execute(query).all())}


def expected(how: MergeRule, before: int | None, value: int) -> int:
    """The rule, word for word."""
    if before is None:
        return value
    match how:
        case MergeRule.ADDED:
            return before + value
        case MergeRule.REPLACED:
            return value
        case MergeRule.KEPT:
            return before


@pytest.mark.parametrize(("how", "left"), [(MergeRule.ADDED, 7), (MergeRule.REPLACED, 4), (MergeRule.KEPT, 1)])
def test_a_row_is_merged_alike_within_a_caller_a_group_and_a_life(store: Store, how: MergeRule, left: int) -> None:
    one, two, four = ((how, "x", value) for value in (1, 2, 4))
    store.recorder.write(merging("caller", one, two, four))
    assert together(store, [merging("group", one), merging("group", two), merging("group", four)]) == [None] * 3
    for part in (one, two, four):
        store.recorder.write(merging("life", part))
    assert [found(store, tenant, how) for tenant in ("caller", "group", "life")] == [{"x": left}] * 3


@pytest.mark.parametrize("how", MergeRule)
def test_what_a_refused_caller_merged_is_forgotten_and_costs_the_others_nothing(store: Store, how: MergeRule) -> None:
    first, refused, last = (merging("acme", (how, "x", value), refused=value == 2) for value in (1, 2, 4))
    answers = together(store, [first, refused, last])
    assert [isinstance(answer, MeruitError) for answer in answers] == [False, True, False]
    assert found(store, "acme", how) == {"x": expected(how, 1, 4)}
    # The one who was refused came first, so there is nothing that it could have kept.
    answers = together(store, [merging("other", (how, "x", 2), refused=True), merging("other", (how, "x", 4))])
    assert isinstance(answers[0], MeruitError)
    assert found(store, "other", how) == {"x": 4}


@pytest.mark.parametrize("how", MergeRule)
def test_more_rows_than_a_statement_takes_are_all_merged(store: Store, how: MergeRule) -> None:
    names = [f"n{number:04}" for number in range(2 * MAX_ROWS + 3)]
    half = names[: MAX_ROWS + 1]
    store.recorder.write(merging("acme", *((how, name, 3) for name in half)))
    several = [
        merging("acme", *((how, name, 4) for name in names)),
        merging("acme", *((how, name, 5) for name in half)),
    ]
    assert together(store, several) == [None, None]
    wanted = {name: expected(how, None, 4) for name in names}
    wanted |= {name: expected(how, expected(how, 3, 4), 5) for name in half}
    assert found(store, "acme", how) == wanted


def test_numbers_of_both_signs_add_up_to_nothing_and_the_row_stays(store: Store) -> None:
    store.recorder.write(merging("acme", (MergeRule.ADDED, "x", 2**60), (MergeRule.ADDED, "x", 5)))
    store.recorder.write(merging("acme", (MergeRule.ADDED, "x", -(2**60) - 5)))
    assert found(store, "acme", MergeRule.ADDED) == {"x": 0}


def test_every_number_of_a_row_is_added(store: Store) -> None:
    def write(writing: WriteTransaction) -> None:
        for bonus in (0, 1, 1):
            writing.merge(
                tables.dealings,
                MergeRule.ADDED,
                tenant="acme",
                agent_id="a",
                consumer_id="b",
                outcomes=1,
                with_bonus=bonus,
            )

    store.recorder.write(write)
    store.recorder.write(write)
    (row,) = read(store, lambda connection: connection.execute(select(tables.dealings)).all())
    assert (row.outcomes, row.with_bonus) == (6, 4)


def test_rows_of_two_tenants_with_one_name_are_two_rows(store: Store) -> None:
    together(store, [merging("one", (MergeRule.ADDED, "x", 1)), merging("two", (MergeRule.ADDED, "x", 2))])
    assert [found(store, tenant, MergeRule.ADDED) for tenant in ("one", "two")] == [{"x": 1}, {"x": 2}]


def test_two_stores_on_one_database_add_to_the_same_row(store: Store) -> None:
    second = Store.open(store.database.location)
    try:
        for number in range(20):
            (store, second)[number % 2].recorder.write(merging("acme", (MergeRule.ADDED, "x", 1)))
    finally:
        second.close()
    assert found(store, "acme", MergeRule.ADDED) == {"x": 20}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store for many examples, each in a tenant of its own."""
    url = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    opened = Store.open(Location(tmp_path_factory.mktemp("shared"), url))
    yield opened
    opened.close()


callers = st.tuples(
    st.lists(
        st.tuples(st.sampled_from([*MergeRule]), st.sampled_from("xyz"), st.integers(-(10**12), 10**12)), max_size=4
    ),
    st.booleans(),
)


@settings(max_examples=30)
@given(groups=st.lists(st.lists(callers, min_size=1, max_size=4), min_size=1, max_size=4))
def test_groups_of_callers_come_to_what_they_would_one_after_the_other(
    shared: Store, groups: list[list[tuple[list[Merge], bool]]]
) -> None:
    tenant, wanted = f"tenant-{next(_NUMBERS)}", {how: dict[str, int]() for how in MergeRule}
    for group in groups:
        together(shared, [merging(tenant, *merges, refused=refused) for merges, refused in group])
        for merges, refused in group:
            for how, name, value in () if refused else merges:
                wanted[how][name] = expected(how, wanted[how].get(name), value)
    assert {how: found(shared, tenant, how) for how in MergeRule} == wanted


def test_a_balance_beyond_what_is_exact_is_refused(store: Store) -> None:
    store.recorder.write(merging("acme", (MergeRule.ADDED, "x", 2**62 - 1)))
    with pytest.raises(BalanceTooLarge):
        store.recorder.write(merging("acme", (MergeRule.ADDED, "x", 2**53)))
    assert found(store, "acme", MergeRule.ADDED) == {"x": 2**62 - 1}
