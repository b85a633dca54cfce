"""A second opinion on a run's tokens, by another method: each rule is a sentence about all that has happened so far.

Nothing runs along. What stands after the n-th happening is computed from the first n alone, in a time that nobody would
accept outside a test. The words that tests write looks with stand at the end.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from meruit.errors import FetchError
from meruit.model.chat import MOST_TOKENS
from meruit.model.usage import (
    Acknowledgement,
    Anchor,
    Assurance,
    Observation,
    Tokens,
    UsageCode,
    UsagePolicy,
    UsageRun,
    UsageStatus,
    UsageStep,
    sum_tokens,
)

PENDING, WARNING = UsageStatus.PENDING, UsageStatus.WARNING
VERIFIED, DATA_NOT_AVAILABLE = UsageStatus.VERIFIED, UsageStatus.DATA_NOT_AVAILABLE
SPECIFIED = UsagePolicy()
Standing = tuple[UsageStatus, UsageCode]


class Opinion(NamedTuple):
    status: UsageStatus
    code: UsageCode
    withdrawn: int = 0


def opinion(
    run: UsageRun,
    attempts: Iterable[Observation],
    policy: UsagePolicy = SPECIFIED,
    acknowledged: Sequence[Acknowledgement] = (),
) -> Opinion:
    """What the rules say, read one after the other."""
    given = list(attempts)
    if any(one.id == other.id and one != other for one in given for other in given):
        return Opinion(WARNING, UsageCode.CONFLICTING_EVIDENCE)
    if run.ended_at is None:
        return Opinion(PENDING, UsageCode.RUN_OPEN)
    since = [one for n, one in enumerate(given) if one not in given[:n] and one.at >= run.ended_at]
    if not since:
        return Opinion(PENDING, UsageCode.NOT_STARTED)
    seen = [one for one in since if not _fails(one, run.ended_at)]
    if not seen:
        return Opinion(DATA_NOT_AVAILABLE, UsageCode.API_ERROR)
    return _Past(run, policy, seen, [one.at for one in acknowledged]).opinion()


class _Past:
    """Looks and people's words in their order; `n` is always how many of both have happened."""

    def __init__(self, run: UsageRun, policy: UsagePolicy, seen: list[Observation], words: list[datetime]) -> None:
        self.run, self.policy = run, policy
        looks = [(one.at, 0, one.id, one) for one in seen]
        heard = [(word, 1, str(n), None) for n, word in enumerate(words)]
        happened = [last[3] for last in sorted([*looks, *heard], key=lambda one: one[:3])]
        self.happened = [
            one for n, one in enumerate(happened) if one is None or not _is_early(one, happened[:n], policy)
        ]
        self.measures = {one.id: _measures(one, policy) for one in seen}
        # What was computed once is remembered, for speed alone.
        self.known: dict[int, Standing] = {}
        self.fallen: dict[int, set[str]] = {}

    def opinion(self) -> Opinion:
        stood = [self.standing(n) for n in range(1, len(self.happened) + 1) if self.looks(n)]
        taken_back = sum(one[0] is VERIFIED and other[0] is not VERIFIED for one, other in pairwise(stood))
        return Opinion(*stood[-1], taken_back)

    def looks(self, n: int) -> list[Observation]:
        return [one for one in self.happened[:n] if one is not None]

    def standing(self, n: int) -> Standing:
        if n not in self.known:
            self.known[n] = self.by_the_rules(n)
        return self.known[n]

    def by_the_rules(self, n: int) -> Standing:
        looks = self.looks(n)
        if not _size(looks[-1]) and not self.run.uses_none:
            return DATA_NOT_AVAILABLE, UsageCode.ZERO_TOKENS
        if self.low(n) or (self.policy.anomaly_is_permanent and self.was_low(n)):
            return WARNING, UsageCode.DECREASED
        if len(looks) == 1:
            return PENDING, UsageCode.FIRST
        if not _same(looks[-2], looks[-1], self.policy):
            return PENDING, UsageCode.CHANGING
        if not self.is_settled(n):
            return PENDING, UsageCode.GAP
        doubts = (code for code, holds in _doubts(self.run, looks[-1], self.policy) if holds)
        return next(((WARNING, code) for code in doubts), (VERIFIED, UsageCode.STABLE))

    def low(self, n: int) -> set[str]:
        """What the last look counts less of than one before it, and nobody has accepted as little since."""
        if n not in self.fallen:
            looks = self.looks(n)
            names = {name for one in looks for name in self.measures[one.id]}
            is_zero = not looks or (not _size(looks[-1]) and not self.run.uses_none)
            self.fallen[n] = set() if is_zero else {name for name in names if self.is_low(name, n)}
        return self.fallen[n]

    def is_low(self, name: str, n: int) -> bool:
        accepted = [word for word in self.acceptances(n) if name in self.low(word)]
        # What was there when somebody accepted it is the first that counts.
        compared = self.looks(n)[max((len(self.looks(word)) - 1 for word in accepted), default=0) :]
        closed = [one for one in compared if one.cohort is None or not one.cohort.has_open]
        counted = [self.measures[one.id].get(name, 0) for one in closed]
        now = self.measures[compared[-1].id].get(name, 0)
        return _tells(compared[-1], name) and now < max(counted, default=0)

    def acceptances(self, n: int) -> list[int]:
        """After how many happenings somebody accepted what had fallen; a word about anything else says nothing."""
        words = [before for before in range(n) if self.happened[before] is None and self.looks(before)]
        return [before for before in words if self.standing(before)[1] is UsageCode.DECREASED]

    def was_low(self, n: int) -> bool:
        return any(self.low(then) for then in range(max(self.acceptances(n), default=-1) + 2, n + 1))

    def is_settled(self, n: int) -> bool:
        """Whether enough intervals lie within the equal looks at the end; or it was verified, and is still the same."""
        looks = self.looks(n)
        differing = [m for m in range(1, len(looks)) if not _same(looks[m - 1], looks[m], self.policy)]
        streak = looks[max(differing, default=0) :]
        if self.policy.anchor is Anchor.SPAN:
            return self.laps(streak) >= self.policy.min_stable_pairs
        far = [self.is_far(one, other) for one, other in pairwise(streak)]
        if len(far) >= self.policy.min_stable_pairs and all(far[-self.policy.min_stable_pairs :]):
            return True
        before = max(m for m in range(n) if self.happened[m] is looks[-1])
        return self.standing(before)[0] is VERIFIED

    def laps(self, streak: Sequence[Observation]) -> int:
        """How many intervals follow each other from the first on."""
        ahead = [m for m, one in enumerate(streak) if self.is_far(streak[0], one)]
        return 1 + self.laps(streak[ahead[0] :]) if ahead else 0

    def is_far(self, one: Observation, other: Observation) -> bool:
        return other.at > one.at and other.at - one.at >= timedelta(minutes=self.policy.interval_min)


