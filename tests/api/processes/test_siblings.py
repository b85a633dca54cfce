"""Messages between workers."""

import asyncio
import os
import socket

import pytest

from meruit.api.processes import siblings
from meruit.api.processes.siblings import MAX_MESSAGE, MessageTopic, Siblings

PATIENCE_S = 60.0


def _family(count: int) -> list[Siblings]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
    return [Siblings(number, inbox, [tx for _, tx in pairs]) for number, (inbox, _) in enumerate(pairs)]


def _close(family: list[Siblings]) -> None:
    for one in family:
        one._inbox.close()
    for outbox in family[0]._outboxes:
        outbox.close()


def test_a_message_reaches_every_other_worker() -> None:
    async def check() -> None:
        family = _family(3)
        heard: list[tuple[int, bytes]] = []
        done = asyncio.Event()
        for one in family:

            def note(content: bytes, number: int = one.index) -> None:
                heard.append((number, content))
                if len(heard) == 4:
                    done.set()

            one.on(MessageTopic.EVENTS, note)
            one.listen()
        # Without a handler, and too long to send: neither disturbs the others.
        family[0].send(MessageTopic.KEYS)
        family[0].send(MessageTopic.EVENTS, b"x" * MAX_MESSAGE)
        family[0].send(MessageTopic.EVENTS, b"12")
        family[2].send(MessageTopic.EVENTS, b"1 3")
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        assert sorted(heard) == [(0, b"1 3"), (1, b"1 3"), (1, b"12"), (2, b"12")]
        for one in family:
            await one.close()
        _close(family)

    asyncio.run(check())


def test_metrics_of_any_size_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "ANSWER_S", PATIENCE_S)

    async def check() -> None:
        family = _family(3)
        large = os.urandom(3_000_000)
        family[1].on_metrics(lambda: large)
        # The third has nothing to say.
        for one in family:
            one.listen()
        assert await family[0].ask_metrics() == {1: large, 2: None}
        for one in family:
            await one.close()
        _close(family)

    asyncio.run(check())


def test_a_worker_that_does_not_listen_has_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        family = _family(2)
        monkeypatch.setattr(siblings, "ANSWER_S", 0.05)
        assert await family[0].ask_metrics() == {1: None}
        # A question to a worker that is gone is dropped at once, and so is a message.
        monkeypatch.setattr(siblings, "ANSWER_S", PATIENCE_S)
        family[1]._inbox.close()
        assert await family[0].ask_metrics() == {1: None}
        family[0].send(MessageTopic.KEYS)
        _close(family)

    asyncio.run(check())
