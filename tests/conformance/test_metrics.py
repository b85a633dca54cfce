"""What every metric promises, whoever wrote it: its examples are its tests."""

import pytest

from meruit.model.evidence import Measured, Missing
from meruit.model.work import Work
from meruit.registry import Ask, Example, Metric, metrics

EXAMPLES = [(metric, example) for metric in metrics for example in metric.examples]


@pytest.mark.parametrize(
    ("metric", "example"), EXAMPLES, ids=lambda part: part.name if isinstance(part, Metric) else ""
)
def test_an_example_is_true(metric: Metric, example: Example) -> None:
    finding = metric.prepare(example.ask)(example.work)
    if example.expect is Missing:
        assert isinstance(finding, Missing)
        assert finding.why
    else:
        assert (finding.value if isinstance(finding, Measured) else finding) == example.expect


@pytest.mark.parametrize("metric", list(metrics), ids=lambda metric: metric.name)
def test_a_metric_explains_itself_and_shows_its_absence(metric: Metric) -> None:
    assert metric.summary.endswith(".")
    assert any(example.expect is Missing for example in metric.examples)
    # What a service answers, no example can say.
    assert metric.service or any(example.expect is not Missing for example in metric.examples)


@pytest.mark.parametrize("metric", list(metrics), ids=lambda metric: metric.name)
@pytest.mark.parametrize(
    "work",
    [
        Work(),
        Work(
            output={"text": None, "predictions": None, "confidence": None},
            input={"reference": None, "ground_truth": None},
        ),
        Work(
            output={"text": 7, "predictions": "abc"},
            input={"reference": [], "ground_truth": 3, "required_keywords": 5},
        ),
        Work(
            output={"text": "\ud800", "predictions": [None, {}, 3]},
            input={"reference": "\udfff", "ground_truth": [{}]},
        ),
        Work(
            metadata={"duration_ms": "fast"},
            input={"required_fields": {"a": 1}, "output_schema": 9, "pattern": "("},
        ),
    ],
    ids=["empty", "null", "wrong types", "lone surrogates", "wrong settings"],
)
def test_a_metric_answers_whatever_the_work_holds(metric: Metric, work: Work) -> None:
    metric.prepare(Ask())(work)
