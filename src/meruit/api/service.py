"""What every route works with: the deployment, and who asks."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

from sqlalchemy import Connection

from meruit.api.access import Doorkeeper
from meruit.api.body import StrictRequest
from meruit.api.observing import Instruments
from meruit.api.once import Attempts
from meruit.api.reading import beside
from meruit.api.server import Stopping
from meruit.config import ServiceSettings
from meruit.engine.dispatch import Dispatcher
from meruit.engine.registrar import Registrar
from meruit.model.access import Caller
from meruit.sources.outbound import Outbound
from meruit.stores.store import Store

T = TypeVar("T")


class Service(NamedTuple):
    """The deployment behind the routes."""

    store: Store
    registrar: Registrar
    dispatcher: Dispatcher
    outbound: Outbound
    instruments: Instruments
    doorkeeper: Doorkeeper
    attempts: Attempts
    settings: ServiceSettings
    stopping: Stopping
    followers: Counter[str]
    """How many streams of events each key holds open."""
    ended: asyncio.Event
    """Set once the shutdown begins; what waits for events ends then."""
    record_by_default: bool
    """Whether a verification is recorded when the caller does not say."""

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
