"""Reading reviews: by name or id, their queue, and what each person said last."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, select

from meruit.errors import NotFound
from meruit.model.decoding import decode_json
from meruit.model.time import from_micros
from meruit.review.label import DrawKind, Label, ReviewDraw, ReviewRecord, ReviewTerms
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.suggestions import nearest


# Any, here and below: SQLAlchemy's rows have their columns as untyped attributes.
def review_of(row: Any) -> ReviewRecord:
    """A review from its row, joined with its evaluation."""
    return ReviewRecord(
        id=row.id,
        name=row.name,
        evaluation_id=row.evaluation_id,
        evaluation=row.evaluation,
        criterion=row.criterion,
        terms=decode_json(row.terms, ReviewTerms),
        cases=row.cases,
        labels=row.labels,
        population=row.population,
        created_at=from_micros(row.created_at),
        created_by=row.created_by,
    )


def draw_of(row: Any) -> ReviewDraw:
    """A case of a queue from its row."""
    return ReviewDraw(
        number=row.number,
        case_id=row.case_id,
        repeat=row.repeat,
        kind=DrawKind(row.kind),
        stratum=row.stratum,
        probability=row.probability,
    )


def label_of(row: Any) -> Label:
    """A label from its row."""
    return Label(
        number=row.number,
        labeller=row.labeller,
        version=row.version,
        choice=row.choice,
        note=row.note or "",
        note_erased=row.note is None,
        at=from_micros(row.at),
        by=row.recorded_by,
        leaf=row.leaf,
    )


def select_reviews(tenant: str) -> Select[Any]:
    """Reviews of a tenant with the names of their evaluations."""
    reviews, evaluations = tables.reviews, tables.evaluations
    return (
        select(reviews, evaluations.c.name.label("evaluation"))
        .join(evaluations, and_(evaluations.c.tenant == reviews.c.tenant, evaluations.c.id == reviews.c.evaluation_id))
        .where(reviews.c.tenant == tenant)
    )


def find_review(connection: Connection, tenant: str, name_or_id: str) -> ReviewRecord:
    """The review of that name or id; raises NotFound, naming the nearest."""
    table = tables.reviews
    for column in (table.c.name, table.c.id):
        row = connection.execute(select_reviews(tenant).where(column == name_or_id)).first()
        if row is not None:
            return review_of(row)
    names = connection.execute(select(table.c.name).where(table.c.tenant == tenant).limit(MAX_PAGE)).scalars()
    raise NotFound(f"no review is named {name_or_id!r}{nearest(name_or_id, [*names])}; `meruit review list` shows them")


def page_reviews(
    connection: Connection, tenant: str, *, evaluation_id: str | None = None, before: str | None = None, limit: int = 50
) -> list[ReviewRecord]:
    """The newest reviews, of those older than the id `before`."""
    table = tables.reviews
    query = select_reviews(tenant).order_by(table.c.id.desc()).limit(min(limit, MAX_PAGE))
    if evaluation_id is not None:
        query = query.where(table.c.evaluation_id == evaluation_id)
    if before is not None:
        query = query.where(table.c.id < before)
    return [review_of(row) for row in connection.execute(query)]


def read_draws(connection: Connection, tenant: str, review_id: str) -> list[ReviewDraw]:
    """The queue of a review, in its order."""
    table = tables.review_draws
    query = select(table).where(table.c.tenant == tenant, table.c.review_id == review_id).order_by(table.c.number)
    return [draw_of(row) for row in connection.execute(query)]


def find_draw(connection: Connection, tenant: str, review_id: str, case_id: str, repeat: int) -> ReviewDraw | None:
    """The draw of a case; None where it is not in the queue."""
    table = tables.review_draws
    query = select(table).where(
        table.c.tenant == tenant,
        table.c.review_id == review_id,
        table.c.case_id == case_id,
        table.c.repeat == repeat,
    )
    row = connection.execute(query).first()
    return None if row is None else draw_of(row)


def find_numbered_draw(connection: Connection, tenant: str, review_id: str, number: int) -> ReviewDraw | None:
    """The draw of a number; None where the queue has none."""
    table = tables.review_draws
    query = select(table).where(table.c.tenant == tenant, table.c.review_id == review_id, table.c.number == number)
    row = connection.execute(query).first()
    return None if row is None else draw_of(row)


def last_labels(
    connection: Connection, tenant: str, review_id: str, labeller: str, limit: int
) -> tuple[int, list[Label]]:
    """How many cases a person labelled, and what they said last, the newest first."""
    table = tables.review_labels
    own = (table.c.tenant == tenant, table.c.review_id == review_id, table.c.labeller == labeller)
    latest = (
        select(table.c.number, func.max(table.c.version).label("version"))
        .where(*own)
        .group_by(table.c.number)
        .subquery()
    )
    newest = (
        select(table)
        .join(latest, (latest.c.number == table.c.number) & (latest.c.version == table.c.version))
        .where(*own)
        .order_by(table.c.at.desc(), table.c.leaf.desc())
        .limit(limit)
    )
    done = connection.execute(select(func.count(func.distinct(table.c.number))).where(*own)).scalar_one()
    return int(done), [label_of(row) for row in connection.execute(newest)]


def read_labels(
    connection: Connection, tenant: str, review_id: str, number: int | None = None, *, superseded: bool = False
) -> list[Label]:
    """What each person said last, or all that they ever said, in the order of the queue."""
    table = tables.review_labels
    query = select(table).where(table.c.tenant == tenant, table.c.review_id == review_id)
    if number is not None:
        query = query.where(table.c.number == number)
    rows = connection.execute(query.order_by(table.c.number, table.c.labeller, table.c.version)).all()
    return [label_of(row) for row in (rows if superseded else _last_versions(rows))]


def _last_versions(rows: Sequence[Row[Any]]) -> Iterator[Row[Any]]:
    latest = {(row.number, row.labeller): row for row in rows}
    yield from latest.values()


def find_next(connection: Connection, tenant: str, review: ReviewRecord, labeller: str) -> ReviewDraw | None:
    """The first case that this person did not label and that still needs people; None where there is none."""
    draws, labels = tables.review_draws, tables.review_labels
    counted = (
        select(
            labels.c.number,
            func.count(func.distinct(labels.c.labeller)).label("people"),
            func.count().filter(labels.c.labeller == labeller).label("own"),
        )
        .where(labels.c.tenant == tenant, labels.c.review_id == review.id)
        .group_by(labels.c.number)
        .subquery()
    )
    query = (
        select(draws)
        .outerjoin(counted, counted.c.number == draws.c.number)
        .where(
            draws.c.tenant == tenant,
            draws.c.review_id == review.id,
            func.coalesce(counted.c.people, 0) < review.terms.per_case,
            func.coalesce(counted.c.own, 0) == 0,
        )
        .order_by(draws.c.number)
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None else draw_of(row)


def count_records(connection: Connection, tenant: str) -> tuple[int, int]:
    """How many reviews there are, and labels with all their versions."""
    reviews, labels = (
        select(func.count()).select_from(table).where(table.c.tenant == tenant).scalar_subquery()
        for table in (tables.reviews, tables.review_labels)
    )
    found = connection.execute(select(reviews, labels)).one()
    return int(found[0]), int(found[1])
