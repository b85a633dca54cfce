"""When to observe a run again: soon while its count may change, seldom once it is stable, and not without end."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Annotated

import msgspec

from meruit.errors import FetchError
from meruit.model.record import Record
from meruit.model.usage import BY_FILE, LONGEST_MIN, Observation, UsageCode, UsagePolicy, UsageStatus, UsageVerdict
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
    observations: Sequence[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    schedule: Schedule = _DEFAULT_SCHEDULE,
) -> NextObservation:
    """Decide by the verdict and the observations that led to it."""
    if ended_at is None:
        return NextObservation(None, "the run is still open")
    if verdict.code is UsageCode.CONFLICTING_EVIDENCE:
        return NextObservation(
            at=None,
            why="one observation has two different contents; an operator must check which is true",
            waits="person",
        )
    since = sorted(
        (one for one in observations if one.at >= ended_at and not one.early), key=lambda one: (one.at, one.id)
    )
    if not since:
        return NextObservation(later(ended_at, timedelta(minutes=schedule.first_min)), "the first observation")
    return _ObservedRun(
        ended_at=ended_at, verdict=verdict, observations=since, policy=policy, schedule=schedule
    ).next_observation()


def is_early(
    observations: Sequence[Observation],
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
    observations: Sequence[Observation]
    """Since its end, in order."""
    policy: UsagePolicy
    schedule: Schedule

    def next_observation(self) -> NextObservation:
        error = failure(self.observations[-1], self.ended_at)
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
    def _last_at(self) -> datetime:
        return self.observations[-1].at

    @property
    def _age(self) -> timedelta:
        return self._last_at - self.ended_at

    def _is_given_up(self) -> bool:
        give_up = timedelta(hours=self.schedule.give_up_h)
        late = sum(one.at - self.ended_at >= give_up for one in self.observations)
        # Who shares an attribution key with others may have data, and no count of its own.
        is_without = self.verdict.tokens is None and all(map(self._is_empty, self.observations))
        return late > (0 if is_without else self.schedule.late_observations)

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
        due = later(self._last_at, pause)
        seen = [one.at for one in self.observations if failure(one, self.ended_at) is None]
        is_waiting = seen and self.verdict.status in _UNSETTLED
        return max(due, later(seen[-1], self.policy.interval)) if is_waiting else due

    def _backoff(self) -> timedelta:
        in_a_row = sum(1 for _ in takewhile(self._is_empty, reversed(self.observations)))
        # The exponent is bounded first: a long outage makes a large number.
        pause = self.schedule.first_min * 2.0 ** min(in_a_row - 1, MOST_DOUBLINGS)
        return timedelta(minutes=min(pause, self.schedule.longest_min))

    def _is_empty(self, observation: Observation) -> bool:
        return failure(observation, self.ended_at) is not None or not total_of(observation).total

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
        if self._last_at >= fresh_until:
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
        ahead = [audit for audit in audits if audit[0] > self._last_at]
        return NextObservation(*min(ahead)) if ahead else NextObservation(None, "every audit is done")

    def _invoice_close(self) -> datetime:
        month = later(self.ended_at, timedelta())
        following = later(datetime(month.year, month.month, 1, tzinfo=UTC), timedelta(days=32))
        next_month = datetime(following.year, following.month, 1, tzinfo=UTC)
        return later(next_month, timedelta(days=self.schedule.invoice_days))
