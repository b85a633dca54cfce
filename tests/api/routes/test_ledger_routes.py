"""The books over HTTP: balances that sum to zero, statements by account and period, and who sees which."""

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.api.conftest import Deploy, Deployment
from tests.api.routes.test_contracts import GOOD, awarded, completed, moved, told

from meruit.api.routes import ledger
from meruit.model.access import Role
from meruit.store.store import ClockAndEntropy


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def statement(deployment: Deployment, key: str, **params: Any) -> Any:
    params = {name.removesuffix("_"): value for name, value in {"currency": "EUR", **params}.items()}
    reply = deployment.ask("GET", "/v1/ledger/statement", key=key, params=params)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    (only,) = found.pop("statements")
    return {**found, **only}


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text, newline=""))]


def test_balances_of_a_currency_sum_to_zero(either: Deployment, key: str) -> None:
    assert either.ask("GET", "/v1/ledger/balances", key=key).json() == {"balances": []}
    completed(either, key, awarded(either, key))
    awarded(either, key, terms={"cpc_rate": "1.000001", "currency": "USD"})
    found = either.ask("GET", "/v1/ledger/balances", key=key).json()["balances"]
    assert {(one["account"], one["currency"]): one["balance"] for one in found} == {
        ("agent:robot", "EUR"): "0.0595",
        ("consumer:shop", "EUR"): "-0.07",
        ("platform", "EUR"): "0.0105",
        ("escrow", "EUR"): "0",
        ("consumer:shop", "USD"): "-1.020001",
        ("escrow", "USD"): "1.020001",
    }


def test_a_statement_lists_every_movement(either: Deployment, key: str) -> None:
    contract = awarded(either, key)
    completed(either, key, contract, {"text": "nothing of the kind"})
    moved(either, key, contract, "reverse", {"reason": "by mistake"})
    found = statement(either, key, account="consumer:shop")
    assert [(line["operation"], line["amount"], line["balance"]) for line in found["lines"]] == [
        ("hold", "-0.07", "-0.07"),
        ("settle", "0.03", "-0.04"),
        ("reverse", "-0.03", "-0.07"),
    ]
    assert {line["contract_id"] for line in found["lines"]} == {contract}
    assert (found["opening"], found["closing"], found["next"]) == ("0", "-0.07", None)
    assert statement(either, key, account=f"escrow:{contract}")["closing"] == "0.07"
    assert statement(either, key, account="platform")["closing"] == "0"
    assert statement(either, key, account="platform", currency="USD")["lines"] == []
    reply = either.ask("GET", "/v1/ledger/statement", key=key, params={"account": "agent:robbot"})
    assert (*told(reply), "'agent:robot'" in reply.text) == (404, "unknown_account", True)


def test_a_statement_without_a_currency_has_all(either: Deployment, key: str) -> None:
    completed(either, key, awarded(either, key))
    completed(either, key, awarded(either, key, terms={"cpc_rate": "1.000001", "currency": "USD"}))
    reply = either.ask("GET", "/v1/ledger/statement", key=key, params={"account": "agent:robot"}).json()
    assert [one["currency"] for one in reply["statements"]] == ["EUR", "USD"]
    (line,) = reply["statements"][0]["lines"]
    assert (line["title"], line["counterparty"]) == ("Summarise", "consumer:shop")
    assert (line["gross"], line["fee"], line["net"]) == ("0.07", "0.0105", "0.0595")


def test_statements_balances_and_earnings_are_written_as_csv(either: Deployment, tenant: str, key: str) -> None:
    completed(either, key, awarded(either, key))
    agent = either.key(Role.AGENT, tenant)

    def rows(path: str, who: str = key, **params: str) -> list[dict[str, str]]:
        reply = either.ask("GET", f"/v1/ledger/{path}", key=who, params={**params, "format": "csv"})
        assert (reply.status_code, reply.headers["content-type"][:8]) == (200, "text/csv"), reply.text
        return rows_of(reply.text)

    assert {row["account"]: row["balance"] for row in rows("balances")}["consumer:shop"] == "-0.07"
    opening, line, total = rows("statement", account="agent:robot")
    assert (opening["record"], line["counterparty"], total["net"]) == ("opening", "consumer:shop", "0.0595")
    assert rows("statement", agent)[1]["counterparty"] == ""
    day, total = rows("earnings")
    assert (day["agent_id"], day["provider_id"], day["net"], total["gross"]) == ("robot", "robot", "0.0595", "0.07")


def test_earnings_are_filtered_and_an_agent_sees_its_own(either: Deployment, tenant: str, key: str) -> None:
    completed(either, key, awarded(either, key))
    completed(either, key, awarded(either, key, "other"))

    def agents(who: str, **params: str) -> list[str]:
        reply = either.ask("GET", "/v1/ledger/earnings", key=who, params=params)
        assert reply.status_code == 200, reply.text
        return [one["agent_id"] for one in reply.json()["earnings"]]

    assert agents(key) == ["other", "robot"]
    assert agents(key, provider_id="robot", currency="EUR") == agents(key, agent_id="robot") == ["robot"]
    assert agents(key, agent_id="robot", since="2099-01-01T00:00:00Z") == []
    agent = either.key(Role.AGENT, tenant)
    assert agents(agent) == agents(agent, agent_id="robot") == ["robot"]
    reply = either.ask("GET", "/v1/ledger/earnings", key=agent, params={"agent_id": "other"})
    assert told(reply) == (403, "forbidden")
    assert told(either.ask("GET", "/v1/ledger/earnings", key=key, params={"currency": "eur"})) == (400, "invalid")