def _is_early(look: Observation, before: Sequence[Observation | None], policy: UsagePolicy) -> bool:
    """Whether a look marked as early repeats the last one before it that counted, within the interval."""
    if not look.early:
        return False
    counted: list[Observation] = []
    for one in before:
        if one is not None and not _is_early(one, counted, policy):
            counted.append(one)
    soon = bool(counted) and look.at - counted[-1].at < timedelta(minutes=policy.interval_min)
    return soon and _same(counted[-1], look, policy)


def _fails(look: Observation, ended_at: datetime) -> bool:
    behind = look.watermark is not None and look.watermark < ended_at
    return look.error is not None or look.total is None or behind


def _size(look: Observation) -> int:
    return 0 if look.total is None else look.total.input + look.total.output


def _same(one: Observation, other: Observation, policy: UsagePolicy) -> bool:
    a, b = one.total or Tokens(), other.total or Tokens()
    alike = (a.input, a.output) == (b.input, b.output)
    if (one.assurance is Assurance.LOCAL) != (other.assurance is Assurance.LOCAL):
        return False
    if policy.totals_only:
        return alike
    return (
        alike
        and (a.requests, a.cached, a.cache_write, a.reasoning) == (b.requests, b.cached, b.cache_write, b.reasoning)
        and (one.steps is None) == (other.steps is None)
        and all(
            _step(one, name) == _step(other, name) or not (_counts(one, name) or _counts(other, name))
            for name in {*(one.steps or {}), *(other.steps or {})}
        )
        and one.steps_with_tokens == other.steps_with_tokens
        and one.total_steps == other.total_steps
        and one.unattributed == other.unattributed
        and set(one.models) - {""} == set(other.models) - {""}
        and (one.by_model is None) == (other.by_model is None)
        and _lines(one.by_model or {}) == _lines(other.by_model or {})
    )


