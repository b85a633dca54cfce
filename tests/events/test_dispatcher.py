"""Events reach the log, webhooks and streams at least once, each subject in order, even when something fails."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from tests.events.delivering import (
    ACCEPT_AND_HANG_UP,
    HANG_UP,
    HASTE,
    LOOPBACK,
    TLS,
    Arrival,
    Heard,
    Receiver,
    delivering,
    dispatcher,
    emit,
    in_order,
    is_settled,
    never,
    running,
    until,
)

from meruit.errors import StoreUnavailable
from meruit.events import dispatcher as dispatch
from meruit.events import webhook_delivery as delivery
from meruit.events.dispatcher import Dispatcher
from meruit.events.store import outbox
from meruit.events.store.webhooks import RemoveWebhook
from meruit.events.webhook_delivery import DeliveryResult
from meruit.model.events import Event, EventType
from meruit.sources.http_guard import Outbound
from meruit.store import tables
from meruit.store.database import Database
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction


def test_a_webhook_gets_later_events_in_order(store: Store) -> None:
    async def scenario() -> None:
        emit(store, "acme", "ab", first=100)
        async with Receiver().open() as receiver, delivering(store) as (_, heard):
            made = receiver.add(store, "acme")
            for part in ("aab", "bca", "c"):
                emit(store, "acme", part, first=len(receiver.accepted))
                await until(lambda: is_settled(store, made))
            assert receiver.first_arrivals() == in_order("aabbcac")
            assert [arrival.number for arrival in receiver.accepted].count(3) == 1
            await until(lambda: len(heard.logged) == 9)
            assert heard.numbers("acme") == [100, 101, *range(7)]
            await until(lambda: heard.lags[-1] == 0)
        assert not heard.errors
        assert heard.attempts == {DeliveryResult.DELIVERED: 7}
        assert max(heard.lags) > 0

    asyncio.run(scenario())


@settings(max_examples=15)
@given(
    st.text("abc", min_size=1, max_size=25),
    st.lists(st.sampled_from([204, 200, 500, 302, HANG_UP, ACCEPT_AND_HANG_UP]), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_every_event_arrives_in_order_per_subject(
    shared: Store, subjects: str, answers: list[int], chance: random.Random
) -> None:
    async def scenario() -> None:
        tenant = f"p{random.SystemRandom().getrandbits(60):x}"
        async with Receiver().open() as receiver, delivering(shared) as (_, heard):
            left = iter(answers)
            receiver.answer = lambda _: next(left, 204)
            made = receiver.add(shared, tenant)
            place = 0
            while place < len(subjects):
                size = chance.randint(1, 8)
                emit(shared, tenant, subjects[place : place + size], first=place)
                place += size
                await asyncio.sleep(chance.choice([0, 0.003]))
            await until(lambda: is_settled(shared, made))
            assert receiver.first_arrivals() == in_order(subjects)
            # Nobody was overtaken: when one is tried, all before it were taken or are being retried no more.
            for subject, numbers in in_order(subjects).items():
                tried = [arrival.number for arrival in receiver.tried if arrival.subject == subject]
                assert list(dict.fromkeys(tried)) == numbers
            assert not heard.errors
            shared.recorder.write(RemoveWebhook(tenant, made.webhook.id))

    asyncio.run(scenario())


def test_a_crash_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in the middle of anything, nothing let go, its lease left to run out."""
    subjects = "abcabdaabbcc" * 4

    async def no_closing(self: Dispatcher) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def scenario() -> None:
        chance = random.Random(7)
        heard = Heard()
        async with Receiver().open() as receiver, Outbound(allowed_networks=[LOOPBACK], tls=TLS) as outbound:
            receiver.answer = lambda _: chance.choice([204, 204, 500, ACCEPT_AND_HANG_UP])
            made = receiver.add(store, "acme")
            emit(store, "acme", subjects)
            with monkeypatch.context() as crashing:
                crashing.setattr(Dispatcher, "_close", no_closing)
                for _ in range(8):
                    crashed = dispatcher(store, outbound.post, heard, msgspec.structs.replace(HASTE, lease_s=0.05))
                    task = asyncio.create_task(crashed.run(asyncio.Event()))
                    await asyncio.sleep(chance.uniform(0.03, 0.12))
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            async with delivering(store, heard):
                await until(lambda: is_settled(store, made))
                await until(lambda: set(heard.numbers("acme")) == set(range(len(subjects))))
            assert receiver.first_arrivals() == in_order(subjects)
            firsts = list(dict.fromkeys(heard.numbers("acme")))
            assert firsts == sorted(firsts)

    asyncio.run(scenario())


