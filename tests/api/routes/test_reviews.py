"""Reviews over HTTP: drawn, labelled blind, read with what the labels say."""

import secrets
from typing import Any

import pytest
from tests.api.conftest import CRITERIA, Deploy, Deployment, code_of

from meruit.model.access import Role


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    return deploy()


@pytest.fixture
def key(deployment: Deployment) -> str:
    return deployment.key(Role.OPERATOR)


@pytest.fixture
def evaluation(deployment: Deployment, key: str) -> str:
    name = f"judged-{secrets.token_hex(4)}"
    cases = [{"id": f"c{number}", "output": {"text": "yes"}, "tags": {"hidden": "tag"}} for number in range(30)]
    for path, body in (
        ("evaluations", {"name": name, "criteria": CRITERIA}),
        (f"evaluations/{name}/cases", {"cases": cases}),
    ):
        assert deployment.ask("POST", f"/v1/{path}", key=key, json=body).is_success
    return name


# Any: JSON.
def post(deployment: Deployment, key: str, path: str, body: Any, **headers: str) -> Any:
    reply = deployment.ask("POST", f"/v1/{path}", key=key, json=body, headers=headers or None)
    assert reply.is_success, reply.text
    return reply.json()


def test_a_queue_is_labelled_to_its_end(deployment: Deployment, key: str, evaluation: str) -> None:
    body = {"name": "all", "evaluation": evaluation, "random": 12, "seed": 3}
    made = post(deployment, key, "reviews", body)
    assert post(deployment, key, "reviews", body) == made
    done = 0
    while (case := deployment.ask("GET", "/v1/reviews/all/next", key=key).json()["case"]) is not None:
        assert case.keys() == {"review", "number", "question", "instructions", "choices", "parts"}
        assert "hidden" not in str(case)
        post(deployment, key, "reviews/all/labels", {"labels": [{"number": case["number"], "choice": "yes"}]})
        done += 1
    assert done == 12
    shown = deployment.ask("GET", "/v1/reviews/all", key=key).json()
    assert shown["progress"]["labelled"] == shown["corrected"]["these"]["labels"] == 12
    # Who labels is the key, unless a name is given.
    assert shown["progress"]["labellers"] == [key.split(".", maxsplit=1)[0]]
    listed = deployment.ask("GET", "/v1/reviews/all/labels", key=key).json()
    assert len(listed["draws"]) == len(listed["labels"]) == 12


def test_labels_are_recorded_all_or_none(deployment: Deployment, key: str, evaluation: str) -> None:
    post(deployment, key, "reviews", {"name": "whole", "evaluation": evaluation, "random": 3})
    wrong = {"labels": [{"number": 1, "choice": "yes"}, {"number": 2, "choice": "maybe"}]}
    reply = deployment.ask("POST", "/v1/reviews/whole/labels", key=key, json=wrong)
    assert (reply.status_code, code_of(reply)) == (422, "invalid_review")
    assert deployment.ask("GET", "/v1/reviews/whole", key=key).json()["review"]["labels"] == 0
    right = {"labels": [{"number": 1, "choice": "yes", "labeller": "ann"}]}
    first = post(deployment, key, "reviews/whole/labels", right, **{"Idempotency-Key": "once"})
    assert post(deployment, key, "reviews/whole/labels", right, **{"Idempotency-Key": "once"}) == first
    assert deployment.ask("GET", "/v1/reviews/whole", key=key).json()["review"]["labels"] == 1


def test_reviews_are_listed_by_evaluation(deployment: Deployment, key: str, evaluation: str) -> None:
    post(deployment, key, "reviews", {"name": "listed", "evaluation": evaluation, "random": 1})
    params: dict[str, Any] = {"evaluation": evaluation, "limit": 1}
    page = deployment.ask("GET", "/v1/reviews", key=key, params=params).json()
    assert len(page["reviews"]) == 1
    assert page["next"] == page["reviews"][0]["id"]
    assert deployment.ask("GET", "/v1/reviews/none", key=key).status_code == 404
    taken = {"name": "listed", "evaluation": evaluation, "random": 2}
    reply = deployment.ask("POST", "/v1/reviews", key=key, json=taken)
    assert (reply.status_code, code_of(reply)) == (409, "review_conflict")
