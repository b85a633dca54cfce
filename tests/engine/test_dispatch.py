"""What was recorded reaches log, webhooks and followers: at least once, each subject in order, whatever fails."""

import asyncio
import ipaddress
import random
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from meruit.engine import dispatch
from meruit.engine.dispatch import Dispatcher, Pace, Post, Result
from meruit.model.events import Event, EventType, Numbered
from meruit.sources.outbound import Outbound, Reply
from meruit.stores import outbox, tables
from meruit.stores.database import Database, StoreUnavailable
from meruit.stores.location import Location
from meruit.stores.outbox import AddWebhook, DeadLetter, IssuedWebhook, Redeliver, RemoveWebhook
from meruit.stores.store import Store
from meruit.stores.writing import Writing

HASTE = Pace(
    poll_s=0.01,
    gather_s=0.001,
    heartbeat_s=0.02,
    pause_s=0.01,
    lease_s=20.0,
    turn_s=5.0,
    post_s=5.0,
    closing_s=5.0,
    rest_s=0.0,
    retries_s=(0.002,) * 200,
)
LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")
PATIENCE_S = 60.0
# Nothing here speaks TLS, and the usual context takes a quarter of a second to make.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
HANG_UP, ACCEPT_AND_HANG_UP = 0, 1
"""Instead of a status: the connection is closed, before or after the event was taken."""


@pytest.fixture
def store(store_location: Location) -> Iterator[Store]:
    """On every kind of database."""
    opened = Store.open(store_location)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For what does not depend on the database; each test has tenants of its own."""
    opened = Store.open(Location(tmp_path_factory.mktemp("shared")))
    yield opened
    opened.close()


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return f"t{random.getrandbits(60):x}"


class Arrival(NamedTuple):
    """What a receiver was sent, its signature verified."""

    event_id: str
    tenant: str
    type: str
    key: str
    subject: str
    number: int


class Receiver:
    """A real server on the loopback that answers as it is told."""

    def __init__(self) -> None:
        self.accepted: list[Arrival] = []
        self.tried: list[Arrival] = []
        self.secrets: dict[str, str] = {}
        self.answer: Callable[[Arrival], int | Awaitable[int]] = lambda _: 204
        self._address = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Receiver"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self._address = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    def add(self, store: Store, tenant: str, *types: str) -> IssuedWebhook:
        """A webhook that leads here."""
        url = f"{self._address}/{len(self.secrets)}"
        made = store.recorder.write(AddWebhook(tenant, url, frozenset(types), store.surroundings.entropy))
        self.secrets[f"/{len(self.secrets)}"] = made.secret
        return made

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            status = await self._receive(request.split(" ")[1], headers, body)
            if status >= 200:
                writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _receive(self, path: str, headers: dict[str, str], body: bytes) -> int:
        event = Verifier(self.secrets[path]).verify(body, headers)
        assert headers["webhook-id"] == event["event_id"]
        assert headers["content-type"] == "application/json"
        data = event["data"]
        arrival = Arrival(
            event["event_id"],
            event["tenant_id"],
            event["event_type"],
            event["idempotency_key"],
            data["subject"],
            data["number"],
        )
        self.tried.append(arrival)
        answer = self.answer(arrival)
        status = answer if isinstance(answer, int) else await answer
        if status in (200, 204, ACCEPT_AND_HANG_UP):
            self.accepted.append(arrival)
        return status

    def has(self, number: int) -> bool:
        """Whether the event of that number was taken."""
        return any(arrival.number == number for arrival in self.accepted)

    def first_arrivals(self) -> dict[str, list[int]]:
        """The numbers of each subject's events, each as it was first taken."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for arrival in self.accepted:
            if arrival.number not in found[arrival.subject]:
                found[arrival.subject].append(arrival.number)
        return dict(found)


