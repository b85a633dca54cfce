"""Schemas of types: what a schema allows is what msgspec takes."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field

from meruit.web.openapi import describe_routes
from meruit.web.parameters import FromPath, FromQuery, JSONBody, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import ResponseSpec, get, post
from meruit.web.schemas import SchemaRegistry


class Hue(StrEnum):
    """A hue."""

    RED = "red"
    BLUE = "blue"


class Leaf(msgspec.Struct, tag="leaf"):
    """A leaf."""

    hue: Hue = Hue.RED


class Branch(msgspec.Struct, tag="branch", forbid_unknown_fields=True):
    children: "list[Branch | Leaf]"
    weight: Annotated[float, Meta(gt=0)] | None = None
    note: Annotated[str, Meta(max_length=3, description="Short.")] | None = None


class Model(BaseModel):
    """A model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    leaf: Leaf
    names: tuple[str, ...] = Field((), max_length=2, description="Names.")
    renamed: int | None = Field(None, alias="as", ge=1)


def described(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    registry = SchemaRegistry()
    return registry.describe(kind), registry.components


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Any, {}),
        (int, {"type": "integer"}),
        (bool | None, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
        (Annotated[int, Meta(ge=0, lt=9)], {"type": "integer", "minimum": 0, "exclusiveMaximum": 9}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (timedelta, {"type": "string", "format": "duration"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Decimal, {"type": "string", "format": "decimal"}),
        (frozenset[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        (dict[str, Any], {"type": "object", "additionalProperties": {}}),
        (
            Annotated[dict[Annotated[str, Meta(min_length=1)], int], Meta(max_length=2)],
            {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "propertyNames": {"type": "string", "minLength": 1},
                "maxProperties": 2,
            },
        ),
        (Literal["a"], {"type": "string", "const": "a"}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (int | str | None, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}),
    ],
    ids=str,
)
def test_plain_types(kind: Any, schema: dict[str, Any]) -> None:
    found, components = described(kind)
    if "enum" in schema:
        assert sorted(map(str, found.pop("enum"))) == sorted(map(str, schema["enum"]))
        schema = {}
    assert (found, components) == (schema, {})


def test_a_struct_that_holds_itself_is_one_component() -> None:
    found, components = described(Branch)
    assert found == {"$ref": "#/components/schemas/Branch"}
    assert components.keys() == {"Branch", "Leaf", "Hue"}
    assert components["Hue"] == {"type": "string", "enum": ["red", "blue"], "title": "Hue", "description": "A hue."}
    assert components["Leaf"]["properties"]["hue"] == {"$ref": "#/components/schemas/Hue", "default": "red"}
    branch = components["Branch"]
    assert branch["additionalProperties"] is False
    assert branch["required"] == ["children", "type"]
    assert branch["properties"]["weight"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0}
    assert branch["properties"]["note"] == {
        "anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}],
        "description": "Short.",
    }


def test_a_model_of_pydantic_refers_to_structs() -> None:
    components = described(Model)[1]
    assert components["Model"] == {
        "type": "object",
        "title": "Model",
        "description": "A model.",
        "properties": {
            "leaf": {"$ref": "#/components/schemas/Leaf"},
            "names": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": 2,
                "description": "Names.",
                "default": (),
            },
            "as": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        },
        "required": ["leaf"],
    }


def test_two_types_of_one_name_are_refused() -> None:
    registry = SchemaRegistry()
    registry.describe(Hue)
    with pytest.raises(ValueError, match="Hue"):
        registry.describe(StrEnum("Hue", ["GREEN"]))


BRANCHES = st.recursive(
    st.fixed_dictionaries({"type": st.just("leaf")}, optional={"hue": st.sampled_from(["red", "blue", "pink"])}),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("branch"), "children": st.lists(inner, max_size=3)},
        optional={
            "weight": st.sampled_from([None, 0, 1.5, -1]),
            "note": st.sampled_from([None, "abc", "abcd"]),
            "more": st.just(1),
        },
    ),
    max_leaves=5,
)


@given(BRANCHES)
def test_a_schema_allows_what_msgspec_takes(value: dict[str, Any]) -> None:
    registry = SchemaRegistry()
    schema = {**registry.describe(Branch | Leaf), "components": {"schemas": registry.components}}
    try:
        msgspec.convert(value, Branch | Leaf)
        is_taken = True
    except msgspec.ValidationError:
        is_taken = False
    assert Draft202012Validator(schema).is_valid(value) == is_taken


@post("/leaves/{name:str}", summary="Add", tags=["t"])
async def add_leaf(
    name: FromPath[str], data: JSONBody[Leaf], size: Annotated[int | None, QueryParameter(le=5, required=False)] = 3
) -> Response[Leaf | Hue]:
    """Add a leaf."""
    raise NotImplementedError


@get(
    ["/files", "/v1/files"],
    media_type="text/csv",
    responses={404: ResponseSpec(Leaf, "None.")},
)
async def read_files(
    hue: FromQuery[Hue | None] = None,
    state: Annotated[str | None, QueryParameter(schema_extra={"enum": ["a"]}, description="One.")] = None,
) -> Response[bytes]:
    raise NotImplementedError


@get("/hidden", include_in_schema=False)
async def hidden() -> None: ...


def test_a_document_is_made_of_signatures() -> None:
    found = describe_routes([add_leaf, read_files, hidden], lambda route, path: f"{route.name} {path}")
    assert found["paths"].keys() == {"/leaves/{name}", "/files", "/v1/files"}
    assert found["components"]["schemas"].keys() == {"Hue", "Leaf"}
    added = found["paths"]["/leaves/{name}"]["post"]
    reference, hue = {"$ref": "#/components/schemas/Leaf"}, {"$ref": "#/components/schemas/Hue"}
    assert added == {
        "tags": ["t"],
        "summary": "Add",
        "description": "Add a leaf.",
        "operationId": "add_leaf /leaves/{name:str}",
        "parameters": [
            {"name": "name", "in": "path", "schema": {"type": "string"}, "required": True},
            {
                "name": "size",
                "in": "query",
                "schema": {"type": "integer", "maximum": 5, "default": 3},
                "required": False,
            },
        ],
        "requestBody": {"content": {"application/json": {"schema": reference}}, "required": True},
        "responses": {
            "201": {
                "description": "Document created, URL follows",
                "content": {"application/json": {"schema": {"anyOf": [reference, hue]}}},
            }
        },
    }
    files = found["paths"]["/v1/files"]["get"]
    assert files["summary"] == "read files"
    assert files["parameters"][1] == {
        "name": "state",
        "in": "query",
        "schema": {"type": "string", "enum": ["a"]},
        "required": False,
        "description": "One.",
    }
    assert files["responses"]["200"]["content"] == {"text/csv": {"schema": {"type": "string"}}}
    assert files["responses"]["404"] == {"description": "None.", "content": {"application/json": {"schema": reference}}}
