"""Code is tried before anyone is judged by it: it must run, and say the same twice."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from meruit.errors import Failure
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause
from meruit.model.kinds import Tier
from meruit.model.work import Work
from meruit.sandbox import sandbox as room
from meruit.sandbox.contract import SandboxResult
from meruit.verify.custom_code import CustomCode
from meruit.verify.engine import VerificationEngine
from meruit.verify.lint.criteria import Gold, LintReport, Severity, lint
from meruit.verify.lint.custom_code import CustomCodeProblem, try_out

BASE = {"metric_type": "numeric", "comparison": "gte", "threshold": 1}
EVERYTHING = CustomCode(tiers=frozenset(Tier))
GOLD = Gold({"text": "two words"})
Answer = Mapping[str, float] | Failure


class Fake:
    """Stands in for the sandboxes of all tiers: each call takes the tier's next answer."""

    answers: ClassVar[dict[Tier, list[Answer]]] = {}
    calls: ClassVar[list[Tier]] = []

    def __init__(self, tier: Tier, memory_limit_mb: int = 256, *, max_workers: int | None = None) -> None:
        self.tier, self.memory_limit_mb, self.engine = tier, memory_limit_mb, "fake 1"

    def execute_sync(self, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
        Fake.calls.append(self.tier)
        waiting = Fake.answers[self.tier]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, Failure):
            return SandboxResult(None, {"tier": str(self.tier)}, answer, f"told so by {self.tier}")
        return SandboxResult(answer, {"tier": str(self.tier)})

    async def execute(self, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
        return self.execute_sync(code, context, timeout_ms)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr(room, "Sandbox", Fake)
    monkeypatch.setattr(Fake, "answers", {})
    monkeypatch.setattr(Fake, "calls", [])
    return Fake


def criteria(*names: str, code: str = "code", tier: str = "python") -> SuccessCriteria:
    asked = [{**BASE, "metric": name} for name in names]
    return SuccessCriteria.model_validate(
        {"criteria": asked, "custom_metrics": [{"metrics": list(names), "code": code, "tier": tier}]}
    )


def tried(
    asked: SuccessCriteria, *, policy: CustomCode | None = EVERYTHING, good: bool = False, work: Work | None = None
) -> list[CustomCodeProblem]:
    return try_out(VerificationEngine(custom=policy).compile(asked), work or Work(), good=good)


def test_code_that_says_the_same_twice_is_no_trouble(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [{"a": 1, "b": 2}]
    assert tried(criteria("a", "b"), good=True) == []
    assert fake.calls == [Tier.PYTHON] * 2


@pytest.mark.parametrize("good", [True, False])
def test_code_that_changes_its_mind_is_found(good: bool, fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [{"a": 1, "b": 2}, {"a": 1, "b": 3}]
    message = "two runs on the same work differ: b is 2, then 3"
    assert tried(criteria("a", "b"), good=good) == [
        CustomCodeProblem("custom_metrics[0]", Cause.NONDETERMINISTIC, message)
    ]


def test_code_that_fails_the_second_time_changed_its_mind_too(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [{"a": 1}, Failure.CRASHED]
    (trouble,) = tried(criteria("a"))
    assert trouble.cause is Cause.NONDETERMINISTIC
    assert trouble.message.endswith("told so by python")


@pytest.mark.parametrize("failure", list(Failure))
def test_what_may_be_the_works_doing_is_told_of_good_work_only(failure: Failure, fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [failure]
    always = {Failure.UNSUPPORTED_CONSTRUCT, Failure.SANDBOX_UNAVAILABLE, Failure.NONDETERMINISTIC}
    causes = [trouble.cause for trouble in tried(criteria("a"), policy=CustomCode())]
    assert causes == ([Cause(failure)] if failure in always else [])
    (trouble,) = tried(criteria("a"), policy=CustomCode(), good=True)
    assert trouble.cause is Cause(failure)
    assert "told so by python" in trouble.message


def test_a_declared_metric_that_good_work_does_not_get_is_found(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [{"a": 1}]
    assert tried(criteria("a", "b")) == []
    (trouble,) = tried(criteria("a", "b"), good=True)
    assert trouble.cause is Cause.RESULT_REJECTED
    assert "'b'" in trouble.message


@pytest.mark.parametrize(
    ("wider", "advice"),
    [
        ({"a": 1}, "tier: python-full"),
        (Failure.CRASHED, "tier: python-full"),
        (Failure.UNSUPPORTED_CONSTRUCT, "told so by python-full"),
        (Failure.SANDBOX_UNAVAILABLE, "told so by python-full"),
    ],
)
def test_what_the_narrow_python_cannot_run_is_tried_in_the_wide_one(
    wider: Answer, advice: str, fake: type[Fake]
) -> None:
    fake.answers = {Tier.PYTHON: [Failure.UNSUPPORTED_CONSTRUCT], Tier.PYTHON_FULL: [wider]}
    (trouble,) = tried(criteria("a"))
    assert (trouble.owner, trouble.cause) == ("custom_metrics[0]", Cause.UNSUPPORTED_CONSTRUCT)
    assert "told so by python;" in trouble.message
    assert trouble.message.endswith(advice)


def test_what_is_not_allowed_is_not_tried(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [Failure.UNSUPPORTED_CONSTRUCT]
    (trouble,) = tried(criteria("a"), policy=CustomCode())
    assert "operator" in trouble.message
    assert fake.calls == [Tier.PYTHON]
    assert tried(criteria("a"), policy=None) == []


def test_nothing_is_wider_than_the_widest(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON_FULL] = [Failure.UNSUPPORTED_CONSTRUCT]
    (trouble,) = tried(criteria("a", tier="python-full"))
    assert "wider" in trouble.message


def test_expressions_are_tried_for_real() -> None:
    asked = SuccessCriteria.model_validate(
        {"criteria": [{**BASE, "expr": "size("}, {**BASE, "expr": "output.absent", "id": "b"}, {**BASE, "expr": "1"}]}
    )
    (wrong,) = tried(asked)
    assert (wrong.owner, wrong.cause) == ("expr[size(]", Cause.UNSUPPORTED_CONSTRUCT)
    assert "custom_metrics" not in wrong.message
    owners = [trouble.owner for trouble in tried(asked, good=True)]
    assert owners == ["expr[size(]", "expr[b]"]


def test_what_the_language_of_expressions_lacks_is_written_as_code() -> None:
    (wrong,) = tried(SuccessCriteria.model_validate({"criteria": [{**BASE, "expr": "statistics(output.a)"}]}))
    assert wrong.message.endswith(" custom_metrics")


@pytest.mark.parametrize("code", ["def metric(:\n", "x = 1", "return {'a': 1}"])
def test_no_tier_is_named_for_code_that_none_can_run(code: str) -> None:
    custom = {"metrics": ["a"], "code": code}
    asked = SuccessCriteria.model_validate({"criteria": [{**BASE, "metric": "a"}], "custom_metrics": [custom]})
    (wrong,) = tried(asked, policy=CustomCode())
    assert wrong.cause is Cause.UNSUPPORTED_CONSTRUCT
    assert "python-full" not in wrong.message


def test_no_further_code_is_tried_once_the_budget_is_spent(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [{"a": 1}]
    clock = iter([0.0, 1.0, 11.0])
    asked = SuccessCriteria.model_validate(
        {
            "criteria": [{**BASE, "metric": "a"}],
            "custom_metrics": [{"metrics": [name], "code": f"# {name}"} for name in "abc"],
        }
    )
    compiled = VerificationEngine(custom=CustomCode()).compile(asked)
    (trouble,) = try_out(compiled, Work(), good=False, budget_s=10.0, timer=lambda: next(clock))
    assert (trouble.owner, trouble.cause) == ("custom_metrics[1]", Cause.TOO_COSTLY)
    assert fake.calls == [Tier.PYTHON, Tier.PYTHON]


def test_work_that_cannot_cross_is_told_where_it_should_be_good() -> None:
    odd = Work(output={"odd": object()})
    assert tried(criteria("a"), work=odd) == []
    assert [trouble.cause for trouble in tried(criteria("a"), work=odd, good=True)] == [Cause.WRONG_TYPE]


# In lint.


def report(asked: SuccessCriteria, gold: Gold | None = None, policy: CustomCode | None = EVERYTHING) -> LintReport:
    return lint(VerificationEngine(custom=policy), asked, gold=gold)


def found(linted: LintReport) -> dict[str, tuple[str, str | None]]:
    assert linted.ok is not any(finding.severity is Severity.ERROR for finding in linted.findings)
    return {finding.code: (finding.message, finding.criterion_id) for finding in linted.findings}


LENGTH = "def metric(input, output, metadata):\n    return {'a': len(output.get('text', '').split())}\n"


def test_good_code_holds_and_its_criteria_are_failed_by_mutants() -> None:
    linted = report(criteria("a", code=LENGTH), GOLD)
    assert (linted.ok, linted.findings, linted.gold) == (True, [], "pass")
    assert linted.failed_by.keys() == {"a"}
    expression = SuccessCriteria.model_validate({"criteria": [{**BASE, "expr": "size(output.text)"}]})
    assert report(expression, GOLD).ok


def test_code_that_fails_on_the_gold_output_is_an_error() -> None:
    linted = report(criteria("a", code=LENGTH.replace("output.get('text', '')", "output['txt']")), GOLD)
    message, criterion = found(linted)["crashed"]
    assert message.startswith("custom_metrics[0]: ")
    assert criterion is None
    assert "gold_fails" in found(linted)


def test_code_that_fails_on_nothing_is_no_finding() -> None:
    linted = report(criteria("a", code=LENGTH.replace("output.get('text', '')", "output['txt']")))
    assert linted.findings == []


def test_an_expression_that_cannot_be_read_is_found_at_its_criterion() -> None:
    asked = SuccessCriteria.model_validate({"criteria": [{**BASE, "expr": "size(", "id": "x"}]})
    message, criterion = found(report(asked))["unsupported_construct"]
    assert criterion == "x"
    assert not message.startswith("expr[")


def test_chance_is_found(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [{"a": number / 10} for number in range(9)]
    message, _ = found(report(criteria("a")))["nondeterministic"]
    assert all(part in message for part in ("custom_metrics[0]", "0.0", "0.1"))


def test_code_that_is_too_slow_for_the_gold_output_is_not_tried_on_every_mutant(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [Failure.TIMEOUT]
    linted = report(criteria("a"), GOLD)
    assert {*found(linted)} == {"timeout", "gold_fails"}
    assert (linted.gold, linted.mutants_tried, linted.failed_by) == ("inconclusive", 0, {})
    assert len(fake.calls) < 10


def test_code_that_may_not_run_is_an_error_with_the_reason() -> None:
    message, criterion = found(report(criteria("a", tier="python-full"), policy=CustomCode()))["sandbox_unavailable"]
    assert "allow_python_full" in message
    assert criterion == "a"


def test_a_sandbox_that_is_not_there_is_an_error(fake: type[Fake]) -> None:
    fake.answers[Tier.PYTHON] = [Failure.SANDBOX_UNAVAILABLE]
    assert "told so by python" in found(report(criteria("a")))["sandbox_unavailable"][0]


def test_a_declared_metric_that_nobody_uses_is_a_warning() -> None:
    asked = {
        "criteria": [{**BASE, "metric": "a"}, {**BASE, "metric": "b", "expr": "size(output.text)"}],
        "custom_metrics": [{"metrics": ["a", "b"], "code": LENGTH}],
    }
    linted = report(SuccessCriteria.model_validate(asked))
    assert linted.ok
    assert [*found(linted)] == ["unused_metric"]
    message, criterion = found(linted)["unused_metric"]
    assert (all(part in message for part in ("custom_metrics[0]", "'b'")), criterion) == (True, None)


def test_an_expression_called_like_a_metric_that_it_is_not_is_a_warning() -> None:
    asked = SuccessCriteria.model_validate({"criteria": [{**BASE, "metric": "accuracy", "expr": "size(output.text)"}]})
    linted = report(asked)
    assert linted.ok
    message, criterion = found(linted)["misleading_name"]
    assert "'accuracy'" in message
    assert criterion == "accuracy"


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("output.total / 2.0", "3 for 3.0"),
        ("output.whole * 2", "3.0 for 3"),
        ("double(output.total) / 2.0 + double(output.list[0])", None),
    ],
)
def test_an_expression_must_bear_either_spelling_of_a_number(expr: str, said: str | None) -> None:
    asked = SuccessCriteria.model_validate({"criteria": [{**BASE, "expr": expr}]})
    linted = lint(VerificationEngine(), asked, gold=Gold({"total": 100.0, "whole": 3, "list": [1, "a", True, None]}))
    told = [finding.message for finding in linted.findings if finding.code == "crashed"]
    assert [str(said) in message for message in told] == [True] * (said is not None)


def test_what_broke_on_the_gold_output_is_not_said_to_have_survived() -> None:
    broken = criteria("a", code="def metric(input, output, metadata):\n    return {'a': 1 / 0}\n")
    linted = lint(VerificationEngine(), broken, gold=GOLD)
    assert "survived" not in {finding.code for finding in linted.findings}
