"""Which outputs a judge prefers: over HTTP and as a page."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import httpx
import pytest
from tests.api.conftest import Deployment, code_of
from tests.console.conftest import Reader, cookie_of, sign_in
from tests.evaluations.test_pairwise import CASES, evaluate, longer
from tests.judges.asking import engine_of, judges_of, model
from tests.judges.endpoint import endpoint

from meruit.config import Settings
from meruit.console.app import build_pages
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.store.location import Location


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
        yield Judged(made, keys[Role.OPERATOR], readers[Role.OPERATOR], readers[Role.AUDITOR], ids)
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


def test_a_page_asks_and_shows_what_the_judge_prefers(judged: Judged) -> None:
    path = f"/compare/preferences?e={judged.ids[0]}&e={judged.ids[1]}"
    assert "<option>better</option>" in judged.operator.get(path).text
    assert judged.auditor.get(path).status_code == 403
    assert judged.operator.get(f"/compare/preferences?e={judged.ids[0]}").status_code == 400
    assert path.replace("&", "&amp;") in judged.operator.get(path.replace("/preferences", "")).text
    fields = {"csrf": judged.operator.token(), "e": judged.ids, "judge": "better", "question": "Which?", "rubric": ""}
    headers = {"cookie": judged.operator.cookie, "sec-fetch-site": "same-origin"}
    page = judged.deployment.ask("POST", "/compare/preferences", headers=headers, data=fields)
    assert page.status_code == 200, page.text
    assert "The judge prefers new to old" in page.text
    assert "c0" in page.text
    assert judged.operator.post("/compare/preferences", judge="better").status_code == 400
