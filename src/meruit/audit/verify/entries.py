"""Every check of a bundle that needs nothing but the bundle: no metric, no judge, no store."""

from collections.abc import Iterable, Sequence

import msgspec

from meruit.audit.bundle import (
    Bundle,
    read,
    unpack,
)
from meruit.audit.findings import AuditStepState, Findings, StepFinding, step_ok
from meruit.audit.verify.blobs import check_blobs
from meruit.audit.verify.history import OutcomeHistory
from meruit.audit.verify.labels import check_labels
from meruit.audit.verify.outcome_history import read_outcome_history
from meruit.audit.verify.signatures import (
    NO_WITNESSES,
    VerifiedSignatures,
    WitnessQuorum,
    about_key,
    check_consistency,
    check_inclusion,
    check_witnesses,
    verify_signatures,
)
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.note import VerifierKey


class BundleCheck(msgspec.Struct, frozen=True):
    """How far a bundle was verified."""

    passed: tuple[StepFinding, ...]
    flaw: BundleFlaw | None
    notes: tuple[str, ...]
    bundle: Bundle | None = None
    signed: VerifiedSignatures | None = None
    history: OutcomeHistory | None = None


def check(
    data: bytes,
    pinned: VerifierKey | None = None,
    trusted: str | None = None,
    quorum: WitnessQuorum = NO_WITNESSES,
) -> BundleCheck:
    """Every step that needs no metric and no judge; never raises.

    `pinned` is the key that must have signed, `trusted` the note of an older checkpoint of the same log, `quorum` the
    witnesses that must have cosigned the checkpoint.
    """
    passed: list[StepFinding] = []
    notes: list[str] = []
    bundle = signed = None
    try:
        files = unpack(data)
        bundle = read(files)
        passed.append(step_ok(AuditStep.BUNDLE, f"{len(files)} files"))
        signed = verify_signatures(bundle, pinned, trusted)
        passed.append(step_ok(AuditStep.SIGNATURE, f"by {signed.key.name}+{signed.key.key_id}"))
        notes.append(about_key(pinned))
        passed.append(check_witnesses(bundle.checkpoint, quorum))
        check_inclusion(bundle.entries, signed.checkpoint)
        passed.append(
            step_ok(AuditStep.INCLUSION, f"{len(bundle.entries)} entries in a log of {signed.checkpoint.size}")
        )
        notes += check_consistency(bundle.consistency.proof, signed)
        passed.append(step_ok(AuditStep.CONSISTENCY, f"from {signed.first.size} entries to {signed.checkpoint.size}"))
        story = read_outcome_history(bundle, signed)
        count = len(story.verdicts)
        passed.append(
            step_ok(AuditStep.SEQUENCE, f"{count} version{'s' * (count > 1)} of the verdict, nothing left out")
        )
        blobs = check_blobs(bundle, story)
        notes += check_labels(bundle.labels, story.labels)
        passed.append(step_ok(AuditStep.BLOBS, blobs))
    except BundleFlaw as flaw:
        return BundleCheck(passed=(*passed,), flaw=flaw, notes=(*notes,), bundle=bundle, signed=signed)
    return BundleCheck(passed=(*passed,), flaw=None, notes=(*notes,), bundle=bundle, signed=signed, history=story)


def findings(
    outcome: str | None, passed: Sequence[StepFinding], flaw: BundleFlaw | None, notes: Iterable[str]
) -> Findings:
    """All steps: those that were passed, the one that failed, and those that were not reached."""
    steps = [*passed]
    if flaw is not None:
        steps.append(StepFinding(flaw.step, AuditStepState.FAILED, str(flaw)))
    reached = {found.step for found in steps}
    steps += [StepFinding(step, AuditStepState.NOT_REACHED, "") for step in AuditStep if step not in reached]
    return Findings(outcome, None if flaw is None else flaw.step, steps, [*notes])
