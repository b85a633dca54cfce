"""Who may ask for what: roles, and the caller that a key stands for."""

from enum import StrEnum

from meruit.model.record import Record

DEFAULT_TENANT = "default"


class Role(StrEnum):
    """What a key is for."""

    AGENT = "agent"
    """Hands in work and learns the verdict; never sees a reference, a threshold or evidence."""
    OPERATOR = "operator"
    """Registers criteria, verifies work, reads what is recorded."""
    AUDITOR = "auditor"
    """Reads everything, changes nothing."""
    ADMIN = "admin"
    """All of it, and the keys."""


class Caller(Record, frozen=True):
    """Somebody who was let in."""

    tenant: str
    role: Role
    key_id: str
    """The public half of the key; empty for whoever calls a service that has no keys yet."""
    agent_id: str | None = None
    """The agent that an agent's key acts as, and the only one whose outcomes it sees."""

    @property
    def scope(self) -> "Scope":
        """What of the records is this caller's to see."""
        return Scope(self.tenant, self.agent_id if self.role is Role.AGENT else None, self.role is Role.AGENT)


class Scope(Record, frozen=True):
    """The part of the records that a query may reach; it stands in every WHERE."""

    tenant: str
    agent_id: str | None = None
    only_own: bool = False
    """An agent sees its own outcomes; one that has no name sees none."""
