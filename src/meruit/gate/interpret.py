"""What the return value or the exception of a verifier means. A value that says "no" or "not yet" never passes."""

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

import msgspec

from meruit.documents.sanitize import describe, text_of
from meruit.errors import AuthorError, NotJsonSerializable, VerificationRejected
from meruit.gate.candidate import to_json_value
from meruit.gate.feedback import redact_metadata, redact_secrets
from meruit.gate.tools import Deferred, Pause
from meruit.gate.verdict import (
    MAX_CODE,
    Acceptance,
    Deferral,
    Passed,
    Rejected,
    Rejection,
    SystemErrorVerdict,
    VerifierAnswer,
    VerifierVerdict,
)
from meruit.gate.verifier import ANSWER, BOOL_ADVICE, Verifier, is_truth_type
from meruit.model.decoding import convert_to
from meruit.model.evidence import Fault
from meruit.model.governance import UNAVAILABLE
from meruit.model.outcome import OutcomeRecord
from meruit.model.record import Record
from meruit.model.verdict import GovernanceStatus, ReasonCode, Status, Verdict, VerificationResult

NOT_MET, NOT_MEASURABLE, NOT_PLAUSIBLE = "criteria_not_met", "not_measurable", "not_plausible"
MAX_NAMED = 10
"""Most criteria that a message names."""
MAX_NOTE = 1_000
"""Characters of a note on what a run waits for."""
MAX_MESSAGE_CHARS = 10_000
"""Characters of a rejection's message that are stored; feedback shows fewer."""
OUR_VERDICTS = (Record, OutcomeRecord, Verdict, VerificationRejected, Rejected, Deferred, Pause)
"""What may mean no, or not yet."""
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class ReturnedVerdict(NamedTuple):
    """What a verifier returned, as a verdict."""

    verdict: VerifierAnswer
    # Any: the verifier's own type.
    result: Any = None
    """The final result, where it passes."""


class Unmeasured(msgspec.Struct, frozen=True):
    """Criteria or plausibility that could not be checked, for a reason that is not the agent's."""

    message: str
    is_authors_mistake: bool
    """Then a retry cannot help."""


# Any, here and below: an author's verifier may return any value.
def interpret_result(result: Any, verifier: Verifier) -> ReturnedVerdict:
    """Return the verdict that a return value means; what is not a refusal is the final result."""
    while isinstance(result, Passed | Acceptance):
        # Of a gate or a verifier inside this one.
        result = result.result
    refused = _refusal_of(result, verifier)
    if refused is not None:
        return ReturnedVerdict(refused)
    try:
        return ReturnedVerdict(Acceptance(to_json_value(result)), result)
    except NotJsonSerializable as problem:
        kind = type(result).__name__
        return ReturnedVerdict(_error(f"verify returned a {kind} that is not JSON serializable: {problem}"))


def _refusal_of(result: Any, verifier: Verifier) -> VerifierAnswer | None:  # noqa: PLR0911, PLR0912, C901 - one a kind
    """Return the verdict of a value that means "no", "not yet" or nothing at all; None for a final result."""
    match result:
        case None if not verifier.may_be_none:
            return _error(
                "verify returned None; return the final result, or raise VerificationRejected. "
                "If it has no result, annotate it with `-> None`"
            )
        case Rejection() | SystemErrorVerdict() | Deferral():
            return result
        case Rejected():
            # Of a gate inside this one.
            return rejection_of(VerificationRejected(result.feedback, code=result.code))
        case VerificationRejected():
            # Returned instead of raised.
            return rejection_of(result)
        case BaseException():
            return _error(f"verify returned the exception {type(result).__name__}; raise it")
        case type() if issubclass(result, BaseException):
            return _error(f"verify returned the class {result.__name__}; raise an exception of it")
        case Deferred():
            return _deferral(result, verifier)
        case Pause():
            return _pause(result)
        case VerificationResult():
            return _verdict_of_result(result)
        case Verdict():
            return None if result is Verdict.PASS else _rejection_for(result)
        case _ if _is_truth_value(result):
            return _error(f"verify returned {result}, and {BOOL_ADVICE}")
        case tuple() if result and _is_truth_value(result[0]):
            return _error(f"verify returned a tuple that begins with {result[0]}, and {BOOL_ADVICE}")
        case tuple() if result and isinstance(result[0], OUR_VERDICTS):
            # A verdict, and something beside it.
            return _refusal_of(result[0], verifier)
        case OutcomeRecord():
            judged = result.verification_result
            return (
                _error("verify returned an outcome that was erased") if judged is None else _verdict_of_result(judged)
            )
        case Record():
            return _verdict_of_record(result)
        case {"result": Mapping() as judged, "outcome_id": str()}:
            # The service's reply to a verification.
            return _refusal_of(judged, verifier)
        case {"success": bool(success), "verdict": str(verdict), **rest} if verdict in {*Verdict}:
            return _verdict_of_json(rest, Verdict(verdict), success=success)
        case _:
            return None


def _is_truth_value(value: Any) -> bool:
    """Whether a value is true or false, also as numpy has it."""
    return is_truth_type(type(value))


def _error(problem: str) -> SystemErrorVerdict:
    """A mistake of the verifier's author: a retry cannot help."""
    return SystemErrorVerdict(problem, permanent=True)


