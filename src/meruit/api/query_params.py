"""Refuse query parameters that a route does not have: a filter with a typo would return everything."""

from meruit.errors import ApiProblem
from meruit.model.text import escape_control_characters
from meruit.suggestions import nearest
from meruit.web.requests import Request
from meruit.web.routing import Route

ANY_PARAMETERS = "any_parameters"
"""The name of the route option of pages, which read the query themselves."""
MAX_SHOWN = 60


async def reject_unknown_parameters(request: Request, route: Route) -> None:
    """Refuse a request with a query parameter that its route does not have."""
    if not request.scope["query_string"] or route.opt.get(ANY_PARAMETERS):
        return
    for name in request.query_params:
        if name not in route.query_names:
            close = nearest(name[:MAX_SHOWN], route.query_names)
            detail = f"this route has no parameter {escape_control_characters(name[:MAX_SHOWN])!r}{close}"
            raise ApiProblem(400, "unknown_parameter", detail)
