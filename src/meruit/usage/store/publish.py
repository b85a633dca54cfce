"""Make a change of a run known: its events, and an entry of the audit log where a claim changed."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from meruit.log.commitment import SALT_BYTES, commitment, usage_evidence_bytes
from meruit.log.entries import UsageEntry
from meruit.model.events import EventType
from meruit.model.metering import UsageRecord
from meruit.model.usage import Acknowledgement, UsageCode, UsageStatus, UsageVerdict
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.rows import StoredUsageRun


def contract_of(run_id: str) -> str:
    """The name under which the audit log numbers the entries of a run; no contract id contains a tab."""
    return f"usage\t{run_id}"


def publish(
    writing: WriteTransaction,
    tenant: str,
    before: UsageRecord,
    stored: StoredUsageRun,
    ack: Acknowledgement | None = None,
) -> StoredUsageRun:
    """Emit events about what changed, and add an audit entry where a claim changed."""
    record, was = stored.record, before.verdict
    verdict, what = record.verdict, f"{record.attempts}.{len(record.acknowledged)}"
    left = was.status is UsageStatus.VERIFIED and verdict.status is not UsageStatus.VERIFIED
    if left or verdict.withdrawn > was.withdrawn:
        emit(writing, tenant, EventType.USAGE_WITHDRAWN, record, f"{what}:withdrawn")
    kind = _STATUS_EVENTS.get(verdict.status)
    is_confirmed = verdict.status is UsageStatus.VERIFIED and was.is_imported and not verdict.is_imported
    if kind is not None and (verdict.status is not was.status or is_confirmed):
        emit(writing, tenant, kind, record, f"{what}:{verdict.status}")
    if ack is None and not is_logged(before, record):
        return stored
    salt = stored.salt or _new_salt(writing)
    number = writing.next_in_contract(tenant, contract_of(record.run.id))
    evidence = commitment(
        salt, usage_evidence_bytes(record.run.to_json(), (one.body for one in stored.observations or ()))
    )
    by, reason = ("", "") if ack is None else (ack.by, ack.reason)
    writing.append(
        UsageEntry(
            writing.now.written,
            tenant,
            record.run.id,
            number,
            verdict.status.value,
            verdict.code.value,
            record.attempts,
            evidence,
            by,
            reason,
        ),
        tenant,
        contract_of(record.run.id),
        number,
    )
    return msgspec.structs.replace(stored, salt=salt)


def is_logged(before: UsageRecord, after: UsageRecord) -> bool:
    """Whether the run became verified, was withdrawn, has another claim, or has conflicting evidence."""
    old, new = before.verdict, after.verdict
    conflicting = new.code is UsageCode.CONFLICTING_EVIDENCE and old.code is not new.code
    return conflicting or new.withdrawn > old.withdrawn or _claim_of(old) != _claim_of(new)


def load_entry_numbers(writing: WriteTransaction, tenant: str, run_ids: Sequence[str]) -> None:
    """Read with one query the number of the last audit entry of each run."""
    writing.look_up_contracts(tenant, [contract_of(one) for one in run_ids])


def emit(writing: WriteTransaction, tenant: str, kind: EventType, record: UsageRecord, what: str) -> int:
    """Emit an event with ids, statuses and counts, without contents."""
    data: dict[str, Any] = {
        "run_id": record.run.id,
        "status": record.verdict.status,
        "code": record.verdict.code,
        "attempts": record.attempts,
        "withdrawn": record.verdict.withdrawn,
        "imported": record.verdict.is_imported,
    }
    return writing.emit(tenant, kind, record.run.id, f"usage:{record.run.id}:{what}", data)


def _claim_of(verdict: UsageVerdict) -> tuple[object, ...] | None:
    """What payments rely on; it may change while the run stays verified."""
    if verdict.status is not UsageStatus.VERIFIED:
        return None
    return (verdict.tokens, verdict.reported_by, verdict.interval_min)


def _new_salt(writing: WriteTransaction) -> bytes:
    """Make a salt that cannot be guessed: each id holds 80 random bits."""
    return sha256(f"{writing.new_id('salt')}{writing.new_id('salt')}".encode()).digest()[:SALT_BYTES]


_STATUS_EVENTS = {
    UsageStatus.VERIFIED: EventType.USAGE_VERIFIED,
    UsageStatus.WARNING: EventType.USAGE_WARNING,
    UsageStatus.DATA_NOT_AVAILABLE: EventType.USAGE_UNAVAILABLE,
}
