"""Bills: what a verdict is worth, line by line, to the last millionth."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from tests.sampling import examples

from meruit.app import build_engine
from meruit.config import Settings
from meruit.contracts.bill import (
    GUARD,
    MAX_LINES,
    bill,
    bill_adjustment,
    calculate_cost,
    chargeable_criteria,
    fee_and_payout,
    hold_for,
    is_adjusted,
    largest_penalty,
)
from meruit.contracts.rule_order import check_rules
from meruit.errors import AmountTooLarge, MeruitError, PluginSignature, RuleFailed, RulesContradictTerms, UnknownName
from meruit.judge.verdict import apply_governance
from meruit.model.contract import USUAL_RULES, BonusOnFailure, Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Provenance
from meruit.model.money import Bill, Cost, Line, PricePart
from meruit.model.numbers import MICRO, in_units
from meruit.model.threshold import LARGEST_MICROS
from meruit.model.verdict import GovernanceStatus, Status, VerificationResult
from meruit.registry import SettlementContext, SettlementRule, settlement_rules

ENGINE = build_engine(Settings())
HOW: dict[str, dict[str, Any]] = {
    "met": {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1},
    "not_met": {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 100},
    "missing": {"metric": "time_to_first_byte", "metric_type": "latency", "comparison": "lte", "threshold": 100},
    "claimed": {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 1000},
    "claimed_slow": {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 1},
    "own_code": {
        "expr": "1.0 / double(metadata.nothing)",
        "metric_type": "numeric",
        "comparison": "lte",
        "threshold": 1,
    },
    "own_value": {"expr": "-1.0", "metric_type": "latency", "comparison": "lte", "threshold": 1},
}
"""For each way that a criterion can end, one that ends so."""
OWN = {"own_code": Cause.CRASHED, "own_value": Cause.OUT_OF_DOMAIN}
"""Where it is the author's own code that gives nothing which could be judged."""
METADATA = {"claimed": {"duration_ms": 12}}


class Piece(NamedTuple):
    """A criterion by how it ends, and its money in millionths."""

    how: str
    bonus: int | None = None
    penalty: int | None = None


def written(pieces: Sequence[Piece], **more: Any) -> SuccessCriteria:
    """Criteria that end in these ways."""
    return SuccessCriteria.model_validate(
        {
            "criteria": [
                {
                    **HOW[piece.how],
                    "id": f"{piece.how}-{number}",
                    "bonus": None if piece.bonus is None else in_units(piece.bonus),
                    "penalty": None if piece.penalty is None else in_units(piece.penalty),
                }
                for number, piece in enumerate(pieces)
            ],
            **more,
        }
    )


def judged(criteria: SuccessCriteria) -> VerificationResult:
    return ENGINE.verify_sync("c", {}, {"text": "three words here"}, criteria, METADATA)


def billed(pieces: Sequence[Piece], *, penalize_missing: bool = False, **terms: Any) -> Bill:
    """What the work is worth under terms of 10 for completion, unless they say otherwise."""
    agreed = Terms.model_validate({"cpc_rate": 10, **terms})
    criteria = written(pieces, penalize_missing=penalize_missing)
    return bill(judged(criteria), agreed, hold_for(criteria, agreed))


def by_criterion(made: Bill, part: PricePart) -> Counter[str | None]:
    sums: Counter[str | None] = Counter()
    for line in made.lines:
        if line.part is part:
            sums[line.criterion_id] += line.micros
    return sums


