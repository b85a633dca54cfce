"""Repeat what governance said of work without a contract: the flags follow from the work that the bundle holds."""

from collections.abc import Mapping

import msgspec

from meruit.audit.bundle import Bundle
from meruit.audit.findings import AuditStepState, StepFinding
from meruit.documents.json_slices import load_json
from meruit.errors import AuditStep, BundleFlaw
from meruit.governance.rule_governance import RuleGovernance
from meruit.judge.governance import add_answer, is_worse
from meruit.log.entries import PARTS
from meruit.model.verdict import GovernanceStatus, VerificationResult
from meruit.model.work import Work
from meruit.verify.engine import GOVERNANCE


def check_plausibility(bundle: Bundle, results: Mapping[int, VerificationResult], notes: list[str]) -> StepFinding:
    """That the rules come to the recorded flags; raises BundleFlaw. Later versions carry the first one's answer."""
    first = results.get(1)
    if first is None:
        return _skip("the results were erased")
    if first.governance is GovernanceStatus.NOT_CHECKED:
        return _skip("governance was not asked")
    if len(bundle.work) < len(PARTS):
        return _skip("the work was erased, or a part of it")
    rules = RuleGovernance()
    if first.versions.get(GOVERNANCE) != rules.version:
        notes.append("not rerun: governance of version 1: it went by other rules or limits than this installation's")
        return _skip("other rules, or none of ours")
    given, output, metadata = (load_json(bundle.work[part]) for part in PARTS)
    unchecked = msgspec.structs.replace(first, governance=GovernanceStatus.NOT_CHECKED, governance_flags=[])
    again = add_answer(unchecked, rules.check(Work(input=given, output=output, metadata=metadata), first))
    found = len(again.governance_flags)
    if first.governance_flags[:found] != again.governance_flags or is_worse(again.governance, first.governance):
        raise BundleFlaw(AuditStep.GOVERNANCE, "the rules give another answer on the same work")
    if beyond := first.governance_flags[found:]:
        notes.append(f"not rerun: {', '.join(beyond)}: from the agent's earlier work, or from a remote governance")
    elif again.governance is not first.governance:
        raise BundleFlaw(AuditStep.GOVERNANCE, "the rules give another answer on the same work")
    return StepFinding(AuditStep.GOVERNANCE, AuditStepState.OK, "the rules applied again, with the same answer")


def _skip(why: str) -> StepFinding:
    return StepFinding(AuditStep.GOVERNANCE, AuditStepState.SKIPPED, why)