def test_too_many_earnings_are_refused(deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    completed(deployment, admin, awarded(deployment, admin))
    monkeypatch.setattr(ledger, "MAX_EARNINGS", 0)
    assert told(deployment.ask("GET", "/v1/ledger/earnings", key=admin)) == (409, "too_many_rows")


def test_an_agent_sees_its_own_account_alone(either: Deployment, tenant: str, key: str) -> None:
    agent, other = either.key(Role.AGENT, tenant), either.key(Role.AGENT, tenant, agent_id="other")
    completed(either, key, awarded(either, key))
    mine = statement(either, agent)
    assert mine == statement(either, agent, account="agent:robot")
    theirs = statement(either, key, account="agent:robot")
    assert mine["lines"] == [{**line, "counterparty": None} for line in theirs["lines"]]
    assert (mine["account"], mine["closing"]) == ("agent:robot", "0.0595")
    assert statement(either, other)["lines"] == []
    for account in ("agent:robot", "agent:", "consumer:shop", "platform", "agent:other2"):
        reply = either.ask("GET", "/v1/ledger/statement", key=other, params={"account": account, "currency": "EUR"})
        assert told(reply) == (403, "forbidden")
    assert either.ask("GET", "/v1/ledger/balances", key=agent).status_code == 403


def test_a_statement_has_a_period(deploy: Deploy) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now[0]))
    key = made.key(Role.OPERATOR)
    for _ in range(3):
        completed(made, key, awarded(made, key, "robot"))
        now[0] += timedelta(days=1)
    whole = {"account": "agent:robot"}
    found = statement(made, key, **whole, from_="2030-01-02T00:00:00Z", to="2030-01-03T00:00:00Z")
    assert (found["opening"], found["closing"], len(found["lines"])) == ("0.0595", "0.119", 1)
    assert (found["from"], found["to"]) == ("2030-01-02T00:00:00Z", "2030-01-03T00:00:00Z")
    moment = "2030-01-02T02:30:00.000001+02:30"
    assert len(statement(made, key, **whole, from_=moment)["lines"]) == 1
    assert len(statement(made, key, **whole, to=moment)["lines"]) == 2
    assert statement(made, key, **whole, from_=moment, to=moment)["lines"] == []


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"account": "platform", "currency": "EURO"}, "currency"),
        ({"account": "platform", "currency": "XXQ"}, "currency"),
        ({"currency": "EUR"}, "account"),
        ({"currency": "EUR", "account": "robot"}, "account"),
        ({"currency": "EUR", "account": ""}, "account"),
        ({"currency": "EUR", "account": "agent:a\nb"}, "account"),
        ({"currency": "EUR", "account": f"agent:{'x' * 300}"}, "account"),
        *(
            ({"currency": "EUR", "account": "platform", name: moment}, name)
            for name in ("from", "to")
            for moment in (
                *("yesterday", "2030-01-01", "2030-01-01T00:00:00", "20300101T000000Z", "2030-W01-1T00:00:00Z"),
                *("2030-02-30T00:00:00Z", "2030-01-01T25:00:00Z", "2030-01-01T00:00:00 00:00", "1893456000", ""),
                *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "２０３０-01-01T00:00:00Z"),
            )
        ),
        (
            {"currency": "EUR", "account": "platform", "from": "2030-01-02T00:00:00Z", "to": "2030-01-01T00:00:00Z"},
            "from",
        ),
    ],
)
def test_an_invalid_period_or_account_is_named(
    deployment: Deployment, admin: str, params: dict[str, str], field: str
) -> None:
    reply = deployment.ask("GET", "/v1/ledger/statement", key=admin, params=params)
    assert (reply.status_code, reply.json()["errors"][0]["where"]) == (400, field), reply.text


def test_a_long_statement_comes_in_pages_that_join(
    either: Deployment, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_LINES", 3)
    for _ in range(7):
        awarded(either, key)
    pages = [statement(either, key, account="consumer:shop")]
    while pages[-1]["next"] is not None:
        pages.append(statement(either, key, account="consumer:shop", from_=pages[-1]["next"]))
        assert pages[-1]["opening"] == pages[-2]["closing"]
        assert len(pages) < 10
    monkeypatch.undo()
    lines = [line for page in pages for line in page["lines"]]
    assert lines == statement(either, key, account="consumer:shop")["lines"]
    assert (len(lines), max(len(page["lines"]) for page in pages)) == (7, 3)


def test_too_many_movements_at_one_time_are_refused(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_LINES", 3)
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: datetime(2030, 1, 1, tzinfo=UTC)))
    key = made.key(Role.OPERATOR)
    for _ in range(4):
        awarded(made, key)
    params = {"account": "consumer:shop", "currency": "EUR"}
    assert told(made.ask("GET", "/v1/ledger/statement", key=key, params=params)) == (409, "too_many_lines")


def test_too_many_accounts_are_refused(deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_ACCOUNTS", 2)
    contract = awarded(deployment, admin)
    assert deployment.ask("GET", "/v1/ledger/balances", key=admin).status_code == 200
    moved(deployment, admin, contract, "complete", {"output": GOOD})
    assert told(deployment.ask("GET", "/v1/ledger/balances", key=admin)) == (409, "too_many_accounts")
