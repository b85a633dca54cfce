"""JSON Schema of work files, for editors and programs."""

from typing import Any

from meruit.model.contract import CAP_NAMES, WorkSubmission
from meruit.verify.schema import criteria_schema


def work_schema() -> dict[str, Any]:
    """Work as a file holds it, with its criteria as in a criteria file."""
    schema = WorkSubmission.model_json_schema(by_alias=True)
    criteria = criteria_schema()
    schema["$defs"] |= criteria.pop("$defs")
    schema["properties"]["success_criteria"] = {
        "anyOf": [{"$ref": "#/$defs/SuccessCriteria"}, {"type": "null"}],
        "default": None,
        "description": schema["properties"]["success_criteria"]["description"],
    }
    # The model reads all four names of the cap and keeps one.
    amount = {"anyOf": [{"type": ["number", "string"], "minimum": 0}, {"type": "null"}]}
    budget = schema["$defs"]["Budget"]["properties"]
    budget |= {name: amount for name in CAP_NAMES if name not in budget}
    budget["cpa_bonus"] = {"type": "object", "properties": {"max_total": amount}, "additionalProperties": False}
    return schema
