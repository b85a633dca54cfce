"""Exports of Langfuse: traces, observations or items of an experiment with their scores, as JSON, JSON Lines or CSV."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
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
    count,
    first_known,
    items,
    mapping,
    number,
    number_names,
    plain,
    verdict_word,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.importers.support.tables import read_table
from meruit.evaluations.importers.support.token_sums import CountedOperation, sum_tokens
from meruit.registry import importers

LISTS = frozenset({"", "data"})
MARKS = frozenset(
    {"htmlPath", "projectId", "sessionId", "traceId", "totalCost", "bookmarked", "environment", "experimentId"}
)
"""Columns of which an export has at least two."""
TEXTS = ("TEXT", "CORRECTION")
"""Kinds of a score that hold a text; the number of a correction is always 0."""


def is_langfuse(source: ImportSource) -> bool:
    """Recognise traces by their columns."""
    row, keys = source.first_row, source.first_keys
    if "data" in row:
        keys = mapping(next(iter(items(row["data"])), None)).keys()
    elif "data" in keys:
        # One trace of a page may be longer than what is looked at.
        return source.says("id", "input") and sum(map(source.says, MARKS)) > 1
    return "id" in keys and bool({"input", "output"} & keys) and len(MARKS & keys) > 1


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
    """Langfuse traces, observations or experiment items with their scores: pages of the API, or an export."""
    yield RunFacts({"origin": "langfuse"})
    for row in read_table(source, LISTS):
        yield row if isinstance(row, ImportNote) else _to_case(row)


def _to_case(row: Mapping[str, Any]) -> ImportedCase:
    given, made = row.get("input"), row.get("output")
    asked, said = _chat(mapping(given).get("messages", given)), _chat(made)
    reference = row.get("expectedOutput")
    parts = [mapping(one) for one in items(row.get("observations"))]
    last = max(parts, key=lambda one: str(one.get("startTime", "")), default=row)
    # A trace has no level of its own.
    problem = next((one for one in (row, last if made is None else row) if one.get("level") == "ERROR"), None)
    work = dict(given) if isinstance(given, Mapping) and not asked else {"prompt": _prompt(given, asked)}
    case = build_case(
        first_known(row.get("experimentItemId"), row.get("id")),
        given=work if reference is None else {**work, "reference": reference},
        output=last_answer(said) if said else made,
        tags={
            "name": row.get("name"),
            "release": row.get("release"),
            "version": row.get("version"),
            "experiment": row.get("experimentName"),
            "model": row.get("model") or next((one["model"] for one in parts if one.get("model")), None),
        },
        metadata=mapping(row.get("metadata")),
        messages=[*asked, *said],
        tokens=_count_tokens(parts or [row]),
        duration_ms=_duration(row),
        cost=row.get("totalCost"),
        error=None if problem is None else str(problem.get("statusMessage") or "the origin recorded an error"),
        group=row.get("sessionId") or None,
    )
    return ImportedCase(case, _claim(row))


def _chat(value: Any) -> list[dict[str, Any]]:
    """The messages of a conversation, or of one message; none where it is another value."""
    found = [value] if isinstance(value, Mapping) else items(value)
    return to_messages(found) if all("role" in mapping(one) for one in found) else []


def _prompt(given: Any, asked: list[dict[str, Any]]) -> Any:
    return prompt_of(asked) if asked else given if given is not None else ""


def _duration(row: Mapping[str, Any]) -> float | None:
    """Milliseconds, from seconds or from two times."""
    seconds = number(row.get("latency"))
    if seconds is None:
        try:
            began, ended = (datetime.fromisoformat(str(row[name])) for name in ("startTime", "endTime"))
            seconds = (ended - began).total_seconds()
        except (KeyError, ValueError, TypeError):
            return None
    return seconds * 1_000


def _count_tokens(observations: Sequence[Mapping[str, Any]]) -> TokenClasses:
    """Tokens of all calls; an agent has those of its calls too."""
    return sum_tokens(
        CountedOperation(
            # Without ids, none is below another.
            id=str(first_known(one.get("id"), f"#{position}")),
            parent=str(one.get("parentObservationId") or ""),
            tokens=_tokens(one),
            is_call=one.get("type") == "GENERATION",
            is_embedding=one.get("type") == "EMBEDDING",
        )
        for position, one in enumerate(observations)
    )


def _tokens(row: Mapping[str, Any]) -> TokenClasses:
    """Tokens of an observation, or of an exported row; the classes of its details do not overlap."""
    details = mapping(row.get("usageDetails") or row.get("usage"))
    if not details:
        return TokenClasses.exclusive(given=row.get("inputTokens"), made=row.get("outputTokens"))
    if details.get("unit") not in (None, "TOKENS"):
        return TokenClasses()
    given = read = written = made = 0
    for name, value in details.items():
        # Exports of older releases have the costs beside the tokens.
        if name.endswith("Cost"):
            continue
        if "cache" in name:
            stored = "creation" in name or "write" in name
            read, written = (read, written + count(value)) if stored else (read + count(value), written)
        elif name.startswith("input"):
            given += count(value)
        elif name.startswith("output"):
            made += count(value)
    return TokenClasses(given, read, written, made)


def _claim(row: Mapping[str, Any]) -> Claim:
    checks: dict[str, bool | None] = {}
    scores: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    several = [*_scores(row.get("scores"))]
    # Observations of a trace may have scores of one name.
    names = number_names([str(score.get("name")) for score in several])
    for name, score in zip(names, several, strict=True):
        kind, value = score.get("dataType"), score.get("value")
        if kind in TEXTS:
            scores[name] = plain(first_known(score.get("stringValue"), value))
        elif kind == "BOOLEAN" or isinstance(value, bool):
            # A score without a value is not a failure.
            found = value if isinstance(value, bool) else number(value)
            checks[name] = None if found is None else found > 0
        elif kind == "CATEGORICAL":
            word = verdict_word(first_known(score.get("stringValue"), value))
            if word is not None:
                checks[name] = word
            scores[name] = plain(first_known(score.get("stringValue"), value))
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
    for name, values in mapping(found).items():
        for value in values if isinstance(values, list) else [values]:
            yield {"name": name, "value": value, **({"dataType": "CATEGORICAL"} if isinstance(value, str) else {})}
