"""May a run's tokens be believed? One answer for any looks at the provider's count, in any order."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from meruit.model.usage import (
    INTERVAL_MIN,
    Acknowledgement,
    Anchor,
    Assurance,
    Observation,
    UsageChange,
    UsageCode,
    UsagePolicy,
    UsageRun,
    UsageStatus,
    UsageVerdict,
)
from meruit.usage import rules
from meruit.usage.observation import (
    assurance_of,
    coverage,
    failure,
    is_equal,
    is_same_model,
    later,
    monotonic_counts,
    own_tokens,
    shortfall,
    total_of,
)

__all__ = ["decide", "is_equal", "is_same_model"]

_DEFAULT_POLICY = UsagePolicy()
_LATEST_FAILED = " The latest look failed; what stood before it stands."


def decide(
    run: UsageRun,
    attempts: Iterable[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    acknowledged: Sequence[Acknowledgement] = (),
) -> UsageVerdict:
    """What may be claimed of the run's tokens; the order of the looks, and how often each is given, does not matter."""
    looks, conflict = _deduplicate(attempts)
    if conflict is not None:
        return _verdict_without_observation(run, policy, rules.conflict(conflict))
    ended_at = run.ended_at
    if ended_at is None:
        return _verdict_without_observation(run, policy, rules.RUN_OPEN)
    looks = [look for look in looks if look.at >= ended_at]
    if not looks:
        return _verdict_without_observation(run, policy, rules.NOT_STARTED)
    observed = [look for look in looks if failure(look, ended_at) is None]
    if not observed:
        return _verdict_without_observation(run, policy, rules.only_errors(looks, ended_at))
    following = _VerdictBuilder(run, policy, observed[0])
    happenings: list[Observation | Acknowledgement] = [*observed[1:], *acknowledged]
    for happening in sorted(happenings, key=_sort_key):
        following.add(happening)
    return following.verdict(held=observed[-1] is not looks[-1])


