"""Ask a verifier: a verdict, a crash and a timeout all become a value."""

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from meruit.documents.sanitize import describe, text_of
from meruit.errors import AuthorError, NotJsonSerializable, OutOfTime, VerificationRejected
from meruit.gate.candidate import to_json_value
from meruit.gate.context import CriteriaJudgement, ExecutionContext
from meruit.gate.definition import Candidate
from meruit.gate.feedback import redact_metadata, redact_secrets
from meruit.gate.tools import await_in_task, call_author_function
from meruit.gate.verdict import MAX_CODE, Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.gate.verifier import Verifier
from meruit.model.record import Record

MAX_MESSAGE_CHARS = 10_000
"""Characters of a rejection's message that are stored; feedback shows fewer."""


class VerifierReport(Record, frozen=True):
    """The verdict of a verifier, with the judgement of its criteria for the record."""

    said: VerifierVerdict
    judgement: CriteriaJudgement | None = None


class VerifierCallResult(NamedTuple):
    """A verdict, with the return value itself for a caller in this process."""

    verdict: VerifierReport
    returned: Any = None


async def ask_verifier(
    candidate: Candidate, verifier: Verifier, supply: Mapping[str, Any], timeout_s: float | None = None
) -> VerifierCallResult:
    """Ask the verifier. A rejection, a crash and a timeout are verdicts; a cancellation is raised."""
    result = None
    judgements: list[CriteriaJudgement] = []
    execution = supply.get("execution_ctx")
    if isinstance(execution, ExecutionContext):
        supply = {**supply, "execution_ctx": execution.with_record(judgements.append)}
    try:
        result = await _call_verifier(verifier, candidate.output, supply, timeout_s)
        said = _verdict_from_result(result, verifier)
    except asyncio.CancelledError:
        raise
    except OutOfTime:
        said = SystemErrorVerdict(f"verify took longer than {timeout_s:g} s")
    except BaseException as crash:  # noqa: BLE001 - an exception of a verifier must not end the worker
        said = _verdict_from_exception(crash)
    judgement = judgements[-1] if judgements and not isinstance(said, SystemErrorVerdict) else None
    return VerifierCallResult(VerifierReport(said, judgement), result)


async def _call_verifier(verifier: Verifier, output: Any, supply: Mapping[str, Any], timeout_s: float | None) -> Any:
    if inspect.iscoroutinefunction(verifier.call):
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


def _verdict_from_result(result: Any, verifier: Verifier) -> VerifierVerdict:
    if result is None and not verifier.may_be_none:
        return SystemErrorVerdict(
            "verify returned None; return the final result, or annotate verify with `-> None`", permanent=True
        )
    try:
        return Acceptance(to_json_value(result))
    except NotJsonSerializable as problem:
        kind = type(result).__name__
        return SystemErrorVerdict(f"verify returned a {kind} that is not JSON serializable: {problem}", permanent=True)


def _verdict_from_exception(crash: BaseException) -> VerifierVerdict:
    """A rejection, also one that a task group has wrapped; any other exception is a system error."""
    leaves = [*_leaves(crash)]
    rejected = [one for one in leaves if isinstance(one, VerificationRejected)]
    if len(rejected) < len(leaves):
        # A mistake of the author stays: a retry cannot help.
        return SystemErrorVerdict(describe(crash), permanent=isinstance(crash, AuthorError))
    first, *more = map(rejection_of, rejected)
    if not more:
        return first
    message = "\n".join(one.message for one in (first, *more))[:MAX_MESSAGE_CHARS]
    return Rejection(message, first.code, all(one.retryable for one in (first, *more)), first.metadata)


def _leaves(crash: BaseException) -> Iterator[BaseException]:
    if isinstance(crash, BaseExceptionGroup):
        for one in crash.exceptions:
            yield from _leaves(one)
    else:
        yield crash


def rejection_of(rejected: VerificationRejected) -> Rejection:
    """Convert the exception to a value that is safe to store; a subclass may not set all attributes."""
    code = getattr(rejected, "code", None)
    metadata = getattr(rejected, "metadata", None)
    return Rejection(
        text_of(getattr(rejected, "message", rejected))[:MAX_MESSAGE_CHARS],
        # Events and logs show it too.
        None if code is None else redact_secrets(text_of(code).replace("\0", ""))[:MAX_CODE],
        _truth(getattr(rejected, "retryable", True)),
        redact_metadata(metadata) if isinstance(metadata, Mapping) else {},
    )


# Any: an attribute of an author's own exception.
def _truth(value: Any) -> bool:
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 - the rejection must not be lost
        return True
