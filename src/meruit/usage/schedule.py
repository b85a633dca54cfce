"""When to observe a run again: soon while its count may change, seldom once it is stable, and not without end."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from meruit.errors import FetchError
from meruit.model.record import Record
from meruit.model.usage import (
    BY_FILE,
    LONGEST_MIN,
    Moment,
    Observation,
    UsageCode,
    UsagePolicy,
    UsageStatus,
    UsageVerdict,
)
from meruit.usage.observation import failure, is_equal, later, total_of

Minutes = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_MIN)]
Hours = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_MIN / 60)]
MOST_DOUBLINGS = 30


class Schedule(Record, frozen=True):
    """How often a run's count is observed."""

    first_min: Minutes = 10
    """Time from the end of the run to the first observation; also the first pause after an observation without data,
    which doubles each time."""
    longest_min: Minutes = 360
    fresh_h: Hours = 24
    """How long to wait for data; a run without any by then is exhausted, and observed once a day."""
    give_up_h: Hours = 168
    """After this time a run is observed only on request."""
    audits_h: tuple[Hours, ...] = (24, 168)
    """When a verified run is observed again."""
    invoice_days: Annotated[int, msgspec.Meta(ge=0, le=366)] = 3
    """Days after the end of the month until its invoice is closed: one more audit."""
    shortest_min: Minutes = 1
    """Least time between two observations, however short the interval of the policy is."""
    late_observations: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 10
    """How many observations a run with data gets after `give_up_h`: an audit may find that its count changes again."""


class NextObservation(msgspec.Struct, frozen=True):
    """When to observe a run again, and why."""

    at: datetime | None
    """None where the run is not observed by itself any more."""
    why: str
    waits: str = ""
    """What the run waits for instead: `credential`, `person`."""
    exhausted: bool = False
    """Whether the time for data to arrive is over and there are none."""


_UNSETTLED = (UsageStatus.PENDING, UsageStatus.WARNING)
"""Statuses in which an equal observation may verify the run."""
_DEFAULT_SCHEDULE = Schedule()
_DEFAULT_POLICY = UsagePolicy()


