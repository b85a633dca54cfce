"""What an agent sees of scores, and how often it may ask for them."""

from enum import StrEnum
from math import floor

AGENT_TRIES = 10
"""How often an agent may have its own work verified by one set of criteria, unless the terms say otherwise."""
MAX_AGENT_TRIES = 1_000_000
SCORE_STEPS = 2
"""Coarse scores are rounded down to a multiple of one over this."""


class AgentScore(StrEnum):
    """What an agent sees of a score before the contract is paid."""

    COARSE = "coarse"
    """0, 0.5 or 1, rounded down."""
    VERDICT = "verdict"
    """No score, only the verdict."""
    EXACT = "exact"


def show_score(score: float, shown: AgentScore) -> float | None:
    """The score as an agent sees it; None where it sees the verdict only."""
    match shown:
        case AgentScore.COARSE:
            return floor(score * SCORE_STEPS) / SCORE_STEPS
        case AgentScore.VERDICT:
            return None
        case AgentScore.EXACT:
            return score
