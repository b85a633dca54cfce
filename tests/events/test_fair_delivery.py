"""Everybody gets a turn: webhooks that hang, fail or are removed do not delay others."""

import asyncio
from functools import partial

import msgspec
import pytest
from tests.events.delivering import (
    HASTE,
    Arrival,
    Heard,
    Receiver,
    delivering,
    dispatcher,
    emit,
    is_settled,
    never,
    until,
)

from meruit.events import dispatcher as dispatch
from meruit.events import webhook_delivery as delivery
from meruit.events.store import deliveries
from meruit.events.store.webhooks import RemoveWebhook
from meruit.events.webhook_delivery import DeliveryTiming
from meruit.store.store import Store


def test_hanging_endpoints_do_not_delay_others(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_TURNS", 4)
    monkeypatch.setattr(dispatch, "MAX_SLOW_TURNS", 2)

    async def scenario() -> None:
        release = asyncio.Event()

        async def answer(arrival: Arrival) -> int:
            if arrival.tenant.endswith("-slow"):
                await release.wait()
            return 204

        async with Receiver().open() as receiver:
            receiver.answer = answer
            hanging = [receiver.add(shared, f"{tenant}-slow") for _ in range(7)]
            good = receiver.add(shared, tenant)
            emit(shared, f"{tenant}-slow", "abcdef")
            async with delivering(shared, pace=msgspec.structs.replace(HASTE, post_s=0.05, rest_s=60.0)) as (made, _):
                await until(lambda: {one.webhook.id for one in hanging} <= set(made._backoffs))
            async with delivering(shared, pace=msgspec.structs.replace(HASTE, post_s=60.0)) as (made, _):
                made._backoffs = {one.webhook.id: dispatch._Backoff(1, 0.0) for one in hanging}
                for number in range(20):
                    emit(shared, tenant, "a", first=number)
                    await until(partial(is_settled, shared, good))
                assert sum(one.webhook.id in made._tasks for one in hanging) == 2
                release.set()
                for one in hanging:
                    await until(partial(is_settled, shared, one))

    asyncio.run(scenario())


def test_every_webhook_gets_a_turn_with_one_slot(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_TURNS", 1)
    monkeypatch.setattr(dispatch, "MAX_BUSY", 2)
    monkeypatch.setattr(dispatch, "PAGE", 3)

    async def scenario() -> None:
        async with Receiver().open() as receiver, delivering(shared):
            hooks = [receiver.add(shared, tenant) for _ in range(5)]
            emit(shared, tenant, "abcabca")
            for made in hooks:
                await until(partial(is_settled, shared, made))
            assert len(receiver.accepted) == 35

    asyncio.run(scenario())


def test_a_failing_endpoint_is_called_less_often(shared: Store, tenant: str) -> None:
    """Its events stay where they are; when it is back, all of them arrive."""

    async def scenario() -> None:
        async with (
            Receiver().open() as receiver,
            delivering(shared, pace=msgspec.structs.replace(HASTE, rest_s=0.02)) as (made, _),
        ):
            receiver.answer = lambda _: 500
            hook = receiver.add(shared, tenant)
            emit(shared, tenant, "".join(chr(97 + number) for number in range(25)) * 2)
            await until(lambda: hook.webhook.id in made._backoffs and made._backoffs[hook.webhook.id].bad_turns >= 4)
            # At most MAX_FAILURES and those already begun in each turn.
            assert len(receiver.tried) <= 5 * (delivery.MAX_FAILURES + delivery.MAX_POSTS)
            with shared.database.reading() as connection:
                waiting = deliveries.due_retries(connection, hook.webhook.id, deliveries.BEHIND - 1)
            assert len(waiting) < 25
            receiver.answer = lambda _: 204
            await until(lambda: is_settled(shared, hook))
            assert len(receiver.accepted) == 50
            await until(lambda: hook.webhook.id not in made._backoffs)

    asyncio.run(scenario())


def test_backoffs_are_limited_in_number(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_BACKOFFS", 3)

    async def scenario() -> None:
        made = dispatcher(shared, never, Heard())
        for number in range(10):
            made._back_off(str(number), 100.0)
        assert list(made._backoffs) == ["7", "8", "9"]
        made._update_backoff("8", dispatch._TurnResult())
        made._update_backoff("9", dispatch._TurnResult(slow=True))
        assert made._backoffs["9"].bad_turns == 0
        assert made._is_free("9")
        assert not made._is_free("7")
        made._pace = DeliveryTiming()
        rest_s = 0.0
        for turn in range(400):
            made._update_backoff("x", dispatch._TurnResult(bad=True))
            rest_s = made._backoffs["x"].until - asyncio.get_running_loop().time()
            assert rest_s <= min(2.0**turn, dispatch.MAX_REST_S)
        assert rest_s > dispatch.MAX_REST_S - 1

    asyncio.run(scenario())


def test_a_deleted_webhook_gets_no_events(store: Store) -> None:
    async def scenario() -> None:
        async def answer(_: Arrival) -> int:
            await asyncio.sleep(0.03)
            return 204

        async with Receiver().open() as receiver, delivering(store) as (made, heard):
            receiver.answer = answer
            removed, kept = receiver.add(store, "acme"), receiver.add(store, "rival")
            emit(store, "acme", "abcdefgh" * 12)
            await until(lambda: len(receiver.tried) > 8)
            await store.recorder.record(RemoveWebhook("acme", removed.webhook.id))
            await until(lambda: removed.webhook.id not in made._tasks)
            stopped = len(receiver.tried)
            assert stopped < 90
            emit(store, "acme", "abc")
            emit(store, "rival", "a")
            await until(lambda: is_settled(store, kept))
            assert len(receiver.tried) == stopped + 1
            assert not heard.errors
            # Deleted between the read and the turn.
            ended = await made._serve(deliveries.PendingWebhook(removed.webhook.id, 0, fresh=True, due=True))
            assert ended == dispatch._TurnResult()

    asyncio.run(scenario())
