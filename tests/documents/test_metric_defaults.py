"""What criteria may leave out: the type of a metric, and that something true or false must be true."""

import pytest
import yaml

from meruit.documents.authoring import parse_criteria, parse_work
from meruit.documents.metric_defaults import example_criterion, fill_metric_defaults
from meruit.errors import CriteriaError
from meruit.registry import Metric, metrics
from meruit.verify.catalogue import Catalogue
from meruit.verify.custom_code import CustomCode
from meruit.verify.faults import examine_with

SHORT = [{"metric": "exact_match"}, {"metric": "latency_ms", "comparison": "lte", "threshold": 800}]
LONG = [
    {"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True},
    {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 800},
]


def test_short_criteria_are_the_long_ones() -> None:
    short, long = (parse_criteria(yaml.safe_dump({"criteria": one})) for one in (SHORT, LONG))

    assert short == long


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"success_criteria": one}])
def test_work_takes_the_short_form_too(wrap: object) -> None:
    assert callable(wrap)
    work, same = (
        parse_work({"title": "t", "input": {}, "success_criteria": wrap({"criteria": one})}) for one in (SHORT, LONG)
    )

    assert work.success_criteria == same.success_criteria


@pytest.mark.parametrize(
    ("criterion", "path"),
    [
        ({"metric": "rougeL"}, "criteria[0]"),  # A share needs a threshold: none is fair to every author.
        ({"metric": "exact_match", "comparison": "eq"}, "criteria[0]"),
        ({"metric": "exact_match", "threshold": True}, "criteria[0]"),
        ({"metric": "my_own", "comparison": "gte", "threshold": 1}, "criteria[0]"),
        ({"expr": "size(output.items)", "comparison": "gte", "threshold": 1}, "criteria[0]"),
    ],
)
def test_what_no_metric_says_must_be_written(criterion: dict[str, object], path: str) -> None:
    with pytest.raises(CriteriaError) as refused:
        parse_criteria({"criteria": [criterion]})

    assert [problem.where for problem in refused.value.problems] == [path]


def test_the_type_of_a_custom_metric_is_not_guessed() -> None:
    assert fill_metric_defaults([{"metric": "exact_match"}], ["exact_match"]) == [{"metric": "exact_match"}]


def test_what_is_written_stays() -> None:
    written = [{"metric": "exact_match", "metric_type": "custom"}, "text", {"metric": 3}]

    assert fill_metric_defaults(written) == written
    assert fill_metric_defaults("text") == "text"


@pytest.mark.parametrize("metric", [*metrics], ids=lambda metric: metric.name)
def test_the_example_of_each_metric_is_valid(metric: Metric) -> None:
    written = yaml.safe_dump({"criteria": [example_criterion(metric)]})
    criteria = parse_criteria(written, known_metrics=[metric.name], examine=examine_with(Catalogue({}, CustomCode())))

    assert criteria.criteria[0].metric_type is metric.kind
