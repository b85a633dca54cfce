"""Logs of OpenAI evals: events of `oaieval`, and output items of hosted evals."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.errors import ImportDamaged
from meruit.evaluations.importers.support.messages import prompt_of, text_of, to_messages
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
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.importers.support.tables import read_table
from meruit.registry import importers

MAX_OPEN_SAMPLES = 100_000
"""Samples that are held together: their events lie anywhere in the file."""
ITEM = "eval.run.output_item"
LISTS = frozenset({"", "data"})
INVALID = "__invalid__"
"""The choice of a grader whose answer is none of the choices; it gets the lowest score."""


def is_openai_evals(source: ImportSource) -> bool:
    """Recognise a log by its specification, events, or items."""
    row = source.first_row
    if page := items(row.get("data")):
        row = mapping(page[0])
    if not row and source.first_keys & {"data", "object"}:
        # One page of items, or one item, may be longer than what is looked at.
        return source.says(ITEM)
    return (
        "eval_name" in mapping(row.get("spec")) or {"sample_id", "event_id"} <= row.keys() or row.get("object") == ITEM
    )


@importers.add(
    "openai-evals",
    recognise=is_openai_evals,
    examples=[
        (
            {
                "log.jsonl": '{"spec": {"eval_name": "e", "completion_fns": ["m-1"], "run_id": "r"}}\n'
                '{"final_report": {"accuracy": 1.0}}\n'
                '{"event_id": 0, "sample_id": "e.0", "type": "sampling", "data": {"prompt": "?", "sampled": ["a"]}}\n'
                '{"event_id": 1, "sample_id": "e.0", "type": "match", "data": {"correct": true, "expected": "a"}}\n'
                '{"event_id": 2, "sample_id": "e.1", "type": "error", "data": {"message": "died"}}\n'
            },
            {"e.0": "pass", "e.1": None},
        )
    ],
)
def read_openai_evals(source: ImportSource) -> Iterator[Piece]:
    """OpenAI evals: the event log of `oaieval`, or output items of a hosted run as lines, a list or a page."""
    samples: dict[str, list[Mapping[str, Any]]] = {}
    last = cut = ""
    is_open = False
    for row in read_table(source, LISTS):
        if isinstance(row, ImportNote):
            yield row
            cut = last
        elif row.get("object") == ITEM:
            yield _item_case(row)
        elif isinstance(row.get("spec"), Mapping):
            yield _facts(row["spec"])
            is_open = True
        elif "final_report" in row:
            is_open = False
        elif row.get("sample_id") is not None:
            last = str(row["sample_id"])
            samples.setdefault(last, []).append(row)
            if len(samples) > MAX_OPEN_SAMPLES:
                raise ImportDamaged(f"the log has more than {MAX_OPEN_SAMPLES:,} samples; import parts of it")
    if is_open:
        yield ImportNote("the log has no final report: its run may have ended early", partial=True)
    for sample_id, events in samples.items():
        case = _sample_case(sample_id, events)
        # What is cut off may have been another match of this sample.
        yield case if sample_id != cut else ImportedCase(case.case)


def _facts(spec: Mapping[str, Any]) -> RunFacts:
    models = [str(one) for one in items(spec.get("completion_fns"))]
    tags = {"origin": "openai-evals", "task": spec.get("eval_name"), "model": ", ".join(models)}
    return RunFacts({name: str(value) for name, value in tags.items() if value})


def _sample_case(sample_id: str, events: list[Mapping[str, Any]]) -> ImportedCase:
    by_kind = [(str(one.get("type")), mapping(one.get("data"))) for one in events]
    sampled = [data for kind, data in by_kind if kind == "sampling"]
    matches = [data for kind, data in by_kind if kind == "match"]
    problem = next((data for kind, data in by_kind if kind == "error"), None)
    graded = next((data for kind, data in by_kind if kind == "metrics" and {"choice", "score"} <= data.keys()), None)
    # The last answer is that of the model that graded the ones before.
    grading = sampled.pop() if graded is not None and not matches and sampled else {}
    last, match = (sampled[-1] if sampled else {}), (matches[-1] if matches else {})
    given = {"prompt": prompt_of(last.get("prompt")), "reference": match.get("expected")}
    answers = last.get("sampled", match.get("sampled", match.get("picked")))
    values = {
        f"{kind}.{name}" if kind != "metrics" else str(name): plain(value)
        for kind, data in by_kind
        if kind not in ("sampling", "match", "error", "raw_sample")
        for name, value in data.items()
        if isinstance(value, bool | int | float)
    }
    reasons = {}
    if graded is not None:
        values["choice"] = plain(graded["choice"])
        why = next(iter(items(grading.get("sampled"))), None)
        reasons = {"choice": why[:2_000]} if isinstance(why, str) else {}
    case = build_case(
        sample_id,
        given={name: value for name, value in given.items() if value is not None},
        output=answers[0] if isinstance(answers, list) and answers else answers if isinstance(answers, str) else None,
        messages=to_messages(last.get("prompt")),
        tokens=sum((_tokens(mapping(one.get("usage"))) for one in sampled), TokenClasses()),
        error=str(problem.get("message", problem)) if problem is not None and not matches else None,
    )
    checks = {
        name: one.get("correct") if isinstance(one.get("correct"), bool) else None
        for name, one in zip(number_names(["match"] * len(matches)), matches, strict=True)
    }
    # An eval of its own may only log a number.
    score = next((number(values[name]) for name in ("accuracy", "score") if name in values), None)
    if checks or values.get("choice") == INVALID:
        score = None
    return ImportedCase(case, Claim(all_hold(checks), score, checks, values, reasons))


def _tokens(usage: Mapping[str, Any]) -> TokenClasses:
    cached = mapping(usage.get("prompt_tokens_details")).get("cached_tokens", usage.get("cached_tokens"))
    return TokenClasses.inclusive(given=usage.get("prompt_tokens"), read=cached, made=usage.get("completion_tokens"))


def _item_case(item: Mapping[str, Any]) -> ImportedCase:
    sample, row = mapping(item.get("sample")), mapping(item.get("datasource_item"))
    results = [mapping(one) for one in items(item.get("results"))]
    names = number_names([str(one.get("name", "grader")) for one in results])
    several = [*zip(names, results, strict=True)]
    status, problem = item.get("status"), mapping(sample.get("error"))
    failed = status == "error" or bool(problem.get("message"))
    outputs = to_messages(sample.get("output"))
    case = build_case(
        first_known(item.get("datasource_item_id"), item.get("id")),
        given={**row, "prompt": prompt_of(sample.get("input"))},
        output=text_of(outputs[-1]["content"]) if outputs else None,
        tags={"model": sample.get("model")},
        messages=[*to_messages(sample.get("input")), *outputs],
        tokens=_tokens(mapping(sample.get("usage"))),
        error=str(problem.get("message") or "the origin recorded an error") if failed else None,
    )
    checks = {name: one["passed"] for name, one in several if isinstance(one.get("passed"), bool)}
    success = {"pass": True, "passed": True, "fail": False, "failed": False}.get(str(status))
    return ImportedCase(case, Claim(success, None, checks, {name: number(one.get("score")) for name, one in several}))
