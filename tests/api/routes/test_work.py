"""Work given out: what is taken, what is refused and why, and who sees how much of it."""

from typing import Any

import pytest
from tests.api.conftest import CRITERIA, ROUGE, Deploy, Deployment, code_of, settings_with

from meruit.api.idempotency import HEADER, REPLAYED
from meruit.config import Settings
from meruit.errors import AuthorError, ExtractorConflict, MeruitError, StoreUnavailable
from meruit.model.access import Role

REFERENCE = "the quick brown fox jumps over the lazy dog"
PAID = {**ROUGE, "bonus": "0.02", "penalty": "0.01"}
WORK: dict[str, Any] = {
    "title": "Summarise",
    "description": "In one sentence.",
    "domain": "support",
    "consumer_id": "shop",
    "input": {"question": "what happened?", "reference": REFERENCE, "output_schema": {"type": "object"}},
    "success_criteria": {"criteria": [PAID]},
    "budget": {"max_cpa_total": "0.04"},
    "terms": {"cpc_rate": "0.05", "currency": "EUR", "platform_fee_rate": 0.15},
    "canaries": ["planted-one"],
}


class WrongKind(MeruitError):
    """One that nobody thought of."""


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def test_work_is_kept_with_its_criteria_and_terms(either: Deployment, tenant: str, key: str) -> None:
    reply = either.ask("POST", "/v1/work", key=key, json=WORK)
    assert reply.status_code == 201
    made = reply.json()
    assert (made["has_cpa"], made["has_criteria"], made["consumer_id"]) == (True, True, "shop")
    assert (made["terms"]["cpc_rate"], made["terms"]["max_cpa_total"]) == ("0.05", "0.04")
    kept = either.ask("GET", f"/v1/work/{made['id']}", key=key).json()
    assert kept == {**made, "input": WORK["input"]}
    assert kept["success_criteria"]["criteria"][0]["metric"] == "rougeL"
    auditor = either.key(Role.AUDITOR, tenant)
    assert either.ask("GET", f"/v1/work/{made['id']}", key=auditor).json() == kept


def test_work_needs_no_criteria_and_criteria_need_pay_nothing(either: Deployment, key: str) -> None:
    plain = either.ask("POST", "/v1/work", key=key, json={"title": "t"}).json()
    assert (plain["has_cpa"], plain["has_criteria"], plain["success_criteria"]) == (False, False, None)
    body = {"title": "t", "success_criteria": CRITERIA, "input": {"reference": REFERENCE}}
    free = either.ask("POST", "/v1/work", key=key, json=body).json()
    assert (free["has_cpa"], free["has_criteria"]) == (False, True)


def test_published_work_emits_an_event(either: Deployment, key: str) -> None:
    made = either.ask("POST", "/v1/work", key=key, json=WORK).json()
    reply = either.follow("/v1/events?after=0&types=work.submitted", lambda body: b"work.submitted" in body, key=key)
    for said in (f'"work_id":"{made["id"]}"', '"has_cpa":true', '"has_criteria":true'):
        assert said in reply.text
    assert REFERENCE not in reply.text


def test_work_is_listed_newest_first_by_pages(either: Deployment, key: str) -> None:
    made = [either.ask("POST", "/v1/work", key=key, json={**WORK, "title": f"t{n}"}).json()["id"] for n in range(3)]
    page = either.ask("GET", "/v1/work", key=key, params={"limit": 2}).json()
    assert [one["id"] for one in page["work"]] == made[:0:-1]
    assert {(one["success_criteria"], one["input"]) for one in page["work"]} == {(None, None)}
    rest = either.ask("GET", "/v1/work", key=key, params={"limit": 2, "before": page["next"]}).json()
    assert ([one["id"] for one in rest["work"]], rest["next"]) == ([made[0]], None)


def test_an_agent_sees_of_its_work_what_it_needs(either: Deployment, tenant: str, key: str) -> None:
    agent, other = either.key(Role.AGENT, tenant), either.key(Role.AGENT, tenant, agent_id="other")
    work = either.ask("POST", "/v1/work", key=key, json=WORK).json()["id"]
    assert either.ask("GET", f"/v1/work/{work}", key=agent).status_code == 404
    either.ask("POST", "/v1/contracts", key=key, json={"work_id": work, "agent_id": "robot"})
    reply = either.ask("GET", f"/v1/work/{work}", key=agent)
    assert reply.json() == {
        "id": work,
        "title": "Summarise",
        "description": "In one sentence.",
        "domain": "support",
        "input": {"question": "what happened?"},
        "currency": "EUR",
        "cpc_rate": "0.05",
        "dispute_window_hours": 24,
        "deadline_hours": 168,
        "latency_from": "input",
        "pay_per_run": False,
        "agent_tries": 10,
        "agent_score": "coarse",
    }
    for hidden in ("fox", "rouge", "planted", "shop", "0.04", "0.02"):
        assert hidden not in reply.text
    assert either.ask("GET", f"/v1/work/{work}", key=other).status_code == 404
    assert either.ask("GET", "/v1/work", key=agent).status_code == 403


def test_what_is_private_is_judged_by_and_seen_by_no_agent(either: Deployment, tenant: str, key: str) -> None:
    agent, private = either.key(Role.AGENT, tenant), {"reference": REFERENCE, "notes": ["never-shown"]}
    body = {**WORK, "input": {"question": "what happened?"}, "private": private}
    reply = either.ask("POST", "/v1/work", key=key, json=body)
    assert reply.status_code == 201, reply.text
    work = reply.json()["id"]
    award = either.ask("POST", "/v1/contracts", key=key, json={"work_id": work, "agent_id": "robot"}).json()
    path = f"/v1/contracts/{award['id']}"
    seen = either.ask("GET", f"/v1/work/{work}", key=agent)
    assert seen.json()["input"] == {"question": "what happened?"}
    done = either.ask("POST", f"{path}/complete", key=agent, json={"output": {"text": "the quick brown fox jumps"}})
    assert done.json()["success"] is True, done.text
    for one in (seen, done, either.ask("GET", path, key=agent), either.ask("GET", "/v1/contracts", key=agent)):
        assert ("fox" in one.text, "never-shown" in one.text, "private" in one.text) == (False, False, False)


@pytest.mark.parametrize("private", [[1], "text", 5])
def test_what_is_private_is_an_object(deployment: Deployment, admin: str, private: Any) -> None:
    reply = deployment.ask("POST", "/v1/work", key=admin, json={"title": "t", "private": private})
    assert (reply.status_code, "private" in reply.json()["detail"]) == (400, True)


@pytest.mark.parametrize("kind", [MeruitError, AuthorError, ExtractorConflict, WrongKind])
def test_every_problem_of_publishing_is_named(
    deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch, kind: type[MeruitError]
) -> None:
    def refuse(*_: Any) -> Any:
        raise kind("the axis is bent; straighten it")

    monkeypatch.setattr(deployment.service.marketplace, "publish", refuse)
    reply = deployment.ask("POST", "/v1/work", key=admin, json=WORK)
    assert (reply.status_code, code_of(reply)) == (422, "cannot_be_published")
    assert reply.json()["detail"] == "the axis is bent; straighten it"


