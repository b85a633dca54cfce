"""Work in, verdict out."""

import json
from typing import Any

import msgspec
import pytest
from tests.api.conftest import CRITERIA, ROUGE, WORK, Deployment, code_of

from meruit.api.routes.verify import MAX_BATCH
from meruit.errors import StoreUnavailable
from meruit.model.access import Role

BAD = {"input": {"reference": "the cat sat"}, "output": {"text": "dogs run"}}
CODE = "def metric(input, output, metadata):\n    return {'words': len(output.get('text', '').split())}\n"


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def test_work_is_judged_and_recorded(either: Deployment, key: str) -> None:
    labels = {"contract_id": "c-1", "agent_id": "robot", "consumer_id": "shop", "domain": "support"}
    body = {**WORK, "metadata": {"duration_ms": 12}, "criteria": CRITERIA, **labels}
    reply = either.ask("POST", "/v1/verify", key=key, json=body)
    assert reply.status_code == 200
    found = reply.json()
    assert (found["recorded"], found["version"]) == (True, 1)
    result = found["result"]
    assert (result["success"], result["verdict"], result["metrics"]) == (True, "pass", {"rougeL": 1.0})
    assert result["contract_id"] == "c-1"
    kept = either.ask("GET", f"/v1/outcomes/{found['outcome_id']}", key=key).json()
    assert kept["verification_result"] == result
    assert (kept["work_input"], kept["work_output"]) == (WORK["input"], WORK["output"])
    assert kept["execution_metadata"] == {"duration_ms": 12}
    assert {name: kept[name] for name in labels} == labels
    assert kept["billing_impact"] == {"cpc_base": None, "bonus": "0", "penalty": "0", "total": None}


def test_an_outcome_without_a_contract_is_its_own(either: Deployment, key: str) -> None:
    found = either.ask("POST", "/v1/verify", key=key, json={**BAD, "criteria": CRITERIA}).json()
    assert found["result"]["contract_id"] == found["outcome_id"]
    assert (found["result"]["success"], found["result"]["verdict"]) == (False, "fail")


def test_what_is_not_to_be_recorded_leaves_nothing(either: Deployment, key: str) -> None:
    before = either.rows()
    body = {**WORK, "criteria": CRITERIA, "record": False}
    found = either.ask("POST", "/v1/verify", key=key, json=body).json()
    assert (found["outcome_id"], found["version"], found["recorded"]) == (None, None, False)
    assert found["result"]["success"] is True
    assert either.rows() == before


def test_registered_criteria_are_named_with_or_without_a_version(either: Deployment, key: str) -> None:
    for threshold in (0.5, 1):
        body = {"name": "judged", "criteria": {"criteria": [{**ROUGE, "threshold": threshold}]}}
        assert either.ask("POST", "/v1/criteria", key=key, json=body).status_code == 201
    work = {"input": {"reference": "the cat sat"}, "output": {"text": "the cat"}}
    ended = {
        name: either.ask("POST", "/v1/verify", key=key, json={**work, "criteria": name}).json()["result"]["success"]
        for name in ("judged", "judged@1", "judged@2", "judged@1")
    }
    assert ended == {"judged": False, "judged@1": True, "judged@2": False}
    for unknown in ("judged@3", "nothing"):
        reply = either.ask("POST", "/v1/verify", key=key, json={**work, "criteria": unknown})
        assert (reply.status_code, code_of(reply)) == (404, "not_found")


def test_the_criteria_may_stand_under_their_own_name_as_in_a_file(either: Deployment, key: str) -> None:
    body = {**WORK, "criteria": {"success_criteria": CRITERIA}}
    assert either.ask("POST", "/v1/verify", key=key, json=body).json()["result"]["success"] is True


@pytest.mark.parametrize(
    ("criterion", "said"),
    [
        ({**ROUGE, "metric": "rogueL"}, "Unknown metric: rogueL (did you mean 'rougeL'?); `meruit metrics` lists all"),
        ({**ROUGE, "threshold": "much"}, "Invalid threshold for metric: rougeL: "),
        ({**ROUGE, "threshold": [1, 2]}, "Invalid threshold for metric: rougeL: "),
    ],
)
@pytest.mark.parametrize("path", ["/v1/verify", "/v1/verify/batch", "/v1/criteria"])
def test_wrong_criteria_are_refused_in_the_words_of_the_specification(
    deployment: Deployment, admin: str, path: str, criterion: Any, said: str
) -> None:
    body = {"criteria": {"criteria": [criterion]}}
    more = {"/v1/verify": WORK, "/v1/verify/batch": {"items": [WORK]}, "/v1/criteria": {"name": "wrong"}}
    reply = deployment.ask("POST", path, key=admin, json={**body, **more[path]})
    assert (reply.status_code, code_of(reply)) == (400, "bad_criteria")
    (error,) = reply.json()["errors"]
    assert error["message"].startswith(said)
    assert error["where"] in ("criteria[0].metric", "criteria[0].threshold")


