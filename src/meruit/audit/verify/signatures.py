"""Check who signed a bundle: checkpoints, statement, witnesses; and that its entries are in the signed log."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from meruit.audit.bundle import (
    CHECKPOINT,
    FIRST_CHECKPOINT,
    KEY,
    STATEMENT,
    Bundle,
    LoggedEntry,
    short,
)
from meruit.audit.findings import AuditStepState, StepFinding, step_ok
from meruit.errors import AuditStep, BundleFlaw, MeruitError
from meruit.log.cosignature import WitnessKey, cosignatures
from meruit.log.merkle import is_consistent, is_included, leaf_hash
from meruit.log.note import Checkpoint, VerifierKey, open_checkpoint, split_note
from meruit.log.statement import open_envelope


class VerifiedSignatures(msgspec.Struct, frozen=True):
    """What the key vouches for."""

    key: VerifierKey
    checkpoint: Checkpoint
    first: Checkpoint
    trusted: Checkpoint | None
    """The older checkpoint that the verifier kept."""
    statement: dict[str, Any]


class WitnessQuorum(msgspec.Struct, frozen=True):
    """Which witnesses a reader trusts, and how many of them must have cosigned."""

    keys: tuple[WitnessKey, ...] = ()
    required: int = 0


NO_WITNESSES = WitnessQuorum()


def check_witnesses(note: str, quorum: WitnessQuorum) -> StepFinding:
    """Whether enough of the witnesses cosigned the checkpoint; raises BundleFlaw."""
    others = len(split_note(note)[1]) - 1
    if not quorum.keys and not quorum.required:
        counted = (
            f"{others} cosignature{'s' * (others != 1)}, not checked: give --witness" if others else "none asked for"
        )
        return StepFinding(AuditStep.WITNESSES, AuditStepState.SKIPPED, counted)
    found = cosignatures(note, quorum.keys)
    if len(found) < quorum.required:
        raise BundleFlaw(
            AuditStep.WITNESSES,
            f"{len(found)} of your {len(quorum.keys)} witnesses cosigned the checkpoint, and {quorum.required} must: "
            "ask the operator for a newer export; if they never sign, the log was rolled back or forked",
        )
    names = ", ".join(f"{one.witness.name} at {_date(one.time_s)}" for one in found)
    return step_ok(AuditStep.WITNESSES, f"{len(found)} of {len(quorum.keys)}{': ' if names else ''}{names}")


def _date(time_s: int) -> str:
    """A time that a witness signed, for a message; it may be any number."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{time_s} s after 1970"


def about_key(pinned: VerifierKey | None) -> str:
    """A note on where the key comes from."""
    if pinned is None:
        return "the key is the bundle's own: compare key.txt with what the operator publishes, or give --key"
    return "the key is the one that you gave"


def verify_signatures(bundle: Bundle, pinned: VerifierKey | None, trusted: str | None) -> VerifiedSignatures:
    """Open everything that must be signed by the key; raises BundleFlaw."""
    key = _open(KEY, lambda: VerifierKey.parse(bundle.key.removesuffix("\n")))
    if bundle.key != f"{key.vkey}\n":
        raise BundleFlaw(AuditStep.SIGNATURE, "key.txt holds more than a key")
    if pinned is not None and key != pinned:
        raise BundleFlaw(AuditStep.SIGNATURE, f"the bundle's key is {key.vkey}, not the one that you gave")
    signed = VerifiedSignatures(
        key=key,
        checkpoint=_open(CHECKPOINT, lambda: open_checkpoint(bundle.checkpoint, key)),
        first=_open(FIRST_CHECKPOINT, lambda: open_checkpoint(bundle.first_checkpoint, key)),
        trusted=None
        if trusted is None
        else _open("the checkpoint that you kept", lambda: open_checkpoint(trusted, key)),
        statement=_open(STATEMENT, lambda: open_envelope(bundle.statement, key)),
    )
    for one in (signed.checkpoint, signed.first, signed.trusted):
        if one is not None and one.origin != key.name:
            raise BundleFlaw(
                AuditStep.SIGNATURE, f"a checkpoint is of the log {short(one.origin)}, the key is of {key.name}"
            )
    return signed


_T = TypeVar("_T")


def _open(name: str, opening: Callable[[], _T]) -> _T:
    try:
        return opening()
    except MeruitError as problem:
        raise BundleFlaw(AuditStep.SIGNATURE, f"{name}: {problem}") from None


def check_inclusion(entries: Sequence[LoggedEntry], checkpoint: Checkpoint) -> None:
    """Check that every entry is in the signed log; raises BundleFlaw."""
    for entry in entries:
        if not is_included(leaf_hash(entry.body), entry.index, checkpoint.size, entry.proof, checkpoint.root):
            raise BundleFlaw(AuditStep.INCLUSION, f"entry {entry.index} is not in the log that checkpoint.txt signs")


def check_consistency(proof: Sequence[bytes], signed: VerifiedSignatures) -> list[str]:
    """What could not be compared, as notes."""
    first, last, trusted = signed.first, signed.checkpoint, signed.trusted
    if not is_consistent(first.size, last.size, proof, first.root, last.root):
        raise BundleFlaw(
            AuditStep.CONSISTENCY,
            f"the log of {last.size} entries does not continue the one of {first.size}: it was rewritten",
        )
    if trusted is None:
        return []
    for one in (first, last):
        if one.size == trusted.size:
            if one.root != trusted.root:
                raise BundleFlaw(
                    AuditStep.CONSISTENCY,
                    f"the checkpoint that you kept has another root at {trusted.size} entries: two histories",
                )
            return [f"the checkpoint that you kept is the bundle's at {trusted.size} entries"]
    sizes = f"{first.size} and {last.size}"
    return [f"the checkpoint that you kept, of {trusted.size} entries, cannot be compared: the bundle's have {sizes}"]
