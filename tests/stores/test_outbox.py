"""Cursors, leases, webhooks and what waits for them, on every kind of database."""

from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select
from tests.stores.making import together

from meruit.model.errors import MeruitError
from meruit.model.events import Event, EventType
from meruit.model.outcome import in_micros, written
from meruit.stores import outbox, tables
from meruit.stores.database import NotFound
from meruit.stores.location import Location
from meruit.stores.outbox import (
    BEHIND,
    AddWebhook,
    Advance,
    Delivery,
    IssuedWebhook,
    Lease,
    LeaseLost,
    LetGo,
    Redeliver,
    RemoveWebhook,
    Settle,
    TakeLease,
)
from meruit.stores.store import Store, Surroundings
from meruit.stores.writing import Writing

T = TypeVar("T")
ME, OTHER = "me", "other"
SECOND = 1_000_000


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    @property
    def micros(self) -> int:
        return in_micros(self.now)

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_location: Location, clock: Clock) -> Iterator[Store]:
    opened = Store.open(store_location, Surroundings(clock=clock))
    opened.recorder.write(TakeLease(ME, 3600))
    yield opened
    opened.close()


def emit(store: Store, *subjects: str, tenant: str = "acme", kind: EventType = EventType.OUTCOME_RECORDED) -> list[int]:
    """Events, in one transaction."""

    def write(writing: Writing) -> list[int]:
        return [writing.emit(tenant, kind, subject, f"{subject}:1", {"of": subject}) for subject in subjects]

    return store.recorder.write(write)


def add(store: Store, tenant: str = "acme", *types: str, url: str = "https://example.com/hook") -> IssuedWebhook:
    return store.recorder.write(AddWebhook(tenant, url, frozenset(types), store.surroundings.entropy))


def read(store: Store, reading: Callable[[Connection], T]) -> T:
    with store.database.reading() as connection:
        return reading(connection)


def due(store: Store, webhook_id: str, now: int) -> list[int]:
    return [one.numbered.seq for one in read(store, lambda c: outbox.due(c, webhook_id, now))]


def dead(store: Store, webhook_id: str) -> list[int]:
    return [one.seq for one in read(store, lambda c: outbox.dead(c, "acme", webhook_id))]


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
        timestamp=written(clock.now),
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
    taken = together(store, [TakeLease(ME, 10, "x"), TakeLease(OTHER, 10, "x"), LetGo(OTHER, "x")])
    assert [taken[0].holder, taken[1].holder] == [ME, ME]
    let_go, second = together(store, [LetGo(ME, "x"), TakeLease(OTHER, 10, "x")])
    assert (let_go, second.holder) == (None, OTHER)
    assert read(store, lambda c: outbox.lease(c, "x")) == second
    store.recorder.write(LetGo(ME, "y"))
    assert read(store, lambda c: outbox.lease(c, "y")) is None


def test_whoever_lost_the_lease_settles_nothing(store: Store, clock: Clock) -> None:
    hook = add(store).webhook
    (seq,) = emit(store, "s")
    clock.pass_s(3600)
    # Late, but nobody came: what was delivered may still be written down.
    assert store.recorder.write(Settle(hook.id, ME, upto=seq - 1))
    store.recorder.write(TakeLease(OTHER, 10))
    for write in (Settle(hook.id, ME, upto=seq), Advance("log", seq, ME)):
        with pytest.raises(LeaseLost, match="another process"):
            store.recorder.write(write)
    assert [one.id for one in read(store, lambda c: outbox.busy(c, clock.micros))] == [hook.id]
    assert read(store, lambda c: outbox.cursor(c, "log")) == 0


def test_a_webhooks_secret_is_shown_once(store: Store, clock: Clock) -> None:
    made = add(store, "acme", "key.revoked", "key.created")
    assert made.secret.startswith("whsec_")
    assert len(b64decode(made.secret.removeprefix("whsec_"), validate=True)) == 32
    assert made.webhook.id.startswith("whk_")
    assert made.webhook.types == ("key.created", "key.revoked")
    assert made.webhook.created_at == clock.now
    found = read(store, lambda c: outbox.find(c, "acme", made.webhook.id))
    assert found == made.webhook
    (listed,) = read(store, lambda c: outbox.page(c, "acme"))
    assert listed == made.webhook
    assert made.secret.encode() not in listed.to_json()
    kept = read(store, lambda c: outbox.target(c, made.webhook.id))
    assert kept is not None
    assert (kept.secret, kept.types) == (made.secret, frozenset(made.webhook.types))


