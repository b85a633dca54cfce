"""Replies to requests that fail: RFC 9457 problems, without internals and without values of the request."""

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from meruit.api.logging import log
from meruit.errors import ApiProblem, HttpRefusal, MeruitError, Problem, StoreUnavailable
from meruit.web.app import ExceptionHandlers, answer_error
from meruit.web.requests import Request
from meruit.web.responses import Response

PROBLEM_TYPE = "application/problem+json"
MAX_ERRORS = 100
"""Most problems that one reply lists."""
MAX_DRAINED_BYTES = 32 * 1024 * 1024
"""A refused body up to this size is read to its end, so that the client receives the reply."""
NO_REQUEST_ID = "-"

_CODES: dict[int, tuple[str, str]] = {
    HTTPStatus.BAD_REQUEST: ("bad_request", "the request is not valid"),
    HTTPStatus.NOT_FOUND: ("not_found", "no such path; /schema lists all paths"),
    HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", "use one of the methods in the header Allow"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("too_large", "the body is larger than this route accepts"),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: ("unsupported_media_type", "send JSON as `Content-Type: application/json`"),
}


def problem_response(request: Request, problem: ApiProblem) -> Response[bytes]:
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


def request_id_of(request: Request) -> str:
    """The id that the telemetry middleware gave the request."""
    return str(request.scope["state"].get("request_id", NO_REQUEST_ID))


def _error_to_dict(error: Problem) -> dict[str, Any]:
    shown: dict[str, Any] = {"where": error.where, "message": error.message}
    if error.code:
        shown["code"] = error.code
    return shown if error.line is None else {**shown, "line": error.line}


def _handle_meruit_error(request: Request, error: MeruitError) -> Response[bytes]:
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


def _handle_refusal(request: Request, error: HttpRefusal) -> Response[bytes]:
    """Answer what the web layer refuses: name the parameters that are wrong, or say what to do about the rest."""
    if error.problems:
        detail = "; ".join(str(problem) for problem in error.problems[:MAX_ERRORS])
        return problem_response(request, ApiProblem(400, "invalid", detail, errors=error.problems))
    headers = dict(error.headers)
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not _can_drain(request):
        headers["Connection"] = "close"
    return problem_response(request, ApiProblem(error.status, *_CODES[error.status], headers=headers))


def _can_drain(request: Request) -> bool:
    length = request.content_length
    return length is not None and length <= MAX_DRAINED_BYTES


def _handle_internal_error(request: Request, error: Exception) -> Response[bytes]:
    log("request_failed", level="error", request_id=request_id_of(request), error=error)
    detail = "internal error; report it with the request id"
    return problem_response(request, ApiProblem(500, "internal", detail))


exception_handlers: ExceptionHandlers = {
    MeruitError: _handle_meruit_error,
    HttpRefusal: _handle_refusal,
    Exception: _handle_internal_error,
}
"""The reply to each kind of exception, raised in a route or before one was found."""


def handle_error(request: Request, error: Exception) -> Response[Any]:
    """The reply to an exception, for requests that the framework does not serve."""
    return answer_error(exception_handlers, request, error)
