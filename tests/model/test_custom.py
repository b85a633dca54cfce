"""Code and expressions of an author's own: what may be written, and what is refused before anything runs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meruit.errors import Failure
from meruit.judge.plan import Trait, compile_plan
from meruit.model.criterion import CustomMetric, SuccessCriteria, SuccessCriterion
from meruit.model.evidence import Cause
from meruit.model.kinds import Tier

METRIC = {"metric": "m", "metric_type": "numeric", "comparison": "gte", "threshold": 1}
EXPR = {"expr": "size(output.text)", "metric_type": "numeric", "comparison": "gte", "threshold": 1}
CODE = "def metric(input, output, metadata):\n    return {'m': 1}\n"
CUSTOM = {"metrics": ["m"], "code": CODE}


def expression(**parts: Any) -> SuccessCriterion:
    return SuccessCriterion.model_validate({**EXPR, **parts})


def refusal(model: type[Any], document: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(document)
    return str(caught.value)


def digest(**whole: Any) -> str:
    return compile_plan(SuccessCriteria.model_validate(whole), lambda _name: Trait()).digest


# Causes that two rooms must agree on.


def test_every_failure_of_a_sandbox_is_a_cause() -> None:
    assert {str(failure) for failure in Failure} <= {str(cause) for cause in Cause}


# Custom metrics.


def test_custom_metrics_run_in_the_narrow_python_unless_they_ask_for_more() -> None:
    assert CustomMetric.model_validate(CUSTOM).tier is Tier.PYTHON
    assert CustomMetric.model_validate({**CUSTOM, "tier": "python-full"}).tier is Tier.PYTHON_FULL


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tier": "expr"}, "`expr:`"),
        ({"tier": "wasm"}, "'expr', 'python'"),
        ({"metrics": []}, "at least 1 item"),
        ({"metrics": [f"m{number}" for number in range(65)]}, "at most 64 items"),
        ({"metrics": ["m", "n", "m"]}, "'m' is"),
        ({"metrics": [""]}, "at least 1 character"),
        ({"metrics": ["m" * 201]}, "200 characters"),
        ({"metrics": ["a\x1b[2J"]}, "control characters"),
        ({"metrics": ["\ud800"]}, "valid string"),
        ({"metrics": "m"}, "valid tuple"),
        ({"code": ""}, "at least 1 character"),
        ({"code": " \n"}, "empty"),
        ({"code": "é" * (128 * 1024) + "#"}, "262,145 bytes"),
        ({"code": "\ud800"}, "valid string"),
        ({"code_file": "m.py"}, "`code`"),
        ({"timeout_ms": 1}, "Extra inputs"),
    ],
)
def test_an_invalid_custom_metric_is_refused(change: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(CustomMetric, {**CUSTOM, **change})


def test_a_custom_metric_must_be_a_mapping() -> None:
    assert "valid dictionary" in refusal(SuccessCriteria, {"criteria": [METRIC], "custom_metrics": [CODE]})


def test_code_may_be_as_long_as_a_sandbox_takes() -> None:
    assert len(CustomMetric.model_validate({**CUSTOM, "code": "é" * (128 * 1024)}).code) == 128 * 1024


def test_a_name_is_declared_once_in_a_file() -> None:
    both = {"criteria": [METRIC], "custom_metrics": [CUSTOM, {"metrics": ["n", "m"], "code": CODE}]}
    assert "'m'" in refusal(SuccessCriteria, both)
    many = [{"metrics": [f"m{number}"], "code": CODE} for number in range(65)]
    assert "at most 64 items" in refusal(SuccessCriteria, {"criteria": [METRIC], "custom_metrics": many})


def test_criteria_without_code_keep_the_digest_they_always_had() -> None:
    assert digest(criteria=[METRIC]) == "fc11e5046985a6c1091ae1368fe3ef2e4f8e2c46e37e94bbaa568992609a550b"
    assert digest(criteria=[{"assert": "x", "axis": "a"}]) == (
        "d5f937465d00903edba7ce91a5e0256a2bb65f560e1fabe6ccf668a72524a0d7"
    )
    assert digest(criteria=[METRIC], custom_metrics=[]) == digest(criteria=[METRIC])


def test_a_digest_covers_code_tier_names_and_expression() -> None:
    forms = [
        digest(criteria=[METRIC]),
        digest(criteria=[METRIC], custom_metrics=[CUSTOM]),
        digest(criteria=[METRIC], custom_metrics=[{**CUSTOM, "code": CODE + "#"}]),
        digest(criteria=[METRIC], custom_metrics=[{**CUSTOM, "tier": "python-full"}]),
        digest(criteria=[METRIC], custom_metrics=[{**CUSTOM, "metrics": ["m", "n"]}]),
        digest(criteria=[EXPR]),
        digest(criteria=[{**EXPR, "metric": "m"}]),
        digest(criteria=[{**EXPR, "expr": "size(output.text) "}]),
    ]
    assert len({*forms}) == len(forms)


@given(
    code=st.text(min_size=1).filter(str.strip),
    names=st.lists(st.text(min_size=1, max_size=200).filter(str.isprintable), min_size=1, max_size=64, unique=True),
    tier=st.sampled_from(["python", "python-full"]),
)
def test_custom_metrics_survive_json_and_back(code: str, names: list[str], tier: str) -> None:
    made = SuccessCriteria.model_validate(
        {"criteria": [METRIC, EXPR], "custom_metrics": [{"metrics": names, "code": code, "tier": tier}]}
    )
    assert SuccessCriteria.model_validate_json(made.model_dump_json()) == made
    assert SuccessCriteria.model_validate(made.model_dump(exclude_defaults=True)) == made


# Expressions.


def test_an_expression_is_called_by_its_name_then_its_metric_then_itself() -> None:
    named, metric, bare = expression(name="n", metric="m"), expression(metric="m"), expression()
    assert [made.label for made in (named, metric, bare)] == ["n", "m", "size(output.text)"]
    assert [made.subject for made in (named, metric, bare)] == ["m", "m", "size(output.text)"]
    assert expression(name="n").subject == "n"
    assert expression(expr="  size(output.text)\n").label == "size(output.text)"


def test_equal_expressions_are_distinguished_by_their_ids() -> None:
    whole = SuccessCriteria.model_validate({"criteria": [EXPR, EXPR, {**EXPR, "metric": "m"}, METRIC]})
    assert whole.ids == ("size(output.text)", "size(output.text)-2", "m", "m-2")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"expr": ""}, "at least 1 character"),
        ({"expr": " \n"}, "empty"),
        ({"expr": "1" * 4_097}, "4096 characters"),
        ({"expr": "1\x00"}, "control characters"),
        ({"expr": "1\u202e"}, "control characters"),
        ({"expr": "\ud800"}, "valid string"),
        ({"expr": 1}, "valid string"),
        ({"params": {"a": 1}}, "no params"),
        ({"comparison": "contains_any", "threshold": ["a"]}, "contains_any"),
        ({"comparison": "contains_all", "threshold": 0.5}, "contains_all"),
        (
            {"metric_type": "custom", "comparison": "eq", "threshold": "yes"},
            "'yes'",
        ),
        ({"threshold": [1]}, "metric: size(output.text): expected"),
        ({"metric": "m", "threshold": [1]}, "metric: m: expected"),
        ({"assertion": {"assert": "x"}}, "`expr`"),
        ({"assert": "x"}, "`expr`"),
        ({"metric_type": None}, "an expr also needs metric_type"),
    ],
)
def test_an_invalid_expression_is_refused(change: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(SuccessCriterion, {**EXPR, **change})


def test_an_expression_needs_a_type_a_comparison_and_a_threshold() -> None:
    alone = refusal(SuccessCriterion, {"expr": "1", "metric": "m"})
    assert "an expr also needs metric_type, comparison, threshold" in alone


def test_an_expression_may_have_lines_and_tabs() -> None:
    lines = "size(output.text)\r\n\t+ 1\n"
    assert expression(expr=lines).expr == lines


def test_an_expression_may_be_compared_with_true_as_one() -> None:
    assert expression(metric_type="boolean", comparison="eq", threshold=True).threshold is True
    assert expression(metric_type="percentage", threshold=95).scale == "percent"


@given(st.text(min_size=1, max_size=4_096).filter(lambda text: text.strip() and text.isprintable()))
def test_expressions_survive_json_and_back(expr: str) -> None:
    made = expression(expr=expr)
    assert SuccessCriterion.model_validate_json(made.model_dump_json()) == made
    assert made.label == made.subject == expr.strip()
