"""Test runs of DeepEval, as it writes them to `DEEPEVAL_RESULTS_FOLDER` and `.deepeval/`."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.evaluations.importers.support.json_stream import CUT, load, split_document
from meruit.evaluations.importers.support.messages import last_answer, to_messages
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    build_case,
    first_known,
    items,
    mapping,
    number,
    number_names,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers

# The newest run of `.deepeval/` is kept under a key of its own.
LISTS = frozenset(f"{home}{name}" for home in ("", "testRunData.") for name in ("testCases", "conversationalTestCases"))


def is_deepeval(source: ImportSource) -> bool:
    """Recognise a test run by its keys."""
    return source.head.lstrip().startswith(b"{") and source.says("testCases") and source.says("metricsData")


@importers.add(
    "deepeval",
    recognise=is_deepeval,
    examples=[
        (
            {
                "test_run.json": '{"testCases": [{"name": "a", "input": "?", "actualOutput": "yes", "success": true,'
                ' "metricsData": [{"name": "Exact", "success": true, "score": 1.0}]}, {"name": "b", "input": "?",'
                ' "success": false, "metricsData": [{"name": "Exact", "success": false, "error": "down"}]}]}'
            },
            {"a": "pass", "b": None},
        )
    ],
)
def read_deepeval(source: ImportSource) -> Iterator[Piece]:
    """DeepEval test runs; a metric that broke decides nothing."""
    yield RunFacts({"origin": "deepeval"})
    with source.open() as file:
        for number_, (path, text) in enumerate(split_document(file, LISTS)):
            if path == CUT:
                yield ImportNote("the file is cut off; only what comes before is imported", partial=True)
            elif path:
                yield _to_case(mapping(load(text)), number_)


def _to_case(test: Mapping[str, Any], position: int) -> ImportedCase:
    turns = to_messages(test.get("turns"))
    given = {
        "prompt": first_known(test.get("input"), test.get("scenario")),
        "reference": first_known(test.get("expectedOutput"), test.get("expectedOutcome")),
        "context": test.get("context"),
        "retrieval_context": test.get("retrievalContext"),
        "expected_tool_calls": [mapping(one).get("name") for one in items(test.get("expectedTools"))] or None,
    }
    called = [mapping(one) for one in items(test.get("toolsCalled"))]
    if called and not turns:
        turns = to_messages(
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"name": one.get("name"), "arguments": one.get("inputParameters") or {}} for one in called
                    ],
                }
            ]
        )
    took = number(test.get("completionTime"))
    case = build_case(
        test.get("name") or position,
        given={name: value for name, value in given.items() if value is not None},
        output=first_known(test.get("actualOutput"), last_answer(turns)),
        tags={str(tag): "yes" for tag in items(test.get("tags"))[:30] if tag},
        metadata=mapping(test.get("metadata")),
        messages=turns,
        tokens=TokenClasses.inclusive(given=test.get("inputTokenCount"), made=test.get("outputTokenCount")),
        duration_ms=None if took is None else took * 1_000,
        cost=test.get("tokenCost"),
    )
    return ImportedCase(case, _claim(test))


def _claim(test: Mapping[str, Any]) -> Claim:
    found = [mapping(one) for one in items(test.get("metricsData"))]
    names = number_names([str(one.get("name", "metric")) for one in found])
    several = [*zip(names, found, strict=True)]
    broken = any(one.get("error") for one in found)
    # A metric that broke is written as failed; a failure of another metric decides all the same.
    failed = any(
        one.get("success") is False and not one.get("error") and number(one.get("score")) is not None for one in found
    )
    # A failure that no metric explains is not a verdict: its metrics may have been lost.
    passed = test.get("success") is True and not broken
    return Claim(
        success=False if failed else True if passed else None,
        checks={
            name: one["success"] if isinstance(one.get("success"), bool) and not one.get("error") else None
            for name, one in several
        },
        scores={name: number(one.get("score")) for name, one in several},
        reasons={
            name: str(one.get("error") or one["reason"])[:2_000]
            for name, one in several
            if one.get("error") or one.get("reason")
        },
    )
