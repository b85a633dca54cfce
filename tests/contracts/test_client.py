"""Contracts from Python: invalid submissions and labels are refused."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meruit import open_market
from meruit.contracts.client import Market
from meruit.errors import MeruitError, UnknownAccount

WORK = {"title": "Write", "terms": {"cpc_rate": "0.05"}}
MOVES: dict[str, Callable[[Market, str, Any], Any]] = {
    "release": Market.release,
    "void": Market.void,
    "reverse": Market.reverse,
    "dispute": Market.dispute,
    "resolve": lambda market, contract_id, reason: market.resolve(contract_id, "uphold", reason),
}


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    with open_market(str(tmp_path)) as opened:
        yield opened
        assert opened.check() == []


@pytest.fixture(scope="module")
def unmoved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Market, str]]:
    """A contract that no refused call changes."""
    with open_market(str(tmp_path_factory.mktemp("market"))) as opened:
        contract_id = awarded(opened)
        before = opened.contract(contract_id)
        yield opened, contract_id
        assert opened.contract(contract_id) == before
        assert opened.check() == []


def awarded(market: Market) -> str:
    return market.award(market.publish(WORK).id, "heron").id


@pytest.mark.parametrize("reason", ["", " ", "x" * 201, "two\nlines", "\x1b[2J", None, 5])
@pytest.mark.parametrize("move", MOVES)
def test_a_reason_is_a_line_that_can_be_read(unmoved: tuple[Market, str], move: str, reason: Any) -> None:
    with pytest.raises(MeruitError, match=r"\b200\b"):
        MOVES[move](*unmoved, reason)


def test_a_reason_may_be_two_hundred_characters_long(market: Market) -> None:
    assert market.void(awarded(market), "ä" * 200).escrow == "released"


@pytest.mark.parametrize("claim", [float("nan"), float("inf"), float("-inf"), "1", None, True])
def test_a_claim_is_a_finite_number(market: Market, claim: Any) -> None:
    contract_id = awarded(market)
    with pytest.raises(MeruitError, match="'accuracy'"):
        market.complete(contract_id, {"text": "x"}, claims={"accuracy": claim})
    assert market.complete(contract_id, {"text": "x"}, claims={"accuracy": 1, "rougeL": 0.5}).state == "settled"


@pytest.mark.parametrize("output", [[], "text", None, 5])
def test_an_output_is_a_mapping(market: Market, output: Any) -> None:
    with pytest.raises(MeruitError, match=f"^output .*{type(output).__name__}"):
        market.complete(awarded(market), output)


@pytest.mark.parametrize("part", ["metadata", "claims"])
def test_metadata_and_claims_are_mappings(market: Market, part: str) -> None:
    with pytest.raises(MeruitError, match=f"^{part} .*list"):
        market.complete(awarded(market), {}, **{part: ["x"]})  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", ["", " ", "x" * 201, "a\nb", None])
def test_an_agent_has_a_name(market: Market, agent: Any) -> None:
    with pytest.raises(MeruitError, match=r"\b200\b"):
        market.award(market.publish(WORK).id, agent)


@pytest.mark.parametrize("rate", [-1, "many", 0.0000001])
def test_a_rate_is_an_amount(market: Market, rate: Any) -> None:
    with pytest.raises(MeruitError, match="cpc_rate: "):
        market.award(market.publish(WORK).id, "heron", rate)


def test_a_dispute_ends_in_one_of_three_ways(market: Market) -> None:
    contract_id = awarded(market)
    market.complete(contract_id, {"text": "x"})
    market.dispute(contract_id, "no")
    with pytest.raises(MeruitError, match=r"uphold.*reverse.*void.*'maybe'"):
        market.resolve(contract_id, "maybe", "x")
    assert market.resolve(contract_id, "void", "x").escrow == "released"


def test_what_is_private_is_shown_to_its_buyer(market: Market) -> None:
    found = market.publish({**WORK, "input": {"a": 1}, "private": {"b": 2}})
    assert (found.input, found.private) == ({"a": 1, "b": 2}, ["b"])


def paid(market: Market, currency: str, provider_id: str | None = None) -> str:
    work = market.publish({**WORK, "terms": {"cpc_rate": "0.05", "currency": currency, "platform_fee_rate": 0.1}})
    contract = market.award(work.id, "heron", provider_id=provider_id)
    market.complete(contract.id, {"text": f"a text in {currency}"})
    return contract.id


def test_a_statement_needs_a_currency_only_among_several(market: Market) -> None:
    paid(market, "USD")
    assert market.statement("agent:heron").closing == 45_000
    paid(market, "EUR")
    assert [one.currency for one in market.statements("agent:heron")] == ["EUR", "USD"]
    assert market.statement("agent:heron", "EUR").closing == 45_000
    with pytest.raises(MeruitError, match="EUR, USD"):
        market.statement("agent:heron")
    assert market.statement("platform", "USD").lines[0].counterparty == "agent:heron"


def test_an_unknown_account_names_the_nearest(market: Market) -> None:
    paid(market, "USD")
    for read in (market.statement, market.statements):
        with pytest.raises(UnknownAccount, match="'agent:heron'"):
            read("agent:herron")
    assert market.statement("platform").closing == 5_000


def test_an_account_that_never_moved_is_empty(market: Market) -> None:
    awarded(market)
    assert market.statement("agent:heron").lines == []
    assert market.statements("agent:heron") == []


def test_earnings_and_trust_are_read_from_python(market: Market) -> None:
    paid(market, "USD", "acme")
    contract_id = paid(market, "EUR")
    report = market.earnings(provider_id="acme")
    assert [(one.agent_id, one.net, one.fee) for one in report.earnings] == [("heron", "0.045", "0.005")]
    assert [one.currency for one in market.earnings().totals] == ["EUR", "USD"]
    market.reverse(contract_id, "by mistake")
    assert [one.net for one in market.earnings("heron", currency="EUR").totals] == ["0"]
    found = market.trust("heron")
    # Work without criteria was paid, and no one can say whether it was what was agreed.
    assert (found.score, found.inputs.left_out["no_criteria"], found.inputs.left_out["waiting"]) == (None, 1, 1)
    assert market.trust("heron", until=datetime(2020, 1, 1, tzinfo=UTC)).score is None


@pytest.mark.parametrize("provider_id", ["", "two\nlines", "x" * 201])
def test_a_provider_is_a_line_that_can_be_read(market: Market, provider_id: str) -> None:
    work = market.publish(WORK)
    with pytest.raises(MeruitError, match="provider"):
        market.award(work.id, "heron", provider_id=provider_id)
