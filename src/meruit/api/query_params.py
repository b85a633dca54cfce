"""Refuse query parameters that a route does not have: a filter with a typo would return everything."""

from collections.abc import Callable
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from meruit.errors import ApiProblem
from meruit.model.text import escape_control_characters
from meruit.suggestions import nearest

ANY_PARAMETERS = "any_parameters"
"""The name of the route option of pages, which read the query themselves."""
MAX_SHOWN = 60
_known: dict[Callable[..., Any], frozenset[str]] = {}
"""Parameter names by route function; each application has its own handlers for one function."""


# Async, because Litestar runs any other guard in a thread.
async def reject_unknown_parameters(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a request with a query parameter that its route does not have."""
    if not connection.scope["query_string"] or handler.opt.get(ANY_PARAMETERS):
        return
    known = _known.get(handler.fn)
    if known is None:
        known = _known[handler.fn] = frozenset(_parameter_names(handler))
    for name in connection.query_params:
        if name not in known:
            close = nearest(name[:MAX_SHOWN], known)
            detail = f"this route has no parameter {escape_control_characters(name[:MAX_SHOWN])!r}{close}"
            raise ApiProblem(400, "unknown_parameter", detail)


def _parameter_names(handler: BaseRouteHandler) -> set[str]:
    found = set()
    for name, field in handler.parsed_fn_signature.parameters.items():
        query = getattr(field.kwarg_definition, "query", None) or getattr(field.kwarg_definition, "name", None)
        found.add(query if isinstance(query, str) else name)
    return found
