"""Read one observation: its counts, steps and models, and whether it equals another."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from meruit.errors import FetchError
from meruit.model.usage import Assurance, Observation, Tokens, UsagePolicy, UsageRun, sum_tokens

INPUT, OUTPUT, REQUESTS = "input", "output", "requests"
_SPLIT = ("cached", "cache_write", "reasoning")
"""Parts of the input and output tokens."""
_BILLED_COUNTS = (INPUT, OUTPUT, REQUESTS, "cached", "cache_write")
"""Counts that cost money, so that both sides must agree on them."""
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_LATEST = re.compile(r"[-@:]latest$")
_SNAPSHOT = re.compile(r"[-@:](\d{4}-\d{2}-\d{2}|\d{6,8}|(0[1-9]|1[0-2])\d{2}|2\d(0[1-9]|1[0-2]))$")
"""The date that providers append to a model's alias: 2024-08-06, 20250219, 0613, 2411."""
_DEFAULT_POLICY = UsagePolicy()


def failure(observation: Observation, ended_at: datetime) -> FetchError | None:
    """Why the observation failed; None where it succeeded."""
    if observation.error is not None:
        return observation.error
    if observation.total is None:
        return FetchError.MALFORMED
    # A count up to a time before the run's end is not complete.
    return FetchError.NOT_READY if observation.watermark is not None and observation.watermark < ended_at else None


def is_equal(one: Observation, other: Observation, policy: UsagePolicy = _DEFAULT_POLICY) -> bool:
    """Whether two observations have the same counts; a local count never equals a provider's."""
    return _comparison_key(one, policy) == _comparison_key(other, policy)


def is_same_model(ours: str, theirs: str) -> bool:
    """Whether two names mean one model: an alias, with or without its maker's name, means its dated version."""
    one, other = _base_name(ours), _base_name(theirs)
    return one == other or _without_date(one) == other or one == _without_date(other)


def total_of(observation: Observation) -> Tokens:
    """The total count; zero where there is none."""
    return observation.total or Tokens()


def own_tokens(run: UsageRun, observation: Observation) -> Tokens | None:
    """The run's part of the count; in a cohort, what the run itself reports.

    The provider does not split a cohort's count by run, so its parts (cached, reasoning) are unknown unless zero.
    """
    total, local = total_of(observation), run.local
    if observation.cohort is None or local is None:
        return total if observation.cohort is None else None
    if observation.cohort.runs == 1 and (local.input, local.output) == (total.input, total.output):
        return total
    return msgspec.structs.replace(local, **{name: 0 if getattr(total, name) == 0 else None for name in _SPLIT})


def assurance_of(observation: Observation) -> Assurance:
    """How closely the count belongs to the run; COHORT at best where runs share an attribution key."""
    return observation.assurance if observation.cohort is None else max(observation.assurance, Assurance.COHORT)


def monotonic_counts(observation: Observation, policy: UsagePolicy) -> dict[str, int]:
    """The counts that may never fall; none for an observation of zero tokens."""
    total = total_of(observation)
    if not total.total:
        return {}
    found = {INPUT: total.input, OUTPUT: total.output}
    if policy.totals_only:
        return found
    if total.requests is not None:
        found[REQUESTS] = total.requests
    for name, one in (observation.steps or {}).items():
        found[f"input of step {name}"] = one.input
        found[f"output of step {name}"] = one.output
    return found


def shortfall(observation: Observation, marks: Mapping[str, int], policy: UsagePolicy) -> dict[str, int]:
    """The counts below their highest value, and by how much; a count that the observation lacks has not fallen."""
    now = monotonic_counts(observation, policy)
    known = {name: now.get(name, 0) for name in marks if name in now or _is_zero_when_absent(observation, name)}
    return {name: marks[name] - count for name, count in known.items() if count < marks[name]}


class Coverage(msgspec.Struct, frozen=True):
    """How many of the steps that should have tokens have them."""

    have: int
    expected: int
    empty: tuple[str, ...] = ()


def coverage(run: UsageRun, observation: Observation) -> Coverage:
    """Count the steps with tokens: by the provider's split, by the count in a file, or by the responses of the run.

    Where two of these disagree, the lower one counts.
    """
    silent = {one.id for one in run.steps if one.expects_usage is False}
    expected = max(len(run.steps) - len(silent), (observation.total_steps or 0) - len(silent))
    if observation.steps is None and observation.steps_with_tokens is not None:
        return Coverage(observation.steps_with_tokens, expected)
    found = {one.id: one.local for one in run.steps} if observation.steps is None else observation.steps
    named = [one for one in step_names(run, observation) if one not in silent]
    empty = tuple(name for name in named if not (found.get(name) or Tokens()).total)
    have = len(named) - len(empty)
    return Coverage(
        have=have if observation.steps_with_tokens is None else min(have, observation.steps_with_tokens),
        expected=expected,
        empty=empty,
    )


def step_names(run: UsageRun, observation: Observation) -> list[str]:
    """The names of the run's steps; where it declares none, those of an observation that has a number of steps."""
    if not run.steps and observation.total_steps is not None:
        return [*(observation.steps or {})]
    return [one.id for one in run.steps]