@pytest.mark.parametrize("path", ["/v1/verify", "/v1/verify/batch", "/v1/criteria"])
def test_faults_of_params_expressions_and_code_are_refused_at_once(
    deployment: Deployment, admin: str, path: str
) -> None:
    broken = {
        "criteria": [
            {**ROUGE, "expr": "size("},
            {**ROUGE, "metric": "words"},
            {**ROUGE, "metric": "matches_pattern", "params": {"patterns": ["a", "("]}},
            {**ROUGE, "metric": "rogueL"},
        ],
        "custom_metrics": [{"metrics": ["words"], "code": "return len(output['text'])"}],
    }
    more = {"/v1/verify": WORK, "/v1/verify/batch": {"items": [WORK]}, "/v1/criteria": {"name": "wrong"}}
    reply = deployment.ask("POST", path, key=admin, json={"criteria": {"success_criteria": broken}, **more[path]})
    assert (reply.status_code, code_of(reply)) == (400, "bad_criteria")
    assert {one["where"].removeprefix("success_criteria.") for one in reply.json()["errors"]} == {
        "criteria[0].expr",
        "custom_metrics[0].code",
        "criteria[2].params.patterns[1]",
        "criteria[3].metric",
    }


def test_the_criterias_own_code_runs(either: Deployment, key: str) -> None:
    one = {"metric": "words", "metric_type": "count", "comparison": "gte", "threshold": 3}
    body = {**WORK, "criteria": {"criteria": [one], "custom_metrics": [{"metrics": ["words"], "code": CODE}]}}
    assert either.ask("POST", "/v1/verify", key=key, json=body).json()["result"]["metrics"] == {"words": 3}


def test_a_tier_that_is_not_allowed_is_unavailable(deployment: Deployment, admin: str) -> None:
    one = {"metric": "words", "metric_type": "count", "comparison": "gte", "threshold": 3}
    custom = {"metrics": ["words"], "code": CODE, "tier": "python-full"}
    before = deployment.rows()
    body = {**WORK, "criteria": {"criteria": [one], "custom_metrics": [custom]}}
    reply = deployment.ask("POST", "/v1/verify", key=admin, json=body)
    assert (reply.status_code, code_of(reply)) == (422, "unavailable_here")
    assert reply.json()["errors"]
    assert deployment.rows() == before