class Heard:
    """What a dispatcher tells: the log, errors and numbers."""

    def __init__(self) -> None:
        self.logged: list[Event] = []
        self.errors: list[Exception] = []
        self.attempts: Counter[str] = Counter()
        self.deaths = 0
        self.lags: list[int] = []

    def log(self, event: Event) -> None:
        self.logged.append(event)

    def attempted(self, result: str) -> None:
        self.attempts[result] += 1

    def died(self) -> None:
        self.deaths += 1

    def lag(self, count: int) -> None:
        self.lags.append(count)

    def numbers(self, tenant: str) -> list[int]:
        return [event.data["number"] for event in self.logged if event.tenant_id == tenant]


def dispatcher(store: Store, post: Post, heard: Heard, pace: Pace = HASTE) -> Dispatcher:
    return Dispatcher(
        store, post, log=heard.log, report=heard.errors.append, counters=heard, pace=pace, jitter=lambda: 0.5
    )


async def never(url: str, content: bytes, headers: Mapping[str, str]) -> Reply:
    raise AssertionError("nothing was to be sent")


@asynccontextmanager
async def running(made: Dispatcher) -> AsyncIterator[None]:
    """At work in the background as long as the block lasts."""
    stopping = asyncio.Event()
    task = asyncio.create_task(made.run(stopping))
    try:
        yield
    finally:
        stopping.set()
        await task


@asynccontextmanager
async def delivering(
    store: Store, heard: Heard | None = None, pace: Pace = HASTE
) -> AsyncIterator[tuple[Dispatcher, Heard]]:
    """A dispatcher at work, with the client that the service uses."""
    heard = heard or Heard()
    async with Outbound(allowed_networks=[LOOPBACK], tls=TLS) as outbound:
        made = dispatcher(store, outbound.post, heard, pace)
        async with running(made):
            yield made, heard


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - much of it is decided by the database
            await asyncio.sleep(0.004)


def emit(
    store: Store, tenant: str, subjects: str, kind: EventType = EventType.OUTCOME_RECORDED, first: int = 0
) -> list[int]:
    """An event for each letter, in one transaction."""

    def write(writing: Writing) -> list[int]:
        return [
            writing.emit(tenant, kind, subject, f"{tenant}:{number}", {"subject": subject, "number": number})
            for number, subject in enumerate(subjects, start=first)
        ]

    return store.recorder.write(write)


def in_order(subjects: str) -> dict[str, list[int]]:
    return {
        subject: [number for number, one in enumerate(subjects) if one == subject]
        for subject in dict.fromkeys(subjects)
    }


def dead_letters(store: Store, tenant: str, made: IssuedWebhook) -> list[DeadLetter]:
    with store.database.reading() as connection:
        return outbox.dead(connection, tenant, made.webhook.id)


def is_settled(store: Store, made: IssuedWebhook) -> bool:
    """Whether the webhook was sent all there is, and nothing waits for it."""
    with store.database.reading() as connection:
        found = outbox.target(connection, made.webhook.id)
        busy = outbox.busy(connection, outbox.BEHIND)
    assert found is not None
    return made.webhook.id not in {one.id for one in busy}


def test_a_webhook_is_sent_what_happens_after_it_was_added_in_order(store: Store) -> None:
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
        assert heard.attempts == {Result.DELIVERED: 7}
        assert max(heard.lags) > 0

    asyncio.run(scenario())


