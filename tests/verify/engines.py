"""Criteria, extractors and governance for tests of the engine."""

import asyncio
from typing import Any

from meruit import (
    MetricExtractor,
    Status,
    VerificationEngine,
    VerificationResult,
)


def criterion(metric: str, kind: str, comparison: str, threshold: Any, **keys: Any) -> dict[str, Any]:
    return {"metric": metric, "metric_type": kind, "comparison": comparison, "threshold": threshold, **keys}


WORDS = criterion("word_count", "count", "gte", 1)


def verify(*asked: dict[str, Any], output: Any = None, engine: VerificationEngine | None = None) -> VerificationResult:
    return (engine or VerificationEngine()).verify_sync("c", {}, output or {}, {"criteria": list(asked)}, {})


def statuses(result: VerificationResult) -> list[Status]:
    return [judged.status for judged in result.criterion_results]


class Answers(MetricExtractor):
    """An extractor that returns the given values, and counts its calls."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
        self.calls += 1
        return self.answer

    def supported_metrics(self) -> list[str]:
        return list(self.answer) or ["mine"]


class Says:
    """An answer of governance, in any shape."""

    def __init__(self, valid: Any, flags: Any) -> None:
        self.valid, self.flags = valid, flags


class Governance:
    """A governance that gives one answer, or raises it."""

    def __init__(self, answer: Any, wait_s: float = 0) -> None:
        self.answer, self.wait_s = answer, wait_s

    async def validate_outcome(self, *, contract_id: str, claimed_metrics: Any, execution_context: Any) -> Any:
        claimed_metrics.clear()
        await asyncio.sleep(self.wait_s)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer
