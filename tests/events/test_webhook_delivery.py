"""One webhook's turn: what is tried, in which order, how often, and with which signature."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from tests.events.delivering import (
    HASTE,
    LOOPBACK,
    TLS,
    Arrival,
    Heard,
    Receiver,
    dead_letters,
    delivering,
    dispatcher,
    emit,
    is_settled,
    running,
    until,
)

from meruit.events.dispatcher import Dispatcher
from meruit.events.store import webhooks
from meruit.events.store.deliveries import Redeliver
from meruit.events.webhook_delivery import DeliveryResult, DeliveryTiming
from meruit.sources.http_guard import Outbound, OutboundReply
from meruit.store.store import Store


def test_a_dead_letter_does_not_block_later_events(store: Store) -> None:
    async def scenario() -> None:
        async with (
            Receiver().open() as receiver,
            delivering(store, pace=msgspec.structs.replace(HASTE, retries_s=(0.002, 0.002))) as (_, heard),
        ):
            receiver.answer = lambda arrival: 503 if arrival.number in (0, 1) else 204
            made = receiver.add(store, "acme")
            seqs = emit(store, "acme", "aaab")
            await until(lambda: is_settled(store, made))
            assert [arrival.number for arrival in receiver.tried if arrival.subject == "a"] == [0, 0, 0, 1, 1, 1, 2]
            letters = dead_letters(store, "acme", made)
            assert [(one.seq, one.attempts, one.error) for one in letters] == [
                (seqs[0], 3, "answered 503"),
                (seqs[1], 3, "answered 503"),
            ]
            assert heard.attempts == {DeliveryResult.FAILED: 4, DeliveryResult.DEAD: 2, DeliveryResult.DELIVERED: 2}
            assert heard.deaths == 2

            await store.recorder.record(Redeliver("acme", made.webhook.id, seqs[1]))
            await until(lambda: len(receiver.tried) == 11 and is_settled(store, made))
            assert [one.seq for one in dead_letters(store, "acme", made)] == seqs[:2]
            receiver.answer = lambda _: 204
            for seq in seqs[:2]:
                await store.recorder.record(Redeliver("acme", made.webhook.id, seq))
            await until(lambda: not dead_letters(store, "acme", made) and is_settled(store, made))
            assert sorted(arrival.number for arrival in receiver.accepted) == [0, 1, 2, 3]

    asyncio.run(scenario())


def test_a_new_event_queues_behind_a_waiting_one(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with (
            Receiver().open() as receiver,
            delivering(shared, pace=msgspec.structs.replace(HASTE, retries_s=(3600.0,))) as (_, heard),
        ):
            receiver.answer = lambda arrival: 500 if arrival.number == 0 else 204
            receiver.add(shared, tenant)
            emit(shared, tenant, "a")
            await until(lambda: heard.attempts[DeliveryResult.FAILED])
            emit(shared, tenant, "aab", first=1)
            await until(partial(receiver.has, 3))
            emit(shared, tenant, "ab", first=4)
            await until(partial(receiver.has, 5))
            assert [arrival.number for arrival in receiver.tried] == [0, 3, 5]

    asyncio.run(scenario())


def test_events_of_a_subject_are_sent_one_at_a_time(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def answer(arrival: Arrival) -> int:
            if arrival.number == 0:
                await release.wait()
            return 204

        async with Receiver().open() as receiver, delivering(shared) as (_, _):
            receiver.answer = answer
            made = receiver.add(shared, tenant)
            emit(shared, tenant, "aab")
            await until(lambda: receiver.has(2) and len(receiver.tried) >= 2)
            assert sorted(arrival.number for arrival in receiver.tried) == [0, 2]
            release.set()
            await until(partial(is_settled, shared, made))
            assert receiver.first_arrivals()["a"] == [0, 1]

    asyncio.run(scenario())


def test_a_failed_redelivery_blocks_waiting_events(shared: Store, tenant: str) -> None:
    """It is the first of its subject again, and what was due is not due before it."""

    async def scenario() -> None:
        pace = msgspec.structs.replace(HASTE, retries_s=(0.05,) * 50)
        async with Receiver().open() as receiver, delivering(shared, pace=pace):
            receiver.answer = lambda arrival: 410 if arrival.number == 0 else 500
            made = receiver.add(shared, tenant)
            (first, _) = emit(shared, tenant, "aa")
            await until(lambda: dead_letters(shared, tenant, made) and len(receiver.tried) >= 2)
            receiver.answer = lambda _: 500
            await shared.recorder.record(Redeliver(tenant, made.webhook.id, first))
            await until(lambda: [arrival.number for arrival in receiver.tried[-3:]] == [0, 0, 0])
            receiver.answer = lambda _: 204
            await until(lambda: is_settled(shared, made))
            assert [arrival.number for arrival in receiver.accepted] == [0, 1]

    asyncio.run(scenario())


def test_gone_and_forbidden_endpoints_are_not_retried(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        heard = Heard()
        async with Receiver().open() as receiver, delivering(shared, heard):
            receiver.answer = lambda _: 410
            made = receiver.add(shared, tenant)
            emit(shared, tenant, "aa")
            await until(lambda: is_settled(shared, made))
            assert [arrival.number for arrival in receiver.tried] == [0, 1]
            assert [one.error for one in dead_letters(shared, tenant, made)] == ["answered 410"] * 2
        async with Receiver().open() as receiver, Outbound(tls=TLS) as careful:
            inside = receiver.add(shared, f"{tenant}-b")
            emit(shared, f"{tenant}-b", "a")
            async with running(dispatcher(shared, careful.post, heard)):
                await until(lambda: is_settled(shared, inside))
            (letter,) = dead_letters(shared, f"{tenant}-b", inside)
            assert "not public" in letter.error
            assert letter.attempts == 1
            assert not receiver.tried
        assert not heard.errors

    asyncio.run(scenario())


def test_any_other_failure_is_retried(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        errors = iter([RuntimeError("odd"), ValueError(), None])
        seen: list[bytes] = []
        second = asyncio.Event()

        async def post(url: str, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
            seen.append(content)
            problem = next(errors, None)
            if problem is not None:
                raise problem
            if len(seen) == 3:
                await asyncio.sleep(60)
            second.set()
            return OutboundReply(200, b"")

        heard = Heard()
        receiver = Receiver()
        made = receiver.add(shared, tenant)
        emit(shared, tenant, "a")
        async with running(dispatcher(shared, post, heard, msgspec.structs.replace(HASTE, post_s=0.02))):
            await second.wait()
            await until(lambda: is_settled(shared, made))
        assert len(seen) == 4
        assert len(set(seen)) == 1
        assert heard.attempts == {DeliveryResult.FAILED: 3, DeliveryResult.DELIVERED: 1}
        assert not heard.errors

    asyncio.run(scenario())


def test_a_signature_with_another_secret_is_invalid(shared: Store, tenant: str) -> None:
    """The receiver of these tests does verify."""

    async def scenario() -> None:
        sent: list[tuple[bytes, dict[str, str]]] = []

        async def post(url: str, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
            sent.append((content, dict(headers)))
            return OutboundReply(200, b"")

        made, other = (Receiver().add(shared, tenant) for _ in range(2))
        emit(shared, tenant, "a")
        async with running(dispatcher(shared, post, Heard())):
            await until(lambda: is_settled(shared, made) and is_settled(shared, other))
        verified = 0
        for content, headers in sent:
            with suppress(WebhookVerificationError):
                assert Verifier(made.secret).verify(content, headers)["tenant_id"] == tenant
                verified += 1
        assert (verified, len(sent)) == (1, 2)

    asyncio.run(scenario())


def test_a_turn_ends_in_time_and_records_its_progress(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async def answer(_: Arrival) -> int:
            await asyncio.sleep(0.02)
            return 204

        async with (
            Receiver().open() as receiver,
            delivering(shared, pace=msgspec.structs.replace(HASTE, turn_s=0.03)) as (made, _),
        ):
            receiver.answer = answer
            hook = receiver.add(shared, tenant)
            emit(shared, tenant, "abcdefgh" * 4)
            await until(lambda: hook.webhook.id in made._backoffs)
            with shared.database.reading() as connection:
                reached = webhooks.target(connection, hook.webhook.id)
            assert reached is not None
            await until(lambda: is_settled(shared, hook))
            assert sorted(arrival.number for arrival in receiver.accepted) == list(range(32))

    asyncio.run(scenario())


def test_counters_are_optional(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with Receiver().open() as receiver, Outbound(allowed_networks=[LOOPBACK], tls=TLS) as outbound:
            made = receiver.add(shared, tenant)
            receiver.answer = lambda arrival: 410
            emit(shared, tenant, "a")
            uncounted = Dispatcher(shared, outbound.post, log=lambda _: None, report=lambda _: None, pace=HASTE)
            async with running(uncounted):
                await until(lambda: is_settled(shared, made))

    asyncio.run(scenario())


def test_the_usual_delays_are_those_of_standard_webhooks() -> None:
    hours = 3600.0
    assert DeliveryTiming().retries_s == (
        5,
        300,
        1800,
        2 * hours,
        5 * hours,
        10 * hours,
        14 * hours,
        20 * hours,
        24 * hours,
    )
