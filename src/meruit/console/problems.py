"""Error pages: what is wrong, where, and what to do next."""

from typing import Any

from meruit.api.logging import log
from meruit.api.problems import exception_handlers as api_handlers
from meruit.api.problems import request_id_of
from meruit.console.page import PageRequest
from meruit.errors import HttpRefusal, MeruitError, NoSuchPath, NotFound
from meruit.web.app import ExceptionHandlers
from meruit.web.requests import Request
from meruit.web.responses import Response

_API_PATHS = ("/v1/", "/schema", "/healthz", "/metrics", "/playgrounds/")
_HEADLINES = {
    400: "This page was asked for something it does not understand.",
    401: "This page needs a key.",
    403: "Your key does not allow this.",
    404: "There is nothing here.",
    405: "This address takes no such request.",
    409: "What you looked at has changed meanwhile.",
    410: "This was erased.",
    413: "That is larger than the service accepts.",
    422: "That is not valid.",
    429: "Too many requests.",
    500: "The page could not be made.",
    503: "The service cannot answer now.",
}
_NEXT = {
    403: "Sign in with a key of another role, or ask an admin for one.",
    404: "It may belong to another tenant, or the id is cut short.",
    409: "Nothing was done. Reload to see the state as it is now.",
    429: "Wait a moment, then reload.",
    500: "Nothing was changed. Retry, or see the service log.",
    503: "Nothing was changed. Retry in a moment.",
}


def show_problem(
    request: PageRequest, status: int, detail: str, headers: dict[str, str] | None = None
) -> Response[Any]:
    """A page about a problem."""
    made = request.show(
        "problem.html",
        status=status,
        code=status,
        headline=_HEADLINES.get(status, _HEADLINES[500]),
        detail=detail,
        next_step=_NEXT.get(status, ""),
        request_id=request_id_of(request),
        back=request.headers.get("referer", ""),
    )
    made.headers.update(headers or {})
    return made


def _as_page(request: Request) -> PageRequest:
    # A request that matches no route, or fails before its handler, is one of the API's.
    return request if isinstance(request, PageRequest) else PageRequest(request.scope)


def _handle_meruit_error(request: Request, error: MeruitError) -> Response[Any]:
    if error.status >= 500:
        return _handle_internal_error(request, error)
    headers = dict(getattr(error, "headers", {}))
    headers.pop("WWW-Authenticate", None)
    detail = _sentence(getattr(error, "detail", None) or error.client_detail)
    return show_problem(_as_page(request), error.status, detail, headers)


def _sentence(text: str) -> str:
    begun = text[:1].upper() + text[1:]
    return begun if not begun or begun.endswith((".", "!", "?", "`")) else f"{begun}."


def _handle_http_error(request: Request, error: HttpRefusal) -> Response[Any]:
    return show_problem(_as_page(request), error.status, "")


def _handle_internal_error(request: Request, error: Exception) -> Response[Any]:
    log("page_failed", level="error", request_id=request_id_of(request), error=error)
    return show_problem(_as_page(request), 500, "")


def _handle_no_route(request: Request, error: NoSuchPath) -> Response[Any]:
    """A page for a browser, and a problem for a program."""
    path = request.scope["path"]
    if path.startswith(_API_PATHS) or "text/html" not in request.headers.get("accept", ""):
        return api_handlers[HttpRefusal](request, error)
    return show_problem(_as_page(request), 404, f"No page has the address {path}.")


page_handlers: ExceptionHandlers = {
    NotFound: _handle_meruit_error,
    MeruitError: _handle_meruit_error,
    HttpRefusal: _handle_http_error,
    Exception: _handle_internal_error,
}
"""The page about each kind of exception."""
no_route_handlers: ExceptionHandlers = {NoSuchPath: _handle_no_route}
