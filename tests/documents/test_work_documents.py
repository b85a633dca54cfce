"""Work as a buyer writes it down: read whole, or every mistake in it told with its line."""

import json
from typing import Any

import pytest

from meruit.documents.authoring import parse_work
from meruit.documents.document import MAX_PROBLEMS
from meruit.errors import DocumentError
from meruit.model.contract import WorkSubmission
from meruit.model.money import as_micros

METRICS = ("accuracy", "latency_ms", "word_count")
GOOD = {"metric": "accuracy", "metric_type": "percentage", "comparison": "gte", "threshold": 0.9}
WHOLE = """\
title: Summarise a report
description: In five sentences.
consumer_id: buyer-1
input:
  document: Long ago…
  reference: A report.
success_criteria:
  aggregation: all
  criteria:
    - metric: accuracy
      metric_type: percentage
      comparison: gte
      threshold: 0.9
      bonus: 0.03
budget:
  max_cpa_total: 0.5
terms:
  cpc_rate: "0.10"
  currency: EUR
  dispute_window_hours: 48
canaries: [planted-4711]
"""


def read(text: Any, **options: Any) -> WorkSubmission:
    return parse_work(text, "work.yaml", **{"known_metrics": METRICS, "max_criteria": 3, **options})


def reported(text: Any, **options: Any) -> list[str]:
    with pytest.raises(DocumentError) as refused:
        read(text, **options)
    return [str(problem) for problem in refused.value.problems]


def test_work_is_read_from_a_file_a_json_body_or_what_a_program_parsed() -> None:
    work = read(WHOLE)
    assert (work.title, work.terms.cpc_rate, work.terms_in_force().max_cpa_total) == ("Summarise a report", 0.1, 0.5)
    assert work.success_criteria is not None
    assert work.success_criteria.criteria[0].bonus == 0.03
    as_json = json.dumps(work.model_dump(mode="json"))
    assert read(as_json) == read(as_json.encode()) == read(json.loads(as_json)) == work


def test_numeric_text_keeps_every_digit() -> None:
    rate = read('title: x\nterms: {cpc_rate: "8589934591.999999"}').terms.cpc_rate
    assert rate is not None
    assert as_micros(rate) == 8_589_934_591_999_999


def test_work_needs_no_criteria() -> None:
    assert read("title: x").success_criteria is None
    assert read({"title": "x", "success_criteria": None}).success_criteria is None


def test_an_unknown_metric_is_refused_in_the_specified_words() -> None:
    wrong = WHOLE.replace("metric: accuracy", "metric: acuracy")
    named = "Unknown metric: acuracy (did you mean 'accuracy'?); `meruit metrics` lists all"
    assert reported(wrong) == [f"line 10, success_criteria.criteria[0].metric: {named}"]
    assert read(wrong, known_metrics=None).success_criteria is not None


def test_an_unknown_metric_is_found_under_a_second_wrapper_too() -> None:
    body = {"title": "x", "success_criteria": {"success_criteria": {"criteria": [{**GOOD, "metric": "zzz"}] * 4}}}
    problems = reported(body)
    assert "success_criteria.success_criteria.criteria: 4 criteria" in problems[0]
    assert "success_criteria.success_criteria.criteria[0].metric: Unknown metric: zzz" in problems[1]


def test_a_wrong_threshold_is_refused_in_the_specified_words() -> None:
    (problem,) = reported(WHOLE.replace("threshold: 0.9", "threshold: high"))
    where = "line 13, success_criteria.criteria[0].threshold"
    assert problem.startswith(f"{where}: Invalid threshold for metric: accuracy")


