"""What OpenAPI says of refusals: every route may answer with a problem document."""

from collections.abc import Iterator
from typing import Any

from litestar import Litestar
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Reference, Schema
from litestar.openapi.spec.enums import OpenAPIType

from meruit.api.problems import PROBLEM_TYPE
from meruit.api.wire import Body

NAME = "Problem"
_TEXT = Schema(type=OpenAPIType.STRING)
_ERROR = Schema(
    type=OpenAPIType.OBJECT,
    properties={"where": _TEXT, "message": _TEXT, "line": Schema(type=OpenAPIType.INTEGER)},
    required=["where", "message"],
)
_PROBLEM = Schema(
    type=OpenAPIType.OBJECT,
    title=NAME,
    description="Why a request was refused, as RFC 9457 has it.",
    properties={
        "type": Schema(type=OpenAPIType.STRING, description="`urn:meruit:problem:CODE`, for programs."),
        "title": _TEXT,
        "status": Schema(type=OpenAPIType.INTEGER),
        "detail": Schema(type=OpenAPIType.STRING, description="What to do about it."),
        "instance": _TEXT,
        "request_id": _TEXT,
        "errors": Schema(type=OpenAPIType.ARRAY, items=_ERROR),
    },
    required=["type", "title", "status", "detail", "instance", "request_id"],
)


def document_problems(app: Litestar) -> None:
    """Replace what Litestar says of its own errors, which we do not send, and of values, which it says wrongly."""
    described = app.openapi_schema
    strict = {kind.__name__ for kind in _kinds(Body)}
    for name, schema in described.components.schemas.items():
        _allow_several(schema)
        if name in strict:
            schema.additional_properties = False
    described.components.schemas[NAME] = _PROBLEM
    for path in (described.paths or {}).values():
        for operation in (path.get, path.post, path.put, path.delete):
            if operation is not None:
                _document(operation)


def _kinds(kind: type[Body]) -> Iterator[type[Body]]:
    for narrower in kind.__subclasses__():
        yield narrower
        yield from _kinds(narrower)


def _document(operation: Operation) -> None:
    body = OpenAPIMediaType(schema=Reference(ref=f"#/components/schemas/{NAME}"))
    responses = operation.responses or {}
    responses.pop("400", None)
    for response in responses.values():
        for media in (response.content or {}).values() if isinstance(response, OpenAPIResponse) else ():
            _allow_several(getattr(media, "schema", None))
    responses["default"] = OpenAPIResponse(description="The request was refused.", content={PROBLEM_TYPE: body})
    operation.responses = responses


# Any: a schema's parts are schemas, references, booleans or nothing.
def _allow_several(schema: Any) -> None:
    """Say that a value is of one kind or more: 1 is an integer and a number, an empty page one of all."""
    if isinstance(schema, Schema):
        if schema.one_of:
            schema.any_of, schema.one_of = schema.one_of, None
        parts = (schema.items, schema.additional_properties, *(schema.properties or {}).values())
        for part in (*parts, *(schema.any_of or ())):
            _allow_several(part)
