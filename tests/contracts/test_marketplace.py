"""Publishing work and completing contracts: what is refused, held and paid."""

import asyncio
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from meruit.app import build_engine, build_marketplace
from meruit.config import Settings
from meruit.contracts import marketplace as work
from meruit.contracts.invariants import find_violations
from meruit.contracts.marketplace import Marketplace, completion_fingerprint
from meruit.contracts.payment_decision import Hold, decide_payment
from meruit.contracts.settlement import load_payment_facts
from meruit.contracts.store import ledger
from meruit.contracts.store import work as works
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.store.transaction import Actor, ContractRequest, ContractTransaction
from meruit.contracts.store.work import WorkRow
from meruit.contracts.transitions import (
    UNAVAILABLE,
    AwardContract,
    CompleteContract,
    ReleaseContract,
    SettleContract,
    VoidContract,
)
from meruit.errors import (
    AmountTooLarge,
    BadRunId,
    BalanceTooLarge,
    BrokenCriteria,
    CanaryShown,
    ConfigError,
    CriteriaError,
    MeruitError,
    NotFound,
    NullAgentPasses,
    RulesContradictTerms,
    UnknownName,
    WrongState,
)
from meruit.events.store.outbox import events_after
from meruit.governance.dossier import HandedIn
from meruit.log.commitment import SALT_BYTES
from meruit.model.access import Scope
from meruit.model.contract import ContractState, Escrow, WorkSubmission
from meruit.model.governance import Action, Disposition, Flag, GovernanceResult, Policy
from meruit.model.money import Line, PricePart
from meruit.model.verdict import GovernanceStatus, Verdict
from meruit.outcomes.service import SMALL_BYTES, Registrar
from meruit.registry import SettlementContext, SettlementRule, settlement_rules
from meruit.store import tables
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

ENGINE = build_engine(Settings())
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3, "bonus": 5}
FAST = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 1000, "penalty": 2}
KEYWORDS = {"metric": "contains_keywords", "metric_type": "contains", "comparison": "gte", "threshold": 1, "bonus": 5}
WORK = {"title": "Write", "success_criteria": {"criteria": [WORDS]}, "terms": {"cpc_rate": 10}}
GOOD = HandedIn({"text": "three honest words"}, {"duration_ms": 10})


class Desk:
    """One tenant's marketplace."""

    def __init__(self, store: Store, tenant: str, **options: Any) -> None:
        self.store, self.tenant = store, tenant
        self.market = Marketplace(Registrar(ENGINE, store), **options)
        self.actor = Actor(Scope(tenant), "tester")
        self.request = ContractRequest(self.actor)

    def publish(self, **parts: Any) -> WorkRow:
        found = self.store.recorder.write(self.market.publish(self.actor, WorkSubmission.model_validate(WORK | parts)))
        assert isinstance(found, WorkRow)
        return found

    def award(self, agent: str = "a1", **parts: Any) -> str:
        contract_id = self.store.surroundings.new_id("ctr")
        self.write(AwardContract(self.request, contract_id, self.publish(**parts).id, agent))
        return contract_id

    def write(self, move: Any) -> ContractSnapshot:
        standing = self.store.recorder.write(move)
        assert isinstance(standing, ContractSnapshot)
        assert self.broken() == []
        return standing

    def broken(self) -> list[str]:
        with self.store.database.reading() as connection:
            return find_violations(ledger.books(connection, self.tenant))

    def drafted(self, contract_id: str, handed: HandedIn = GOOD) -> CompleteContract:
        return self.market.completion_sync(self.request, self.market.find_contract(self.actor, contract_id), handed)

    def drafted_async(self, contract_id: str, handed: HandedIn = GOOD) -> CompleteContract:
        case = self.market.find_contract(self.actor, contract_id)
        return asyncio.run(self.market.completion(self.request, case, handed))

    def completed(self, handed: HandedIn = GOOD, **parts: Any) -> ContractSnapshot:
        return self.write(self.drafted(self.award(**parts), handed))

    def why_held(self, contract_id: str) -> tuple[str, ...]:
        """Code and subject of the reason that a contract shows."""
        found: list[tuple[str, ...]] = []

        def decide(writing: WriteTransaction) -> None:
            step = ContractTransaction(writing, self.actor)
            contract = step.load(contract_id)
            decision = decide_payment(load_payment_facts(step, contract))
            assert isinstance(decision, Hold)
            assert contract.hold_reason == decision.message
            found.append((str(decision.reasons[0].code), *decision.reasons[0].about))

        self.store.recorder.write(decide)
        return found[0]

    def paid(self) -> int:
        """What all agents together have."""
        with self.store.database.reading() as connection:
            found = ledger.balances(connection, self.tenant)
        return sum(one.micros for one in found if one.account.startswith("agent:"))

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        with self.store.database.reading() as connection:
            events = events_after(connection, 0, tenant=self.tenant)
        return [one.event.data for one in events if one.event.event_type == kind]


