"""Asking a verifier: whatever it does, the answer is a value."""

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from meruit.errors import AuthorError
from meruit.gate.candidate import NotJson, jsonable
from meruit.gate.context import ExecutionContext, Judgement
from meruit.gate.definition import Candidate
from meruit.gate.feedback import hidden, shown_metadata
from meruit.gate.tools import OutOfTime, called, in_a_task
from meruit.gate.verdict import MAX_CODE, Accepted, Breakage, Rejection, Said, VerificationRejected
from meruit.gate.verifier import Verifier
from meruit.model.record import Record
from meruit.verify.sanitize import describe, text_of

MAX_KEPT = 10_000
"""Characters of a rejection's message that are kept; the model is told fewer."""


class Verdict(Record, frozen=True):
    """What a verifier said, and what its criteria have to say for the record."""

    said: Said
    judgement: Judgement | None = None


class Told(NamedTuple):
    """A verdict, and what the verifier returned as it is, for whoever asked in this process."""

    verdict: Verdict
    returned: Any = None


async def verdict_on(
    candidate: Candidate, verifier: Verifier, supply: Mapping[str, Any], timeout_s: float | None = None
) -> Told:
    """Ask the verifier; a rejection, a crash and a time-out are answers, a cancellation is none."""
    result = None
    judgements: list[Judgement] = []
    execution = supply.get("execution_ctx")
    if isinstance(execution, ExecutionContext):
        supply = {**supply, "execution_ctx": execution.recording(judgements.append)}
    try:
        result = await _asked(verifier, candidate.output, supply, timeout_s)
        said = _accepted(result, verifier)
    except asyncio.CancelledError:
        raise
    except OutOfTime:
        said = Breakage(f"verify took longer than {timeout_s:g} s")
    except BaseException as crash:  # noqa: BLE001 - whatever it raises, it must not end the worker
        said = _turned_down(crash)
    judgement = judgements[-1] if judgements and not isinstance(said, Breakage) else None
    return Told(Verdict(said, judgement), result)


async def _asked(verifier: Verifier, output: Any, supply: Mapping[str, Any], timeout_s: float | None) -> Any:
    if inspect.iscoroutinefunction(verifier.call):
        return await in_a_task(verifier.ask(output, supply), timeout_s)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            # It may run somebody's test suite: meanwhile, other runs go on.
            return await called(verifier.ask, output, supply)
    except TimeoutError:
        if limit.expired():
            raise OutOfTime from None
        raise


def _accepted(result: Any, verifier: Verifier) -> Said:
    if result is None and not verifier.may_be_none:
        return Breakage(
            "verify returned None; return the final result, or annotate verify with `-> None`", lasting=True
        )
    try:
        return Accepted(jsonable(result))
    except NotJson as problem:
        kind = type(result).__name__
        return Breakage(f"verify returned a {kind} that cannot be kept as JSON: {problem}", lasting=True)


def _turned_down(crash: BaseException) -> Said:
    """A rejection, also one that a task group has wrapped; anything else is no judgement."""
    leaves = [*_leaves(crash)]
    rejected = [one for one in leaves if isinstance(one, VerificationRejected)]
    if len(rejected) < len(leaves):
        # What an author wrote wrong stays wrong, however often it is asked.
        return Breakage(describe(crash), lasting=isinstance(crash, AuthorError))
    first, *more = map(rejection_of, rejected)
    if not more:
        return first
    message = "\n".join(one.message for one in (first, *more))[:MAX_KEPT]
    return Rejection(message, first.code, all(one.retryable for one in (first, *more)), first.metadata)


def _leaves(crash: BaseException) -> Iterator[BaseException]:
    if isinstance(crash, BaseExceptionGroup):
        for one in crash.exceptions:
            yield from _leaves(one)
    else:
        yield crash


def rejection_of(rejected: VerificationRejected) -> Rejection:
    """What the exception says, as a value that is safe to keep; a subclass may have left out what ours sets."""
    code = getattr(rejected, "code", None)
    metadata = getattr(rejected, "metadata", None)
    return Rejection(
        text_of(getattr(rejected, "message", rejected))[:MAX_KEPT],
        # Also those who watch are told it.
        None if code is None else hidden(text_of(code).replace("\0", ""))[:MAX_CODE],
        _truth(getattr(rejected, "retryable", True)),
        shown_metadata(metadata) if isinstance(metadata, Mapping) else {},
    )


# Any: whatever an author's own exception holds.
def _truth(value: Any) -> bool:
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 - no reason to lose the rejection
        return True
