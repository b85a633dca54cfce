"""The check of a store, beyond contracts: agent runs, tokens, evaluations, reviews, judges and evidence files."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from sqlalchemy import delete, insert, select, update
from tests.judges.test_records import NOW
from tests.review.conftest import evaluate
from tests.usage.metering import Place, attempt

from meruit.audit.check import LogCheck, StoreCheck, begin_check, check_log, check_store
from meruit.errors import RecordTampered, VerificationRejected
from meruit.gate.gate import Gate
from meruit.gate.verdict import Rejected
from meruit.judges.store import CalibratedJudge, RecordCalibration, StoredVotes
from meruit.judges.vote_records import CallCost, JudgeCall
from meruit.model.usage import Tokens, UsageCode, UsageStatus
from meruit.model.vote import Vote, VoteStatus
from meruit.outcomes.service import Registrar, Submission
from meruit.review.service import ReviewRequest, Reviews
from meruit.store import tables
from meruit.store.blobs import INLINE_BYTES
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.usage.progress import FOLD_FROM
from meruit.verify.engine import VerificationEngine

TENANT = "acme"
VOTE = Vote(
    key="k1",
    voter="m",
    ordinal=1,
    stage=0,
    status=VoteStatus.USABLE,
    answer="yes",
    reason="",
    api="openai",
    model_asked="m",
    model="m",
    parameters={},
    prompt_digest="p",
    order=[],
    raw="yes",
    problem=None,
    input_tokens=1,
    output_tokens=1,
    latency_ms=1,
    asked_at=NOW,
    cached=False,
    repaired=False,
)


class Out(BaseModel):
    """Any answer will do."""

    n: int

    def verify(self) -> "Out":
        return self


class Never(Out):
    def verify(self) -> "Out":
        raise VerificationRejected("no")


def cast_vote(store: Store, vote: Vote = VOTE) -> None:
    call = JudgeCall(TENANT, "ev", "m", "m-1", "out", "", 10, NOW, key=vote.key)
    asyncio.run(StoredVotes(store).finish(call, vote, CallCost(1, 1, 0)))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.open(Location(tmp_path_factory.mktemp("filled")))
    evaluate(store, "first", TENANT, cases=6)
    reviews = Reviews(store, TENANT)
    review = reviews.create(ReviewRequest("labels", "first", random=3), by="me")
    for draw in reviews.draws(review):
        reviews.label(review, draw.number, labeller="ann", choice="yes", by="me")
    store.recorder.write(RecordCalibration(TENANT, (CalibratedJudge("j", "v1", 60, 0.9),), "me"))
    cast_vote(store)
    place = Place(store, TENANT)
    place.write(place.record())
    assert place.looked(attempt(10), attempt(80)).verdict.status is UsageStatus.VERIFIED
    gate = Gate(Out, store=store, tenant=TENANT, run_id="g")
    asyncio.run(gate.submit({"n": 1}))
    registrar = Registrar(VerificationEngine(), store)
    large = {"text": "x" * (INLINE_BYTES + 1)}
    criteria = registrar.compile(
        {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}
    )
    registrar.record_sync(TENANT, registrar.judge_sync(criteria, Submission({}, large, {}), TENANT))
    store.recorder.write(lambda _: None, sign_now=True)
    yield store
    store.close()


# Any, here and below: tables and statements of SQLAlchemy.
def places(store: Store, *statements: Any) -> set[tuple[str, str]]:
    """Code and table of each problem after changes that are undone again."""
    with store.database.writer.connect() as connection:
        begun = connection.begin()
        for statement in statements:
            connection.execute(statement)
        try:
            found = check_log(connection, begin_check(store))
        finally:
            begun.rollback()
    return {(one.code, one.where.split(" ")[0]) for one in found.problems}


def test_a_store_of_every_kind_is_sound(filled: Store) -> None:
    found: LogCheck = check_store(filled)
    assert (found.problems, found.unsigned) == ([], 0)


def flipped(store: Store, table: Any, column: str) -> Any:
    """A statement that changes one byte, character or number of a column in the first row."""
    with store.database.reading() as connection:
        row = connection.execute(select(table).where(table.c[column].is_not(None)).limit(1)).one()
    value = getattr(row, column)
    if isinstance(value, bytes):
        value = bytes([value[0] ^ 1]) + value[1:]
    elif isinstance(value, str):
        value = chr(ord(value[0]) ^ 1) + value[1:] if value else "x"
    else:
        value += 1
    keys = [one == getattr(row, one.name) for one in table.primary_key.columns]
    return update(table).where(*keys).values({column: value})


@pytest.mark.parametrize(
    ("table", "column", "named"),
    [
        *((tables.submissions, one, "submissions") for one in ("candidate", "said", "outcome", "counted", "salt")),
        *((tables.usage_runs, one, "usage_runs") for one in ("body", "salt", "status")),
        (tables.usage_observations, "body", "usage_runs"),
        *((tables.usage_account_totals, one, "usage_account_totals") for one in ("runs", "tokens", "unattributed")),
        *((tables.evaluation_segments, one, "evaluation_segments") for one in ("address", "cases")),
        *((tables.evaluation_cases, one, "evaluation_segments") for one in ("verdict", "success", "outcome_id")),
        *(
            (tables.evaluation_cases, one, "evaluation_segments")
            for one in ("score", "statuses", "faults", "latency_ms")
        ),
        *((tables.evaluation_figures, one, "evaluation_figures") for one in ("content", "cases", "rate")),
        *((tables.reviews, one, "reviews") for one in ("terms", "cases", "evaluation_id")),
        *((tables.review_draws, one, "reviews") for one in ("probability", "stratum", "kind")),
        *((tables.review_labels, one, "review_labels") for one in ("choice", "salt", "recorded_by")),
        *((tables.judge_calibrations, one, "judge_calibrations") for one in ("labels", "kappa", "judge")),
        *((tables.judge_votes, one, "judge_votes") for one in ("body", "salt", "leaf")),
        *((tables.outcomes, one, "outcomes") for one in ("verdict", "version", "score", "input_salt")),
        *((tables.blobs, one, "blobs") for one in ("content", "size")),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_one_changed_byte_is_named(filled: Store, table: Any, column: str, named: str) -> None:
    if (table, column) == (tables.reviews, "terms"):
        # One bit of JSON is a syntax error, which is a problem too; a changed question is the subtle one.
        with filled.database.reading() as connection:
            terms = bytes(connection.execute(select(tables.reviews.c.terms)).scalar_one())
        statement: Any = update(tables.reviews).values(terms=terms.replace(b'"yes"', b'"yep"', 1))
    else:
        statement = flipped(filled, table, column)
    found = places(filled, statement)
    assert ({"blobs": "blob", "evaluation_figures": "derived"}.get(named, "row"), named) in found


def test_figures_that_were_changed_with_their_signature_are_named(filled: Store) -> None:
    """The signature of other figures, of the same evaluation, does not help."""
    figures, cases = tables.evaluation_figures, tables.evaluation_cases
    with filled.database.reading() as connection:
        content = bytes(connection.execute(select(figures.c.content)).scalar_one())
    better = msgspec.json.decode(content)
    better["summary"]["overall"]["cases"] += 1
    changed = update(figures).values(content=msgspec.json.encode(better))
    assert places(filled, changed) == {("derived", "evaluation_figures")}
    # Costs of cases are not in the log; the figures that were kept are.
    assert places(filled, update(cases).values(cost_micros=1)) == {("derived", "evaluation_figures")}
    assert places(filled, update(figures).values(cost_micros=1)) == {("derived", "evaluation_figures")}


# Any: JSON of several shapes.
def progress_changed(store: Store, **changed: Any) -> Any:
    """A statement that changes fields of the progress of a run."""
    with store.database.reading() as connection:
        kept = connection.execute(select(tables.usage_runs.c.progress)).scalars().all()
    (progress,) = [msgspec.json.decode(one) for one in kept if one is not None]
    assert changed.keys() <= progress.keys()
    encoded = msgspec.json.encode(progress | changed)
    return update(tables.usage_runs).where(tables.usage_runs.c.progress.is_not(None)).values(progress=encoded)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A run that was observed so often that its progress is kept."""
    store = Store.open(Location(tmp_path_factory.mktemp("observed")))
    place = Place(store, TENANT)
    place.write(place.record())
    place.looked(*(attempt(10 + 70 * number) for number in range(FOLD_FROM + 2)))
    yield store
    store.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"early": 900},
        {"count": 3},
        {"latest_at": "2020-01-01T00:00:00Z"},
        {"fold": {}},
        {"give_up_h": 1},
        {"times": {}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_changed_progress_is_named(observed: Store, changed: dict[str, Any]) -> None:
    assert check_store(observed).problems == []
    assert places(observed, progress_changed(observed, **changed)) == {("row", "usage_runs")}
    # What is not kept is read again from the observations.
    assert places(observed, update(tables.usage_runs).values(progress=None)) == set()


def test_a_run_goes_on_soundly_after_a_conflict(store: Store) -> None:
    place = Place(store, TENANT)
    place.write(place.record())
    several = [attempt(10 + 70 * number) for number in range(FOLD_FROM - 1)]
    place.looked(*several, attempt(1200, Tokens(1, 1), name=several[0].id))
    assert place.looked(attempt(1270)).verdict.code is UsageCode.CONFLICTING_EVIDENCE
    assert place.row().progress is not None
    assert check_store(store).problems == []


@pytest.mark.parametrize(
    "table",
    [
        *(tables.submissions, tables.usage_observations, tables.evaluation_segments, tables.evaluation_cases),
        *(tables.reviews, tables.review_draws, tables.review_labels),
    ],
    ids=lambda table: table.name,
)
def test_a_deleted_row_is_found(filled: Store, table: Any) -> None:
    assert places(filled, delete(table))


def test_a_deleted_submission_that_is_judged_again_is_named(tmp_path: Path) -> None:
    """A later row does not stand for the one that is gone, and neither does a copy of another row."""
    store = Store.open(Location(tmp_path))
    gate, submissions = Gate(Never, store=store, tenant=TENANT, run_id="g"), tables.submissions
    asyncio.run(gate.submit({"n": 1}, submission_id="a"))
    asyncio.run(gate.submit({"n": 2}, submission_id="b"))
    with store.database.writer.begin() as connection:
        row, other = connection.execute(select(submissions).order_by(submissions.c.number)).all()
        connection.execute(delete(submissions).where(submissions.c.number == row.number))
    again = asyncio.run(Gate(Never, store=store, tenant=TENANT, run_id="g").submit({"n": 1}, submission_id="a"))
    assert isinstance(again, Rejected)
    gone = ("row", f"submissions of entry {row.leaf}")
    assert gone in {(one.code, one.where) for one in check_store(store).problems}
    with store.database.writer.begin() as connection:
        connection.execute(insert(submissions).values(**{**other._mapping, "submission_id": "copy"}))
    assert gone in {(one.code, one.where) for one in check_store(store).problems}
    store.close()


def test_a_changed_evidence_file_is_named(filled: Store, tmp_path: Path) -> None:
    (file,) = (one for one in (filled.database.location.folder / "blobs").rglob("*") if one.is_file())
    content = file.read_bytes()
    try:
        file.write_bytes(b"y" + content[1:])
        assert places(filled) == {("blob", "blobs")}
        file.unlink()
        assert places(filled) == {("blob", "blobs")}
    finally:
        file.write_bytes(content)


def test_a_changed_vote_decides_nothing(tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path))
    cast_vote(store)
    votes = StoredVotes(store)
    assert asyncio.run(votes.find(TENANT, "k1")) == VOTE
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.judge_votes).values(body=VOTE.to_json().replace(b'"yes"', b'"no"')))
    with pytest.raises(RecordTampered) as refused:
        asyncio.run(votes.find(TENANT, "k1"))
    assert refused.value.code == "record_tampered"
    store.close()


def test_a_check_goes_on_while_the_store_is_written_to(tmp_path: Path) -> None:
    """Between any two slices, something is recorded; nothing of it is called a contradiction."""
    store = Store.open(Location(tmp_path))
    cast_vote(store)
    place = Place(store, TENANT)
    check, slices = StoreCheck(store.blobs), 0
    while True:
        with store.database.reading() as connection:
            if not check.check_slice(connection):
                break
        slices += 1
        place.write(place.record(f"r{slices}"))
        place.looked(attempt(10, Tokens(1, slices)), attempt(80, Tokens(1, slices)), run_id=f"r{slices}")
        store.recorder.write(RecordCalibration(TENANT, (CalibratedJudge("j", "v1", slices, 0.9),), "me"))
        cast_vote(store)
    assert check.result().problems == []
    assert slices > len(tables.metadata.tables) // 4
    store.close()
