"""What OpenAPI says of refusals: every route may answer with a problem document."""

from litestar import Litestar
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Reference, Schema
from litestar.openapi.spec.enums import OpenAPIType

from meruit.api.problems import PROBLEM_TYPE

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
    """Replace what Litestar says of its own errors, which we do not send."""
    described = app.openapi_schema
    described.components.schemas[NAME] = _PROBLEM
    for path in (described.paths or {}).values():
        for operation in (path.get, path.post, path.put, path.delete):
            if operation is not None:
                _document(operation)


def _document(operation: Operation) -> None:
    body = OpenAPIMediaType(schema=Reference(ref=f"#/components/schemas/{NAME}"))
    responses = operation.responses or {}
    responses.pop("400", None)
    responses["default"] = OpenAPIResponse(description="The request was refused.", content={PROBLEM_TYPE: body})
    operation.responses = responses
