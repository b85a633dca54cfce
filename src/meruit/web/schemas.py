"""JSON schemas of the types of handlers: structs of msgspec, models of pydantic, and what is in them."""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from meruit.web.parameters import list_members

# Any, here and below: a JSON schema is objects, lists and plain values in one another.
OpenApiNode = dict[str, Any]
REFERENCE = "#/components/schemas/"
_NULL: OpenApiNode = {"type": "null"}
_OF_NUMBERS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_LIMITS = {
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
"""The names of limits at msgspec and pydantic, and in a schema of each type."""
_PLAIN: dict[type[types.Type], OpenApiNode] = {
    types.AnyType: {},
    types.RawType: {},
    types.NoneType: _NULL,
    types.BoolType: {"type": "boolean"},
    types.IntType: {"type": "integer"},
    types.FloatType: {"type": "number"},
    types.StrType: {"type": "string"},
    types.BytesType: {"type": "string", "contentEncoding": "base64"},
    types.DateTimeType: {"type": "string", "format": "date-time"},
    types.DateType: {"type": "string", "format": "date"},
    types.TimeDeltaType: {"type": "string", "format": "duration"},
    types.UUIDType: {"type": "string", "format": "uuid"},
    types.DecimalType: {"type": "string", "format": "decimal"},
}
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer"}
_ABOUT = ("description", "examples", "title")
"""What says something of a value, and limits nothing."""


class SchemaRegistry:
    """Makes schemas; each struct, enum and model becomes one component, which others refer to."""

    def __init__(self) -> None:
        self.components: dict[str, OpenApiNode] = {}
        self._named: dict[str, type] = {}

    def describe(self, kind: Any) -> OpenApiNode:
        """The schema of a type."""
        members = list_members(kind)
        if len(members) > 1:
            # msgspec takes no union of structs that it could not tell apart.
            return _join([self.describe(one) for one in members])
        return self._describe(types.type_info(kind))

    def _describe(self, info: types.Type) -> OpenApiNode:  # noqa: PLR0911 - one a kind of type
        match info:
            case types.Metadata():
                return {**self._describe(info.type), **(info.extra_json_schema or {})}
            case types.UnionType():
                return _join([self._describe(one) for one in info.types])
            case types.LiteralType():
                return _describe_choice(list(info.values))
            case types.EnumType():
                return self._refer(info.cls, lambda: self._describe_enum(info.cls))
            case types.StructType():
                return self._refer(info.cls, lambda: self._describe_struct(info))
            case types.CustomType() if issubclass(info.cls, BaseModel):
                return self._refer(info.cls, lambda: self._describe_model(info.cls))
            case types.DictType():
                return self._describe_dict(info)
            case types.CollectionType():
                items = self._describe(info.item_type)
                return _limit({"type": "array", "items": items}, info)
            case types.TupleType():
                return {"type": "array", "prefixItems": [self._describe(one) for one in info.item_types]}
            case _:
                return _limit(dict(_PLAIN[type(info)]), info)

    def _refer(self, kind: type, make: Callable[[], OpenApiNode]) -> OpenApiNode:
        """A reference to the component of a type; raises ValueError where two types have one name."""
        name = kind.__name__
        if self._named.setdefault(name, kind) is not kind:
            raise ValueError(f"two types of the API are called {name}")
        if name not in self.components:
            # Named before it is made: a type may refer to itself.
            self.components[name] = {}
            self.components[name] |= make()
        return {"$ref": f"{REFERENCE}{name}"}

    @staticmethod
    def _describe_enum(kind: type[Enum]) -> OpenApiNode:
        return {**_describe_choice([one.value for one in kind]), **_about(kind)}

    def _describe_struct(self, info: types.StructType) -> OpenApiNode:
        properties = {}
        for one in info.fields:
            properties[one.encode_name] = self._describe(one.type)
            if one.default is not msgspec.NODEFAULT:
                _set_default(properties[one.encode_name], one.default)
        required = [one.encode_name for one in info.fields if one.required]
        if info.tag_field is not None:
            properties[info.tag_field] = _describe_choice([info.tag])
            required.append(info.tag_field)
        described = {"type": "object", **_about(info.cls), "properties": properties, "required": required}
        return {**described, "additionalProperties": False} if info.forbid_unknown_fields else described

    def _describe_model(self, model: type[BaseModel]) -> OpenApiNode:
        properties, required = {}, []
        for field_name, one in model.model_fields.items():
            name = one.alias or field_name
            properties[name] = self._describe_field(one)
            if one.is_required():
                required.append(name)
        return {"type": "object", **_about(model), "properties": properties, "required": required}

    def _describe_field(self, field: FieldInfo) -> OpenApiNode:
        found = self.describe(field.annotation)
        for limit in field.metadata:
            found = _limit(found, limit)
        if field.description:
            found["description"] = field.description
        if field.default is not PydanticUndefined:
            _set_default(found, field.default)
        return found

    def _describe_dict(self, info: types.DictType) -> OpenApiNode:
        found = {"type": "object", "additionalProperties": self._describe(info.value_type)}
        names = self._describe(info.key_type)
        if names != _PLAIN[types.StrType]:
            found["propertyNames"] = names
        return _limit(found, info)


def _describe_choice(values: list[Any]) -> OpenApiNode:
    """The schema of a value that is one of these."""
    kinds = {_JSON_TYPES.get(type(one)) for one in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    found: OpenApiNode = {"const": values[0]} if len(values) == 1 else {"enum": values}
    return found if kind is None else {"type": kind, **found}


def _join(schemas: list[OpenApiNode]) -> OpenApiNode:
    """The schema of a value that fits one of these; what is said of an optional value is said of the whole."""
    others = [one for one in schemas if one != _NULL]
    if len(schemas) == len(others) or len(others) > 1:
        return {"anyOf": schemas}
    (only,) = others
    about = {name: only[name] for name in _ABOUT if name in only}
    kind = {name: value for name, value in only.items() if name not in about}
    return {"anyOf": [*kind.get("anyOf", [kind]), _NULL], **about}


def _limit(schema: OpenApiNode, limits: object) -> OpenApiNode:
    """Add limits to a schema; those of an optional value are those of its type."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_limit(one, limits) for one in schema["anyOf"]]}
    names = _LIMITS.get(schema.get("type", ""), {})
    found = {name: getattr(limits, key, None) for key, name in names.items()}
    return {**schema, **{name: value for name, value in found.items() if value is not None}}


def _about(kind: type) -> OpenApiNode:
    return {"title": kind.__name__, "description": inspect.cleandoc(kind.__doc__ or "")}


def _set_default(schema: OpenApiNode, default: Any) -> None:
    # That an optional value may be left out, the list of required ones says.
    if default is not None and default is not msgspec.UNSET:
        schema["default"] = msgspec.to_builtins(default)