def test_an_unavailable_store_is_not_a_fault_of_the_work(
    deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(deployment.service.marketplace, "publish", refuse)
    assert deployment.ask("POST", "/v1/work", key=admin, json=WORK).status_code == 503


@pytest.mark.parametrize(
    ("budget", "terms"),
    [
        ({"max_cpa_total": "0.03"}, {}),
        ({"max_cpa_bonus": 0.03}, {}),
        ({"max_bonus": "0.03"}, {}),
        ({"cpa_bonus": {"max_total": "0.03"}}, {}),
        ({"max_cpa_total": "0.03", "max_bonus": "0.03", "cpa_bonus": {"max_total": "0.03"}}, {}),
        ({}, {"max_cpa_total": "0.03"}),
        ({"max_bonus": "0.03"}, {"max_cpa_total": 0.03}),
    ],
)
def test_the_cap_has_four_names(deployment: Deployment, admin: str, budget: Any, terms: Any) -> None:
    reply = deployment.ask("POST", "/v1/work", key=admin, json={"title": "t", "budget": budget, "terms": terms})
    assert reply.json()["terms"]["max_cpa_total"] == "0.03"


def criteria(**changed: Any) -> dict[str, Any]:
    return {"success_criteria": {"criteria": [{**PAID, **changed}]}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown metric": (criteria(metric="rogueL"), "success_criteria.criteria[0].metric: Unknown metric: rogueL"),
    "threshold": (criteria(threshold="much"), "Invalid threshold for metric: rougeL"),
    "negative bonus": (criteria(bonus=-1), "bonus"),
    "a bonus of seven places": (criteria(bonus="0.0000001"), "at most 6 decimal places"),
    "no criteria in the list": ({"success_criteria": {"criteria": []}}, "success_criteria"),
    "too many criteria": ({"success_criteria": {"criteria": [PAID] * 101}}, "101 criteria; at most 100"),
    "negative rate": ({"terms": {"cpc_rate": -1}}, "terms.cpc_rate: expected a number of at least 0"),
    "negative rate in text": ({"terms": {"cpc_rate": "-0.01"}}, "terms.cpc_rate: expected a number of at least 0"),
    "seven places": ({"terms": {"cpc_rate": 0.1234567}}, "terms.cpc_rate: money has at most 6 decimal places"),
    "seven places in text": ({"terms": {"cpc_rate": "0.1234567"}}, "terms.cpc_rate: money has at most 6 decimal"),
    "no number": ({"terms": {"cpc_rate": "a lot"}}, "terms.cpc_rate: expected a number"),
    "not a number": ({"terms": {"cpc_rate": "NaN"}}, "terms.cpc_rate: expected a number"),
    "endless": ({"terms": {"cpc_rate": "1e999"}}, "terms.cpc_rate"),
    "more than there is": ({"terms": {"cpc_rate": 1e15}}, "terms.cpc_rate: an amount is at most"),
    "a rate that is a list": ({"terms": {"cpc_rate": [1]}}, "terms.cpc_rate"),
    "a rate that is true": ({"terms": {"cpc_rate": True}}, "terms.cpc_rate"),
    "unknown currency": ({"terms": {"currency": "XXQ"}}, "terms.currency: expected the code of a currency"),
    "currency in small letters": ({"terms": {"currency": "usd"}}, "terms.currency"),
    "cap below zero": ({"budget": {"max_cpa_total": -1}}, "budget.max_cpa_total: expected a number of at least 0"),
    "another cap below zero": ({"budget": {"max_bonus": "-0.01"}}, "budget"),
    "a nested cap below zero": ({"budget": {"cpa_bonus": {"max_total": -1}}}, "budget"),
    "two caps": ({"budget": {"max_bonus": 1, "max_cpa_bonus": 2}}, "max_cpa_bonus and max_bonus"),
    "two caps, one nested": (
        {"budget": {"max_bonus": 1, "cpa_bonus": {"max_total": 2}}},
        "max_bonus and cpa_bonus.max_total",
    ),
    "two caps in two places": (
        {"budget": {"max_bonus": 1}, "terms": {"max_cpa_total": 2}},
        "budget.max_cpa_total and terms.max_cpa_total",
    ),
    "fee above one": ({"terms": {"platform_fee_rate": 1.5}}, "terms.platform_fee_rate"),
    "window too long": ({"terms": {"dispute_window_hours": 169}}, "terms.dispute_window_hours"),
    "window of no time": ({"terms": {"dispute_window_hours": 0}}, "terms.dispute_window_hours"),
    "unknown field": ({"prize": 5}, "unknown field `prize`"),
    "unknown term": ({"terms": {"prize": 5}}, "unknown field `prize`"),
    "title of two lines": ({"title": "a\nb"}, "title"),
    "no title": ({"title": ""}, "title"),
    "title of another type": ({"title": 5}, "title"),
    "input of another type": ({"input": [1]}, "input"),
    "short canary": ({"canaries": ["short"]}, "canaries"),
    "why the null agent may pass, in two lines": ({"accept_null_agent": "a\u0085b"}, "accept_null_agent"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_invalid_work_is_refused_by_its_field(deployment: Deployment, admin: str, why: str) -> None:
    changed, said = REFUSED[why]
    before = deployment.rows()
    reply = deployment.ask("POST", "/v1/work", key=admin, json={"title": "t", **changed})
    assert reply.status_code == 400, reply.text
    assert said in reply.json()["detail"]
    assert deployment.rows() == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"title": "t", "terms": {"cpc_rate": NaN}}',
        b'{"title": "t", "terms": {"cpc_rate": 1e999}}',
        b'{"title": "t", "terms": {"cpc_rate": 1, "cpc_rate": 2}}',
        b'{"title": "t", "budget": {"max_bonus": 1, "max_bonus": 2}}',
        b'{"title": "t", "input": {"a": "\\ud800"}}',
    ],
)
def test_ambiguous_json_is_refused(deployment: Deployment, admin: str, body: bytes) -> None:
    before = deployment.rows()
    sent = {"Content-Type": "application/json"}
    reply = deployment.ask("POST", "/v1/work", key=admin, content=body, headers=sent)
    assert reply.status_code == 400, reply.text
    assert deployment.rows() == before


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (criteria(metric="word_count", metric_type="count", comparison="lte", threshold=5), "null_agent_passes"),
        ({"terms": {"cpc_rate": 1, "rules": ["cpc", "surprise"]}}, "unknown_rule"),
        (
            criteria(bonus=8_000_000_000) | {"terms": {"cpc_rate": 8_000_000_000}, "input": {"reference": "a b"}},
            "too_much",
        ),
        ({"success_criteria": {"criteria": [{"assert": "no_such_check"}]}}, "unsupported_criteria"),
    ],
)
def test_what_can_be_read_and_not_be_done_is_refused(
    deployment: Deployment, admin: str, changed: dict[str, Any], code: str
) -> None:
    before = deployment.rows()
    reply = deployment.ask("POST", "/v1/work", key=admin, json={"title": "t", **changed})
    assert (reply.status_code, code_of(reply)) == (422, code), reply.text
    assert deployment.rows() == before