def test_metrics_that_the_work_brings_along_are_known() -> None:
    custom = {"metrics": ["mine"], "code": "def metric(input, output, metadata):\n    return {'mine': 1}"}
    criteria = {"criteria": [{**GOOD, "metric": "mine", "metric_type": "numeric"}], "custom_metrics": [custom]}
    assert read({"title": "x", "success_criteria": criteria}).success_criteria is not None
    taken = {"criteria": [GOOD], "custom_metrics": [{**custom, "metrics": ["accuracy"]}]}
    [problem] = reported({"title": "x", "success_criteria": taken})
    assert problem.startswith("success_criteria.custom_metrics[0].metrics: ")
    assert "accuracy" in problem


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("title: Summarise a report", "tilte: x", "line 1: unknown key 'tilte'"),
        ("currency: EUR", "currency: EURO", "line 19, terms.currency: "),
        ("dispute_window_hours: 48", "dispute_window_hours: 0", "line 20, terms.dispute_window_hours: "),
        ("dispute_window_hours: 48", "dispute_window_hours: 169", "line 20, terms.dispute_window_hours: "),
        ("max_cpa_total: 0.5", "max_bonus: -1", "line 15, budget.max_cpa_total: "),
        ("max_cpa_total: 0.5", "max_cpa_total: 0.0000005", "line 16, budget.max_cpa_total: "),
        ("max_cpa_total: 0.5", "max_cpa_totl: 5", "line 16, budget: unknown key 'max_cpa_totl'"),
        ("max_cpa_total: 0.5", "cpa_bonus: {max: 5}", "line 15, budget: cpa_bonus "),
        (
            "max_cpa_total: 0.5",
            "max_cpa_total: 0.5\n  max_bonus: 0.6",
            "line 15, budget: max_cpa_total and",
        ),
        (
            'cpc_rate: "0.10"',
            "max_cpa_total: 9",
            "line 1: budget.max_cpa_total",
        ),
        ("canaries: [planted-4711]", "canaries: [short]", "line 21, canaries[0]: "),
        ("bonus: 0.03", "bonus: -1", "line 14, success_criteria.criteria[0].bonus: "),
    ],
)
def test_every_mistake_has_its_line(before: str, after: str, says: str) -> None:
    assert before in WHOLE
    assert any(problem.startswith(says) for problem in reported(WHOLE.replace(before, after)))


def test_every_mistake_is_reported_at_once() -> None:
    wrong = WHOLE.replace("metric: accuracy", "metric: zzz").replace("EUR", "XXX").replace("title:", "titel:")
    problems = reported(wrong)
    assert [problem.partition(":")[0] for problem in problems] == [
        *("line 1", "line 1", "line 10, success_criteria.criteria[0].metric", "line 19, terms.currency")
    ]


def test_too_many_criteria_are_counted() -> None:
    problems = reported({"title": "x", "success_criteria": {"criteria": [GOOD] * 4}})
    assert problems[0].startswith("success_criteria.criteria: 4 criteria")
    assert read({"title": "x", "success_criteria": {"criteria": [GOOD] * 4}}, max_criteria=None).success_criteria


def test_empty_criteria_are_refused_and_say_what_to_do() -> None:
    problems = reported("title: x\nsuccess_criteria:\n  criteria: []\n")
    assert any(problem.startswith("line 3, success_criteria.criteria: ") for problem in problems)
    assert any("by completion" in problem for problem in problems)


def test_only_the_first_mistakes_are_reported() -> None:
    criteria = [{**GOOD, "metric": f"m{number}", "bonus": -1} for number in range(MAX_PROBLEMS + 5)]
    problems = reported({"title": "x", "success_criteria": {"criteria": criteria}}, max_criteria=None)
    assert len(problems) == MAX_PROBLEMS + 1
    assert "line" not in problems[-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("[]", "line 1: "),
        ("just words", "line 1: "),
        ("title: x\ntitle: y", "line 2"),
        ("title: x\nsuccess_criteria: 5", "line 2, success_criteria: "),
        ("title: x\nsuccess_criteria: [1]", "line 2, success_criteria: "),
        ("title: [", "line "),
        (b"title: \xff", "not UTF-8"),
    ],
)
def test_a_document_that_is_not_work_is_refused(text: str | bytes, says: str) -> None:
    assert any(says in problem for problem in reported(text))
