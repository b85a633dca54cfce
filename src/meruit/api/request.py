"""What every route works with: the service, the caller, and writes that take effect once."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

import msgspec
from sqlalchemy import Connection

from meruit.api.admission import ADMISSION_SLOT, AdmissionSlot, BodyAdmission
from meruit.api.auth import KEYLESS, Authenticator
from meruit.api.bodies.dismantle import GC_PAUSE, dismantle_soon
from meruit.api.bodies.gc import GcPause
from meruit.api.bodies.json_body import LARGE_BYTES, SMALL_BYTES, StrictRequest
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.idempotency import HEADER, REPLAYED, KeysInFlight, fingerprint, storage_key, validate_key
from meruit.api.integrity import StoreIntegrity
from meruit.api.open_streams import OpenStreams
from meruit.api.playground_host import PlaygroundHosting
from meruit.api.quotas import Quotas
from meruit.api.rate_limit import Throttle
from meruit.api.server import ShutdownSignal
from meruit.api.telemetry import Instruments
from meruit.api.wire.common import json_response
from meruit.api.witnessing import Witnessing
from meruit.benchmarks.service import Benchmarks
from meruit.config import ServiceSettings, Settings
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.records import Actor
from meruit.errors import ApiProblem
from meruit.events.dispatcher import Dispatcher
from meruit.model.access import Caller, Role
from meruit.model.usage import UsagePolicy
from meruit.outcomes.service import Registrar
from meruit.sources.http_guard import Outbound
from meruit.store.idempotency import (
    ClaimKey,
    CompleteKey,
    IdempotentReplay,
    IdempotentRequest,
    IdempotentWrite,
    ReleaseKey,
    find_replay,
)
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.web.fair_threads import CALLER
from meruit.web.loop_turns import LoopTurns
from meruit.web.responses import Response

if TYPE_CHECKING:
    from meruit.api.processes.inheritance import WorkerProcess

T = TypeVar("T")


class Service(msgspec.Struct, frozen=True):
    """The parts of a running service."""

    store: Store
    registrar: Registrar
    marketplace: Marketplace
    dispatcher: Dispatcher
    outbound: Outbound
    instruments: Instruments
    authenticator: Authenticator
    throttle: Throttle
    quotas: Quotas
    """What tenants and agents' keys may store."""
    keys_in_flight: KeysInFlight
    admission: BodyAdmission
    """Of large bodies."""
    turns: LoopTurns
    """Of small bodies, which are served on the event loop: one of each key in each round."""
    settings: ServiceSettings
    configuration: Settings
    """All settings as in force."""
    stopping: ShutdownSignal
    open_streams: OpenStreams
    """Open event streams and exports per key."""
    integrity: StoreIntegrity
    """Whether the store agrees with its audit log."""
    witnessing: Witnessing
    """Who has cosigned the audit log."""
    ended: asyncio.Event
    """Set when the shutdown begins; event streams end then."""
    record_by_default: bool
    """Whether a verification is recorded when the request does not say."""
    max_criteria: int
    """Most criteria of one piece of work."""
    benchmarks: Benchmarks
    hosting: PlaygroundHosting
    """Serves the playgrounds."""
    usage_policy: UsagePolicy
    """When the token usage of a run counts as verified."""
    process: "WorkerProcess | None" = None
    """This process, where it is one of several workers."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a reader thread."""

        def ask() -> T:
            with self.store.database.reading() as connection:
                return query(connection)

        return await run_in_reader_thread(ask)


# Any: work is any JSON.
class WorkPayloads(Protocol):
    """What a request holds of one piece of work."""

    @property
    def input(self) -> Mapping[str, Any]:
        """What the agent got."""
        ...

    @property
    def output(self) -> Mapping[str, Any] | None:
        """What it returned."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Measurements of the run."""
        ...


class EncodedReply(NamedTuple):
    """A reply whose JSON is encoded already."""

    body: bytes
    status: int = 200
    headers: dict[str, str] | None = None


