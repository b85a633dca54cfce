"""When to look again at what a provider counted: soon while it may move, seldom once it stands, never for ever."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Annotated, NamedTuple

import msgspec

from meruit.errors import FetchError
from meruit.model.record import Record
from meruit.model.usage import LONGEST_MIN, Observation, UsageCode, UsagePolicy, UsageStatus, UsageVerdict
from meruit.usage.observation import failure, is_equal, later, total_of

Minutes = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_MIN)]
Hours = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_MIN / 60)]
MOST_DOUBLINGS = 30


class Schedule(Record, frozen=True):
    """How patiently a run's count is looked at."""

    first_min: Minutes = 10
    """After the end of the run; also the first pause after a look without data, each later one twice as long."""
    longest_min: Minutes = 360
    fresh_h: Hours = 24
    """How long data are expected; a run without any by then is exhausted, and looked at daily."""
    give_up_h: Hours = 168
    """From then on only on request."""
    audits_h: tuple[Hours, ...] = (24, 168)
    """When what is verified is looked at again."""
    invoice_days: Annotated[int, msgspec.Meta(ge=0, le=366)] = 3
    """Days of the next month after which its invoice is closed: one more audit."""
    shortest_min: Minutes = 1
    """Between two looks, however short the interval of the policy is."""
    late_observations: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 10
    """How many looks a run with data may have after it would be given up: an audit may find that it moves again."""


class NextObservation(NamedTuple):
    """When somebody should look again, and why."""

    at: datetime | None
    """None where no time brings it about."""
    why: str
    waits: str = ""
    """What it waits for instead: `credential`, `person`."""
    exhausted: bool = False
    """Whether there is no data although there should be."""


_UNSETTLED = (UsageStatus.PENDING, UsageStatus.WARNING)
"""Where another look may prove something by being equal to the last."""
_DEFAULT_SCHEDULE = Schedule()
_DEFAULT_POLICY = UsagePolicy()


def next_observation(
    ended_at: datetime | None,
    verdict: UsageVerdict,
    looks: Sequence[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    schedule: Schedule = _DEFAULT_SCHEDULE,
) -> NextObservation:
    """By the verdict and the looks that led to it."""
    if ended_at is None:
        return NextObservation(None, "the run is still open")
    if verdict.code is UsageCode.CONFLICTING_EVIDENCE:
        return NextObservation(None, "one look is told in two ways; a person must see which is true", "person")
    since = sorted((one for one in looks if one.at >= ended_at), key=lambda one: (one.at, one.id))
    if not since:
        return NextObservation(later(ended_at, timedelta(minutes=schedule.first_min)), "the first look")
    return _ObservedRun(ended_at, verdict, since, policy, schedule).next_observation()


def is_early(
    looks: Sequence[Observation], verdict: UsageVerdict, look: Observation, policy: UsagePolicy = _DEFAULT_POLICY
) -> bool:
    """Whether an equal look comes too soon to prove anything: kept as an attempt, frequent looks would starve a run.

    A look that is not kept moves no due time: what `next_look` said before it still lies ahead.
    """
    if verdict.status not in _UNSETTLED or look.error is not None or look.total is None:
        return False
    return any(
        is_equal(one, look, policy) and abs(look.at - one.at) < policy.interval
        for one in looks
        if one.id in verdict.compared[-1:]
    )


class _ObservedRun(NamedTuple):
    """A run that was looked at, and what is known by that."""

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
                None, "the key or its scope was refused; another one is looked with at once", "credential"
            )
        if error is not None:
            return self._after_failure()
        match self.verdict.status:
            case UsageStatus.DATA_NOT_AVAILABLE:
                return self._after_failure()
            case UsageStatus.VERIFIED:
                return self._next_audit()
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
        """Nothing was found out, or nothing is there."""
        is_old = self._age >= timedelta(hours=self.schedule.fresh_h)
        exhausted = is_old and self.verdict.status is UsageStatus.DATA_NOT_AVAILABLE
        if self._is_given_up():
            if self.verdict.status is UsageStatus.VERIFIED:
                return self._next_audit()
            return NextObservation(None, "there were no data in all that time; only on request", "person", exhausted)
        if is_old:
            return NextObservation(self._after(timedelta(days=1)), "data were due long ago; once a day", "", exhausted)
        return NextObservation(self._after(self._backoff()), "no data yet; each pause is twice as long")

    def _after(self, pause: timedelta) -> datetime:
        """So long after the last look, and not before an equal one would prove something: it would not even be kept."""
        due = later(self._last_at, pause)
        seen = [one.at for one in self.observations if failure(one, self.ended_at) is None]
        is_waiting = seen and self.verdict.status in _UNSETTLED
        return max(due, later(seen[-1], self.policy.interval)) if is_waiting else due

    def _backoff(self) -> timedelta:
        in_a_row = sum(1 for _ in takewhile(self._is_empty, reversed(self.observations)))
        # Doubling is bounded before it is done: a long outage makes a large number.
        pause = self.schedule.first_min * 2.0 ** min(in_a_row - 1, MOST_DOUBLINGS)
        return timedelta(minutes=min(pause, self.schedule.longest_min))

    def _is_empty(self, look: Observation) -> bool:
        return failure(look, self.ended_at) is not None or not total_of(look).total

    def _after_pending(self) -> NextObservation:
        if self._is_given_up():
            return NextObservation(None, "it still moves after all that time; a person must look", "person")
        return NextObservation(self._after(self._interval), "an equal look by then settles it")

    @property
    def _interval(self) -> timedelta:
        return max(self.policy.interval, timedelta(minutes=self.schedule.shortest_min))

    def _after_warning(self) -> NextObservation:
        fresh_until = later(self.ended_at, timedelta(hours=self.schedule.fresh_h))
        if self._last_at >= fresh_until:
            return NextObservation(None, "it stayed as it is; a person must look", "person")
        soonest = self._after(self._interval)
        if self.verdict.code is UsageCode.DECREASED:
            return NextObservation(soonest, "what fell often comes back")
        return NextObservation(max(soonest, fresh_until), "once more when all data should be there")

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
