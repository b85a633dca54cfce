"""Which rules of settlement, in which order, keep what the terms promise."""

from collections.abc import Iterator

from meruit.model.contract import BonusOnFailure, Terms
from meruit.model.errors import UnknownName


class UnsoundRules(UnknownName):
    """Rules that would pay otherwise than the terms say; the rule that is missed is named."""


def check_rules(terms: Terms) -> None:
    """Raise UnsoundRules for terms whose rules switch off one of their own protections."""
    for problem in _problems(terms):
        raise UnsoundRules(problem)


def _problems(terms: Terms) -> Iterator[str]:
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
