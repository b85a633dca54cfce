"""CTRF reports, with what could not be judged as `other`."""

import json
from typing import Any

from tests.evaluations.exporters.conftest import Export

from meruit.evaluations.export import EvaluationExport
from meruit.evaluations.exporters.ctrf import write_ctrf


def parse(exported: EvaluationExport) -> Any:
    return json.loads("".join(write_ctrf(exported)))


def test_the_summary_counts_what_the_tests_say(exported: EvaluationExport) -> None:
    report = parse(exported)
    assert (report["reportFormat"], report["results"]["tool"]["name"]) == ("CTRF", "meruit")
    summary, tests = report["results"]["summary"], report["results"]["tests"]
    assert {test["name"]: test["status"] for test in tests} == {
        "right": "passed",
        "wrong": "failed",
        "hostile": "failed",
        "broken": "other",
        "unmeasured": "other",
        "gone": "failed",
        "again": "passed",
        "again #1": "failed",
    }
    for status in ("passed", "failed", "skipped", "pending", "other"):
        assert summary[status] == sum(test["status"] == status for test in tests)
    assert summary["tests"] == len(tests)
    assert summary["start"] <= summary["stop"]


def test_a_test_has_the_types_of_the_format(exported: EvaluationExport) -> None:
    for test in parse(exported)["results"]["tests"]:
        assert isinstance(test["duration"], int)
        assert test["suite"] == ['nightly "<1>"']
        assert ("message" in test) == (test["status"] != "passed")
    right = parse(exported)["results"]["tests"][0]
    assert (right["duration"], right["labels"], right["rawStatus"]) == (40, {"lang": "en"}, "pass")


def test_an_evaluation_without_cases_is_an_empty_report(export_of: Export) -> None:
    report = parse(export_of([]))
    assert (report["results"]["tests"], report["results"]["summary"]["tests"]) == ([], 0)
