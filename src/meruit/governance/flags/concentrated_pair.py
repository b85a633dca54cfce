"""Flag an agent and a consumer whose results are far better together than with others."""

from collections.abc import Mapping

from meruit.governance.binomial import binomial_tail
from meruit.model.governance import Action, Dealings, Dossier, History, MetricFact, Suspicion
from meruit.registry import flags


def _pair(dealings: Dealings) -> Dossier:
    earned = [MetricFact("accuracy", "c", 0.99, met=True, bonus_micros=500_000)]
    return Dossier(agent_id="a", consumer_id="c", metrics=earned, history=History(dealings=dealings))


@flags.add(
    "concentrated_pair",
    action=Action.HOLD,
    needs_history=True,
    limits={"agent_share": 0.5, "bonus_rate": 0.9, "n_min": 12.0, "p_max": 1e-9},
    examples=[
        (_pair(Dealings(39, 39, 44, 41, 60, 47, 1000, 500)), True),
        # Good with everyone.
        (_pair(Dealings(39, 39, 60, 60, 60, 47, 1000, 500)), False),
        (_pair(Dealings()), False),
        (Dossier(agent_id="a"), None),
    ],
)
def flag_concentrated_pair(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """Most of the agent's work is for one consumer and earns a bonus far more often than either does elsewhere."""
    if dossier.agent_id is None or dossier.consumer_id is None:
        return None
    dealings = dossier.history.dealings
    n = dealings.pair + 1
    # Counts that contradict each other must not break the rule that reads them.
    k = min(n, dealings.pair_bonus + any(fact.bonus_micros > 0 for fact in dossier.metrics))
    if n < max(1, limits["n_min"]):
        return []
    share, rate = n / max(n, dealings.agent + 1), k / n
    if share <= limits["agent_share"] or rate <= limits["bonus_rate"]:
        return []
    usual = _usual_rate(dealings)
    chance = binomial_tail(k, n, usual)
    if chance >= limits["p_max"]:
        return []
    return [Suspicion({"n": n, "bonuses": k, "agent_share": share, "usual_rate": usual}, statistic=chance)]


def _usual_rate(dealings: Dealings) -> float:
    """The highest bonus rate without this pair: the agent's, the consumer's or the market's."""
    return max(
        _smooth_rate(dealings.agent - dealings.pair, dealings.agent_bonus - dealings.pair_bonus),
        _smooth_rate(dealings.consumer - dealings.pair, dealings.consumer_bonus - dealings.pair_bonus),
        _smooth_rate(dealings.market - dealings.pair, dealings.market_bonus - dealings.pair_bonus),
    )


def _smooth_rate(n: int, bonuses: int) -> float:
    """A smoothed rate, which a few cases cannot move to 0 or 1."""
    bonuses = max(0, bonuses)
    return (bonuses + 1) / (max(n, bonuses) + 2)
