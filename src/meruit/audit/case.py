"""What segments hold in the terms of every other outcome: its evidence and its verdict. Pure."""

from meruit.log.entries import EvidenceEntry, SegmentEntry, VerdictEntry, VersionSegmentEntry
from meruit.log.segment import CaseEntry, VersionEntry


def evidence_of_case(case: CaseEntry, segment: SegmentEntry) -> EvidenceEntry:
    """What was handed in, as if it had an entry of its own."""
    return EvidenceEntry(
        segment.at,
        tenant=segment.tenant,
        outcome=case.outcome,
        contract=case.outcome,
        contract_seq=0,
        input=case.input,
        output=case.output,
        metadata=case.metadata,
    )


def verdict_of_case(case: CaseEntry, segment: SegmentEntry, index: int) -> VerdictEntry:
    """What was decided on it, as if it had an entry of its own; `index` is that of the segment's entry."""
    return VerdictEntry(
        segment.at,
        tenant=segment.tenant,
        outcome=case.outcome,
        contract=case.outcome,
        contract_seq=0,
        version=case.version,
        criteria=segment.criteria,
        criteria_index=segment.criteria_index,
        evidence_index=index,
        result=case.result,
        verdict=case.verdict,
        success=case.success,
        score=case.score,
        bonus_micros=case.bonus_micros,
        penalty_micros=case.penalty_micros,
        reason="",
    )


def evidence_of_version(version: VersionEntry, segment: VersionSegmentEntry) -> EvidenceEntry:
    """What a first version was reached on, as if it had an entry of its own."""
    return EvidenceEntry(
        segment.at,
        tenant=segment.tenant,
        outcome=version.outcome,
        contract=version.contract,
        contract_seq=0,
        input=version.input,
        output=version.output,
        metadata=version.metadata,
    )


def verdict_of_version(version: VersionEntry, segment: VersionSegmentEntry, index: int) -> VerdictEntry:
    """A version of the verdict, as if it had an entry of its own; `index` is that of the segment's entry."""
    return VerdictEntry(
        segment.at,
        tenant=segment.tenant,
        outcome=version.outcome,
        contract=version.contract,
        contract_seq=0,
        version=version.version,
        criteria=segment.criteria,
        criteria_index=segment.criteria_index,
        evidence_index=index if version.evidence_index is None else version.evidence_index,
        result=version.result,
        verdict=version.verdict,
        success=version.success,
        score=version.score,
        bonus_micros=version.bonus_micros,
        penalty_micros=version.penalty_micros,
        reason=segment.reason,
    )
