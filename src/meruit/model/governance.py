"""Asking an outsider whether an outcome can be believed."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from meruit.model.record import Record


class GovernanceResult(Record, frozen=True):
    """Plausible or not; never whether the criteria were met."""

    valid: bool
    flags: list[str] = msgspec.field(default_factory=list)


class GovernanceClient(Protocol):
    """Whoever answers; the engine holds the outcome for review when it cannot be reached."""

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        """Judge the plausibility of the measured values in their context."""
        ...