def _lines(by_model: dict[str, Tokens]) -> set[tuple[object, ...]]:
    """A bill's lines, those without any number left out."""
    told = {(m, t.input, t.output, t.requests, t.cached, t.cache_write, t.reasoning) for m, t in by_model.items()}
    return {line for line in told if any(line[1:])}


def _step(look: Observation, name: str) -> Tokens:
    return (look.steps or {}).get(name, Tokens())


def _counts(look: Observation, name: str) -> bool:
    step = _step(look, name)
    return any([step.input, step.output, step.requests, step.cached, step.cache_write, step.reasoning])


def _measures(look: Observation, policy: UsagePolicy) -> dict[str, int]:
    """What must never become less."""
    if look.total is None or not _size(look):
        return {}
    found = {"in": look.total.input, "out": look.total.output}
    if policy.totals_only:
        return found
    if look.total.requests is not None:
        found["calls"] = look.total.requests
    for name in look.steps or {}:
        found[f"in:{name}"], found[f"out:{name}"] = _step(look, name).input, _step(look, name).output
    return found


def _tells(look: Observation, name: str) -> bool:
    if name == "calls":
        return look.total is not None and look.total.requests is not None and bool(_size(look))
    return look.steps is not None or name in ("in", "out")


def _doubts(run: UsageRun, look: Observation, policy: UsagePolicy) -> Iterator[tuple[UsageCode, bool]]:
    """Rules 9 to 13."""
    shared = look.cohort is not None
    with_tokens = {name for name in look.steps or {} if _step(look, name).total}
    silent = {one.id for one in run.steps if one.expects_usage is False}
    billed = bool(_size(look)) and not shared
    confessed = {one.id for one in run.steps if one.local is not None and one.local.total} & silent
    by_word = look.steps is None and bool(_size(look)) and bool(confessed)
    yield UsageCode.UNDECLARED_USAGE, bool(silent & with_tokens) or by_word or (run.uses_none and billed)
    have, expected = _covered(run, look)
    counted = look.steps is not None or look.steps_with_tokens is not None
    several = look.cohort is not None and look.cohort.runs > 1
    yield UsageCode.AMBIGUOUS_ATTRIBUTION, several and not counted and _says(run) is None
    yield UsageCode.INCOMPLETE, not run.uses_none and (have < expected or expected == 0)
    known = {one.id for one in run.steps} or (with_tokens if look.total_steps is not None else set())
    yield UsageCode.UNATTRIBUTED, bool(look.unattributed or with_tokens - known or have > expected)
    is_one = look.cohort is None or look.cohort.runs < 2
    attribution_key = {*look.cohort.models} - {""} if look.cohort and not is_one else set()
    ours = attribution_key or {m for one in run.steps for m in one.models} - {""}
    theirs = set(look.models) - {""}
    alike = all(any(_is_alias(a, b) for b in theirs) for a in ours) and (
        (not is_one and not attribution_key) or all(any(_is_alias(a, b) for a in ours) for b in theirs)
    )
    yield UsageCode.MODEL_MISMATCH, bool(ours and theirs) and not alike
    yield UsageCode.LOCAL_ONLY, look.assurance is Assurance.LOCAL
    total = look.total or Tokens()
    if look.cohort is not None:
        local = look.cohort.local
        ties = local is not None and not _apart(local, total, policy)
        is_mixed = look.cohort.runs > 1 and _names(look.models) > 1 and _names(look.cohort.models) != 1
        is_open = look.cohort.has_open
        yield UsageCode.AMBIGUOUS_ATTRIBUTION, not ties or is_open or is_mixed or _says(run) is None
        if look.cohort.runs > 1:
            return
    says = _says(run)
    parts = [(one.local, _step(look, one.id)) for one in run.steps] if look.steps is not None else []
    pairs = [(says, total)] if says is not None else parts
    differs = any(one is not None and _apart(one, other, policy) for one, other in pairs)
    yield UsageCode.DISCREPANCY, differs or _is_other_by_model(run, look, policy)


