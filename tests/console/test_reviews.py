"""The pages of reviews: one case at a time, blind, and what labels say."""

import re
import threading

import pytest
from tests.api.conftest import Deployment
from tests.console.conftest import Reader, SignIn
from tests.review.conftest import evaluate

from meruit.evaluations.evaluation import EvaluationRecord
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.review.results import CorrectedRate, ReviewResults
from meruit.review.service import ReviewRequest, Reviews
from meruit.review.store.read import read_labels


@pytest.fixture(scope="module")
def review_id(console: Deployment) -> str:
    evaluate(console.store, "replies", DEFAULT_TENANT, cases=40)
    reviews = Reviews(console.store, DEFAULT_TENANT)
    wanted = ReviewRequest(
        "polite",
        "replies",
        "right",
        question="Is it <b>polite</b>?",
        instructions="Be fair.\nTake your time.",
        random=20,
        seed=2,
    )
    made = reviews.create(wanted, by="test")
    for number in range(1, 13):
        reviews.label(made, number, labeller="zoe-labels", choice="yes", note="fine", by="test")
    return made.id


def number_on(page: str) -> str:
    return str(re.findall(r'name="number" value="(\d+)"', page)[0])


def label_next(reader: Reader, review_id: str, choice: str) -> str:
    number = number_on(reader.get(f"/reviews/{review_id}/label").text)
    done = reader.post(f"/reviews/{review_id}/label", number=number, choice=choice, note="why")
    assert done.status_code == 303, done.text
    return number


def test_a_case_is_shown_blind_and_labelled_by_one_key(console: Deployment, reader: SignIn, review_id: str) -> None:
    operator = reader(Role.OPERATOR)
    page = operator.get(f"/reviews/{review_id}/label")
    assert page.status_code == 200
    for hidden in ("replies", "word_count", "fine", "zoe-labels", "duration_ms"):
        assert hidden not in re.sub(r"<nav.*?</nav>", "", page.text, flags=re.DOTALL)
    assert "Is it &lt;b&gt;polite&lt;/b&gt;?" in page.text
    assert [*re.findall(r'value="(\w+)" data-key="(\d)"', page.text)] == [
        ("yes", "1"),
        ("no", "2"),
        ("cannot_tell", "3"),
    ]
    assert "<p>Be fair.</p><p>Take your time.</p>" in page.text
    first = label_next(operator, review_id, "no")
    after = operator.get(f"/reviews/{review_id}/label").text
    assert number_on(after) != first
    # The last label can be changed with one key.
    assert f'href="?case={first}" data-key="u"' in after
    assert number_on(operator.get(f"/reviews/{review_id}/label?case={first}").text) == first
    operator.post(f"/reviews/{review_id}/label", number=first, choice="cannot_tell")
    reviews = Reviews(console.store, DEFAULT_TENANT)
    kept = [one for one in reviews.labels(reviews.find(review_id)) if one.number == int(first)]
    assert [(one.choice, one.version) for one in kept] == [("cannot_tell", 2)]


def test_a_queue_ends_and_bad_forms_are_refused(console: Deployment, reader: SignIn, review_id: str) -> None:
    operator = reader(Role.OPERATOR)
    reviews = Reviews(console.store, DEFAULT_TENANT)
    short = ReviewRequest("short", reviews.find(review_id).evaluation_id, random=2, seed=1)
    review_id = reviews.create(short, by="test").id
    assert operator.post(f"/reviews/{review_id}/label", number="x", choice="yes").status_code == 400
    assert operator.post(f"/reviews/{review_id}/label", number="1", choice="maybe").status_code == 422
    assert operator.get(f"/reviews/{review_id}/label?case=99").status_code == 404
    while 'name="number"' in operator.get(f"/reviews/{review_id}/label").text:
        label_next(operator, review_id, "yes")
    assert "Nothing left to label" in operator.get(f"/reviews/{review_id}/label").text