def test_criteria_that_the_null_agent_passes_are_taken_with_a_reason(deployment: Deployment, admin: str) -> None:
    body = {"title": "t", **criteria(metric="word_count", metric_type="count", comparison="lte", threshold=5)}
    reply = deployment.ask("POST", "/v1/work", key=admin, json={**body, "accept_null_agent": "a trial run"})
    assert (reply.status_code, reply.json()["accept_null_agent"]) == (201, "a trial run")


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        (criteria(threshold=1.0, comparison="gt") | {"input": {"reference": "a b"}}, ["never_met"]),
        (criteria(), ["missing_input"]),
        (criteria(metric="accuracy", metric_type="accuracy"), ["missing_input"]),
        (
            criteria(metric="word_count", metric_type="count", threshold=0, bonus=1),
            ["never_fails", "null_agent_passes"],
        ),
        (
            {
                "success_criteria": {
                    "criteria": [
                        {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 9},
                        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3},
                    ]
                }
            },
            ["contradictory"],
        ),
        (
            {
                "success_criteria": {
                    "criteria": [
                        {
                            "metric": "word_count",
                            "metric_type": "count",
                            "comparison": "gte",
                            "threshold": 9,
                            "penalty": 1,
                        },
                        {
                            "metric": "word_count",
                            "metric_type": "count",
                            "comparison": "lte",
                            "threshold": 3,
                            "penalty": 1,
                        },
                    ],
                    "aggregation": "weighted",
                    "minimum_weighted_score": 0.9,
                }
            },
            ["unavoidable_penalty", "unreachable_minimum"],
        ),
    ],
)
def test_criteria_that_are_proven_wrong_are_refused_with_codes(
    deployment: Deployment, admin: str, changed: dict[str, Any], codes: list[str]
) -> None:
    before = deployment.rows()
    reply = deployment.ask("POST", "/v1/work", key=admin, json={"title": "t", **changed})
    assert (reply.status_code, code_of(reply)) == (400, "broken_criteria"), reply.text
    assert [one["code"] for one in reply.json()["errors"]] == codes
    assert deployment.rows() == before


def test_accepted_findings_are_recorded_and_hidden_from_agents(either: Deployment, tenant: str, key: str) -> None:
    body = {**WORK, **criteria(threshold=1.0, comparison="gt"), "accept_findings": ["never_met"]}
    made = either.ask("POST", "/v1/work", key=key, json=body)
    assert (made.status_code, made.json()["accept_findings"]) == (201, ["never_met"]), made.text
    work = made.json()["id"]
    auditor, agent = either.key(Role.AUDITOR, tenant), either.key(Role.AGENT, tenant)
    assert either.ask("GET", f"/v1/work/{work}", key=auditor).json()["accept_findings"] == ["never_met"]
    event = either.follow(
        "/v1/events?after=0&types=work.submitted", lambda read: b"work.submitted" in read, key=auditor
    )
    assert '"findings_accepted":["never_met"]' in event.text
    either.ask("POST", "/v1/contracts", key=key, json={"work_id": work, "agent_id": "robot"})
    seen = either.ask("GET", f"/v1/work/{work}", key=agent)
    assert seen.status_code == 200
    assert ("never_met" in seen.text, "findings" in seen.text) == (False, False)


@pytest.mark.parametrize("codes", ["never_met", [1], ["Never met"], ["a"] * 99, ["a" * 99]])
def test_what_is_accepted_is_a_list_of_codes(deployment: Deployment, admin: str, codes: Any) -> None:
    reply = deployment.ask("POST", "/v1/work", key=admin, json={**WORK, "accept_findings": codes})
    assert reply.status_code == 400