def unique_models(models: Iterable[str]) -> list[str]:
    """The names of models, sorted, without duplicates and empty names."""
    return sorted({one for one in models if one})


def is_one_model(models: Iterable[str]) -> bool:
    """Whether all names are the same; an alias and its dated version are not."""
    return len({_base_name(one) for one in unique_models(models)}) == 1


class ModelNames:
    """An index of model names that finds a model by each name that means it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._named: dict[str, list[str]] = {}
        self._dated: dict[str, list[str]] = {}
        for name in names:
            bare = _base_name(name)
            if bare not in self._named and _without_date(bare) != bare:
                self._dated.setdefault(_without_date(bare), []).append(bare)
            self._named.setdefault(bare, []).append(name)

    def find(self, model: str) -> Iterator[str]:
        """Yield the names that mean this model."""
        for bare in self._synonyms(model):
            yield from self._named.get(bare, ())

    def pop(self, model: str) -> Iterator[str]:
        """Yield the names that mean this model, and remove them."""
        for bare in self._synonyms(model):
            yield from self._named.pop(bare, ())
        self._dated.pop(_base_name(model), None)

    def _synonyms(self, model: str) -> Iterator[str]:
        bare = _base_name(model)
        yield bare
        if _without_date(bare) != bare:
            yield _without_date(bare)
        yield from self._dated.get(bare, ())


class CountPair(msgspec.Struct, frozen=True):
    """Counts of the same calls by the run and by the provider."""

    whose: str
    local: Tokens
    billed: Tokens

    def is_different(self, tolerance: int) -> bool:
        """Whether the counts differ by more than the tolerance; a count that one side lacks is not compared."""
        pairs = [(getattr(self.local, name), getattr(self.billed, name)) for name in _BILLED_COUNTS]
        return any(abs(one - other) > tolerance for one, other in pairs if one is not None and other is not None)


def pairs_by_model(run: UsageRun, observation: Observation) -> Iterator[CountPair]:
    """Pair the counts of each model; the names of one model are summed."""
    ours, theirs = run.by_model, observation.by_model
    if ours is None or theirs is None or any(one.total for one in (ours.get(""), theirs.get("")) if one is not None):
        return
    left, seen = (ModelNames(ours), ModelNames(theirs)), set[str]()
    for model in sorted({*ours, *theirs}):
        if model in seen:
            continue
        names = _namesakes(model, (ours, theirs), left)
        seen |= names
        # Requests are compared for the whole run: a call that used nothing need not name its model.
        local, billed = (
            msgspec.structs.replace(sum_tokens(side[one] for one in names if one in side), requests=None)
            for side in (ours, theirs)
        )
        yield CountPair(whose=f"Of {min(names & ours.keys(), default=model)}, the run", local=local, billed=billed)
    known, sums = ModelNames(theirs), dict[str, Tokens]()
    for model, local in ours.items():
        # An alias may mean either of two dated versions, which are different models.
        bare = _base_name(model)
        if bare not in sums:
            sums[bare] = sum_tokens(theirs[one] for one in known.find(model))
        billed = sums[bare]
        most = Tokens(min(local.input, billed.input), min(local.output, billed.output))
        yield CountPair(whose=f"Of {model}, the run", local=Tokens(local.input, local.output), billed=most)


def _namesakes(
    model: str, sides: tuple[Mapping[str, Tokens], Mapping[str, Tokens]], left: tuple[ModelNames, ModelNames]
) -> set[str]:
    """Collect all names on either side that mean this model, directly or through other names, and remove them."""
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
    """Add a pause to a time, in UTC; the end of the calendar where the sum is beyond it."""
    try:
        return at.astimezone(UTC) + pause
    except OverflowError:
        return _END_OF_TIME


def _comparison_key(observation: Observation, policy: UsagePolicy) -> tuple[object, ...]:
    """The values that must be equal for two observations to be equal."""
    total, is_local = total_of(observation), observation.assurance is Assurance.LOCAL
    if policy.totals_only:
        return (is_local, total.input, total.output)
    return (
        is_local,
        total,
        None
        if observation.steps is None
        else {name: one for name, one in observation.steps.items() if _has_counts(one)},
        observation.steps_with_tokens,
        observation.total_steps,
        observation.unattributed,
        unique_models(observation.models),
        None
        if observation.by_model is None
        else {name: one for name, one in observation.by_model.items() if _has_counts(one)},
    )


def _has_counts(tokens: Tokens) -> bool:
    """Whether any count is not zero; a step or model without counts is ignored."""
    return any(msgspec.structs.astuple(tokens))


def _is_zero_when_absent(observation: Observation, name: str) -> bool:
    """Whether a count that the observation lacks is zero, rather than unknown."""
    return name in (INPUT, OUTPUT) or (name != REQUESTS and observation.steps is not None)


def _base_name(model: str) -> str:
    return _LATEST.sub("", model.strip().lower().rpartition("/")[2])


def _without_date(model: str) -> str:
    return _SNAPSHOT.sub("", model)
