"""Writing reviews: a queue that is drawn once, and labels that are only ever superseded."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select, update

from meruit.errors import InvalidReview, NotFound, ReviewConflict
from meruit.log.commitment import commitment
from meruit.log.entries import LabelEntry, NoteErasureEntry, ReviewEntry, read_entry
from meruit.model.events import EventType
from meruit.model.time import from_micros
from meruit.review.label import (
    CANNOT_TELL,
    Label,
    ReviewDraw,
    ReviewRecord,
    ReviewTerms,
    draws_digest,
    label_content,
)
from meruit.review.store.read import label_of, review_of, select_reviews
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction


@dataclass(frozen=True, slots=True)
class CreateReview:
    """Keep a queue; the same one again is found, not made a second time."""

    tenant: str
    name: str
    evaluation_id: str
    evaluation: str
    criterion: str | None
    terms: ReviewTerms
    draws: tuple[ReviewDraw, ...]
    population: int
    by: str

    def __call__(self, writing: WriteTransaction) -> ReviewRecord:
        """Write it, or find it; raises ReviewConflict where the name is taken by another."""
        found = writing.read(select_reviews(self.tenant).where(tables.reviews.c.name == self.name))
        if found:
            return self._go_on(writing, found[0])
        review_id = writing.new_id("rev")
        leaf = writing.append(
            ReviewEntry(
                writing.now.written,
                tenant=self.tenant,
                review=review_id,
                evaluation=self.evaluation_id,
                cases=len(self.draws),
                draw=self._digest(),
                by=self.by,
            ),
            self.tenant,
        )
        writing.insert(
            tables.reviews,
            tenant=self.tenant,
            id=review_id,
            name=self.name,
            evaluation_id=self.evaluation_id,
            criterion=self.criterion,
            terms=self.terms.to_json(),
            cases=len(self.draws),
            population=self.population,
            labels=0,
            leaf=leaf,
            created_at=writing.now.micros,
            created_by=self.by,
        )
        for draw in self.draws:
            writing.insert(
                tables.review_draws,
                tenant=self.tenant,
                review_id=review_id,
                number=draw.number,
                case_id=draw.case_id,
                repeat=draw.repeat,
                kind=draw.kind.value,
                stratum=draw.stratum,
                probability=draw.probability,
            )
        writing.emit(
            self.tenant,
            EventType.REVIEW_CREATED,
            review_id,
            f"{review_id}:created",
            {"review_id": review_id, "name": self.name, "evaluation_id": self.evaluation_id, "cases": len(self.draws)},
        )
        return ReviewRecord(
            id=review_id,
            name=self.name,
            evaluation_id=self.evaluation_id,
            evaluation=self.evaluation,
            criterion=self.criterion,
            terms=self.terms,
            cases=len(self.draws),
            labels=0,
            population=self.population,
            created_at=from_micros(writing.now.micros),
            created_by=self.by,
        )

    def _digest(self) -> str:
        """Of what is asked and drawn."""
        drawn = (
            (one.number, one.case_id, one.repeat, one.kind.value, one.stratum, one.probability) for one in self.draws
        )
        return draws_digest(self.criterion, self.terms, drawn)

    # Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
    def _go_on(self, writing: WriteTransaction, row: Any) -> ReviewRecord:
        found = review_of(row)
        table = tables.log_leaves
        (leaf,) = writing.read(select(table.c.body).where(table.c.seq == row.leaf))
        entry = read_entry(leaf.body)
        if found.evaluation_id != self.evaluation_id or getattr(entry, "draw", None) != self._digest():
            raise ReviewConflict(
                f"the review {self.name!r} exists already and asks something else; choose another name"
            )
        return found


@dataclass(frozen=True, slots=True)
class RecordLabel:
    """Keep what a person says of a case; the same again changes nothing."""

    tenant: str
    review_id: str
    number: int
    labeller: str
    choice: str
    note: str
    by: str
    salt: bytes
    note_salt: bytes

    def __call__(self, writing: WriteTransaction) -> Label:
        """Write it as the person's next version for the case; raises NotFound and InvalidReview."""
        review = self._review(writing)
        case = self._draw(writing, review)
        self._check(review)
        known = self._find_last(writing)
        if known is not None and (known.choice, known.note) == (self.choice, self.note):
            return known
        version = 1 if known is None else known.version + 1
        note_hash = commitment(self.note_salt, self.note.encode())
        labels = _LABELS.get(writing, self.tenant, self.review_id)
        number = (review.labels if labels is None else labels) + 1
        _LABELS.put(writing, number, self.tenant, self.review_id)
        leaf = writing.append(
            LabelEntry(
                writing.now.written,
                tenant=self.tenant,
                review=self.review_id,
                number=number,
                draw=self.number,
                labeller=self.labeller,
                version=version,
                label=commitment(self.salt, label_content(case, self.choice, note_hash)),
                by=self.by,
            ),
            self.tenant,
        )
        writing.insert(
            tables.review_labels,
            tenant=self.tenant,
            review_id=self.review_id,
            number=self.number,
            labeller=self.labeller,
            version=version,
            choice=self.choice,
            note=self.note,
            note_salt=self.note_salt,
            note_hash=note_hash,
            salt=self.salt,
            leaf=leaf,
            recorded_by=self.by,
            at=writing.now.micros,
        )
        writing.change(_COUNT, of_tenant=self.tenant, of_id=self.review_id, new_labels=number)
        writing.emit(
            self.tenant,
            EventType.REVIEW_LABELLED,
            self.review_id,
            f"{self.review_id}:{number}",
            {"review_id": self.review_id, "name": review.name, "labels": number, "labeller": self.labeller},
        )
        made = Label(
            number=self.number,
            labeller=self.labeller,
            version=version,
            choice=self.choice,
            note=self.note,
            at=from_micros(writing.now.micros),
            by=self.by,
            leaf=leaf,
        )
        _LAST.put(writing, made, self.tenant, self.review_id, self.number, self.labeller)
        return made

    def _review(self, writing: WriteTransaction) -> ReviewRecord:
        found = writing.read(select_reviews(self.tenant).where(tables.reviews.c.id == self.review_id))
        if not found:
            raise NotFound(f"no review {self.review_id!r}")
        return review_of(found[0])

    def _draw(self, writing: WriteTransaction, review: ReviewRecord) -> str:
        table = tables.review_draws
        found = writing.read(
            select(table.c.case_id, table.c.repeat).where(
                table.c.tenant == self.tenant, table.c.review_id == self.review_id, table.c.number == self.number
            )
        )
        if not found:
            raise NotFound(f"the review {review.name!r} has no case {self.number}; it has {review.cases}")
        return f"{found[0].case_id}#{found[0].repeat}"

    def _check(self, review: ReviewRecord) -> None:
        names = [*(choice.name for choice in review.terms.choices), CANNOT_TELL]
        if self.choice not in names:
            raise InvalidReview(f"{self.choice!r} is not a choice of {review.name!r}; it has {', '.join(names)}")
        if review.terms.labellers and self.labeller not in review.terms.labellers:
            raise InvalidReview(
                f"{self.labeller!r} is not assigned to {review.name!r}; it is for {', '.join(review.terms.labellers)}"
            )

    def _find_last(self, writing: WriteTransaction) -> Label | None:
        """What the person said last, this transaction's own labels included."""
        gathered = _LAST.get(writing, self.tenant, self.review_id, self.number, self.labeller)
        if gathered is not None:
            return gathered
        table = tables.review_labels
        rows = writing.read(
            select(table)
            .where(
                table.c.tenant == self.tenant,
                table.c.review_id == self.review_id,
                table.c.number == self.number,
                table.c.labeller == self.labeller,
            )
            .order_by(table.c.version.desc())
            .limit(1)
        )
        return label_of(rows[0]) if rows else None


