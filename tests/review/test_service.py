"""Reviews: queues are drawn once, cases are shown blind, labels are only ever superseded."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update
from tests.review.conftest import CASES, TENANT, evaluate, number_of, truth_of

from meruit.audit.check import begin_check, check_log
from meruit.errors import InvalidCase, InvalidReview, MeruitError, NotFound, ReviewConflict, UnknownName
from meruit.evaluations.reader import Evaluations, erase_case
from meruit.log.commitment import matches
from meruit.log.entries import LabelEntry, NoteErasureEntry, ReviewEntry, read_entry
from meruit.review.draw import CaseKey, draw_cases
from meruit.review.label import CANNOT_TELL, DrawKind, LabelChoice
from meruit.review.service import MAX_DRAWN, MAX_TEXT, ReviewRequest, Reviews, has_split_votes
from meruit.store import tables
from meruit.store.store import Store


def label_all(reviews: Reviews, name: str, labeller: str = "ann", *, most: int = 10_000) -> int:
    """Label as a person who knows the truth; answers how many."""
    review, done = reviews.find(name), 0
    cases = {draw.number: draw.case_id for draw in reviews.draws(review)}
    while done < most and (case := reviews.next_case(review, labeller)) is not None:
        choice = "yes" if truth_of(number_of(cases[case.number])) else "no"
        reviews.label(review, case.number, labeller=labeller, choice=choice, by="test")
        done += 1
    return done


@given(
    st.lists(st.sampled_from(["", "de", "en", "fr"]), min_size=8, max_size=60),
    st.integers(8, 60),
    st.integers(0, 2**32),
)
def test_every_case_is_drawn_with_the_probability_it_has(strata: list[str], wanted: int, seed: int) -> None:
    keys = [CaseKey(f"c{number}", 0) for number in range(len(strata))]
    wanted = min(wanted, len(keys))
    of = dict(zip(keys, strata, strict=True))
    drawn = draw_cases(keys, of, random=wanted, purposive={DrawKind.DOUBT: keys[:3]}, seed=seed)
    assert drawn == draw_cases(keys, of, random=wanted, purposive={DrawKind.DOUBT: keys[:3]}, seed=seed)
    assert [one.number for one in drawn] == [*range(1, len(drawn) + 1)]
    assert len({one.case_id for one in drawn}) == len(drawn)
    random = [one for one in drawn if one.kind is DrawKind.RANDOM]
    assert len(random) == wanted
    for stratum in {*strata}:
        of_it = [one for one in random if one.stratum == stratum]
        assert {one.probability for one in of_it} == {len(of_it) / strata.count(stratum)}
    assert all(one.probability is None for one in drawn if one.kind is not DrawKind.RANDOM)


def test_each_case_is_drawn_as_often_as_its_probability_says() -> None:
    keys = [CaseKey(f"c{number}", 0) for number in range(20)]
    times = dict.fromkeys(keys, 0)
    for seed in range(1_000):
        for one in draw_cases(keys, {}, random=5, purposive={}, seed=seed):
            times[CaseKey(one.case_id, one.repeat)] += 1
    assert all(abs(count / 1_000 - 0.25) < 0.055 for count in times.values())


def test_a_queue_is_drawn_once_and_committed_to(reviews: Reviews, judged_store: Store) -> None:
    wanted = ReviewRequest("tone", "first", "right", random=40, doubt=5, disagreement=4, seed=7, stratum_tag="lang")
    made = reviews.create(wanted, by="test")
    assert made == reviews.create(wanted, by="test") == reviews.find("tone") == reviews.find(made.id)
    assert (made.population, made.criterion, made.evaluation) == (CASES, "right", "first")
    draws = reviews.draws(made)
    kinds = [one.kind for one in draws]
    assert kinds.count(DrawKind.RANDOM) == 40
    # The origin of four cases claims another verdict; chance may have drawn some of them already.
    assert {one.case_id for one in draws} >= {"c57", "c107"}
    with judged_store.database.reading() as connection:
        bodies = connection.execute(select(tables.log_leaves.c.body).where(tables.log_leaves.c.tenant == TENANT))
        entries = [read_entry(body) for body in bodies.scalars()]
    committed = [one for one in entries if isinstance(one, ReviewEntry) and one.review == made.id]
    assert [one.cases for one in committed] == [len(draws)]
    with pytest.raises(ReviewConflict):
        reviews.create(msgspec.structs.replace(wanted, random=41), by="test")
    assert made.id in {one.id for one in reviews.page()}
    assert reviews.page(before=made.id, limit=1) == [] or reviews.page(before=made.id)[0].id < made.id


def test_labellers_see_the_work_and_no_verdict(reviews: Reviews) -> None:
    review = reviews.create(ReviewRequest("blind", "first", random=5, seed=1), by="test")
    case = reviews.next_case(review, "ann")
    assert case is not None
    assert case.parts.keys() == {"input", "output"}
    shown = msgspec.json.encode(case).decode()
    for hidden in ("verdict", "statuses", "tags", "lang", "first", "claimed", "score", "random"):
        assert hidden not in shown
    assert [choice.key for choice in case.choices] == ["y", "n", "?"]
    assert reviews.case(review, case.number) == case
    with pytest.raises(NotFound):
        reviews.case(review, 99)


def test_a_label_is_superseded_and_never_edited(reviews: Reviews, judged_store: Store) -> None:
    review = reviews.create(ReviewRequest("undo", "first", random=3, seed=2), by="test")
    first = reviews.label(review, 1, labeller="ann", choice="yes", note="clear", by="cli")
    assert first == reviews.label(review, 1, labeller="ann", choice="yes", note="clear", by="cli")
    second = reviews.label(review, 1, labeller="ann", choice=CANNOT_TELL, by="cli")
    assert (first.version, second.version) == (1, 2)
    assert reviews.labels(review) == [second]
    assert reviews.labels(review, superseded=True) == [first, second]
    assert reviews.find("undo").labels == 2
    draw = reviews.draws(review)[0]
    assert reviews.labels_of_case(review, draw.case_id) == [second]
    assert reviews.labels_of_case(review, "broken") == []
    with judged_store.database.reading() as connection:
        leaf = connection.execute(
            select(tables.log_leaves.c.body).where(tables.log_leaves.c.seq == first.leaf)
        ).scalar_one()
        row = connection.execute(select(tables.review_labels).where(tables.review_labels.c.leaf == first.leaf)).one()
    entry = read_entry(leaf)
    assert isinstance(entry, LabelEntry)
    assert (entry.labeller, entry.number, entry.version, entry.by) == ("ann", 1, 1, "cli")
    content = {"case": f"{draw.case_id}#0", "choice": "yes", "note": row.note_hash}
    assert matches(entry.label, row.salt, msgspec.json.encode(content, order="sorted"))
    assert matches(row.note_hash, row.note_salt, b"clear")


def label_rows(store: Store, review_id: str) -> list[Any]:
    with store.database.reading() as connection:
        return [*connection.execute(select(tables.review_labels).where(tables.review_labels.c.review_id == review_id))]


def test_a_note_is_erased_and_its_label_stays_provable(reviews: Reviews, judged_store: Store) -> None:
    review = reviews.create(ReviewRequest("forget", "first", random=3, seed=5), by="test")
    for labeller, choice in (("ann", "yes"), ("ann", "no"), ("bob", "no")):
        reviews.label(review, 1, labeller=labeller, choice=choice, note=f"quotes {choice}", by="cli")
    assert reviews.erase_notes(review, 1, reason="asked for", by="cli", labeller="ann") == 2
    assert reviews.erase_notes(review, 1, reason="asked for", by="cli", labeller="ann") == 0
    found = [(one.labeller, one.choice, one.note, one.note_erased) for one in reviews.labels(review)]
    assert found == [("ann", "no", "", True), ("bob", "no", "quotes no", False)]
    rows = label_rows(judged_store, review.id)
    assert [(row.note, row.note_salt) for row in rows if row.labeller == "ann"] == [(None, None)] * 2
    with judged_store.database.reading() as connection:
        assert check_log(connection, begin_check(judged_store)).problems == []
        bodies = connection.execute(select(tables.log_leaves.c.body).where(tables.log_leaves.c.tenant == TENANT))
        entries = [read_entry(body) for body in bodies.scalars()]
    (erasure,) = [one for one in entries if isinstance(one, NoteErasureEntry)]
    assert (erasure.review, erasure.draw, erasure.notes, erasure.reason) == (review.id, 1, 2, "asked for")
    with pytest.raises(NotFound):
        reviews.erase_notes(review, 4, reason="r", by="cli")
    reviews.label(review, 2, labeller="ann", choice="yes", by="cli")
    assert reviews.erase_notes(review, 2, reason="r", by="cli") == 0


def test_a_changed_note_is_noticed(reviews: Reviews, judged_store: Store) -> None:
    review = reviews.create(ReviewRequest("tamper", "first", random=1, seed=5), by="test")
    reviews.label(review, 1, labeller="ann", choice="yes", note="was", by="cli")

    def write(text: str) -> list[str]:
        change = update(tables.review_labels).where(tables.review_labels.c.review_id == review.id).values(note=text)
        judged_store.recorder.write(lambda writing: writing.change(change))
        with judged_store.database.reading() as connection:
            return [one.message for one in check_log(connection, begin_check(judged_store)).problems]

    assert any("note" in one for one in write("is"))
    assert write("was") == []


def test_notes_of_an_erased_case_go_with_it(reviews: Reviews, judged_store: Store) -> None:
    evaluate(judged_store, "doomed", cases=4)
    review = reviews.create(ReviewRequest("doomed", "doomed", random=2, seed=5), by="test")
    for number in (1, 2):
        reviews.label(review, number, labeller="ann", choice="yes", note="quotes the work", by="cli")
    reader = Evaluations(judged_store, TENANT)
    gone = reviews.draws(review)[0]
    erase_case(judged_store, TENANT, reader.case(reader.find("doomed"), gone.case_id).summary.outcome_id, "asked for")
    assert [(one.number, one.note_erased) for one in reviews.labels(review)] == [(1, True), (2, False)]


def test_several_people_label_each_case_and_resume(reviews: Reviews) -> None:
    review = reviews.create(
        ReviewRequest("pairs", "first", random=12, seed=3, labellers=("ann", "bob", "cem"), per_case=2), by="test"
    )
    assert label_all(reviews, "pairs", "ann", most=4) == 4
    assert reviews.progress(review, "ann").own == 4
    assert label_all(reviews, "pairs", "ann") == 8
    assert label_all(reviews, "pairs", "bob", most=5) == 5
    assert label_all(reviews, "pairs", "cem") == 7
    assert label_all(reviews, "pairs", "bob") == 0
    progress = reviews.progress(review)
    assert (progress.cases, progress.labelled, progress.cannot_tell) == (12, 12, 0)
    assert progress.labellers == ("ann", "bob", "cem")
    assert progress.agreement.agreed == 1
    with pytest.raises(InvalidReview):
        reviews.next_case(review, "eve")
    with pytest.raises(InvalidReview):
        reviews.label(review, 1, labeller="eve", choice="yes", by="test")


def test_a_tenant_sees_no_review_of_another(reviews: Reviews, judged_store: Store) -> None:
    review = reviews.create(ReviewRequest("own", "first", random=2, seed=4), by="test")
    other = Reviews(judged_store, "other")
    assert "own" not in {one.name for one in other.page()}
    for name in ("own", review.id):
        with pytest.raises(NotFound):
            other.find(name)
    with pytest.raises(NotFound):
        other.label(review, 1, labeller="ann", choice="yes", by="test")
    assert other.labels(review) == []
    assert other.create(ReviewRequest("own", "first", random=2, seed=4), by="test").id != review.id


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (ReviewRequest("x", "none", random=1), NotFound),
        (ReviewRequest("x", "first", "nope", random=1), UnknownName),
        (ReviewRequest("", "first", random=1), InvalidCase),
        (ReviewRequest("x", "first"), InvalidReview),
        (ReviewRequest("x", "first", random=CASES + 1), InvalidReview),
        (ReviewRequest("x", "first", random=3, stratum_tag="lang"), InvalidReview),
        (ReviewRequest("x", "first", random=MAX_DRAWN + 1), InvalidReview),
        (ReviewRequest("x", "first", random=1, shows=()), InvalidReview),
        (ReviewRequest("x", "first", random=1, shows=("verdict",)), InvalidReview),
        (ReviewRequest("x", "first", random=1, per_case=0), InvalidReview),
        (ReviewRequest("x", "first", random=1, per_case=2, labellers=("a",)), InvalidReview),
        (ReviewRequest("x", "first", random=1, question="?" * (MAX_TEXT + 1)), InvalidReview),
        (ReviewRequest("x", "first", random=1, choices=(LabelChoice("a", "a", meets=True),)), InvalidReview),
    ],
)
def test_what_cannot_be_asked_is_refused(reviews: Reviews, wanted: ReviewRequest, error: type[MeruitError]) -> None:
    with pytest.raises(error):
        reviews.create(wanted, by="test")


@pytest.mark.parametrize(
    "second",
    [
        LabelChoice("a", "b", meets=False),
        LabelChoice("b", "a", meets=False),
        LabelChoice("b", "b", meets=True),
        LabelChoice("b", "", meets=False),
        LabelChoice("b", " ", meets=False),
        LabelChoice("b", "?", meets=False),
        LabelChoice(CANNOT_TELL, "b", meets=False),
    ],
)
def test_choices_differ_in_name_key_and_meaning(reviews: Reviews, second: LabelChoice) -> None:
    choices = (LabelChoice("a", "a", meets=True), second)
    with pytest.raises(InvalidReview):
        reviews.create(ReviewRequest("x", "first", random=1, choices=choices), by="test")


def test_a_label_that_does_not_fit_is_refused(reviews: Reviews) -> None:
    review = reviews.create(ReviewRequest("fits", "first", random=2, seed=5), by="test")
    with pytest.raises(InvalidReview):
        reviews.label(review, 1, labeller="ann", choice="maybe", by="test")
    with pytest.raises(NotFound):
        reviews.label(review, 3, labeller="ann", choice="yes", by="test")
    with pytest.raises(InvalidCase):
        reviews.label(review, 1, labeller="", choice="yes", by="test")
    with pytest.raises(InvalidReview):
        reviews.label(review, 1, labeller="ann", choice="yes", note="x" * (MAX_TEXT + 1), by="test")
    assert reviews.labels(review) == []


def test_the_cases_of_a_review_are_drawn_again_for_another_evaluation(reviews: Reviews) -> None:
    made = reviews.create(ReviewRequest("of-first", "first", random=20, seed=6), by="test")
    again = reviews.create(ReviewRequest("of-second", "second", same_cases_as="of-first"), by="test")
    assert [(one.case_id, one.probability) for one in reviews.draws(again)] == [
        (one.case_id, one.probability) for one in reviews.draws(made)
    ]
    assert again.terms.same_cases_as == made.id
    with pytest.raises(InvalidReview):
        reviews.create(ReviewRequest("x", "second", same_cases_as="of-first", random=3), by="test")


def test_votes_are_split_only_where_usable_ones_differ() -> None:
    def details(*votes: tuple[str, str]) -> dict[str, object]:
        return {"judge": {"votes": [{"answer": answer, "status": status} for answer, status in votes]}}

    assert has_split_votes(details(("yes", "usable"), ("no", "usable")))
    assert not has_split_votes(details(("yes", "usable"), ("no", "refused")))
    assert not has_split_votes({"judge": "broken"})
    assert not has_split_votes(None)
