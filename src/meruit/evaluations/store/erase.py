"""Erasing one case of an evaluation: its segment is written again without it, and the log keeps what says nothing."""

from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import bindparam, select, tuple_, update

from meruit.errors import NotFound
from meruit.evaluations.segment import pack, unpack
from meruit.judges.records import forget_votes
from meruit.log.entries import PARTS, RESULT, ErasureEntry
from meruit.model.events import EventType
from meruit.outcomes.records import Discard, ErasureResult, release
from meruit.store import tables
from meruit.store.blobs import in_database
from meruit.store.rows import Rows
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A segment that this transaction has written again."""

    address: str
    blob: bytes


_REWRITTEN = Rows[_Rewritten]("rewritten_segment")


@dataclass(frozen=True, slots=True)
class EraseCase:
    """The work and the result of a case, to be forgotten."""

    store: Store
    tenant: str
    outcome_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ErasureResult:
        """Erase what is there; raises NotFound. A second time does nothing."""
        cases, segments = tables.evaluation_cases, tables.evaluation_segments
        query = (
            select(
                cases.c.evaluation_id,
                cases.c.case_id,
                cases.c.repeat,
                cases.c.segment,
                cases.c.place,
                segments.c.address,
            )
            .join(
                segments,
                (segments.c.tenant == cases.c.tenant)
                & (segments.c.evaluation_id == cases.c.evaluation_id)
                & (segments.c.number == cases.c.segment),
            )
            .where(cases.c.tenant == self.tenant, cases.c.outcome_id == self.outcome_id)
        )
        rows = writing.read(query)
        if not rows:
            raise NotFound(f"no outcome {self.outcome_id!r}")
        row = rows[0]
        key = (self.tenant, row.evaluation_id, row.segment)
        # Another caller of this group may have erased a neighbour.
        before = _REWRITTEN.get(writing, *key) or _Rewritten(row.address, self._blob(row.address))
        content = unpack(before.blob)
        if content[row.place].erased is not None:
            return ErasureResult(self.outcome_id, (), ())
        forget_votes(writing, self.tenant, sha256(bytes(content[row.place].output)).hexdigest())
        # What a labeller wrote may quote the work.
        writing.change(
            _FORGET_NOTES,
            of_tenant=self.tenant,
            of_evaluation=row.evaluation_id,
            of_case=row.case_id,
            of_repeat=row.repeat,
        )
        content[row.place] = content[row.place].erase()
        part = in_database(pack(content))
        writing.keep(part.blob(self.tenant))
        release(writing, self.tenant, [before.address])
        writing.change(
            _MOVE,
            of_tenant=self.tenant,
            of_evaluation=row.evaluation_id,
            of_number=row.segment,
            new_address=part.address,
        )
        _REWRITTEN.put(writing, _Rewritten(part.address, part.content), *key)
        number = writing.next_in_contract(self.tenant, self.outcome_id)
        parts = (*PARTS, RESULT)
        writing.append(
            ErasureEntry(
                writing.now.written, self.tenant, self.outcome_id, self.outcome_id, number, parts, self.reason
            ),
            self.tenant,
            self.outcome_id,
            number,
        )
        writing.emit(
            self.tenant,
            EventType.OUTCOME_ERASED,
            self.outcome_id,
            f"{self.outcome_id}:erased:{number}",
            {
                "outcome_id": self.outcome_id,
                "contract_id": self.outcome_id,
                "evaluation_id": row.evaluation_id,
                "parts": parts,
                "reason": self.reason,
            },
        )
        return ErasureResult(self.outcome_id, parts, (before.address,))

    def _blob(self, address: str) -> bytes:
        with self.store.database.reading() as connection:
            return self.store.blobs.content(connection, self.tenant, address)


def erase_case(store: Store, tenant: str, outcome_id: str, reason: str) -> ErasureResult:
    """Erase one case, with the blob that held it and what the write-ahead log still holds."""
    erased = store.recorder.write(EraseCase(store, tenant, outcome_id, reason))
    store.recorder.write(Discard(tenant, erased.addresses, store.blobs))
    store.database.truncate_wal()
    return erased


_ABOUT_CASE = (
    select(tables.review_draws.c.review_id, tables.review_draws.c.number)
    .join(
        tables.reviews,
        (tables.reviews.c.tenant == tables.review_draws.c.tenant)
        & (tables.reviews.c.id == tables.review_draws.c.review_id),
    )
    .where(
        tables.reviews.c.tenant == bindparam("of_tenant"),
        tables.reviews.c.evaluation_id == bindparam("of_evaluation"),
        tables.review_draws.c.case_id == bindparam("of_case"),
        tables.review_draws.c.repeat == bindparam("of_repeat"),
    )
)
_FORGET_NOTES = (
    update(tables.review_labels)
    .where(
        tables.review_labels.c.tenant == bindparam("of_tenant"),
        tables.review_labels.c.note != "",
        tuple_(tables.review_labels.c.review_id, tables.review_labels.c.number).in_(_ABOUT_CASE),
    )
    .values(note=None, note_salt=None)
)
_MOVE = (
    update(tables.evaluation_segments)
    .where(
        tables.evaluation_segments.c.tenant == bindparam("of_tenant"),
        tables.evaluation_segments.c.evaluation_id == bindparam("of_evaluation"),
        tables.evaluation_segments.c.number == bindparam("of_number"),
    )
    .values(address=bindparam("new_address"))
)
