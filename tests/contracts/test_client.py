"""Contracts from Python: invalid submissions and labels are refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meruit import open_market
from meruit.contracts.client import Market
from meruit.errors import MeruitError

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
