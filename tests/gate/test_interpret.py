"""What a verifier returns or raises, as a verdict: a value that means no, or not yet, never passes."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel
from tests.outcomes.making import ENGINE

from meruit import criteria
from meruit.errors import CouldNotVerify, VerificationRejected
from meruit.gate.gate import Gate
from meruit.gate.interpret import interpret_exception
from meruit.gate.tools import Deferred, Pause
from meruit.gate.verdict import Acceptance, Deferral, Passed, Rejected, Rejection, SystemErrorVerdict
from meruit.model.criterion import SuccessCriteria
from meruit.model.governance import UNAVAILABLE
from meruit.model.outcome import OutcomeRecord, OutcomeSummary
from meruit.model.verdict import GovernanceStatus, Verdict, VerificationResult
from meruit.testing import verdict_of


class Out(BaseModel):
    n: int = 1


def judged(threshold: float, work: dict[str, Any] | None = None, metric: str = "output_length") -> VerificationResult:
    """A verification result: the text is four characters long."""
    rule = {"id": "long", "metric": metric, "metric_type": "count", "comparison": "gte", "threshold": threshold}
    plan = ENGINE.compile(SuccessCriteria.model_validate({"criteria": [rule]}))
    return asyncio.run(ENGINE.verify("c", {}, {"text": "four"} if work is None else work, plan, {}))


def outcome(result: VerificationResult | None) -> OutcomeRecord:
    # Any: only these fields are looked at.
    fields: dict[str, Any] = {"id": "o", "criteria_digest": "", "verification_result": result}
    return OutcomeRecord.model_construct(**fields)


def summary(*, success: bool) -> OutcomeSummary:
    verdict = Verdict.PASS if success else Verdict.FAIL
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return OutcomeSummary("o", 1, "c", None, None, None, now, 1, verdict, success, 0.0, "d")


def said_of(returned: Any, **gate: Any) -> Any:
    """The verdict on a verifier that returns this value."""

    async def verify(output: Out, answer: Any = None) -> Any:
        return returned

    async def submit() -> Any:
        return await Gate(Out, verify=verify, **gate).submit({"n": 1})

    return asyncio.run(submit())


REFUSALS: dict[str, Callable[[], Any]] = {
    "a failed result": lambda: judged(9),
    "a failed outcome": lambda: outcome(judged(9)),
    "a failed summary": lambda: summary(success=False),
    "a verdict": lambda: Verdict.FAIL,
    "a partial verdict": lambda: Verdict.PARTIAL,
    "a rejection of a gate": lambda: Rejected("too short", 1, 1, counted=True, code="short"),
    "a rejection as a value": lambda: Rejection("too short"),
    "an exception returned": lambda: VerificationRejected("too short", code="short"),
    "a failed result and more": lambda: (judged(9), "report"),
    "a rejection and more": lambda: (Rejected("too short", 1, 1, counted=True, code="short"), 4),
    "a failed result as JSON": lambda: msgspec.to_builtins(judged(9)),
    "the service's reply": lambda: {"outcome_id": "out_1", "version": 1, "result": msgspec.to_builtins(judged(9))},
    "the reply to an agent": lambda: {"outcome_id": "out_1", "verdict": "partial", "success": False},
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_value_that_means_no_rejects(refusal: Callable[[], Any]) -> None:
    answer = said_of(refusal())
    assert isinstance(answer, Rejected)
    assert (answer.counted, answer.attempts_used) == (True, 1)


def test_a_failed_result_rejects_with_its_reasons_and_no_threshold() -> None:
    answer = said_of(judged(9))
    assert answer.code == "criteria_not_met"
    assert "long is required and not met" in answer.feedback
    assert "9" not in answer.feedback.replace("attempts", "")


def test_what_could_not_be_measured_for_another_reason_judges_nothing() -> None:
    broken = judged(9, metric="nobody_measures_this")
    with pytest.raises(CouldNotVerify, match="'long'"):
        said_of(broken, system_error_limit=1)


def test_a_result_that_governance_doubts_does_not_pass() -> None:
    passed = judged(1)
    doubted = msgspec.structs.replace(passed, governance=GovernanceStatus.INVALID, governance_flags=["too_fast"])
    answer = said_of(doubted)
    assert (answer.code, "too_fast" in answer.feedback) == ("not_plausible", False)
    unknown = msgspec.structs.replace(passed, governance=GovernanceStatus.REVIEW, governance_flags=[UNAVAILABLE])
    with pytest.raises(CouldNotVerify):
        said_of(unknown, system_error_limit=1)


MISTAKES = {
    "true": True,
    "false": False,
    "a pair": (False, "too short"),
    "a true pair": (True, "fine"),
    "nothing": None,
    "an exception": ValueError("too short"),
    "a class of exceptions": VerificationRejected,
    "false of numpy": np.False_,
    "a pair of numpy": (np.True_, "fine"),
    "an erased outcome": outcome(None),
    "a bad pause": Pause(0),
    "a bad wait": Deferred("", timeout_s=-1),
    "a wait for ever": Deferred("", timeout_s=float("nan")),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_value_that_is_not_a_verdict_is_refused_and_counts_nothing(mistake: Any) -> None:
    with pytest.raises(CouldNotVerify):
        said_of(mistake)


@pytest.mark.parametrize("value", [False, True])
def test_a_truth_value_is_refused_with_what_to_write_instead(value: bool) -> None:
    with pytest.raises(CouldNotVerify, match="raise VerificationRejected"):
        said_of(value)


PASSES: dict[str, Any] = {
    "a number": 0,
    "text": "",
    "a list": [],
    "a list of truth values": [False],
    "a pair of texts": ("no", "yes"),
    "an object that says no in its own words": {"success": False},
}


@pytest.mark.parametrize("value", PASSES.values(), ids=PASSES)
def test_any_other_value_is_the_final_result(value: Any) -> None:
    assert said_of(value) == Passed(value, 1)


def test_a_result_that_passed_is_the_final_result() -> None:
    passed = judged(1)
    assert said_of(passed).result is passed
    assert said_of(summary(success=True)).result.success
    assert said_of(Verdict.PASS).result is Verdict.PASS
    for value in ((passed, "report"), msgspec.to_builtins(passed), {"verdict": "pass", "success": True}):
        assert said_of(value).result is value


@pytest.mark.parametrize("inner", [Passed(7, 2), Acceptance(7), Passed(Passed(7, 1), 1)])
def test_the_pass_of_a_gate_inside_is_unwrapped(inner: Any) -> None:
    assert said_of(inner) == Passed(7, 1)


def test_the_refusal_of_a_gate_inside_is_not_a_pass() -> None:
    with pytest.raises(CouldNotVerify, match="raise VerificationRejected"):
        said_of(Passed(False, 1))


def test_a_verifier_of_criteria_still_passes_what_meets_them() -> None:
    rule = {"id": "n", "metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 1}

    class Answer(BaseModel):
        text: str
        verify: ClassVar[Any] = criteria({"criteria": [rule]})

    assert isinstance(verdict_of(Answer(text="four")), Acceptance)
    assert isinstance(verdict_of(Answer(text="")), Rejection)


class Strict(BaseModel):
    n: int

    def verify(self) -> int:
        if self.n == 1:
            raise AssertionError
        if self.n == 2:
            raise ValueError("two is not odd")
        if self.n == 3:
            raise ExceptionGroup("both", [ValueError("a"), VerificationRejected("b", code="b")])
        if self.n == 4:
            raise ExceptionGroup("mixed", [ValueError("a"), OSError("down")])
        raise OSError("down")


@pytest.mark.parametrize(
    ("n", "message", "code"),
    [(1, "AssertionError", "assertion_error"), (2, "two is not odd", "value_error"), (3, "a\nb", "value_error")],
)
def test_named_exceptions_reject_where_the_author_asks_for_it(n: int, message: str, code: str) -> None:
    said = verdict_of(Strict(n=n), reject_on=(ValueError, AssertionError))
    assert isinstance(said, Rejection)
    assert (said.message, said.code, said.retryable) == (message, code, True)
    assert isinstance(verdict_of(Strict(n=n)), SystemErrorVerdict)


@pytest.mark.parametrize("n", [4, 5])
def test_an_error_of_the_system_is_never_a_rejection(n: int) -> None:
    assert isinstance(verdict_of(Strict(n=n), reject_on=(ValueError,)), SystemErrorVerdict)


def test_a_deferred_verifier_has_no_verdict_yet() -> None:
    class Asks(BaseModel):
        def verify(self, answer: str | None = None) -> str | Deferred:
            return Deferred("may it?", timeout_s=5) if answer is None else answer

    assert verdict_of(Asks()) == Deferral("may it?", 5)
    assert verdict_of(Asks(), answer="yes") == Acceptance("yes")


def test_a_deferred_verifier_that_cannot_hear_the_answer_is_refused() -> None:
    class Deaf(BaseModel):
        def verify(self) -> Any:
            return Deferred("may it?")

    said = verdict_of(Deaf())
    assert isinstance(said, SystemErrorVerdict)
    assert (said.permanent, "'answer'" in said.error) == (True, True)


def test_an_exception_without_text_is_named() -> None:
    said = interpret_exception(ValueError(), (ValueError,))
    assert isinstance(said, Rejection)
    assert said.message == "ValueError"
