"""CTRF, the common test report format: JSON that dashboards and pull-request comments are made from."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import orjson

from meruit.evaluations.export import EvaluationExport, case_name, is_open, shorten, unmet
from meruit.evaluations.reader import CaseDetail
from meruit.registry import exporters

SPEC_VERSION = "0.0.0"
"""The version of CTRF's schema; it has had one release."""


@exporters.add("ctrf", ending=".ctrf.json")
def write_ctrf(exported: EvaluationExport) -> Iterator[str]:
    """CTRF JSON for dashboards: one test for each case; what could not be judged is `other`."""
    evaluation, overall = exported.evaluation, exported.summary.overall
    start = round(evaluation.started_at.timestamp() * 1_000)
    # An evaluation that is not finished has no end; what is written covers what is recorded so far.
    stop = start if evaluation.ended_at is None else round(evaluation.ended_at.timestamp() * 1_000)
    summary = {
        "tests": overall.cases,
        "passed": overall.passed,
        "failed": overall.failed,
        "skipped": 0,
        "pending": 0,
        "other": overall.open,
        "start": start,
        "stop": stop,
        "extra": {"evaluation": evaluation.name, "id": evaluation.id, "tags": evaluation.tags},
    }
    tool = {"name": "meruit", "version": version("meruit")}
    yield f'{{"reportFormat":"CTRF","specVersion":"{SPEC_VERSION}","generatedBy":"meruit",'
    yield f'"results":{{"tool":{_json(tool)},"summary":{_json(summary)},"tests":[\n'
    for number, case in enumerate(exported.cases()):
        yield f"{',' if number else ''}{_json(_test(case, evaluation.name))}\n"
    yield "]}}\n"


def _test(case: CaseDetail, suite: str) -> dict[str, Any]:
    one = case.summary
    passed = one.success and not is_open(case)
    test: dict[str, Any] = {
        "name": case_name(case),
        "status": "passed" if passed else "other" if is_open(case) else "failed",
        "duration": round(one.latency_ms or 0.0),
        "suite": [suite],
        "rawStatus": one.verdict.value,
        "extra": {"outcome": one.outcome_id, "score": one.score, "claimed": one.claimed, "group": one.group},
    }
    if one.tags:
        test["labels"] = one.tags
        test["tags"] = [f"{name}={value}" for name, value in one.tags.items()]
    if not passed:
        reasons = unmet(case)
        test["message"] = shorten("; ".join(reasons))
        test["trace"] = shorten("\n".join(reasons))
    return test


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
