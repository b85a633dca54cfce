"""Judge the observations of a run one after the other, in the order of time.

What must be known between two of them is a small state, so that a run with thousands of observations is judged by the
next one without reading the others.
"""

from collections.abc import Sequence
from datetime import datetime

from meruit.model.record import Record
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
    later,
    monotonic_counts,
    own_tokens,
    shortfall,
    total_of,
    unique_models,
)

_LATEST_FAILED = " The latest observation failed; the status before it is kept."


class SuccessState(Record, frozen=True):
    """What the successful observations add up to. Roles are positions in `observations`, which may share one."""

    observations: tuple[Observation, ...]
    last: int
    """The latest observation that counts."""
    since: int
    """The one from which the next interval counts."""
    compared: tuple[int, ...]
    """Those that decide: the last two, or the pair that proved the current status."""
    last_counted: int | None
    """The last one with tokens."""
    marks: dict[str, int]
    """The highest count seen of the whole and of each step, lowered where a person accepted less."""
    fell: bool
    """Whether a count ever fell without a person accepting it."""
    equal: bool
    """Whether the latest observation equals the one before."""
    settled: bool
    """Whether that is proof enough."""
    pairs: int
    """How many intervals in a row the counts stayed the same."""
    early: int
    """How many observations came too early to count."""
    finding: rules.Finding


class FoldState(Record, frozen=True):
    """All observations so far. The history of statuses is not repeated here: the verdict has it."""

    counting: int = 0
    """Observations since the end of the run."""
    failed: Observation | None = None
    """The latest of them, where it failed."""
    success: SuccessState | None = None
    """None as long as none succeeded."""
    conflict: str | None = None
    """The id of an observation that has two different contents."""


class ObservationFold:
    """The observations of a run up to a moment; `add` takes the next one, `verdict` decides."""

    def __init__(
        self,
        run: UsageRun,
        policy: UsagePolicy,
        state: FoldState | None = None,
        history: Sequence[UsageChange] = (),
    ) -> None:
        """Continue from a state, with the history of the verdict that it led to."""
        state = state or FoldState()
        self._run, self._policy = run, policy
        self._counting, self._failed, self._conflict = state.counting, state.failed, state.conflict
        self._successes = None if state.success is None else _Successes.resume(run, policy, state.success, history)

    def add(self, evidence: Observation | Acknowledgement) -> None:
        """Take the next observation or acknowledgement; the caller keeps to the order of `evidence_key`."""
        if self._conflict is not None:
            # Nothing that follows changes the verdict, nor the state that all observations lead to.
            return
        if isinstance(evidence, Acknowledgement):
            if self._successes is not None:
                self._successes.add(evidence)
            return
        ended_at = self._run.ended_at
        if ended_at is None or evidence.at < ended_at:
            return
        self._counting += 1
        if failure(evidence, ended_at) is not None:
            self._failed = evidence
            return
        # An early observation proves that the provider answers again.
        self._failed = None
        if self._successes is None:
            self._successes = _Successes(self._run, self._policy, evidence)
        else:
            self._successes.add(evidence)

    def verdict(self) -> UsageVerdict:
        """Decide by all observations so far."""
        if self._conflict is not None:
            return _verdict_without_success(self._run, self._policy, rules.conflict(self._conflict))
        ended_at = self._run.ended_at
        if ended_at is None:
            return _verdict_without_success(self._run, self._policy, rules.RUN_OPEN)
        if self._successes is not None:
            return self._successes.verdict(held=self._failed is not None)
        if self._failed is None:
            return _verdict_without_success(self._run, self._policy, rules.NOT_STARTED)
        return _verdict_without_success(
            self._run, self._policy, rules.only_errors(self._failed, self._counting, ended_at)
        )

    def state(self) -> FoldState:
        """What another fold continues from."""
        success = None if self._successes is None else self._successes.state()
        return FoldState(counting=self._counting, failed=self._failed, success=success, conflict=self._conflict)


class _Successes:
    """Takes the successful observations one after the other, and knows the finding after each."""

    def __init__(self, run: UsageRun, policy: UsagePolicy, first: Observation) -> None:
        self._run = run
        self._policy = policy
        self._marks: dict[str, int] = {}
        self._fell = False
        self._last = self._since = first
        self._compared: tuple[Observation, ...] = (first,)
        self._equal = self._settled = False
        self._pairs = 0
        self._last_counted: Observation | None = None
        self._early = 0
        self._history: list[UsageChange] = []
        self._finding = self._evaluate(first)

    @classmethod
    def resume(
        cls, run: UsageRun, policy: UsagePolicy, state: SuccessState, history: Sequence[UsageChange]
    ) -> "_Successes":
        """Continue after the observations that led to a state."""
        self, seen = cls.__new__(cls), state.observations
        self._run, self._policy = run, policy
        self._marks, self._fell = dict(state.marks), state.fell
        self._last, self._since = seen[state.last], seen[state.since]
        self._compared = tuple(seen[place] for place in state.compared)
        self._equal, self._settled, self._pairs = state.equal, state.settled, state.pairs
        self._last_counted = None if state.last_counted is None else seen[state.last_counted]
        self._early, self._history, self._finding = state.early, [*history], state.finding
        return self

    def state(self) -> SuccessState:
        counted = () if self._last_counted is None else (self._last_counted,)
        roles = (self._last, self._since, *self._compared, *counted)
        # By identity: an id names one observation here, and comparing contents would cost more.
        distinct = {id(one): one for one in roles}
        place = {one: number for number, one in enumerate(distinct)}
        return SuccessState(
            observations=tuple(distinct.values()),
            last=place[id(self._last)],
            since=place[id(self._since)],
            compared=tuple(place[id(one)] for one in self._compared),
            last_counted=None if self._last_counted is None else place[id(self._last_counted)],
            marks=dict(self._marks),
            fell=self._fell,
            equal=self._equal,
            settled=self._settled,
            pairs=self._pairs,
            early=self._early,
            finding=self._finding,
        )

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
        return self._judge_pair(observation)

    def _judge_pair(self, observation: Observation) -> rules.Finding:
        if len(self._compared) == 1:
            return rules.first(self._policy)
        one, other = self._compared
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


def _verdict_without_success(run: UsageRun, policy: UsagePolicy, finding: rules.Finding) -> UsageVerdict:
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


def evidence_key(evidence: Observation | Acknowledgement) -> tuple[datetime, bool, str]:
    """Order by time; an acknowledgement comes after the observations of the same moment."""
    if isinstance(evidence, Observation):
        return (evidence.at, False, evidence.id)
    return (evidence.at, True, evidence.by)