def _names(models: Iterable[str]) -> int:
    """How many models these are by their names, whoever is said to have made them."""
    spelled = {re.sub(r"[-@:]latest$", "", one.strip().lower().split("/")[-1]) for one in models if one}
    return len(spelled)


def _is_other_by_model(run: UsageRun, look: Observation, policy: UsagePolicy) -> bool:
    """Every line of both bills is given a number; aliases are given the lowest of theirs, until nothing moves."""
    is_told = all(not one.local.total or one.by_model for one in run.steps if one.local is not None)
    if look.by_model is None or _says(run) is None or not is_told:
        return False
    ours = [(m, 1, t) for one in run.steps for m, t in one.by_model.items()]
    lines = [*ours, *((m, -1, t) for m, t in look.by_model.items())]
    if _is_nameless(ours) or _is_nameless(lines[len(ours) :]):
        return False
    for model in {line[0] for line in ours}:
        said = [line for line in ours if line[0] == model]
        there = [line for line in lines[len(ours) :] if _is_alias(model, line[0])]
        for part in ("input", "output"):
            most = min(sum(getattr(line[2], part) for line in there), MOST_TOKENS)
            if min(sum(getattr(line[2], part) for line in said), MOST_TOKENS) - most > policy.tolerance:
                return True
    numbers = [min(n for n, line in enumerate(lines) if line[:2] == one[:2]) for one in lines]
    for _ in lines:
        for n, (one, side, _) in enumerate(lines):
            for m, (other, opposite, _) in enumerate(lines):
                if one == other or (side != opposite and _is_alias(one, other)):
                    numbers[n] = numbers[m] = min(numbers[n], numbers[m])
    groups = [[line for line, own in zip(lines, numbers, strict=True) if own == number] for number in {*numbers}]
    return any(_is_off(group, policy.tolerance) for group in groups)


def _is_nameless(lines: Iterable[tuple[str, int, Tokens]]) -> bool:
    return any(tokens.total for model, _, tokens in lines if not model)


def _is_off(group: list[tuple[str, int, Tokens]], tolerance: int) -> bool:
    """Whether the two sides differ in a class of which every line of both knows its number."""
    columns = ([(side, t.input) for _, side, t in group], [(side, t.output) for _, side, t in group])
    splits = ([(side, t.cached) for _, side, t in group], [(side, t.cache_write) for _, side, t in group])
    known = [[(side, n or 0) for side, n in some] for some in splits if None not in [n for _, n in some]]
    sums = [
        [min(sum(n for of, n in some if of == side), MOST_TOKENS) for side in (1, -1)] for some in (*columns, *known)
    ]
    return any(abs(one - other) > tolerance for one, other in sums)


