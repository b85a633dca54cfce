"""Criteria that choose a tokenizer: judged alike one by one, from the cache, in columns and again."""

from typing import Any

import pytest

from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Fault
from meruit.model.verdict import Status, VerificationResult
from meruit.verify.engine import VerificationEngine
from meruit.verify.lint.criteria import Severity, lint

CYRILLIC = "Иск оплачен полностью, спор закрыт."
GIVEN, WRITTEN = {"reference": CYRILLIC}, {"text": CYRILLIC}


def asked(metric: str, **changes: Any) -> dict[str, Any]:
    kind = "bleu_score" if metric == "bleu_score" else "rouge_score"
    return {"metric": metric, "metric_type": kind, "comparison": "gte", "threshold": 0.4, "penalty": 1, **changes}


def criteria(*several: dict[str, Any]) -> SuccessCriteria:
    return SuccessCriteria.model_validate({"criteria": list(several)})


def judge(*several: dict[str, Any], given: Any = None, written: Any = None) -> VerificationResult:
    return VerificationEngine().verify_sync("c", given or GIVEN, written or WRITTEN, criteria(*several))


@pytest.mark.parametrize("metric", ["rouge1", "rouge2", "rougeL"])
def test_a_perfect_answer_never_costs_the_agent_its_penalty(metric: str) -> None:
    result = judge(asked(metric))
    [judged] = result.criterion_results
    assert (judged.status, judged.cause, judged.fault) == (
        Status.INDETERMINATE,
        Cause.METRIC_MISSING,
        Fault.AUTHOR,
    )
    assert result.penalty == 0
    [judged] = judge(asked(metric, params={"tokenizer": "unicode"})).criterion_results
    assert (judged.status, judged.value) == (Status.MET, 1.0)


def test_each_tokenizer_is_a_question_of_its_own() -> None:
    several = [asked("rougeL"), *(asked("rougeL", params={"tokenizer": name}) for name in ("unicode", "char", "zh"))]
    written = {"text": "Иск оплачен частично, paid"}
    engine, whole = VerificationEngine(), criteria(*several)
    first = engine.verify_sync("c", {"reference": CYRILLIC + " paid"}, written, whole)
    values = [judged.value for judged in first.criterion_results]
    assert len(set(values)) == 4
    assert len(first.metrics) == 4
    again = engine.verify_sync("c", {"reference": CYRILLIC + " paid"}, written, whole)
    assert [judged.value for judged in again.criterion_results] == values
    for one, value in zip(several, values, strict=True):
        [alone] = engine.verify_sync("c", {"reference": CYRILLIC + " paid"}, written, criteria(one)).criterion_results
        assert alone.value == value


def test_the_tokenizer_is_part_of_the_criteria_digest() -> None:
    digests = {
        VerificationEngine().compile(criteria(asked("rouge1", params={"tokenizer": name}))).digest
        for name in ("char", "zh")
    }
    assert len(digests) == 2


def test_an_unknown_tokenizer_is_the_authors_mistake_alone() -> None:
    result = judge(asked("rouge1", params={"tokenizer": "klingon"}), asked("rouge1", params={"tokenizer": "char"}))
    assert [judged.cause for judged in result.criterion_results] == [Cause.AUTHOR_ERROR, None]


def findings(asked_for: dict[str, Any], reference: str) -> list[tuple[Severity, str]]:
    report = lint(VerificationEngine(), criteria(asked_for), work_input={"reference": reference})
    return [(finding.severity, finding.code) for finding in report.findings if finding.code.startswith("reference_")]


def test_lint_reports_references_that_lose_letters() -> None:
    assert findings(asked("rougeL"), CYRILLIC) == [(Severity.ERROR, "reference_without_words")]
    assert findings(asked("rougeL"), "the café is paid") == [(Severity.WARNING, "reference_loses_letters")]
    assert findings(asked("bleu_score"), "支付 支付 支付 支付") == [(Severity.WARNING, "reference_not_cut")]
    assert findings(asked("bleu_score"), "Paid in full") == [(Severity.ERROR, "reference_too_short")]
    assert findings(asked("rougeL", params={"tokenizer": "unicode"}), CYRILLIC) == []
    assert findings(asked("rougeL", params={"tokenizer": "klingon"}), CYRILLIC) == []
