"""Decide whether a run's tokens are verified, by any observations of the provider's count in any order."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from meruit.model.usage import (
    INTERVAL_MIN,
    Acknowledgement,
    Anchor,
    Assurance,
    Observation,
    Tokens,
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
    unique_models,
)

__all__ = ["decide", "is_equal", "is_same_model"]

_DEFAULT_POLICY = UsagePolicy()
_LATEST_FAILED = " The latest observation failed; the status before it is kept."


def decide(
    run: UsageRun,
    observations: Iterable[Observation],
    policy: UsagePolicy = _DEFAULT_POLICY,
    acknowledged: Sequence[Acknowledgement] = (),
) -> UsageVerdict:
    """Decide what may be claimed of the run's tokens.

    The order of the observations does not matter, nor how often each is given.
    """
    distinct, conflict = _deduplicate(observations)
    if conflict is not None:
        return _verdict_without_observation(run, policy, rules.conflict(conflict))
    ended_at = run.ended_at
    if ended_at is None:
        return _verdict_without_observation(run, policy, rules.RUN_OPEN)
    counting = [one for one in distinct if one.at >= ended_at]
    if not counting:
        return _verdict_without_observation(run, policy, rules.NOT_STARTED)
    successful = [one for one in counting if failure(one, ended_at) is None]
    if not successful:
        return _verdict_without_observation(run, policy, rules.only_errors(counting, ended_at))
    builder = _VerdictBuilder(run, policy, successful[0])
    evidence: list[Observation | Acknowledgement] = [*successful[1:], *acknowledged]
    for one in sorted(evidence, key=_sort_key):
        builder.add(one)
    # An early observation proves that the provider answers again.
    return builder.verdict(held=successful[-1] is not counting[-1])


class _VerdictBuilder:
    """Takes the observations one after the other, and knows the finding after each."""

    def __init__(self, run: UsageRun, policy: UsagePolicy, first: Observation) -> None:
        self._run = run
        self._policy = policy
        self._marks: dict[str, int] = {}
        """The highest count seen of the whole and of each step, lowered where a person accepted less."""
        self._fell = False
        """Whether a count ever fell without a person accepting it."""
        self._last = self._since = first
        """The latest observation, and the one from which the next interval counts."""
        self._compared: tuple[Observation] | tuple[Observation, Observation] = (first,)
        """The observations that decide: the last two, or the pair that proved the current status."""
        self._equal = self._settled = False
        """Whether the latest observation equals the one before, and whether that is proof enough."""
        self._pairs = 0
        """How many intervals in a row the counts stayed the same."""
        self._last_counted: Observation | None = None
        """The last observation with tokens."""
        self._early = 0
        """How many observations came too early to count."""
        self._history: list[UsageChange] = []
        self._finding = self._evaluate(first)

    def add(self, evidence: Observation | Acknowledgement) -> None:
        if isinstance(evidence, Observation):
            if self._is_early(evidence):
                self._early += 1
                return
            self._compare(evidence)
            self._finding = self._evaluate(evidence)
        elif self._finding.code is UsageCode.DECREASED:
            self._finding = self._acknowledge(evidence)

    def _is_early(self, observation: Observation) -> bool:
        """Whether the observation is marked as early, and is: the mark alone hides nothing."""
        is_soon = observation.at - self._last.at < self._policy.interval
        return observation.early and is_soon and is_equal(self._last, observation, self._policy)

    def _compare(self, observation: Observation) -> None:
        """Compare the observation with the one before, and count the intervals without a change."""
        before, since = self._last, self._since
        by_pairs = self._policy.anchor is Anchor.LAST_PAIR
        self._last, self._equal = observation, is_equal(before, observation, self._policy)
        if not self._equal:
            self._since, self._pairs, self._settled, self._compared = observation, 0, False, (before, observation)
            return
        is_far = observation.at > since.at and observation.at - since.at >= self._policy.interval
        if is_far:
            self._pairs += 1
        elif by_pairs:
            self._pairs = 0
        # A verified run stays verified: an early equal observation neither confirms nor contradicts it.
        is_verified = self._finding.status is UsageStatus.VERIFIED
        self._settled = is_verified or self._pairs >= self._policy.min_stable_pairs
        if is_far or not self._settled:
            self._compared = (since, observation)
        if is_far or by_pairs:
            self._since = observation

    def _evaluate(self, observation: Observation) -> rules.Finding:
        finding = self._judge(observation)
        # A count shared with an open run includes tokens that are not this run's, and may fall once that run ends.
        if observation.cohort is None or not observation.cohort.has_open:
            for name, count in monotonic_counts(observation, self._policy).items():
                self._marks[name] = max(count, self._marks.get(name, 0))
        if total_of(observation).total:
            self._last_counted = observation
        return self._record_finding(finding, observation.at, observation.id)

    def _acknowledge(self, acknowledgement: Acknowledgement) -> rules.Finding:
        """Lower the marks to the counts of this moment: they may not fall further."""
        for name, less in shortfall(self._last, self._marks, self._policy).items():
            self._marks[name] -= less
        self._fell = False
        return self._record_finding(self._judge(self._last), acknowledgement.at, "")

    def _judge(self, observation: Observation) -> rules.Finding:
        """Return the finding of the first rule that applies."""
        if not total_of(observation).total and not self._run.uses_none:
            return rules.zero(self._last_counted, observation.at - (self._run.ended_at or observation.at))
        less = shortfall(observation, self._marks, self._policy)
        self._fell = self._fell or bool(less)
        if less:
            return rules.decrease(less)
        if self._fell and self._policy.anomaly_is_permanent:
            return rules.DECREASE_RECOVERED
        return self._judge_pair(observation, *self._compared)

    def _judge_pair(
        self, observation: Observation, one: Observation, other: Observation | None = None
    ) -> rules.Finding:
        if other is None:
            return rules.first(self._policy)
        if not self._equal:
            return rules.change(one, other, self._policy)
        apart = other.at - one.at
        if not self._settled:
            return rules.gap(apart, self._pairs, later(self._since.at, self._policy.interval), self._policy)
        return rules.stable(self._run, observation, apart, self._policy)

    def _record_finding(self, finding: rules.Finding, at: datetime, observation_id: str) -> rules.Finding:
        """Add a change of status or code to the history."""
        claimed = (finding.status, finding.code)
        if not self._history or claimed != (self._history[-1].status, self._history[-1].code):
            self._history.append(UsageChange(at, *claimed, observation_id))
        return finding

    def verdict(self, *, held: bool) -> UsageVerdict:
        """Build the verdict after the last observation."""
        finding, last = self._finding, self._last
        shown = self._last_counted if finding.code is UsageCode.ZERO_TOKENS else last
        covered = coverage(self._run, last)
        pair = self._compared
        return UsageVerdict(
            status=finding.status,
            code=finding.code,
            message=finding.message,
            explanation=_with_interval_note(finding.explanation + (_LATEST_FAILED if held else ""), self._policy),
            # The weakest of all observations that the verdict rests on.
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
            early=self._early,
            by_model=None if shown is None else _tokens_by_model(self._run, shown),
        )


def _verdict_without_observation(run: UsageRun, policy: UsagePolicy, finding: rules.Finding) -> UsageVerdict:
    """Build a verdict that rests on no successful observation."""
    return UsageVerdict(
        status=finding.status,
        code=finding.code,
        message=finding.message,
        explanation=_with_interval_note(finding.explanation, policy),
        assurance=Assurance.LOCAL,
        total_steps=sum(one.expects_usage is not False for one in run.steps),
        interval_min=policy.interval_min,
    )


def _tokens_by_model(run: UsageRun, observation: Observation) -> dict[str, Tokens] | None:
    """The provider's count by model; None where the run names its models, or the count is not its own."""
    if observation.cohort is not None or any(step.models for step in run.steps):
        return None
    models = unique_models(observation.models)
    if observation.by_model is None and len(models) == 1:
        return {models[0]: total_of(observation)}
    return observation.by_model


def _with_interval_note(explanation: str, policy: UsagePolicy) -> str:
    if policy.interval_min >= INTERVAL_MIN:
        return explanation
    interval = rules.interval_of(policy)
    return f"{explanation} Judged with {interval} between observations instead of {INTERVAL_MIN:g}."


def _deduplicate(observations: Iterable[Observation]) -> tuple[list[Observation], str | None]:
    """Return each observation once, in order; and the id of one that has two different contents."""
    found: dict[str, Observation] = {}
    conflicts = [one.id for one in observations if found.setdefault(one.id, one) != one]
    return sorted(found.values(), key=_sort_key), min(conflicts, default=None)


def _sort_key(evidence: Observation | Acknowledgement) -> tuple[datetime, bool, str]:
    """Order by time; an acknowledgement comes after the observations of the same moment."""
    if isinstance(evidence, Observation):
        return (evidence.at, False, evidence.id)
    return (evidence.at, True, evidence.by)
