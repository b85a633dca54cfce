"""Writing the outcomes of one batch: a segment for all of them, and a row for each."""

from collections.abc import Sequence

import msgspec

from meruit.log.entries import RESULT
from meruit.model.events import EventType
from meruit.model.time import to_micros
from meruit.outcomes.segment import VersionContent, pack, pack_version
from meruit.outcomes.store.segments import write_segment
from meruit.outcomes.store.write import NewOutcome, RecordAll, RecordedVersion, commit_criteria
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


class RecordTogether(RecordAll, frozen=True):
    """Outcomes of one batch, by the same criteria: one entry of the log commits to their evidence and verdicts."""

    def __call__(self, writing: WriteTransaction) -> list[RecordedVersion]:
        """Write all of them."""
        self.prepare(writing)
        # In their order: what one adds to the history of its agent counts for the next.
        checked = [one.check_history(writing) for one in self.outcomes]
        outcomes = [msgspec.structs.replace(one, idempotency_key=self.idempotency_key) for one in checked]
        first = outcomes[0]
        criteria = commit_criteria(writing, self.tenant, first.criteria, first.result.criteria_digest)
        draft = pack([pack_version(_content(one)) for one in outcomes])
        leaf = write_segment(
            writing, self.tenant, draft, criteria, reason="", outcomes=[one.id for one in outcomes], evidence=True
        )
        for place, one in enumerate(outcomes):
            one.insert_row(writing, leaf)
            _insert_verdict(writing, one, leaf, place)
        self._emit(writing, outcomes, leaf, criteria[0])
        return [
            RecordedVersion(one.id, 1, leaf, None if after is one else after.result)
            for one, after in zip(self.outcomes, checked, strict=True)
        ]

    def _emit(self, writing: WriteTransaction, outcomes: Sequence[NewOutcome], leaf: int, digest: str) -> None:
        segment = f"segment:{leaf}"
        writing.emit(
            self.tenant,
            EventType.OUTCOMES_RECORDED,
            segment,
            segment,
            {
                "leaf": leaf,
                "criteria_digest": digest,
                "outcomes": [
                    {
                        "outcome_id": one.id,
                        "contract_id": one.contract,
                        "agent_id": one.labels.agent_id,
                        "consumer_id": one.labels.consumer_id,
                        "domain": one.labels.domain,
                        "version": 1,
                        "verdict": one.result.verdict,
                        "success": one.result.success,
                    }
                    for one in outcomes
                ],
            },
        )


def _content(new: NewOutcome) -> VersionContent:
    result = new.result
    return VersionContent(
        outcome=new.id,
        contract=new.contract,
        version=1,
        verdict=result.verdict.value,
        success=result.success,
        score=result.exact,
        bonus_micros=result.bonus_micros,
        penalty_micros=result.penalty_micros,
        result=new.result_json or result.to_json(),
        salt=new.salt(RESULT),
        evidence=new.commit_to_evidence(),
    )


def _insert_verdict(writing: WriteTransaction, new: NewOutcome, leaf: int, place: int) -> None:
    result = new.result
    writing.insert(
        tables.verdicts,
        tenant=new.tenant,
        outcome_id=new.id,
        version=1,
        criteria_digest=result.criteria_digest,
        verdict=result.verdict.value,
        success=int(result.success),
        score=result.score,
        reason="",
        created_at=to_micros(result.verified_at),
        leaf=leaf,
        salt=None,
        result=None,
        place=place,
    )
