"""Named criteria: versions that stay, and the words for what is wrong with them."""

from typing import Any

import pytest
from tests.api.conftest import CRITERIA, ROUGE, Deployment, code_of

from meruit.model.access import Role
from meruit.model.canonical import digest
from meruit.model.criterion import SuccessCriteria


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def with_threshold(threshold: float) -> dict[str, Any]:
    return {"criteria": [{**ROUGE, "threshold": threshold}]}


def test_each_change_of_criteria_is_a_version(either: Deployment, key: str) -> None:
    said = [
        either.ask("POST", "/v1/criteria", key=key, json={"name": "judged", "criteria": with_threshold(threshold)})
        for threshold in (0.5, 0.6, 0.6, 0.5)
    ]
    assert [reply.status_code for reply in said] == [201] * 4
    assert [reply.json()["version"] for reply in said] == [1, 2, 2, 3]
    assert said[1].json() == said[2].json()
    assert said[0].json()["digest"] == said[3].json()["digest"]
    assert said[0].json()["created_by"] == key.split(".", maxsplit=1)[0]
    parsed = SuccessCriteria.model_validate(with_threshold(0.5))
    assert said[0].json()["digest"] == digest(parsed.model_dump(exclude_defaults=True))
    latest = either.ask("GET", "/v1/criteria/judged", key=key).json()
    assert latest["version"] == 3
    assert latest["criteria"]["criteria"][0]["threshold"] == 0.5
    second = either.ask("GET", "/v1/criteria/judged/versions/2", key=key).json()
    assert second == {**said[1].json(), "criteria": second["criteria"]}
    assert second["criteria"]["criteria"][0]["threshold"] == 0.6
    history = either.ask("GET", "/v1/criteria/judged/versions", key=key).json()["versions"]
    assert [one["version"] for one in history] == [3, 2, 1]
    assert either.ask("GET", "/v1/criteria/judged/versions/4", key=key).status_code == 404


def test_what_is_read_can_be_registered_again_as_the_same(either: Deployment, key: str) -> None:
    odd = {"criteria": [{**ROUGE, "threshold": 0.1, "params": {}, "weight": 3, "bonus": "0.10", "id": "a$b"}]}
    first = either.ask("POST", "/v1/criteria", key=key, json={"name": "a", "criteria": odd}).json()
    read = either.ask("GET", "/v1/criteria/a", key=key).json()["criteria"]
    again = either.ask("POST", "/v1/criteria", key=key, json={"name": "a", "criteria": read}).json()
    assert again == first


def test_criteria_are_listed_by_name_in_pages(either: Deployment, key: str) -> None:
    names = [f"c-{number:02}" for number in range(5)]
    for name in reversed(names):
        for threshold in (0.5, 0.6):
            body = {"name": name, "criteria": with_threshold(threshold)}
            either.ask("POST", "/v1/criteria", key=key, json=body)
    found, after = list[str](), dict[str, str]()
    for _ in range(4):
        page = either.ask("GET", "/v1/criteria", key=key, params={"limit": 2, **after}).json()
        assert all(one["version"] == 2 for one in page["criteria"])
        found += [one["name"] for one in page["criteria"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == names
    assert either.ask("GET", "/v1/criteria", key=key, params={"after": names[-1]}).json() == {
        "criteria": [],
        "next": None,
    }


def test_criteria_are_looked_at_without_being_kept(either: Deployment, key: str) -> None:
    before = either.rows()
    reply = either.ask("POST", "/v1/criteria/validate", key=key, json={"criteria": CRITERIA})
    assert reply.json()["valid"] is True
    assert len(reply.json()["digest"]) == 64
    wrong = {"criteria": [{**ROUGE, "metric": "nothing"}, {**ROUGE, "threshold": "x"}]}
    reply = either.ask("POST", "/v1/criteria/validate", key=key, json={"criteria": wrong})
    found = reply.json()
    assert (reply.status_code, found["valid"], found["digest"]) == (200, False, None)
    assert [one["where"] for one in found["problems"]] == ["criteria[0].metric", "criteria[1].threshold"]
    assert either.rows() == before


UNSUPPORTED = (422, "unsupported_criteria")
UNREADABLE = (400, "bad_criteria")
UNSOUND: dict[str, Any] = {
    "an unknown check": (UNSUPPORTED, {"criteria": [{"assert": "http_statsu", "url": "x"}]}),
    "an expression that is none": (UNREADABLE, {"criteria": [{**ROUGE, "metric": "x", "expr": "output..a"}]}),
    "code that is no Python": (
        UNREADABLE,
        {"criteria": [{**ROUGE, "metric": "odd"}], "custom_metrics": [{"metrics": ["odd"], "code": "def metric(:"}]},
    ),
    "code that imports when called": (
        UNSUPPORTED,
        {
            "criteria": [{**ROUGE, "metric": "odd"}],
            "custom_metrics": [
                {"metrics": ["odd"], "code": "def metric(input, output, metadata):\n    import nowhere\n"}
            ],
        },
    ),
}


@pytest.mark.parametrize(("refusal", "criteria"), UNSOUND.values(), ids=UNSOUND)
def test_criteria_that_do_not_run_are_not_registered(
    either: Deployment, key: str, refusal: tuple[int, str], criteria: Any
) -> None:
    before = either.rows()
    reply = either.ask("POST", "/v1/criteria", key=key, json={"name": "unsound", "criteria": criteria})
    assert (reply.status_code, code_of(reply)) == refusal, reply.text
    (error,) = reply.json()["errors"]
    checked = either.ask("POST", "/v1/criteria/validate", key=key, json={"criteria": criteria}).json()
    assert (checked["valid"], checked["problems"]) == (False, [error])
    assert either.rows() == before


@pytest.mark.parametrize("name", ["", ".", "-a", "a b", "a/b", "a@1", "ä", "x" * 101, "a\n"])
def test_a_name_is_one_that_any_system_can_keep(deployment: Deployment, admin: str, name: str) -> None:
    reply = deployment.ask("POST", "/v1/criteria", key=admin, json={"name": name, "criteria": CRITERIA})
    assert (reply.status_code, reply.json()["errors"][0]["where"]) == (400, "name")
