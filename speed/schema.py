"""A 5 KB document held against a schema, and ten keywords looked for in 10 KB of text."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import orjson

from meruit.metrics.content import contains_keywords, matches_schema
from meruit.model.evidence import Measured
from meruit.model.work import Work
from meruit.registry import Ask
from speed.measure import Row, interleaved

_MONEY = {"type": "string", "pattern": r"^-?[0-9]{1,12}(\.[0-9]{1,6})?$"}
_ADDRESS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["street", "city", "country"],
    "properties": {
        "street": {"type": "string", "minLength": 1, "maxLength": 200},
        "city": {"type": "string", "minLength": 1, "maxLength": 100},
        "postcode": {"type": "string", "pattern": "^[A-Z0-9 -]{3,10}$"},
        "country": {"type": "string", "minLength": 2, "maxLength": 2},
    },
}
_PARTY = {
    "type": "object",
    "required": ["name", "address"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "vat": {"type": "string", "pattern": "^[A-Z]{2}[0-9A-Z]{2,12}$"},
        "email": {"type": "string", "pattern": "^[^@]+@[^@]+$"},
        "address": {"$ref": "#/$defs/address"},
    },
}
_LINE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["sku", "title", "quantity", "unit_price", "tax"],
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
        "title": {"type": "string", "minLength": 1, "maxLength": 300},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 100000},
        "unit_price": {"$ref": "#/$defs/money"},
        "tax": {"enum": ["standard", "reduced", "exempt"]},
        "note": {"anyOf": [{"type": "string", "maxLength": 500}, {"type": "null"}]},
    },
}
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "An invoice",
    "type": "object",
    "required": ["number", "issued", "currency", "seller", "buyer", "lines", "total"],
    "properties": {
        "number": {"type": "string", "pattern": "^INV-[0-9]{4,10}$"},
        "issued": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        "currency": {"enum": ["EUR", "USD", "GBP", "CHF"]},
        "seller": {"$ref": "#/$defs/party"},
        "buyer": {"$ref": "#/$defs/party"},
        "lines": {"type": "array", "minItems": 1, "maxItems": 1000, "items": {"$ref": "#/$defs/line"}},
        "total": {"$ref": "#/$defs/money"},
        "paid": {"type": "boolean"},
        "terms": {"oneOf": [{"const": "prepaid"}, {"type": "object", "required": ["days"]}]},
    },
    "$defs": {"money": _MONEY, "address": _ADDRESS, "party": _PARTY, "line": _LINE},
}


def _party(name: str) -> dict[str, Any]:
    address = {"street": "12 Long Lane", "city": "Leeds", "postcode": "LS1 4AP", "country": "GB"}
    return {"name": name, "vat": "GB123456789", "email": "billing@example.org", "address": address}


DOCUMENT: dict[str, Any] = {
    "number": "INV-20251",
    "issued": "2025-11-15",
    "currency": "EUR",
    "seller": _party("Ada & Co"),
    "buyer": _party("Babbage Ltd"),
    "lines": [
        {
            "sku": f"ABC-{number}",
            "title": f"Difference engine, part number {number}, machined brass",
            "quantity": number + 1,
            "unit_price": "1249.50",
            "tax": "standard",
            "note": "delivered to the workshop",
        }
        for number in range(26)
    ],
    "total": "438574.50",
    "paid": True,
    "terms": {"days": 30},
}

KEYWORDS = [f"word{number * 97}" for number in range(10)]
TEXT = " ".join(f"word{number}" for number in range(1150))


def specified_keywords(task_input: dict[str, Any], task_output: dict[str, Any]) -> float:
    """The specification's loop, as printed."""
    output_lower = str(task_output.get("text", task_output)).lower()
    keywords = task_input.get("required_keywords", [])
    found = sum(1 for k in keywords if k.lower() in output_lower)
    return float(found / len(keywords))


def rows() -> Iterator[Row]:
    """The two comparisons; both sides must agree before they are timed."""
    assert 4_500 < len(orjson.dumps(DOCUMENT)) < 5_500
    measure = matches_schema(Ask({"schema": SCHEMA}))
    work = Work(output=DOCUMENT)
    assert measure(work) == 1.0
    ours, baseline = interleaved(lambda: measure(work), lambda: jsonschema.validate(DOCUMENT, SCHEMA))
    yield Row("schema, 5 KB", ours, baseline, "jsonschema.validate", 500)

    output, given = {"text": TEXT}, {"required_keywords": KEYWORDS}
    keywords = contains_keywords(Ask(wanted=tuple(KEYWORDS)))
    found = keywords(Work(output=output))
    assert isinstance(found, Measured)
    assert found.value == specified_keywords(given, output)
    # A new work each time, so that nothing is remembered from the last.
    ours, baseline = interleaved(lambda: keywords(Work(output=output)), lambda: specified_keywords(given, output))
    yield Row("keywords, 10 in 10 KB", ours, baseline, "the specified loop", None)
