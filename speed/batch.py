"""A million stored outcomes judged again, against a plain Python loop over the same thresholds."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meruit.judge.batch import judge_columns
from meruit.judge.plan import Trait, compile_plan
from meruit.model.criterion import SuccessCriteria
from speed.measure import Row

ROWS = 1_000_000
BASELINE_ROWS = 100_000
TRIES = 9
CRITERIA = SuccessCriteria.model_validate(
    {
        "criteria": [
            {
                "metric": "accuracy",
                "metric_type": "percentage",
                "comparison": "gte",
                "threshold": 0.9,
                "weight": 0.5,
            },
            {
                "metric": "latency_ms",
                "metric_type": "latency",
                "comparison": "lte",
                "threshold": 2000,
                "weight": 0.2,
            },
            {
                "metric": "output_length",
                "metric_type": "count",
                "comparison": "in_range",
                "threshold": {"min": 100, "max": 500},
                "weight": 0.3,
                "bonus": 0.02,
            },
        ],
        "aggregation": "weighted",
        "minimum_weighted_score": 0.75,
    }
)


def rows() -> Iterator[Row]:
    plan = compile_plan(CRITERIA, lambda _name: Trait())
    rng = np.random.default_rng(7)
    columns = {
        "accuracy": np.where(rng.random(ROWS) < 0.05, np.nan, rng.random(ROWS)),
        "latency_ms": rng.random(ROWS) * 4000,
        "output_length": rng.integers(0, 800, ROWS),
    }
    few = {name: column[:BASELINE_ROWS].tolist() for name, column in columns.items()}
    ours = baseline = float("inf")
    for _ in range(TRIES):
        start = time.process_time_ns()
        result = judge_columns(plan, columns)
        ours = min(ours, (time.process_time_ns() - start) / ROWS / 1e3)
        start = time.process_time_ns()
        plainly = _loop(CRITERIA, few)
        baseline = min(baseline, (time.process_time_ns() - start) / BASELINE_ROWS / 1e3)
        # The plain loop calls a missing accuracy failed; on all others both must agree.
        known = ~np.isnan(columns["accuracy"][:BASELINE_ROWS])
        assert (np.array([outcome[0] for outcome in plainly]) == result.success[:BASELINE_ROWS])[known].all()
    yield Row("re-verify 1,000,000 rows, per row", ours, baseline, "a plain Python loop over the criteria", 25)


def _loop(criteria: SuccessCriteria, columns: dict[str, list[float]]) -> list[tuple[bool, float, str, float]]:
    """What a careful person writes first: floats, one row after the other."""
    tests: dict[str, Callable[[float, Any], bool]] = {
        "gte": lambda value, threshold: value >= threshold,
        "lte": lambda value, threshold: value <= threshold,
        "in_range": lambda value, threshold: threshold["min"] <= value <= threshold["max"],
    }
    total = sum(float(criterion.weight) for criterion in criteria.criteria)
    minimum = float(criteria.minimum_weighted_score or 0)
    asked = [
        (columns[c.metric or ""], tests[str(c.comparison)], c.threshold, float(c.weight), float(c.bonus or 0))
        for c in criteria.criteria
    ]
    outcomes = []
    for row in range(len(asked[0][0])):
        earned = bonus = 0.0
        for column, test, threshold, weight, reward in asked:
            if test(column[row], threshold):
                earned += weight
                bonus += reward
        score = earned / total
        verdict = "pass" if score >= 0.9 else "partial" if score > 0 else "fail"
        outcomes.append((score >= minimum, score, verdict, bonus))
    return outcomes


def growth() -> Iterator[tuple[str, int, float]]:
    plan = compile_plan(CRITERIA, lambda _name: Trait())
    for size in (10_000, 100_000, 1_000_000):
        column = np.linspace(0, 1, size)
        columns = {"accuracy": column, "latency_ms": column * 4000, "output_length": np.arange(size) % 800}
        best = float("inf")
        for _ in range(TRIES):
            start = time.process_time_ns()
            judge_columns(plan, columns)
            best = min(best, (time.process_time_ns() - start) / 1e6)
        yield "batch, rows", size, best
