"""Roles, the caller behind an API key, and what an agent sees of scores."""

import re
from enum import StrEnum
from math import floor

from meruit.model.record import Record

DEFAULT_TENANT = "default"
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""A tenant's name; also that of a folder, so nothing else is a tenant."""
AGENT_TRIES = 10
"""How often an agent may have its own work verified by one set of criteria, unless the terms say otherwise."""
MAX_AGENT_TRIES = 1_000_000
SCORE_STEPS = 2
"""Coarse scores are rounded down to a multiple of one over this."""


class Role(StrEnum):
    """What a key may do."""

    AGENT = "agent"
    """Submits work and reads the verdict; never sees a reference, a threshold or evidence."""
    OPERATOR = "operator"
    """Registers criteria, verifies work, reads what is recorded."""
    AUDITOR = "auditor"
    """Reads everything, changes nothing."""
    ADMIN = "admin"
    """Everything, including managing keys."""


class Caller(Record, frozen=True):
    """An authenticated caller."""

    tenant: str
    role: Role
    key_id: str
    """The public half of the key; empty while the service has no keys."""
    agent_id: str | None = None
    """The agent that an agent key acts as; it sees only that agent's outcomes."""

    @property
    def scope(self) -> "Scope":
        """The records that this caller may see."""
        return Scope(self.tenant, self.agent_id if self.role is Role.AGENT else None, self.role is Role.AGENT)


class Scope(Record, frozen=True):
    """The records that a query may read; part of every WHERE."""

    tenant: str
    agent_id: str | None = None
    only_own: bool = False
    """An agent sees its own outcomes; one that has no name sees none."""


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