@pytest.fixture
def desk(shared: Store, tenant: str) -> Desk:
    return Desk(shared, tenant)


# Publishing.


def test_published_work_emits_its_event(desk: Desk) -> None:
    found = desk.publish(input={"document": "x", "reference": "secret"}, consumer_id="buyer")
    assert (found.consumer_id, found.has_cpa, found.criteria_digest is not None) == ("buyer", True, True)
    (event,) = desk.events_of("work.submitted")
    assert (event["work_id"], event["has_cpa"], event["has_criteria"]) == (found.id, True, True)
    assert "secret" not in str(event)


@pytest.mark.parametrize(
    ("criteria", "cpa", "has_criteria"),
    [
        (None, False, False),
        ({"criteria": [{**WORDS, "bonus": None}]}, False, True),
        ({"criteria": [{**WORDS, "bonus": 0}]}, False, True),
        ({"criteria": [{**WORDS, "bonus": None, "penalty": "0.000001"}]}, True, True),
    ],
)
def test_criteria_without_money_are_not_per_action(desk: Desk, criteria: Any, cpa: bool, has_criteria: bool) -> None:
    desk.publish(success_criteria=criteria)
    (event,) = desk.events_of("work.submitted")
    assert (event["has_cpa"], event["has_criteria"]) == (cpa, has_criteria)


EASY = {"criteria": [{**WORDS, "comparison": "lte", "threshold": 5}]}
ECHO = {"criteria": [{**WORDS, "threshold": 2}]}


def test_criteria_that_an_idle_agent_meets_are_refused(desk: Desk) -> None:
    with pytest.raises(NullAgentPasses, match=r"empty text.*echo"):
        desk.publish(success_criteria=EASY)
    with pytest.raises(NullAgentPasses, match="echo"):
        desk.publish(success_criteria=ECHO, input={"question": "what is it"})
    assert desk.publish(success_criteria=ECHO, input={"reference": "hidden from every agent"}).criteria is not None
    assert len(desk.events_of("work.submitted")) == 1


def test_the_reason_to_accept_idle_agents_is_recorded(desk: Desk) -> None:
    found = desk.publish(success_criteria=EASY, accept_null_agent="a smoke test")
    assert found.submission.accept_null_agent == "a smoke test"
    assert [event["null_agent_accepted"] for event in desk.events_of("work.submitted")] == ["a smoke test"]


# Criteria that are proven wrong.

ROUGE = {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5, "bonus": 1}
ACCURACY = {"metric": "accuracy", "metric_type": "accuracy", "comparison": "gte", "threshold": 0.9}
SCHEMA = {"metric": "matches_schema", "metric_type": "matches_schema", "comparison": "eq", "threshold": True}


def codes_of(desk: Desk, *criteria: dict[str, Any], **parts: Any) -> list[tuple[str, str]]:
    """Where and why publishing is refused."""
    with pytest.raises(BrokenCriteria) as refused:
        desk.publish(success_criteria={"criteria": [*criteria]}, **parts)
    assert desk.events_of("work.submitted") == []
    return [(problem.where.rpartition(".")[2], problem.code) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("criteria", "found"),
    [
        ([{**WORDS, "comparison": "lt", "threshold": 0}], [("criteria[0]", "never_met")]),
        ([WORDS, {**WORDS, "id": "b", "comparison": "lte", "threshold": 1}], [("criteria[0]", "contradictory")]),
        ([WORDS, {**WORDS, "id": "b", "threshold": 0}], [("criteria[1]", "never_fails")]),
        ([WORDS, ROUGE], [("criteria[1]", "missing_input")]),
        ([{**WORDS, "metric_type": "accuracy", "threshold": 0.5}], [("criteria[0]", "wrong_type")]),
    ],
)
def test_criteria_that_are_proven_wrong_are_refused(desk: Desk, criteria: list[Any], found: list[Any]) -> None:
    assert codes_of(desk, *criteria) == found


@pytest.mark.parametrize(
    ("criterion", "lacking", "given"),
    [
        (ROUGE, {}, {"reference": "a text to compare with"}),
        (ROUGE, {"reference": ""}, {"reference": "a text to compare with"}),
        (ROUGE, {"reference": ["a", "b"]}, {"reference": "a text to compare with"}),
        ({**ROUGE, "metric": "bleu_score", "metric_type": "bleu_score"}, {}, {"reference": "a text to compare with"}),
        (ACCURACY, {}, {"ground_truth": ["spam", "ham"]}),
        (ACCURACY, {"ground_truth": []}, {"ground_truth": ["spam", "ham"]}),
        (ACCURACY, {"ground_truth": ["spam", None]}, {"ground_truth": ["spam", "ham"]}),
        ({**ACCURACY, "metric": "f1_score", "metric_type": "f1_score"}, {}, {"ground_truth": ["spam", "ham"]}),
        (KEYWORDS, {}, {"required_keywords": ["weir"]}),
        (SCHEMA, {}, {"output_schema": {"required": ["id"]}}),
        (SCHEMA, {"output_schema": {"type": "objekt"}}, {"output_schema": {"required": ["id"]}}),
    ],
)
def test_criteria_need_what_they_compare_with(desk: Desk, criterion: Any, lacking: Any, given: Any) -> None:
    assert codes_of(desk, criterion, input=lacking) == [("criteria[0]", "missing_input")]
    assert desk.publish(success_criteria={"criteria": [criterion]}, input=given).criteria is not None
    assert desk.publish(success_criteria={"criteria": [criterion]}, private=given).criteria is not None


