"""Whoever follows hears of everything that is new, soon and not too often."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.events.delivering import (
    HASTE,
    Heard,
    dispatcher,
    emit,
    never,
    running,
    until,
)

from meruit.events import dispatcher as dispatch
from meruit.events.dispatcher import Dispatcher
from meruit.events.store import outbox
from meruit.model.events import EventType, OutboxEvent
from meruit.store.store import Store


def test_a_stream_yields_all_events_of_its_tenant(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PAGE", 2)

    async def scenario() -> None:
        second = Store.open(store.database.location)
        stopping = asyncio.Event()

        async def collect(
            made: Dispatcher, seen: list[int], tenant: str, after: int, types: frozenset[str] | None
        ) -> None:
            places: list[int] = []
            async for one in made.follow(tenant, after, types, stopping):
                if one is not None:
                    places.append(one.seq)
                    assert one.event.tenant_id == tenant
                    seen.append(one.event.data["number"])
            assert places == sorted(set(places))

        asked: list[tuple[str, int, frozenset[str] | None]] = [
            *[("acme", 0, None)] * 5,
            ("acme", 2, None),
            ("acme", 0, frozenset({"key.revoked"})),
            ("rival", 0, None),
        ]
        expected = [*[list(range(153))] * 5, list(range(2, 153)), list(range(10, 153, 10)), [7]]
        seen: list[list[int]] = [[] for _ in asked]
        try:
            emit(store, "acme", "abc")
            made = dispatcher(store, never, Heard())
            async with running(made):
                followers = [
                    asyncio.create_task(collect(made, into, *which)) for into, which in zip(seen, asked, strict=True)
                ]
                for number in range(3, 153):
                    writer = (store, second)[number % 2]
                    kind = EventType.KEY_REVOKED if number % 10 == 0 else EventType.KEY_CREATED
                    await asyncio.to_thread(emit, writer, "acme", "a", kind, number)
                emit(second, "rival", "z", first=7)
                await until(lambda: list(map(len, seen)) == list(map(len, expected)))
                stopping.set()
                await asyncio.gather(*followers)
            assert seen == expected
        finally:
            second.close()

    asyncio.run(scenario())


def test_an_idle_stream_sends_heartbeats_and_ends_on_stop(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        heard = Heard()
        emit(shared, tenant, "ab")
        made = dispatcher(shared, never, heard)
        async with running(made):
            stopping = asyncio.Event()
            seen: list[OutboxEvent | None] = []
            async for one in made.follow(tenant, 0, None, stopping):
                seen.append(one)
                if seen[-2:] == [None, None]:
                    emit(shared, tenant, "c", first=2)
                if one is not None and one.event.data["number"] == 2:
                    stopping.set()
            assert [one and one.event.data["number"] for one in seen][:4] == [0, 1, None, None]
            assert seen[-1] is not None
            # Told before it began, while waiting, and in the middle of a page.
            none = [one async for one in made.follow(tenant, 0, None, stopping)]
            assert none == []
            waiting = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, waiting.set)
            patient = made.follow(f"{tenant}-x", 0, None, waiting)
            assert [one async for one in patient if one is not None] == []
            middle = asyncio.Event()
            async for _ in made.follow(tenant, 0, None, middle):
                assert not middle.is_set()
                middle.set()
            leaving = made.follow(tenant, 0, None, asyncio.Event())
            assert await anext(leaving) is not None
            await leaving.aclose()

    asyncio.run(scenario())


def test_many_commits_wake_a_stream_few_times(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        made = dispatcher(
            shared, never, Heard(), msgspec.structs.replace(HASTE, gather_s=0.05, poll_s=5.0, heartbeat_s=5.0)
        )
        reads = 0
        read = dispatch._page

        def counted(*asked: Any, **more: Any) -> outbox.OutboxPage:
            nonlocal reads
            reads += 1
            return read(*asked, **more)

        monkeypatch.setattr(dispatch, "_page", counted)
        stopping = asyncio.Event()
        seen = 0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        writing = asyncio.create_task(
            asyncio.to_thread(lambda: [emit(shared, tenant, "a", first=number) for number in range(60)])
        )
        async for one in made.follow(tenant, 0, None, stopping):
            seen += one is not None
            if seen == 60:
                stopping.set()
        await writing
        assert reads <= (loop.time() - begun) / 0.05 + 3

    asyncio.run(scenario())


def test_a_commit_after_the_loop_ended_is_dropped(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with running(dispatcher(shared, never, Heard())):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    (seq,) = emit(shared, tenant, "a")
    assert seq > 0
