"""The one decision whether a contract may be paid: every fact alone, facts together, and what never pays."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.test_bill import Piece, judged, written
from tests.contracts.test_token_terms import AT_COST, RATES, terms_with, use
from tests.usage.test_cost import a_call, a_quote, a_run, verdict, whole

from meruit.contracts.bill import bill
from meruit.contracts.payment_decision import (
    DUPLICATE_FLAG,
    REVIEW,
    USAGE,
    Hold,
    HoldCode,
    HoldReason,
    Pay,
    PaymentFacts,
    decide_payment,
    deciding_judges,
    review_reasons,
    usage_reasons,
)
from meruit.contracts.token_terms import token_use
from meruit.judge.verdict import apply_governance
from meruit.model.contract import Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.metering import UsageRecord
from meruit.model.money import ContractTokenUse
from meruit.model.numbers import MICRO
from meruit.model.usage import Tokens, UsageStatus
from meruit.model.verdict import GovernanceStatus, Verdict, VerificationResult

TERMS = Terms(cpc_rate=10)
CRITERIA = written([Piece("met", MICRO)])
CLEAR = judged(CRITERIA)
HELD = apply_governance(CLEAR, GovernanceStatus.REVIEW, ["odd"])
SECOND_CLAIM = apply_governance(CLEAR, GovernanceStatus.INVALID, [DUPLICATE_FLAG])
OPEN = judged(written([Piece("met", MICRO), Piece("missing")]))
PENDING = use(status=UsageStatus.PENDING, why="Data still changing")


def facts_with(result: VerificationResult | None = CLEAR, terms: Terms = TERMS, **more: Any) -> PaymentFacts:
    """A first verdict that may be paid, unless the arguments say otherwise."""
    digest = more.pop("criteria_digest", CLEAR.criteria_digest if result is None else result.criteria_digest)
    usual = {"escrow_micros": 20 * MICRO, "version": 1, "criteria": None, "criteria_digest": digest}
    return PaymentFacts(terms=terms, result=result, **{**usual, **more})


def codes(facts: PaymentFacts) -> list[tuple[str, tuple[str, ...]]]:
    """The reasons to hold by code, each with what it is about; none where it is paid."""
    decision = decide_payment(facts)
    return [(reason.code, reason.about) for reason in decision.reasons] if isinstance(decision, Hold) else []


# Each fact alone, then those that people argue about.


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (facts_with(), []),
        (facts_with(None), [("erased", ())]),
        (facts_with(criteria_digest="other"), [("other_criteria", ("1",))]),
        (facts_with(HELD), [("governance", ("odd",))]),
        (facts_with(OPEN), [("inconclusive", ("inconclusive",))]),
        (facts_with(terms=terms_with()), [("usage_missing", ())]),
        (facts_with(terms=terms_with(), usage=(use(), PENDING)), [("usage_unverified", ("r1",))]),
        (facts_with(terms=terms_with(AT_COST), usage=(use(cost=None),)), [("price_unknown", ("r1",))]),
        (facts_with(terms=terms_with(), usage=(use(),)), []),
        (facts_with(usage=(PENDING,)), []),
        (facts_with(paid_under="con_1"), [("duplicate_claim", ("con_1",))]),
        (facts_with(settled_version=1), [("already_settled", ("1",))]),
        (facts_with(settled_version=1, version=2), []),
        (facts_with(settled_version=1, reversed_by_usage=True), []),
        (facts_with(terms=Terms(cpc_rate=10, rules=("cpc", "gone"))), [("rule_failed", ())]),
        # A release overrules what asks for a review, and nothing else.
        (facts_with(HELD, released=True), []),
        (facts_with(OPEN, released=True), []),
        (facts_with(None, released=True), [("erased", ())]),
        (facts_with(HELD, terms_with(), released=True), [("usage_missing", ())]),
        (facts_with(HELD, paid_under="con_1", released=True), [("duplicate_claim", ("con_1",))]),
        (facts_with(settled_version=1, released=True), [("already_settled", ("1",))]),
        # A second claim that governance has flagged is governance's to hold, and a person's to release.
        (facts_with(SECOND_CLAIM, paid_under="con_1"), [("governance", (DUPLICATE_FLAG,))]),
        (facts_with(SECOND_CLAIM, paid_under="con_1", released=True), []),
        # Reviews come first, then tokens, then other contracts, then earlier settlements.
        (
            facts_with(HELD, terms_with(), paid_under="con_1", settled_version=1),
            [
                ("governance", ("odd",)),
                ("usage_missing", ()),
                ("duplicate_claim", ("con_1",)),
                ("already_settled", ("1",)),
            ],
        ),
        # A contradiction of the log comes first, and no person overrules it.
        (facts_with(HELD, tampered="agent_id", released=True), [("record_tampered", ())]),
        # A rule is not asked while something else stands against the payment.
        (facts_with(HELD, Terms(cpc_rate=10, rules=("gone",))), [("governance", ("odd",))]),
    ],
)
def test_each_fact_has_its_reason(facts: PaymentFacts, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert codes(facts) == expected
    assert isinstance(decide_payment(facts), Hold if expected else Pay)


def test_what_is_paid_is_paid_by_the_bill_of_its_terms() -> None:
    decision = decide_payment(facts_with())
    assert decision == Pay(bill(CLEAR, TERMS, 20 * MICRO))
    with_tokens = decide_payment(facts_with(terms=terms_with(), usage=(use(),)))
    assert isinstance(with_tokens, Pay)
    assert with_tokens.bill.tokens == 4500


def test_the_first_reason_is_shown() -> None:
    held = Hold((HoldReason(HoldCode.GOVERNANCE, "first"), HoldReason(HoldCode.USAGE_MISSING, "second")))
    assert held.message == "first"


def test_codes_never_change() -> None:
    assert {str(code) for code in HoldCode} == {
        *("erased", "other_criteria", "governance", "inconclusive", "unmeasured", "only_claimed"),
        *("run_missing", "judge_uncalibrated"),
        *("usage_missing", "usage_unverified", "usage_not_payable", "price_unknown"),
        *("duplicate_claim", "already_settled", "rule_failed", "record_tampered"),
    }
    assert not REVIEW & USAGE


@pytest.mark.parametrize("code", [*HoldCode])
def test_tokens_do_not_end_what_needs_a_person(code: HoldCode) -> None:
    alone = Hold((HoldReason(code, "why"),))
    lasting = {HoldCode.ALREADY_SETTLED, HoldCode.RECORD_TAMPERED}
    assert alone.needs_person == (code in REVIEW | lasting)
    assert Hold((HoldReason(HoldCode.USAGE_MISSING, "first"), *alone.reasons)).needs_person == alone.needs_person


# Properties.

RESULTS = st.sampled_from([None, CLEAR, HELD, SECOND_CLAIM, OPEN])
FACTS = st.builds(
    facts_with,
    RESULTS,
    st.sampled_from([TERMS, terms_with(), terms_with(AT_COST), Terms(cpc_rate=10, rules=("cpc", "gone"))]),
    version=st.integers(1, 3),
    usage=st.lists(st.sampled_from([use(), PENDING, use(cost=None)]), max_size=2).map(tuple),
    paid_under=st.none() | st.just("con_1"),
    settled_version=st.integers(0, 3),
    reversed_by_usage=st.booleans(),
    released=st.booleans(),
)
OBJECTIONS: tuple[dict[str, Any], ...] = (
    {"result": None},
    {"criteria_digest": "other"},
    {"terms": terms_with(), "usage": ()},
    {"terms": terms_with(), "usage": (PENDING,)},
    {"result": CLEAR, "criteria_digest": CLEAR.criteria_digest, "paid_under": "con_2"},
    {"settled_version": 9, "reversed_by_usage": False},
)
"""Facts with each of which nothing is paid, released or not."""


@given(FACTS)
def test_a_hold_has_a_reason_and_the_same_facts_decide_alike(facts: PaymentFacts) -> None:
    decision = decide_payment(facts)
    assert decision == decide_payment(facts)
    if isinstance(decision, Hold):
        assert decision.reasons
        assert all(reason.message for reason in decision.reasons)
    else:
        assert facts.result is not None
        assert 0 <= decision.bill.total <= facts.escrow_micros
        assert facts.released or facts.result.governance in (GovernanceStatus.CLEAR, GovernanceStatus.NOT_CHECKED)


@given(FACTS, st.sampled_from(OBJECTIONS))
def test_no_release_and_no_other_fact_pays_over_an_objection(facts: PaymentFacts, objection: dict[str, Any]) -> None:
    assert isinstance(decide_payment(replace(facts, **objection)), Hold)


@given(FACTS)
def test_a_release_removes_reviews_and_nothing_else(facts: PaymentFacts) -> None:
    held = [code for code, _ in codes(replace(facts, released=False))]
    released = [code for code, _ in codes(replace(facts, released=True))]
    left = [code for code in held if code not in REVIEW]
    # A rule is asked only when nothing else stands against the payment.
    assert released == left or (not left and released == ["rule_failed"])


# What asks for a review.


def review_codes(result: VerificationResult, criteria: SuccessCriteria | None, terms: Terms) -> dict[str, list[str]]:
    return {str(reason.code): [*reason.about] for reason in review_reasons(result, criteria, terms)}


def review_of(result: VerificationResult) -> dict[str, list[str]]:
    """Why it is reviewed, apart from what the agent claims."""
    return review_codes(result, None, TERMS)


CLAIMED = {"only_claimed": ["claimed-1"]}
SUCCESS = [{"bonus_on_failure": "none"}, {"rules": ["cpc", "pay_on_success", "cpa_bonus", "claimed_only"]}]


def review_for(piece: Piece, terms: dict[str, Any], required: bool | None = None, **more: Any) -> dict[str, list[str]]:
    """Why work is reviewed whose second criterion ends so."""
    document = written([Piece("met"), piece], **more).model_dump()
    document["criteria"][1]["required"] = required
    criteria = SuccessCriteria.model_validate(document)
    return review_codes(judged(criteria), criteria, Terms.model_validate({"cpc_rate": 10, **terms}))


def test_a_claim_that_avoids_a_penalty_is_reviewed() -> None:
    saving = Piece("claimed", penalty=MICRO)
    assert review_for(saving, {}) == review_for(saving, {}, required=False) == CLAIMED
    assert review_for(saving, {"claimed_may_earn": True}) == {}
    # What costs its penalty or is measured here does not rest on a claim.
    assert review_for(Piece("claimed_slow", penalty=MICRO), {}) == {}
    assert review_for(Piece("met", penalty=MICRO), {}) == {}
    # A bonus that rests on a claim is withheld by a rule of its own.
    assert review_for(Piece("claimed", MICRO), {}) == review_for(Piece("claimed", penalty=0), {}) == {}


@pytest.mark.parametrize("terms", SUCCESS)
def test_a_claim_that_decides_a_paid_success_is_reviewed(terms: dict[str, Any]) -> None:
    claim = Piece("claimed", MICRO)
    assert review_for(claim, terms) == review_for(claim, terms, required=True) == CLAIMED
    assert review_for(claim, {**terms, "claimed_may_earn": True}) == {}
    assert review_for(claim, terms, required=False) == {}
    assert review_for(Piece("met", MICRO), terms) == {}
    # Where any criterion or a score succeeds, every one decides.
    for aggregation in ("any", "weighted"):
        assert review_for(claim, terms, required=False, aggregation=aggregation) == CLAIMED


@pytest.mark.parametrize("status", [*GovernanceStatus])
def test_what_governance_does_not_believe_is_reviewed(status: GovernanceStatus) -> None:
    result = apply_governance(judged(written([Piece("met", MICRO)])), status, ["one", "two"])
    waits = status in (GovernanceStatus.INVALID, GovernanceStatus.REVIEW)
    assert review_of(result) == ({"governance": ["one", "two"]} if waits else {})


def test_a_verdict_that_may_still_change_is_reviewed() -> None:
    assert OPEN.verdict is Verdict.INCONCLUSIVE
    assert review_of(OPEN) == {"inconclusive": ["inconclusive"]}
    assert review_of(judged(written([Piece("met"), Piece("not_met")]))) == {}


@pytest.mark.parametrize("penalize", [False, True])
@pytest.mark.parametrize(
    ("piece", "held", "held_if_penalized"),
    [
        (Piece("missing"), False, False),
        (Piece("missing", MICRO), True, True),
        (Piece("missing", penalty=MICRO), True, False),
        (Piece("own_code", penalty=MICRO), True, True),
    ],
)
def test_money_that_depends_on_a_missing_value_is_reviewed(
    piece: Piece, held: bool, held_if_penalized: bool, penalize: bool
) -> None:
    result = judged(written([Piece("met"), Piece("not_met"), piece], penalize_missing=penalize))
    assert result.verdict is Verdict.PARTIAL
    waits = held_if_penalized if penalize else held
    assert review_of(result) == ({"unmeasured": [f"{piece.how}-2"]} if waits else {})


# What tokens wait for.


def waits_for(usage: list[ContractTokenUse], terms: Terms) -> list[tuple[str, tuple[str, ...]]]:
    return [(str(reason.code), reason.about) for reason in usage_reasons(usage, terms)]


@pytest.mark.parametrize(
    ("usage", "terms", "expected"),
    [
        ([], Terms(cpc_rate=1), []),
        ([PENDING], Terms(cpc_rate=1), []),
        ([], terms_with(), [("usage_missing", ())]),
        ([use(), use("r2", status=UsageStatus.PENDING)], terms_with(), [("usage_unverified", ("r2",))]),
        ([use(cost=None)], terms_with(AT_COST), [("price_unknown", ("r1",))]),
        ([use(cost=None)], terms_with(), []),
        (
            [use(tokens=Tokens(10, 1))],
            terms_with(token_rates={**RATES, "cached_per_million": 1}),
            [("price_unknown", ("r1",))],
        ),
        ([use()], terms_with(AT_COST), []),
        (
            [PENDING, use("r2", cost=None), use("r3")],
            terms_with(AT_COST),
            [("usage_unverified", ("r1",)), ("price_unknown", ("r2",))],
        ),
    ],
)
def test_money_waits_until_every_run_is_verified_and_priced(
    usage: list[ContractTokenUse], terms: Terms, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert waits_for(usage, terms) == expected
    assert codes(facts_with(judged(written([])), terms, usage=tuple(usage))) == expected


@pytest.mark.parametrize("unknown", [use(cost=None, why="m has a new name"), PENDING])
def test_a_reason_repeats_what_is_known_of_the_run(unknown: ContractTokenUse) -> None:
    (reason,) = usage_reasons([unknown], terms_with(AT_COST))
    assert unknown.run_id in reason.message
    assert unknown.why in reason.message


@pytest.mark.parametrize(
    ("lacking", "payable"),
    [
        ({"reported_by": "file"}, False),
        ({"interval_min": 59.5}, False),
        ({"interval_min": 60.0}, True),
        ({"interval_min": 61.0}, True),
    ],
)
def test_imported_or_hasty_observations_pay_nothing(lacking: dict[str, Any], payable: bool) -> None:
    some = whole(1000, 100)
    verified = msgspec.structs.replace(verdict(some), **lacking)
    found = token_use(UsageRecord(a_run(a_call(some)), 1, 3, verified, quotes=(a_quote(),)))
    expected = [] if payable else [("usage_not_payable", ("r1",))]
    for terms in (terms_with(), terms_with(AT_COST)):
        assert waits_for([found], terms) == expected
    assert waits_for([found], Terms(cpc_rate=1)) == []


def test_a_measured_criterion_is_decided_by_no_judge() -> None:
    assert deciding_judges(CLEAR) == {}