MONEY = st.integers(0, 5) | st.integers(0, 10**7) | st.integers(0, LARGEST_MICROS // 10)
"""So small that the sum of a contract is not too large."""
PIECES = st.lists(
    st.builds(Piece, st.sampled_from([*HOW]).filter(lambda how: how not in OWN), st.none() | MONEY, st.none() | MONEY),
    min_size=1,
    max_size=6,
)
RATES = st.sampled_from(["0", "0.15", "0.5", "1", "0.333333", "0.0000001"]) | st.fractions(
    0, 1, max_denominator=64
).map(lambda one: f"{float(one):.6f}")


USUAL = st.just(USUAL_RULES)


@st.composite
def agreements(draw: st.DrawFn, rules: st.SearchStrategy[Sequence[str]] = USUAL) -> Terms:
    return Terms.model_validate(
        {
            "cpc_rate": in_units(draw(MONEY)),
            "max_cpa_total": draw(st.none() | MONEY.map(in_units)),
            "max_penalty_rate": draw(RATES),
            "platform_fee_rate": draw(RATES),
            "bonus_on_failure": draw(st.sampled_from(["per_criterion", "none"])),
            "cap_split": draw(st.sampled_from(["in_order", "pro_rata"])),
            "claimed_may_earn": draw(st.booleans()),
            "rules": draw(rules),
        }
    )


# Properties.


def adds_up(made: Bill, hold: int) -> None:
    assert sum(line.micros for line in made.lines) == made.total
    assert made.base + made.bonus - made.penalty + made.tokens + made.adjustment == made.total
    assert 0 <= made.total <= hold
    assert made.fee + made.payout == made.total
    assert made.total + made.released == hold
    assert made.fee >= 0
    assert made.payout >= 0
    assert all(line.reason and line.rule for line in made.lines)


@given(PIECES, agreements(), st.booleans(), st.sampled_from(["all", "any", "weighted"]))
def test_a_bill_is_the_plain_sum_that_anyone_would_make(
    pieces: list[Piece], terms: Terms, penalize: bool, aggregation: str
) -> None:
    criteria = written(pieces, penalize_missing=penalize, aggregation=aggregation)
    result = judged(criteria)
    hold = hold_for(criteria, terms)
    made = bill(result, terms, hold)
    adds_up(made, hold)

    earning = {"met", "claimed"} if terms.claimed_may_earn else {"met"}
    earned = sum(piece.bonus or 0 for piece in pieces if piece.how in earning)
    if terms.bonus_on_failure == "none" and not result.success:
        earned = 0
    cap = None if terms.max_cpa_total is None else int(Fraction(str(terms.max_cpa_total)) * MICRO)
    costing = {"not_met", "claimed_slow"} | ({"missing"} if penalize else set())
    costs = sum(piece.penalty or 0 for piece in pieces if piece.how in costing)
    most = round(made.base * Fraction(str(terms.max_penalty_rate)))
    assert made.base == int(Fraction(str(terms.cpc_rate)) * MICRO)
    assert made.bonus == (earned if cap is None else min(earned, cap))
    assert made.penalty == min(costs, most)
    assert made.fee == round(made.total * Fraction(str(terms.platform_fee_rate)))
    assert not [line for line in made.lines if line.rule == GUARD]


@examples(25)
@given(PIECES, agreements())
def test_each_criterion_is_paid_between_zero_and_its_bonus(pieces: list[Piece], terms: Terms) -> None:
    criteria = written(pieces)
    made = bill(judged(criteria), terms, hold_for(criteria, terms))
    for name, micros in by_criterion(made, PricePart.BONUS).items():
        assert name is not None
        assert 0 <= micros <= (pieces[int(name.rpartition("-")[2])].bonus or 0)


@examples(25)
@given(st.lists(MONEY.filter(bool), min_size=1, max_size=6), st.data(), st.sampled_from(["in_order", "pro_rata"]))
def test_a_cap_is_reached_exactly_by_either_split(bonuses: list[int], data: st.DataObject, split: str) -> None:
    cap = data.draw(st.integers(0, sum(bonuses)))
    made = billed([Piece("met", one) for one in bonuses], max_cpa_total=in_units(cap), cap_split=split)
    assert made.bonus == cap
    paid = [by_criterion(made, PricePart.BONUS)[f"met-{number}"] for number in range(len(bonuses))]
    assert all(0 <= some <= whole for some, whole in zip(paid, bonuses, strict=True))
    if split == "in_order":
        # Whoever comes first is paid in full; at most one is paid in part.
        assert sum(0 < some < whole for some, whole in zip(paid, bonuses, strict=True)) <= 1
        assert paid == sorted(paid, key=lambda one: one == 0) or 0 in bonuses
    else:
        shares = [whole * made.bonus / Fraction(sum(bonuses)) for whole in bonuses]
        assert all(abs(some - exact) < 1 for some, exact in zip(paid, shares, strict=True))


@examples(25)
@given(
    PIECES, agreements(st.lists(st.sampled_from([*USUAL_RULES, "pay_on_success"]), min_size=1, max_size=7, unique=True))
)
def test_a_bill_sums_up_with_any_rules_in_any_order(pieces: list[Piece], terms: Terms) -> None:
    criteria = written(pieces)
    hold = hold_for(criteria, terms)
    adds_up(bill(judged(criteria), terms, hold), hold)


@examples(25)
@given(PIECES, agreements())
def test_calculate_cost_agrees_with_the_bill(pieces: list[Piece], terms: Terms) -> None:
    usual = terms.model_copy(update={"claimed_may_earn": True, "bonus_on_failure": BonusOnFailure.PER_CRITERION})
    criteria = written(pieces)
    result = judged(criteria)
    made, cost = bill(result, usual, hold_for(criteria, usual)), calculate_cost(execution_under(usual), result)
    assert [part * MICRO for part in (cost.base, cost.bonus, cost.penalty, cost.total)] == [
        *(made.base, made.bonus, made.penalty, made.total)
    ]


def execution_under(terms: Terms) -> dict[str, Any]:
    budget = {"max_cpa_total": terms.max_cpa_total, "max_penalty_rate": terms.max_penalty_rate}
    return {"agent": {"pricing": {"cpc_rate": terms.cpc_rate}}, "task": {"budget": budget}}


@given(MONEY, RATES)
def test_fee_and_payout_are_the_price_exactly(price: int, rate: str) -> None:
    fee, payout = fee_and_payout(price, Decimal(rate))
    assert fee + payout == price
    assert 0 <= fee <= price
    assert abs(fee - price * Fraction(rate)) <= Fraction(1, 2)


# The cases that a person would argue about.


@pytest.mark.parametrize(("price", "fee"), [(1, 0), (3, 2), (5, 2), (7, 4), (9, 4), (11, 6)])
def test_half_a_millionth_goes_to_the_even_side(price: int, fee: int) -> None:
    assert fee_and_payout(price, 0.5) == (fee, price - fee)
    assert largest_penalty(price, 0.5) == fee


def test_no_cap_and_a_cap_of_nothing_are_two_things() -> None:
    pieces = [Piece("met", 5 * MICRO)]
    assert billed(pieces).bonus == billed(pieces, max_cpa_total=None).bonus == 5 * MICRO
    assert billed(pieces, max_cpa_total=0).bonus == 0
    assert billed(pieces, max_cpa_total=0).total == 10 * MICRO
    assert billed(pieces, max_cpa_total=5).lines == billed(pieces).lines


def test_a_cut_by_the_cap_says_so_on_its_line() -> None:
    made = billed([Piece("met", 3 * MICRO), Piece("met", 3 * MICRO)], max_cpa_total="4.5")
    cut = made.lines[-1]
    assert cut == Line("cap", PricePart.BONUS, -1_500_000, cut.reason, "met-1")
    assert "4.5" in cut.reason
    shared = billed([Piece("met", 3 * MICRO), Piece("met", 3 * MICRO)], max_cpa_total="4.5", cap_split="pro_rata")
    assert [line.micros for line in shared.lines if line.rule == "cap"] == [-750_000, -750_000]


def test_splitting_a_cap_loses_and_makes_no_millionth() -> None:
    made = billed([Piece("met", 1)] * 3, max_cpa_total="0.000002", cap_split="pro_rata")
    assert made.bonus == 2
    assert sorted(by_criterion(made, PricePart.BONUS).values()) == [0, 1, 1]


def test_failed_work_keeps_bonuses_unless_the_terms_say_none() -> None:
    pieces = [Piece("met", 5 * MICRO), Piece("met"), Piece("not_met", 2 * MICRO)]
    assert billed(pieces).bonus == 5 * MICRO
    none = billed(pieces, bonus_on_failure="none")
    assert (none.bonus, none.total) == (0, 10 * MICRO)
    withdrawn = none.lines[-1]
    assert withdrawn == Line("bonus_on_failure", PricePart.BONUS, -5 * MICRO, withdrawn.reason, "met-0")
    assert "failed" in withdrawn.reason
    assert billed([Piece("met", 5 * MICRO)], bonus_on_failure="none").bonus == 5 * MICRO


def test_what_is_capped_before_the_failure_is_taken_away_once() -> None:
    pieces = [Piece("met", 5 * MICRO), Piece("not_met")]
    rules = ["cpc", "cpa_bonus", "cap", "bonus_on_failure", "claimed_only"]
    assert billed(pieces, rules=rules, max_cpa_total=3, bonus_on_failure="none").bonus == 0


def test_a_claim_earns_only_where_the_terms_say_so() -> None:
    pieces = [Piece("claimed", 5 * MICRO), Piece("met", 1 * MICRO)]
    withheld = billed(pieces)
    assert withheld.bonus == MICRO
    claim = withheld.lines[-1]
    assert claim == Line("claimed_only", PricePart.BONUS, -5 * MICRO, claim.reason, "claimed-0")
    assert claim.reason.startswith("claimed-0 ")
    assert billed(pieces, claimed_may_earn=True).bonus == 6 * MICRO


def test_a_claim_still_costs() -> None:
    assert billed([Piece("claimed_slow", penalty=2 * MICRO)]).penalty == 2 * MICRO


def test_a_claim_gives_no_room_under_the_cap_to_others() -> None:
    pieces = [Piece("claimed", 5 * MICRO), Piece("met", 4 * MICRO)]
    assert billed(pieces, max_cpa_total=5).bonus == 4 * MICRO


def test_missing_values_cost_only_where_criteria_penalize_them() -> None:
    pieces = [Piece("missing", 5 * MICRO, 3 * MICRO), Piece("not_met", penalty=1 * MICRO)]
    assert billed(pieces).penalty == MICRO
    made = billed(pieces, penalize_missing=True)
    assert (made.bonus, made.penalty) == (0, 4 * MICRO)
    unmet, unmeasured = (line.reason for line in made.lines if line.part is PricePart.PENALTY)
    assert (unmet.split()[0], unmet.endswith("not met")) == ("not_met-1", True)
    assert (unmeasured.split()[0], unmeasured.endswith("not measurable")) == ("missing-0", True)


@pytest.mark.parametrize(("how", "cause"), OWN.items())
def test_failures_of_the_authors_code_cost_no_penalty(how: str, cause: Cause) -> None:
    pieces = [Piece(how, penalty=2 * MICRO), Piece("missing", penalty=1 * MICRO)]
    criteria = written(pieces, penalize_missing=True)
    result = judged(criteria)
    assert {one.status for one in result.criterion_results} == {Status.INDETERMINATE}
    assert result.criterion_results[0].cause is cause
    assert result.penalty_micros == MICRO
    assert [one.criterion_id for one in chargeable_criteria(result)] == ["missing-1"]
    assert billed(pieces, penalize_missing=True).penalty == MICRO


def test_penalties_end_at_their_share_of_the_base() -> None:
    pieces = [Piece("not_met", penalty=8 * MICRO), Piece("not_met", penalty=7 * MICRO)]
    assert billed(pieces).penalty == 10 * MICRO
    half = billed(pieces, max_penalty_rate="0.5")
    assert (half.penalty, half.total) == (5 * MICRO, 5 * MICRO)
    limit = half.lines[-1]
    assert limit == Line("cpa_penalty", PricePart.PENALTY, 10 * MICRO, limit.reason)
    assert limit.reason.endswith("most 5")
    assert billed(pieces, max_penalty_rate=0).penalty == 0


def test_a_price_is_never_negative_and_its_parts_still_sum() -> None:
    made = billed([Piece("not_met", penalty=50 * MICRO)])
    assert (made.base, made.bonus, made.penalty, made.total, made.released) == (
        10 * MICRO,
        0,
        10 * MICRO,
        0,
        10 * MICRO,
    )


def test_no_success_no_pay_for_terms_that_name_it() -> None:
    rules = ["cpc", "pay_on_success", "cpa_bonus", "cap", "cpa_penalty"]
    pieces = [Piece("met", 3 * MICRO), Piece("not_met", penalty=2 * MICRO)]
    failed = billed(pieces, rules=rules)
    assert (failed.base, failed.bonus, failed.penalty) == (0, 3 * MICRO, 0)
    unpaid = failed.lines[1]
    assert unpaid == Line("pay_on_success", PricePart.CPC, -10 * MICRO, unpaid.reason)
    assert "failed" in unpaid.reason
    assert billed([Piece("met", 3 * MICRO)], rules=rules).total == 13 * MICRO
    assert billed(pieces, rules=rules, cpc_rate=0).lines[1].rule == "cpa_bonus"


def test_rules_are_applied_in_the_order_that_the_terms_name() -> None:
    pieces = [Piece("not_met", penalty=4 * MICRO)]
    assert billed(pieces, rules=["cpc", "cpa_penalty"]).penalty == 4 * MICRO
    # Before there is a base, no share of it can be taken off.
    assert billed(pieces, rules=["cpa_penalty", "cpc"]).penalty == 0
    assert [line.rule for line in billed(pieces, rules=["cpc", "cpa_penalty"]).lines] == ["cpc", "cpa_penalty"]


def test_an_unknown_rule_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"'cpa_bonsu'.*'cpa_bonus'"):
        billed([Piece("met")], rules=["cpc", "cpa_bonsu"])


