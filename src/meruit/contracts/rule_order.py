"""Check that the settlement rules, in their order, keep what the terms promise."""

from collections.abc import Iterator, Sequence

from meruit.errors import RulesContradictTerms
from meruit.model.contract import TOKENS_RULE, BonusOnFailure, Terms
from meruit.registry import settlement_rules

QUOTED_IN = "USD"
"""The currency of providers' prices."""


def check_rules(terms: Terms) -> None:
    """Raise RulesContradictTerms for rules in an order in which one is without effect, or without a protection.

    Raises UnknownName for a rule that is not installed.
    """
    for problem in _problems(terms):
        raise RulesContradictTerms(problem)


def _problems(terms: Terms) -> Iterator[str]:
    yield from _token_problems(terms)
    yield from _order_problems(terms.rules)
    if "cpa_bonus" in terms.rules:
        if not terms.claimed_may_earn and "claimed_only" not in terms.rules:
            yield "claimed_only must come after cpa_bonus, or what agents only say earns; or set claimed_may_earn"
        if terms.max_cpa_total is not None and "cap" not in terms.rules:
            yield "cap must come after cpa_bonus, or max_cpa_total caps nothing"
        if terms.bonus_on_failure is BonusOnFailure.NONE and "bonus_on_failure" not in terms.rules:
            yield "bonus_on_failure must come after cpa_bonus, or work that failed earns all the same"


def _order_problems(names: Sequence[str]) -> Iterator[str]:
    """Rules that come before one whose lines they read, so that they would do nothing, or too little."""
    for place, name in enumerate(names):
        rule = settlement_rules.get(name)
        for late in names[place:]:
            if late in rule.after:
                yield f"{name} must come after {late}: it reads the lines that {late} puts on the bill"


def _token_problems(terms: Terms) -> Iterator[str]:
    rules = terms.rules
    if not terms.prices_tokens:
        if TOKENS_RULE in rules or terms.max_token_cost is not None:
            yield "tokens needs a price: give token_rates, or set tokens_at_cost"
        return
    if terms.token_rates is not None and terms.tokens_at_cost:
        yield "token_rates and tokens_at_cost are two prices for the same tokens; give one of them"
    if terms.max_token_cost is None:
        yield "max_token_cost must be given with a price for tokens: escrow holds the most that a contract can cost"
    if terms.tokens_at_cost and terms.currency != QUOTED_IN:
        yield f"tokens_at_cost pays in {QUOTED_IN}, as providers charge; these terms are in {terms.currency}"
    if TOKENS_RULE not in rules:
        yield "tokens must be among the rules, or what the terms promise for tokens is never billed"
