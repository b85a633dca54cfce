"""Events, cursors and leases, on every kind of database."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.events.emitting import ME, OTHER, SECOND, Clock, emit, read
from tests.outcomes.making import together

from meruit.events.store import outbox
from meruit.events.store.outbox import Advance, Lease, ReleaseLease, TakeLease
from meruit.model.events import Event, EventType
from meruit.model.time import to_rfc3339
from meruit.store.store import Store


def test_an_event_is_read_as_it_was_told(store: Store, clock: Clock) -> None:
    (seq,) = emit(store, "contract-1")
    (found,) = read(store, lambda c: outbox.events_after(c, 0, tenant="acme"))
    assert (found.seq, found.subject) == (seq, "contract-1")
    assert found.event.event_id.startswith("evt_")
    assert found.event == Event(
        event_id=found.event.event_id,
        event_type="outcome.recorded",
        schema_version="1",
        idempotency_key="contract-1:1",
        timestamp=to_rfc3339(clock.now),
        source="meruit",
        tenant_id="acme",
        data={"of": "contract-1"},
    )


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(list(EventType)[:3])), max_size=12),
    st.sets(st.sampled_from(list(EventType)[:3])),
    st.integers(1, 5),
)
def test_pages_hold_every_event_that_was_asked_for_once_and_in_order(
    store: Store, told: list[tuple[str, EventType]], types: set[EventType], limit: int
) -> None:
    begun = read(store, outbox.newest)
    for number, (owner, kind) in enumerate(told):
        emit(store, str(number), tenant=owner, kind=kind)
    asked: tuple[str | None, ...] = ("a", "b", None)
    for tenant in asked:
        place, seen, full = begun, list[str](), True
        while full:
            chosen = frozenset(map(str, types))
            page = read(store, lambda c: outbox.page_after(c, place, tenant=tenant, limit=limit, types=chosen))  # noqa: B023 - called at once
            assert len(page.events) <= limit
            seen += [one.subject for one in page.events]
            place, full = page.upto, page.full
        assert place == read(store, outbox.newest) or seen[-1] == str(len(told) - 1)
        expected = [
            str(number)
            for number, (owner, kind) in enumerate(told)
            if tenant in (None, owner) and (not types or kind in types)
        ]
        assert seen == expected


def test_a_cursor_begins_at_the_start_and_never_goes_back(store: Store) -> None:
    assert read(store, lambda c: outbox.cursor(c, "log")) == 0
    for seq, expected in ((5, 5), (3, 5), (9, 9)):
        store.recorder.write(Advance("log", seq, ME))
        assert read(store, lambda c: outbox.cursor(c, "log")) == expected
    assert read(store, lambda c: outbox.cursor(c, "other")) == 0


def test_a_cursor_that_is_made_and_moved_in_one_transaction_is_one(store: Store) -> None:
    assert together(store, [Advance("log", 2, ME), Advance("log", 7, ME), Advance("log", 4, ME)]) == [None] * 3
    assert read(store, lambda c: outbox.cursor(c, "log")) == 7


def test_a_lease_is_for_one_until_it_ends(store: Store, clock: Clock) -> None:
    assert read(store, lambda c: outbox.lease(c, "x")) is None
    mine = Lease(ME, clock.micros + 10 * SECOND)
    assert store.recorder.write(TakeLease(ME, 10, "x")) == mine
    assert store.recorder.write(TakeLease(OTHER, 10, "x")) == mine
    clock.pass_s(9)
    renewed = store.recorder.write(TakeLease(ME, 10, "x"))
    assert renewed == Lease(ME, mine.until + 9 * SECOND)
    clock.pass_s(9.9)
    assert store.recorder.write(TakeLease(OTHER, 10, "x")) == renewed
    clock.pass_s(0.1)
    assert store.recorder.write(TakeLease(OTHER, 10, "x")).holder == OTHER
    assert store.recorder.write(TakeLease(ME, 10, "x")).holder == OTHER
    assert read(store, lambda c: outbox.lease(c, "x")) == Lease(OTHER, clock.micros + 10 * SECOND)


def test_of_several_that_want_a_lease_in_one_transaction_the_first_has_it(store: Store) -> None:
    taken = together(store, [TakeLease(ME, 10, "x"), TakeLease(OTHER, 10, "x"), ReleaseLease(OTHER, "x")])
    assert [taken[0].holder, taken[1].holder] == [ME, ME]
    let_go, second = together(store, [ReleaseLease(ME, "x"), TakeLease(OTHER, 10, "x")])
    assert (let_go, second.holder) == (None, OTHER)
    assert read(store, lambda c: outbox.lease(c, "x")) == second
    store.recorder.write(ReleaseLease(ME, "y"))
    assert read(store, lambda c: outbox.lease(c, "y")) is None
