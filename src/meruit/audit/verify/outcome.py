"""Repeat what a bundle says was done: the metrics, the judge, the statement."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from meruit.audit.bundle import Bundle, statement_about
from meruit.audit.findings import AuditStepState, Findings, StepFinding, step_ok
from meruit.audit.verify.entries import check, findings
from meruit.audit.verify.history import OutcomeHistory
from meruit.audit.verify.settlement import check_governance, check_settlement
from meruit.audit.verify.signatures import NO_WITNESSES, VerifiedSignatures, WitnessQuorum
from meruit.documents.json_slices import load_json
from meruit.documents.sanitize import describe
from meruit.errors import AuditStep, BundleFlaw
from meruit.judge.verdict import evidence_of, rejudge
from meruit.judge.votes import decide_votes
from meruit.log.entries import PARTS, VerdictEntry
from meruit.log.note import VerifierKey
from meruit.model.canonical import from_canonical, payload_bytes
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Checked, Measured, Missing
from meruit.model.verdict import CriterionResult, ReasonCode, Verdict, VerificationResult
from meruit.model.vote import read_judge_evidence
from meruit.verify.catalogue import Slot
from meruit.verify.custom_code import CustomCode
from meruit.verify.engine import VerificationEngine

MAX_CRITERIA = 1_000
"""Of one set: more would take longer to prepare than anyone waits."""
OF_THE_MACHINE = frozenset({Cause.TIMEOUT, Cause.MEMORY, Cause.SANDBOX_UNAVAILABLE})
"""How custom code may end on one machine and not on another, without a fault."""


class _VerdictRecord(msgspec.Struct, frozen=True):
    """One version of the verdict, with its result still there."""

    entry: VerdictEntry
    criteria: SuccessCriteria
    result: VerificationResult
    result_json: bytes

    @property
    def name(self) -> str:
        return f"version {self.entry.version}"


def verify_bundle(
    data: bytes,
    *,
    key: VerifierKey | None = None,
    checkpoint: str | None = None,
    witnesses: WitnessQuorum = NO_WITNESSES,
    run_code: bool = False,
) -> Findings:
    """Check a bundle, step by step until one fails; never raises.

    `key` is the one that must have signed it, `checkpoint` the note of an older one that was kept, `witnesses` those
    that must have cosigned. Code that the criteria bring along runs, in the sandbox, only with `run_code`.
    """
    checked = check(data, key, checkpoint, witnesses)
    outcome = checked.bundle.manifest.outcome if checked.bundle is not None else None
    if checked.bundle is None or checked.signed is None or checked.history is None:
        return findings(outcome, checked.passed, checked.flaw, checked.notes)
    passed, notes = [*checked.passed], [*checked.notes]
    flaw = _recheck(checked.bundle, checked.signed, checked.history, passed, notes, run_code=run_code)
    return findings(outcome, passed, flaw, notes)


def _recheck(
    bundle: Bundle,
    signed: VerifiedSignatures,
    story: OutcomeHistory,
    passed: list[StepFinding],
    notes: list[str],
    *,
    run_code: bool,
) -> BundleFlaw | None:
    """Add to what passed, and to the notes; answer what fails."""
    step = AuditStep.METRICS
    try:
        judged = _read_verdicts(bundle, story)
        passed.append(_check_metrics(bundle, judged, notes, run_code=run_code))
        step = AuditStep.JUDGE
        passed.append(_check_judge(bundle, judged))
        step = AuditStep.STATEMENT
        passed.append(_check_statement(bundle, signed, story, judged))
        step = AuditStep.GOVERNANCE
        results = {one.entry.version: one.result for one in judged}
        passed.append(check_governance(bundle, story, results, notes))
        step = AuditStep.SETTLEMENT
        passed.append(check_settlement(bundle, story, results, _contract_criteria(bundle, story), notes))
    except BundleFlaw as flaw:
        return flaw
    except Exception as crash:  # noqa: BLE001 - the boundary: a record may be made to break whatever reads it
        return BundleFlaw(step, f"the content of the bundle cannot be worked with: {describe(crash)}")
    return None


def _read_verdicts(bundle: Bundle, story: OutcomeHistory) -> list[_VerdictRecord]:
    found = []
    for entry in story.verdicts:
        result = bundle.results.get(entry.version)
        if result is None:
            continue
        try:
            criteria = _criteria(bundle.criteria[entry.criteria])
            found.append(
                _VerdictRecord(
                    entry=entry, criteria=criteria, result=VerificationResult.from_json(result), result_json=result
                )
            )
        except (ValueError, RecursionError) as problem:
            raise BundleFlaw(
                AuditStep.METRICS, f"version {entry.version} cannot be read: {describe(problem)}"
            ) from None
    return found


def _contract_criteria(bundle: Bundle, story: OutcomeHistory) -> SuccessCriteria | None:
    """The criteria of the contract; None where there was none."""
    return None if story.contract is None else _criteria(bundle.criteria[story.contract.criteria])


def _criteria(body: bytes) -> SuccessCriteria:
    """Criteria as they are recorded; ValueError for others, and for more than can be meant before they are read."""
    document = from_canonical(body)
    # They may stand under this name, as in a file.
    inner = document.get("success_criteria", document) if isinstance(document, dict) else None
    listed = inner.get("criteria") if isinstance(inner, dict) else None
    if isinstance(listed, list) and len(listed) > MAX_CRITERIA:
        raise ValueError(f"there are more than {MAX_CRITERIA:,} criteria")
    return SuccessCriteria.model_validate(document)


def _check_metrics(bundle: Bundle, judged: list[_VerdictRecord], notes: list[str], *, run_code: bool) -> StepFinding:
    if not judged:
        return StepFinding(AuditStep.METRICS, AuditStepState.SKIPPED, "the results were erased")
    if len(bundle.work) < len(PARTS):
        return StepFinding(AuditStep.METRICS, AuditStepState.SKIPPED, "the work was erased, or a part of it")
    work = {part: _payload(part, bundle.work[part]) for part in PARTS}
    engine = VerificationEngine(custom=CustomCode() if run_code else None)
    again = total = 0
    for one in judged:
        not_rerun = _remeasure(engine, one, work, run_code=run_code)
        notes += not_rerun
        total += len(one.criteria.criteria)
        again += len(one.criteria.criteria) - len(not_rerun)
    state = AuditStepState.OK if again or not total else AuditStepState.SKIPPED
    return StepFinding(AuditStep.METRICS, state, f"{again} of {total} values measured again")


def _payload(part: str, content: bytes) -> dict[str, Any]:
    try:
        # Not the fast reader: it would round large integers.
        payload = load_json(content)
        same = payload_bytes(payload) == content
    except (ValueError, RecursionError) as problem:
        raise BundleFlaw(AuditStep.METRICS, f"work/{part}.json cannot be read: {describe(problem)}") from None
    if not isinstance(payload, dict) or not same:
        raise BundleFlaw(AuditStep.METRICS, f"work/{part}.json is not written as work is recorded")
    return payload


def _remeasure(
    engine: VerificationEngine, one: _VerdictRecord, work: Mapping[str, dict[str, Any]], *, run_code: bool
) -> list[str]:
    """Why some values were not measured again, a line each; raises Flaw for one that comes out otherwise."""
    compiled = engine.compile(one.criteria)
    if _has_no_output(one.result):
        return [f"not rerun: {one.name}, {rule.id}: there was no output to measure" for rule in compiled.plan.rules]
    found = engine.verify_sync(one.result.contract_id, work["input"], work["output"], compiled, work["metadata"])
    if not len(compiled.plan.rules) == len(one.result.criterion_results) == len(found.criterion_results):
        raise BundleFlaw(AuditStep.METRICS, f"{one.name}: the result is not one of these criteria")
    not_rerun = []
    own_names = {name for custom in one.criteria.custom_metrics for name in custom.metrics}
    for rule, number, stored, here in zip(
        compiled.plan.rules, compiled.slot_of, one.result.criterion_results, found.criterion_results, strict=True
    ):
        own = rule.criterion.expr is not None or rule.criterion.metric in own_names
        slot = compiled.slots[number]
        if stored.is_judged:
            not_rerun.append(f"testimony: {one.name}, {rule.id}: {_recount_votes(one.name, stored)}")
            continue
        if own and not run_code:
            why = "the criteria's own code, which --run-code runs"
        else:
            why = _why_incomparable(slot, one.result, compiled.versions) or _why_may_differ(stored, here, own=own)
        if why:
            not_rerun.append(f"not rerun: {one.name}, {rule.id}: {why}")
        elif _amount(stored) != _amount(here):
            raise BundleFlaw(
                AuditStep.METRICS,
                f"{one.name}, {rule.id}: recorded is {_format_amount(stored)}, measured again {_format_amount(here)}",
            )
    return not_rerun


def _recount_votes(version: str, stored: CriterionResult) -> str:
    """What the recorded votes of a judge come to; raises BundleFlaw where the criterion says otherwise."""
    evidence = read_judge_evidence(stored.details)
    if evidence is None:
        # Nothing was voted: a part of the work was missing, or the engine had no judges.
        if stored.value is not None or stored.met:
            raise BundleFlaw(AuditStep.METRICS, f"{version}, {stored.criterion_id}: judged without recorded votes")
        return "there are no votes"
    again = decide_votes(evidence)
    counted = again.value if isinstance(again, Measured) else again.cause
    if counted != (stored.cause or stored.value):
        raise BundleFlaw(
            AuditStep.METRICS,
            f"{version}, {stored.criterion_id}: recorded is {_format_amount(stored)}, the votes give {counted}",
        )
    return f"{len(evidence.votes)} votes counted again; votes are what models said, not measurements"


def _why_incomparable(slot: Slot, result: VerificationResult, versions: Mapping[str, str]) -> str:
    """Why this installation does not measure what was measured then; empty when it does."""
    engine_then, engine_here = result.versions.get("engine"), versions["engine"]
    if engine_then != engine_here:
        return f"recorded by version {engine_then} of the engine, this is version {engine_here}"
    then, here = result.versions.get(slot.label), versions.get(slot.label)
    if then == here:
        return ""
    if then is None:
        return f"{slot.subject} could not be asked where it was recorded"
    if slot.flaw is not None:
        return slot.flaw.why
    return f"recorded by version {then} of {slot.subject}, here is {f'version {here}' if here else 'none'}"


def _why_may_differ(stored: CriterionResult, here: CriterionResult, *, own: bool) -> str:
    """Why two values of one version may differ without a fault; empty when they may not."""
    if (stored.natural, stored.provenance) != (here.natural, here.provenance):
        # The same name and version, but known otherwise.
        return f"{stored.metric} was measured by an extractor of the operator's own"
    causes = [cause for cause in (stored.cause, here.cause) if cause in OF_THE_MACHINE]
    if own and causes and stored.cause != here.cause:
        return f"custom code ended in {causes[0]} on one of two machines"
    return ""


def _amount(judged: CriterionResult) -> bytes:
    """What a measurement came to, without what was said about it."""
    match evidence_of(judged):
        case Measured(value=value):
            return b"value " + msgspec.json.encode(value)
        case Missing(cause=cause):
            return f"missing {cause}".encode()
        case Checked(score=score):
            return f"score {score}".encode()
        case _:
            return b"skipped"


def _format_amount(judged: CriterionResult) -> str:
    return _amount(judged)[:200].decode(errors="replace")


def _check_judge(bundle: Bundle, judged: list[_VerdictRecord]) -> StepFinding:
    if not judged:
        return StepFinding(AuditStep.JUDGE, AuditStepState.SKIPPED, "the results were erased")
    for one in judged:
        result, entry = one.result, one.entry
        if not _has_no_output(result) and rejudge(one.criteria, result).to_json() != one.result_json:
            raise BundleFlaw(AuditStep.JUDGE, f"{one.name}: judged again, the same values give another verdict")
        logged = (entry.criteria, entry.verdict, entry.success, entry.score, entry.bonus_micros, entry.penalty_micros)
        if logged != (
            *(result.criteria_digest, result.verdict, result.success, result.exact),
            *(result.bonus_micros, result.penalty_micros),
        ):
            raise BundleFlaw(AuditStep.JUDGE, f"{one.name}: the log has another verdict than the result")
        digests = {"input": result.input_digest, "output": result.output_digest, "metadata": result.metadata_digest}
        for part, content in bundle.work.items():
            if digests[part] != sha256(content).hexdigest():
                raise BundleFlaw(AuditStep.JUDGE, f"{one.name}: the result is about another {part}")
    return step_ok(AuditStep.JUDGE, f"{len(judged)} judged again, with the same result to the byte")


def _has_no_output(result: VerificationResult) -> bool:
    """Whether a case's output could not be made; raises BundleFlaw where it is judged all the same."""
    if result.criterion_results or all(reason.code is not ReasonCode.NO_OUTPUT for reason in result.reasons):
        return False
    proven = (result.verdict, result.success, result.exact, result.bonus_micros, result.penalty_micros)
    if proven != (Verdict.INCONCLUSIVE, False, "0", 0, 0):
        raise BundleFlaw(AuditStep.JUDGE, "a case without an output was given a verdict")
    return True


def _check_statement(
    bundle: Bundle, signed: VerifiedSignatures, story: OutcomeHistory, judged: list[_VerdictRecord]
) -> StepFinding:
    latest = story.verdicts[-1]
    result = judged[-1].result if judged and judged[-1].entry is latest else None
    expected = statement_about(latest, story.about, bundle.work, result)
    if payload_bytes(signed.statement) != payload_bytes(expected):
        raise BundleFlaw(AuditStep.STATEMENT, "it differs from the latest verdict")
    return step_ok(
        AuditStep.STATEMENT, f"{expected['predicate']['result']}, {latest.outcome}, version {latest.version}"
    )
