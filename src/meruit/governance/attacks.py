"""Try known attacks on the governance rules, and honest behaviour that resembles them.

The market of `simulation/` measures each rule on its own kind of cheat. These attackers know the rules and work
around them. Each try is independent, so that rates have exact intervals.
"""

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from meruit.governance.attack_trial import AttackTrial, count_tries, end_of
from meruit.governance.evaluate import PreparedRule, apply_rules, prepare_rules
from meruit.governance.probing_attacks import try_probing
from meruit.governance.text_attacks import try_text_attacks
from meruit.model.governance import Dealings, Dossier, History, MetricFact, Policy

TRIES = 60
OUTCOMES_PER_PAIR = 80
BACKGROUND, BACKGROUND_BONUSES = 5_000, 1_500
"""Outcomes of everyone else, and how many of them earned a bonus."""
IDENTITY_LIFE = 11
"""Outcomes before an attacker takes a new name; the rule judges pairs from twelve on."""


class _PairHabit(msgspec.Struct, frozen=True):
    """How one pair of agent and consumer behaves."""

    loyalty: float
    """The share of the agent's outcomes that are for this consumer."""
    bonus: float
    """The share of the pair's outcomes with a bonus."""
    bonus_elsewhere: float = 0.3
    fails_every: int = 0
    """Every so many outcomes earn no bonus; 0 for none."""
    renews: bool = False
    """Whether the agent takes a new name again and again."""
    earlier_elsewhere: int = 0
    """Outcomes that the agent had for others before, with the rate of bonuses elsewhere."""
    shared_consumer: int = 0
    """Outcomes that the consumer had from others, with the same rate of bonuses as this pair."""
    honest: bool = False


PAIRS: dict[str, _PairHabit] = {
    "colluding pair": _PairHabit(0.85, 0.99),
    "colluding pair that works for no one else": _PairHabit(1.0, 0.99),
    "pair that fails one time in nine": _PairHabit(0.95, 1.0, fails_every=9),
    "rotating identities": _PairHabit(1.0, 1.0, renews=True),
    "honest: loyal customer": _PairHabit(loyalty=0.9, bonus=0.4, bonus_elsewhere=0.4, honest=True),
    "honest: excellent with everyone": _PairHabit(loyalty=0.7, bonus=0.96, bonus_elsewhere=0.96, honest=True),
    "honest: excellent, nearly always for one consumer": _PairHabit(
        loyalty=0.97, bonus=0.97, bonus_elsewhere=0.97, honest=True
    ),
    "honest: easy consumer, known agents": _PairHabit(
        loyalty=0.4, bonus=0.97, bonus_elsewhere=0.5, earlier_elsewhere=20, shared_consumer=60, honest=True
    ),
    "honest: easy consumer, loyal agents": _PairHabit(
        loyalty=0.8, bonus=0.97, bonus_elsewhere=0.5, shared_consumer=60, honest=True
    ),
    "honest: easy consumer, new agents": _PairHabit(1.0, 0.97, renews=True, honest=True),
}
"""Pairs by what they do."""


def try_attacks(
    seed: int,
    tries: int = TRIES,
    policy: Policy = Policy(),  # noqa: B008 - frozen
) -> list[AttackTrial]:
    """Try every attack so often, each try by attackers of its own."""
    return [
        *_try_pairs(seed, tries, policy),
        *try_text_attacks(seed, tries, policy),
        *try_probing(seed, tries, policy),
    ]


def _try_pairs(seed: int, tries: int, policy: Policy) -> Iterator[AttackTrial]:
    rules = [one for one in prepare_rules(policy) if one.rule.name == "concentrated_pair"]
    for name, habit in PAIRS.items():
        # The same pairs for the same seed; nothing secret.
        ends = Counter(_try_pair(random.Random(f"{seed} {name} {number}"), habit, rules) for number in range(tries))  # noqa: S311
        yield count_tries(name, ends, honest=habit.honest)


def _try_pair(rng: random.Random, habit: _PairHabit, rules: list[PreparedRule]) -> str:
    """Let one pair deal; how the worst of its outcomes ended."""
    pair, agent, consumer, market = ([0, 0] for _ in range(4))
    market[:] = BACKGROUND, BACKGROUND_BONUSES
    agent[:] = habit.earlier_elsewhere, round(habit.earlier_elsewhere * habit.bonus_elsewhere)
    consumer[:] = habit.shared_consumer, round(habit.shared_consumer * habit.bonus)
    worst = "clear"
    for number in range(OUTCOMES_PER_PAIR):
        if habit.renews and number % IDENTITY_LIFE == 0:
            pair, agent = [0, 0], [0, 0]
        together = rng.random() < habit.loyalty
        fails = habit.fails_every and number % habit.fails_every == 0
        bonus = not fails and rng.random() < (habit.bonus if together else habit.bonus_elsewhere)
        if together:
            dealings = Dealings(*pair, *agent, *consumer, *market)
            worst = max(worst, _end_of(rules, dealings, bonus=bonus), key=("clear", "flagged", "stopped").index)
        for count in (pair, consumer, agent, market) if together else (agent, market):
            count[0] += 1
            count[1] += bonus
    return worst


def _end_of(rules: list[PreparedRule], dealings: Dealings, *, bonus: bool) -> str:
    facts = [MetricFact("accuracy", "accuracy", 1.0, met=bonus, bonus_micros=int(bonus))]
    dossier = Dossier(agent_id="a", consumer_id="c", metrics=facts, history=History(dealings=dealings))
    return end_of(apply_rules(rules, dossier))
