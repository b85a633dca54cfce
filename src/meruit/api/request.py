"""What every route works with: the deployment, and who asks."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from litestar import Response
from sqlalchemy import Connection

from meruit.api.admission import ADMISSION_SLOT, AdmissionSlot, BodyAdmission
from meruit.api.auth import Authenticator
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.idempotency import (
    REPLAYED,
    KeysInFlight,
    find_replay,
    fingerprint,
    key_reuse_problem,
    storage_key,
    validate_key,
)
from meruit.api.json_body import SMALL_BYTES, StrictRequest
from meruit.api.playground_host import PlaygroundHosting
from meruit.api.server import ShutdownSignal
from meruit.api.telemetry import Instruments
from meruit.api.wire import json_response
from meruit.benchmarks.service import Benchmarks
from meruit.config import ServiceSettings
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.store.transaction import Actor
from meruit.errors import ApiProblem, IdempotencyConflict
from meruit.events.dispatcher import Dispatcher
from meruit.model.access import Caller
from meruit.model.usage import UsagePolicy
from meruit.outcomes.service import Registrar
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest, find_reply, keep_reply
from meruit.sources.http_guard import Outbound
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

KEYLESS = "this machine"
"""Who acts on a service that has no keys yet."""

T = TypeVar("T")


class Service(NamedTuple):
    """The deployment behind the routes."""

    store: Store
    registrar: Registrar
    marketplace: Marketplace
    dispatcher: Dispatcher
    outbound: Outbound
    instruments: Instruments
    authenticator: Authenticator
    keys_in_flight: KeysInFlight
    admission: BodyAdmission
    """For large bodies."""
    settings: ServiceSettings
    stopping: ShutdownSignal
    open_streams: Counter[str]
    """How many streams of events each key holds open."""
    ended: asyncio.Event
    """Set once the shutdown begins; what waits for events ends then."""
    record_by_default: bool
    """Whether a verification is recorded when the caller does not say."""
    max_criteria: int
    """Of one piece of work."""
    benchmarks: Benchmarks
    hosting: PlaygroundHosting
    """Of playgrounds."""
    usage_policy: UsagePolicy
    """When a run's tokens count as verified."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """What the database says, asked beside the event loop."""

        def ask() -> T:
            with self.store.database.reading() as connection:
                return query(connection)

        return await run_in_reader_thread(ask)


class IdempotentApiWrite(NamedTuple, Generic[T]):
    """A write that has its effect once, and whose answer is kept with it."""

    tenant: str
    once: IdempotentRequest
    write: Write[T]
    render: Callable[[T], bytes]

    def __call__(self, writing: WriteTransaction) -> bytes | IdempotentReplay:
        """Write; or, when the key was used before, answer what was answered then."""
        before = find_reply(writing, self.tenant, self.once)
        if before is not None:
            return before
        reply = self.render(self.write(writing))
        keep_reply(writing, self.tenant, self.once._replace(reply=reply))
        return reply


class ApiRequest(StrictRequest):
    """A request that was let in. Litestar's own way to hand things to routes costs a task group each time."""

    @property
    def service(self) -> Service:
        """The deployment that serves it."""
        return cast("Service", self.app.state["service"])

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return cast("Caller", self.scope["user"])

    @property
    def actor(self) -> Actor:
        """Who asks, as the records name it."""
        return Actor(self.caller.scope, self.caller.key_id or KEYLESS)

    def acquire_body_slot(self) -> None:
        """Take a place for a large body, once; raises ApiProblem 503 when there is none."""
        # Any: Litestar's own state lives in the same mapping.
        state: dict[str, Any] = self.scope["state"]
        if ADMISSION_SLOT not in state:
            state[ADMISSION_SLOT] = self.service.admission.acquire_slot(self.caller.key_id or KEYLESS)

    async def wait_for_body_turn(self) -> None:
        """Wait until a large body may be parsed."""
        place: AdmissionSlot = self.scope["state"][ADMISSION_SLOT]
        await self.service.admission.wait_for_turn(place)

    async def require_no_body(self) -> None:
        """Let a request pass that says nothing; raises ApiProblem."""
        if (await self.body()).strip() not in (b"", b"{}"):
            raise ApiProblem(400, "bad_body", "this takes no body; leave it out")

    async def write_once(
        self, once: IdempotentRequest | None, write: Write[T], render: Callable[[T], bytes]
    ) -> bytes | IdempotentReplay:
        """The answer to a write that becomes durable together with its key."""
        recorder = self.service.store.recorder
        if once is None:
            return render(await recorder.record(write))
        return await recorder.record(IdempotentApiWrite(self.caller.tenant, once, write, render))

    async def store_reply(self, once: IdempotentRequest | None, reply: bytes) -> bytes | IdempotentReplay:
        """An answer whose effect is durable already, kept for whoever asks again with the same key."""
        return reply if once is None else await self.write_once(once, lambda _: reply, bytes)

    # Any: OpenAPI reads the route's own annotation; what is sent is already encoded.
    async def answer_once(
        self,
        key: str | None,
        status: int,
        act: Callable[[IdempotentRequest | None], Awaitable[bytes | IdempotentReplay]],
        anew: Callable[[], Awaitable[bytes]] | None = None,
    ) -> Response[Any]:
        """Have one effect, and answer a second request of the same key as the first; the store keeps the reply.

        With `anew`, which writes the reply again from the records, it keeps none that is nobody's to keep.
        """
        key, tenant = validate_key(key), self.caller.tenant
        kept = None if key is None else storage_key(self.caller, key)
        with self.service.keys_in_flight.hold_key(tenant, kept):
            once = None
            if kept is not None:
                once = IdempotentRequest(kept, await self._fingerprint(), status, b"")
                before = await self.service.read(lambda connection: find_replay(connection, tenant, once))
                if before is not None:
                    return _replay_response(before if anew is None else IdempotentReplay(status, await anew()))
            try:
                done = await act(once)
            except IdempotencyConflict:
                raise key_reuse_problem() from None
            if isinstance(done, IdempotentReplay) and anew is not None:
                done = IdempotentReplay(status, await anew())
        return _replay_response(done) if isinstance(done, IdempotentReplay) else json_response(done, status)

    async def _fingerprint(self) -> str:
        body = await self.body()
        # What is asked may stand in the query too: `?reread=true` is another request.
        asked = self.url.path if not self.url.query else f"{self.url.path}?{self.url.query}"
        if len(body) > SMALL_BYTES:
            # Hashing it takes long enough to hold up everybody else.
            return await asyncio.to_thread(fingerprint, self.caller, asked, body)
        return fingerprint(self.caller, asked, body)


def _replay_response(before: IdempotentReplay) -> Response[Any]:
    return json_response(before.reply, before.status, {REPLAYED: "true"})
