"""What one look at a provider's count says of a run: its numbers, its steps, its models, or why it says nothing."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from meruit.errors import FetchError
from meruit.model.usage import Assurance, Observation, Tokens, UsagePolicy, UsageRun, sum_tokens

INPUT, OUTPUT, REQUESTS = "input", "output", "requests"
_SPLIT = ("cached", "cache_write", "reasoning")
"""How tokens are made up."""
_BILLED_COUNTS = (INPUT, OUTPUT, REQUESTS, "cached", "cache_write")
"""What costs something, so that both sides must agree on it."""
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_LATEST = re.compile(r"[-@:]latest$")
_SNAPSHOT = re.compile(r"[-@:](\d{4}-\d{2}-\d{2}|\d{6,8}|(0[1-9]|1[0-2])\d{2}|2\d(0[1-9]|1[0-2]))$")
"""How providers mark the dated version that an alias stands for: 2024-08-06, 20250219, 0613, 2411."""
_DEFAULT_POLICY = UsagePolicy()


def failure(look: Observation, ended_at: datetime) -> FetchError | None:
    """Why the look found nothing out; None where it did."""
    if look.error is not None:
        return look.error
    if look.total is None:
        return FetchError.MALFORMED
    # What was counted up to before the run's end is not its count.
    return FetchError.NOT_READY if look.watermark is not None and look.watermark < ended_at else None


def is_equal(one: Observation, other: Observation, policy: UsagePolicy = _DEFAULT_POLICY) -> bool:
    """Whether two looks found the same; what only the run says never equals what its provider does."""
    return _comparison_key(one, policy) == _comparison_key(other, policy)


def is_same_model(ours: str, theirs: str) -> bool:
    """Whether two names mean one model: an alias, with or without its maker's name, means its dated version."""
    one, other = _base_name(ours), _base_name(theirs)
    return one == other or _without_date(one) == other or one == _without_date(other)


def total_of(look: Observation) -> Tokens:
    """What was counted altogether."""
    return look.total or Tokens()


def own_tokens(run: UsageRun, look: Observation) -> Tokens | None:
    """The run's part of what was counted; where several share an attribution key, what it says itself, which tied out or not.

    How that is made up is then only its own word: nothing of it is known but what nobody in the attribution key used.
    """
    total, local = total_of(look), run.local
    if look.cohort is None or local is None:
        return total if look.cohort is None else None
    if look.cohort.runs == 1 and (local.input, local.output) == (total.input, total.output):
        return total
    return msgspec.structs.replace(local, **{name: 0 if getattr(total, name) == 0 else None for name in _SPLIT})


def assurance_of(look: Observation) -> Assurance:
    """How closely the count belongs to the run; who shares an attribution key has no record of its own, whatever a source says."""
    return look.assurance if look.cohort is None else max(look.assurance, Assurance.COHORT)


def monotonic_counts(look: Observation, policy: UsagePolicy) -> dict[str, int]:
    """What may never fall; of a zero, which is no count, nothing."""
    total = total_of(look)
    if not total.total:
        return {}
    found = {INPUT: total.input, OUTPUT: total.output}
    if policy.totals_only:
        return found
    if total.requests is not None:
        found[REQUESTS] = total.requests
    for name, one in (look.steps or {}).items():
        found[f"input of step {name}"] = one.input
        found[f"output of step {name}"] = one.output
    return found


def shortfall(look: Observation, marks: Mapping[str, int], policy: UsagePolicy) -> dict[str, int]:
    """What is below the most that was ever seen of it, and by how much; what a look cannot tell has not fallen."""
    now = monotonic_counts(look, policy)
    told = {name: now.get(name, 0) for name in marks if name in now or _is_zero_when_absent(look, name)}
    return {name: marks[name] - count for name, count in told.items() if count < marks[name]}


class Coverage(NamedTuple):
    """How many of the steps that should have tokens have them."""

    have: int
    expected: int
    empty: tuple[str, ...] = ()


def coverage(run: UsageRun, look: Observation) -> Coverage:
    """By the provider's own split of steps, by a file's count of them, or by what the responses said.

    Of two counts that disagree, the one that claims less.
    """
    silent = {one.id for one in run.steps if one.expects_usage is False}
    expected = max(len(run.steps) - len(silent), (look.total_steps or 0) - len(silent))
    if look.steps is None and look.steps_with_tokens is not None:
        return Coverage(look.steps_with_tokens, expected)
    found = {one.id: one.local for one in run.steps} if look.steps is None else look.steps
    named = [one for one in step_names(run, look) if one not in silent]
    empty = tuple(name for name in named if not (found.get(name) or Tokens()).total)
    have = len(named) - len(empty)
    return Coverage(have if look.steps_with_tokens is None else min(have, look.steps_with_tokens), expected, empty)


def step_names(run: UsageRun, look: Observation) -> list[str]:
    """The steps that are known of: the run's; where it declares none, those of a look that says how many there are."""
    if not run.steps and look.total_steps is not None:
        return [*(look.steps or {})]
    return [one.id for one in run.steps]


def unique_models(models: Iterable[str]) -> list[str]:
    """Each once; one without a name says nothing."""
    return sorted({one for one in models if one})