def _covered(run: UsageRun, look: Observation) -> tuple[int, int]:
    """How many steps have tokens, and how many should; of several who count them, whoever claims less."""
    expected = [one for one in run.steps if one.expects_usage is not False]
    silent = len(run.steps) - len(expected)
    should = max(len(expected), (look.total_steps or 0) - silent)
    if look.steps is None and look.steps_with_tokens is None:
        return sum(one.local is not None and one.local.total > 0 for one in expected), should
    by_split = sum(_step(look, one.id).total > 0 for one in expected)
    if not run.steps and look.total_steps is not None:
        by_split = sum(one.total > 0 for one in (look.steps or {}).values())
    claims = [by_split] if look.steps is not None else []
    if look.steps_with_tokens is not None:
        claims.append(look.steps_with_tokens)
    return min(claims), should


def _says(run: UsageRun) -> Tokens | None:
    """The run's own sum; a run that was declared to use nothing says zero by that."""
    heard = [one.local for one in run.steps if one.local is not None or one.expects_usage is not False]
    if not heard:
        return Tokens(0, 0, 0, 0, 0, 0) if run.uses_none else None
    if any(one is None for one in heard):
        return None
    every = [one for one in heard if one is not None]
    calls = [one.requests for one in every]
    # No count goes beyond the most that any record holds.
    return Tokens(
        min(sum(one.input for one in every), MOST_TOKENS),
        min(sum(one.output for one in every), MOST_TOKENS),
        None if None in calls else min(sum(one or 0 for one in calls), MOST_TOKENS),
        *(_sum([getattr(one, name) for one in every]) for name in ("cached", "cache_write")),
    )


def _sum(counts: list[int | None]) -> int | None:
    return None if None in counts else min(sum(one or 0 for one in counts), MOST_TOKENS)


def _apart(one: Tokens, other: Tokens, policy: UsagePolicy) -> bool:
    sides = [(t.input, t.output, t.requests, t.cached, t.cache_write) for t in (one, other)]
    return any(a - b > policy.tolerance or b - a > policy.tolerance for a, b in zip(*sides, strict=True) if _know(a, b))


def _know(*counts: int | None) -> bool:
    return None not in counts


def _is_alias(one: str, other: str) -> bool:
    """One name, or one of them with a date that the other leaves open."""
    (a, first), (b, second) = _parted(one), _parted(other)
    return a == b and (first == second or not first or not second)


def _parted(model: str) -> tuple[str, str]:
    bare = re.sub(r"^.*/", "", model.strip().lower())
    bare = re.sub(r"[-@:]latest$", "", bare)
    found = re.fullmatch(r"(.*)[-@:](\d{4}-\d\d-\d\d|\d{6,8}|(?:0[1-9]|1[0-2])\d\d|2\d(?:0[1-9]|1[0-2]))", bare)
    return (found[1], found[2]) if found else (bare, "")


# The words that tests write looks with.

ENDED = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B = Tokens(60, 6, 3), Tokens(40, 4, 2)
"""What the provider counts for the two steps of the run that most tests are about."""


def after(minutes: float) -> datetime:
    """So long after the run's end."""
    return ENDED + timedelta(minutes=minutes)


def run_of(*ids: str, declares_no_usage: bool = False) -> UsageRun:
    """An ended run with these steps, of which nothing else is known."""
    return UsageRun(ENDED, tuple(UsageStep(one) for one in ids), declares_no_usage)


def whole(minutes: float, total: Tokens) -> Observation:
    """A look at a total."""
    return Observation(f"look-{minutes:g}", after(minutes), total)


def split(minutes: float, **steps: Tokens) -> Observation:
    """A look that tells the steps apart."""
    return Observation(f"look-{minutes:g}", after(minutes), sum_tokens(steps.values()), steps)


def failed(minutes: float, error: FetchError = FetchError.RATE_LIMITED) -> Observation:
    """A look that found nothing out."""
    return Observation(f"failed-{minutes:g}", after(minutes), error=error)


def accepted(minutes: float) -> Acknowledgement:
    """A person's word."""
    return Acknowledgement(after(minutes), "ada", "the provider corrected itself")