@settings(max_examples=15)
@given(
    st.text("abc", min_size=1, max_size=25),
    st.lists(st.sampled_from([204, 200, 500, 302, HANG_UP, ACCEPT_AND_HANG_UP]), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_every_event_arrives_and_each_subjects_first_arrivals_are_in_order(
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
                    crashed = dispatcher(store, outbound.post, heard, HASTE._replace(lease_s=0.05))
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


def test_whoever_lost_the_lease_keeps_nothing_and_the_events_come_again(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        stolen = False

        def steal(writing: Writing) -> None:
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


def test_a_lease_of_somebody_alive_is_respected(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with Receiver().open() as receiver:
            made = receiver.add(shared, tenant)
            await shared.recorder.record(outbox.TakeLease("other", 60))
            emit(shared, tenant, "a")
            async with delivering(shared) as (_, heard):
                await until(lambda: len(heard.lags) > 5)
                assert not receiver.tried
                assert not heard.logged
                await shared.recorder.record(outbox.LetGo("other"))
                await until(lambda: is_settled(shared, made))
            # Two that see it free at the same time: the database decides.
            made_twice = dispatcher(shared, never, heard)
            await shared.recorder.record(outbox.TakeLease("other", 60))
            assert not await made_twice._holds(None)
            await shared.recorder.record(outbox.LetGo("other"))

    asyncio.run(scenario())


def test_after_the_last_attempt_an_event_is_dead_and_holds_up_nobody(store: Store) -> None:
    async def scenario() -> None:
        async with (
            Receiver().open() as receiver,
            delivering(store, pace=HASTE._replace(retries_s=(0.002, 0.002))) as (_, heard),
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
            assert heard.attempts == {Result.FAILED: 4, Result.DEAD: 2, Result.DELIVERED: 2}
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


def test_what_is_new_of_a_subject_waits_behind_what_waits(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with (
            Receiver().open() as receiver,
            delivering(shared, pace=HASTE._replace(retries_s=(3600.0,))) as (_, heard),
        ):
            receiver.answer = lambda arrival: 500 if arrival.number == 0 else 204
            receiver.add(shared, tenant)
            emit(shared, tenant, "a")
            await until(lambda: heard.attempts[Result.FAILED])
            emit(shared, tenant, "aab", first=1)
            await until(partial(receiver.has, 3))
            emit(shared, tenant, "ab", first=4)
            await until(partial(receiver.has, 5))
            assert [arrival.number for arrival in receiver.tried] == [0, 3, 5]

    asyncio.run(scenario())


def test_an_event_is_not_sent_while_an_earlier_one_of_its_subject_is_on_its_way(shared: Store, tenant: str) -> None:
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
            await until(partial(receiver.has, 2))
            assert sorted(arrival.number for arrival in receiver.tried) == [0, 2]
            release.set()
            await until(partial(is_settled, shared, made))
            assert receiver.first_arrivals()["a"] == [0, 1]

    asyncio.run(scenario())


def test_a_redelivered_event_that_fails_holds_up_those_that_wait(shared: Store, tenant: str) -> None:
    """It is the first of its subject again, and what was due is not due before it."""

    async def scenario() -> None:
        pace = HASTE._replace(retries_s=(0.05,) * 50)
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


def test_an_endpoint_that_is_gone_or_may_not_be_called_is_not_tried_again(shared: Store, tenant: str) -> None:
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


def test_whatever_a_call_fails_with_it_is_tried_again(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        errors = iter([RuntimeError("odd"), ValueError(), None])
        seen: list[bytes] = []
        second = asyncio.Event()

        async def post(url: str, content: bytes, headers: Mapping[str, str]) -> Reply:
            seen.append(content)
            problem = next(errors, None)
            if problem is not None:
                raise problem
            if len(seen) == 3:
                await asyncio.sleep(60)
            second.set()
            return Reply(200, b"")

        heard = Heard()
        receiver = Receiver()
        made = receiver.add(shared, tenant)
        emit(shared, tenant, "a")
        async with running(dispatcher(shared, post, heard, HASTE._replace(post_s=0.02))):
            await second.wait()
            await until(lambda: is_settled(shared, made))
        assert len(seen) == 4
        assert len(set(seen)) == 1
        assert heard.attempts == {Result.FAILED: 3, Result.DELIVERED: 1}
        assert not heard.errors

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


def test_a_signature_of_another_secret_does_not_hold(shared: Store, tenant: str) -> None:
    """The receiver of these tests does verify."""

    async def scenario() -> None:
        sent: list[tuple[bytes, dict[str, str]]] = []

        async def post(url: str, content: bytes, headers: Mapping[str, str]) -> Reply:
            sent.append((content, dict(headers)))
            return Reply(200, b"")

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


def test_endpoints_that_hang_do_not_hold_up_others(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
            async with delivering(shared, pace=HASTE._replace(post_s=0.05, rest_s=60.0)) as (made, _):
                await until(lambda: {one.webhook.id for one in hanging} <= set(made._rests))
            async with delivering(shared, pace=HASTE._replace(post_s=60.0)) as (made, _):
                made._rests = {one.webhook.id: dispatch._Rest(1, 0.0) for one in hanging}
                for number in range(20):
                    emit(shared, tenant, "a", first=number)
                    await until(partial(is_settled, shared, good))
                assert sum(one.webhook.id in made._tasks for one in hanging) == 2
                release.set()
                for one in hanging:
                    await until(partial(is_settled, shared, one))

    asyncio.run(scenario())


def test_everybody_gets_a_turn_when_there_is_room_for_one(
    shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_turn_ends_in_time_and_what_was_reached_is_kept(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async def answer(_: Arrival) -> int:
            await asyncio.sleep(0.02)
            return 204

        async with Receiver().open() as receiver, delivering(shared, pace=HASTE._replace(turn_s=0.03)) as (made, _):
            receiver.answer = answer
            hook = receiver.add(shared, tenant)
            emit(shared, tenant, "abcdefgh" * 4)
            await until(lambda: hook.webhook.id in made._rests)
            with shared.database.reading() as connection:
                reached = outbox.target(connection, hook.webhook.id)
            assert reached is not None
            await until(lambda: is_settled(shared, hook))
            assert sorted(arrival.number for arrival in receiver.accepted) == list(range(32))

    asyncio.run(scenario())


def test_an_endpoint_that_is_down_is_asked_less_and_less(shared: Store, tenant: str) -> None:
    """Its events stay where they are; when it is back, all of them arrive."""

    async def scenario() -> None:
        async with Receiver().open() as receiver, delivering(shared, pace=HASTE._replace(rest_s=0.02)) as (made, _):
            receiver.answer = lambda _: 500
            hook = receiver.add(shared, tenant)
            emit(shared, tenant, "".join(chr(97 + number) for number in range(25)) * 2)
            await until(lambda: hook.webhook.id in made._rests and made._rests[hook.webhook.id].bad_turns >= 4)
            # At most MAX_FAILURES and those already begun in each turn.
            assert len(receiver.tried) <= 5 * (dispatch.MAX_FAILURES + dispatch.MAX_POSTS)
            with shared.database.reading() as connection:
                waiting = outbox.due(connection, hook.webhook.id, outbox.BEHIND - 1)
            assert len(waiting) < 25
            receiver.answer = lambda _: 204
            await until(lambda: is_settled(shared, hook))
            assert len(receiver.accepted) == 50
            assert hook.webhook.id not in made._rests

    asyncio.run(scenario())


def test_what_rests_is_remembered_within_a_limit(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_RESTING", 3)

    async def scenario() -> None:
        made = dispatcher(shared, never, Heard())
        for number in range(10):
            made._let_rest(str(number), 100.0)
        assert list(made._rests) == ["7", "8", "9"]
        made._judge("8", dispatch._Ended())
        made._judge("9", dispatch._Ended(slow=True))
        assert made._rests["9"].bad_turns == 0
        assert made._is_free("9")
        assert not made._is_free("7")
        made._pace = Pace()
        rest_s = 0.0
        for turn in range(400):
            made._judge("x", dispatch._Ended(bad=True))
            rest_s = made._rests["x"].until - asyncio.get_running_loop().time()
            assert rest_s <= min(2.0**turn, dispatch.MAX_REST_S)
        assert rest_s > dispatch.MAX_REST_S - 1

    asyncio.run(scenario())


def test_a_removed_webhook_is_sent_nothing_more(store: Store) -> None:
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
            # Removed between the look and the turn.
            ended = await made._serve(outbox.Busy(removed.webhook.id, 0, fresh=True, due=True))
            assert ended == dispatch._Ended()

    asyncio.run(scenario())


def test_when_told_to_stop_what_was_begun_is_finished_and_kept(shared: Store, tenant: str) -> None:
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
            await asyncio.sleep(0.02)
            release.set()
            await task
            finished = len(receiver.accepted)
            assert 1 <= finished <= dispatch.MAX_POSTS
            with shared.database.reading() as connection:
                lease = outbox.lease(connection)
            assert lease is not None
            async with delivering(shared):
                await until(lambda: len(receiver.accepted) >= 30)
            assert [arrival.number for arrival in receiver.accepted] == list(range(30))

    asyncio.run(scenario())


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_does_not_finish_in_time_is_delivered_by_the_next(shared: Store, tenant: str, cancelled: bool) -> None:
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
            hasty = dispatcher(shared, outbound.post, Heard(), HASTE._replace(closing_s=0.02))
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


def test_a_log_that_fails_is_told_and_gets_the_page_again(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        before = Heard()
        async with running(dispatcher(shared, never, before)):
            # One page for all of ours.
            await until(lambda: before.lags and before.lags[-1] == 0)
        emit(shared, tenant, "abc")
        heard = Heard()
        failures = iter([OSError("disk full")])

        def log(event: Event) -> None:
            if event.data.get("number") == 1 and event.tenant_id == tenant:
                for failure in failures:
                    raise failure
            heard.log(event)

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


def test_a_long_log_is_told_page_by_page(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LOG_PAGE", 7)

    async def scenario() -> None:
        emit(shared, tenant, "ab" * 50)
        heard = Heard()
        async with running(dispatcher(shared, never, heard, HASTE._replace(poll_s=60.0))):
            await until(lambda: len(heard.numbers(tenant)) == 100)
        assert heard.numbers(tenant) == list(range(100))

    asyncio.run(scenario())


def test_a_database_that_fails_is_told_and_asked_again(
    shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        chance = random.Random(3)
        reading = Database.reading

        def sometimes(self: Database) -> Any:
            if chance.random() < 0.4:
                raise StoreUnavailable("the disk is full")
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
            assert {str(error) for error in heard.errors} == {"the disk is full"}
            assert receiver.first_arrivals() == in_order("abcab")

    asyncio.run(scenario())


def test_a_store_that_is_closed_first_ends_nothing_silently(store: Store) -> None:
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


def test_followers_see_all_of_their_tenants_events_as_they_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_follower_hears_a_heartbeat_when_nothing_happens_and_ends_when_told(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        heard = Heard()
        emit(shared, tenant, "ab")
        made = dispatcher(shared, never, heard)
        async with running(made):
            stopping = asyncio.Event()
            seen: list[Numbered | None] = []
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


def test_many_commits_wake_a_follower_few_times(shared: Store, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        made = dispatcher(shared, never, Heard(), HASTE._replace(gather_s=0.05, poll_s=5.0, heartbeat_s=5.0))
        reads = 0
        read = dispatch._page

        def counted(*asked: Any, **more: Any) -> outbox.Page:
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


def test_news_for_a_loop_that_has_ended_is_dropped(shared: Store, tenant: str) -> None:
    async def scenario() -> None:
        async with running(dispatcher(shared, never, Heard())):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    (seq,) = emit(shared, tenant, "a")
    assert seq > 0


def test_nobody_need_count(shared: Store, tenant: str) -> None:
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
    assert Pace().retries_s == (5, 300, 1800, 2 * hours, 5 * hours, 10 * hours, 14 * hours, 20 * hours, 24 * hours)


def test_the_page_on_events_names_every_type() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "events.md").read_text(encoding="utf-8")
    assert [kind for kind in EventType if f"| `{kind}` |" not in page] == []
