"""The base class of records: frozen, fast to encode, usable inside pydantic models."""

from typing import TYPE_CHECKING, Any, Self

import msgspec

from meruit.model.decoding import convert_to, decode_json

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


_WRITER = msgspec.json.Encoder(order="deterministic")


class Record(msgspec.Struct, frozen=True, gc=False):
    """A frozen struct that can be a field of a user's pydantic model.

    Records form trees, never cycles, so the garbage collector need not follow them.
    """

    if TYPE_CHECKING:

        def __copy__(self) -> Self:
            """A shallow copy, without `__post_init__`: it takes a fifth of the time that the constructor takes."""
            ...

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, ready for any JSON library."""
        # to_builtins answers Any; a struct always becomes a dict.
        return dict(msgspec.to_builtins(self))

    def to_json(self) -> bytes:
        """The record as JSON; equal records give equal bytes."""
        return _WRITER.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read back what `to_json` wrote; raises `msgspec.ValidationError` on anything else."""
        return decode_json(data, cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Let pydantic validate this struct through msgspec."""
        from pydantic_core import core_schema

        def convert(value: Any) -> Record:
            if isinstance(value, cls):
                return value
            try:
                return convert_to(value, cls)
            except msgspec.ValidationError as problem:
                # Pydantic collects ValueErrors and reports them with the rest.
                raise ValueError(str(problem)) from None

        return core_schema.no_info_plain_validator_function(
            convert,
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> "JsonSchemaValue":
        """The struct's JSON Schema with its parts inlined, so that it can be used anywhere."""
        (found,), definitions = msgspec.json.schema_components([cls], ref_template="#/$defs/{name}")
        return dict(_inline(found, definitions))


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replace each reference by what it refers to; our records are never recursive."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return _inline(definitions[reference.rsplit("/", 1)[-1]], definitions)
        return {key: _inline(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inline(value, definitions) for value in schema]
    return schema
