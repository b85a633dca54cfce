"""Columns: what they refuse, and that they cost what distinct outcomes cost."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest

from meruit.errors import BatchUnsupported
from meruit.judge.batch import BLOCK_ROWS, VERDICTS, judge_columns
from meruit.judge.plan import Plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.verdict import Verdict

PlanOf = Callable[..., Plan]


def test_more_rows_than_a_block_keep_their_order(plan_of: PlanOf) -> None:
    values = np.arange(BLOCK_ROWS * 2 + 3) % 2 * 1.0
    result = judge_columns(plan_of({}), {"m0": values})
    assert (result.success == (values == 1.0)).all()
    assert {VERDICTS[code] for code in np.unique(result.verdict)} == {Verdict.PASS, Verdict.FAIL}


def test_many_criteria_are_judged_like_few(plan_of: PlanOf) -> None:
    plan = plan_of(*[{}] * 14, aggregation="weighted")
    rng = np.random.default_rng(3)
    columns = {f"m{number}": rng.random(50) for number in range(14)}
    result = judge_columns(plan, columns)
    for row in range(50):
        found: list[Any] = [float(columns[f"m{number}"][row]) for number in range(14)]
        single = conclude(plan, found, Circumstances("c", datetime.now(UTC)))
        assert (bool(result.success[row]), result.low[row]) == (single.success, single.score)


def test_integers_truth_values_and_none_are_read_as_single_values_are(plan_of: PlanOf) -> None:
    whole = {"metric_type": "count", "comparison": "gte", "threshold": 2}
    yes = {"metric_type": "boolean", "comparison": "eq", "threshold": True}
    result = judge_columns(
        plan_of(whole, yes, {}, {}),
        {
            "m0": np.array([1, 2, 2**60]),
            "m1": np.array([True, False, True]),
            "m2": np.array([True, True, True]),
            "m3": np.array([None, 1.0, 0], dtype=object),
        },
    )
    assert result.states.tolist() == [[0, 1, 2], [1, 0, 1], [2, 2, 2], [2, 1, 0]]


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({}, "'m0'"),
        ({"m0": ["a", "b"]}, "not numeric"),
        ({"m0": [[1.0], [2.0]]}, "2 dimensions"),
        ({"m0": []}, "length above 0"),
        ({"m0": np.array([True, 1.0], dtype=object)}, "other than"),
    ],
)
def test_columns_that_single_values_would_not_allow_are_refused(
    columns: dict[str, Any], complaint: str, plan_of: PlanOf
) -> None:
    with pytest.raises(BatchUnsupported, match=complaint):
        judge_columns(plan_of({}), columns)


def test_columns_of_different_lengths_are_refused(plan_of: PlanOf) -> None:
    with pytest.raises(BatchUnsupported, match="one length"):
        judge_columns(plan_of({}, {}), {"m0": [1.0], "m1": [1.0, 2.0]})


def test_plans_that_do_not_fit_are_refused_and_never_rounded(plan_of: PlanOf) -> None:
    with pytest.raises(BatchUnsupported, match="compare numbers"):
        judge_columns(plan_of({"assert": "x"}), {"m0": [1.0]})
    with pytest.raises(BatchUnsupported, match="1 to 39"):
        judge_columns(plan_of(*[{}] * 40), {})


def test_criteria_of_one_metric_share_its_column(plan_of: PlanOf) -> None:
    plan = plan_of({"metric": "m"}, {"metric": "m", "threshold": 0.9})
    plan = msgspec.structs.replace(plan, rules=tuple(msgspec.structs.replace(rule, slot="m") for rule in plan.rules))
    assert judge_columns(plan, {"m": [0.6, 0.95]}).states.tolist() == [[1, 1], [0, 1]]


def test_the_largest_plan_and_the_largest_integer_fit(plan_of: PlanOf) -> None:
    plan = plan_of(*[{}] * 39)
    assert judge_columns(plan, {f"m{number}": [1.0] for number in range(39)}).success.tolist() == [True]
    assert judge_columns(plan_of({}), {"m0": np.array([2**53, 2**53 + 2])}).states.tolist() == [[1, 2]]


def test_results_are_of_the_types_they_promise(plan_of: PlanOf) -> None:
    result = judge_columns(plan_of({}), {"m0": [1.0, 0.0]})
    kinds = [array.dtype for array in result]
    assert kinds == [np.bool_, np.int8, np.float64, np.float64, np.int64, np.int64, np.uint8]


def test_combinations_of_an_earlier_block_are_found_again(plan_of: PlanOf) -> None:
    plan = plan_of(*[{}] * 14, aggregation="weighted")
    rows = BLOCK_ROWS + 5
    columns = {f"m{number}": np.full(rows, float(number % 2)) for number in range(14)}
    result = judge_columns(plan, columns)
    assert len(np.unique(result.low)) == 1
    assert result.low[0] == judge_columns(plan, {name: column[:1] for name, column in columns.items()}).low[0]