@dataclass(frozen=True, slots=True)
class RecordLabels:
    """Keep several labels, or none where one of them is refused."""

    labels: tuple[RecordLabel, ...]

    def __call__(self, writing: WriteTransaction) -> list[Label]:
        """Write each of them; raises what the first refused one raises."""
        return [label(writing) for label in self.labels]


@dataclass(frozen=True, slots=True)
class EraseNotes:
    """Forget what a person wrote beside the labels of a case; the labels stay, and stay provable."""

    tenant: str
    review_id: str
    number: int
    reason: str
    by: str
    labeller: str | None = None
    """Only the notes of this person."""

    def __call__(self, writing: WriteTransaction) -> int:
        """Erase the notes of every version; returns how many there were. A second time does nothing."""
        table = tables.review_labels
        rows = writing.read(
            select(table.c.labeller, table.c.version).where(
                table.c.tenant == self.tenant,
                table.c.review_id == self.review_id,
                # An empty note has nothing to forget.
                table.c.number == self.number,
                table.c.note != "",
                *([] if self.labeller is None else [table.c.labeller == self.labeller]),
            )
        )
        for row in rows:
            place = {"of_number": self.number, "of_labeller": row.labeller, "of_version": row.version}
            writing.change(_ERASE_NOTE, of_tenant=self.tenant, of_review=self.review_id, **place)
        if rows:
            writing.append(
                NoteErasureEntry(
                    writing.now.written,
                    tenant=self.tenant,
                    review=self.review_id,
                    draw=self.number,
                    notes=len(rows),
                    reason=self.reason,
                    by=self.by,
                ),
                self.tenant,
            )
        return len(rows)


_ERASE_NOTE = (
    update(tables.review_labels)
    .where(
        tables.review_labels.c.tenant == bindparam("of_tenant"),
        tables.review_labels.c.review_id == bindparam("of_review"),
        tables.review_labels.c.number == bindparam("of_number"),
        tables.review_labels.c.labeller == bindparam("of_labeller"),
        tables.review_labels.c.version == bindparam("of_version"),
    )
    .values(note=None, note_salt=None)
)
_OF = (tables.reviews.c.tenant == bindparam("of_tenant"), tables.reviews.c.id == bindparam("of_id"))
_COUNT = update(tables.reviews).where(*_OF).values(labels=bindparam("new_labels"))
_LABELS = Rows[int]("review_labels")
"""How many labels a review has, those of this transaction included."""
_LAST = Rows[Label]("review_last_label")
