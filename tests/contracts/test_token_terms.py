"""Contracts that pay for tokens: bills still sum, no token is billed before it is verified, and escrow holds enough."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.contracts.test_bill import Piece, adds_up, judged, written
from tests.usage.test_cost import a_call, a_quote, a_run, verdict, whole

from meruit.contracts.bill import bill, hold_for
from meruit.contracts.rule_order import check_rules
from meruit.contracts.token_terms import describe_token_use, price_of, token_payments_by_run, token_use
from meruit.errors import RuleFailed, RulesContradictTerms
from meruit.model.contract import USUAL_RULES, Terms
from meruit.model.metering import UsageRecord
from meruit.model.money import Bill, ContractTokenUse, Line, PricePart, as_micros
from meruit.model.numbers import MICRO
from meruit.model.usage import Tokens, UsageStatus
from meruit.registry import SettlementRule, settlement_rules

RATES = {"input_per_million": 3, "output_per_million": 15}
BY_RATES = {"cpc_rate": 1, "token_rates": RATES, "max_token_cost": "0.5"}
AT_COST = {"cpc_rate": 1, "tokens_at_cost": True, "max_token_cost": "0.5"}
VERIFIED = UsageStatus.VERIFIED
SOME = whole(1000, 100)


def terms_with(base: dict[str, Any] = BY_RATES, **more: Any) -> Terms:
    return Terms.model_validate({**base, **more})


def use(run_id: str = "r1", tokens: Tokens = SOME, cost: str | None = "0.01", **more: Any) -> ContractTokenUse:
    return ContractTokenUse(
        run_id, more.pop("status", VERIFIED), 2, tokens, None if cost is None else Decimal(cost), **more
    )


def billed(terms: Terms, *usage: ContractTokenUse, pieces: tuple[Piece, ...] = ()) -> Bill:
    criteria = written([*pieces]) if pieces else None
    made = bill(judged(written([*pieces])), terms, hold_for(criteria, terms), usage)
    adds_up(made, hold_for(criteria, terms))
    return made


@st.composite
def uses(draw: st.DrawFn) -> list[ContractTokenUse]:
    several = []
    for number in range(draw(st.integers(0, 4))):
        read, cached = draw(st.integers(0, 10**7)), draw(st.none() | st.integers(0, 10**3))
        tokens = Tokens(read + (cached or 0), draw(st.integers(0, 10**6)), 1, cached)
        known = draw(st.none() | st.decimals(0, 2, places=9, allow_nan=False))
        status = draw(st.sampled_from([*UsageStatus, VERIFIED, VERIFIED, VERIFIED]))
        several.append(ContractTokenUse(f"r{number}", status, 2, tokens, known))
    return several


priced_terms = st.builds(
    lambda base, cached, most, fee, rules: Terms.model_validate(
        {
            **base,
            **({"token_rates": {**RATES, "cached_per_million": cached}} if "token_rates" in base else {}),
            "max_token_cost": most,
            "platform_fee_rate": fee,
            "rules": rules,
        }
    ),
    st.sampled_from([BY_RATES, AT_COST]),
    st.none() | st.integers(0, 3),
    st.decimals(0, 3, places=6, allow_nan=False),
    st.sampled_from([0, "0.15", 1]),
    st.sampled_from([(*USUAL_RULES, "tokens"), ("cpc", "tokens", "pay_on_success"), ("tokens",)]),
)


@given(priced_terms, uses(), st.sampled_from(["met", "not_met"]))
def test_bills_sum_and_only_verified_tokens_are_billed(
    terms: Terms, usage: list[ContractTokenUse], ending: str
) -> None:
    criteria = written([Piece(ending, MICRO)])
    result, hold = judged(criteria), hold_for(criteria, terms)
    proven = bool(usage) and all(one.status is VERIFIED for one in usage)
    try:
        made = bill(result, terms, hold, usage)
    except RuleFailed:
        assert not proven
        return
    adds_up(made, hold)
    assert 0 <= made.tokens <= as_micros(terms.max_token_cost or 0)
    assert proven or not [line for line in made.lines if line.part is PricePart.TOKENS]
    assert Bill.from_json(made.to_json()) == made
    shares = token_payments_by_run(made, terms)
    assert sum(shares.values()) * MICRO == made.tokens
    assert all(amount >= 0 for amount in shares.values())


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**9), st.integers(0, 10**9))
def test_tokens_by_rates_are_the_plain_product_rounded_half_even(
    read: int, output: int, rate: int, output_rate: int
) -> None:
    rates = {"input_per_million": Decimal(rate) / MICRO, "output_per_million": Decimal(output_rate) / MICRO}
    wanted = round(Fraction(read * rate + output * output_rate, MICRO))
    assert price_of(use(tokens=Tokens(read, output)), terms_with(token_rates=rates)) == wanted


def test_a_line_names_its_run_and_the_cap_is_a_line_of_its_own() -> None:
    made = billed(terms_with(), use(), use("r2", whole(200_000, 4, 1000)))
    *runs, cut = (line for line in made.lines if line.part is PricePart.TOKENS)
    assert runs == [
        Line("tokens", PricePart.TOKENS, 4500, "run r1: 1,000 in, 100 out"),
        Line("tokens", PricePart.TOKENS, 600_060, "run r2: 200,000 in (1,000 cached), 4 out"),
    ]
    assert cut == Line("tokens", PricePart.TOKENS, -104_560, cut.reason)
    assert cut.reason.endswith("cap of 0.5")
    assert (made.base, made.tokens, made.total) == (MICRO, 500_000, 1_500_000)
    assert token_payments_by_run(made, terms_with()) == {"r1": Decimal("0.0045"), "r2": Decimal("0.4955")}
    assert [one.run_id for one in made.usage] == ["r1", "r2"]


def test_tokens_at_cost_pass_on_what_the_frozen_prices_come_to() -> None:
    made = billed(terms_with(AT_COST), use(cost="0.0123456789"))
    assert made.tokens == 12_346
    assert price_of(use(cost="0.0000005"), terms_with(AT_COST)) == 0, "half-even"
    assert price_of(use(cost="0.0000015"), terms_with(AT_COST)) == 2


def test_cached_input_has_its_own_rate_where_the_terms_give_one() -> None:
    terms = terms_with(token_rates={**RATES, "cached_per_million": "0.3"})
    assert price_of(use(tokens=whole(1000, 0, 400)), terms) == 1920
    assert price_of(use(tokens=Tokens(1000, 0)), terms) is None
    assert price_of(use(tokens=Tokens(1000, 0)), terms_with()) == 3000


def test_terms_without_token_prices_bill_no_tokens() -> None:
    made = billed(Terms(cpc_rate=1), use())
    assert (made.tokens, made.usage) == (0, ())
    assert b"tokens" not in made.to_json()
    assert b"usage" not in made.to_json()


def test_failed_work_gets_no_tokens_under_pay_on_success() -> None:
    rules = ("cpc", "tokens", "pay_on_success")
    failed = billed(terms_with(rules=rules), use(), pieces=(Piece("not_met", None, 1),))
    assert (failed.base, failed.tokens, failed.total) == (0, 0, 0)
    unpaid = failed.lines[-1]
    assert unpaid == Line("pay_on_success", PricePart.TOKENS, -4500, unpaid.reason)
    assert "failed" in unpaid.reason
    assert token_payments_by_run(failed, terms_with(rules=rules)) == {"r1": 0}
    assert billed(terms_with(rules=rules), use(), pieces=(Piece("met", None),)).tokens == 4500


@pytest.mark.parametrize("usage", [(), (use(status=UsageStatus.WARNING),), (use(), use(status=UsageStatus.PENDING))])
def test_no_plugin_bills_tokens_that_are_not_verified(usage: tuple[ContractTokenUse, ...]) -> None:
    settlement_rules.names()
    settlement_rules.put(
        SettlementRule("of_a_plugin", "It tries.", lambda context: [Line("of_a_plugin", PricePart.TOKENS, 1, "more")])
    )
    try:
        terms = terms_with(rules=("cpc", "of_a_plugin"))
        with pytest.raises(RuleFailed, match="of_a_plugin"):
            bill(judged(written([])), terms, hold_for(None, terms), usage)
        assert bill(judged(written([])), terms, hold_for(None, terms), [use()]).tokens == 1
        with pytest.raises(RuleFailed):
            bill(judged(written([])), Terms(cpc_rate=1, rules=terms.rules), MICRO, [use()])
    finally:
        del settlement_rules._found["of_a_plugin"]


def test_escrow_holds_the_most_that_tokens_can_cost() -> None:
    assert hold_for(None, terms_with()) == hold_for(None, terms_with(AT_COST)) == 1_500_000
    assert hold_for(None, terms_with(max_token_cost=0)) == MICRO


def test_terms_that_price_tokens_get_the_tokens_rule() -> None:
    for terms in (terms_with(), terms_with(AT_COST)):
        assert terms.rules == (*USUAL_RULES, "tokens")
        check_rules(terms)
    assert terms_with(rules=("cpc",)).rules == ("cpc",)
    assert Terms(cpc_rate=1, tokens_at_cost=False).rules == USUAL_RULES
    assert Terms.model_validate(terms_with().model_dump()) == terms_with()
    with pytest.raises(ValidationError):
        Terms.model_validate("tokens")


@pytest.mark.parametrize(
    ("given_terms", "at_fault"),
    [
        ({**BY_RATES, "max_token_cost": None}, "max_token_cost"),
        ({**BY_RATES, "tokens_at_cost": True}, "token_rates"),
        ({**BY_RATES, "rules": ["cpc"]}, "tokens"),
        ({**BY_RATES, "rules": ["cpc", "pay_on_success", "tokens"]}, "pay_on_success"),
        ({**AT_COST, "currency": "EUR"}, "tokens_at_cost"),
        ({"cpc_rate": 1, "max_token_cost": 1}, "tokens"),
        ({"cpc_rate": 1, "rules": ["cpc", "tokens"]}, "tokens"),
    ],
)
def test_terms_that_promise_what_they_do_not_keep_are_refused(given_terms: dict[str, Any], at_fault: str) -> None:
    with pytest.raises(RulesContradictTerms, match=f"^{at_fault} "):
        check_rules(Terms.model_validate(given_terms))


@pytest.mark.parametrize(
    "sound", [{**BY_RATES, "currency": "EUR"}, {**AT_COST, "rules": ["cpc", "tokens", "pay_on_success"]}]
)
def test_other_terms_are_taken(sound: dict[str, Any]) -> None:
    check_rules(Terms.model_validate(sound))


def test_what_may_be_billed_of_a_run_is_what_is_verified_of_it() -> None:
    run, quotes = a_run(a_call(whole(1000, 100))), (a_quote(),)
    record = UsageRecord(run, 1, 3, verdict(whole(1000, 100)), quotes=quotes)
    assert token_use(record) == ContractTokenUse("r1", VERIFIED, 3, whole(1000, 100), Decimal("0.0028"))
    unknown = token_use(msgspec.structs.replace(record, quotes=()))
    assert unknown.cost is None
    assert unknown.why.startswith("m ")
    open_yet = verdict(whole(1000, 100), UsageStatus.PENDING)
    waiting = ContractTokenUse("r1", UsageStatus.PENDING, 3, why="Data still changing: 1 → 2")
    for message in ("⏳ Data still changing: 1 → 2", "Data still changing: 1 → 2"):
        said = msgspec.structs.replace(open_yet, message=message)
        assert token_use(msgspec.structs.replace(record, verdict=said)) == waiting
    assert price_of(waiting, terms_with()) is None
    assert price_of(ContractTokenUse("r1", VERIFIED, 2), terms_with()) is None


@pytest.mark.parametrize(
    ("lacking", "payable"),
    [
        ({"reported_by": "file"}, False),
        ({"interval_min": 59.5}, False),
        ({"interval_min": 60.0}, True),
        ({"interval_min": 61.0}, True),
    ],
)
def test_imported_or_hasty_observations_have_no_price(lacking: dict[str, Any], payable: bool) -> None:
    verified = msgspec.structs.replace(verdict(SOME), **lacking)
    found = token_use(UsageRecord(a_run(a_call(SOME)), 1, 3, verified, quotes=(a_quote(),)))
    for terms in (terms_with(), terms_with(AT_COST)):
        assert (price_of(found, terms) is None) == (not payable)
    assert bool(found.why) == (not payable)
    assert billed(terms_with(), found).tokens == (4500 if payable else 0)


def test_a_run_without_tokens_is_described() -> None:
    assert describe_token_use(ContractTokenUse("r1", VERIFIED, 2)) == "run r1: 0 in, 0 out"
