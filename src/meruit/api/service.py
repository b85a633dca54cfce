"""What every route works with: the deployment, and who asks."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast

from litestar import Response
from sqlalchemy import Connection

from meruit.api.access import Doorkeeper
from meruit.api.body import SMALL_BYTES, StrictRequest
from meruit.api.observing import Instruments
from meruit.api.once import REPLAYED, Attempts, another_request, checked_key, earlier, fingerprint, stored_key
from meruit.api.reading import beside
from meruit.api.room import PLACE, Place, Room
from meruit.api.server import Stopping
from meruit.api.wire import encoded
from meruit.config import ServiceSettings
from meruit.engine.dispatch import Dispatcher
from meruit.engine.registrar import Registrar
from meruit.engine.work import Marketplace
from meruit.model.access import Caller
from meruit.sources.outbound import Outbound
from meruit.stores.moves import Actor
from meruit.stores.records import IdempotencyConflict, Idempotent, Replay
from meruit.stores.store import Store

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
    doorkeeper: Doorkeeper
    attempts: Attempts
    room: Room
    """For large bodies."""
    settings: ServiceSettings
    stopping: Stopping
    followers: Counter[str]
    """How many streams of events each key holds open."""
    ended: asyncio.Event
    """Set once the shutdown begins; what waits for events ends then."""
    record_by_default: bool
    """Whether a verification is recorded when the caller does not say."""
    max_criteria: int
    """Of one piece of work."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """What the database says, asked beside the event loop."""

        def ask() -> T:
            with self.store.database.reading() as connection:
                return query(connection)

        return await beside(ask)


class Asked(StrictRequest):
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

    def enter(self) -> None:
        """Take a place for a large body, once; raises ApiProblem 503 when there is none."""
        # Any: Litestar's own state lives in the same mapping.
        state: dict[str, Any] = self.scope["state"]
        if PLACE not in state:
            state[PLACE] = self.service.room.enter(self.caller.key_id or KEYLESS)

    async def turn(self) -> None:
        """Wait until a large body may be parsed."""
        place: Place = self.scope["state"][PLACE]
        await self.service.room.turn(place)

    # Any: OpenAPI reads the route's own annotation; what is sent is already encoded.
    async def answer_once(
        self, key: str | None, status: int, act: Callable[[Idempotent | None], Awaitable[bytes | Replay]]
    ) -> Response[Any]:
        """Have one effect, and answer a second request of the same key as the first; the store keeps the reply."""
        key, tenant = checked_key(key), self.caller.tenant
        kept = None if key is None else stored_key(self.caller, key)
        with self.service.attempts.alone(tenant, kept):
            once = None
            if kept is not None:
                once = Idempotent(kept, await self._fingerprint(), status, b"")
                before = await self.service.read(lambda connection: earlier(connection, tenant, once))
                if before is not None:
                    return _replayed(before)
            try:
                done = await act(once)
            except IdempotencyConflict:
                raise another_request() from None
        return _replayed(done) if isinstance(done, Replay) else encoded(done, status)

    async def _fingerprint(self) -> str:
        body = await self.body()
        if len(body) > SMALL_BYTES:
            # Hashing it takes long enough to hold up everybody else.
            return await asyncio.to_thread(fingerprint, self.caller, self.url.path, body)
        return fingerprint(self.caller, self.url.path, body)


def _replayed(before: Replay) -> Response[Any]:
    return encoded(before.reply, before.status, {REPLAYED: "true"})
