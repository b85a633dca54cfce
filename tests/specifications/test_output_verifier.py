"""The specification of the agent output verifier: its printed code and texts, executed as printed.

The files beside this one hold each block to the letter. The package is printed as `factorial`.
Where we decided otherwise, a comment says why.
"""

import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
from pydantic import BaseModel, Field

import meruit
from meruit import (
    Agent,
    AgentContext,
    ExecutionContext,
    Gate,
    VerificationExhausted,
    VerificationRejected,
    VerificationState,
)
from meruit.errors import CouldNotVerify
from meruit.gate import Deferred, Passed, Rejected, VerificationOutcome
from meruit.model.events import EventType
from meruit.testing import ScriptedModel, submits, verdict_of

PRINTED = Path(__file__).with_suffix("").with_name("output_verifier")


def text_of(name: str) -> str:
    return (PRINTED / f"{name}.txt").read_text(encoding="utf-8")


# Any, here and below: names of printed code.
def execute(name: str, **known: Any) -> dict[str, Any]:
    """Execute a printed block with the names that the specification has from elsewhere."""
    return run_text(text_of(name), **known)


def run_text(code: str, **known: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "printed", **known}
    # A module of that name: pydantic and our own annotations are resolved there.
    sys.modules["printed"] = ModuleType("printed")
    sys.modules["printed"].__dict__.update(names)
    exec(compile(code, "printed", "exec"), sys.modules["printed"].__dict__)
    return sys.modules["printed"].__dict__


