"""Reports of pydantic-evals, written with `EvaluationReportAdapter.dump_json(report)`."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.evaluations.importers.support.json_stream import CUT, load, split_document
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
    number_names,
    plain,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers


def is_pydantic_evals(source: ImportSource) -> bool:
    """Recognise a report by its keys and those of its first case."""
    if not source.head.lstrip().startswith(b"{"):
        return False
    return source.says("cases", "assertions", "task_duration") or source.says("failures", "error_stacktrace", "inputs")


@importers.add(
    "pydantic-evals",
    recognise=is_pydantic_evals,
    examples=[
        (
            {
                "report.json": '{"name": "r", "cases": [{"name": "a", "inputs": "?", "output": "yes", "task_duration":'
                ' 0.1, "assertions": {"Equals": {"value": true}}}, {"name": "b", "inputs": "?", "output": "no",'
                ' "assertions": {"Equals": {"value": false}}}], "failures": [{"name": "c", "inputs": "?",'
                ' "error_message": "died"}]}'
            },
            {"a": "pass", "b": "fail", "c": None},
        )
    ],
)
def read_pydantic_evals(source: ImportSource) -> Iterator[Piece]:
    """Reports of pydantic-evals; a case passes where all its assertions hold, and a task that raised is an error."""
    with source.open() as file:
        for path, text in split_document(file, {"cases", "failures"}):
            if path == CUT:
                yield ImportNote("the file is cut off; only what comes before is imported", partial=True)
            elif path:
                yield _to_case(mapping(load(text)))
            else:
                report = mapping(load(text))
                tags = {"origin": "pydantic-evals", "task": report.get("name"), "dataset": report.get("dataset_name")}
                yield RunFacts({name: str(value) for name, value in tags.items() if value})


def _to_case(found: Mapping[str, Any]) -> ImportedCase:
    inputs, reference = found.get("inputs"), found.get("expected_output")
    given = dict(inputs) if isinstance(inputs, Mapping) else {"prompt": inputs}
    if reference is not None:
        given["reference"] = reference
    took = number(found.get("task_duration"))
    metrics = mapping(found.get("metrics"))
    case = build_case(
        # Repeated cases share the name of their source.
        found.get("source_case_name") or found.get("name"),
        given=given,
        output=found.get("output"),
        metadata=_metadata(found),
        tokens=TokenClasses.inclusive(
            given=metrics.get("input_tokens"),
            read=metrics.get("cache_read_tokens"),
            written=metrics.get("cache_write_tokens"),
            made=metrics.get("output_tokens"),
        ),
        duration_ms=None if took is None else took * 1_000,
        cost=metrics.get("cost"),
        error=str(found["error_message"]) if found.get("error_message") else None,
    )
    return ImportedCase(case, _claim(found))


def _metadata(found: Mapping[str, Any]) -> dict[str, Any]:
    own = found.get("metadata")
    facts = dict(own) if isinstance(own, Mapping) else {} if own is None else {"metadata": own}
    return facts | {name: found[name] for name in ("metrics", "attributes") if found.get(name)}


def _claim(found: Mapping[str, Any]) -> Claim:
    broken = [mapping(one) for one in items(found.get("evaluator_failures"))]
    results = {
        kind: {str(name): mapping(one) for name, one in mapping(found.get(kind)).items()}
        for kind in ("assertions", "scores", "labels")
    }
    checks: dict[str, bool | None] = {
        name: one.get("value") if isinstance(one.get("value"), bool) else None
        for name, one in results["assertions"].items()
    }
    # An evaluator that raised says neither yes nor no, and another one of its name may have said it.
    raised = number_names([*checks, *(str(one.get("name")) for one in broken)])[len(checks) :]
    checks |= dict.fromkeys(raised)
    several = results["assertions"] | results["scores"] | results["labels"]
    return Claim(
        success=all_hold(checks),
        checks=checks,
        scores={name: plain(one.get("value")) for kind in ("scores", "labels") for name, one in results[kind].items()},
        reasons={name: str(one["reason"])[:2_000] for name, one in several.items() if one.get("reason")}
        | {name: str(one.get("error_message"))[:2_000] for name, one in zip(raised, broken, strict=True)},
    )
