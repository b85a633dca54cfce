"""What changed between two verdicts on one piece of work."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from meruit.model.record import Record
from meruit.model.verdict import CriterionResult, Verdict, VerificationResult

OF_RESULTS = (
    *("verdict", "success", "score", "weighted_score", "coverage", "bonus", "penalty"),
    *("governance", "criteria_digest"),
)
"""Fields of two results that are compared."""
OF_CRITERIA = (
    *("status", "value", "threshold", "comparison", "weight", "required", "axis", "metric", "exact"),
    *("bonus", "penalty", "error", "provenance", "scale"),
)
"""Fields of two judged criteria that are compared."""


class FieldChange(Record, frozen=True):
    """One field that differs."""

    field: str
    before: Any
    after: Any

    def inverse(self) -> "FieldChange":
        """The reverse change."""
        return FieldChange(self.field, self.after, self.before)


class DifferenceKind(StrEnum):
    """What happened to a criterion."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


_OPPOSITE = {
    DifferenceKind.ADDED: DifferenceKind.REMOVED,
    DifferenceKind.REMOVED: DifferenceKind.ADDED,
    DifferenceKind.CHANGED: DifferenceKind.CHANGED,
}


class CriterionDifference(Record, frozen=True):
    """One criterion that was added, removed or judged differently."""

    criterion_id: str
    kind: DifferenceKind
    changes: tuple[FieldChange, ...]
    """Of an added or removed criterion, all that it has: the other side is None."""

    def inverse(self) -> "CriterionDifference":
        """The reverse difference."""
        return CriterionDifference(
            self.criterion_id, _OPPOSITE[self.kind], tuple(change.inverse() for change in self.changes)
        )


class VerdictSummary(Record, frozen=True):
    """How a verification ended."""

    verdict: Verdict
    success: bool
    score: float


class VerdictDifference(Record, frozen=True):
    """All that differs between an earlier and a later verdict."""

    before: VerdictSummary
    after: VerdictSummary
    changes: tuple[FieldChange, ...]
    criteria: tuple[CriterionDifference, ...]
    """By criterion id, only those that differ."""

    @property
    def is_empty(self) -> bool:
        """Whether both say the same."""
        return not self.changes and not self.criteria

    def inverse(self) -> "VerdictDifference":
        """The reverse difference."""
        return VerdictDifference(
            self.after,
            self.before,
            tuple(change.inverse() for change in self.changes),
            tuple(criterion.inverse() for criterion in self.criteria),
        )


def difference(old: VerificationResult, new: VerificationResult) -> VerdictDifference:
    """Compare two results; criteria are matched by id."""
    before = {judged.criterion_id: judged for judged in old.criterion_results}
    after = {judged.criterion_id: judged for judged in new.criterion_results}
    both = ((name, before.get(name), after.get(name)) for name in sorted({*before, *after}))
    return VerdictDifference(
        VerdictSummary(old.verdict, old.success, old.score),
        VerdictSummary(new.verdict, new.success, new.score),
        _changes(OF_RESULTS, old, new),
        tuple(found for one in both if (found := _of_criterion(*one)) is not None),
    )


def _of_criterion(name: str, old: CriterionResult | None, new: CriterionResult | None) -> CriterionDifference | None:
    changes = _changes(OF_CRITERIA, old, new)
    if old is None:
        return CriterionDifference(name, DifferenceKind.ADDED, changes)
    if new is None:
        return CriterionDifference(name, DifferenceKind.REMOVED, changes)
    return CriterionDifference(name, DifferenceKind.CHANGED, changes) if changes else None


def _changes(fields: Sequence[str], old: Record | None, new: Record | None) -> tuple[FieldChange, ...]:
    pairs = ((field, getattr(old, field, None), getattr(new, field, None)) for field in fields)
    return tuple(FieldChange(*pair) for pair in pairs if _differ(*pair[1:]))


def _differ(before: Any, after: Any) -> bool:
    # In Python true equals 1; for a reader it does not.
    return before != after or isinstance(before, bool) is not isinstance(after, bool)
