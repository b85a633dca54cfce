"""Adds the answers of governance to a result."""

from collections.abc import Mapping

import msgspec

from meruit.judge.verdict import apply_governance
from meruit.model.governance import ALL_CLEAR, UNAVAILABLE, Disposition, Flag, GovernanceResult, disposition_of
from meruit.model.text import escape_control_characters
from meruit.model.verdict import OF_GOVERNANCE, GovernanceStatus, Reason, ReasonCode, Verdict, VerificationResult

MAX_FACTS_SHOWN = 200
"""Characters of a flag's evidence in a reason."""


class _Objection(msgspec.Struct, frozen=True):
    status: GovernanceStatus
    code: ReasonCode
    message: str


_HELD = _Objection(
    status=GovernanceStatus.REVIEW, code=ReasonCode.GOVERNANCE_HOLD, message="a person must review the outcome"
)
_SILENT = _Objection(
    status=GovernanceStatus.REVIEW,
    code=ReasonCode.GOVERNANCE_UNAVAILABLE,
    message="governance gave no clear answer; a person must review",
)
_REJECTED = _Objection(
    status=GovernanceStatus.INVALID, code=ReasonCode.GOVERNANCE_INVALID, message="governance rejects the outcome"
)
_SEVERITY: Mapping[GovernanceStatus, int] = {
    GovernanceStatus.NOT_CHECKED: 0,
    GovernanceStatus.RELEASED: 1,
    GovernanceStatus.CLEAR: 1,
    GovernanceStatus.REVIEW: 2,
    GovernanceStatus.INVALID: 3,
}


def is_worse(one: GovernanceStatus, other: GovernanceStatus) -> bool:
    """Whether the first answer says more against an outcome than the second."""
    return _SEVERITY[one] > _SEVERITY[other]


def carry_answer(old: VerificationResult, result: VerificationResult) -> VerificationResult:
    """The result with what governance said of an earlier version; it is not asked again about the past."""
    if old.governance is GovernanceStatus.NOT_CHECKED or result.verdict is Verdict.ERROR:
        return result
    carried = next((reason for reason in old.reasons if reason.code in OF_GOVERNANCE), None)
    return apply_governance(result, old.governance, old.governance_flags, carried)


def add_answer(result: VerificationResult, answer: GovernanceResult) -> VerificationResult:
    """The result with one more answer of governance: the flags of all, and the worst status with its reason."""
    if answer is ALL_CLEAR and result.governance is GovernanceStatus.NOT_CHECKED:
        # The usual case, which should cost little.
        return apply_governance(result, GovernanceStatus.CLEAR, [])
    names = answer.names
    flags = [*result.governance_flags, *(name for name in names if name not in result.governance_flags)]
    objection = _objection(answer.conclusion, names)
    status = GovernanceStatus.CLEAR if objection is None else objection.status
    if not is_worse(status, result.governance):
        return apply_governance(result, result.governance, flags)
    if objection is None:
        return apply_governance(result, status, flags)
    # One reason of governance stays with a result, that of the worst answer.
    others = [reason for reason in result.reasons if reason.code not in OF_GOVERNANCE]
    reason = Reason(objection.code, f"{objection.message}: {_describe_flags(answer, names)}")
    return apply_governance(msgspec.structs.replace(result, reasons=others), status, flags, reason)


def _objection(conclusion: Disposition, names: list[str]) -> _Objection | None:
    match conclusion:
        case Disposition.CLEAR:
            return None
        case Disposition.HOLD:
            return _SILENT if UNAVAILABLE in names else _HELD
        case Disposition.INVALID:
            return _REJECTED


def _describe_flags(answer: GovernanceResult, names: list[str]) -> str:
    """The flags that decide, each with its evidence; all names where none of them does."""
    shown = []
    for name, flag in zip(names, answer.flags, strict=True):
        if isinstance(flag, Flag) and disposition_of(flag.action) is not Disposition.CLEAR:
            facts = ", ".join(f"{fact} {value}" for fact, value in flag.evidence.items())
            shown.append(f"{name} ({escape_control_characters(facts[:MAX_FACTS_SHOWN])})" if facts else name)
    return ", ".join(shown or names) or "no reason given"