@pytest.fixture(autouse=True)
def _factorial(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package by its printed name, and its printed place of the exception."""
    verification = ModuleType("factorial.verification")
    verification.VerificationRejected = VerificationRejected  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "factorial", meruit)
    monkeypatch.setitem(sys.modules, "factorial.verification", verification)
    yield
    sys.modules.pop("printed", None)


class Suite:
    """The test suite of the printed example: `run_verification` reports how many tests fail."""

    def __init__(self, *failing: int) -> None:
        self.failing = [*failing]
        self.profiles: list[str] = []

    async def run_verification(self, profile: str) -> SimpleNamespace:
        self.profiles.append(profile)
        failed = self.failing.pop(0)
        return SimpleNamespace(
            passed=not failed,
            summary=f"{failed} regression tests failed.",
            failed_tests=[f"test_{number}" for number in range(failed)],
            duration_ms=12,
            tests_run=40,
        )


def contract(*failing: int) -> tuple[Any, Suite]:
    """The printed output model, over a test suite that fails so often."""
    tests = Suite(*failing)
    return SimpleNamespace(**execute("contract.py", run_verification=tests.run_verification)), tests


# The output model contract.


def test_the_printed_model_passes_with_its_final_result() -> None:
    printed, tests = contract(0)
    agent = Agent("coder", "", ScriptedModel([submits(summary="done")]), output_type=printed.AgentOutput)
    done = agent.run_sync("mend it")
    assert done.output == printed.FinalResult(
        summary="done", verification=printed.VerificationMetadata(duration_ms=12, tests_run=40, failed=0)
    )
    assert (done.attempts_used, tests.profiles) == (0, ["fast"])


def test_the_printed_model_rejects_and_continues_until_it_passes() -> None:
    printed, _ = contract(12, 0)
    script = ScriptedModel([submits(summary="done"), submits(summary="really done", test_profile="full")])
    agent = Agent("coder", "", script, output_type=printed.AgentOutput)
    done = agent.run_sync("mend it")
    assert (done.output.summary, done.attempts_used) == ("really done", 1)
    feedback = script.asked[1][-1]["content"]
    assert feedback.startswith('<verification_rejected code="tests_failed" retryable="true">\nSummary: 12 regression')
    # The printed verifier names ten.
    assert ("- test_9" in feedback, "- test_10" in feedback) == (True, False)


def test_the_exception_has_the_printed_signature() -> None:
    parameters = inspect.signature(VerificationRejected).parameters
    defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    assert [*parameters] == ["message", "retryable", "code", "metadata"]
    assert defaults == {"retryable": True, "code": None, "metadata": None}


# The policy of attempts.


def test_the_printed_agent_has_the_printed_budget() -> None:
    printed, _ = contract()
    # `...` stands for the arguments that the reader knows.
    code = text_of("agent.py").replace("...", '"coder"')
    names = run_text(code, Agent=Agent, AgentOutput=printed.AgentOutput)
    assert names["agent"].limits().max_attempts == 5


def test_the_budget_of_the_run_precedes_agent_model_and_default() -> None:
    model = execute("model_budget.py", BaseModel=BaseModel, ClassVar=ClassVar)["AgentOutput"]
    assert Agent("a", output_type=model).limits().max_attempts == 5
    model.verify_max_attempts = 4
    assert Agent("a", output_type=model).limits().max_attempts == 4
    assert Agent("a", output_type=model, verify_max_attempts=3).limits().max_attempts == 3
    assert Agent("a", output_type=model, verify_max_attempts=3).limits(2).max_attempts == 2

    class Plain(BaseModel): ...

    assert Agent("a", output_type=Plain).limits().max_attempts == 5


# The state.


def test_the_state_has_the_printed_fields_and_defaults() -> None:
    printed = execute("state.py", Enum=Enum, BaseModel=BaseModel)
    assert [one.value for one in printed["VerificationOutcome"]] == [one.value for one in VerificationOutcome]
    ours = VerificationState().to_dict()
    # We add fields, among them what tells a replay from a new submission.
    assert printed["VerificationState"]().model_dump().items() <= ours.items()
    made = VerificationState(attempts_used=2, last_candidate_hash="x", last_outcome=VerificationOutcome.REJECTED)
    assert printed["VerificationState"](**made.to_dict()).attempts_used == 2


def test_the_context_has_the_printed_field() -> None:
    body = "class Context(BaseModel):\n    " + text_of("context_field.py")
    printed = run_text(body, BaseModel=BaseModel, Field=Field, VerificationState=VerificationState)["Context"]
    assert printed().verification == AgentContext().verification == VerificationState()
    assert AgentContext.model_fields["verification"].annotation is VerificationState


# Hash and accounting.


class Number(BaseModel):
    """Good from 10 on; below zero its verifier breaks."""

    n: int

    async def verify(self) -> int:
        if self.n < 0:
            raise ConnectionError("down")
        if self.n < 10:
            raise VerificationRejected("too small")
        return self.n


def submitted(gate: Gate, *numbers: int) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return [await gate.submit({"n": n}) for n in numbers]

    return asyncio.run(all_of_them())


def test_only_a_rejected_candidate_that_differs_from_the_last_is_counted() -> None:
    gate = Gate(Number, max_attempts=9)
    assert [one.counted for one in submitted(gate, 1, 1, 2, 1)] == [True, False, True, True]
    assert gate.state.attempts_used == 3


# The lifecycle.


async def at_once(_seconds: float) -> None:
    return None


def test_every_edge_of_the_printed_lifecycle_is_taken() -> None:
    edges = re.findall(r"(\w+)(?:\[.*?\]|\{.*?\})? -->(?:\|(.*?)\|)? (\w+)", text_of("lifecycle.mermaid"))
    taken = {"llmSubmit": "", "parseOutput": ""}
    passed, rejected = submitted(Gate(Number), 10)[0], submitted(Gate(Number), 1)[0]
    assert isinstance(passed, Passed)
    taken["verifyPass"] = "returns FinalResult"
    assert isinstance(rejected, Rejected)
    taken |= {"verifyReject": "raises VerificationRejected", "injectFeedback": "no"}
    with pytest.raises(VerificationExhausted):
        submitted(Gate(Number, max_attempts=1), 1)
    taken["failTask"] = "yes"
    broken = Gate(Number, sleep=at_once)
    with pytest.raises(CouldNotVerify):
        submitted(broken, -1)
    assert (broken.state.attempts_used, broken.state.system_errors) == (0, 5)
    taken["verifyError"] = "raises other exception"
    named = {target: label for _, label, target in edges if label}
    assert named.items() <= taken.items()


# Feedback.


def test_the_feedback_is_the_printed_block() -> None:
    failures = ["test_parser_generics", "test_codegen_switch", "test_linker_symbols"]

    class Output(BaseModel):
        async def verify(self) -> int:
            raise VerificationRejected(
                "3 regression tests failed.", code="tests_failed", metadata={"top_failures": failures}
            )

    async def rejected() -> Any:
        return await Gate(Output).submit({})

    found = asyncio.run(rejected()).feedback.splitlines()
    # One line more: the model learns how many attempts are left.
    assert found.pop(-2) == "Attempt 1 was rejected; 4 are left."
    assert found == text_of("feedback.xml").splitlines()


# Events, names and signatures.


def test_the_five_printed_events_exist() -> None:
    printed = {"started", "passed", "rejected", "attempt_counted", "exhausted"}
    ours = {one.value for one in EventType if one.value.startswith("verification_")}
    assert ours == {f"verification_{name}" for name in printed}


def test_the_model_submits_by_agent_output_and_may_keep_final_output() -> None:
    assert [spec.name for spec in Agent("a", output_type=Number).specs()] == ["agent_output"]
    # The temporary switch of the printed rollout.
    old = Agent("a", output_type=Number, output_tool="final_output")
    assert [spec.name for spec in old.specs()] == ["final_output"]


def test_both_printed_shapes_get_the_four_printed_parameters() -> None:
    class Instance(BaseModel):
        async def verify(
            self, agent_ctx: AgentContext, execution_ctx: ExecutionContext, attempt: int, max_attempts: int
        ) -> Any:
            return [type(agent_ctx).__name__, type(execution_ctx).__name__, attempt, max_attempts]

    class Classmethod(BaseModel):
        @classmethod
        async def verify(cls, output: Self, attempt: int, max_attempts: int) -> Any:
            return [cls.__name__, type(output).__name__, attempt, max_attempts]

    assert verdict_of(Instance()).result == ["AgentContext", "ExecutionContext", 1, 5]  # type: ignore[union-attr]
    assert verdict_of(Classmethod()).result == ["Classmethod", "Classmethod", 1, 5]  # type: ignore[union-attr]


def test_a_model_without_a_verifier_behaves_as_before() -> None:
    class Plain(BaseModel):
        n: int

    done = Agent("a", "", ScriptedModel([submits(n=1)]), output_type=Plain).run_sync("count")
    assert (done.output, done.attempts_used) == (Plain(n=1), 0)


@pytest.mark.parametrize("value", ["text", 7, 0, [1], {"a": 1}])
def test_success_is_any_serializable_value(value: Any) -> None:
    class Output(BaseModel):
        async def verify(self) -> Any:
            return value

    async def passed() -> Any:
        return await Gate(Output).submit({})

    assert asyncio.run(passed()) == Passed(value, 1)


@pytest.mark.parametrize("value", [None, True, False])
def test_what_may_mean_no_is_not_a_success(value: Any) -> None:
    """Failure is an exception, and no union of success and failure is returned: these are how authors forget it.

    None is a success where the verifier is annotated `-> None`, so that a verifier may have no result.
    """

    class Output(BaseModel):
        async def verify(self) -> Any:
            return value

    async def refused() -> Any:
        return await Gate(Output).submit({})

    with pytest.raises(CouldNotVerify):
        asyncio.run(refused())


def test_a_long_verification_waits_as_tools_do() -> None:
    """The printed expansion for verifiers that take long: the wait of a hook."""

    class Output(BaseModel):
        async def verify(self, answer: Any = None) -> str | Deferred:
            return Deferred("a person's word") if answer is None else answer

    gate = Gate(Output)

    async def answered() -> Any:
        with pytest.raises(meruit.VerificationWaiting):
            await gate.submit({})
        return await gate.resume("yes")

    assert asyncio.run(answered()) == Passed("yes", 1)
