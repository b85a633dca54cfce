"""The OpenAPI description: every operation documents the problem that it may answer with."""

from collections.abc import Iterator
from typing import Any

from litestar import Litestar, Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin

from meruit.api.examples import add_examples
from meruit.api.listing import SPREADSHEETS
from meruit.api.problems import PROBLEM_TYPE
from meruit.api.wire.common import Body

# Any, here and below: a JSON schema is objects, lists and plain values in one another.
OpenApiNode = dict[str, Any]

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


def build_document(app: Litestar) -> OpenApiNode:
    """The OpenAPI document of a service with our corrections and examples; built once, because that takes a second."""
    built = app.state.get("openapi_document")
    if built is None:
        built = app.openapi_schema.to_schema()
        _document_all(built)
        app.state["openapi_document"] = built
    document: OpenApiNode = built
    return document


class Documentation(JsonRenderPlugin):
    """The OpenAPI document, built on the first request for it, because that takes longer than the rest of a start."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json")
        self._written: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: OpenApiNode) -> bytes:  # noqa: ARG002 - Litestar's
        """Render the whole document as JSON."""
        if self._written is None:
            self._written = self.render_json(request, build_document(request.app))
        return self._written


# Any: Litestar's type of path parameters is private.
def operation_id(handler: HTTPRouteHandler, _method: Any, path: list[Any]) -> str:
    """Name an operation after its function: `award_contract`. The path without `/v1` of two routes is an alias."""
    name = handler.handler_name
    return name if path[:1] == ["v1"] or len(handler.paths) == 1 else f"{name}_alias"


def _document_all(described: OpenApiNode) -> None:
    """Replace what Litestar documents wrongly: its own errors, which we never send, and unions of values."""
    schemas: dict[str, OpenApiNode] = described["components"]["schemas"]
    strict = {kind.__name__ for kind in _body_types(Body)}
    for name, schema in schemas.items():
        _allow_any_of(schema)
        if name in strict:
            schema["additionalProperties"] = False
    schemas[PROBLEM_SCHEMA] = _PROBLEM
    for path in described["paths"].values():
        for operation in path.values():
            _document(operation)
            add_examples(operation)


def _body_types(kind: type[Body]) -> Iterator[type[Body]]:
    for narrower in kind.__subclasses__():
        yield narrower
        yield from _body_types(narrower)


def _document(operation: OpenApiNode) -> None:
    responses: dict[str, OpenApiNode] = operation["responses"]
    responses.pop("400", None)
    for response in responses.values():
        for media in response.get("content", {}).values():
            _allow_any_of(media.get("schema"))
    if any(one["name"] == "format" for one in operation.get("parameters", ())):
        responses["200"]["content"] |= {media_type: {} for media_type in SPREADSHEETS}
    responses["default"] = _PROBLEM_RESPONSE


# Any: a schema's parts are schemas, references, booleans or nothing.
def _allow_any_of(schema: Any) -> None:
    """Replace oneOf by anyOf: 1 is an integer and a number, and an empty page fits every kind of page."""
    if isinstance(schema, dict):
        if "oneOf" in schema:
            schema["anyOf"] = schema.pop("oneOf")
        parts = (schema.get("items"), schema.get("additionalProperties"), *schema.get("properties", {}).values())
        for part in (*parts, *schema.get("anyOf", ())):
            _allow_any_of(part)
