"""What the audit log holds: small entries of text and whole numbers, each with one byte form."""

from hashlib import sha256
from typing import TypeAlias

import msgspec

from meruit.model.record import Record

# Sorted keys, ASCII names, no floats: these bytes are RFC 8785's canonical form.
_WRITER = msgspec.json.Encoder(order="sorted")


class _Entry(Record, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    at: str
    """When, in UTC."""


class KeyEntry(_Entry, frozen=True, tag="key"):
    """A key may sign checkpoints from here on."""

    vkey: str


class CriteriaEntry(_Entry, frozen=True, tag="criteria"):
    """Criteria, committed before anybody is judged by them."""

    tenant: str
    digest: str


class _OfContract(_Entry, frozen=True):
    tenant: str
    outcome: str
    contract: str
    contract_seq: int
    """Without a gap in one contract, so that nothing can be left out."""


class EvidenceEntry(_OfContract, frozen=True, tag="evidence"):
    """What was handed in, as salted hashes."""

    input: str
    output: str
    metadata: str


class VerdictEntry(_OfContract, frozen=True, tag="verdict"):
    """What was decided on it, as a version that is never changed."""

    version: int
    criteria: str
    criteria_index: int
    """Where the log holds the criteria; before the evidence, or after it where a version says why."""
    evidence_index: int
    result: str
    """The whole result, as a salted hash."""
    verdict: str
    success: bool
    score: str
    """As a fraction."""
    bonus_micros: int
    penalty_micros: int
    reason: str
    """Why there is a version after the first."""


class ErasureEntry(_OfContract, frozen=True, tag="erasure"):
    """What of the evidence was erased; its hashes stay, and say nothing without their salt."""

    parts: tuple[str, ...]
    reason: str


Entry: TypeAlias = KeyEntry | CriteriaEntry | EvidenceEntry | VerdictEntry | ErasureEntry
OfContract: TypeAlias = EvidenceEntry | VerdictEntry | ErasureEntry

_READER = msgspec.json.Decoder(Entry)


def entry_bytes(entry: Entry) -> bytes:
    """The bytes that are hashed into the log."""
    return _WRITER.encode(entry)


def read_entry(data: bytes) -> Entry:
    """Read back what `entry_bytes` wrote; raises `msgspec.DecodeError` on anything else."""
    found: Entry = _READER.decode(data)
    return found


def criteria_digest_of(body: bytes) -> str:
    """The digest of criteria from their canonical bytes."""
    return sha256(body).hexdigest()