def is_one_model(models: Iterable[str]) -> bool:
    """Whether they are one by name: of an alias and its dated version nobody knows."""
    return len({_base_name(one) for one in unique_models(models)}) == 1


class ModelNames:
    """Names of models, each found by every other name that means the same, without comparing any two."""

    def __init__(self, names: Iterable[str]) -> None:
        self._named: dict[str, list[str]] = {}
        self._dated: dict[str, list[str]] = {}
        for name in names:
            bare = _base_name(name)
            if bare not in self._named and _without_date(bare) != bare:
                self._dated.setdefault(_without_date(bare), []).append(bare)
            self._named.setdefault(bare, []).append(name)

    def find(self, model: str) -> Iterator[str]:
        """Those of them that mean this model."""
        for bare in self._synonyms(model):
            yield from self._named.get(bare, ())

    def pop(self, model: str) -> Iterator[str]:
        """The same, and they are not found again."""
        for bare in self._synonyms(model):
            yield from self._named.pop(bare, ())
        self._dated.pop(_base_name(model), None)

    def _synonyms(self, model: str) -> Iterator[str]:
        bare = _base_name(model)
        yield bare
        if _without_date(bare) != bare:
            yield _without_date(bare)
        yield from self._dated.get(bare, ())


class CountPair(NamedTuple):
    """The same calls, counted by both sides."""

    whose: str
    local: Tokens
    billed: Tokens

    def is_different(self, tolerance: int) -> bool:
        """Whether the counts differ by more than is tolerated; what one side does not know is not compared."""
        pairs = [(getattr(self.local, name), getattr(self.billed, name)) for name in _BILLED_COUNTS]
        return any(abs(one - other) > tolerance for one, other in pairs if one is not None and other is not None)


def pairs_by_model(run: UsageRun, look: Observation) -> Iterator[CountPair]:
    """What both sides count of each model; of one that goes by several names, of all of them together."""
    ours, theirs = run.by_model, look.by_model
    if ours is None or theirs is None or any(one.total for one in (ours.get(""), theirs.get("")) if one is not None):
        return
    left, seen = (ModelNames(ours), ModelNames(theirs)), set[str]()
    for model in sorted({*ours, *theirs}):
        if model in seen:
            continue
        names = _namesakes(model, (ours, theirs), left)
        seen |= names
        # How many calls there were is told by the whole: one that used nothing need not name its model.
        local, billed = (
            msgspec.structs.replace(sum_tokens(side[one] for one in names if one in side), requests=None)
            for side in (ours, theirs)
        )
        yield CountPair(f"Of {min(names & ours.keys(), default=model)}, the run", local, billed)
    known, sums = ModelNames(theirs), dict[str, Tokens]()
    for model, local in ours.items():
        # Two dated versions may both be an alias's, and are not each other.
        bare = _base_name(model)
        if bare not in sums:
            sums[bare] = sum_tokens(theirs[one] for one in known.find(model))
        billed = sums[bare]
        most = Tokens(min(local.input, billed.input), min(local.output, billed.output))
        yield CountPair(f"Of {model}, the run", Tokens(local.input, local.output), most)


def _namesakes(
    model: str, sides: tuple[Mapping[str, Tokens], Mapping[str, Tokens]], left: tuple[ModelNames, ModelNames]
) -> set[str]:
    """All names on either side that mean the same as one, or as one of these; none of them is left."""
    found, waiting = {model}, [model]
    while waiting:
        one = waiting.pop()
        for here, there in zip(sides, left[::-1], strict=True):
            if one in here:
                more = {*there.pop(one)} - found
                found |= more
                waiting.extend(more)
    return found


def later(at: datetime, pause: timedelta) -> datetime:
    """So long after, in UTC; where the calendar ends before that, its end."""
    try:
        return at.astimezone(UTC) + pause
    except OverflowError:
        return _END_OF_TIME


def _comparison_key(look: Observation, policy: UsagePolicy) -> tuple[object, ...]:
    """What must be equal for two looks to be."""
    total, is_local = total_of(look), look.assurance is Assurance.LOCAL
    if policy.totals_only:
        return (is_local, total.input, total.output)
    return (
        is_local,
        total,
        None if look.steps is None else {name: one for name, one in look.steps.items() if _has_counts(one)},
        look.steps_with_tokens,
        look.total_steps,
        look.unattributed,
        unique_models(look.models),
        None if look.by_model is None else {name: one for name, one in look.by_model.items() if _has_counts(one)},
    )


def _has_counts(tokens: Tokens) -> bool:
    """A step or a model without any count is as good as one that is not there."""
    return any(msgspec.structs.astuple(tokens))


def _is_zero_when_absent(look: Observation, name: str) -> bool:
    """Whether what the look does not say of a count means that there is none, and not that it cannot be told."""
    return name in (INPUT, OUTPUT) or (name != REQUESTS and look.steps is not None)


def _base_name(model: str) -> str:
    return _LATEST.sub("", model.strip().lower().rpartition("/")[2])


def _without_date(model: str) -> str:
    return _SNAPSHOT.sub("", model)
