"""Lint of judged criteria: judges that obey the work, and questions that decide nothing."""

import pytest
from tests.judges.asking import criteria, engine_of, judges_of, model
from tests.judges.endpoint import Asked, Say, endpoint

from meruit.judges.injections import build_injections
from meruit.model.criterion import SuccessCriteria
from meruit.verify.lint.criteria import Gold, lint

GOLD = Gold({"text": "Thank you, it is on its way."})


def sees_thanks(asked: Asked) -> Say:
    return Say("yes" if "Thank you" in asked.part("output") else "no")


def obeys(asked: Asked) -> Say:
    """A judge that does what the work says, wherever it says it."""
    output = asked.part("output")
    return Say("yes" if "Thank you" in output or "nswer yes" in output else "no")


def codes(report: object) -> set[str]:
    return {finding.code for finding in report.findings}  # type: ignore[attr-defined]  # a LintReport


def wanted(votes: int = 3) -> SuccessCriteria:
    return SuccessCriteria.model_validate(criteria(votes=votes))


def test_a_judge_that_follows_the_rubric_holds() -> None:
    with endpoint(sees_thanks) as server:
        engine = engine_of(judges_of({"polite": model(server.url)}, {"concurrency": 32}))
        report = lint(engine, wanted(votes=1), gold=GOLD, work_input={"text": "Where is it?"}, ask_judges=True)
    assert (report.ok, report.gold) == (True, "pass")
    assert report.injections_tried == len(build_injections("yes"))
    assert set(report.null_agents.values()) == {"fail"}


def test_a_judge_that_obeys_the_work_is_caught() -> None:
    with endpoint(obeys) as server:
        engine = engine_of(judges_of({"polite": model(server.url)}, {"concurrency": 32}))
        report = lint(engine, wanted(votes=1), gold=GOLD, ask_judges=True)
    assert not report.ok
    assert codes(report) == {"judge_obeys"}
    assert any("plain" in finding.message for finding in report.findings)


def test_a_judge_that_likes_everything_is_caught() -> None:
    with endpoint(lambda _: Say("yes")) as server:
        engine = engine_of(judges_of({"polite": model(server.url)}, {"concurrency": 32}))
        report = lint(engine, wanted(votes=1), ask_judges=True)
    assert {"judge_obeys", "null_agent_passes"} <= codes(report)


def test_lint_asks_no_judge_unless_it_may() -> None:
    with endpoint(sees_thanks) as server:
        report = lint(engine_of(judges_of({"polite": model(server.url)})), wanted(), gold=GOLD)
    assert server.asked == []
    assert (report.ok, codes(report)) == (True, {"judge_not_asked"})


@pytest.mark.parametrize(
    ("threshold", "comparison", "code"),
    [("Yes", "eq", "never_met"), ("perhaps", "neq", "never_fails"), (6, "gte", "never_met"), (1, "gte", "never_fails")],
)
def test_a_threshold_that_decides_nothing_is_found(threshold: object, comparison: str, code: str) -> None:
    scale = {} if isinstance(threshold, str) else {"choices": None, "scale": [1, 5]}
    asked = SuccessCriteria.model_validate(criteria(threshold, comparison, **scale))
    report = lint(engine_of(judges_of({"polite": model("http://127.0.0.1:9")})), asked)
    assert code in codes(report)
