"""`gate(fn)`: a function is asked again, with feedback, until what it makes is verified."""

import asyncio
import threading
from collections.abc import Awaitable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.bridges.outputs import AgentOutput, FinalResult, at_once

from meruit.bridges import gate
from meruit.errors import (
    AgentError,
    BudgetError,
    CouldNotVerify,
    MeruitError,
    VerificationExhausted,
    VerificationRejected,
)
from meruit.gate.run import RunState
from meruit.gate.store import read as agent_reading
from meruit.store.store import Store

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]  # for an annotation that cannot be looked up


def test_a_function_gets_feedback_and_its_caller_the_final_result() -> None:
    heard: list[str | None] = []

    @gate
    def propose(start: int, feedback: str | None = None) -> AgentOutput:
        """Says a little more each time."""
        heard.append(feedback)
        return AgentOutput(n=start + len(heard))

    assert propose(0) == FinalResult(n=3, attempt=3)
    assert propose.__doc__ == "Says a little more each time."
    first, second, third = heard
    assert first is None
    assert second is not None
    assert "1 is too small" in second
    assert third is not None
    assert "2 is too small" in third


def test_every_call_is_a_run_of_its_own() -> None:
    def propose(n: int) -> AgentOutput:
        return AgentOutput(n=n)

    held = gate(propose, max_attempts=1)
    for _ in range(2):
        with pytest.raises(VerificationExhausted):
            held(1)
        assert held(3).attempt == 1


def test_an_async_function_stays_async_and_runs_where_it_is_awaited() -> None:
    loops: set[object] = set()

    @gate
    async def propose(feedback: str | None = None) -> AgentOutput:
        loops.add(asyncio.get_running_loop())
        return AgentOutput(n=3 if feedback else 1)

    async def main() -> None:
        assert await propose() == FinalResult(n=3, attempt=2)
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_a_plain_function_works_inside_a_running_loop_and_sees_its_context() -> None:
    who: ContextVar[str] = ContextVar("who")

    @gate
    def propose(feedback: str | None = None) -> AgentOutput:
        assert who.get() == "caller"
        # It may run a loop of its own, as synchronous front ends of agents do.
        return AgentOutput(n=asyncio.run(asyncio.sleep(0, 3 if feedback else 1)))

    async def main() -> FinalResult:
        who.set("caller")
        result: FinalResult = propose()
        return result

    assert asyncio.run(main()) == FinalResult(n=3, attempt=2)
    who.set("caller")
    assert propose() == FinalResult(n=3, attempt=2)


def test_outside_a_loop_the_function_stays_in_its_callers_thread() -> None:
    def propose() -> AgentOutput:
        assert threading.current_thread() is threading.main_thread()
        return AgentOutput(n=3)

    assert gate(propose)().n == 3


def test_a_function_that_returns_something_to_await_is_awaited() -> None:
    async def made(n: int) -> AgentOutput:
        return AgentOutput(n=n)

    def propose() -> Awaitable[AgentOutput]:
        return made(3)

    assert gate(propose, AgentOutput)().n == 3
    assert asyncio.run(gate(partial(made, 3), AgentOutput)()).n == 3


def test_a_verifier_that_breaks_is_a_system_error() -> None:
    def propose() -> AgentOutput:
        return AgentOutput(n=99)

    with pytest.raises(CouldNotVerify, match="OSError: verifier down"):
        gate(propose, sleep=at_once)()


def test_an_error_of_the_function_is_its_callers() -> None:
    def propose() -> AgentOutput:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gate(propose)()


def test_a_verifier_may_be_a_function_of_any_output() -> None:
    def short(text: str) -> int:
        if len(text) > 5:
            raise VerificationRejected("too long")
        return len(text)

    def propose(feedback: str | None = None) -> str:
        return "short" if feedback else "much too long"

    assert gate(propose, verify=short)() == 5


def test_wrong_settings_are_refused_at_the_definition() -> None:
    def says_nothing():  # type: ignore[no-untyped-def]  # on purpose
        """Does not say what it returns."""

    def unverified() -> int:
        return 1

    def unknown() -> "Unknown":
        return None

    with pytest.raises(MeruitError, match="says_nothing"):
        gate(says_nothing)
    with pytest.raises(AgentError, match="int"):
        gate(unverified)
    with pytest.raises(MeruitError, match=r"unknown.*'Unknown'"):
        gate(unknown)
    with pytest.raises(BudgetError):
        gate(unverified, AgentOutput, max_attempts=0)
    with pytest.raises(MeruitError, match="unverified"):
        gate(unverified, AgentOutput, run_id="r")


def test_with_a_store_every_run_is_on_record(store: Store) -> None:
    def propose(feedback: str | None = None) -> AgentOutput:
        return AgentOutput(n=3 if feedback else 1)

    held = gate(propose, store=store, agent="proposer")
    held()
    held()
    with store.database.reading() as connection:
        runs = agent_reading.page(connection, "default", agent="proposer")
        assert [(run.status, run.verification.attempts_used) for run in runs] == [(RunState.COMPLETED, 1)] * 2
        submitted = agent_reading.submissions(connection, "default", runs[0].id)
    assert [one.outcome for one in submitted] == ["rejected", "passed"]