def test_the_usual_rules_are_all_there_with_a_sentence_each() -> None:
    assert {*USUAL_RULES, "pay_on_success"} <= {*settlement_rules.names()}
    assert all(rule.summary.endswith(".") for rule in settlement_rules)


@pytest.fixture
def plugin() -> Iterator[Callable[[Callable[..., Any]], str]]:
    """A rule of a plugin, removed after the test."""
    settlement_rules.names()
    added: list[str] = []

    def add(apply: Callable[..., Any]) -> str:
        settlement_rules.put(SettlementRule("of_a_plugin", "Whatever it likes.", apply))
        added.append("of_a_plugin")
        return added[-1]

    yield add
    for name in added:
        del settlement_rules._found[name]


@pytest.mark.parametrize(
    "old", [lambda result, terms, lines: [], lambda result, terms, lines, usage: [], lambda *, context: []]
)
def test_a_rule_of_an_old_signature_is_refused(old: Callable[..., Any]) -> None:
    with pytest.raises(PluginSignature, match="SettlementContext") as refused:
        settlement_rules.add("of_a_plugin")(old)
    assert refused.value.code == "plugin_signature"
    assert settlement_rules.find("of_a_plugin") is None


def test_a_rule_reads_result_terms_lines_and_usage() -> None:
    criteria = written([Piece("met", MICRO)])
    lines = (
        Line("a", PricePart.BONUS, 3, "x", "one"),
        Line("b", PricePart.BONUS, -1, "x", "one"),
        Line("b", PricePart.BONUS, 4, "x", "two"),
        Line("c", PricePart.CPC, 9, "x"),
    )
    context = SettlementContext(judged(criteria), Terms(cpc_rate=1), lines)
    assert (context.sum_of(PricePart.BONUS), context.sum_of(PricePart.CPC), context.usage) == (6, 9, ())
    assert context.bonus_by_criterion() == {"one": 2, "two": 4}


