"""Routes that many requests a second go to."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import HTTPRouteHandler


class HotRoute(HTTPRouteHandler):
    """A route whose guards see the handler itself; Litestar copies it for every guard of every request."""

    # Any: a guard sees every kind of connection.
    async def authorize_connection(self, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
        """Run the guards; each raises for a request that is not allowed."""
        for guard in self.resolve_guards():
            # Litestar allows plain functions too, and wraps them before this.
            await guard(connection, self)  # type: ignore[misc]