class ServedRequest(ABC):
    """What routes do with a request of a known caller, whether the framework or a direct route serves it."""

    __slots__ = ()

    @property
    @abstractmethod
    def service(self) -> Service:
        """The service that handles it."""

    @property
    @abstractmethod
    def caller(self) -> Caller:
        """The caller."""

    @property
    @abstractmethod
    def target(self) -> str:
        """The path, with the query if there is one."""

    @abstractmethod
    async def body(self) -> bytes:
        """Read the body once."""

    def check_size_of(self, caller: Caller | None, size: int) -> None:
        """Refuse a body of an agent that is larger than agents may send; raises ApiProblem 413."""
        most = self.service.settings.max_agent_bytes
        if size > most and caller is not None and caller.role is Role.AGENT:
            why = f"the body of an agent may have at most {most:,} bytes (service.max_agent_bytes)"
            raise ApiProblem(413, "too_large", why, headers={"Connection": "close"})

    def count_bytes_of(self, caller: Caller | None, size: int) -> None:
        """Count bytes of the body for the key and its tenant.

        Raises ApiProblem 413 where they do not fit into a quota, 429 where there were too many.
        """
        # A body that is too large is refused as such.
        if caller is not None and caller.key_id and size <= self.service.settings.max_evidence_bytes:
            self.service.quotas.admit(caller, size)
            self.service.throttle.admit_bytes(caller.key_id, caller.tenant, size)

    async def take_loop_turn(self) -> None:
        """Wait until no other request of the caller is parsed or judged in this round of the event loop."""
        await self.service.turns.take(CALLER.get())

    async def free_payloads(self, items: Iterable[WorkPayloads]) -> None:
        """Free the work that a large body brought, in a thread of its own."""
        if len(await self.body()) > LARGE_BYTES:
            dismantle_soon([part for item in items for part in (item.output, item.input, item.metadata)])

    async def write_once(
        self, once: IdempotentRequest | None, write: Write[T], render: Callable[[T], bytes]
    ) -> bytes | IdempotentReplay:
        """Write, and render the reply; with an idempotency key, the reply becomes durable with the write."""
        written = await self.record_once(once, write, render)
        return written if isinstance(written, IdempotentReplay) else render(written)

    async def record_once(
        self, once: IdempotentRequest | None, write: Write[T], render: Callable[[T], bytes]
    ) -> T | IdempotentReplay:
        """Write as write_once does, and return what the write returns."""
        recorder = self.service.store.recorder
        if once is None:
            return await recorder.record(write)
        stored: IdempotentWrite[T] = IdempotentWrite(self.caller.tenant, once, write, render)
        return await recorder.record(stored)

    async def reply_once(
        self,
        key: str | None,
        status: int,
        act: Callable[[IdempotentRequest | None], Awaitable[bytes | IdempotentReplay]],
        render_again: Callable[[], Awaitable[bytes]] | None = None,
    ) -> EncodedReply:
        """Act once per idempotency key; a second request with the key gets the stored reply.

        With `render_again`, a second reply is rendered from the records instead, for replies that must not be stored.
        """
        if key is None:
            done = await act(None)
        else:
            done = await self._act_under(validate_key(key), status, act, render_again)
        if isinstance(done, IdempotentReplay):
            return EncodedReply(body=done.reply, status=done.status, headers={REPLAYED: "true"})
        return EncodedReply(done, status)

    async def _act_under(
        self,
        key: str,
        status: int,
        act: Callable[[IdempotentRequest | None], Awaitable[bytes | IdempotentReplay]],
        render_again: Callable[[], Awaitable[bytes]] | None,
    ) -> bytes | IdempotentReplay:
        tenant, stored_key = self.caller.tenant, storage_key(self.caller, key)
        with self.service.keys_in_flight.hold_key(tenant, stored_key):
            once = IdempotentRequest(stored_key, await self._fingerprint(), status)
            done: bytes | IdempotentReplay | None
            done = await self.service.read(lambda connection: find_replay(connection, tenant, once))
            if done is None:
                done = await act(once)
            if isinstance(done, IdempotentReplay) and render_again is not None:
                done = IdempotentReplay(status, await render_again())
            return done

    async def _fingerprint(self) -> str:
        body = await self.body()
        if len(body) > SMALL_BYTES:
            # Hashing a large body would block the event loop.
            return await asyncio.to_thread(fingerprint, self.caller, self.target, body)
        return fingerprint(self.caller, self.target, body)


