"""Doing again what a bundle says was done: the metrics, the judge, the statement."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from meruit.audit.bundle import Bundle, statement_about
from meruit.audit.findings import Findings, Flaw, State, Step, StepFinding
from meruit.audit.verify.entries import Signed, Story, check, findings, fine
from meruit.audit.verify.settlement import check_governance, check_settlement
from meruit.judge.verdict import evidence_of, rejudge
from meruit.log.entries import PARTS, VerdictEntry
from meruit.log.note import VerifierKey
from meruit.model.canonical import from_canonical, payload_bytes
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Checked, Measured, Missing
from meruit.model.verdict import CriterionResult, VerificationResult
from meruit.verify.catalogue import Slot
from meruit.verify.custom_code import CustomCode
from meruit.verify.engine import VerificationEngine
from meruit.verify.sanitize import describe

MAX_CRITERIA = 1_000
"""Of one set: more would take longer to prepare than anyone waits."""
OF_THE_MACHINE = frozenset({Cause.TIMEOUT, Cause.MEMORY, Cause.SANDBOX_UNAVAILABLE})
"""How custom code may end here and not there, with nobody at fault."""


class _Judged(NamedTuple):
    """One version of the verdict, with its result still there."""

    entry: VerdictEntry
    criteria: SuccessCriteria
    result: VerificationResult
    kept: bytes

    @property
    def name(self) -> str:
        return f"version {self.entry.version}"


def verify(
    data: bytes, *, key: VerifierKey | None = None, checkpoint: str | None = None, run_code: bool = False
) -> Findings:
    """Check a bundle, step by step until one fails; never raises, whatever it holds.

    `key` is the one that must have signed it, `checkpoint` the note of an older one that was kept. Code that the
    criteria bring along runs, in the sandbox, only with `run_code`.
    """
    checked = check(data, key, checkpoint)
    outcome = checked.bundle.manifest.outcome if checked.bundle is not None else None
    if checked.bundle is None or checked.signed is None or checked.story is None:
        return findings(outcome, checked.passed, checked.flaw, checked.notes)
    passed, notes = [*checked.passed], [*checked.notes]
    flaw = _done_again(checked.bundle, checked.signed, checked.story, passed, notes, run_code=run_code)
    return findings(outcome, passed, flaw, notes)


def _done_again(
    bundle: Bundle,
    signed: Signed,
    story: Story,
    passed: list[StepFinding],
    notes: list[str],
    *,
    run_code: bool,
) -> Flaw | None:
    """Add to what passed, and to the notes; answer what fails."""
    step = Step.METRICS
    try:
        judged = _judged(bundle, story)
        passed.append(_check_metrics(bundle, judged, notes, run_code=run_code))
        step = Step.JUDGE
        passed.append(_check_judge(bundle, judged))
        step = Step.STATEMENT
        passed.append(_check_statement(bundle, signed, story, judged))
        step = Step.GOVERNANCE
        results = {one.entry.version: one.result for one in judged}
        passed.append(check_governance(bundle, story, results, notes))
        step = Step.SETTLEMENT
        passed.append(check_settlement(bundle, story, results, _agreed(bundle, story), notes))
    except Flaw as flaw:
        return flaw
    except Exception as crash:  # noqa: BLE001 - the boundary: a record may be made to break whatever reads it
        return Flaw(step, f"what the bundle holds cannot be worked with: {describe(crash)}")
    return None


def _judged(bundle: Bundle, story: Story) -> list[_Judged]:
    found = []
    for entry in story.verdicts:
        kept = bundle.results.get(entry.version)
        if kept is None:
            continue
        try:
            criteria = _criteria(bundle.criteria[entry.criteria])
            found.append(_Judged(entry, criteria, VerificationResult.from_json(kept), kept))
        except (ValueError, RecursionError) as problem:
            raise Flaw(Step.METRICS, f"version {entry.version} cannot be read: {describe(problem)}") from None
    return found


def _agreed(bundle: Bundle, story: Story) -> SuccessCriteria | None:
    """The criteria of the contract; None where there was none."""
    return None if story.deal is None else _criteria(bundle.criteria[story.deal.criteria])


def _criteria(body: bytes) -> SuccessCriteria:
    """Criteria as they are recorded; ValueError for others, and for more than can be meant before they are read."""
    document = from_canonical(body)
    # They may stand under this name, as in a file.
    inner = document.get("success_criteria", document) if isinstance(document, dict) else None
    listed = inner.get("criteria") if isinstance(inner, dict) else None
    if isinstance(listed, list) and len(listed) > MAX_CRITERIA:
        raise ValueError(f"there are more than {MAX_CRITERIA:,} criteria")
    return SuccessCriteria.model_validate(document)


def _check_metrics(bundle: Bundle, judged: list[_Judged], notes: list[str], *, run_code: bool) -> StepFinding:
    if not judged:
        return StepFinding(Step.METRICS, State.SKIPPED, "the results were erased")
    if len(bundle.work) < len(PARTS):
        return StepFinding(Step.METRICS, State.SKIPPED, "the work was erased, or a part of it")
    work = {part: _payload(part, bundle.work[part]) for part in PARTS}
    engine = VerificationEngine(custom=CustomCode() if run_code else None)
    again = total = 0
    for one in judged:
        not_rerun = _measured_again(engine, one, work, run_code=run_code)
        notes += not_rerun
        total += len(one.criteria.criteria)
        again += len(one.criteria.criteria) - len(not_rerun)
    state = State.OK if again or not total else State.SKIPPED
    return StepFinding(Step.METRICS, state, f"{again} of {total} values measured again")


def _payload(part: str, content: bytes) -> dict[str, Any]:
    try:
        # Not the fast reader: it would round large integers.
        payload = json.loads(content)
        same = payload_bytes(payload) == content
    except (ValueError, RecursionError) as problem:
        raise Flaw(Step.METRICS, f"work/{part}.json cannot be read: {describe(problem)}") from None
    if not isinstance(payload, dict) or not same:
        raise Flaw(Step.METRICS, f"work/{part}.json is not written as work is recorded")
    return payload


def _measured_again(
    engine: VerificationEngine, one: _Judged, work: Mapping[str, dict[str, Any]], *, run_code: bool
) -> list[str]:
    """Why some values were not measured again, a line each; raises Flaw for one that comes out otherwise."""
    prepared = engine.compile(one.criteria)
    found = engine.verify_sync(one.result.contract_id, work["input"], work["output"], prepared, work["metadata"])
    if not len(prepared.plan.rules) == len(one.result.criterion_results) == len(found.criterion_results):
        raise Flaw(Step.METRICS, f"{one.name}: the result is not one of these criteria")
    not_rerun = []
    own_names = {name for custom in one.criteria.custom_metrics for name in custom.metrics}
    for rule, number, stored, here in zip(
        prepared.plan.rules, prepared.slot_of, one.result.criterion_results, found.criterion_results, strict=True
    ):
        own = rule.criterion.expr is not None or rule.criterion.metric in own_names
        slot = prepared.slots[number]
        if own and not run_code:
            why = "the criteria's own code, which --run-code runs"
        else:
            why = _incomparable(slot, one.result, prepared.versions) or _otherwise(stored, here, own=own)
        if why:
            not_rerun.append(f"not rerun: {one.name}, {rule.id}: {why}")
        elif _amount(stored) != _amount(here):
            raise Flaw(
                Step.METRICS, f"{one.name}, {rule.id}: recorded is {_shown(stored)}, measured again {_shown(here)}"
            )
    return not_rerun


def _incomparable(slot: Slot, result: VerificationResult, versions: Mapping[str, str]) -> str:
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


def _otherwise(stored: CriterionResult, here: CriterionResult, *, own: bool) -> str:
    """Why two values of one version may differ with nobody at fault; empty when they may not."""
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


def _shown(judged: CriterionResult) -> str:
    return _amount(judged)[:200].decode(errors="replace")


def _check_judge(bundle: Bundle, judged: list[_Judged]) -> StepFinding:
    if not judged:
        return StepFinding(Step.JUDGE, State.SKIPPED, "the results were erased")
    for one in judged:
        result, entry = one.result, one.entry
        if rejudge(one.criteria, result).to_json() != one.kept:
            raise Flaw(Step.JUDGE, f"{one.name}: the judge comes to another verdict on the same values")
        said = (entry.criteria, entry.verdict, entry.success, entry.score, entry.bonus_micros, entry.penalty_micros)
        if said != (
            *(result.criteria_digest, result.verdict, result.success, result.exact),
            *(result.bonus_micros, result.penalty_micros),
        ):
            raise Flaw(Step.JUDGE, f"{one.name}: the log says another verdict than the result")
        digests = {"input": result.input_digest, "output": result.output_digest, "metadata": result.metadata_digest}
        for part, content in bundle.work.items():
            if digests[part] != sha256(content).hexdigest():
                raise Flaw(Step.JUDGE, f"{one.name}: the result is about another {part}")
    return fine(Step.JUDGE, f"{len(judged)} judged again, with the same result to the byte")


def _check_statement(bundle: Bundle, signed: Signed, story: Story, judged: list[_Judged]) -> StepFinding:
    latest = story.verdicts[-1]
    result = judged[-1].result if judged and judged[-1].entry is latest else None
    expected = statement_about(latest, story.about, bundle.work, result)
    if payload_bytes(signed.statement) != payload_bytes(expected):
        raise Flaw(Step.STATEMENT, "it says something else than the latest verdict")
    return fine(Step.STATEMENT, f"{expected['predicate']['result']}, {latest.outcome}, version {latest.version}")
