"""What waits for a webhook, in which order it is due, and what is dead, on every kind of database."""

import pytest
from sqlalchemy import select
from tests.events.emitting import ME, OTHER, SECOND, Clock, add, emit, read

from meruit.errors import LeaseLost, NotFound
from meruit.events.store import deliveries, outbox
from meruit.events.store.deliveries import BEHIND, Delivery, Redeliver, SettleDeliveries
from meruit.events.store.outbox import Advance, TakeLease
from meruit.store import tables
from meruit.store.store import Store


def due(store: Store, webhook_id: str, now: int) -> list[int]:
    return [one.outbox_event.seq for one in read(store, lambda c: deliveries.due_retries(c, webhook_id, now))]


def dead(store: Store, webhook_id: str) -> list[int]:
    return [one.seq for one in read(store, lambda c: deliveries.dead_letters(c, "acme", webhook_id))]


def test_whoever_lost_the_lease_settles_nothing(store: Store, clock: Clock) -> None:
    hook = add(store).webhook
    (seq,) = emit(store, "s")
    clock.pass_s(3600)
    # Late, but nobody came: what was delivered may still be written down.
    assert store.recorder.write(SettleDeliveries(hook.id, ME, upto=seq - 1))
    store.recorder.write(TakeLease(OTHER, 10))
    for write in (SettleDeliveries(hook.id, ME, upto=seq), Advance("log", seq, ME)):
        with pytest.raises(LeaseLost, match="another process"):
            store.recorder.write(write)
    assert [one.id for one in read(store, lambda c: deliveries.pending_webhooks(c, clock.micros))] == [hook.id]
    assert read(store, lambda c: outbox.cursor(c, "log")) == 0


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
    assert store.recorder.write(SettleDeliveries(hook, ME, upto=seqs[4], new=new))
    assert read(store, lambda c: deliveries.pending_webhooks(c, now)) == []
    assert due(store, hook, now) == []
    later = now + 5 * SECOND
    (busy,) = read(store, lambda c: deliveries.pending_webhooks(c, later))
    assert (busy.fresh, busy.due) == (False, True)
    found = read(store, lambda c: deliveries.due_retries(c, hook, later))
    assert [(one.outbox_event.seq, one.outbox_event.subject, one.attempts) for one in found] == [
        (seqs[2], "b", 1),
        (seqs[0], "a", 1),
    ]
    assert due(store, hook, later)[:1] == [
        one.outbox_event.seq for one in read(store, lambda c: deliveries.due_retries(c, hook, later, limit=1))
    ]
    assert read(store, lambda c: deliveries.waiting_subjects(c, hook, ["a", "c", "b"])) == {"a", "b"}
    (longest,) = read(
        store,
        lambda c: c.execute(select(tables.deliveries.c.error).where(tables.deliveries.c.seq == seqs[2])).scalars(),
    )
    assert len(longest) == deliveries.MAX_ERROR_CHARS


def test_what_queues_follows_when_the_first_is_delivered_or_dead(store: Store, clock: Clock) -> None:
    hook = add(store).webhook.id
    first, second, third = emit(store, "a", "a", "a")
    now = clock.micros
    new = (Delivery(first, "a", 1, now), Delivery(second, "a", 0, BEHIND), Delivery(third, "a", 0, BEHIND))
    store.recorder.write(SettleDeliveries(hook, ME, upto=third, new=new))
    assert due(store, hook, now) == [first]

    store.recorder.write(SettleDeliveries(hook, ME, again=(Delivery(first, "a", 2, now + SECOND),)))
    assert due(store, hook, now) == []
    clock.pass_s(1)
    now = clock.micros
    assert due(store, hook, now) == [first]
    store.recorder.write(SettleDeliveries(hook, ME, done=(Delivery(first, "a", 3, 0),)))
    assert due(store, hook, now) == [second]
    store.recorder.write(
        SettleDeliveries(hook, ME, again=(Delivery(second, "a", 1, now, "answered 410", dead_at=now),))
    )
    assert (due(store, hook, now), dead(store, hook)) == ([third], [second])
    store.recorder.write(SettleDeliveries(hook, ME, done=(Delivery(third, "a", 1, 0),)))
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
    store.recorder.write(SettleDeliveries(hook, ME, upto=seqs[3], new=(*gone, waits)))
    (letter, *_) = read(store, lambda c: deliveries.dead_letters(c, "acme", hook))
    assert (letter.seq, letter.attempts, letter.error, letter.dead_at) == (seqs[0], 10, "answered 500", clock.now)
    assert letter.event.data == {"of": "a"}
    assert [
        one.seq for one in read(store, lambda c: deliveries.dead_letters(c, "acme", hook, after=seqs[0], limit=1))
    ] == [seqs[1]]
    # A dead letter holds up nobody.
    assert read(store, lambda c: deliveries.waiting_subjects(c, hook, ["a", "b"])) == {"a"}
    assert due(store, hook, now + 60 * SECOND) == [seqs[3]]

    store.recorder.write(Redeliver("acme", hook, seqs[2]))
    assert dead(store, hook) == seqs[:2]
    (again,) = read(store, lambda c: deliveries.due_retries(c, hook, clock.micros))
    assert (again.outbox_event.seq, again.attempts) == (seqs[2], 0)
    # One that waits for a time of its own keeps it.
    store.recorder.write(SettleDeliveries(hook, ME, done=(Delivery(seqs[2], "a", 1, 0),)))
    assert due(store, hook, now) == []
    assert due(store, hook, now + 60 * SECOND) == [seqs[3]]
    for seq in (seqs[2], seqs[3], 999):
        with pytest.raises(NotFound, match=str(seq)):
            store.recorder.write(Redeliver("acme", hook, seq))