class ApiRequest(StrictRequest, ServedRequest):
    """An authenticated request."""

    @property
    def service(self) -> Service:
        """The service that handles it."""
        return cast("Service", self.app.state["service"])

    @property
    def caller(self) -> Caller:
        """The caller."""
        return cast("Caller", self.scope["user"])

    @property
    def target(self) -> str:
        """The path, with the query: `?reread=true` makes it another request, and so does another method."""
        path, query = self.scope["path"], self.scope["query_string"].decode()
        path = f"{path}?{query}" if query else path
        return path if self.method == "POST" else f"{self.method} {path}"

    @property
    def actor(self) -> Actor:
        """The caller, as records name it."""
        return Actor(self.caller.scope, self.caller.key_id or KEYLESS)

    def acquire_body_slot(self) -> None:
        """Take an admission slot for a large body, once; raises ApiProblem 503 when none is free."""
        # Any: an application may put any value into the state of an ASGI scope.
        state: dict[str, Any] = self.scope["state"]
        if ADMISSION_SLOT not in state:
            state[ADMISSION_SLOT] = self.service.admission.acquire_slot(self.caller.key_id or KEYLESS)

    def check_body_size(self, size: int) -> None:
        """Refuse a body of an agent that is larger than agents may send; raises ApiProblem 413."""
        self.check_size_of(self.scope.get("user"), size)

    def count_body_bytes(self, size: int) -> None:
        """Count bytes of the body for the key and its tenant; raises ApiProblem 429 when there were too many."""
        self.count_bytes_of(self.scope.get("user"), size)

    async def wait_for_body_turn(self) -> None:
        """Wait until a large body may be parsed."""
        slot: AdmissionSlot = self.scope["state"][ADMISSION_SLOT]
        await self.service.admission.wait_for_turn(slot)

    async def take_loop_turn(self) -> None:
        """Wait as described there."""
        await ServedRequest.take_loop_turn(self)

    def pause_collector(self) -> None:
        """Keep the garbage collector off until the request ends: it would scan millions of new lists at once."""
        # Any: an application may put any value into the state of an ASGI scope.
        state: dict[str, Any] = self.scope["state"]
        state[GC_PAUSE] = GcPause()

    async def require_no_body(self) -> None:
        """Refuse a request with a body; raises ApiProblem."""
        if (await self.body()).strip() not in (b"", b"{}"):
            raise ApiProblem(400, "bad_body", "this route takes no body; leave it out")

    async def store_reply(self, once: IdempotentRequest | None, reply: bytes) -> bytes | IdempotentReplay:
        """Store the reply of a request whose effect is already durable."""
        return reply if once is None else await self.write_once(once, lambda _: reply, bytes)

    async def act_once(
        self, once: IdempotentRequest | None, act: Callable[[], Awaitable[bytes]]
    ) -> bytes | IdempotentReplay:
        """Act under an idempotency key that no other process acts under meanwhile; for effects of many transactions.

        Raises KeyInUse while another request has the key. A key is free again when its request fails.
        """
        if once is None:
            return await act()
        recorder, tenant = self.service.store.recorder, self.caller.tenant
        done = await recorder.record(ClaimKey(tenant, once))
        if done is not None:
            return done
        try:
            reply = await act()
        except BaseException:
            await recorder.record(ReleaseKey(tenant, once))
            raise
        await recorder.record(CompleteKey(tenant, once, reply))
        return reply

    async def reply_once(
        self,
        key: str | None,
        status: int,
        act: Callable[[IdempotentRequest | None], Awaitable[bytes | IdempotentReplay]],
        render_again: Callable[[], Awaitable[bytes]] | None = None,
    ) -> EncodedReply:
        """Act as described there; refuses a request with two keys."""
        if len(self.headers.getlist(HEADER)) > 1:
            raise ApiProblem(400, "bad_idempotency_key", f"the request has two headers {HEADER}; send one")
        return await super().reply_once(key, status, act, render_again)

    # Any: OpenAPI reads the annotation of the route; the reply is already encoded.
    async def answer_once(
        self,
        key: str | None,
        status: int,
        act: Callable[[IdempotentRequest | None], Awaitable[bytes | IdempotentReplay]],
        render_again: Callable[[], Awaitable[bytes]] | None = None,
    ) -> Response[Any]:
        """The reply of `reply_once`, as a route returns it."""
        return json_response(*await self.reply_once(key, status, act, render_again))
