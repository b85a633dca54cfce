"""JSON Schema of criteria files, for editors and programs."""

from typing import Any

from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.kinds import CONTAINMENT, ComparisonOperator, Tier


def criteria_schema() -> dict[str, Any]:
    """Criteria as a file holds them: with or without the outer key, assertions nested or flat."""
    schema = SuccessCriteria.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    criterion = definitions["SuccessCriterion"]
    common = {
        name: shape
        for name, shape in criterion["properties"].items()
        if name in SuccessCriterion.COMMON and name not in ("metric", "expr")
    }
    definitions["MetricCriterion"] = {
        **criterion,
        "title": "A metric against a threshold",
        "properties": {name: shape for name, shape in criterion["properties"].items() if name != "expr"},
        # The metric knows its type. One that is true or false needs no comparison either.
        "required": ["metric"],
        "dependentRequired": {"comparison": ["threshold"], "threshold": ["comparison"]},
    }
    numeric = [str(operator) for operator in ComparisonOperator if operator not in CONTAINMENT]
    definitions["ExprCriterion"] = {
        **criterion,
        "title": "An expression against a threshold",
        "properties": {
            **{name: shape for name, shape in criterion["properties"].items() if name != "params"},
            "comparison": {"enum": numeric, "description": criterion["properties"]["comparison"]["description"]},
        },
        "required": ["expr", "metric_type", "comparison", "threshold"],
    }
    definitions["AssertionCriterion"] = {
        "title": "A typed assertion about the environment",
        "type": "object",
        "properties": {**common, "assert": {"type": "string", "minLength": 1}},
        "anyOf": [{"required": ["assert"]}, {"required": ["assertion"]}],
    }
    forms = ("MetricCriterion", "ExprCriterion", "AssertionCriterion")
    definitions["SuccessCriterion"] = {"anyOf": [{"$ref": f"#/$defs/{form}"} for form in forms]}
    definitions["CustomMetric"] = _custom_schema(definitions["CustomMetric"])
    del definitions["Tier"]
    # The model takes an empty list, because the engine has a verdict for it; a file may not hold one.
    schema["properties"]["criteria"]["minItems"] = 1
    definitions["SuccessCriteria"] = schema
    wrapped = {
        "type": "object",
        "properties": {"success_criteria": {"$ref": "#/$defs/SuccessCriteria"}},
        "required": ["success_criteria"],
        "additionalProperties": False,
    }
    return {"$defs": definitions, "anyOf": [wrapped, {"$ref": "#/$defs/SuccessCriteria"}]}


def _custom_schema(custom: dict[str, Any]) -> dict[str, Any]:
    """A custom metric as a file holds it: its code, or the name of the file that holds the code."""
    tiers = [str(tier) for tier in Tier if tier is not Tier.EXPR]
    beside = {"type": "string", "minLength": 1, "description": "A file in the folder of the criteria with the code."}
    properties = custom["properties"]
    return {
        **custom,
        "properties": {
            **properties,
            "tier": {"enum": tiers, "default": str(Tier.PYTHON), "description": properties["tier"]["description"]},
            "code_file": beside,
        },
        "required": ["metrics"],
        "oneOf": [{"required": ["code"]}, {"required": ["code_file"]}],
    }
