"""What a later version of a verdict rests on, compared with the audit log before the version is written."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Self

import msgspec

from meruit.errors import RecordTampered
from meruit.log.commitment import matches, matches_digest
from meruit.log.entries import Entry, EvidenceEntry, VerdictEntry, VersionSegmentEntry, read_entry
from meruit.log.segment import VersionEntry, segment_root, version_bytes
from meruit.outcomes.segment import open_versions
from meruit.outcomes.store.segments import fetch_segment
from meruit.outcomes.store.versions import VerdictRunReader
from meruit.store.log_guard import find_forged_leaf
from meruit.store.transaction import WriteTransaction

_ROW = (
    "SELECT seq, evidence_leaf, input_salt, output_salt, metadata_salt, leaf, salt, place FROM outcomes "
    "LEFT JOIN verdicts ON verdicts.tenant = outcomes.tenant AND outcome_id = outcomes.id AND verdicts.version = ? "
    "WHERE outcomes.tenant = ? AND outcomes.id = ?"
)
_LEAVES = "SELECT seq, body FROM log_leaves WHERE seq = ? OR seq = ?"


class VersionBasis(msgspec.Struct, frozen=True):
    """What was read of an outcome in order to judge it again."""

    version: int
    """The version before."""
    result: bytes | None = None
    """Its result as it was read; None where nothing was taken from it."""
    digests: tuple[str | None, ...] = ()
    """Of the input, the output and the metadata that were measured, as far as they were read."""

    @classmethod
    def of_content(cls, version: int, result: bytes | None, parts: tuple[bytes | None, ...]) -> Self:
        """The same from the parts themselves; those that are None were not read."""
        return cls(version, result, tuple(None if part is None else sha256(part).hexdigest() for part in parts))

    def require_committed(self, writing: WriteTransaction, tenant: str, outcome_id: str) -> None:
        """Raise RecordTampered where the log commits to something else.

        A database writer could otherwise show other evidence for as long as it is judged, and restore it.
        """
        differs = self._find_difference(writing, tenant, outcome_id)
        if differs is not None:
            raise RecordTampered(f"outcome {outcome_id} is not what the audit log commits to: {differs}")

    def _find_difference(self, writing: WriteTransaction, tenant: str, outcome_id: str) -> str | None:
        row = next(iter(writing.fetch(_ROW, self.version, tenant, outcome_id)), None)
        if row is None:
            return "version"
        seq, evidence_leaf, *salts, leaf, salt, place = row
        if leaf is None:
            in_runs = VerdictRunReader(writing.fetch, tenant).places(outcome_id, seq)
            held = next((one for one in in_runs if one.version == self.version), None)
            if held is None:
                return "version"
            leaf, place = held.leaf, held.place
        leaves = [(int(seq), bytes(body)) for seq, body in writing.fetch(_LEAVES, evidence_leaf, leaf)]
        if find_forged_leaf(writing, leaves) is not None:
            return "leaf"
        evidence, verdict = (
            self._find_committed(writing, tenant, outcome_id, _entry_at(leaves, seq), seq)
            for seq in (evidence_leaf, leaf)
        )
        if not isinstance(evidence, EvidenceEntry | VersionEntry) or evidence.outcome != outcome_id:
            return "evidence"
        if not isinstance(verdict, VerdictEntry | VersionEntry) or verdict.outcome != outcome_id:
            return "verdict"
        if place is not None:
            salt = open_versions(fetch_segment(writing, tenant, leaf).blob).content(place).salt
        committed = (evidence.input, evidence.output, evidence.metadata)
        return self._find_other_result(verdict, bytes(salt or b"")) or self._find_other_part(committed, salts)

    @staticmethod
    def _find_committed(
        writing: WriteTransaction, tenant: str, outcome_id: str, entry: Entry | None, leaf: int
    ) -> Entry | VersionEntry | None:
        """What a leaf says of the outcome: the entry itself, or what a segment that it commits to holds."""
        if not isinstance(entry, VersionSegmentEntry):
            return entry if getattr(entry, "tenant", None) == tenant else None
        held = [one.entry() for one in open_versions(fetch_segment(writing, tenant, leaf).blob).contents()]
        if entry.tenant != tenant or segment_root([version_bytes(one) for one in held]).hex() != entry.root:
            return None
        return next((one for one in held if one.outcome == outcome_id), None)

    def _find_other_result(self, verdict: VerdictEntry | VersionEntry, salt: bytes) -> str | None:
        if verdict.version != self.version:
            return "version"
        return None if self.result is None or matches(verdict.result, salt, self.result) else "result"

    # Any: salts as the database gives them.
    def _find_other_part(self, committed: tuple[str, ...], salts: list[Any]) -> str | None:
        for name, digest, hidden, salt in zip(
            ("input", "output", "metadata"), self.digests, committed, salts, strict=False
        ):
            if digest is not None and not matches_digest(hidden, bytes(salt or b""), digest):
                return name
        return None


def _entry_at(leaves: Sequence[tuple[int, bytes]], seq: int) -> Entry | None:
    return next((read_entry(body) for place, body in leaves if place == seq), None)
