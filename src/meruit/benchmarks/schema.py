"""The JSON Schema of benchmark files, with the options of each check, so that editors can complete assertions."""

from typing import Any

from pydantic import AliasChoices
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import BeforeValidatorFunctionSchema, WrapValidatorFunctionSchema

from meruit.model.criterion import SuccessCriterion
from meruit.model.task import Benchmark
from meruit.registry import Check, checks

_OF_METRICS = ("Assertion", "ComparisonOperator", "MetricType", "Scale", "SuccessCriterion")
"""Definitions that are replaced here, or that only concern metrics, which tasks do not have."""

Schema = dict[str, Any]


class AuthoringJsonSchema(GenerateJsonSchema):
    """Builds the schema of what authors may write: where a validator runs before the type, the type is only a hint."""

    def function_before_schema(self, schema: BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Return the schema behind a validator."""
        return self._as_hint(super().function_before_schema(schema), schema)

    def function_wrap_schema(self, schema: WrapValidatorFunctionSchema) -> JsonSchemaValue:
        """Return the schema inside a validator."""
        return self._as_hint(super().function_wrap_schema(schema), schema)

    # Any: either of the two.
    @staticmethod
    def _as_hint(found: JsonSchemaValue, schema: Any) -> JsonSchemaValue:
        return found if schema.get("json_schema_input_schema") is not None else {"anyOf": [found, {}]}


def benchmark_schema() -> Schema:
    """Build the schema of benchmark files, with nested or flat assertions."""
    schema = Benchmark.model_json_schema(by_alias=True)
    definitions: Schema = schema["$defs"]
    for name in _OF_METRICS:
        definitions.pop(name, None)
    common = _common()
    known = {"enum": checks.names(), "description": "The check that decides."}
    nested, flat = list[Schema](), list[Schema]()
    for check in checks:
        named = {"properties": {"assert": {"const": check.name}}, "required": ["assert"]}
        settings = settings_schema(check, definitions)
        properties = {"assert": known, **settings["properties"]}
        nested.append({"if": named, "then": settings | {"properties": properties}})
        flat.append({"if": named, "then": settings | {"properties": common | properties}})
    definitions["Assertion"] = {
        "title": "What must be true",
        "type": "object",
        "properties": {"assert": known},
        "required": ["assert"],
        "allOf": nested,
    }
    definitions["SuccessCriterion"] = {
        "title": "What must be true afterwards, and what it counts for",
        "type": "object",
        "properties": {**common, "assert": known, "assertion": {"$ref": "#/$defs/Assertion"}},
        "oneOf": [{"required": ["assert"]}, {"required": ["assertion"]}],
        # In a flat assertion its check decides which keys are allowed beside it; otherwise none are.
        "if": {"required": ["assertion"]},
        "then": {"properties": dict.fromkeys([*common, "assertion"], True), "additionalProperties": False},
        "allOf": flat,
    }
    # A source of the playground may be given as its kind only.
    sources = definitions["Task"]["properties"]["sources"]
    source = {"anyOf": [{"$ref": "#/$defs/TaskSource"}, {"$ref": "#/$defs/SourceKind"}]}
    sources["patternProperties"] = dict.fromkeys(sources["patternProperties"], source)
    return schema


def _common() -> Schema:
    """Return the properties of every criterion, for any check."""
    known = SuccessCriterion.model_json_schema(by_alias=True)["properties"]
    common = {name: known[name] for name in known if name in SuccessCriterion.COMMON - {"metric", "expr", "assertion"}}
    return common | {"label": common["name"]}


def settings_schema(check: Check, definitions: Schema) -> Schema:
    """Return the schema of a check's assertions; any object if only the check knows it. Adds its definitions."""
    if check.settings is None:
        return {"type": "object", "properties": {}}
    # The `Let` of one check may differ from another's.
    schema = check.settings.model_json_schema(
        by_alias=True, ref_template=f"#/$defs/{check.name}.{{model}}", schema_generator=AuthoringJsonSchema
    )
    definitions.update({f"{check.name}.{name}": one for name, one in schema.pop("$defs", {}).items()})
    properties, required = schema["properties"], [*schema.pop("required", [])]
    choices = list[Schema]()
    for field in check.settings.model_fields.values():
        if not isinstance(field.validation_alias, AliasChoices):
            continue
        first, *others = map(str, field.validation_alias.choices)
        properties |= dict.fromkeys(others, properties[first])
        if first in required:
            required.remove(first)
            choices.append({"oneOf": [{"required": [name]} for name in (first, *others)]})
    return schema | ({"required": required} if required else {}) | ({"allOf": choices} if choices else {})
