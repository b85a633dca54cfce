"""Roles, and the caller behind an API key."""

from enum import StrEnum

from meruit.model.record import Record

DEFAULT_TENANT = "default"


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
