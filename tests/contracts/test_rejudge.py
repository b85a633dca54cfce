"""A contract paid by a better verdict: reversed, judged again by its own criteria, and settled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from meruit import Market, open_market
from meruit.audit.export import export
from meruit.audit.verify.outcome import verify_bundle
from meruit.contracts.lifecycle import Operation
from meruit.contracts.rejudge import rejudge
from meruit.contracts.store.read import OPERATION_ORDER
from meruit.contracts.store.transaction import Actor
from meruit.errors import WrongState
from meruit.model.access import Scope
from meruit.outcomes.store.erase import erase

ACTOR = Actor(Scope("default"), "tester")
WORK = {
    "title": "Count to three",
    "success_criteria": {
        "criteria": [
            {
                "metric": "word_count",
                "metric_type": "count",
                "comparison": "in_range",
                "threshold": [3, 5],
                "bonus": 0.03,
            }
        ]
    },
    "terms": {"cpc_rate": "0.05"},
}


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    with open_market(tmp_path) as opened:
        yield opened


def paid(market: Market) -> tuple[str, str]:
    """The ids of a settled contract and its outcome."""
    contract = market.award(market.publish(WORK).id, "heron")
    done = market.complete(contract.id, {"text": "one two three"})
    assert done.outcome is not None
    return contract.id, done.outcome.outcome_id


def test_a_reversed_contract_is_paid_by_a_later_verdict(market: Market) -> None:
    contract_id, outcome_id = paid(market)
    market.reverse(contract_id, "by mistake")
    with pytest.raises(WrongState) as refused:
        market.settle(contract_id)
    assert refused.value.code == "already_settled"
    standing = rejudge(market.marketplace, ACTOR, contract_id, "reversed by mistake")
    assert standing.judgement is not None
    assert (standing.judgement.version, standing.contract.state) == (2, "verification_pending")
    done = market.settle(contract_id)
    assert done.settlement is not None
    assert (done.state, done.settlement.number, done.settlement.version, done.settlement.total) == (
        *("settled", 2, 2, "0.08"),
    )
    assert market.check() == []
    found = verify_bundle(export(market.marketplace.store, Scope("default"), outcome_id))
    assert found.failed is None, found


def test_judging_again_alone_moves_no_money(market: Market) -> None:
    contract_id, _ = paid(market)
    before = market.balances()
    rejudge(market.marketplace, ACTOR, contract_id, "to be sure")
    after = market.contract(contract_id)
    assert after.settlement is not None
    assert (after.state, after.settlement.version, market.balances()) == ("settled", 1, before)


def test_operations_of_one_moment_are_listed_in_order(market: Market) -> None:
    contract_id, _ = paid(market)
    market.dispute(contract_id, "not so")
    market.resolve(contract_id, "void", "agreed")
    history = market.contract(contract_id).history
    assert history is not None
    assert [(move.operation, move.reason) for move in history] == [
        *(("award", ""), ("complete", ""), ("settle", "")),
        *(("dispute", "not so"), ("resolve", "agreed"), ("reverse", "agreed"), ("void", "agreed")),
    ]
    assert {move.by for move in history} == {"python"}
    assert sorted(OPERATION_ORDER) == sorted(Operation)


def test_work_without_criteria_can_be_judged_again(market: Market) -> None:
    contract = market.award(market.publish({"title": "Anything", "terms": {"cpc_rate": 1}}).id, "heron")
    market.complete(contract.id, {"text": "done"})
    market.reverse(contract.id, "by mistake")
    rejudge(market.marketplace, ACTOR, contract.id, "reversed by mistake")
    assert market.settle(contract.id).state == "settled"
    assert market.check() == []


def test_without_an_output_there_is_nothing_to_judge(market: Market) -> None:
    contract = market.award(market.publish(WORK).id, "heron")
    with pytest.raises(WrongState) as refused:
        rejudge(market.marketplace, ACTOR, contract.id, "too early")
    assert refused.value.code == "wrong_state"


def test_what_was_erased_is_not_judged_again(market: Market) -> None:
    contract_id, outcome_id = paid(market)
    erase(market.marketplace.store, "default", outcome_id, "asked to")
    with pytest.raises(WrongState, match="erased") as refused:
        rejudge(market.marketplace, ACTOR, contract_id, "too late")
    assert refused.value.code == "not_judged"