class _VerdictBuilder:
    """The looks one after the other: what stands after each."""

    def __init__(self, run: UsageRun, policy: UsagePolicy, first: Observation) -> None:
        self._run = run
        self._policy = policy
        self._marks: dict[str, int] = {}
        """The most that was ever seen, of the whole and of each step, or a person's word allows for."""
        self._fell = False
        """Whether a count ever fell, and nobody has accepted it."""
        self._last = self._since = first
        """The latest look, and the one from which the next interval counts."""
        self._compared: tuple[Observation] | tuple[Observation, Observation] = (first,)
        """The looks that decide: the last two, or those that prove what still stands."""
        self._equal = self._settled = False
        """Whether the latest look found the same as the one before, and whether that is proof enough."""
        self._pairs = 0
        """How many intervals in a row nothing moved."""
        self._last_counted: Observation | None = None
        """The last look with a count."""
        self._history: list[UsageChange] = []
        self._finding = self._evaluate(first)

    def add(self, happening: Observation | Acknowledgement) -> None:
        if isinstance(happening, Observation):
            self._compare(happening)
            self._finding = self._evaluate(happening)
        elif self._finding.code is UsageCode.DECREASED:
            self._finding = self._acknowledge(happening)

    def _compare(self, look: Observation) -> None:
        """Whether the look continues those that are equal, and what that proves."""
        before, since = self._last, self._since
        by_pairs = self._policy.anchor is Anchor.LAST_PAIR
        self._last, self._equal = look, is_equal(before, look, self._policy)
        if not self._equal:
            self._since, self._pairs, self._settled, self._compared = look, 0, False, (before, look)
            return
        is_far = look.at > since.at and look.at - since.at >= self._policy.interval
        if is_far:
            self._pairs += 1
        elif by_pairs:
            self._pairs = 0
        # What is verified stays so: an early look says nothing against it, and proves nothing either.
        is_verified = self._finding.status is UsageStatus.VERIFIED
        self._settled = is_verified or self._pairs >= self._policy.min_stable_pairs
        if is_far or not self._settled:
            self._compared = (since, look)
        if is_far or by_pairs:
            self._since = look

    def _evaluate(self, look: Observation) -> rules.Finding:
        finding = self._judge(look)
        # What is counted with a run that has not ended reaches up to that moment, and is less once it is over.
        if look.cohort is None or not look.cohort.has_open:
            for name, count in monotonic_counts(look, self._policy).items():
                self._marks[name] = max(count, self._marks.get(name, 0))
        if total_of(look).total:
            self._last_counted = look
        return self._record_finding(finding, look.at, look.id)

    def _acknowledge(self, word: Acknowledgement) -> rules.Finding:
        """What fell may be as low as it was at that moment, and no lower."""
        for name, less in shortfall(self._last, self._marks, self._policy).items():
            self._marks[name] -= less
        self._fell = False
        return self._record_finding(self._judge(self._last), word.at, "")

    def _judge(self, look: Observation) -> rules.Finding:
        """The first rule that applies."""
        if not total_of(look).total and not self._run.uses_none:
            return rules.zero(self._last_counted)
        less = shortfall(look, self._marks, self._policy)
        self._fell = self._fell or bool(less)
        if less:
            return rules.decrease(less)
        if self._fell and self._policy.anomaly_is_permanent:
            return rules.DECREASE_RECOVERED
        return self._judge_pair(look, *self._compared)

    def _judge_pair(self, look: Observation, one: Observation, other: Observation | None = None) -> rules.Finding:
        if other is None:
            return rules.first(self._policy)
        if not self._equal:
            return rules.change(one, other, self._policy)
        apart = other.at - one.at
        if not self._settled:
            return rules.gap(apart, self._pairs, later(self._since.at, self._policy.interval), self._policy)
        return rules.stable(self._run, look, apart, self._policy)

    def _record_finding(self, finding: rules.Finding, at: datetime, observation_id: str) -> rules.Finding:
        """Writes down what is claimed from now on."""
        claimed = (finding.status, finding.code)
        if not self._history or claimed != (self._history[-1].status, self._history[-1].code):
            self._history.append(UsageChange(at, *claimed, observation_id))
        return finding

    def verdict(self, *, held: bool) -> UsageVerdict:
        """What stands after the last look."""
        finding, last = self._finding, self._last
        shown = self._last_counted if finding.code is UsageCode.ZERO_TOKENS else last
        covered = coverage(self._run, last)
        pair = self._compared
        return UsageVerdict(
            status=finding.status,
            code=finding.code,
            message=finding.message,
            explanation=_with_interval_note(finding.explanation + (_LATEST_FAILED if held else ""), self._policy),
            # Of all that it rests on, the weakest.
            assurance=max(assurance_of(one) for one in (*pair, last)),
            tokens=None if shown is None else own_tokens(self._run, shown),
            steps_with_tokens=covered.have,
            total_steps=covered.expected,
            empty_steps=covered.empty,
            minutes=rules.minutes(pair[1].at - pair[0].at) if len(pair) > 1 else None,
            compared=tuple(one.id for one in pair),
            withdrawn=sum(change.status is UsageStatus.VERIFIED for change in self._history[:-1]),
            held=held,
            interval_min=self._policy.interval_min,
            reported_by=next((one.reported_by for one in (*pair, last) if one.reported_by), ""),
            history=tuple(self._history),
        )


def _verdict_without_observation(run: UsageRun, policy: UsagePolicy, finding: rules.Finding) -> UsageVerdict:
    """A verdict that rests on no observation."""
    return UsageVerdict(
        finding.status,
        finding.code,
        finding.message,
        _with_interval_note(finding.explanation, policy),
        Assurance.LOCAL,
        total_steps=sum(one.expects_usage is not False for one in run.steps),
        interval_min=policy.interval_min,
    )


def _with_interval_note(explanation: str, policy: UsagePolicy) -> str:
    if policy.interval_min >= INTERVAL_MIN:
        return explanation
    interval = rules.interval_of(policy)
    return f"{explanation} Judged with {interval} between looks instead of {INTERVAL_MIN:g}."


def _deduplicate(attempts: Iterable[Observation]) -> tuple[list[Observation], str | None]:
    """Each look once, in order; and one that is told in two ways."""
    found: dict[str, Observation] = {}
    conflicts = [one.id for one in attempts if found.setdefault(one.id, one) != one]
    return sorted(found.values(), key=_sort_key), min(conflicts, default=None)


def _sort_key(happening: Observation | Acknowledgement) -> tuple[datetime, bool, str]:
    """Who accepts something has seen what was there at that moment."""
    if isinstance(happening, Observation):
        return (happening.at, False, happening.id)
    return (happening.at, True, happening.by)
