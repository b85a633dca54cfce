"""Requests of one key that come at once share a read of it, and none relies on a read that was overtaken."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meruit.api.auth import Authenticator
from meruit.api.rate_limit import Throttle
from meruit.errors import ApiProblem
from meruit.model.access import Caller, Role
from meruit.store.location import Location
from meruit.store.store import Store

TOGETHER = 20
OWNER = Caller("t", Role.OPERATOR, "key_1")
ASKING: Any = SimpleNamespace(
    headers={"authorization": "Bearer secret"}, client=SimpleNamespace(host="127.0.0.1"), scope={"headers": []}
)
KEYLESS: Any = SimpleNamespace(
    headers={"host": "127.0.0.1"},
    client=SimpleNamespace(host="127.0.0.1"),
    scope={"headers": [(b"host", b"127.0.0.1")]},
)


@pytest.fixture
def authenticator(tmp_path: Path) -> Iterator[Authenticator]:
    store = Store.open(Location(tmp_path))
    # Its clock stands still, so that what is cached stays so.
    yield Authenticator(store, Throttle(10**6, 10**6), timer=lambda: 1.0)
    store.close()


class Held:
    """A read that ends when it may."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.begun = 0
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self._answer = answer

    def __call__(self, *_asked: Any) -> Any:
        self.begun += 1
        found = self._answer()
        self.has_begun.set()
        assert self.may_end.wait(60)
        return found


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("asking", "name"), [(ASKING, "_find_caller"), (KEYLESS, "_has_keys")])
def test_requests_at_once_share_a_read(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch, asking: Any, name: str
) -> None:
    read = Held(lambda: OWNER if name == "_find_caller" else False)
    monkeypatch.setattr(authenticator, name, read)

    async def use() -> None:
        several = [asyncio.create_task(authenticator.authenticate(asking)) for _ in range(TOGETHER)]
        await _turns()
        # One that leaves takes the answer from none of the others.
        several[0].cancel()
        await _turns()
        read.may_end.set()
        found = await asyncio.gather(*several, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert len({one.tenant for one in found[1:] if isinstance(one, Caller)}) == 1
        await authenticator.authenticate(asking)

    asyncio.run(use())
    assert read.begun == 1


def test_a_wrong_key_fails_each_request(authenticator: Authenticator) -> None:
    async def use() -> list[Any]:
        asked = (authenticator.authenticate(ASKING) for _ in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(use())
    assert [one.status for one in found if isinstance(one, ApiProblem)] == [401] * 3


def test_a_read_that_was_overtaken_is_not_remembered(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Caller | None] = [OWNER]
    read = Held(lambda: found[0])
    monkeypatch.setattr(authenticator, "_find_caller", read)

    async def use() -> None:
        before = asyncio.create_task(authenticator.authenticate(ASKING))
        assert await asyncio.to_thread(read.has_begun.wait, 60)
        # Revoked while it is being read.
        found[0] = None
        authenticator.clear_cache()
        read.may_end.set()
        assert await before == OWNER
        with pytest.raises(ApiProblem):
            await authenticator.authenticate(ASKING)

    asyncio.run(use())


def test_a_session_that_ended_while_it_was_read_is_not_remembered(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Caller | None] = [OWNER]
    read = Held(lambda: found[0])
    monkeypatch.setattr(authenticator, "_find_by_session", read)
    monkeypatch.setattr(authenticator, "_has_keys", lambda: True)

    async def use() -> None:
        before = asyncio.create_task(authenticator.identify_browser(KEYLESS, "token"))
        assert await asyncio.to_thread(read.has_begun.wait, 60)
        found[0] = None
        authenticator.clear_cache()
        read.may_end.set()
        assert await before == OWNER
        assert await authenticator.identify_browser(KEYLESS, "token") is None

    asyncio.run(use())


def test_keys_stay_needed_after_an_answer_that_was_overtaken(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_keys = [False]
    read = Held(lambda: has_keys[0])
    monkeypatch.setattr(authenticator, "_has_keys", read)

    async def use() -> None:
        before = asyncio.create_task(authenticator.authenticate(KEYLESS))
        assert await asyncio.to_thread(read.has_begun.wait, 60)
        has_keys[0] = True
        authenticator.clear_cache()
        after = asyncio.create_task(authenticator.authenticate(KEYLESS))
        read.may_end.set()
        await asyncio.gather(before, after, return_exceptions=True)
        with pytest.raises(ApiProblem):
            await after
        with pytest.raises(ApiProblem):
            await authenticator.authenticate(KEYLESS)

    asyncio.run(use())