def next_observation(
    ended_at: datetime | None,
    verdict: UsageVerdict,
    observations: Iterable[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    schedule: Schedule = _DEFAULT_SCHEDULE,
) -> NextObservation:
    """Decide by the verdict and the observations that led to it."""
    seen = ObservationTimes() if ended_at is None else times_of_observations(observations, ended_at, schedule)
    return next_after(ended_at, verdict, seen, policy, schedule)


class ObservationTimes(Record, frozen=True):
    """What the observations since the end of a run add up to, without those marked as early."""

    last_at: Moment | None = None
    """None without observations."""
    last_error: FetchError | None = None
    """Why the last one failed; None where it succeeded."""
    answered_at: Moment | None = None
    """Of the last one that the provider answered."""
    succeeded_at: Moment | None = None
    """Of the last one with a complete answer."""
    late: int = 0
    """How many came after the time at which the schedule gives up."""
    empty_in_a_row: int = 0
    """How many of the last ones failed or had no tokens."""
    has_tokens: bool = False
    """Whether one of them had tokens."""

    def add(self, observation: Observation, ended_at: datetime, schedule: Schedule) -> "ObservationTimes":
        """Take the next observation, in the order of time."""
        if observation.at < ended_at or observation.early:
            return self
        error, at = failure(observation, ended_at), observation.at
        is_empty = error is not None or not total_of(observation).total
        return ObservationTimes(
            last_at=at,
            last_error=error,
            answered_at=at if observation.error is None else self.answered_at,
            succeeded_at=at if error is None else self.succeeded_at,
            late=self.late + (at - ended_at >= timedelta(hours=schedule.give_up_h)),
            empty_in_a_row=self.empty_in_a_row + 1 if is_empty else 0,
            has_tokens=self.has_tokens or not is_empty,
        )


def times_of_observations(
    observations: Iterable[Observation], ended_at: datetime, schedule: Schedule
) -> ObservationTimes:
    """Add up observations that are given in any order."""
    seen = ObservationTimes()
    for one in sorted(observations, key=lambda one: (one.at, one.id)):
        seen = seen.add(one, ended_at, schedule)
    return seen


def next_after(
    ended_at: datetime | None, verdict: UsageVerdict, seen: ObservationTimes, policy: UsagePolicy, schedule: Schedule
) -> NextObservation:
    """Decide by what the observations since the end of the run add up to."""
    if ended_at is None:
        return NextObservation(None, "the run is still open")
    if verdict.code is UsageCode.CONFLICTING_EVIDENCE:
        return NextObservation(
            at=None,
            why="one observation has two different contents; an operator must check which is true",
            waits="person",
        )
    if seen.last_at is None:
        return NextObservation(later(ended_at, timedelta(minutes=schedule.first_min)), "the first observation")
    return _ObservedRun(
        ended_at=ended_at, verdict=verdict, seen=seen, last_at=seen.last_at, policy=policy, schedule=schedule
    ).next_observation()


def is_early(
    observations: Iterable[Observation],
    verdict: UsageVerdict,
    observation: Observation,
    policy: UsagePolicy = _DEFAULT_POLICY,
) -> bool:
    """Whether an equal observation comes too soon to count.

    Frequent ones, if they counted, would keep a run from being verified. Such an observation is kept with a mark, and
    the due time stays. An imported observation is never early: its author decided to count it. Nor is the provider's
    own count after an imported one: it begins the pair that proves the run.
    """
    if verdict.status not in _UNSETTLED or observation.error is not None or observation.total is None:
        return False
    return observation.reported_by != BY_FILE and any(
        is_equal(one, observation, policy) and abs(observation.at - one.at) < policy.interval
        for one in observations
        if one.id in verdict.compared[-1:] and one.reported_by == observation.reported_by
    )


class _ObservedRun(msgspec.Struct, frozen=True):
    """A run with observations, and the rules for its next one."""

    ended_at: datetime
    verdict: UsageVerdict
    seen: ObservationTimes
    last_at: datetime
    """Of the last observation."""
    policy: UsagePolicy
    schedule: Schedule

    def next_observation(self) -> NextObservation:
        error = self.seen.last_error
        if error is FetchError.AUTH:
            return NextObservation(
                at=None, why="the key or its scope was refused; a new key is tried at once", waits="credential"
            )
        if error is not None:
            return self._after_failure()
        match self.verdict.status:
            case UsageStatus.DATA_NOT_AVAILABLE:
                return self._after_failure()
            case UsageStatus.VERIFIED:
                return self._after_import() if self.verdict.reported_by == BY_FILE else self._next_audit()
            case UsageStatus.PENDING:
                return self._after_pending()
            case UsageStatus.WARNING:
                return self._after_warning()

    @property
    def _age(self) -> timedelta:
        return self.last_at - self.ended_at

    def _is_given_up(self) -> bool:
        # Who shares an attribution key with others may have data, and no count of its own.
        is_without = self.verdict.tokens is None and not self.seen.has_tokens
        return self.seen.late > (0 if is_without else self.schedule.late_observations)

    def _after_failure(self) -> NextObservation:
        """The last observation failed or found no tokens."""
        is_old = self._age >= timedelta(hours=self.schedule.fresh_h)
        exhausted = is_old and self.verdict.status is UsageStatus.DATA_NOT_AVAILABLE
        if self._is_given_up():
            if self.verdict.status is UsageStatus.VERIFIED:
                return self._next_audit()
            return NextObservation(
                at=None, why="no data arrived in time; observed only on request", waits="person", exhausted=exhausted
            )
        if is_old:
            return NextObservation(
                at=self._after(timedelta(days=1)),
                why="the data are overdue; observed once a day",
                waits="",
                exhausted=exhausted,
            )
        return NextObservation(self._after(self._backoff()), "no data yet; each pause is twice as long as the last")

    def _after(self, pause: timedelta) -> datetime:
        """The time after a pause since the last observation; not before an equal observation would count."""
        due = later(self.last_at, pause)
        seen_at = self.seen.succeeded_at
        is_waiting = self.verdict.status in _UNSETTLED
        return max(due, later(seen_at, self.policy.interval)) if seen_at is not None and is_waiting else due

    def _backoff(self) -> timedelta:
        # The exponent is bounded first: a long outage makes a large number.
        pause = self.schedule.first_min * 2.0 ** min(self.seen.empty_in_a_row - 1, MOST_DOUBLINGS)
        return timedelta(minutes=min(pause, self.schedule.longest_min))

    def _after_pending(self) -> NextObservation:
        if self._is_given_up():
            return NextObservation(at=None, why="the count still changes; an operator must check it", waits="person")
        return NextObservation(self._after(self._interval), "an equal observation verifies it")

    def _after_import(self) -> NextObservation:
        """A file says that the run is verified; the provider has not said so."""
        if self._is_given_up():
            return self._next_audit()
        return NextObservation(self._after(self._interval), "the count comes from a file; the provider must confirm it")

    @property
    def _interval(self) -> timedelta:
        return max(self.policy.interval, timedelta(minutes=self.schedule.shortest_min))

    def _after_warning(self) -> NextObservation:
        fresh_until = later(self.ended_at, timedelta(hours=self.schedule.fresh_h))
        if self.last_at >= fresh_until:
            return NextObservation(at=None, why="the warning stayed; an operator must check it", waits="person")
        soonest = self._after(self._interval)
        if self.verdict.code is UsageCode.DECREASED:
            return NextObservation(soonest, "a count that fell often recovers")
        return NextObservation(max(soonest, fresh_until), "once more when all data should have arrived")

    def _next_audit(self) -> NextObservation:
        audits = [
            (later(self.ended_at, timedelta(hours=hours)), f"an audit {hours:g} hours after the run")
            for hours in self.schedule.audits_h
        ]
        audits.append((self._invoice_close(), "an audit when the month's invoice is closed"))
        ahead = [audit for audit in audits if audit[0] > self.last_at]
        return NextObservation(*min(ahead)) if ahead else NextObservation(None, "every audit is done")

    def _invoice_close(self) -> datetime:
        month = later(self.ended_at, timedelta())
        following = later(datetime(month.year, month.month, 1, tzinfo=UTC), timedelta(days=32))
        next_month = datetime(following.year, following.month, 1, tzinfo=UTC)
        return later(next_month, timedelta(days=self.schedule.invoice_days))
