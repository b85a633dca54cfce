"""Exports of Langfuse: traces with their scores, as JSON, JSON Lines or CSV."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.evaluations.importers.support.messages import last_answer, prompt_of, to_messages
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    all_hold,
    build_case,
    items,
    mapping,
    number,
    plain,
    verdict_word,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.importers.support.tables import read_table
from meruit.registry import importers

LISTS = frozenset({"", "data"})
MARKS = frozenset({"htmlPath", "projectId", "sessionId", "traceId", "totalCost", "bookmarked", "environment"})
"""Columns of which an export has at least two."""


def is_langfuse(source: ImportSource) -> bool:
    """Recognise traces by their columns."""
    row = source.first_row
    found = row if "data" not in row else mapping(next(iter(items(row["data"])), None))
    if not found and source.head.lstrip().startswith(b"{"):
        # One trace may be longer than what is looked at.
        return source.says("data", "id", "input") and sum(map(source.says, MARKS)) > 1
    return "id" in found and bool({"input", "output"} & found.keys()) and len(MARKS & found.keys()) > 1


@importers.add(
    "langfuse",
    recognise=is_langfuse,
    examples=[
        (
            {
                "traces.jsonl": '{"id": "a", "projectId": "p", "sessionId": "s", "input": "?", "output": "yes",'
                ' "scores": [{"name": "correct", "dataType": "BOOLEAN", "value": 1}]}\n'
                '{"id": "b", "projectId": "p", "sessionId": "s", "input": "?", "output": "no", "scores": []}\n'
            },
            {"a": "pass", "b": None},
        )
    ],
)
def read_langfuse(source: ImportSource) -> Iterator[Piece]:
    """Langfuse traces with their scores: JSON of the API, or an export as JSON, JSON Lines or CSV."""
    yield RunFacts({"origin": "langfuse"})
    for row in read_table(source, LISTS):
        yield row if isinstance(row, ImportNote) else _to_case(row)


def _to_case(row: Mapping[str, Any]) -> ImportedCase:
    given, made = row.get("input"), row.get("output")
    messages = to_messages(mapping(given).get("messages", given))
    answer = mapping(made).get("content") if isinstance(made, Mapping) and "role" in made else made
    seconds = number(row.get("latency"))
    usage = mapping(row.get("usageDetails") or row.get("usage"))
    level = str(row.get("level", ""))
    case = build_case(
        row.get("id"),
        given=dict(given) if isinstance(given, Mapping) and not messages else {"prompt": prompt_of(given)},
        output=last_answer(to_messages(answer)) if isinstance(answer, list) else answer,
        tags={"name": row.get("name"), "release": row.get("release"), "version": row.get("version")},
        metadata=mapping(row.get("metadata")),
        messages=messages,
        tokens=TokenClasses.inclusive(
            given=usage.get("input", row.get("inputTokens")),
            read=usage.get("input_cached_tokens", usage.get("cache_read_input_tokens")),
            written=usage.get("cache_creation_input_tokens"),
            made=usage.get("output", row.get("outputTokens")),
        ),
        duration_ms=None if seconds is None else seconds * 1_000,
        cost=row.get("totalCost"),
        error=str(row.get("statusMessage") or "the origin recorded an error") if level == "ERROR" else None,
        group=row.get("sessionId") or None,
    )
    return ImportedCase(case, _claim(row))


def _claim(row: Mapping[str, Any]) -> Claim:
    checks: dict[str, bool | None] = {}
    scores: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for score in _scores(row.get("scores")):
        name, kind, value = str(score.get("name")), score.get("dataType"), score.get("value")
        if kind == "BOOLEAN" or isinstance(value, bool):
            # A score without a value is not a failure.
            found = value if isinstance(value, bool) else number(value)
            checks[name] = None if found is None else found > 0
        elif kind == "CATEGORICAL":
            word = verdict_word(score.get("stringValue", value))
            if word is not None:
                checks[name] = word
            scores[name] = plain(score.get("stringValue", value))
        else:
            scores[name] = number(value)
        if score.get("comment"):
            reasons[name] = str(score["comment"])[:2_000]
    numbers = [value for value in scores.values() if isinstance(value, float)]
    # Of several numbers none stands for the whole.
    return Claim(
        success=all_hold(checks),
        score=numbers[0] if not checks and len(scores) == len(numbers) == 1 else None,
        checks=checks,
        scores=scores,
        reasons=reasons,
    )


def _scores(found: Any) -> Iterator[Mapping[str, Any]]:
    """Scores as a list of objects, or as an object of values by name."""
    yield from (mapping(one) for one in items(found) if isinstance(one, Mapping))
    for name, value in mapping(found).items():
        first = value[0] if isinstance(value, list) and value else value
        yield {"name": name, "value": first, **({"dataType": "CATEGORICAL"} if isinstance(first, str) else {})}