def test_a_proven_error_is_published_when_its_code_is_accepted(desk: Desk) -> None:
    criteria = {"criteria": [{**WORDS, "comparison": "lt", "threshold": 0}, {**ROUGE}]}
    with pytest.raises(BrokenCriteria) as refused:
        desk.publish(success_criteria=criteria, accept_findings=["never_met"])
    assert [problem.code for problem in refused.value.problems] == ["missing_input"]
    found = desk.publish(success_criteria=criteria, accept_findings=["never_met", "missing_input", "never_fails"])
    assert found.submission.accept_findings == ("never_met", "missing_input", "never_fails")
    assert works.to_work_view(found).accept_findings == ["never_met", "missing_input", "never_fails"]
    # The event says what was found, not what would have been accepted too.
    assert desk.events_of("work.submitted")[0]["findings_accepted"] == ["never_met", "missing_input"]


def test_planted_work_needs_no_second_word(desk: Desk) -> None:
    never = {"criteria": [{**WORDS, "comparison": "lt", "threshold": 0}]}
    assert desk.publish(success_criteria=never, impossible=True).criteria is not None
    always = {"criteria": [{**WORDS, "threshold": 0}]}
    assert desk.publish(success_criteria=always, accept_null_agent="a smoke test").criteria is not None
    assert desk.events_of("work.submitted")[0]["findings_accepted"] == ["never_met"]


def test_every_reason_is_in_one_list(desk: Desk) -> None:
    found = codes_of(desk, {**WORDS, "threshold": 0})
    assert found == [("criteria[0]", "never_fails"), ("success_criteria", "null_agent_passes")]


def test_what_is_proven_on_paper_is_refused_before_code_runs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("code ran")

    monkeypatch.setattr(Registrar, "validate", run)
    own = [{"metrics": ["mine"], "code": "def metric(input, output, metadata):\n    return {'mine': 1}\n"}]
    with pytest.raises(BrokenCriteria) as refused:
        desk.publish(success_criteria={"criteria": [ROUGE, {**WORDS, "metric": "mine"}], "custom_metrics": own})
    assert [problem.code for problem in refused.value.problems] == ["missing_input"]


@pytest.mark.parametrize("policy", [None, Policy()])
def test_idle_agents_are_tried_also_without_governance(shared: Store, tenant: str, policy: Policy | None) -> None:
    with pytest.raises(NullAgentPasses):
        Desk(shared, tenant, policy=policy).publish(success_criteria=EASY)


def test_idle_agents_are_not_tried_where_the_policy_says_so(shared: Store, tenant: str) -> None:
    assert Desk(shared, tenant, policy=Policy(off=["null_agent_pass"])).publish(success_criteria=EASY).has_cpa


def test_an_unknown_rule_is_refused_before_anything_is_recorded(desk: Desk) -> None:
    with pytest.raises(UnknownName, match="'cpm'"):
        desk.publish(terms={"cpc_rate": 1, "rules": ["cpc", "cpm"]})
    assert desk.events_of("work.submitted") == []


def test_more_money_than_can_be_counted_is_refused(desk: Desk) -> None:
    most = "8000000000"
    several = [{**WORDS, "id": str(number), "bonus": most} for number in range(3)]
    with pytest.raises(AmountTooLarge):
        desk.publish(success_criteria={"criteria": several})
    assert desk.publish(success_criteria={"criteria": several}, budget={"max_bonus": 5}).has_cpa
    # Without a rate, the award is refused.
    named_later = desk.publish(success_criteria={"criteria": several}, terms={})
    with pytest.raises(AmountTooLarge):
        desk.write(AwardContract(desk.request, "ctr", named_later.id, "a1", 1))


@pytest.mark.parametrize(
    ("criterion", "says"),
    [
        ({**WORDS, "params": {"nothing": 1}}, "params"),
        ({"assert": "no_such_check", "threshold": 1}, "no_such_check"),
        ({"expr": "1 +", "metric_type": "numeric", "comparison": "gte", "threshold": 1}, "expr"),
    ],
)
def test_criteria_that_cannot_be_judged_are_refused(desk: Desk, criterion: Any, says: str) -> None:
    with pytest.raises((CriteriaError, ValueError), match=says):
        desk.publish(success_criteria={"criteria": [criterion]})


