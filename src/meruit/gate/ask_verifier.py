"""Ask a verifier: a verdict, a crash and a timeout all become a value."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from meruit.errors import OutOfTime
from meruit.gate.context import CriteriaJudgement, ExecutionContext
from meruit.gate.definition import Candidate
from meruit.gate.interpret import interpret_exception, interpret_result
from meruit.gate.tools import await_in_task, call_author_function
from meruit.gate.verdict import Deferral, SystemErrorVerdict, VerifierAnswer
from meruit.gate.verifier import Verifier
from meruit.model.record import Record


class VerifierReport(Record, frozen=True):
    """The answer of a verifier, with the judgement of its criteria for the record."""

    said: VerifierAnswer
    judgement: CriteriaJudgement | None = None


class VerifierCallResult(msgspec.Struct, frozen=True):
    """A verdict, with the return value itself for a caller in this process."""

    verdict: VerifierReport
    returned: Any = None
    is_new: bool = True
    """False where the journal replays it."""


async def ask_verifier(
    candidate: Candidate, verifier: Verifier, supply: Mapping[str, Any], timeout_s: float | None = None
) -> VerifierCallResult:
    """Ask the verifier. A rejection, a crash and a timeout are verdicts; a cancellation is raised."""
    returned = None
    answer: VerifierAnswer
    judgements: list[CriteriaJudgement] = []
    execution = supply.get("execution_ctx")
    if isinstance(execution, ExecutionContext):
        supply = {**supply, "execution_ctx": execution.with_record(judgements.append)}
    try:
        called = await _call_verifier(verifier, candidate.output, supply, timeout_s)
        answer, returned = interpret_result(called, verifier)
    except asyncio.CancelledError:
        raise
    except OutOfTime:
        answer = SystemErrorVerdict(f"verify took longer than {timeout_s:g} s")
    except BaseException as crash:  # noqa: BLE001 - an exception of a verifier must not end the worker
        answer = interpret_exception(crash, verifier.reject_on)
    is_judged = not isinstance(answer, SystemErrorVerdict | Deferral)
    return VerifierCallResult(VerifierReport(answer, judgements[-1] if judgements and is_judged else None), returned)


async def _call_verifier(verifier: Verifier, output: Any, supply: Mapping[str, Any], timeout_s: float | None) -> Any:
    if verifier.is_async:
        return await await_in_task(verifier.ask(output, supply), timeout_s)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            # In a thread: it may run a long test suite while other runs go on.
            return await call_author_function(verifier.ask, output, supply)
    except TimeoutError:
        if limit.expired():
            raise OutOfTime from None
        raise
