"""What the observations of a run have led to, so that a later one is judged without reading those before. Pure."""

from collections.abc import Sequence

import msgspec

from meruit.model.record import Record
from meruit.model.usage import Acknowledgement, Moment, Observation, UsagePolicy, UsageRun, UsageVerdict
from meruit.usage.decision import fold_all
from meruit.usage.fold import FoldState, ObservationFold
from meruit.usage.schedule import (
    NextObservation,
    ObservationTimes,
    Schedule,
    is_early,
    next_after,
    times_of_observations,
)

FOLD_FROM = 16
"""A run with fewer observations is judged by all of them: reading them costs less than keeping their progress."""


class UsageProgress(Record, frozen=True):
    """The observations of a run so far, as the next one needs to know them."""

    policy: UsagePolicy
    """The policy that they were judged by; under another one, they are all read again."""
    give_up_h: float
    """The part of the schedule that `times` depends on."""
    count: int
    """How many there are."""
    latest_at: Moment
    """Of the latest observation or acknowledgement."""
    early: int
    """How many are marked as early."""
    fold: FoldState
    times: ObservationTimes

    def is_continued_by(self, observation: Observation, policy: UsagePolicy, schedule: Schedule) -> bool:
        """Whether the observation is later than all evidence, and is judged as the others were."""
        is_later = observation.at > self.latest_at
        return is_later and policy == self.policy and schedule.give_up_h == self.give_up_h

    def is_early(self, verdict: UsageVerdict, observation: Observation) -> bool:
        """Whether a later observation comes too soon to count; `verdict` is what the others led to."""
        success = self.fold.success
        decided = () if success is None else (success.observations[success.compared[-1]],)
        return is_early(decided, verdict, observation, self.policy)


class ObservedRun(msgspec.Struct, frozen=True):
    """What the observations of a run lead to."""

    verdict: UsageVerdict
    due: NextObservation
    progress: UsageProgress | None
    """None where so few observations cost less to read than to fold."""


def judge_all(
    run: UsageRun,
    observations: Sequence[Observation],
    acknowledged: Sequence[Acknowledgement],
    policy: UsagePolicy,
    schedule: Schedule,
) -> ObservedRun:
    """Judge a run by all of its observations, in any order."""
    fold, ended_at = fold_all(run, observations, policy, acknowledged), run.ended_at
    verdict, times = fold.verdict(), ObservationTimes()
    if ended_at is not None:
        times = times_of_observations(observations, ended_at, schedule)
    due = next_after(ended_at, verdict, times, policy, schedule)
    if len(observations) < FOLD_FROM:
        return ObservedRun(verdict, due, None)
    progress = UsageProgress(
        policy=policy,
        give_up_h=schedule.give_up_h,
        count=len(observations),
        latest_at=max([one.at for one in observations] + [one.at for one in acknowledged]),
        early=sum(one.early for one in observations),
        fold=fold.state(),
        times=times,
    )
    return ObservedRun(verdict, due, progress)


def judge_next(
    run: UsageRun, progress: UsageProgress, verdict: UsageVerdict, observation: Observation, schedule: Schedule
) -> ObservedRun:
    """Judge a run by one observation more, which continues its progress; `verdict` is what the others led to."""
    fold = ObservationFold(run, progress.policy, progress.fold, verdict.history)
    fold.add(observation)
    decided, times = fold.verdict(), progress.times
    if run.ended_at is not None:
        times = times.add(observation, run.ended_at, schedule)
    due = next_after(run.ended_at, decided, times, progress.policy, schedule)
    following = msgspec.structs.replace(
        progress,
        count=progress.count + 1,
        latest_at=observation.at,
        early=progress.early + observation.early,
        fold=fold.state(),
        times=times,
    )
    return ObservedRun(decided, due, following)
