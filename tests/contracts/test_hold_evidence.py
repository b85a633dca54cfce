"""A contract that waits says who stopped it, when, why, and on what evidence; also over Python."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contracts.test_marketplace import CLAIMING, FIRST_BYTE, WORDS, Desk
from tests.contracts.trading import CANARY, COPY, GOOD, LEAKED, REFERENCE, Trading

from meruit import open_market
from meruit.contracts.client import Market
from meruit.contracts.hold_evidence import EXCERPT_CHARS, HoldEvidence, HoldFacts, explain_reason
from meruit.contracts.payment_decision import HoldCode, HoldReason
from meruit.contracts.store.holds import load_hold, page_holds
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.transitions import FollowUsage, RecordInputRead
from meruit.errors import BadAmount, NotFound, WrongState
from meruit.governance.dossier import HandedIn
from meruit.model.access import Scope
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.model.governance import Action, Disposition, Dossier, Flag, GovernanceCheck, GovernanceResult
from meruit.model.money import ContractTokenUse
from meruit.model.usage import UsageStatus
from meruit.outcomes.store.erase import erase
from meruit.store.store import Store

MOMENT = datetime(2026, 5, 4, tzinfo=UTC)
CONTRACT = Contract(
    "con_1",
    1,
    "wrk_1",
    "ada",
    "buyer",
    None,
    ContractState.VERIFICATION_PENDING,
    Escrow.HELD,
    "USD",
    90_000,
    b"{}",
    MOMENT,
    MOMENT,
)


@pytest.fixture
def party(shared: Store, tenant: str) -> Trading:
    return Trading(shared, tenant)


def held(party: Trading | Desk, contract_id: str) -> ContractSnapshot:
    with party.store.database.reading() as connection:
        return load_hold(connection, Scope(party.tenant), contract_id, party.store.blobs)


def reasons(found: ContractSnapshot) -> list[HoldEvidence]:
    assert found.on_hold is not None
    assert found.on_hold.reasons is not None
    return found.on_hold.reasons


def about(found: ContractSnapshot) -> list[tuple[str, ...]]:
    return [(one.code, *one.about) for one in reasons(found)]


# What stops a payment, with its evidence.


def test_a_copied_reference_is_shown(party: Trading) -> None:
    contract = party.complete(party.given().id, COPY).contract
    (copied,) = reasons(held(party, contract.id))
    assert (copied.code, copied.about) == ("governance", ["reference_copy"])
    assert copied.evidence["work_id"] == contract.work_id
    assert copied.evidence["similarity"] == 1.0
    assert copied.evidence["reference"] == REFERENCE[:EXCERPT_CHARS] + "…" * (len(REFERENCE) > EXCERPT_CHARS)


def test_a_quoted_canary_is_named(party: Trading) -> None:
    contract = party.complete(party.given().id, LEAKED).contract
    found = {one.about[0]: one for one in reasons(held(party, contract.id))}
    assert found["canary_leak"].evidence["canaries"] == [CANARY]
    assert found["canary_leak"].evidence["action"] == "invalidate"


def test_times_in_the_wrong_order_are_shown_as_times(party: Trading) -> None:
    contract = party.complete(party.given().id, GOOD, {"started_at": 100.0, "ended_at": 40.0}).contract
    found = {one.about[0]: one for one in reasons(held(party, contract.id))}
    assert found["clock_order"].evidence["started_at"] == "1970-01-01T00:01:40+00:00"
    assert found["clock_order"].evidence["ended_at"] == "1970-01-01T00:00:40+00:00"


def test_what_was_not_measured_is_named_with_its_cause(party: Trading) -> None:
    contract = party.complete(party.given("timed").id).contract
    found = {one.code: one for one in reasons(held(party, contract.id))}
    assert found["unmeasured"].about == ["latency_ms"]
    assert (found["unmeasured"].evidence["metric"], found["unmeasured"].evidence["threshold"]) == ("latency_ms", 500)
    assert found["unmeasured"].evidence["cause"] == "metric_missing"
    assert found["inconclusive"].evidence["not_measured"] == ["latency_ms"]


def test_a_claim_is_shown_with_its_value(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant)
    contract = desk.completed(CLAIMING, success_criteria={"criteria": [WORDS, FIRST_BYTE]}).contract
    (claimed,) = reasons(held(desk, contract.id))
    assert (claimed.code, claimed.about) == ("only_claimed", ["time_to_first_byte"])
    assert (claimed.evidence["value"], claimed.evidence["provenance"]) == (5, "claimed")


def test_a_run_paid_elsewhere_names_the_contract(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant, policy=None)
    once = HandedIn({"text": "three honest words"}, {"run_id": "r1"})
    first, second = desk.completed(once).contract, desk.completed(once).contract
    assert about(held(desk, second.id)) == [("duplicate_claim", first.id)]


def test_tokens_that_no_run_reports_are_missed(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant)
    terms = {"cpc_rate": 10, "tokens_at_cost": True, "max_token_cost": 5}
    contract = desk.completed(terms=terms).contract
    assert about(held(desk, contract.id)) == [("usage_missing",)]


def test_a_reversal_names_the_person_and_the_version(party: Trading) -> None:
    contract = party.complete(party.given().id).contract
    party.do("reverse", contract.id, "paid too early")
    found = held(party, contract.id)
    assert found.on_hold is not None
    assert (found.on_hold.by, found.on_hold.reason) == ("me", "reversed: paid too early")
    assert [(one.code, one.evidence) for one in reasons(found)] == [("already_settled", {"version": 1})]
    party.store.recorder.write(party.rescored(contract.id))
    assert reasons(held(party, contract.id)) == []


def test_an_erased_result_is_said_to_be_erased(party: Trading) -> None:
    contract = party.complete(party.given().id, COPY).contract
    erase(party.store, party.tenant, contract.outcome_id or "", "asked")
    assert about(held(party, contract.id)) == [("erased",)]


def test_a_dispute_about_a_hold_shows_both(party: Trading) -> None:
    contract = party.complete(party.given().id, COPY).contract
    party.do("dispute", contract.id, "my own words")
    found = held(party, contract.id)
    assert about(found) == [("disputed", "me"), ("governance", "reference_copy")]
    dispute = reasons(found)[0].evidence
    assert (dispute["held"], dispute["currency"], dispute["state_before"]) == ("0.09", "USD", "verification_pending")


def test_a_page_of_holds_has_disputes_and_holds_in_order(party: Trading) -> None:
    made = [party.complete(party.given().id, text).contract.id for text in (COPY, GOOD, COPY, GOOD)]
    party.do("dispute", made[1], "no")
    seen: list[str] = []
    with party.store.database.reading() as connection:
        before = None
        while True:
            page = page_holds(connection, Scope(party.tenant), before=before, limit=2)
            seen += [one.contract.id for one in page.entries]
            assert all(one.on_hold is not None for one in page.entries)
            if page.next is None:
                break
            before = page.next
    assert seen == [made[2], made[1], made[0]]


# What no contract in these tests has.


def facts(**known: Any) -> HoldFacts:
    return HoldFacts(**{"contract": CONTRACT, "result": None, "check": None, **known})


def explained(code: HoldCode, *named: str, **known: Any) -> list[HoldEvidence]:
    return [*explain_reason(HoldReason(code, "why", named), facts(**known))]


def checked(*found: Flag | str) -> GovernanceCheck:
    result = GovernanceResult(valid=True, flags=[*found], disposition=Disposition.HOLD)
    return GovernanceCheck(Dossier(), None, {}, result, result)


@pytest.mark.parametrize("code", [*HoldCode])
def test_every_reason_can_be_explained_without_evidence(code: HoldCode) -> None:
    found = explained(code, "1")
    assert all((one.code, one.message) == (str(code), "why") for one in found)
    assert bool(found) == (code not in (HoldCode.UNMEASURED, HoldCode.ONLY_CLAIMED))


def test_flags_of_another_service_are_named() -> None:
    (said,) = explained(HoldCode.GOVERNANCE, check=checked("odd_hours"))
    assert (said.about, said.evidence) == (["odd_hours"], {"source": "remote governance"})


def test_a_rule_that_is_not_installed_is_named() -> None:
    flag = Flag("of_another:metric", "1", Action.HOLD, "metric", {"seen_at": "noon", "n": 3})
    silent = Flag("quiet", "1", Action.FLAG)
    (said,) = explained(HoldCode.GOVERNANCE, check=checked(flag, silent))
    assert (said.message, said.about) == ("of_another:metric", ["of_another:metric", "metric"])
    assert said.evidence == {"action": "hold", "seen_at": "noon", "n": 3}


def test_a_short_reference_is_shown_whole() -> None:
    flag = Flag("reference_copy", "1", Action.HOLD)
    (said,) = explained(HoldCode.GOVERNANCE, check=checked(flag), work_input={"reference": "short"})
    assert said.evidence["reference"] == "short"
    (said,) = explained(HoldCode.GOVERNANCE, check=checked(flag), work_input={"reference": 3})
    assert "reference" not in said.evidence


def test_a_run_that_is_not_verified_is_described() -> None:
    use = ContractTokenUse("run-1", UsageStatus.PENDING, 2, why="too early")
    (said,) = explained(HoldCode.USAGE_UNVERIFIED, "run-1", usage=(use,))
    assert said.evidence == {"run_id": "run-1", "status": "pending", "observations": 2, "why": "too early"}


# From Python.

WORK = {
    "title": "Name the capital of France",
    "input": {"required_keywords": ["Paris"]},
    "success_criteria": {
        "criteria": [
            {
                "metric": "contains_keywords",
                "metric_type": "contains",
                "comparison": "gte",
                "threshold": 1,
                "bonus": "0.03",
            }
        ]
    },
    "terms": {"cpc_rate": "0.05", "platform_fee_rate": 0.15},
}


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    with open_market(str(tmp_path), by="ann") as opened:
        yield opened
        assert opened.check() == []


def test_disputes_are_listed_shown_and_adjusted_from_python(market: Market) -> None:
    contract = market.award(market.publish(WORK).id, "heron")
    market.complete(contract.id, {"text": "It is Paris."})
    market.dispute(contract.id, "not Lyon?")
    (listed,) = market.holds()
    assert listed.on_hold is not None
    assert (listed.id, listed.on_hold.by, listed.on_hold.reasons) == (contract.id, "ann", None)
    shown = market.hold(contract.id).on_hold
    assert shown is not None
    assert shown.reasons is not None
    assert [one.code for one in shown.reasons] == ["disputed"]
    done = market.resolve(contract.id, "adjust", "half", amount="0.04", currency="USD")
    assert done.settlement is not None
    assert (done.settlement.total, done.settlement.fee, done.settlement.payout) == ("0.04", "0.006", "0.034")
    assert market.resolve(contract.id, "adjust", "half", amount=0.04) == done
    assert market.holds() == []
    with pytest.raises(WrongState) as refused:
        market.hold(contract.id)
    assert refused.value.code == "not_on_hold"
    with pytest.raises(NotFound):
        market.hold("con_x")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"amount": "0.080001"}, "above_paid"),
        ({"amount": -1}, "bad_amount"),
        ({"amount": float("nan")}, "bad_amount"),
        ({"amount": float("inf")}, "bad_amount"),
        ({"amount": True}, "bad_amount"),
        ({"amount": [1]}, "bad_amount"),
        ({"amount": "0.0000001"}, "bad_amount"),
        ({"amount": 0.01, "currency": "EUR"}, "wrong_currency"),
        ({"amount": 0.01, "currency": 3}, "wrong_currency"),
        ({"currency": "USD"}, "amount_missing"),
        ({}, "amount_missing"),
    ],
)
def test_an_amount_that_cannot_be_settled_on_is_refused(market: Market, given: dict[str, Any], code: str) -> None:
    contract = market.award(market.publish(WORK).id, "heron")
    market.complete(contract.id, {"text": "It is Paris."})
    market.dispute(contract.id, "not Lyon?")
    before = market.contract(contract.id)
    with pytest.raises(BadAmount) as refused:
        market.resolve(contract.id, "adjust", "half", **given)
    assert refused.value.code == code
    assert market.contract(contract.id) == before


# What an adjustment needs.


def test_an_erased_result_is_not_settled_on_an_amount(party: Trading) -> None:
    contract = party.complete(party.given().id, COPY).contract
    party.do("dispute", contract.id)
    erase(party.store, party.tenant, contract.outcome_id or "", "asked")
    with pytest.raises(WrongState) as refused:
        party.done(party.adjust(contract.id, 1))
    assert refused.value.code == "erased"
    assert party.do("undo", contract.id).contract.escrow is Escrow.RELEASED


def test_an_adjusted_payment_stays_when_its_tokens_change(shared: Store, tenant: str) -> None:
    """A person decided it; nothing that a run reports later reverses it."""
    desk, party = Desk(shared, tenant), Trading(shared, tenant)
    terms = {"cpc_rate": 10, "tokens_at_cost": True, "max_token_cost": 5}
    contract = desk.completed(terms=terms).contract
    party.do("dispute", contract.id)
    paid = party.done(party.adjust(contract.id, 3_000_000)).contract
    assert (paid.state, paid.total_micros) == (ContractState.SETTLED, 3_000_000)
    after = shared.recorder.write(FollowUsage(party.actor, contract.id))
    assert after == paid
    assert party.broken() == []


def test_a_read_of_the_input_is_no_hold(party: Trading) -> None:
    contract = party.given()
    actor = msgspec.structs.replace(party.actor, scope=Scope(party.tenant, "a1", only_own=True))
    party.store.recorder.write(RecordInputRead(actor, contract.work_id))
    with pytest.raises(WrongState):
        held(party, contract.id)


def test_evidence_survives_json() -> None:
    evidence = HoldEvidence("governance", "why", ["rule"], {"n": 1, "names": ["a"]})
    assert HoldEvidence.from_json(evidence.to_json()) == evidence
    assert msgspec.json.decode(evidence.to_json())["evidence"] == {"n": 1, "names": ["a"]}