# Completing.


def test_what_was_done_is_judged_believed_and_paid_at_once(desk: Desk) -> None:
    done = desk.completed()
    assert (done.contract.state, done.contract.escrow) == (ContractState.SETTLED, Escrow.PAID)
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert (done.judgement.result.verdict, done.judgement.result.governance) == (Verdict.PASS, GovernanceStatus.CLEAR)
    assert done.bill is not None
    assert done.bill.total == desk.paid() == 15_000_000


def test_work_without_criteria_is_paid_by_completion(desk: Desk) -> None:
    done = desk.completed(success_criteria=None)
    assert done.bill is not None
    assert (done.bill.base, done.bill.bonus, done.bill.total) == (10_000_000, 0, 10_000_000)


@pytest.mark.parametrize(
    "handed",
    [
        GOOD,
        HandedIn({"text": "no"}, {}),
        HandedIn({"text": "agent's own words"}, {"duration_ms": 9e6, "run_id": "3"}, {"word_count": 3}, by_agent=True),
        msgspec.structs.replace(GOOD, size=SMALL_BYTES + 1),
    ],
)
@pytest.mark.parametrize("remote", [None, GovernanceResult(valid=True, disposition=Disposition.HOLD, flags=["odd"])])
def test_with_and_without_an_event_loop_a_completion_is_the_same(
    shared: Store, tenant: str, handed: HandedIn, remote: GovernanceResult | None
) -> None:
    desk = Desk(shared, tenant, remote=None if remote is None else Answering(remote))
    # An agent's time is measured by the clock here, which goes on.
    contract_id = desk.award(success_criteria={"criteria": [WORDS] if handed.by_agent else [WORDS, FAST]})
    drafts = [desk.drafted(contract_id, handed), desk.drafted_async(contract_id, handed)]
    one, other = ({**msgspec.structs.asdict(draft), "outcome": None, "salt": None} for draft in drafts)
    now = {"received_at": 0.0}
    one["dossier"], other["dossier"] = (msgspec.structs.replace(part["dossier"], **now) for part in (one, other))
    assert one == other
    assert len({draft.salt for draft in drafts}) == 2
    results = [
        msgspec.structs.replace(draft.outcome.result, verified_at=None, metadata_digest=None) for draft in drafts
    ]
    assert results[0] == results[1]
    standing = desk.write(drafts[1])
    assert (standing.contract.escrow is Escrow.PAID) <= (remote is None)
    # The first is a second request for the same.
    assert desk.write(drafts[0]).contract == standing.contract


def test_another_tenants_contract_is_none(desk: Desk, shared: Store) -> None:
    contract_id = desk.award()
    with pytest.raises(NotFound):
        desk.market.find_contract(Actor(Scope("another tenant"), "x"), contract_id)
    with pytest.raises(NotFound):
        desk.market.find_contract(Actor(Scope(desk.tenant, "a2", only_own=True), "x"), contract_id)
    assert (
        desk.market.find_contract(Actor(Scope(desk.tenant, "a1", only_own=True), "x"), contract_id).contract.id
        == contract_id
    )


