"""One verification, against a plain Python engine; and how cost grows with the number of criteria."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from meruit.model.criterion import SuccessCriteria
from meruit.verify.engine import VerificationEngine
from speed import specified
from speed.measure import Row, interleaved

CHEAP: list[dict[str, Any]] = [
    {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": 0.02},
    {
        "metric": "output_length",
        "metric_type": "count",
        "comparison": "in_range",
        "threshold": {"min": 9, "max": 5000},
    },
    {"metric": "confidence", "metric_type": "percentage", "comparison": "gte", "threshold": 0.8},
    {"metric": "has_required_fields", "metric_type": "percentage", "comparison": "gte", "threshold": 1.0},
    {"metric": "time_to_first_byte", "metric_type": "latency", "comparison": "lte", "threshold": 300},
    {"metric": "processing_time", "metric_type": "latency", "comparison": "lte", "threshold": 1500},
    {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 10},
    {"metric": "num_predictions", "metric_type": "count", "comparison": "eq", "threshold": 0},
    {"metric": "latency_ms", "metric_type": "latency", "comparison": "gt", "threshold": 1, "penalty": 0.01},
    {"metric": "word_count", "metric_type": "count", "comparison": "lt", "threshold": 900},
]
FAMILIES: list[dict[str, Any]] = [
    {"metric": "accuracy", "metric_type": "percentage", "comparison": "gte", "threshold": 0.9, "bonus": 0.03},
    {"metric": "precision", "metric_type": "percentage", "comparison": "gte", "threshold": 0.8},
    {"metric": "f1_score", "metric_type": "f1_score", "comparison": "gte", "threshold": 0.85},
    {"metric": "rouge1", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.1},
    {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.1},
    {"metric": "bleu_score", "metric_type": "bleu_score", "comparison": "gte", "threshold": 0.0001},
    *CHEAP[:4],
]
CLASSIFICATION: list[dict[str, Any]] = [
    {"metric": "f1_score", "metric_type": "f1_score", "comparison": "gte", "threshold": 0.85, "bonus": 0.05},
    {"metric": "confidence", "metric_type": "percentage", "comparison": "gte", "threshold": 0.80},
]
SUMMARISATION: list[dict[str, Any]] = [
    {
        "metric": "accuracy",
        "metric_type": "percentage",
        "comparison": "gte",
        "threshold": 0.90,
        "bonus": 0.03,
    },
    {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": 0.02},
    {
        "metric": "output_length",
        "metric_type": "count",
        "comparison": "in_range",
        "threshold": {"min": 100, "max": 500},
    },
    {
        "metric": "contains_keywords",
        "metric_type": "contains",
        "comparison": "contains_all",
        "threshold": ["plan", "trout"],
    },
]
TEXT = "The plan works where it was carried out and the ninth weir is still closed to trout. " * 4
INPUT: dict[str, Any] = {"required_fields": ["text", "confidence"], "required_keywords": ["plan", "trout"]}
RICH_INPUT: dict[str, Any] = {
    **INPUT,
    "reference": "The ninth weir is closed, and the plan works elsewhere in the river. " * 4,
    "ground_truth": [{"label": label} for label in "abcabcabcb"],
}
METADATA = {"duration_ms": 812.5, "ttfb_ms": 90.25, "processing_ms": 640.0}


def rows() -> Iterator[Row]:
    """The specification's stories and all families, then the engine alone on metrics that cost next to nothing."""
    labels = [{"label": label} for label in "abcabcabca"]
    answers = {"predictions": labels}
    truth = {**INPUT, "ground_truth": labels}
    yield _row("verify, specified classification (2 criteria)", CLASSIFICATION, truth, answers, 6)
    yield _row("verify, specified summarisation (4 criteria)", SUMMARISATION, truth, answers, 6)
    yield _row("verify, all families (10 criteria)", FAMILIES, RICH_INPUT, answers, 30)
    for count in (2, 4, 10):
        yield _row(f"verify, engine alone ({count} criteria)", CHEAP[:count], INPUT, {}, None)


def growth() -> Iterator[tuple[str, int, float]]:
    """Milliseconds of one verification with more and more criteria."""
    engine = VerificationEngine()
    output = {"text": TEXT, "confidence": 0.9, "predictions": []}
    for count in (1, 10, 100, 1_000):
        criteria = [{**CHEAP[number % 2], "id": str(number)} for number in range(count)]
        judge = partial(engine.verify_sync, "c", INPUT, output, engine.compile({"criteria": criteria}), METADATA)
        best = min(_seconds(judge) for _ in range(20))
        yield "verify, criteria", count, best * 1_000


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time_ns()
    for _ in range(20):
        call()
    return (time.process_time_ns() - start) / 20e9


def _row(
    name: str,
    criteria: list[dict[str, Any]],
    given: dict[str, Any],
    made: dict[str, Any],
    target: float | None,
) -> Row:
    """Every call judges another output, so that neither side lives off a cache."""
    counter = itertools.count()

    def output() -> dict[str, Any]:
        return {"text": TEXT, "confidence": 0.9, "predictions": [], "number": next(counter), **made}

    engine = VerificationEngine()
    ours = SuccessCriteria.model_validate({"criteria": criteria})
    printed = specified.VerificationEngine(
        {
            "latency": specified.LatencyExtractor(),
            "text": specified.TextQualityExtractor(),
            "classification": specified.ClassificationExtractor(),
            "contains": specified.ContainsExtractor(),
        },
        specified.Governance(),
    )
    theirs = specified.SuccessCriteria.model_validate({"criteria": criteria})
    one = output()
    first = engine.verify_sync("c", given, one, ours, METADATA)
    second = asyncio.run(printed.verify("c", given, one, theirs, METADATA))
    assert first.success == second.success, (first.reasons, second)
    assert [judged.met for judged in first.criterion_results] == [judged.met for judged in second.criterion_results]
    ours_us, baseline_us = interleaved(
        lambda: _step(engine.verify("c", given, output(), ours, METADATA)),
        lambda: _step(printed.verify("c", given, output(), theirs, METADATA)),
    )
    return Row(name, ours_us, baseline_us, "the specified engine", target)


def _step(coroutine: Coroutine[Any, Any, object]) -> object:
    """Run a coroutine that never waits, without an event loop's cost on either side."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the coroutine waited")