def test_results_are_beside_the_raw_rates(console: Deployment, reader: SignIn, review_id: str) -> None:
    auditor = reader(Role.AUDITOR)
    listed = auditor.get("/reviews").text
    assert f"/reviews/{review_id}" in listed
    shown = auditor.get(f"/reviews/{review_id}").text
    assert "uncalibrated" in shown
    assert "Corrected, these cases" in shown
    assert "Label the next case" not in shown
    assert auditor.get(f"/reviews/{review_id}/label").status_code == 403
    evaluation = re.findall(r"/evaluations/(ev_\w+)", shown)[0]
    page = auditor.get(f"/evaluations/{evaluation}?show=all").text
    assert "Corrected by people's labels" in page or "Corrected by people&#39;s labels" in page
    reviews = Reviews(console.store, DEFAULT_TENANT)
    case = reviews.draws(reviews.find(review_id))[0].case_id
    outcome = re.findall(rf'/outcomes/(out_\w+)"><bdi>{case}</bdi>', page)
    if outcome:
        assert "fine" in auditor.get(f"/outcomes/{outcome[0]}").text


def test_figures_are_computed_beside_the_page_once_for_each_state_of_the_labels(
    console: Deployment, reader: SignIn, monkeypatch: pytest.MonkeyPatch, review_id: str
) -> None:
    asked: list[str] = []
    go, whole, figures = (
        threading.Event(),
        ReviewResults.corrected_rate,
        console.app._app.service.state["console"].figures,
    )

    def note(own: ReviewResults, found: EvaluationRecord, criterion: str | None) -> CorrectedRate:
        asked.append(found.id)
        go.wait()
        return whole(own, found, criterion)

    monkeypatch.setattr(ReviewResults, "corrected_rate", note)
    monkeypatch.setattr(figures, "patience_s", 0.0)
    reviews, one = Reviews(console.store, DEFAULT_TENANT), reader(Role.OPERATOR)
    reviews.label(reviews.find(review_id), 13, labeller="ben", choice="no", by="test")
    waiting = one.get(f"/reviews/{review_id}").text
    assert ("data-computing" in waiting, "Label the next case" in waiting) == (True, True)
    go.set()
    monkeypatch.setattr(figures, "patience_s", 60.0)
    for _ in range(2):
        assert "Agreement between people" in one.get(f"/reviews/{review_id}").text
    assert len(asked) == 1


def test_a_case_of_a_queue_is_read_alone(
    console: Deployment, reader: SignIn, monkeypatch: pytest.MonkeyPatch, review_id: str
) -> None:
    def refuse(*_values: object, **_named: object) -> None:
        raise AssertionError("all are read")

    monkeypatch.setattr(Reviews, "draws", refuse)
    monkeypatch.setattr(Reviews, "labels", refuse)
    operator = reader(Role.OPERATOR)
    numbers = [label_next(operator, review_id, choice) for choice in ("yes", "no")]
    assert number_on(operator.get(f"/reviews/{review_id}/label?case={numbers[0]}").text) == numbers[0]
    operator.post(f"/reviews/{review_id}/label", number=numbers[0], choice="cannot_tell")
    reviews = Reviews(console.store, DEFAULT_TENANT)
    who = re.findall(r'<progress[^>]*value="(\d+)"', operator.get(f"/reviews/{review_id}/label").text)
    done, last = reviews.last_labels(reviews.find(review_id), labeller_on(console, review_id, numbers[1]), 1)
    assert (done, len(last)) == (2, 1)
    assert who
    assert (str(last[0].number), last[0].choice, last[0].version) == (numbers[0], "cannot_tell", 2)


def labeller_on(console: Deployment, review_id: str, number: str) -> str:
    """Who labelled a case last."""
    reviews = Reviews(console.store, DEFAULT_TENANT)
    with console.store.database.reading() as connection:
        labels = read_labels(connection, DEFAULT_TENANT, reviews.find(review_id).id, int(number))
    return max(labels, key=lambda one: one.at).labeller


def test_other_tenants_and_agents_see_no_review(reader: SignIn, review_id: str) -> None:
    other = reader(Role.ADMIN, "other-tenant")
    assert other.get(f"/reviews/{review_id}").status_code == 404
    assert "There are no reviews yet." in other.get("/reviews").text
    assert other.post(f"/reviews/{review_id}/label", number="1", choice="yes").status_code == 404
    agent = reader(Role.AGENT, agent_id="robot")
    assert agent.get(f"/reviews/{review_id}").status_code == 403
    assert agent.get("/reviews").status_code == 403


def test_home_lists_a_review_that_waits_for_labels(reader: SignIn, review_id: str) -> None:
    assert f'href="/reviews/{review_id}/label"' in reader(Role.OPERATOR).get("/").text
    auditor = reader(Role.AUDITOR).get("/").text
    assert f'href="/reviews/{review_id}"' in auditor
    assert '/label"' not in auditor
