"""Exports of Phoenix: runs of an experiment, or spans with their evaluations, as JSON, JSON Lines, CSV or Parquet."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.evaluations.importers.support.messages import last_answer, prompt_of
from meruit.evaluations.importers.support.openinference import read_conversation
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    all_hold,
    build_case,
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
from meruit.registry import importers

SPAN, TRACE, ATTRIBUTES = "context.span_id", "context.trace_id", "attributes."
NOTED = "annotation_"
"""How the columns of a table of runs begin that hold what evaluators said: `annotation_NAME_label`."""
SAID = ("label", "score", "explanation", "error")


def is_phoenix(source: ImportSource) -> bool:
    """Recognise runs and spans by their columns."""
    row = source.first_row
    return SPAN in _flatten(row) or {"example_id", "repetition_number"} <= row.keys()


@importers.add(
    "phoenix",
    recognise=is_phoenix,
    examples=[
        (
            {
                "experiment.json": '[{"example_id": "a", "repetition_number": 1, "input": {"q": "?"}, "output": "yes",'
                ' "annotations": [{"name": "correctness", "label": "correct", "score": 1}]},'
                ' {"example_id": "b", "repetition_number": 1, "input": {"q": "?"}, "error": "died"}]'
            },
            {"a": "pass", "b": None},
        )
    ],
)
def read_phoenix(source: ImportSource) -> Iterator[Piece]:
    """Phoenix: runs of an experiment, or a table of spans with their evaluations."""
    yield RunFacts({"origin": "phoenix"})
    for row in read_table(source):
        if isinstance(row, ImportNote):
            yield row
        else:
            span = _flatten(row)
            yield _span_case(span) if SPAN in span else _run_case(row)


def _flatten(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A span of its client, with the names that a table of spans has."""
    context = mapping(row.get("context"))
    if "span_id" not in context:
        return row
    attributes = {f"{ATTRIBUTES}{name}": value for name, value in mapping(row.get("attributes")).items()}
    return {**row, **attributes, SPAN: context["span_id"], TRACE: context.get("trace_id")}


def _run_case(row: Mapping[str, Any]) -> ImportedCase:
    given, reference = row.get("input"), row.get("reference_output")
    work = dict(given) if isinstance(given, Mapping) else {"prompt": given}
    if reference is not None:
        only = [*reference.values()] if isinstance(reference, Mapping) else [reference]
        work["reference"] = only[0] if len(only) == 1 else reference
    case = build_case(
        row.get("example_id"),
        given=work,
        output=row.get("output"),
        repeat=(number(_to_number(row.get("repetition_number"))) or 1) - 1,
        duration_ms=_to_number(row.get("latency_ms")),
        tokens=TokenClasses.inclusive(
            given=_to_number(row.get("prompt_token_count")), made=_to_number(row.get("completion_token_count"))
        ),
        error=str(row["error"]) if row.get("error") else None,
    )
    notes = [mapping(one) for one in items(row.get("annotations"))]
    return ImportedCase(case, _claim(notes or _notes_of(row, NOTED, "_")))


def _notes_of(row: Mapping[str, Any], begins: str, divider: str) -> list[Mapping[str, Any]]:
    """What evaluators said, from the columns of a table: one for each name and part."""
    notes: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        name, _, part = column.removeprefix(begins).rpartition(divider)
        if column.startswith(begins) and part in SAID and value not in (None, ""):
            notes.setdefault(name, {"name": name})[part] = _to_number(value) if part == "score" else value
    return [*notes.values()]


def _span_case(row: Mapping[str, Any]) -> ImportedCase:
    failed = str(row.get("status_code", "")).upper() == "ERROR"
    prefix = f"{ATTRIBUTES}llm.token_count"
    asked, answered = (read_conversation(row, f"{ATTRIBUTES}llm.{side}_messages") for side in ("input", "output"))
    case = build_case(
        row.get(SPAN),
        # A traced client writes its whole request and reply as values, and the texts as messages.
        given={"prompt": prompt_of(asked) or row.get(f"{ATTRIBUTES}input.value")},
        # An answer may be tool calls alone, and have no text.
        output=last_answer(answered) if answered else row.get(f"{ATTRIBUTES}output.value"),
        messages=[*asked, *answered],
        tags={"name": row.get("name"), "model": row.get(f"{ATTRIBUTES}llm.model_name")},
        tokens=TokenClasses.inclusive(
            given=_to_number(row.get(f"{prefix}.prompt")),
            read=_to_number(row.get(f"{prefix}.prompt_details.cache_read")),
            written=_to_number(row.get(f"{prefix}.prompt_details.cache_write")),
            made=_to_number(row.get(f"{prefix}.completion")),
        ),
        error=str(row.get("status_message") or "the span ended with an error") if failed else None,
        group=str(row[TRACE]) if row.get(TRACE) else None,
    )
    return ImportedCase(case, _claim(_notes_of(row, "eval.", ".")))


def _to_number(value: Any) -> Any:
    """A number of a table that holds text only."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _claim(notes: list[Mapping[str, Any]]) -> Claim:
    whole = [one for one in notes if not one.get("error")]
    scored = [*zip(number_names([str(one.get("name")) for one in whole]), whole, strict=True)]
    checks: dict[str, bool | None] = {name: verdict_word(one.get("label")) for name, one in scored}
    known = {name: one for name, one in checks.items() if one is not None}
    numbers = [number(one.get("score")) for _, one in scored]
    return Claim(
        success=all_hold(known) if len(known) == len(notes) else False if False in known.values() else None,
        score=numbers[0] if not known and len(notes) == len(numbers) == 1 else None,
        checks=known,
        scores={name: plain(first_known(one.get("score"), one.get("label"))) for name, one in scored},
        reasons={name: str(one["explanation"])[:2_000] for name, one in scored if one.get("explanation")},
    )