def _deferral(deferred: Deferred, verifier: Verifier) -> Deferral | SystemErrorVerdict:
    if not any(what == ANSWER for _, what in verifier.wants):
        return _error(
            f"verify returned Deferred and has no parameter {ANSWER!r} for the answer; "
            f"write `async def verify(self, {ANSWER}: Any = None)`: it is None until a client answers"
        )
    if deferred.timeout_s is not None and not _is_seconds(deferred.timeout_s):
        return _error(f"verify returned Deferred(timeout_s={deferred.timeout_s!r}); give seconds above 0, or None")
    return Deferral(text_of(deferred.note)[:MAX_NOTE], deferred.timeout_s)


def _pause(pause: Pause) -> Deferral | SystemErrorVerdict:
    if not _is_seconds(pause.seconds):
        return _error(f"verify returned Pause({pause.seconds!r}); give seconds above 0")
    return Deferral(pause_s=float(pause.seconds))


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


def _verdict_of_result(result: VerificationResult) -> Rejection | SystemErrorVerdict | None:
    """Reject with the reasons of criteria that are not met; they name criteria, never a threshold or evidence."""
    ours = find_unmeasured(result)
    if ours is not None:
        return SystemErrorVerdict(ours.message, permanent=ours.is_authors_mistake)
    if result.verdict is not Verdict.INCONCLUSIVE and is_doubted(result):
        # Which rule objects, and to what, would teach an agent how not to be noticed.
        return rejection_of(VerificationRejected("The output is not plausible.", code=NOT_PLAUSIBLE))
    if result.success:
        return None
    reasons = [
        f"{one.criterion_id} could not be measured" if one.code is ReasonCode.INDETERMINATE else one.message
        for one in result.reasons
    ]
    return _rejection_for(result.verdict, reasons)


def _verdict_of_record(record: Record) -> Rejection | None:
    """Reject by the outcome in one of our own records, where it has one."""
    success, verdict = getattr(record, "success", None), getattr(record, "verdict", None)
    has_passed = success if isinstance(success, bool) else verdict is Verdict.PASS
    if has_passed or not (isinstance(success, bool) or isinstance(verdict, Verdict)):
        return None
    return _rejection_for(verdict)


def _verdict_of_json(
    rest: Mapping[object, object], verdict: Verdict, *, success: bool
) -> Rejection | SystemErrorVerdict | None:
    """Reject by a result of ours in JSON, as the service replies and `--json` prints it."""
    try:
        whole = convert_to({**rest, "verdict": verdict, "success": success}, VerificationResult)
        return _verdict_of_result(whole)
    except (msgspec.ValidationError, TypeError, ValueError):
        # The reply to an agent's key has less.
        return None if success else _rejection_for(verdict)


def _rejection_for(verdict: Verdict | None, reasons: list[str] | None = None) -> Rejection:
    code = NOT_MEASURABLE if verdict is Verdict.INCONCLUSIVE else NOT_MET
    shown = {} if verdict is None else {"verdict": verdict.value}
    message = "\n".join(reasons or ["The criteria are not met."])
    return rejection_of(VerificationRejected(message, code=code, metadata=shown))


def is_doubted(result: VerificationResult) -> bool:
    """Whether governance objects."""
    return result.governance in (GovernanceStatus.REVIEW, GovernanceStatus.INVALID)


def find_unmeasured(result: VerificationResult) -> Unmeasured | None:
    """Find what could not be checked for a reason that is not the agent's; then nothing was judged."""
    if UNAVAILABLE in result.governance_flags and result.governance is GovernanceStatus.REVIEW:
        return Unmeasured(
            "governance gave no clear answer, so that the output is not accepted", is_authors_mistake=False
        )
    if result.verdict is not Verdict.INCONCLUSIVE:
        return None
    ours = [
        one for one in result.criterion_results if one.status is Status.INDETERMINATE and one.fault is not Fault.AGENT
    ]
    if not ours:
        return None
    # Only names and causes: the errors themselves may quote evidence, and this message is shown with the run.
    why = ", ".join(sorted({f"{one.criterion_id!r} ({one.cause})" for one in ours[:MAX_NAMED]}))
    message = f"{len(ours)} of {len(result.criterion_results)} criteria could not be measured: {why}"
    return Unmeasured(message, any(one.fault is Fault.AUTHOR for one in ours))


def interpret_exception(crash: BaseException, reject_on: tuple[type[Exception], ...] = ()) -> VerifierVerdict:
    """Return the verdict that an exception means: a rejection, also one in a group; any other is a system error."""
    leaves = [*_leaves(crash)]
    rejected = [one for one in leaves if isinstance(one, (VerificationRejected, *reject_on))]
    if len(rejected) < len(leaves):
        # A mistake of the author stays: a retry cannot help.
        return SystemErrorVerdict(describe(crash), permanent=isinstance(crash, AuthorError))
    first, *more = map(_rejection_of_exception, rejected)
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


def _rejection_of_exception(crash: BaseException) -> Rejection:
    if isinstance(crash, VerificationRejected):
        return rejection_of(crash)
    # An exception of `reject_on`: ValueError gets the code value_error.
    name = type(crash).__name__
    return rejection_of(VerificationRejected(text_of(crash) or name, code=_WORD_START.sub("_", name).lower()))


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
