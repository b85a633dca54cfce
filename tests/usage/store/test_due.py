"""Which runs are to be looked at: by account, by day, in the order of their ends, each once."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection
from tests.events.emitting import Clock
from tests.usage.metering import BEGUN, ENDED, metered
from tests.usage.metering import Place as Tenant

from meruit.model.time import to_micros
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.store.accounts import AcquireAccountLease, ChangeCredential
from meruit.usage.store.due import (
    DAY,
    AccountQuery,
    DueDay,
    UsageRunCursor,
    UsageRunFilter,
    account_page,
    accounts_due,
    accounts_with_new_key,
    days_due,
    due_page,
    find_runs,
    newest_seq,
)
from meruit.usage.store.record_runs import RecordRuns

T = TypeVar("T")
A_DAY = timedelta(days=1)
LATER = to_micros(ENDED + 400 * A_DAY)
ACCOUNT = "main"


@pytest.fixture
def here(store: Store) -> Tenant:
    return Tenant(store, "acme")


def read(here: Tenant, ask: Callable[[Connection], T]) -> T:
    with here.store.database.reading() as connection:
        return ask(connection)


# Any: whatever can be chosen.
def asked(here: Tenant, now: int = LATER, **choice: Any) -> AccountQuery:
    return AccountQuery(here.tenant, ACCOUNT, now, UsageRunFilter(**choice))


def record(here: Tenant, run_id: str, after: timedelta = timedelta(0), **more: Any) -> None:
    """A run that is so much later than the first."""
    here.write(here.record(run_id, **{"started_at": BEGUN + after, "ended_at": ENDED + after, **more}))


def test_only_runs_that_have_ended_and_whose_time_has_come_are_due(here: Tenant) -> None:
    record(here, "a")
    record(here, "open", ended_at=None)
    first = to_micros(ENDED + timedelta(minutes=10))
    assert read(here, lambda one: days_due(one, asked(here, first - 1))) == []
    (day,) = read(here, lambda one: days_due(one, asked(here, first)))
    assert day == DueDay(first // DAY, to_micros(BEGUN), to_micros(ENDED), 1)
    assert read(here, lambda one: accounts_due(one, first - 1, UsageRunFilter())) == []
    assert read(here, lambda one: accounts_due(one, first, UsageRunFilter())) == [("acme", ACCOUNT)]
    assert read(here, lambda one: accounts_due(one, first, UsageRunFilter(tenant="other"))) == []


def test_days_are_those_of_the_ends_of_runs_oldest_first(here: Tenant) -> None:
    for number, after in enumerate((3 * A_DAY, timedelta(0), timedelta(hours=2), 3 * A_DAY)):
        record(here, f"r{number}", after)
    record(here, "long", 3 * A_DAY, started_at=BEGUN - A_DAY)
    record(here, "unknown", started_at=None)
    days = read(here, lambda one: days_due(one, asked(here)))
    assert [(day.day - to_micros(ENDED) // DAY, day.runs) for day in days] == [(0, 3), (3, 3)]
    assert (days[0].first, days[0].last) == (to_micros(BEGUN), to_micros(ENDED + timedelta(hours=2)))
    assert days[1].first == to_micros(BEGUN - A_DAY)


def test_a_filter_restricts_the_due_runs(here: Tenant) -> None:
    record(here, "a", framework="ours")
    record(here, "b", 2 * A_DAY, framework="theirs")
    record(here, "c", 4 * A_DAY, framework="theirs")
    chooses: list[tuple[dict[str, Any], str]] = [
        ({"framework": "theirs"}, "bc"),
        ({"run_id": "a"}, "a"),
        ({"run_id": "a", "framework": "theirs"}, ""),
        ({"ended_since": ENDED + A_DAY, "ended_until": ENDED + 2 * A_DAY}, "b"),
        ({"ended_until": ENDED}, "a"),
    ]
    for choice, names in chooses:
        days = read(here, partial(days_due, account_query=asked(here, **choice)))
        assert sum(day.runs for day in days) == len(names)
        found = read(here, partial(find_runs, run_filter=UsageRunFilter(tenant="acme", **choice), limit=10))
        assert [one.run.id for one in found] == [*reversed(names)]
        assert not UsageRunFilter(**choice).is_unfiltered
    assert UsageRunFilter(tenant="acme").is_unfiltered
    assert len(read(here, lambda one: find_runs(one, UsageRunFilter(), 2))) == 2


def test_accounts_that_were_asked_with_another_key_are_found(here: Tenant) -> None:
    here.write(ChangeCredential("acme", "main", "old"))
    here.write(ChangeCredential("acme", "second", "same"))
    here.write(ChangeCredential("other", "main", "old"))
    here.write(AcquireAccountLease("acme", "unknown", "me", 10))
    keys = {"main": "new", "second": "same", "never asked": "key"}
    assert read(here, lambda one: accounts_with_new_key(one, keys, UsageRunFilter())) == [
        ("acme", "main"),
        ("other", "main"),
    ]
    assert read(here, lambda one: accounts_with_new_key(one, keys, UsageRunFilter(tenant="acme"))) == [("acme", "main")]
    assert read(here, lambda one: accounts_with_new_key(one, {}, UsageRunFilter())) == []


def test_the_newest_run_is_the_last_that_was_recorded(here: Tenant) -> None:
    assert read(here, lambda one: newest_seq(one, here.tenant)) == 0
    record(here, "a")
    record(here, "b", -A_DAY)
    assert read(here, lambda one: newest_seq(one, here.tenant)) == here.found("b").seq


def test_runs_recorded_after_the_cohorts_were_read_are_left_out(here: Tenant) -> None:
    record(here, "a")
    known = read(here, lambda one: newest_seq(one, here.tenant))
    record(here, "b")
    page = read(here, lambda one: account_page(one, asked(here), LATER, known, UsageRunCursor(0), 10))
    assert [row.id for row in page] == ["a"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path_factory.mktemp("due")), ClockAndEntropy(clock=Clock()))
    yield opened
    opened.close()


@given(
    ends=st.lists(st.integers(0, 3 * 24 * 60), max_size=12),
    size=st.integers(1, 5),
    until=st.integers(-10, 3 * 24 * 60 + 10),
)
def test_pages_hold_every_run_once_in_the_order_of_their_ends(
    shared: Store, ends: list[int], size: int, until: int
) -> None:
    here = Tenant(shared, f"t{next(_NUMBERS)}")
    runs = [
        metered(f"r{number}", started_at=BEGUN + timedelta(minutes=one), ended_at=ENDED + timedelta(minutes=one))
        for number, one in enumerate(ends)
    ]
    here.write(RecordRuns(here.tenant, "me", runs))
    known = read(here, lambda one: newest_seq(one, here.tenant))
    moment = to_micros(BEGUN + timedelta(minutes=until))
    ordered = sorted(range(len(ends)), key=lambda number: (ends[number], number))

    def walked(page: Callable[..., list[AttributionRun]]) -> list[str]:
        found: list[str] = []
        place = UsageRunCursor(0)
        while rows := read(here, partial(page, after=place)):
            assert len(rows) <= size
            found += (row.id for row in rows)
            assert rows[-1].ended_at is not None
            place = UsageRunCursor(rows[-1].ended_at, rows[-1].seq)
        return found

    all_of_them = walked(partial(account_page, account_query=asked(here), until=moment, known=known, limit=size))
    assert all_of_them == [f"r{number}" for number in ordered if ends[number] < until]
    for day in read(here, lambda one: days_due(one, asked(here))):
        due = walked(partial(due_page, account_query=asked(here), day=day.day, limit=size))
        mine = [number for number in ordered if to_micros(ENDED + timedelta(minutes=ends[number])) // DAY == day.day]
        assert due == [f"r{number}" for number in mine]
        assert day.runs == len(mine)


_NUMBERS = count()