@pytest.mark.parametrize("part", [PricePart.CPC, PricePart.BONUS, PricePart.PENALTY])
@pytest.mark.parametrize("micros", [10**18, 1, -1, -(10**18)])
def test_no_rule_pays_more_than_was_held_or_less_than_nothing(
    plugin: Callable[[Callable[..., Any]], str], part: PricePart, micros: int
) -> None:
    name = plugin(lambda context: [Line("of_a_plugin", part, micros, "because")])
    made = billed([Piece("met", MICRO)], rules=[*USUAL_RULES, name])
    adds_up(made, 11 * MICRO)
    assert made.total == max(0, min(11 * MICRO, 11 * MICRO + micros))
    if micros != -1:
        assert made.lines[-1].rule == GUARD


def _raising(context: SettlementContext) -> list[Line]:
    raise ZeroDivisionError("a price by nothing")


STRANGE = {
    "nothing": None,
    "a number": 5,
    "text": ["cpc"],
    "a mapping": [{"rule": "x", "part": "cpc", "micros": 1, "reason": "y"}],
    "half a millionth": [Line("x", PricePart.CPC, 0.5, "y")],  # type: ignore[arg-type]
    "a float": [Line("x", PricePart.CPC, 1.0, "y")],  # type: ignore[arg-type]
    "yes": [Line("x", PricePart.CPC, True, "y")],
    "an amount as text": [Line("x", PricePart.CPC, "1", "y")],  # type: ignore[arg-type]
    "a part that is none": [Line("x", "tip", 1, "y")],  # type: ignore[arg-type]
    "a part as text": [Line("x", "cpc", 1, "y")],  # type: ignore[arg-type]
    "no reason": [Line("x", PricePart.CPC, 1, None)],  # type: ignore[arg-type]
    "half a character": [Line("x", PricePart.CPC, 1, "\ud800")],
    "an object": [Line("x", PricePart.CPC, 1, "y", object())],  # type: ignore[arg-type]
    "an adjustment": [Line("x", PricePart.ADJUSTMENT, 1, "y")],
    "more than there is": [Line("x", PricePart.CPC, 2**63, "y")],
    "more than a record holds": [Line("x", PricePart.CPC, 10**40, "y")],
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_rule_that_returns_no_lines_fails(plugin: Callable[[Callable[..., Any]], str], strange: str) -> None:
    name = plugin(lambda context: STRANGE[strange])
    with pytest.raises(RuleFailed, match="of_a_plugin"):
        billed([Piece("met", MICRO)], rules=["cpc", name])


def test_a_rule_that_raises_is_named_without_its_words(plugin: Callable[[Callable[..., Any]], str]) -> None:
    name = plugin(_raising)
    with pytest.raises(RuleFailed, match=r"of_a_plugin.* ZeroDivisionError$"):
        billed([Piece("met", MICRO)], rules=["cpc", name])


@pytest.mark.parametrize("lines", [MAX_LINES, MAX_LINES + 1])
def test_a_rule_writes_at_most_max_lines(plugin: Callable[[Callable[..., Any]], str], lines: int) -> None:
    name = plugin(lambda context: (Line("of_a_plugin", PricePart.CPC, 0, "again") for _ in range(lines)))
    if lines > MAX_LINES:
        with pytest.raises(RuleFailed, match=str(MAX_LINES)):
            billed([Piece("met", MICRO)], rules=["cpc", name])
    else:
        assert len(billed([Piece("met", MICRO)], rules=["cpc", name]).lines) == 1 + lines


# Which orders of rules keep what the terms promise.


@pytest.mark.parametrize(
    ("rules", "terms", "rule"),
    [
        (["cpc", "claimed_only", "cpa_bonus"], {}, "claimed_only"),
        (["cpc", "cpa_bonus"], {}, "claimed_only"),
        (["cpc", "cap", "cpa_bonus", "claimed_only"], {"max_cpa_total": 0}, "cap"),
        (["cpc", "cpa_bonus", "claimed_only"], {"max_cpa_total": 1}, "cap"),
        (["cpc", "cpa_bonus", "claimed_only"], {"bonus_on_failure": "none"}, "bonus_on_failure"),
        (["cpa_penalty", "cpc"], {}, "cpa_penalty"),
        (["pay_on_success", "cpc"], {}, "pay_on_success"),
        (["cpc", "pay_on_success", "cpa_penalty"], {}, "pay_on_success"),
        (["cpc", "cap", "cpa_bonus", "claimed_only"], {}, "cap"),
        (["cpc", "claimed_only", "cpa_bonus"], {"claimed_may_earn": True}, "claimed_only"),
        (["cpa_bonus", "cap", "claimed_only"], {"max_cpa_total": 1}, "cap"),
        (["cpa_bonus", "claimed_only", "cap", "bonus_on_failure"], {"max_cpa_total": 1}, "cap"),
    ],
)
def test_rules_that_switch_off_a_protection_are_refused(rules: list[str], terms: dict[str, Any], rule: str) -> None:
    with pytest.raises(RulesContradictTerms, match=f"^{rule} "):
        check_rules(Terms.model_validate({"rules": rules, **terms}))
    assert issubclass(RulesContradictTerms, UnknownName)


@pytest.mark.parametrize(
    ("rules", "terms"),
    [
        ([*USUAL_RULES], {"max_cpa_total": 1, "bonus_on_failure": "none"}),
        ([*USUAL_RULES, "pay_on_success"], {}),
        (["cpc"], {"max_cpa_total": 1, "bonus_on_failure": "none"}),
        (["cpc", "cpa_bonus"], {"claimed_may_earn": True}),
        (["cpc", "cpa_bonus", "claimed_only"], {}),
        (["cpa_bonus", "claimed_only", "cap"], {"max_cpa_total": 1}),
        (["cpa_penalty"], {}),
        (["cpc", "cpa_penalty"], {}),
    ],
)
def test_rules_that_keep_what_the_terms_promise_are_taken(rules: list[str], terms: dict[str, Any]) -> None:
    check_rules(Terms.model_validate({"rules": rules, **terms}))


# Every order of every choice of rules is either refused or gives the bill of our own order.


@given(st.permutations((*USUAL_RULES, "pay_on_success")), st.sampled_from(["", *USUAL_RULES]), st.booleans())
def test_an_order_that_is_taken_gives_the_usual_bill(order: list[str], without: str, may_earn: bool) -> None:
    rules = [name for name in order if name != without]
    terms: dict[str, Any] = {"max_cpa_total": "4", "bonus_on_failure": "none", "claimed_may_earn": may_earn}
    try:
        check_rules(Terms.model_validate({"rules": rules, **terms}))
    except RulesContradictTerms:
        return
    usual = [name for name in (*USUAL_RULES, "pay_on_success") if name in rules]
    for pieces in (
        [Piece("met", 3 * MICRO), Piece("claimed", 2 * MICRO), Piece("not_met", 1 * MICRO, 2 * MICRO)],
        [Piece("met", 3 * MICRO), Piece("claimed", 2 * MICRO)],
    ):
        one, other = (billed(pieces, rules=names, **terms) for names in (rules, usual))
        assert (one.base, one.bonus, one.penalty, one.total) == (other.base, other.bonus, other.penalty, other.total)


def test_a_rule_of_a_package_says_what_it_comes_after(plugin: Callable[[Callable[..., Any]], str]) -> None:
    name = plugin(lambda context: [])
    settlement_rules._found[name] = msgspec.structs.replace(settlement_rules.get(name), after=("cpc",))
    check_rules(Terms.model_validate({"rules": ["cpc", name]}))
    with pytest.raises(RulesContradictTerms, match=f"^{name} "):
        check_rules(Terms.model_validate({"rules": [name, "cpc"]}))


def test_no_rule_changes_what_others_wrote(plugin: Callable[[Callable[..., Any]], str]) -> None:
    def erasing(context: SettlementContext) -> list[Line]:
        getattr(context.lines, "clear", lambda: None)()
        return []

    made = billed([Piece("met", MICRO)], rules=["cpc", plugin(erasing), "cpa_bonus"])
    assert [line.rule for line in made.lines] == ["cpc", "cpa_bonus"]


def test_a_rule_sees_the_lines_so_far(plugin: Callable[[Callable[..., Any]], str]) -> None:
    name = plugin(lambda context: [Line("of_a_plugin", PricePart.CPC, -context.sum_of(PricePart.CPC), "all of it")])
    assert billed([Piece("met", MICRO)], rules=["cpc", name, "cpa_bonus"]).base == 0
    assert billed([Piece("met", MICRO)], rules=[name, "cpc", "cpa_bonus"]).base == 10 * MICRO


@pytest.mark.parametrize("status", [GovernanceStatus.INVALID, GovernanceStatus.REVIEW])
def test_what_governance_does_not_believe_is_billed_as_no_success(status: GovernanceStatus) -> None:
    criteria = written([Piece("met", 5 * MICRO)])
    result = apply_governance(judged(criteria), status, ["canary_leak"])
    assert (result.success, result.bonus_micros) == (False, 5 * MICRO)
    strict = Terms(cpc_rate=10, bonus_on_failure="none", rules=(*USUAL_RULES, "pay_on_success"))
    assert bill(result, strict, hold_for(criteria, strict)).total == 0


def test_what_a_person_released_is_billed_as_it_was_judged() -> None:
    criteria = written([Piece("met", 5 * MICRO)])
    terms = Terms.model_validate({"cpc_rate": 10, "bonus_on_failure": "none"})
    result = apply_governance(judged(criteria), GovernanceStatus.RELEASED, ["canary_leak"])
    assert bill(result, terms, hold_for(criteria, terms)).total == 15 * MICRO


def test_work_without_criteria_is_paid_for_completion() -> None:
    terms = Terms(cpc_rate=10, platform_fee_rate=0.15)
    result = ENGINE.verify_sync("c", {}, {"text": ""}, SuccessCriteria(criteria=()), {})
    made = bill(result, terms, hold_for(None, terms))
    assert (made.total, made.fee, made.payout, made.released) == (10_000_000, 1_500_000, 8_500_000, 0)


def test_the_hold_is_the_most_that_it_can_cost() -> None:
    criteria = written([Piece("met", 5 * MICRO), Piece("not_met", 2 * MICRO, 9 * MICRO)])
    assert hold_for(criteria, Terms(cpc_rate=10)) == 17 * MICRO
    assert hold_for(criteria, Terms(cpc_rate=10, max_cpa_total=6)) == 16 * MICRO
    assert hold_for(criteria, Terms(cpc_rate=10, max_cpa_total=8)) == 17 * MICRO
    assert hold_for(criteria, Terms(cpc_rate=0, max_cpa_total=0)) == 0
    assert hold_for(None, Terms(cpc_rate=10, max_cpa_total=8)) == 10 * MICRO


def test_a_contract_without_a_rate_or_too_large_is_refused() -> None:
    with pytest.raises(MeruitError, match="cpc_rate"):
        hold_for(None, Terms())
    most = in_units(LARGEST_MICROS)
    assert hold_for(None, Terms(cpc_rate=most)) == LARGEST_MICROS
    with pytest.raises(AmountTooLarge, match=str(LARGEST_MICROS // MICRO)):
        hold_for(written([Piece("met", 1)]), Terms(cpc_rate=most))


# The specification's own numbers.


@pytest.mark.parametrize(
    ("price", "fee", "payout"),
    [("100", "15", "85"), ("123.45", "18.5175", "104.9325"), ("99.99", "14.9985", "84.9915")],
)
def test_the_platforms_fifteen_percent(price: str, fee: str, payout: str) -> None:
    made = billed([Piece("met")], cpc_rate=price, platform_fee_rate=0.15)
    assert (in_units(made.total), in_units(made.fee), in_units(made.payout)) == (price, fee, payout)


class Pricing(BaseModel):
    cpc_rate: float


class Agent(BaseModel):
    pricing: Pricing


class Budget(BaseModel):
    max_cpa_total: float | None = None


class Task(BaseModel):
    budget: Budget


class SpecifiedExecution(BaseModel):
    agent: Agent
    task: Task


class SpecifiedResult(BaseModel):
    """CPC + bonus − penalty, computed independently."""

    bonus: float
    penalty: float


def pydantic(cpc: Any, cap: Any) -> Any:
    return SpecifiedExecution.model_validate(
        {"agent": {"pricing": {"cpc_rate": cpc}}, "task": {"budget": {"max_cpa_total": cap}}}
    )


def plain(cpc: Any, cap: Any) -> Any:
    return SimpleNamespace(
        agent=SimpleNamespace(pricing=SimpleNamespace(cpc_rate=cpc)),
        task=SimpleNamespace(budget=SimpleNamespace(max_cpa_total=cap)),
    )


def mapping(cpc: Any, cap: Any) -> Any:
    return {"agent": {"pricing": {"cpc_rate": cpc}}, "task": {"budget": {"max_cpa_total": cap}}}


EXECUTIONS = pytest.mark.parametrize("execution", [pydantic, plain, mapping])
RESULTS = pytest.mark.parametrize(
    "verification",
    [
        lambda bonus, penalty: SpecifiedResult(bonus=bonus, penalty=penalty),
        lambda bonus, penalty: SimpleNamespace(bonus=bonus, penalty=penalty),
        lambda bonus, penalty: {"bonus": bonus, "penalty": penalty},
        lambda bonus, penalty: {"bonus": str(bonus), "penalty": Decimal(str(penalty))},
    ],
)


@EXECUTIONS
@RESULTS
@pytest.mark.parametrize(
    ("cpc", "cap", "bonus", "penalty", "expected"),
    [
        (10.0, None, 5.0, 0.0, ("10", "5", "0", "15")),
        (10.0, None, 5.0, 2.0, ("10", "5", "2", "13")),
        (10.0, 3.0, 5.0, 0.0, ("10", "3", "0", "13")),
        (10.0, 3.0, 5.0, 2.0, ("10", "3", "2", "11")),
        (10.0, 0.0, 5.0, 0.0, ("10", "0", "0", "10")),
        (10.0, None, 0.0, 50.0, ("10", "0", "10", "0")),
        (0.0, None, 0.0, 5.0, ("0", "0", "0", "0")),
        (0.1, None, 0.2, 0.0, ("0.1", "0.2", "0", "0.3")),
        (0.08, None, 0.05, 0.03, ("0.08", "0.05", "0.03", "0.1")),
    ],
)
def test_cpc_and_bonuses_less_penalties(
    execution: Any, verification: Any, cpc: float, cap: float | None, bonus: float, penalty: float, expected: Any
) -> None:
    cost = calculate_cost(execution(cpc, cap), verification(bonus, penalty))
    assert (cost.base, cost.bonus, cost.penalty, cost.total) == tuple(map(Decimal, expected))
    assert cost.breakdown == {"cpc": cost.base, "cpa_bonus": cost.bonus, "cpa_penalty": cost.penalty}
    assert cost.base + cost.bonus - cost.penalty == cost.total >= 0
    assert all("E" not in str(part) for part in (cost.base, cost.bonus, cost.penalty, cost.total))


@pytest.mark.parametrize("rate", [1, 1.0, "1", "1.000000", Decimal(1), Decimal("1E0")])
def test_money_may_be_written_in_any_way_that_is_exact(rate: Any) -> None:
    assert calculate_cost(plain(rate, None), {"bonus": 0, "penalty": 0}).total == 1


def test_a_cost_may_be_awaited_and_need_not_be() -> None:
    cost = calculate_cost(plain(10, None), {"bonus": 1, "penalty": 0})

    async def specified() -> Cost:
        return await calculate_cost(plain(10, None), {"bonus": 1, "penalty": 0})

    assert asyncio.run(specified()) == cost
    assert cost.total == 11


def test_an_execution_needs_no_task_and_may_limit_penalties() -> None:
    agent = {"pricing": {"cpc_rate": 10}}
    assert calculate_cost({"agent": agent}, {"bonus": 1, "penalty": 20}).total == 1
    half = {"agent": agent, "task": {"budget": {"max_penalty_rate": 0.5}}}
    assert calculate_cost(half, {"bonus": 1, "penalty": 20}).penalty == 5
    with pytest.raises(ValidationError):
        _ = calculate_cost({"agent": {}}, {"bonus": 1, "penalty": 0})


@pytest.mark.parametrize("rate", [-1, "0.0000001", float("nan"), True, None, "1e400"])
def test_a_rate_that_is_not_an_amount_is_refused(rate: Any) -> None:
    with pytest.raises(ValidationError):
        _ = calculate_cost(plain(rate, None), {"bonus": 0, "penalty": 0})


@pytest.mark.parametrize(
    "bonus",
    [-1, -0.5, "0.0000001", 0.0000001, 1234.0000001, float("nan"), float("inf"), True, None, "many", [1], "1/3"],
)
@pytest.mark.parametrize("name", ["bonus", "penalty"])
def test_a_result_whose_money_is_not_an_amount_is_refused(name: str, bonus: Any) -> None:
    with pytest.raises(MeruitError, match=name):
        _ = calculate_cost(plain(10, None), {"bonus": 0, "penalty": 0, name: bonus})


def test_a_result_without_a_bonus_is_refused() -> None:
    with pytest.raises(MeruitError, match="bonus"):
        _ = calculate_cost(plain(10, None), {"penalty": 0})
    with pytest.raises(MeruitError, match="penalty"):
        _ = calculate_cost(plain(10, None), SimpleNamespace(bonus=1))


def test_sums_of_floats_are_rounded_to_their_amounts() -> None:
    assert calculate_cost(plain(0, None), {"bonus": 0.1 + 0.2, "penalty": 0}).total == Decimal("0.3")
    assert calculate_cost(plain(0.7, None), {"bonus": 0.1 * 3, "penalty": 0.7 + 0.1}).penalty == Decimal("0.7")


@given(st.lists(st.integers(0, 10**9), max_size=30))
def test_the_specified_sum_of_floats_is_the_sum_of_the_amounts(several: list[int]) -> None:
    added = sum((micros / MICRO for micros in several), 0.0)
    assert calculate_cost(plain(0, None), {"bonus": added, "penalty": 0}).bonus * MICRO == sum(several)


def test_our_own_results_count_in_millionths_and_in_any_dress() -> None:
    result = judged(written([Piece("met", 100_000), Piece("met", 200_000), Piece("not_met", penalty=50_000)]))
    for seen in (result, result.to_dict(), VerificationResult.from_json(result.to_json())):
        assert calculate_cost(plain(1, None), seen).total == Decimal("1.25")
    by_hand = msgspec.structs.replace(result, bonus_micros=0, penalty_micros=0)
    assert calculate_cost(plain(1, None), by_hand).total == Decimal("1.25")
    assert result.criterion_results[0].provenance is Provenance.COMPUTED


@settings(max_examples=25)
@given(PIECES, agreements())
def test_a_bill_survives_json(pieces: list[Piece], terms: Terms) -> None:
    criteria = written(pieces)
    made = bill(judged(criteria), terms, hold_for(criteria, terms))
    assert Bill.from_json(made.to_json()) == made


# What a dispute is settled on.


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 1_000_000))
def test_an_adjusted_bill_is_one_line_with_the_fee_of_the_terms(micros: int, rest: int, rate: int) -> None:
    terms = Terms.model_validate({"cpc_rate": 1, "platform_fee_rate": str(Decimal(rate).scaleb(-6))})
    made = bill_adjustment(micros, terms, micros + rest, "half")
    adds_up(made, micros + rest)
    assert (made.total, made.adjustment, made.released) == (micros, micros, rest)
    assert (made.fee, made.payout) == fee_and_payout(micros, terms.platform_fee_rate)
    assert Bill.from_json(made.to_json()) == made
    assert is_adjusted(made)
    assert not is_adjusted(billed([Piece("met", MICRO)]))
