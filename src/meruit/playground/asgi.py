"""The types of ASGI."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# Any: ASGI's messages are dictionaries of many shapes.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def headers_of(scope: Scope) -> dict[str, str]:
    """Return a request's headers, their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
