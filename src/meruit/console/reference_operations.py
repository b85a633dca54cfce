"""Operations of an OpenAPI document, as the reference shows them."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from meruit.web.schemas import OpenApiNode

_LOCAL = "#/components/schemas/"
MAX_FIELDS = 60


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a body."""

    name: str
    kind: str
    place: str
    """path, query, header or body."""
    required: bool
    description: str
    # Any: JSON.
    example: Any = None


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation of the API."""

    id: str
    tag: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    # Any: JSON.
    example: Any
    """The body of the example; None where the operation takes none."""
    replies: tuple[tuple[str, str, str], ...]
    """Status, description and the name of the schema."""

    def write_curl(self, origin: str, *, with_key: bool) -> str:
        """The example as a command for the service at an origin."""
        path = self.path
        query = {}
        for one in self.parameters:
            if one.place == "path":
                path = path.replace(f"{{{one.name}}}", quote(str(one.example), safe="@:"))
            elif one.place == "query" and one.example is not None:
                query[one.name] = one.example
        address = f"{origin}{path}{'?' + urlencode(query) if query else ''}"
        return write_curl(self.method, address, self.example, with_key=with_key)


# Any: the body is JSON.
def write_curl(method: str, address: str, body: Any, *, with_key: bool) -> str:
    """A request as a command for a shell."""
    named = [] if method == ("GET" if body is None else "POST") else ["-X", method]
    key = ["-H", "Authorization: Bearer $MERUIT_KEY"] if with_key else []
    sent = [] if body is None else ["--json", json.dumps(body, ensure_ascii=False)]
    return " ".join(_quote(word) for word in ("curl", *named, address, *key, *sent))


def _quote(word: str) -> str:
    # The shell must see the variable.
    return f'"{word}"' if "$MERUIT_KEY" in word else shlex.quote(word)


def list_operations(document: OpenApiNode) -> list[ApiOperation]:
    """Every operation, by subject and path."""
    found = [
        _operation(document, path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict) and "operationId" in operation
    ]
    return sorted(found, key=lambda one: (one.tag, one.path, one.method))


def _operation(document: OpenApiNode, path: str, method: str, operation: OpenApiNode) -> ApiOperation:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    replies = tuple(
        (status, reply.get("description", ""), _reply_name(reply)) for status, reply in operation["responses"].items()
    )
    return ApiOperation(
        id=operation["operationId"],
        tag=(operation.get("tags") or ["other"])[0],
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=tuple(_parameter(one) for one in operation.get("parameters", ())),
        body=tuple(_fields(document, content.get("schema", {})))[:MAX_FIELDS],
        example=content.get("example"),
        replies=replies,
    )


def _parameter(parameter: OpenApiNode) -> Field:
    schema = parameter.get("schema", {})
    return Field(
        parameter["name"],
        describe_kind(schema),
        parameter["in"],
        bool(parameter.get("required")),
        parameter.get("description", "") or schema.get("description", ""),
        parameter.get("example"),
    )


def _fields(document: OpenApiNode, schema: OpenApiNode) -> Iterator[Field]:
    resolved = _resolve(document, schema)
    required = set(resolved.get("required", ()))
    for name, field in resolved.get("properties", {}).items():
        yield Field(
            name=name,
            kind=describe_kind(field),
            place="body",
            required=name in required,
            description=field.get("description", ""),
        )


def _resolve(document: OpenApiNode, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").removeprefix(_LOCAL)
    return document["components"]["schemas"].get(name, {}) if name else schema


def describe_kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_LOCAL)
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"][:12])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [describe_kind(one) for one in schema[several] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds)) or "any"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(one for one in kind if one != "null")
    if kind == "array":
        return f"list of {describe_kind(schema.get('items', {}))}"
    return str(kind)


def _reply_name(reply: OpenApiNode) -> str:
    for media, content in reply.get("content", {}).items():
        name = describe_kind(content.get("schema", {}))
        return name if name not in ("any", "object") else str(media)
    return ""
