"""Check that the settlement rules, in their order, keep what the terms promise."""

from collections.abc import Iterator

from meruit.errors import RulesContradictTerms
from meruit.model.contract import TOKENS_RULE, BonusOnFailure, Terms

QUOTED_IN = "USD"
"""The currency of providers' prices."""


def check_rules(terms: Terms) -> None:
    """Raise RulesContradictTerms for terms whose rules switch off one of their own protections."""
    for problem in _problems(terms):
        raise RulesContradictTerms(problem)


def _problems(terms: Terms) -> Iterator[str]:
    yield from _token_problems(terms)
    rules = terms.rules
    after_bonus = rules[rules.index("cpa_bonus") :] if "cpa_bonus" in rules else None
    if after_bonus is not None:
        if not terms.claimed_may_earn and "claimed_only" not in after_bonus:
            yield "claimed_only must come after cpa_bonus, or what agents only say earns; or set claimed_may_earn"
        if terms.max_cpa_total is not None and "cap" not in after_bonus:
            yield "cap must come after cpa_bonus, or max_cpa_total caps nothing"
        if terms.bonus_on_failure is BonusOnFailure.NONE and "bonus_on_failure" not in after_bonus:
            yield "bonus_on_failure must come after cpa_bonus, or work that failed earns all the same"
    if "cpa_penalty" in rules and "cpc" in rules[rules.index("cpa_penalty") :]:
        yield "cpc must come before cpa_penalty: penalties take a share of it, and nothing of what is not there yet"


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
    elif "pay_on_success" in rules[: rules.index(TOKENS_RULE)]:
        yield "pay_on_success must come after tokens, or work that failed is paid its tokens"
