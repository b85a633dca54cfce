"""A case of an evaluation in the terms of every other outcome: its evidence and its verdict. Pure."""

from meruit.log.entries import EvidenceEntry, SegmentEntry, VerdictEntry
from meruit.log.segment import CaseEntry


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