def test_webhooks_are_listed_by_pages_and_only_to_their_tenant(store: Store) -> None:
    ours = sorted(add(store).webhook.id for _ in range(5))
    theirs = add(store, "rival").webhook
    first = read(store, lambda c: outbox.page(c, "acme", limit=3))
    rest = read(store, lambda c: outbox.page(c, "acme", after=first[-1].id, limit=3))
    assert [one.id for one in first + rest] == ours
    with pytest.raises(NotFound, match=theirs.id):
        read(store, lambda c: outbox.find(c, "acme", theirs.id))
    with pytest.raises(NotFound, match=theirs.id):
        read(store, lambda c: outbox.dead(c, "acme", theirs.id))
    with pytest.raises(NotFound, match=theirs.id):
        store.recorder.write(RemoveWebhook("acme", theirs.id))
    with pytest.raises(NotFound, match="dead letter 1"):
        store.recorder.write(Redeliver("acme", theirs.id, 1))
    assert read(store, lambda c: outbox.find(c, "rival", theirs.id)) == theirs


def test_an_unknown_type_is_refused_with_the_nearest(store: Store) -> None:
    with pytest.raises(MeruitError, match=r"'outcome.erase' .*'outcome.erased'"):
        add(store, "acme", "outcome.erase")
    assert read(store, lambda c: outbox.page(c, "acme")) == []


def test_a_tenant_has_so_many_webhooks_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WEBHOOKS", 3)
    new = AddWebhook("acme", "https://example.com", frozenset(), store.surroundings.entropy)
    assert [type(answer) for answer in together(store, [new] * 4)] == [*[IssuedWebhook] * 3, MeruitError]
    with pytest.raises(MeruitError, match="at most; remove one"):
        add(store)
    add(store, "rival")


def test_a_webhook_begins_with_what_comes_after_it(store: Store, clock: Clock) -> None:
    emit(store, "before")
    made = add(store).webhook
    assert read(store, lambda c: outbox.busy(c, clock.micros)) == []
    emit(store, "other tenant", tenant="rival")
    assert read(store, lambda c: outbox.busy(c, clock.micros)) == []
    emit(store, "after")
    (busy,) = read(store, lambda c: outbox.busy(c, clock.micros))
    assert (busy.id, busy.seq, busy.fresh, busy.due) == (made.id, 1, True, False)
    assert read(store, lambda c: outbox.busy(c, clock.micros, after=made.id)) == []


def test_a_webhook_made_in_the_transaction_of_an_event_is_not_sent_it(store: Store, clock: Clock) -> None:
    def told(writing: Writing) -> int:
        return writing.emit("acme", EventType.KEY_CREATED, "s", "k", {})

    new = AddWebhook("acme", "https://example.com", frozenset(), store.surroundings.entropy)
    together(store, [told, new, told])
    (busy,) = read(store, lambda c: outbox.busy(c, clock.micros))
    assert busy.seq == 1


def test_a_removed_webhook_leaves_nothing(store: Store, clock: Clock) -> None:
    made, kept = add(store).webhook, add(store).webhook
    (seq,) = emit(store, "s")
    waits = Delivery(seq, "s", 1, clock.micros)
    store.recorder.write(Settle(made.id, ME, seq, new=(waits,)))
    store.recorder.write(Settle(kept.id, ME, seq, new=(waits,)))
    (second,) = emit(store, "s")
    # What is settled in the same transaction goes with it, whichever comes first.
    late = Settle(made.id, ME, second, new=(Delivery(second, "s", 0, BEHIND),))
    assert together(store, [late, RemoveWebhook("acme", made.id)]) == [True, None]
    assert not store.recorder.write(late)
    assert read(store, lambda c: outbox.target(c, made.id)) is None
    assert read(store, lambda c: outbox.existing(c, [made.id, kept.id])) == {kept.id}
    rows = read(store, lambda c: c.execute(select(tables.deliveries.c.webhook_id)).scalars().all())
    assert rows == [kept.id]


