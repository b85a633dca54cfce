"""The plain loop: what a user would write with care, and keeps no record of.

5,000 stored outputs as JSON texts of about 600 characters, each held against three checks: keywords, a threshold, a
JSON Schema. The loop reads each with json.loads, builds the `jsonschema` validator once, and keeps floats in a list.
"""

import json
from collections.abc import Sequence
from typing import Any

STORED = 5_000
KEYWORDS = ("refund", "within")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["text", "label", "confidence", "sources"],
    "properties": {
        "text": {"type": "string", "minLength": 1},
        "label": {"enum": ["refund", "repair", "other"]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "sources": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "ok"],
                "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
            },
        },
    },
}
CRITERIA: dict[str, Any] = {
    "criteria": [
        {
            "metric": "contains_keywords",
            "metric_type": "contains",
            "comparison": "contains_all",
            "threshold": [*KEYWORDS],
        },
        {"metric": "confidence", "metric_type": "percentage", "comparison": "gte", "threshold": 0.8},
        {
            "metric": "matches_schema",
            "metric_type": "matches_schema",
            "comparison": "eq",
            "threshold": True,
            "params": {"schema": SCHEMA},
        },
    ]
}
TEXT = (
    "The customer may return the parcel within thirty days and gets a full refund to the card that paid for it. "
    "The shop sends a label by mail; the parcel must be handed in at a branch, and the receipt is kept until the money "
    "has arrived. Where the parcel is lost on its way, the shop asks the carrier and pays nevertheless. "
)


def output(number: int) -> dict[str, Any]:
    """One output of about 600 characters; every tenth fails by its label, every seventh by its confidence."""
    return {
        "text": f"{TEXT}Ticket {number}.",
        "label": "refund" if number % 10 else "unknown",
        "confidence": 0.91 if number % 7 else 0.5,
        "sources": ["policy.md", "orders.csv"],
        "steps": [{"name": "read", "ok": True}, {"name": "answer", "ok": True}],
    }


def stored(count: int = STORED) -> list[str]:
    """The outputs as they are stored: JSON texts."""
    return [json.dumps(output(number)) for number in range(count)]


def loop(texts: Sequence[str]) -> int:
    """Judge every text and keep the scores; returns how many pass."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(SCHEMA)
    scores: list[float] = []
    for text in texts:
        made = json.loads(text)
        lower = made["text"].lower()
        found = sum(keyword in lower for keyword in KEYWORDS) / len(KEYWORDS)
        met = [found >= 1.0, made["confidence"] >= 0.8, validator.is_valid(made)]
        scores.append(sum(met) / len(met))
    return sum(score == 1.0 for score in scores)


PASSED = sum(bool(number % 10 and number % 7) for number in range(STORED))
"""How many of the stored outputs pass."""
