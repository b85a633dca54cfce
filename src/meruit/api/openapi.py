"""The OpenAPI description: every operation documents the problem that it may answer with."""

from collections.abc import Iterable

import msgspec

from meruit import __version__
from meruit.api.examples import add_examples
from meruit.api.listing import SPREADSHEETS
from meruit.api.problems import PROBLEM_TYPE
from meruit.api.request import ApiRequest
from meruit.web.app import WebApp
from meruit.web.openapi import OPENAPI, describe_routes
from meruit.web.responses import Response
from meruit.web.routing import Route, get
from meruit.web.schemas import OpenApiNode

MEDIA_TYPE = "application/vnd.oai.openapi+json"
_DESCRIPTION = "Proves whether an AI agent's work was done, how well, what it cost, and what is owed."
PROBLEM_SCHEMA = "Problem"
_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "properties": {"where": _TEXT, "message": _TEXT, "line": {"type": "integer"}},
    "required": ["where", "message"],
}
_PROBLEM: OpenApiNode = {
    "type": "object",
    "title": PROBLEM_SCHEMA,
    "description": "Why a request was refused (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "`urn:meruit:problem:CODE`, for programs."},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do next."},
        "instance": _TEXT,
        "request_id": _TEXT,
        "errors": {"type": "array", "items": _ERROR},
    },
    "required": ["type", "title", "status", "detail", "instance", "request_id"],
}
_PROBLEM_RESPONSE: OpenApiNode = {
    "description": "The request was refused.",
    "content": {PROBLEM_TYPE: {"schema": {"$ref": f"#/components/schemas/{PROBLEM_SCHEMA}"}}},
}


def build_document(app: WebApp) -> OpenApiNode:
    """The OpenAPI document of a service, with examples; built once, because that takes a second."""
    built: OpenApiNode | None = app.state.get("openapi_document")
    if built is None:
        built = app.state["openapi_document"] = _build(app.routes)
    return built


@get(["/schema", "/schema/openapi.json"], include_in_schema=False, media_type=MEDIA_TYPE)
async def read_openapi(request: ApiRequest) -> Response[bytes]:
    """The OpenAPI document, built on the first request for it, because that takes longer than the rest of a start."""
    return Response(msgspec.json.encode(build_document(request.app)))


def name_operation(route: Route, path: str) -> str:
    """Name an operation after its function: `award_contract`. The path without `/v1` of two routes is an alias."""
    return route.name if path.startswith("/v1/") or len(route.paths) == 1 else f"{route.name}_alias"


def _build(routes: Iterable[Route]) -> OpenApiNode:
    described = describe_routes(routes, name_operation)
    described["components"]["schemas"][PROBLEM_SCHEMA] = _PROBLEM
    for path in described["paths"].values():
        for operation in path.values():
            _document(operation)
            add_examples(operation)
    return {
        "info": {"title": "Meruit", "version": __version__, "description": _DESCRIPTION},
        "openapi": OPENAPI,
        "servers": [{"url": "/"}],
        "paths": described["paths"],
        "components": {**described["components"], "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }


def _document(operation: OpenApiNode) -> None:
    responses: dict[str, OpenApiNode] = operation["responses"]
    if any(one["name"] == "format" for one in operation.get("parameters", ())):
        responses["200"]["content"] |= {media_type: {} for media_type in SPREADSHEETS}
    responses["default"] = _PROBLEM_RESPONSE
