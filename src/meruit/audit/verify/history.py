"""What the log says of an outcome and of its contract."""

from typing import TypeAlias

import msgspec

from meruit.audit.bundle import (
    Annotations,
)
from meruit.audit.verify.labels import LabelHistory
from meruit.audit.verify.usage import UsageHistory
from meruit.contracts.latency import ContractTimes
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.entries import (
    NO_CRITERIA,
    AwardEntry,
    DisputeEntry,
    EvidenceEntry,
    GovernanceEntry,
    InputReadEntry,
    MoneyEntry,
    ResolutionEntry,
    StartEntry,
    VerdictEntry,
)

ContractTransition: TypeAlias = MoneyEntry | DisputeEntry | ResolutionEntry


BeforeOutput: TypeAlias = InputReadEntry | StartEntry
"""What can happen between the award and the output."""


class ContractHistory(msgspec.Struct, frozen=True):
    """What the log says of the contract."""

    award: AwardEntry
    governance: tuple[GovernanceEntry, ...]
    times: ContractTimes
    """When it was awarded, its input first read, and its start reported."""
    transitions: tuple[tuple[int, ContractTransition], ...]
    """What moved money, and the disputes about it, by their place in the log, the award first."""
    usage: UsageHistory
    """What the log says of the runs whose tokens were paid."""

    @property
    def money(self) -> tuple[tuple[int, MoneyEntry], ...]:
        """Only what moved money."""
        return tuple((index, entry) for index, entry in self.transitions if isinstance(entry, MoneyEntry))

    @property
    def criteria(self) -> str:
        """The digest of the criteria that were agreed on."""
        return self.award.criteria or NO_CRITERIA


class OutcomeHistory(msgspec.Struct, frozen=True):
    """What the log says of the outcome."""

    evidence: EvidenceEntry
    verdicts: tuple[VerdictEntry, ...]
    """Version 1 first."""
    erased: frozenset[str]
    about: Annotations
    contract: "ContractHistory | None" = None
    """None for work without a contract."""
    labels: LabelHistory | None = None
    """What people said; None for an outcome that is not a case of an evaluation."""


def sequence_flaw(what: str) -> BundleFlaw:
    """A flaw of the step that reads the entries."""
    return BundleFlaw(AuditStep.SEQUENCE, what)