def test_faults_of_expressions_and_code_are_refused_at_intake(deployment: Deployment, admin: str) -> None:
    numeric = {"metric_type": "numeric", "comparison": "gte", "threshold": 1}
    broken = {
        "criteria": [{**numeric, "expr": "size("}, {**numeric, "metric": "mine"}, {**ROUGE, "params": {"a": 1}}],
        "custom_metrics": [{"metrics": ["mine"], "code": "return 1"}],
    }
    reply = deployment.ask("POST", "/v1/work", key=admin, json={**WORK, "success_criteria": broken})
    assert (reply.status_code, code_of(reply)) == (400, "bad_work")
    assert {one["where"] for one in reply.json()["errors"]} == {
        "success_criteria.criteria[0].expr",
        "success_criteria.custom_metrics[0].code",
        "success_criteria.criteria[2].params.a",
    }


def test_a_second_request_of_a_key_publishes_nothing(either: Deployment, key: str) -> None:
    first = either.ask("POST", "/v1/work", key=key, json=WORK, headers={HEADER: "once"})
    before = either.rows()
    again = either.ask("POST", "/v1/work", key=key, json=WORK, headers={HEADER: "once"})
    assert (again.status_code, again.content, again.headers[REPLAYED]) == (201, first.content, "true")
    other = either.ask("POST", "/v1/work", key=key, json={**WORK, "title": "another"}, headers={HEADER: "once"})
    assert (other.status_code, code_of(other)) == (422, "idempotency_key_reused")
    assert either.rows() == before


def test_work_may_be_as_large_as_evidence_and_no_larger(deployment: Deployment, admin: str) -> None:
    large = {"title": "t", "input": {"text": "x" * 2_000_000}}
    made = deployment.ask("POST", "/v1/work", key=admin, json=large)
    assert made.status_code == 201
    assert deployment.ask("GET", f"/v1/work/{made.json()['id']}", key=admin).json()["input"] == large["input"]
    before = deployment.rows()
    large["input"] = {"text": "x" * 20_000_000}
    assert deployment.ask("POST", "/v1/work", key=admin, json=large).status_code == 413
    assert deployment.rows() == before


def test_unknown_work_is_not_found(deployment: Deployment, admin: str) -> None:
    assert deployment.ask("GET", f"/v1/work/wrk_{'0' * 34}", key=admin).status_code == 404
    assert deployment.ask("GET", "/v1/work/wrk_0", key=admin).status_code == 400


def test_the_criteria_of_work_are_as_many_as_settings_allow(deploy: Deploy) -> None:
    made = deploy(settings=Settings.parse("verification: {max_criteria_per_task: 1}", "settings"))
    reply = made.ask("POST", "/v1/work", json={"title": "t", "success_criteria": {"criteria": [PAID, PAID]}})
    assert (reply.status_code, "2 criteria; at most 1" in reply.json()["detail"]) == (400, True)


def test_without_keys_it_is_this_machine_that_gives_work_out(deploy: Deploy) -> None:
    made = deploy(settings=settings_with(requests_per_minute=100))
    assert made.ask("POST", "/v1/work", json={"title": "t"}).json()["created_by"] == "this machine"


@pytest.mark.parametrize(
    "priced",
    [
        {"token_rates": {"input_per_million": 3, "output_per_million": "15", "cached_per_million": 0.3}},
        {"tokens_at_cost": True},
    ],
)
def test_terms_that_price_tokens_are_taken(either: Deployment, key: str, priced: dict[str, Any]) -> None:
    terms = {"cpc_rate": "0.05", "max_token_cost": "0.50", **priced}
    work = either.ask("POST", "/v1/work", key=key, json={"title": "t", "terms": terms}).json()
    assert work["terms"]["rules"][-1] == "tokens"
    made = either.ask("POST", "/v1/contracts", key=key, json={"work_id": work["id"], "agent_id": "a"}).json()
    assert made["hold"] == "0.55"
    done = either.ask("POST", f"/v1/contracts/{made['id']}/complete", key=key, json={"output": {"text": "done"}}).json()
    assert done["state"] == "verification_pending"


def test_a_body_counts_once_with_its_whole_length(
    deployment: Deployment, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, counted = deployment.key(Role.OPERATOR, tenant), list[tuple[str, str, int]]()
    throttle = deployment.service.throttle
    monkeypatch.setattr(throttle, "admit_bytes", lambda *charge: counted.append(charge))
    content = b'{"title": "%s"}' % (b"x" * 100)
    typed = {"Content-Type": "application/json"}
    assert deployment.ask("POST", "/v1/work", key=key, content=content, headers=typed).status_code == 201
    assert counted == [(key.partition(".")[0], tenant, len(content))]
    huge = {**typed, "Content-Length": str(10**12)}
    assert deployment.ask("POST", "/v1/work", key=key, content=content, headers=huge).status_code == 413
    assert len(counted) == 1
