"""Which outputs a judge prefers: over HTTP and as a page."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import pytest
from tests.api.conftest import Deployment, code_of
from tests.console.conftest import Reader, cookie_of, sign_in
from tests.evaluations.test_pairwise import CASES, CRITERIA, evaluate, longer
from tests.judges.asking import engine_of, judges_of, model
from tests.judges.endpoint import endpoint

from meruit.config import Settings
from meruit.console.app import build_pages
from meruit.console.background import BackgroundFigures
from meruit.evaluations.service import Evaluator
from meruit.judges.prefer import PairQuestion
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine


class Judged(NamedTuple):
    """A service with a judge and two evaluations."""

    deployment: Deployment
    key: str
    operator: Reader
    auditor: Reader
    ids: list[str]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    with endpoint(longer) as server:
        settings = Settings.model_validate({"judges": {"better": model(server.url)}})
        engine = engine_of(judges_of({"better": model(server.url)}))
        folder = tmp_path_factory.mktemp("judged") / "data"
        made = Deployment(Location(folder), engine, settings, pages=build_pages)
        lengths = {"old": [5] * CASES, "new": [9] * (CASES - 2) + [1, 5]}
        ids = [evaluate(made.store, DEFAULT_TENANT, name, one).id for name, one in lengths.items()]
        evaluate(made.store, DEFAULT_TENANT, "empty", [])
        keys = {role: made.key(role) for role in (Role.OPERATOR, Role.AUDITOR)}
        readers = {role: Reader(made, cookie_of(sign_in(made, key))) for role, key in keys.items()}
        found = Judged(made, keys[Role.OPERATOR], readers[Role.OPERATOR], readers[Role.AUDITOR], ids)
        answers_of(found).patience_s = 60.0
        yield found
        made.close()


def test_a_service_asks_its_judge_about_each_pair(judged: Judged) -> None:
    def ask(body: Mapping[str, object]) -> httpx.Response:
        return judged.deployment.ask("POST", "/v1/evaluations/old/preferences", key=judged.key, json=body)

    reply = ask({"others": ["new"], "judge": "better"})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    first, second = found["model"]["agents"]
    assert (second["wins"], second["losses"], second["ties"], found["open"]) == (CASES - 2, 1, 1, 0)
    assert (first["name"], second["name"], len(found["pairs"])) == ("old", "new", CASES)
    for body, refused in (
        ({"others": ["new"], "judge": "no-such"}, (400, "unknown_judge")),
        ({"others": ["empty"], "judge": "better"}, (409, "not_comparable")),
        ({"others": ["no-such"], "judge": "better"}, (404, "not_found")),
        ({"others": [], "judge": "better"}, (400, "bad_body")),
    ):
        reply = ask(body)
        assert (reply.status_code, code_of(reply)) == refused


def test_a_comparison_names_what_is_not_finished(judged: Judged) -> None:
    evaluator = Evaluator(Registrar(VerificationEngine(), judged.deployment.store), DEFAULT_TENANT)
    running = evaluator.start("running", evaluator.compile(CRITERIA))
    for other, times in ((running.id, 1), (judged.ids[1], 0)):
        assert judged.operator.get(f"/compare?e={judged.ids[0]}&e={other}").text.count("<dt>Not finished") == times


def test_a_page_asks_and_shows_what_the_judge_prefers(judged: Judged) -> None:
    path = f"/compare/preferences?e={judged.ids[0]}&e={judged.ids[1]}"
    assert "<option>better</option>" in judged.operator.get(path).text
    assert judged.auditor.get(path).status_code == 403
    assert judged.operator.get(f"/compare/preferences?e={judged.ids[0]}").status_code == 400
    assert path.replace("&", "&amp;") in judged.operator.get(path.replace("/preferences", "")).text
    address = ask_judge(judged, "Which?")
    page = judged.operator.get(address)
    assert page.status_code == 200, page.text
    assert "The judge prefers new to old" in page.text
    assert "c0" in page.text
    assert judged.operator.post("/compare/preferences", judge="better").status_code == 400


def ask_judge(judged: Judged, question: str, judge: str = "better") -> str:
    """Post a question; the address of the page with the answer."""
    fields = {"csrf": judged.operator.token(), "e": judged.ids, "judge": judge, "question": question, "rubric": "a\nb"}
    headers = {"cookie": judged.operator.cookie, "sec-fetch-site": "same-origin"}
    sent = judged.deployment.ask("POST", "/compare/preferences", headers=headers, data=fields)
    assert sent.status_code == 303, sent.text
    return str(sent.headers["location"])


def test_only_the_session_that_posted_a_question_has_it_asked(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = Evaluator.prefer

    def note(own: Evaluator, several: Any, question: PairQuestion, watch: Any) -> Any:
        asked.append(question.question)
        return whole(own, several, question, watch)

    monkeypatch.setattr(Evaluator, "prefer", note)
    address = ask_judge(judged, "Which is <b>warmer</b>?")
    other = Reader(judged.deployment, cookie_of(sign_in(judged.deployment, judged.deployment.key(Role.OPERATOR))))
    for wrong in (
        address[:-1],
        address + "0",
        address.replace("asked=", "asked=%C3%A9"),
        address.replace("&e=", "&f="),
    ):
        assert judged.operator.get(wrong).status_code in (200, 400)
    # The question is there to be asked, and was not.
    shown = other.get(address)
    assert (shown.status_code, "Which is &lt;b&gt;warmer&lt;/b&gt;?" in shown.text, asked) == (200, True, [])
    for _ in range(2):
        assert "The judge prefers new to old" in judged.operator.get(address).text
    assert asked == ["Which is <b>warmer</b>?"]


def test_a_judge_that_takes_long_is_asked_beside_the_page(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    go, whole, answers = threading.Event(), Evaluator.prefer, answers_of(judged)
    monkeypatch.setattr(answers, "patience_s", 0.0)

    def wait(own: Evaluator, several: Any, question: PairQuestion, watch: Callable[[int, int], None]) -> Any:
        watch(3, 9)
        go.wait()
        return whole(own, several, question, watch)

    monkeypatch.setattr(Evaluator, "prefer", wait)
    address = ask_judge(judged, "Which is shorter?")
    waiting = judged.operator.get(address).text
    assert ("data-computing" in waiting, 'name="judge"' in waiting) == (True, False)
    go.set()
    monkeypatch.setattr(answers, "patience_s", 60.0)
    ready = judged.operator.get(address).text
    assert ("data-computing" in ready, "The judge prefers new to old" in ready) == (False, True)


def test_a_refused_question_is_told_until_it_is_posted_again(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = Evaluator.prefer

    def note(own: Evaluator, several: Any, question: PairQuestion, watch: Any) -> Any:
        asked.append(question.judge)
        return whole(own, several, question, watch)

    monkeypatch.setattr(Evaluator, "prefer", note)
    for times in (1, 2):
        address = ask_judge(judged, "Which?", judge="no-such")
        assert [judged.operator.get(address).status_code for _ in range(2)] == [400, 400]
        assert len(asked) == times


def answers_of(judged: Judged) -> BackgroundFigures:
    """What judges of the service are asked."""
    found: BackgroundFigures = judged.deployment.app._app.service.state["console"].answers
    return found
