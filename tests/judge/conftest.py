"""Criteria and evidence for the judge's tests."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Evidence
from meruit.model.verdict import VerificationResult

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """A plan of criteria `m0 ≥ 0.5`, `m1 ≥ 0.5`…, each with what the caller says."""

    def build(*extras: dict[str, Any], **whole: Any) -> Plan:
        base = {"metric_type": "numeric", "comparison": "gte", "threshold": 0.5}
        criteria = [
            extra if "assert" in extra else {"metric": f"m{number}", **base, **extra}
            for number, extra in enumerate(extras)
        ]
        return compile_plan(SuccessCriteria.model_validate({"criteria": criteria, **whole}), lambda _name: Trait())

    return build


@pytest.fixture
def judged() -> Callable[[Plan, Sequence[Evidence]], VerificationResult]:
    return lambda plan, evidence: conclude(plan, evidence, Circumstances("c", NOW))
