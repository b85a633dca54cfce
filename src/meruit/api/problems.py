"""Replies to requests that fail: RFC 9457 problems, without internals and without values of the request."""

import json
import re
from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus
from typing import Any, get_args
from urllib.parse import quote

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap

from meruit.api.bodies.json_body import field_problem
from meruit.api.logging import log
from meruit.errors import ApiProblem, MeruitError, Problem, StoreUnavailable

PROBLEM_TYPE = "application/problem+json"
MAX_ERRORS = 100
"""Most problems that one reply lists."""
MAX_DRAINED_BYTES = 32 * 1024 * 1024
"""A refused body up to this size is read to its end, so that the client receives the reply."""
NO_REQUEST_ID = "-"

_KEPT_HEADERS = {"allow", "retry-after", "www-authenticate"}
_CODES: dict[int, tuple[str, str]] = {
    HTTPStatus.BAD_REQUEST: ("bad_request", "the request is not valid"),
    HTTPStatus.UNAUTHORIZED: ("unauthorized", "send a valid key as `Authorization: Bearer …`"),
    HTTPStatus.FORBIDDEN: ("forbidden", "this key may not do this"),
    HTTPStatus.NOT_FOUND: ("not_found", "no such path; /schema lists all paths"),
    HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", "use one of the methods in the header Allow"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("too_large", "the body is larger than this route accepts"),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: ("unsupported_media_type", "send JSON as `Content-Type: application/json`"),
    HTTPStatus.TOO_MANY_REQUESTS: ("too_many_requests", "wait before the next request"),
    HTTPStatus.SERVICE_UNAVAILABLE: ("unavailable", "the service cannot answer now; retry later"),
}
_MISSING = re.compile(r"Missing required \w+ parameter '(?P<name>[^']+)'")
_SAFE_MESSAGE = re.compile(
    r"(?:Expected `|Object missing |Object contains |Not one of the allowed values).*",
    re.DOTALL,
)


def problem_response(request: Request[Any, Any, Any], problem: ApiProblem) -> Response[bytes]:
    """Build the reply about a problem."""
    content: dict[str, Any] = {
        "type": f"urn:meruit:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": quote(request.scope["path"]),
        "request_id": request_id_of(request),
    }
    if problem.errors:
        content["errors"] = [_error_to_dict(error) for error in problem.errors[:MAX_ERRORS]]
    # Half a surrogate pair in a document's key cannot be written as UTF-8.
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status_code=problem.status, headers=problem.headers, media_type=PROBLEM_TYPE)


def request_id_of(request: Request[Any, Any, Any]) -> str:
    """The id that the telemetry middleware gave the request."""
    return str(request.scope["state"].get("request_id", NO_REQUEST_ID))


def _error_to_dict(error: Problem) -> dict[str, Any]:
    shown: dict[str, Any] = {"where": error.where, "message": error.message}
    if error.code:
        shown["code"] = error.code
    return shown if error.line is None else {**shown, "line": error.line}


def _handle_meruit_error(request: Request[Any, Any, Any], error: MeruitError) -> Response[bytes]:
    """Answer with the error's own code, status and problems."""
    if isinstance(error, ApiProblem):
        return problem_response(request, error)
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _handle_internal_error(request, error)
    if isinstance(error, StoreUnavailable):
        log("store_unavailable", level="error", request_id=request_id_of(request), error=error)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    problem = ApiProblem(error.status, error.code, error.client_detail, errors=error.problems, headers=headers)
    return problem_response(request, problem)


def _handle_validation_error(request: Request[Any, Any, Any], error: ValidationException) -> Response[bytes]:
    """Name the fields that Litestar found wrong; drop messages that may quote values."""
    missing = _MISSING.match(error.detail)
    if missing:
        found = [Problem(missing["name"], "is required")]
    else:
        found = [_to_problem(request, entry) for entry in error.extra or () if isinstance(entry, dict)]
    detail = "; ".join(str(problem) for problem in found[:MAX_ERRORS]) or "the request is not valid"
    return problem_response(request, ApiProblem(400, "invalid", detail, errors=found))


def _to_problem(request: Request[Any, Any, Any], entry: Mapping[str, Any]) -> Problem:
    key = _wire_name(request, str(entry.get("key", "")))
    message = str(entry.get("message", ""))
    # For a missing body, the message of Litestar is only the name of the argument.
    if message == repr(key):
        return Problem("body" if key == "data" else key, "is required")
    allowed = _choices_of(request, str(entry.get("key", "")))
    if allowed:
        return Problem(key, f"must be one of {', '.join(allowed)}")
    message = field_problem(message).message
    return Problem(key, message if _SAFE_MESSAGE.fullmatch(message) else "is not valid")


def _choices_of(request: Request[Any, Any, Any], name: str) -> list[str]:
    """The values of a parameter that has a fixed choice of them."""
    found = request.route_handler.parsed_fn_signature.parameters.get(name)
    kinds = () if found is None else (found.annotation, *get_args(found.annotation))
    return [str(one.value) for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for one in kind]


def _wire_name(request: Request[Any, Any, Any], name: str) -> str:
    """The name of a parameter in requests, where the function has another one."""
    found = request.route_handler.parsed_fn_signature.parameters.get(name)
    return getattr(found.kwarg_definition, "name", None) or name if found is not None else name


def _handle_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer Litestar's own errors in our words, because its own may quote the request."""
    if error.detail == "client disconnected prematurely":
        return problem_response(request, ApiProblem(400, "bad_body", "the body is shorter than its Content-Length"))
    known = _CODES.get(error.status_code)
    if known is None:
        return _handle_internal_error(request, error)
    headers = {name: value for name, value in (error.headers or {}).items() if name.lower() in _KEPT_HEADERS}
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not _can_drain(request):
        headers["Connection"] = "close"
    return problem_response(request, ApiProblem(error.status_code, *known, headers=headers))


def _can_drain(request: Request[Any, Any, Any]) -> bool:
    length = request.content_length
    return length is not None and length <= MAX_DRAINED_BYTES


def _handle_internal_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log("request_failed", level="error", request_id=request_id_of(request), error=error)
    detail = "internal error; report it with the request id"
    return problem_response(request, ApiProblem(500, "internal", detail))


exception_handlers: ExceptionHandlersMap = {
    MeruitError: _handle_meruit_error,
    ValidationException: _handle_validation_error,
    HTTPException: _handle_http_error,
    Exception: _handle_internal_error,
}
"""The reply to each kind of exception, raised in a route or before one was found."""


def handle_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The reply to an exception, for requests that the framework does not serve."""
    match error:
        case MeruitError():
            return _handle_meruit_error(request, error)
        case HTTPException():
            return _handle_http_error(request, error)
        case _:
            return _handle_internal_error(request, error)