@pytest.mark.parametrize("size", [1_000, 70_000, 1_500_000])
def test_work_of_any_size_that_is_taken_comes_back_as_it_was(either: Deployment, key: str, size: int) -> None:
    work = {"input": {"reference": "x"}, "output": {"text": "word " * (size // 5), "list": [0.1] * 100}}
    reply = either.ask("POST", "/v1/verify", key=key, json={**work, "criteria": CRITERIA})
    found = either.ask("GET", f"/v1/outcomes/{reply.json()['outcome_id']}", key=key).json()
    assert (found["work_input"], found["work_output"]) == (work["input"], work["output"])


def test_a_batch_is_judged_in_its_order(either: Deployment, key: str) -> None:
    items = [WORK, BAD, {**WORK, "contract_id": "c-9"}]
    reply = either.ask("POST", "/v1/verify/batch", key=key, json={"criteria": CRITERIA, "items": items})
    found = reply.json()
    assert found["summary"] == {"total": 3, "succeeded": 2, "verdicts": {"fail": 1, "pass": 2}}
    assert [one["result"]["success"] for one in found["results"]] == [True, False, True]
    assert found["results"][2]["result"]["contract_id"] == "c-9"
    assert len({one["outcome_id"] for one in found["results"]}) == 3
    listed = either.ask("GET", "/v1/outcomes", key=key).json()["outcomes"]
    assert [one["id"] for one in listed] == [one["outcome_id"] for one in reversed(found["results"])]


def test_an_agent_sees_how_each_item_of_a_batch_ended(either: Deployment, tenant: str, key: str) -> None:
    either.ask("POST", "/v1/criteria", key=key, json={"name": "judged", "criteria": CRITERIA})
    agent = either.key(Role.AGENT, tenant)
    body = {"criteria": "judged", "items": [{"output": {}}, {"output": {"text": "x"}, "agent_id": "robot"}]}
    found = either.ask("POST", "/v1/verify/batch", key=agent, json=body).json()
    assert found["summary"]["total"] == 2
    assert {*found["results"][0]} == {"outcome_id", "version", "recorded", "verdict", "success", "score", "tries"}
    own = either.ask("GET", "/v1/outcomes", key=agent).json()["outcomes"]
    assert {one["id"] for one in own} == {one["outcome_id"] for one in found["results"]}


def test_a_batch_has_a_hundred_items_at_most(either: Deployment, key: str) -> None:
    whole = {"criteria": CRITERIA, "items": [WORK] * MAX_BATCH}
    before = either.rows()["outcomes"]
    assert either.ask("POST", "/v1/verify/batch", key=key, json=whole).status_code == 200
    assert either.rows()["outcomes"] == before + MAX_BATCH
    for count in (0, MAX_BATCH + 1):
        reply = either.ask("POST", "/v1/verify/batch", key=key, json={**whole, "items": [WORK] * count})
        assert (reply.status_code, reply.json()["errors"][0]["where"]) == (400, "items")
    assert either.rows()["outcomes"] == before + MAX_BATCH


@pytest.mark.parametrize("wrong", [{"output": 5}, {"output": {}, "contract_id": "a\0"}, {}, {"output": {}, "x": 1}])
def test_a_batch_with_one_wrong_item_is_refused_as_a_whole(either: Deployment, key: str, wrong: Any) -> None:
    before = either.rows()
    reply = either.ask("POST", "/v1/verify/batch", key=key, json={"criteria": CRITERIA, "items": [WORK, wrong, WORK]})
    assert reply.status_code == 400
    assert reply.json()["errors"][0]["where"].startswith("items[1]")
    assert either.rows() == before


def test_a_batch_that_cannot_be_written_is_not_written_in_part(
    deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = deployment.rows()
    draft = deployment.service.registrar.draft

    def broken(tenant: str, judged: Any) -> Any:
        made = draft(tenant, judged)
        # The second of the two claims the first one's id.
        return msgspec.structs.replace(made, id="out_" + "f" * 34)

    monkeypatch.setattr(deployment.service.registrar, "draft", broken)
    body = {"criteria": CRITERIA, "items": [WORK, WORK]}
    reply = deployment.ask("POST", "/v1/verify/batch", key=admin, json=body)
    assert (reply.status_code, code_of(reply)) == (500, "internal")
    assert deployment.rows() == before


def test_an_unavailable_database_is_503(deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(deployment.store.recorder, "record", gone)
    reply = deployment.ask("POST", "/v1/verify", key=admin, json={**WORK, "criteria": CRITERIA})
    assert (reply.status_code, code_of(reply)) == (503, "unavailable")
    assert reply.headers["retry-after"] == "1"
    assert "disk" not in reply.text


def test_integers_of_any_size_are_judged(either: Deployment, key: str) -> None:
    body = json.dumps({"output": {"n": 10**300}, "input": {}, "criteria": CRITERIA})
    headers = {"Content-Type": "application/json"}
    reply = either.ask("POST", "/v1/verify", key=key, content=body.encode(), headers=headers)
    assert reply.json()["recorded"] is True


BACKWARDS = {"started_at": 100, "ended_at": 99}


@pytest.mark.parametrize("record", [True, False])
def test_governance_checks_what_is_verified(either: Deployment, key: str, record: bool) -> None:
    body = {**WORK, "metadata": BACKWARDS, "criteria": CRITERIA, "record": record}
    result = either.ask("POST", "/v1/verify", key=key, json=body).json()["result"]
    assert (result["verdict"], result["success"], result["governance"]) == ("pass", False, "invalid")
    assert result["governance_flags"] == ["clock_order"]


def test_governance_checks_each_item_of_a_batch(either: Deployment, key: str) -> None:
    long = "This answer is long enough to be recognised when it is given once more, for another task."
    items = [
        {"input": {"q": 1}, "output": {"text": long}, "agent_id": "robot"},
        {"input": {"q": 2}, "output": {"text": long}, "agent_id": "robot"},
        {"input": {"q": 3}, "output": {"text": "short"}, "metadata": BACKWARDS},
    ]
    words = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}
    body = {"criteria": {"criteria": [words]}, "items": items}
    reply = either.ask("POST", "/v1/verify/batch", key=key, json=body, headers={"Idempotency-Key": "once"})
    found = [one["result"] for one in reply.json()["results"]]
    assert [one["governance_flags"] for one in found] == [[], ["replayed_output"], ["clock_order"]]
    assert [one["success"] for one in found] == [True, True, False]
    assert reply.json()["summary"]["succeeded"] == 2
    for one in reply.json()["results"]:
        kept = either.ask("GET", f"/v1/outcomes/{one['outcome_id']}", key=key).json()
        assert kept["verification_result"] == one["result"]
    again = either.ask("POST", "/v1/verify/batch", key=key, json=body, headers={"Idempotency-Key": "once"})
    assert again.content == reply.content


def test_what_is_verified_never_holds_a_contract(either: Deployment, key: str) -> None:
    long = "This answer is long enough to be recognised when it is given once more, for another task."
    output = {"text": long}
    words = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3}
    work = {"title": "t", "consumer_id": "shop", "input": {"q": 1}, "success_criteria": {"criteria": [words]}}
    body = {"criteria": {"criteria": [words]}, "input": {"q": 1}, "output": output, "agent_id": "robot"}
    assert either.ask("POST", "/v1/verify", key=key, json=body).status_code == 200
    made = either.ask("POST", "/v1/work", key=key, json={**work, "terms": {"cpc_rate": "1"}}).json()
    wish = {"work_id": made["id"], "agent_id": "robot"}
    contract = either.ask("POST", "/v1/contracts", key=key, json=wish).json()["id"]
    done = either.ask("POST", f"/v1/contracts/{contract}/complete", key=key, json={"output": output}).json()
    assert done["state"] == "settled", done