def test_of_each_subject_only_the_first_is_due(store: Store, clock: Clock) -> None:
    hook = add(store).webhook.id
    seqs = emit(store, "a", "a", "b", "a", "c")
    now = clock.micros
    new = (
        Delivery(seqs[0], "a", 1, now + 5 * SECOND, "answered 500"),
        Delivery(seqs[1], "a", 0, BEHIND),
        Delivery(seqs[2], "b", 1, now + 3 * SECOND, "x" * 1000),
        Delivery(seqs[3], "a", 0, BEHIND),
    )
    assert store.recorder.write(Settle(hook, ME, upto=seqs[4], new=new))
    assert read(store, lambda c: outbox.busy(c, now)) == []
    assert due(store, hook, now) == []
    later = now + 5 * SECOND
    (busy,) = read(store, lambda c: outbox.busy(c, later))
    assert (busy.fresh, busy.due) == (False, True)
    found = read(store, lambda c: outbox.due(c, hook, later))
    assert [(one.numbered.seq, one.numbered.subject, one.attempts) for one in found] == [
        (seqs[2], "b", 1),
        (seqs[0], "a", 1),
    ]
    assert due(store, hook, later)[:1] == [
        one.numbered.seq for one in read(store, lambda c: outbox.due(c, hook, later, limit=1))
    ]
    assert read(store, lambda c: outbox.waiting_subjects(c, hook, ["a", "c", "b"])) == {"a", "b"}
    (longest,) = read(
        store,
        lambda c: c.execute(select(tables.deliveries.c.error).where(tables.deliveries.c.seq == seqs[2])).scalars(),
    )
    assert len(longest) == outbox.MAX_ERROR_CHARS


def test_what_queues_follows_when_the_first_is_delivered_or_dead(store: Store, clock: Clock) -> None:
    hook = add(store).webhook.id
    first, second, third = emit(store, "a", "a", "a")
    now = clock.micros
    new = (Delivery(first, "a", 1, now), Delivery(second, "a", 0, BEHIND), Delivery(third, "a", 0, BEHIND))
    store.recorder.write(Settle(hook, ME, upto=third, new=new))
    assert due(store, hook, now) == [first]

    store.recorder.write(Settle(hook, ME, again=(Delivery(first, "a", 2, now + SECOND),)))
    assert due(store, hook, now) == []
    clock.pass_s(1)
    now = clock.micros
    assert due(store, hook, now) == [first]
    store.recorder.write(Settle(hook, ME, done=(Delivery(first, "a", 3, 0),)))
    assert due(store, hook, now) == [second]
    store.recorder.write(Settle(hook, ME, again=(Delivery(second, "a", 1, now, "answered 410", dead_at=now),)))
    assert (due(store, hook, now), dead(store, hook)) == ([third], [second])
    store.recorder.write(Settle(hook, ME, done=(Delivery(third, "a", 1, 0),)))
    assert (due(store, hook, now), dead(store, hook)) == ([], [second])


def test_dead_letters_are_listed_and_can_be_tried_again(store: Store, clock: Clock) -> None:
    hook = add(store).webhook.id
    seqs = emit(store, "a", "b", "a", "a")
    now = clock.micros
    gone = tuple(
        Delivery(seq, subject, 10, now, "answered 500", dead_at=now)
        for seq, subject in zip(seqs[:3], "aba", strict=True)
    )
    waits = Delivery(seqs[3], "a", 4, now + 60 * SECOND, "answered 503")
    store.recorder.write(Settle(hook, ME, upto=seqs[3], new=(*gone, waits)))
    (letter, *_) = read(store, lambda c: outbox.dead(c, "acme", hook))
    assert (letter.seq, letter.attempts, letter.error, letter.dead_at) == (seqs[0], 10, "answered 500", clock.now)
    assert letter.event.data == {"of": "a"}
    assert [one.seq for one in read(store, lambda c: outbox.dead(c, "acme", hook, after=seqs[0], limit=1))] == [seqs[1]]
    # A dead letter holds up nobody.
    assert read(store, lambda c: outbox.waiting_subjects(c, hook, ["a", "b"])) == {"a"}
    assert due(store, hook, now + 60 * SECOND) == [seqs[3]]

    store.recorder.write(Redeliver("acme", hook, seqs[2]))
    assert dead(store, hook) == seqs[:2]
    (again,) = read(store, lambda c: outbox.due(c, hook, clock.micros))
    assert (again.numbered.seq, again.attempts) == (seqs[2], 0)
    # One that waits for a time of its own keeps it.
    store.recorder.write(Settle(hook, ME, done=(Delivery(seqs[2], "a", 1, 0),)))
    assert due(store, hook, now) == []
    assert due(store, hook, now + 60 * SECOND) == [seqs[3]]
    for seq in (seqs[2], seqs[3], 999):
        with pytest.raises(NotFound, match=f"no dead letter {seq}"):
            store.recorder.write(Redeliver("acme", hook, seq))
