"""A dispatcher in a hurry, and a real server that it delivers to."""

import asyncio
import ipaddress
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from standardwebhooks import Webhook as Verifier

from meruit.events.dispatcher import Dispatcher
from meruit.events.store import deliveries, webhooks
from meruit.events.store.deliveries import DeadLetter
from meruit.events.store.webhooks import AddWebhook, IssuedWebhook
from meruit.events.webhook_delivery import DeliveryTiming, Post
from meruit.model.events import Event, EventType
from meruit.sources.http_guard import Outbound, OutboundReply
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

HASTE = DeliveryTiming(
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

    def log(self, several: Sequence[Event]) -> None:
        self.logged.extend(several)

    def count_attempt(self, result: str, tenant: str) -> None:
        self.attempts[result] += 1

    def count_dead_letter(self, tenant: str) -> None:
        self.deaths += 1

    def set_lag(self, count: int) -> None:
        self.lags.append(count)

    def numbers(self, tenant: str) -> list[int]:
        return [event.data["number"] for event in self.logged if event.tenant_id == tenant]


def dispatcher(store: Store, post: Post, heard: Heard, pace: DeliveryTiming = HASTE) -> Dispatcher:
    return Dispatcher(
        store, post, log=heard.log, report=heard.errors.append, counters=heard, pace=pace, jitter=lambda: 0.5
    )


async def never(url: str, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
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
    store: Store, heard: Heard | None = None, pace: DeliveryTiming = HASTE
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

    def write(writing: WriteTransaction) -> list[int]:
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
        return deliveries.dead_letters(connection, tenant, made.webhook.id)


def is_settled(store: Store, made: IssuedWebhook) -> bool:
    """Whether the webhook was sent all there is, and nothing waits for it."""
    with store.database.reading() as connection:
        found = webhooks.target(connection, made.webhook.id)
        busy = deliveries.pending_webhooks(connection, deliveries.BEHIND)
    assert found is not None
    return made.webhook.id not in {one.id for one in busy}
