"""The OpenAPI document of routes, from the signatures and docstrings of their handlers."""

import inspect
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import NoneType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from meruit.web.parameters import BODY, Argument, list_members
from meruit.web.responses import JSON, NO_BODY, Response
from meruit.web.routing import ResponseSpec, Route, documented_path
from meruit.web.schemas import OpenApiNode, SchemaRegistry

OPENAPI = "3.1.0"


def describe_routes(routes: Iterable[Route], operation_id: Callable[[Route, str], str]) -> OpenApiNode:
    """The paths and the components of routes; `operation_id` names the operation of a route at a path."""
    schemas = SchemaRegistry()
    paths: dict[str, OpenApiNode] = {}
    for route in routes:
        if not route.include_in_schema:
            continue
        for path in route.paths:
            described = _describe_operation(route, operation_id(route, path), schemas)
            paths.setdefault(documented_path(path), {})[route.method.lower()] = described
    return {"paths": paths, "components": {"schemas": dict(sorted(schemas.components.items()))}}


def _describe_operation(route: Route, operation_id: str, schemas: SchemaRegistry) -> OpenApiNode:
    operation: OpenApiNode = {
        "tags": list(route.tags),
        "summary": route.summary or route.name.replace("_", " "),
        "description": inspect.getdoc(route.fn) or "",
        "operationId": operation_id,
    }
    for one in route.arguments:
        if one.place == BODY:
            content = {JSON: {"schema": schemas.describe(one.kind)}}
            operation["requestBody"] = {"content": content, "required": True}
        else:
            operation.setdefault("parameters", []).append(_describe_parameter(one, schemas))
    operation["responses"] = {str(status): _describe_reply(status, one, schemas) for status, one in _replies(route)}
    return operation


def _describe_parameter(one: Argument, schemas: SchemaRegistry) -> OpenApiNode:
    # Nobody can send null in a path, a query or a header.
    members = tuple(kind for kind in list_members(one.kind) if kind is not NoneType)
    schema = {**schemas.describe(Union[members]), **(one.parameter.schema_extra or {})}  # noqa: UP007 - of a tuple
    if one.default_value is not None:
        schema["default"] = msgspec.to_builtins(one.default_value)
    described: OpenApiNode = {"name": one.wire_name, "in": one.place, "schema": schema, "required": one.is_required}
    return {**described, "description": one.parameter.description} if one.parameter.description else described


# Any: an annotation.
def _replies(route: Route) -> Iterable[tuple[int, ResponseSpec]]:
    if route.status_code not in route.responses:
        returned: Any = get_type_hints(route.fn, include_extras=True).get("return", NoneType)
        content = get_args(returned)[0] if get_origin(returned) is Response else returned
        description = HTTPStatus(route.status_code).description
        yield route.status_code, ResponseSpec(content, description, route.media_type or JSON)
    yield from route.responses.items()


def _describe_reply(status: int, spec: ResponseSpec, schemas: SchemaRegistry) -> OpenApiNode:
    if status in NO_BODY:
        return {"description": spec.description}
    # A file, whatever is in it.
    kind = str if spec.data_container is bytes else spec.data_container
    return {"description": spec.description, "content": {spec.media_type: {"schema": schemas.describe(kind)}}}
