"""Flag an agent and a consumer whose results are far better together than with others.

A consumer may also give its bonuses to many agents in turn, each too new to be judged. Their work together is then
compared with the market, and flagged only: an honest consumer may offer easy work to new agents. So is an agent that
hardly works for anyone else: nothing shows whether it is as good elsewhere.
"""

from collections.abc import Mapping

from meruit.governance.binomial import binomial_tail, clopper_pearson
from meruit.model.governance import Action, Dealings, Dossier, History, MetricFact, Suspicion
from meruit.registry import flags

Count = tuple[int, int]
"""Outcomes, and those with a bonus."""


def _pair(pair: Count, agent: Count, consumer: Count, market: Count) -> Dossier:
    """An outcome with a bonus, after these."""
    earned = [MetricFact("accuracy", "c", 0.99, met=True, bonus_micros=500_000)]
    dealings = Dealings(
        pair=pair[0],
        pair_bonus=pair[1],
        agent=agent[0],
        agent_bonus=agent[1],
        consumer=consumer[0],
        consumer_bonus=consumer[1],
        market=market[0],
        market_bonus=market[1],
    )
    return Dossier(agent_id="a", consumer_id="c", metrics=earned, history=History(dealings=dealings))


@flags.add(
    "concentrated_pair",
    action=Action.HOLD,
    needs_history=True,
    version="3",
    # The rate leaves room for pairs that fail now and then on purpose; `p_max` keeps honest pairs out. `doubt` is the
    # probability with which the agent may be better elsewhere than the few outcomes there show.
    limits={"agent_share": 0.5, "bonus_rate": 0.8, "n_min": 12.0, "p_max": 1e-9, "doubt": 0.3},
    examples=[
        (_pair((39, 39), (44, 41), (60, 47), (1000, 500)), True),
        # Works for no one else; flagged, not held.
        (_pair((39, 39), (40, 39), (60, 47), (1000, 500)), True),
        # Good with everyone.
        (_pair((39, 39), (60, 60), (60, 47), (1000, 500)), False),
        # Fails one time in nine.
        (_pair((62, 55), (66, 56), (80, 60), (1000, 300)), True),
        # The consumer's agents are new, one after another.
        (_pair((5, 5), (5, 5), (80, 78), (1000, 300)), True),
        (_pair((5, 5), (5, 5), (80, 30), (1000, 300)), False),
        (_pair((0, 0), (0, 0), (0, 0), (0, 0)), False),
        (Dossier(agent_id="a"), None),
    ],
)
def flag_concentrated_pair(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """Most of the agent's work is for one consumer and earns a bonus far more often than either does elsewhere."""
    if dossier.agent_id is None or dossier.consumer_id is None:
        return None
    dealings = dossier.history.dealings
    # Counts that contradict each other must not break the rule that reads them.
    n = max(0, dealings.pair) + 1
    k = min(n, dealings.pair_bonus + dossier.earned_bonus)
    share = n / max(n, dealings.agent + 1)
    if share <= limits["agent_share"]:
        return []
    usual = _usual_rate(dealings)
    if (chance := _chance(k, n, usual, limits)) is not None:
        best = _best_rate_elsewhere(dealings, limits["doubt"])
        evidence = {"n": n, "bonuses": k, "agent_share": share, "usual_rate": usual, "best_rate_elsewhere": best}
        # An agent that may be as good with everyone is not held.
        held = _chance(k, n, max(usual, best), limits) is not None
        return [Suspicion(evidence, statistic=chance, action=None if held else Action.FLAG)]
    return _rotating_agents(dossier, limits) if n < limits["n_min"] else []


def _rotating_agents(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion]:
    """All work of the consumer, where this agent is too new to be judged by its own."""
    dealings = dossier.history.dealings
    n = max(0, dealings.consumer) + 1
    k = min(n, dealings.consumer_bonus + dossier.earned_bonus)
    usual = _smooth_rate(dealings.market - dealings.consumer, dealings.market_bonus - dealings.consumer_bonus)
    if (chance := _chance(k, n, usual, limits)) is None:
        return []
    evidence = {"n": n, "bonuses": k, "usual_rate": usual}
    return [Suspicion(evidence, statistic=chance, action=Action.FLAG, name="concentrated_pair:consumer")]


def _chance(k: int, n: int, usual: float, limits: Mapping[str, float]) -> float | None:
    """The probability of so many bonuses by chance; None where they are too few, or not remarkable."""
    if n < max(1, limits["n_min"]) or k / n <= limits["bonus_rate"]:
        return None
    chance = binomial_tail(k, n, usual)
    return chance if chance < limits["p_max"] else None


def _usual_rate(dealings: Dealings) -> float:
    """The highest bonus rate without this pair: the agent's, the consumer's or the market's."""
    return max(
        _smooth_rate(dealings.agent - dealings.pair, dealings.agent_bonus - dealings.pair_bonus),
        _smooth_rate(dealings.consumer - dealings.pair, dealings.consumer_bonus - dealings.pair_bonus),
        _smooth_rate(dealings.market - dealings.pair, dealings.market_bonus - dealings.pair_bonus),
    )


def _best_rate_elsewhere(dealings: Dealings, doubt: float) -> float:
    """The highest bonus rate that the agent's work for others leaves open, with so much probability of doubt."""
    n = max(0, dealings.agent - dealings.pair)
    bonuses = min(n, max(0, dealings.agent_bonus - dealings.pair_bonus))
    _, high = clopper_pearson(bonuses, n, confidence=1 - 2 * min(0.5, max(0.0, doubt)))
    return high


def _smooth_rate(n: int, bonuses: int) -> float:
    """A smoothed rate, which a few cases cannot move to 0 or 1."""
    bonuses = max(0, bonuses)
    return (bonuses + 1) / (max(n, bonuses) + 2)