def test_work_is_the_same_however_often_and_however_large(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_CACHED", 1)
    desk.market = Marketplace(desk.market.registrar)
    large = {"document": "x" * SMALL_BYTES, "reference": "y"}
    contracts = [desk.award(input=given) for given in ({"a": 1}, {"b": 2}, large)]
    for _ in range(2):
        inputs = [desk.market.find_contract(desk.actor, contract_id).input for contract_id in contracts]
        assert inputs == [{"a": 1}, {"b": 2}, large]
    assert len(desk.market._cached_works) == 1


def test_an_input_that_is_not_json_is_refused(desk: Desk) -> None:
    with pytest.raises(MeruitError, match="input"):
        desk.publish(input={"exactly": Decimal("0.1")})


def test_output_that_is_not_json_is_neither_judged_nor_paid(desk: Desk) -> None:
    contract_id = desk.award()
    with pytest.raises(MeruitError):
        desk.drafted(contract_id, HandedIn({"text": object()}, {}))
    assert desk.paid() == 0


def test_output_that_cannot_be_judged_is_refused(desk: Desk) -> None:
    contract_id = desk.award()
    with pytest.raises(MeruitError, match="work_output is list"):
        desk.drafted(contract_id, HandedIn([], {}))  # type: ignore[arg-type]


# What only the agent says.

FIRST_BYTE = {
    "metric": "time_to_first_byte",
    "metric_type": "latency",
    "comparison": "lte",
    "threshold": 100,
    "required": False,
    "penalty": 2,
}
CLAIMING = HandedIn({"text": "three honest words"}, {"ttfb_ms": 5}, by_agent=True)


def test_a_claim_that_avoids_a_penalty_is_held(desk: Desk) -> None:
    criteria = {"criteria": [WORDS, FIRST_BYTE]}
    held = desk.completed(CLAIMING, success_criteria=criteria).contract
    assert (held.state, held.escrow) == (ContractState.VERIFICATION_PENDING, Escrow.HELD)
    assert desk.why_held(held.id) == ("only_claimed", "time_to_first_byte")
    with pytest.raises(WrongState, match="time_to_first_byte") as refused:
        desk.write(SettleContract(desk.request, held.id))
    assert refused.value.code == "on_hold"
    assert (
        desk.write(ReleaseContract(desk.request, held.id, "seen it", b"s" * SALT_BYTES)).contract.escrow is Escrow.PAID
    )
    trusting = desk.completed(
        CLAIMING, success_criteria=criteria, terms={"cpc_rate": 10, "claimed_may_earn": True}
    ).contract
    assert trusting.escrow is Escrow.PAID


# Rules of plugins.


@pytest.fixture
def plugin() -> Iterator[list[Any]]:
    """What the rule of a plugin returns; an exception is raised."""
    answers: list[Any] = [[]]

    def apply(context: SettlementContext) -> Any:
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    settlement_rules.names()
    settlement_rules.put(SettlementRule("of_a_plugin", "Whatever it likes.", apply))
    yield answers
    settlement_rules._found.pop("of_a_plugin", None)


PLUGIN_TERMS = {"cpc_rate": 10, "rules": ["cpc", "cpa_bonus", "claimed_only", "of_a_plugin"]}


@pytest.mark.parametrize("answer", [RuntimeError("down"), [Line("x", PricePart.CPC, 0.5, "y")], None])  # type: ignore[arg-type]
def test_a_rule_that_fails_holds_what_it_cannot_bill(desk: Desk, plugin: list[Any], answer: Any) -> None:
    plugin[0] = answer
    held = desk.completed(terms=PLUGIN_TERMS)
    assert (held.contract.state, held.bill) == (ContractState.VERIFICATION_PENDING, None)
    assert desk.why_held(held.contract.id) == ("rule_failed",)
    assert "of_a_plugin" in held.contract.hold_reason
    assert desk.events_of("contract.held")[0]["reason"] == held.contract.hold_reason
    for move in (
        SettleContract(desk.request, held.contract.id),
        ReleaseContract(desk.request, held.contract.id, "x", b"s" * 16),
    ):
        with pytest.raises(WrongState, match="of_a_plugin") as refused:
            desk.write(move)
        assert refused.value.code == "rule_failed"
        assert desk.broken() == []
    plugin[0] = []
    assert desk.write(SettleContract(desk.request, held.contract.id)).contract.escrow is Escrow.PAID


def test_a_rule_that_fails_holds_what_is_settled_on_request(desk: Desk, plugin: list[Any]) -> None:
    plugin[0] = RuntimeError("down")
    held = desk.completed(terms={**PLUGIN_TERMS, "settle": "on_request"}).contract
    assert (held.state, desk.why_held(held.id)) == (ContractState.VERIFICATION_PENDING, ("rule_failed",))
    plugin[0] = []
    assert desk.write(SettleContract(desk.request, held.id)).contract.escrow is Escrow.PAID


def test_without_governance_one_run_is_paid_under_one_contract(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant, policy=None)
    first, then = (desk.completed(msgspec.structs.replace(GOOD, metadata={"run_id": "r1"})).contract for _ in range(2))
    assert (first.escrow, then.escrow) == (Escrow.PAID, Escrow.HELD)
    assert desk.why_held(then.id) == ("duplicate_claim", first.id)
    for move in (
        SettleContract(desk.request, then.id),
        ReleaseContract(desk.request, then.id, "x", b"s" * SALT_BYTES),
    ):
        with pytest.raises(WrongState, match=first.id) as refused:
            desk.write(move)
        assert refused.value.code == "duplicate_claim"
    assert desk.write(VoidContract(desk.request, then.id, "a second claim")).contract.escrow is Escrow.RELEASED
    # Another run is another claim.
    assert desk.completed(msgspec.structs.replace(GOOD, metadata={"run_id": "r2"})).contract.escrow is Escrow.PAID


def test_a_rule_that_is_gone_holds_what_it_cannot_bill(desk: Desk, plugin: list[Any]) -> None:
    contract_id = desk.award(terms=PLUGIN_TERMS)
    del settlement_rules._found["of_a_plugin"]
    held = desk.write(desk.drafted(contract_id)).contract
    assert desk.why_held(contract_id) == ("rule_failed",)
    assert "'of_a_plugin'" in held.hold_reason
    assert desk.write(VoidContract(desk.request, contract_id, "cannot be paid")).contract.escrow is Escrow.RELEASED


@pytest.mark.parametrize(
    "terms",
    [
        {"rules": ["cpc", "claimed_only", "cpa_bonus"]},
        {"rules": ["cpc", "cpa_bonus", "claimed_only"], "max_cpa_total": 1},
        {"rules": ["cpa_penalty", "cpc"]},
    ],
)
def test_rules_that_switch_off_a_protection_are_refused(desk: Desk, terms: dict[str, Any]) -> None:
    with pytest.raises(RulesContradictTerms):
        desk.publish(terms={"cpc_rate": 1, **terms})
    assert desk.events_of("work.submitted") == []


def test_the_cap_of_the_budget_counts_for_the_rules(desk: Desk) -> None:
    with pytest.raises(RulesContradictTerms, match=r"^cap "):
        desk.publish(terms={"cpc_rate": 1, "rules": ["cpc", "cpa_bonus", "claimed_only"]}, budget={"max_bonus": 1})


# What agents are shown.

CANARY = "canary-1234"


@pytest.mark.parametrize(
    "parts",
    [
        {"title": f"Write {CANARY}"},
        {"description": f"of {CANARY.upper()}"},
        {"domain": CANARY},
        {"input": {"article": {"text": [f"see {CANARY}."]}}},
        {"input": {CANARY: 1}},
    ],
)
def test_a_canary_that_agents_are_shown_is_refused(desk: Desk, parts: dict[str, Any]) -> None:
    with pytest.raises(CanaryShown, match=CANARY):
        desk.publish(canaries=[CANARY], **parts)
    assert desk.events_of("work.submitted") == []


def test_a_canary_may_be_in_private_input(desk: Desk) -> None:
    found = desk.publish(canaries=[CANARY], input={"reference": CANARY}, private={"notes": [CANARY]})
    assert found.submission.canaries == (CANARY,)


def test_what_is_private_is_judged_and_never_shown(desk: Desk) -> None:
    given = {"question": "which number", "reference": "secret reference"}
    hidden = {"solution": {"reference": "x"}, "required_keywords": ["forty-two"]}
    criteria = {"criteria": [KEYWORDS]}
    work_id = desk.publish(success_criteria=criteria, input=given, private=hidden).id
    contract_id = desk.store.surroundings.new_id("ctr")
    desk.write(AwardContract(desk.request, contract_id, work_id, "a1"))
    with desk.store.database.reading() as connection:
        found = works.find(connection, desk.tenant, work_id)
        judged = works.input_of(connection, desk.tenant, found, desk.store.blobs)
    assert judged == given | hidden
    assert works.to_agent_work(found, judged).input == {"question": "which number"}
    assert works.to_work_view(found, judged).private == ["required_keywords", "solution"]
    assert found.private == {"required_keywords", "solution"}
    draft = desk.drafted(contract_id, HandedIn({"text": "forty-two"}, {}))
    # Two works that differ in what is private alone are one to agents.
    other = {"solution": {"reference": "y"}, "required_keywords": ["forty-three"]}
    same = desk.award(success_criteria=criteria, input=given, private=other)
    assert desk.drafted(same, HandedIn({"text": "forty-two"}, {})).fingerprints.input == draft.fingerprints.input
    paid = desk.write(draft).bill
    assert paid is not None
    assert paid.bonus == 5_000_000


def test_the_null_agent_does_not_echo_what_is_private(desk: Desk) -> None:
    assert desk.publish(success_criteria=ECHO, private={"question": "what is it"}).criteria is not None


def test_one_input_may_be_asked_two_things(desk: Desk) -> None:
    tasks = [
        desk.drafted(desk.award(title=title, input={"a": "b"})).fingerprints for title in ("Write", "Read", "Write")
    ]
    assert tasks[0].input == tasks[1].input
    assert tasks[0].task == tasks[2].task != tasks[1].task


def test_two_completions_are_the_same_when_all_that_was_said_is() -> None:
    assert completion_fingerprint(GOOD) == completion_fingerprint(msgspec.structs.replace(GOOD, size=5, by_agent=True))
    others = [
        msgspec.structs.replace(GOOD, output={"text": "other"}),
        msgspec.structs.replace(GOOD, metadata={}),
        msgspec.structs.replace(GOOD, claims={"accuracy": 1.0}),
    ]
    assert completion_fingerprint(GOOD) not in map(completion_fingerprint, others)


# Remote governance.


class Answering:
    """A governance service with a fixed answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> Any:
        self.asked.append({"contract_id": contract_id, "claimed_metrics": claimed_metrics, **execution_context})
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, float):
            await asyncio.sleep(self.answer)
        return self.answer


FLAG = Flag("odd", "3", Action.FLAG, evidence={"n": 1})
HELD = {
    "hold": GovernanceResult(valid=True, disposition=Disposition.HOLD, flags=[FLAG]),
    "invalid": GovernanceResult(valid=True, disposition=Disposition.INVALID, flags=["odd"]),
    "not valid": GovernanceResult(valid=False, flags=["odd"]),
    "not valid, said to be clear": GovernanceResult(valid=False, disposition=Disposition.CLEAR, flags=["odd"]),
}
SILENT = {
    "raising": RuntimeError("down"),
    "late": TimeoutError("upstream"),
    "slow": 60.0,
    "nothing": None,
    "yes": True,
    "a mapping": {"valid": True, "flags": []},
    "a result of nothing": GovernanceResult(valid=None),  # type: ignore[arg-type]
    "a result in words": GovernanceResult(valid="no", flags=[]),  # type: ignore[arg-type]
    "flags that are none": GovernanceResult(valid=True, flags=[5, None]),  # type: ignore[list-item]
    "half a character": GovernanceResult(valid=True, flags=["\ud800"]),
    "what cannot be written": GovernanceResult(
        valid=True, flags=[Flag("x", "1", Action.FLAG, evidence={"a": object()})]
    ),
    "no list of flags": GovernanceResult(valid=True, flags=None),  # type: ignore[arg-type]
    "an unknown disposition": GovernanceResult(valid=True, disposition="fine"),  # type: ignore[arg-type]
}


def never_paid(desk: Desk, done: ContractSnapshot) -> GovernanceStatus:
    """Held, and paid once when a person has released it."""
    assert (done.contract.state, done.contract.escrow) == (ContractState.VERIFICATION_PENDING, Escrow.HELD)
    assert desk.why_held(done.contract.id)[0] == "governance"
    assert done.bill is None
    assert desk.paid() == 0
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert not done.judgement.result.success
    for _ in range(2):
        released = desk.write(ReleaseContract(desk.request, done.contract.id, "looked at it", b"s" * SALT_BYTES))
        assert released.bill is not None
        assert (released.contract.state, released.bill.total) == (ContractState.SETTLED, 15_000_000)
    assert desk.paid() == 15_000_000
    return done.judgement.result.governance


@pytest.mark.parametrize("answer", HELD.values(), ids=HELD)
@pytest.mark.parametrize("policy", [Policy(), None], ids=["and ours", "alone"])
def test_what_remote_governance_rejects_is_held(
    shared: Store, tenant: str, answer: GovernanceResult, policy: Policy | None
) -> None:
    desk = Desk(shared, tenant, policy=policy, remote=Answering(answer))
    done = desk.completed()
    status = never_paid(desk, done)
    assert status is (GovernanceStatus.REVIEW if answer is HELD["hold"] else GovernanceStatus.INVALID)
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert done.judgement.result.governance_flags == ["odd"]


@pytest.mark.parametrize("answer", SILENT.values(), ids=SILENT)
def test_no_clear_answer_is_held(shared: Store, tenant: str, answer: Any) -> None:
    desk = Desk(shared, tenant, remote=Answering(answer), patience_s=0.02 if isinstance(answer, float) else 5)
    done = desk.completed()
    assert desk.why_held(done.contract.id) == ("governance", UNAVAILABLE)
    assert never_paid(desk, done) is GovernanceStatus.REVIEW


def test_a_contract_held_by_governance_can_be_voided(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant, remote=Answering(RuntimeError("down")))
    done = desk.completed()
    assert desk.write(VoidContract(desk.request, done.contract.id, "fraud")).contract.escrow is Escrow.RELEASED
    assert desk.paid() == 0


@pytest.mark.parametrize(
    "answer",
    [
        GovernanceResult(valid=True),
        GovernanceResult(valid=True, disposition=Disposition.CLEAR, flags=["seen", FLAG]),
    ],
)
def test_what_all_governance_accepts_is_paid(shared: Store, tenant: str, answer: GovernanceResult) -> None:
    remote = Answering(answer)
    desk = Desk(shared, tenant, remote=remote)
    done = desk.completed(HandedIn({"text": "three honest words"}, {}, {"word_count": 3.0}))
    assert desk.paid() == 15_000_000
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert done.judgement.result.governance_flags == answer.names
    (asked,) = remote.asked
    assert (asked["contract_id"], asked["agent_id"]) == (done.contract.id, "a1")
    assert (asked["work_id"], asked["consumer_id"]) == (done.contract.work_id, desk.tenant)
    assert asked["claimed_metrics"] == {"word_count": 3.0}
    assert asked["measured_metrics"] == {"word_count": 3}
    assert "three honest words" not in str(asked)


def test_local_rules_apply_beside_remote_governance(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant, remote=Answering(GovernanceResult(valid=True)))
    done = desk.completed(HandedIn({"text": "a planted string leaks"}, {}), canaries=["planted string"])
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert (done.judgement.result.governance, done.judgement.result.governance_flags) == ("invalid", ["canary_leak"])
    assert desk.paid() == 0


def test_a_balance_past_the_exact_ones_is_refused(desk: Desk) -> None:
    work = desk.publish(consumer_id="rich").id
    full = {"tenant": desk.tenant, "currency": "USD", "account": "consumer:rich", "micros": 5 - 2**62}
    desk.store.recorder.write(lambda writing: writing.insert(tables.balances, **full))
    with pytest.raises(BalanceTooLarge) as refused:
        desk.store.recorder.write(AwardContract(desk.request, "ctr_" + "0" * 34, work, "a1"))
    assert (refused.value.code, refused.value.status) == ("balance_too_large", 409)
    with pytest.raises(NotFound):
        desk.market.find_contract(desk.actor, "ctr_" + "0" * 34)


def test_terms_that_pay_per_run_hold_work_without_a_run(desk: Desk) -> None:
    terms = {"cpc_rate": 10, "pay_per_run": True}
    times = {"duration_ms": 10, "started_at": 1, "ended_at": 2}
    held = desk.completed(HandedIn({"text": "three honest words"}, times), terms=terms)
    assert held.contract.state is ContractState.VERIFICATION_PENDING
    assert desk.why_held(held.contract.id) == ("run_missing",)
    named = HandedIn({"text": "three honest words"}, {"run_id": "r1"})
    assert desk.completed(named, terms=terms).contract.state is ContractState.SETTLED
    again = desk.completed(named, terms=terms, title="Again")
    assert again.contract.state is ContractState.VERIFICATION_PENDING


def test_a_run_id_that_is_not_text_is_refused(desk: Desk) -> None:
    with pytest.raises(BadRunId):
        desk.completed(HandedIn({"text": "three honest words"}, {"run_id": ["r1"]}))


def test_a_copy_with_a_counter_is_held(desk: Desk) -> None:
    text = " ".join(f"word{number}" for number in range(60))
    first = desk.completed(HandedIn({"text": text}, {}), input={"n": 1})
    assert first.contract.state is ContractState.SETTLED
    copies: list[dict[str, Any]] = [{"text": f"{text} 2"}, {"text": text[::-1]}, {"said": [text[:99], text[99:]]}]
    for number, output in enumerate(copies):
        held = desk.completed(HandedIn(output, {}), input={"n": number + 2}, success_criteria=None)
        assert held.judgement is not None
        assert held.judgement.result is not None
        assert held.judgement.result.governance_flags == ["replayed_output"]
        assert held.contract.state is ContractState.VERIFICATION_PENDING


def test_a_pair_that_is_held_once_stays_held(shared: Store, tenant: str) -> None:
    """Its verdicts give the bonus all the same: a hold must not make the pair look better than it is."""
    desk = Desk(shared, tenant, policy=Policy(limits={"concentrated_pair": {"p_max": 0.01}}))
    flagged = []
    for number in range(20):
        done = desk.completed(HandedIn({"text": f"three honest words {number}"}, {"duration_ms": 10}), consumer_id="c")
        assert done.judgement is not None
        assert done.judgement.result is not None
        flagged.append("concentrated_pair" in done.judgement.result.governance_flags)
    assert flagged == [False] * 11 + [True] * 9


def test_without_a_policy_governance_is_not_checked(shared: Store, tenant: str) -> None:
    desk = Desk(shared, tenant, policy=None)
    done = desk.completed(HandedIn({"text": "a planted string leaks"}, {}), canaries=["planted string"])
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert done.judgement.result.governance is GovernanceStatus.NOT_CHECKED
    assert desk.paid() == 15_000_000


# As the settings want it.


def built(store: Store, **parts: Any) -> Marketplace:
    return build_marketplace(Settings.model_validate(parts), Registrar(ENGINE, store))


def test_the_settings_say_who_is_asked_and_by_which_limits(shared: Store) -> None:
    assert built(shared).policy == Policy()
    limited = built(shared, governance={"off": ["anomaly"], "limits": {"retry_farming": {"attempts_max": 9}}})
    assert limited.policy == Policy(off=["anomaly"], limits={"retry_farming": {"attempts_max": 9.0}})
    nobody = built(shared, verification={"governance_check": False}, governance={"url": "https://example.com"})
    assert (nobody.policy, nobody._remote) == (None, None)
    somebody = built(shared, governance={"url": "https://example.com", "timeout_s": 3})
    assert somebody._remote is not None
    assert somebody._patience_s == 3


def test_unknown_rules_and_limits_in_settings_are_refused(shared: Store) -> None:
    with pytest.raises(ConfigError) as caught:
        built(shared, governance={"off": ["anomalies"], "limits": {"anomaly": {"hihg": 3}}})
    unknown, limit = map(str, caught.value.problems)
    assert "'anomalies'" in unknown
    assert all(name in limit for name in ("anomaly", "'hihg'", "high", "medium", "n_min", "spread_min"))
