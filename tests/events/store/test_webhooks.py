"""Webhooks are made, listed and removed, on every kind of database."""

from base64 import b64decode

import pytest
from sqlalchemy import select
from tests.events.emitting import ME, Clock, add, emit, read
from tests.outcomes.making import together

from meruit.errors import NotFound, WebhookRejected
from meruit.events.store import deliveries, webhooks
from meruit.events.store.deliveries import BEHIND, Delivery, Redeliver, SettleDeliveries
from meruit.events.store.webhooks import AddWebhook, IssuedWebhook, RemoveWebhook
from meruit.model.events import EventType
from meruit.store import tables
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction


def test_a_webhooks_secret_is_shown_once(store: Store, clock: Clock) -> None:
    made = add(store, "acme", "key.revoked", "key.created")
    assert made.secret.startswith("whsec_")
    assert len(b64decode(made.secret.removeprefix("whsec_"), validate=True)) == 32
    assert made.webhook.id.startswith("whk_")
    assert made.webhook.types == ("key.created", "key.revoked")
    assert made.webhook.created_at == clock.now
    found = read(store, lambda c: webhooks.find(c, "acme", made.webhook.id))
    assert found == made.webhook
    (listed,) = read(store, lambda c: webhooks.page(c, "acme"))
    assert listed == made.webhook
    assert made.secret.encode() not in listed.to_json()
    kept = read(store, lambda c: webhooks.target(c, made.webhook.id))
    assert kept is not None
    assert (kept.secret, kept.types) == (made.secret, frozenset(made.webhook.types))


def test_webhooks_are_listed_by_pages_and_only_to_their_tenant(store: Store) -> None:
    ours = sorted(add(store).webhook.id for _ in range(5))
    theirs = add(store, "rival").webhook
    first = read(store, lambda c: webhooks.page(c, "acme", limit=3))
    rest = read(store, lambda c: webhooks.page(c, "acme", after=first[-1].id, limit=3))
    assert [one.id for one in first + rest] == ours
    with pytest.raises(NotFound, match=theirs.id):
        read(store, lambda c: webhooks.find(c, "acme", theirs.id))
    with pytest.raises(NotFound, match=theirs.id):
        read(store, lambda c: deliveries.dead_letters(c, "acme", theirs.id))
    with pytest.raises(NotFound, match=theirs.id):
        store.recorder.write(RemoveWebhook("acme", theirs.id))
    with pytest.raises(NotFound, match="dead letter 1"):
        store.recorder.write(Redeliver("acme", theirs.id, 1))
    assert read(store, lambda c: webhooks.find(c, "rival", theirs.id)) == theirs


def test_an_unknown_type_is_refused_with_the_nearest(store: Store) -> None:
    with pytest.raises(WebhookRejected, match=r"'outcome.erase' .*'outcome.erased'"):
        add(store, "acme", "outcome.erase")
    assert read(store, lambda c: webhooks.page(c, "acme")) == []


def test_a_tenant_has_so_many_webhooks_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MAX_WEBHOOKS", 3)
    new = AddWebhook("acme", "https://example.com", frozenset(), store.surroundings.entropy)
    assert [type(answer) for answer in together(store, [new] * 4)] == [*[IssuedWebhook] * 3, WebhookRejected]
    with pytest.raises(WebhookRejected):
        add(store)
    add(store, "rival")


def test_a_webhook_begins_with_what_comes_after_it(store: Store, clock: Clock) -> None:
    emit(store, "before")
    made = add(store).webhook
    assert read(store, lambda c: deliveries.pending_webhooks(c, clock.micros)) == []
    emit(store, "other tenant", tenant="rival")
    assert read(store, lambda c: deliveries.pending_webhooks(c, clock.micros)) == []
    emit(store, "after")
    (busy,) = read(store, lambda c: deliveries.pending_webhooks(c, clock.micros))
    assert (busy.id, busy.seq, busy.fresh, busy.due) == (made.id, 1, True, False)
    assert read(store, lambda c: deliveries.pending_webhooks(c, clock.micros, after=made.id)) == []


def test_a_webhook_made_in_the_transaction_of_an_event_is_not_sent_it(store: Store, clock: Clock) -> None:
    def told(writing: WriteTransaction) -> int:
        return writing.emit("acme", EventType.KEY_CREATED, "s", "k", {})

    new = AddWebhook("acme", "https://example.com", frozenset(), store.surroundings.entropy)
    together(store, [told, new, told])
    (busy,) = read(store, lambda c: deliveries.pending_webhooks(c, clock.micros))
    assert busy.seq == 1


def test_a_removed_webhook_leaves_nothing(store: Store, clock: Clock) -> None:
    made, kept = add(store).webhook, add(store).webhook
    (seq,) = emit(store, "s")
    waits = Delivery(seq, "s", 1, clock.micros)
    store.recorder.write(SettleDeliveries(made.id, ME, seq, new=(waits,)))
    store.recorder.write(SettleDeliveries(kept.id, ME, seq, new=(waits,)))
    (second,) = emit(store, "s")
    # What is settled in the same transaction goes with it, whichever comes first.
    late = SettleDeliveries(made.id, ME, second, new=(Delivery(second, "s", 0, BEHIND),))
    assert together(store, [late, RemoveWebhook("acme", made.id)]) == [True, None]
    assert not store.recorder.write(late)
    assert read(store, lambda c: webhooks.target(c, made.id)) is None
    assert read(store, lambda c: webhooks.existing(c, [made.id, kept.id])) == {kept.id}
    rows = read(store, lambda c: c.execute(select(tables.deliveries.c.webhook_id)).scalars().all())
    assert rows == [kept.id]
