"""Verify a receipt offline: a verdict, or a case of an evaluation, is in the log that a key signed."""

import msgspec

from meruit.audit.bundle import CaseReceipt, Receipt
from meruit.audit.verify.signatures import NO_WITNESSES, WitnessQuorum, check_witnesses
from meruit.errors import AuditStep, BundleFlaw, NoteError
from meruit.log.entries import SegmentEntry, VerdictEntry, VersionSegmentEntry, entry_bytes, read_entry
from meruit.log.merkle import is_included, leaf_hash
from meruit.log.note import Checkpoint, VerifierKey, open_checkpoint
from meruit.log.segment import (
    CaseEntry,
    VersionEntry,
    case_bytes,
    is_in_segment,
    read_case,
    read_version,
    root_of,
    version_bytes,
)
from meruit.model.decoding import decode_json
from meruit.model.record import Record

RECEIPT_FORMAT = "meruit-receipt/1"
CASE_RECEIPT_FORMAT = "meruit-case-receipt/1"
MAX_RECEIPT_BYTES = 4 * 1024 * 1024


class ReceiptFinding(Record, frozen=True):
    """What a receipt proves."""

    outcome: str
    version: int
    verdict: str
    success: bool
    at: str
    """By the clock of the log's operator."""
    index: int
    size: int
    """Entries of the log that the checkpoint signs."""
    key: str
    witnesses: str


def verify_receipt(
    data: bytes, *, key: VerifierKey | None = None, quorum: WitnessQuorum = NO_WITNESSES
) -> ReceiptFinding:
    """Check signature, witnesses, inclusion and content; raises BundleFlaw with the step that fails."""
    receipt = _read(data)
    try:
        signer = VerifierKey.parse(receipt.vkey)
        if key is not None and signer != key:
            raise BundleFlaw(AuditStep.SIGNATURE, f"the receipt's key is {signer.vkey}, not the one that you gave")
        checkpoint = open_checkpoint(receipt.checkpoint, signer)
    except NoteError as problem:
        raise BundleFlaw(AuditStep.SIGNATURE, str(problem)) from None
    if checkpoint.origin != signer.name:
        raise BundleFlaw(AuditStep.SIGNATURE, f"the checkpoint is of another log than the key: {checkpoint.origin!r}")
    witnesses = check_witnesses(receipt.checkpoint, quorum)
    if not is_included(leaf_hash(receipt.entry), receipt.index, checkpoint.size, receipt.proof, checkpoint.root):
        raise BundleFlaw(AuditStep.INCLUSION, f"entry {receipt.index} is not in the log that the checkpoint signs")
    return _content(receipt, checkpoint, signer, witnesses.message)


def _read(data: bytes) -> Receipt | CaseReceipt:
    if len(data) > MAX_RECEIPT_BYTES:
        raise BundleFlaw(AuditStep.BUNDLE, f"a receipt has {MAX_RECEIPT_BYTES:,} bytes at most")
    try:
        kind = decode_json(data, _Format).format
        if kind == RECEIPT_FORMAT:
            return Receipt.from_json(data)
        if kind == CASE_RECEIPT_FORMAT:
            return CaseReceipt.from_json(data)
    except (ValueError, RecursionError) as problem:
        raise BundleFlaw(AuditStep.BUNDLE, f"it is not a receipt: {problem}") from None
    raise BundleFlaw(AuditStep.BUNDLE, f"its format is {kind[:100]!r}; this version reads {RECEIPT_FORMAT}")


class _Format(msgspec.Struct):
    format: str


def _content(
    receipt: Receipt | CaseReceipt, checkpoint: Checkpoint, signer: VerifierKey, witnesses: str
) -> ReceiptFinding:
    try:
        entry = read_entry(receipt.entry)
    except msgspec.DecodeError as problem:
        raise BundleFlaw(AuditStep.SEQUENCE, f"the entry cannot be read: {problem}") from None
    if entry_bytes(entry) != receipt.entry:
        raise BundleFlaw(AuditStep.SEQUENCE, "the entry is not in canonical form")
    place = (receipt.index, checkpoint.size, signer.vkey, witnesses)
    if isinstance(receipt, Receipt):
        if not isinstance(entry, VerdictEntry) or (entry.outcome, entry.version) != (receipt.outcome, receipt.version):
            raise BundleFlaw(AuditStep.SEQUENCE, "the entry is not the verdict that the receipt names")
        return ReceiptFinding(entry.outcome, entry.version, entry.verdict, entry.success, entry.at, *place)
    if not isinstance(entry, SegmentEntry | VersionSegmentEntry):
        raise BundleFlaw(AuditStep.SEQUENCE, "the entry is not a segment")
    proof, size = receipt.case, entry.cases if isinstance(entry, SegmentEntry) else entry.versions
    case = _read_held(proof.entry, entry)
    if case.outcome != receipt.outcome:
        raise BundleFlaw(AuditStep.SEQUENCE, "the case is not the one that the receipt names")
    if not is_in_segment(proof.entry, proof.place, size, proof.proof, root_of(entry.root)):
        raise BundleFlaw(AuditStep.SEQUENCE, "the segment does not hold the case")
    return ReceiptFinding(case.outcome, case.version, case.verdict, case.success, entry.at, *place)


def _read_held(written: bytes, segment: SegmentEntry | VersionSegmentEntry) -> CaseEntry | VersionEntry:
    """What a segment says of one case or version; raises BundleFlaw."""
    held: CaseEntry | VersionEntry
    try:
        if isinstance(segment, SegmentEntry):
            held = read_case(written)
            same = case_bytes(held) == written
        else:
            held = read_version(written)
            same = version_bytes(held) == written
    except msgspec.DecodeError as problem:
        raise BundleFlaw(AuditStep.SEQUENCE, f"the case cannot be read: {problem}") from None
    if not same:
        raise BundleFlaw(AuditStep.SEQUENCE, "the case is not in canonical form")
    return held
