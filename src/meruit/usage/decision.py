"""Decide whether a run's tokens are verified, by any observations of the provider's count in any order."""

from collections.abc import Iterable, Sequence

from meruit.model.usage import Acknowledgement, Observation, UsagePolicy, UsageRun, UsageVerdict
from meruit.usage.fold import FoldState, ObservationFold, evidence_key
from meruit.usage.observation import is_equal, is_same_model

__all__ = ["decide", "fold_all", "is_equal", "is_same_model"]

_DEFAULT_POLICY = UsagePolicy()


def decide(
    run: UsageRun,
    observations: Iterable[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    acknowledged: Sequence[Acknowledgement] = (),
) -> UsageVerdict:
    """Decide what may be claimed of the run's tokens.

    The order of the observations does not matter, nor how often each is given.
    """
    return fold_all(run, observations, policy, acknowledged).verdict()


def fold_all(
    run: UsageRun,
    observations: Iterable[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    acknowledged: Sequence[Acknowledgement] = (),
) -> ObservationFold:
    """Fold observations that are given in any order, and any number of times."""
    distinct, conflict = _deduplicate(observations)
    fold = ObservationFold(run, policy, FoldState(conflict=conflict))
    if conflict is None:
        evidence: list[Observation | Acknowledgement] = [*distinct, *acknowledged]
        for one in sorted(evidence, key=evidence_key):
            fold.add(one)
    return fold


def _deduplicate(observations: Iterable[Observation]) -> tuple[list[Observation], str | None]:
    """Return each observation once; and the id of one that has two different contents."""
    found: dict[str, Observation] = {}
    conflicts = [one.id for one in observations if found.setdefault(one.id, one) != one]
    return [*found.values()], min(conflicts, default=None)
