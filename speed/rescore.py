"""Stored outputs judged again, each with a signed record, against a plain loop that keeps nothing."""

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import orjson

from meruit.model.criterion import SuccessCriteria
from meruit.outcomes.rescore.run import LocalRunner, RescoreSummary, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store.write import RecordAll
from meruit.store.location import Location
from meruit.store.store import Store, utc_now
from meruit.verify.engine import VerificationEngine
from speed.measure import Row
from speed.schema import DOCUMENT, SCHEMA

STORED = 5_000
BASELINE = 200
"""Of the stored outputs, those that the slow loop is timed on."""
TRIES = 3
GROUP = 500
_BASELINE = "a plain loop with jsonschema, no record"


def _criteria(latency_ms: float, schema: dict[str, Any] = SCHEMA) -> SuccessCriteria:
    return SuccessCriteria.model_validate(
        {
            "criteria": [
                {
                    "metric": "matches_schema",
                    "metric_type": "matches_schema",
                    "comparison": "eq",
                    "threshold": True,
                    "params": {"schema": schema},
                },
                {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": latency_ms},
            ],
            "aggregation": "weighted",
        }
    )


def _output(number: int) -> dict[str, Any]:
    """An invoice of its own; every tenth has an unknown currency."""
    return {**DOCUMENT, "number": f"INV-{10_000 + number}", "currency": "EUR" if number % 10 else "XXX"}


def _filled(folder: Path, count: int) -> Store:
    store = Store.open(Location(folder))
    registrar = Registrar(VerificationEngine(), store)
    ready = registrar.compile(_criteria(2000))
    works = (Submission({}, _output(number), {"duration_ms": number % 4000}) for number in range(count))
    while some := list(itertools.islice(works, GROUP)):
        drafts = tuple(registrar.draft("default", registrar.judge_sync(ready, work)) for work in some)
        store.recorder.write(RecordAll("default", drafts))
    return store


def _rescored(store: Store, criteria: SuccessCriteria) -> tuple[RescoreSummary, float]:
    """What was done, and the CPU it took in microseconds, the recorder's thread included."""
    start = time.process_time_ns()
    summary = rescore(
        *(store, VerificationEngine(), "default", criteria),
        narrowed=None,
        reason="benchmark",
        runner=LocalRunner(),
        now=utc_now(),
        progress=lambda _done, _total: None,
    )
    return summary, (time.process_time_ns() - start) / 1e3


def _plainly(outputs: list[bytes], latencies: list[int], latency_ms: float, schema: dict[str, Any]) -> int:
    """What a careful person writes first: read, validate, compare, count."""
    passed = 0
    for written, latency in zip(outputs, latencies, strict=True):
        try:
            jsonschema.validate(orjson.loads(written), schema)
            score = 0.5
        except jsonschema.ValidationError:
            score = 0.0
        score += 0.5 if latency <= latency_ms else 0.0
        passed += score >= 0.9
    return passed


def rows() -> Iterator[Row]:
    """Other thresholds, judged from the evidence; another schema, measured again from the stored outputs."""
    outputs = [orjson.dumps(_output(number)) for number in range(BASELINE)]
    latencies = [number % 4000 for number in range(BASELINE)]
    moved = {**SCHEMA, "title": "An invoice, again"}
    with tempfile.TemporaryDirectory() as folder:
        store = _filled(Path(folder), STORED)
        best = {"evidence": float("inf"), "measured": float("inf"), "baseline": float("inf")}
        for number in range(TRIES):
            changed = _criteria(100 - number, SCHEMA if not number else {**moved, "$comment": str(number - 1)})
            summary, spent = _rescored(store, changed)
            assert (summary.rescored, summary.from_evidence) == (STORED, STORED)
            best["evidence"] = min(best["evidence"], spent / STORED)
            start = time.process_time_ns()
            passed = _plainly(outputs, latencies, 100 - number, SCHEMA)
            best["baseline"] = min(best["baseline"], (time.process_time_ns() - start) / 1e3 / BASELINE)
            assert passed == sum(latency <= 100 - number and place % 10 > 0 for place, latency in enumerate(latencies))
            summary, spent = _rescored(store, _criteria(100, {**moved, "$comment": str(number)}))
            assert (summary.rescored, summary.measured) == (STORED, STORED)
            best["measured"] = min(best["measured"], spent / STORED)
        store.close()
    yield Row("rescore 5,000 from evidence, each", best["evidence"], best["baseline"], _BASELINE, 1 / 0.15)
    yield Row("rescore 5,000 measured again, each", best["measured"], best["baseline"], _BASELINE, 1 / 0.15)


def growth() -> Iterator[tuple[str, int, float]]:
    for size in (500, 5_000):
        with tempfile.TemporaryDirectory() as folder:
            store = _filled(Path(folder), size)
            yield "rescore, outcomes", size, _rescored(store, _criteria(100))[1] / 1e3
            store.close()