def test_of_two_processes_one_delivers_and_the_other_takes_over(store: Store) -> None:
    async def scenario() -> None:
        second = Store.open(store.database.location)
        try:
            async with Receiver().open() as receiver, delivering(second) as (_, other):
                async with delivering(store) as (_, heard):
                    made = receiver.add(store, "acme")
                    for number in range(10):
                        # Written by one, perhaps delivered by the other.
                        emit((store, second)[number % 2], "acme", "ab", first=2 * number)
                        await until(lambda: is_settled(store, made))
                emit(store, "acme", "a", first=20)
                await until(lambda: len(receiver.accepted) == 21)
                await until(lambda: len(heard.logged) + len(other.logged) == 21)
                assert receiver.first_arrivals() == in_order("ab" * 10 + "a")
                assert not heard.errors + other.errors
        finally:
            second.close()

    asyncio.run(scenario())


def test_a_lost_lease_records_nothing_and_events_come_again(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        stolen = False

        def steal(writing: WriteTransaction) -> None:
            # Somebody whose clock is ahead; gone again at once.
            writing.change(update(tables.leases).values(holder="thief", until=writing.now.micros))

        async def answer(_: Arrival) -> int:
            nonlocal stolen
            if not stolen:
                stolen = True
                await shared.recorder.record(steal)
            return 204

        async with Receiver().open() as receiver, delivering(shared) as (_, heard):
            receiver.answer = answer
            made = receiver.add(shared, tenant)
            emit(shared, tenant, "a")
            await until(lambda: is_settled(shared, made))
            assert [arrival.number for arrival in receiver.accepted] == [0, 0]
            assert not heard.errors

    asyncio.run(scenario())


def test_a_live_lease_of_another_process_is_respected(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with Receiver().open() as receiver:
            made = receiver.add(shared, tenant)
            await shared.recorder.record(outbox.TakeLease("other", 60))
            emit(shared, tenant, "a")
            async with delivering(shared) as (_, heard):
                await until(lambda: len(heard.lags) > 5)
                assert not receiver.tried
                assert not heard.logged
                await shared.recorder.record(outbox.ReleaseLease("other"))
                await until(lambda: is_settled(shared, made))
            # Two that see it free at the same time: the database decides.
            made_twice = dispatcher(shared, never, heard)
            await shared.recorder.record(outbox.TakeLease("other", 60))
            assert not await made_twice._hold_lease(None)
            await shared.recorder.record(outbox.ReleaseLease("other"))

    asyncio.run(scenario())


def test_tenants_and_types_are_kept_apart(store: Store) -> None:
    async def scenario() -> None:
        async with Receiver().open() as receiver, delivering(store):
            hooks = {
                "acme": receiver.add(store, "acme"),
                "rival": receiver.add(store, "rival"),
                "narrow": receiver.add(store, "acme", "key.revoked", "outcome.erased"),
            }
            kinds = [EventType.OUTCOME_RECORDED, EventType.KEY_REVOKED, EventType.OUTCOME_ERASED]
            for number in range(12):
                for tenant in ("acme", "rival"):
                    emit(store, tenant, "s", kinds[number % 3], first=number)
            for made in hooks.values():
                await until(partial(is_settled, store, made))
            got: Counter[tuple[str, str]] = Counter((arrival.tenant, arrival.type) for arrival in receiver.accepted)
            assert got == {
                ("acme", "outcome.recorded"): 4,
                ("acme", "key.revoked"): 8,
                ("acme", "outcome.erased"): 8,
                ("rival", "outcome.recorded"): 4,
                ("rival", "key.revoked"): 4,
                ("rival", "outcome.erased"): 4,
            }

    asyncio.run(scenario())


def test_a_stop_finishes_and_records_deliveries_in_progress(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        begun, release = asyncio.Event(), asyncio.Event()

        async def answer(_: Arrival) -> int:
            begun.set()
            await release.wait()
            return 204

        async with Receiver().open() as receiver, Outbound(allowed_networks=[LOOPBACK], tls=TLS) as outbound:
            receiver.answer = answer
            receiver.add(shared, tenant)
            emit(shared, tenant, "a" * 30)
            stopping = asyncio.Event()
            task = asyncio.create_task(dispatcher(shared, outbound.post, Heard()).run(stopping))
            await begun.wait()
            stopping.set()
            release.set()
            await task
            finished = len(receiver.accepted)
            assert 1 <= finished <= delivery.MAX_POSTS
            with shared.database.reading() as connection:
                lease = outbox.lease(connection)
            assert lease is not None
            async with delivering(shared):
                await until(lambda: len(receiver.accepted) >= 30)
            assert [arrival.number for arrival in receiver.accepted] == list(range(30))

    asyncio.run(scenario())


@pytest.mark.parametrize("cancelled", [True, False])
def test_unfinished_deliveries_are_made_by_the_next_process(shared: Store, tenant: str, cancelled: bool) -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def answer(_: Arrival) -> int:
            await release.wait()
            return 204

        async with Receiver().open() as receiver, Outbound(allowed_networks=[LOOPBACK], tls=TLS) as outbound:
            receiver.answer = answer
            made = receiver.add(shared, tenant)
            emit(shared, tenant, "a")
            stopping = asyncio.Event()
            hasty = dispatcher(shared, outbound.post, Heard(), msgspec.structs.replace(HASTE, closing_s=0.02))
            task = asyncio.create_task(hasty.run(stopping))
            await until(lambda: receiver.tried)
            if cancelled:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                stopping.set()
                await task
            release.set()
            async with delivering(shared):
                await until(lambda: is_settled(shared, made))
            assert len(receiver.tried) == 2

    asyncio.run(scenario())


def test_a_failing_log_is_reported_and_retried(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        before = Heard()
        async with running(dispatcher(shared, never, before)):
            # One page for all of ours.
            await until(lambda: before.lags and before.lags[-1] == 0)
        emit(shared, tenant, "abc")
        heard = Heard()
        failures = iter([OSError("disk full")])

        def log(several: Sequence[Event]) -> None:
            for event in several:
                if event.data.get("number") == 1 and event.tenant_id == tenant:
                    for failure in failures:
                        raise failure
                heard.log([event])

        made = Dispatcher(shared, never, log=log, report=heard.errors.append, pace=HASTE)
        async with running(made):
            await until(lambda: 2 in heard.numbers(tenant))
        assert heard.numbers(tenant) == [0, 0, 1, 2]
        assert [str(error) for error in heard.errors] == ["disk full"]
        again = Heard()
        async with running(dispatcher(shared, never, again)):
            await until(lambda: len(again.lags) > 3)
        assert again.logged == []

    asyncio.run(scenario())


def test_a_long_log_is_read_page_by_page(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LOG_PAGE", 7)

    async def scenario() -> None:
        emit(shared, tenant, "ab" * 50)
        heard = Heard()
        async with running(dispatcher(shared, never, heard, msgspec.structs.replace(HASTE, poll_s=60.0))):
            await until(lambda: len(heard.numbers(tenant)) == 100)
        assert heard.numbers(tenant) == list(range(100))

    asyncio.run(scenario())


def test_a_failing_database_is_reported_and_retried(
    shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        chance = random.Random(3)
        reading = Database.reading

        def sometimes(self: Database) -> Any:
            if chance.random() < 0.4:
                raise StoreUnavailable("disk-full")
            return reading(self)

        async with Receiver().open() as receiver:
            made = receiver.add(shared, tenant)
            with monkeypatch.context() as failing:
                failing.setattr(Database, "reading", sometimes)
                async with delivering(shared) as (_, heard):
                    emit(shared, tenant, "abcab")
                    await until(lambda: len(receiver.accepted) >= 5 and len(heard.errors) > 3)
            async with delivering(shared):
                await until(lambda: is_settled(shared, made))
            assert {str(error) for error in heard.errors} == {"disk-full"}
            assert receiver.first_arrivals() == in_order("abcab")

    asyncio.run(scenario())


def test_a_store_that_is_closed_first_is_reported(store: Store) -> None:
    async def scenario() -> Heard:
        emit(store, "acme", "a")
        heard = Heard()
        async with running(dispatcher(store, never, heard)):
            await until(lambda: heard.logged)
            await asyncio.sleep(0.02)
            store.recorder.close()
        return heard

    heard = asyncio.run(scenario())
    assert {type(error) for error in heard.errors} == {StoreUnavailable}


def test_the_page_on_events_names_every_type() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "events.md").read_text(encoding="utf-8")
    assert [kind for kind in EventType if f"| `{kind}` |" not in page] == []
