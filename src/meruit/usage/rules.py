"""The rules about a run's tokens: each returns a status, a code, a message, and what would change it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from meruit.errors import FetchError
from meruit.model.usage import (
    INTERVAL_MIN,
    Assurance,
    Cohort,
    Observation,
    Tokens,
    UsageCode,
    UsagePolicy,
    UsageRun,
    UsageStatus,
)
from meruit.usage.observation import (
    INPUT,
    OUTPUT,
    CountPair,
    Coverage,
    ModelNames,
    coverage,
    failure,
    is_one_model,
    pairs_by_model,
    step_names,
    total_of,
    unique_models,
)

TOO_RECENT = timedelta(minutes=15)
"""How long providers usually take to count a call."""
FRESH = timedelta(hours=24)
"""After this time, no more data are expected."""
MAX_NAMES = 5
"""How many steps or models a message names."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one rule."""

    status: UsageStatus
    code: UsageCode
    message: str
    explanation: str


RUN_OPEN = Finding(
    status=UsageStatus.PENDING,
    code=UsageCode.RUN_OPEN,
    message="⏳ The run is still open",
    explanation="A run is judged after it has ended.",
)
NOT_STARTED = Finding(
    status=UsageStatus.PENDING,
    code=UsageCode.NOT_STARTED,
    message="⏳ Not observed yet",
    explanation="The provider's count has not been observed since the run ended.",
)
DECREASE_RECOVERED = Finding(
    status=UsageStatus.WARNING,
    code=UsageCode.DECREASED,
    message="⚠️ Token counts decreased, and came back",
    explanation="The policy does not verify a run whose count ever fell until a person accepts that: "
    "`meruit usage acknowledge RUN --reason …`.",
)
LOCAL_ONLY = Finding(
    status=UsageStatus.WARNING,
    code=UsageCode.LOCAL_ONLY,
    message="⚠️ Only the run's own counts are known",
    explanation="Nothing here comes from the provider; reconcile with its usage API.",
)


def conflict(observation_id: str) -> Finding:
    """One observation id has two different contents."""
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.CONFLICTING_EVIDENCE,
        message=f"⚠️ Attempt {observation_id} is recorded twice, with different contents",
        explanation="Either the evidence was changed, or two observations have the same id.",
    )


def only_errors(last: Observation, count: int, ended_at: datetime) -> Finding:
    """Every observation failed; `count` is how many there are."""
    error = failure(last, ended_at)
    times = f"All of {count} attempts" if count > 1 else "The attempt"
    detail = f": {last.detail}" if last.detail else ""
    then = (
        "The run waits for a new key or scope." if error is FetchError.AUTH else "Retries follow, less and less often."
    )
    return Finding(
        status=UsageStatus.DATA_NOT_AVAILABLE,
        code=UsageCode.API_ERROR,
        message=f"🕐 The usage API could not be read ({error})",
        explanation=f"{times} failed, the last with {error}{detail}. An error does not count as zero tokens. {then}",
    )


def zero(earlier: Observation | None, age: timedelta) -> Finding:
    """The provider counts no tokens, though there should be some; `age` is how long ago the run had ended."""
    before = "" if earlier is None else f" The earlier count of {_format_tokens(total_of(earlier))} is kept."
    return Finding(
        status=UsageStatus.DATA_NOT_AVAILABLE,
        code=UsageCode.ZERO_TOKENS,
        message="🕐 The usage API returned zero tokens",
        explanation=f"The provider counts no tokens for this run.{before} {_why_zero(earlier, age)} "
        "The next observation with tokens changes this.",
    )


def _why_zero(earlier: Observation | None, age: timedelta) -> str:
    """What may be the reason for zero tokens, by the age of the run."""
    if earlier is not None:
        return "The provider may have trouble: it counted tokens before."
    if age < TOO_RECENT:
        return f"The run may be too recent: counts take up to {TOO_RECENT // timedelta(minutes=1)} minutes."
    late = (
        "The run is older than 24 hours, so no more counts are expected."
        if age >= FRESH
        else "The run is not too recent: counts rarely take longer than 15 minutes."
    )
    return f"{late} Check that the run's key or project and its times are right, and that the key may read usage."


def decrease(less: Mapping[str, int]) -> Finding:
    """A count is below its highest value."""
    others = [name for name in less if name not in (INPUT, OUTPUT)]
    where = f" ({_join_names(others)} fell)" if others else ""
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.DECREASED,
        message=f"⚠️ Token counts decreased: −{less.get(INPUT, 0):,} in, −{less.get(OUTPUT, 0):,} out{where}",
        explanation="A provider's count must never fall. The warning stays until the count is back at its highest "
        "value, "
        "or a person accepts the lower one: `meruit usage acknowledge RUN --reason …`.",
    )


def first(policy: UsagePolicy) -> Finding:
    """There is only one observation."""
    return Finding(
        status=UsageStatus.PENDING,
        code=UsageCode.FIRST,
        message="⏳ First attempt succeeded, awaiting a second",
        explanation=f"One observation is not proof; an equal one at least {interval_of(policy)} later is.",
    )


def change(before: Observation, observation: Observation, policy: UsagePolicy) -> Finding:
    """The last two observations differ."""
    return Finding(
        status=UsageStatus.PENDING,
        code=UsageCode.CHANGING,
        message=f"⏳ Data still changing: {_describe_change(before, observation)}",
        explanation=f"The last two observations differ; two equal ones at least {interval_of(policy)} apart verify "
        "the run.",
    )


def _describe_change(before: Observation, observation: Observation) -> str:
    """What differs: input and output where they do; else the first other values that do."""
    one, other = total_of(before), total_of(observation)
    if (one.input, one.output) != (other.input, other.output):
        return f"{_format_tokens(one)} → {_format_tokens(other)}"
    return _join_names([*_differences(before, observation)])


def _differences(before: Observation, observation: Observation) -> Iterator[str]:
    """Name each value besides input and output that differs, with both values."""
    for what, was, now in (*_plain_values(before, observation), *_parts(before, observation)):
        if was != now:
            yield f"{what} {was} → {now}"


def _plain_values(before: Observation, observation: Observation) -> Iterator[tuple[str, str, str]]:
    """The counts of both observations, and what else is compared of them, with their names."""
    for name in ("requests", "cached", "cache_write", "reasoning"):
        one, other = (_format_count(getattr(total_of(each), name)) for each in (before, observation))
        yield name.replace("_", " "), one, other
    for name, what in (("steps_with_tokens", "steps with tokens"), ("total_steps", "steps")):
        yield what, _format_count(getattr(before, name)), _format_count(getattr(observation, name))
    yield "tokens outside of steps", f"{before.unattributed:,}", f"{observation.unattributed:,}"
    one, other = (_join_names(unique_models(each.models)) or "none" for each in (before, observation))
    yield "models", one, other
    for what, find in _ORIGINS.items():
        yield what, find(before), find(observation)


def _parts(before: Observation, observation: Observation) -> Iterator[tuple[str, str, str]]:
    """The counts of each step and model."""
    for what, left, right in (
        ("step", before.steps or {}, observation.steps or {}),
        ("model", before.by_model or {}, observation.by_model or {}),
    ):
        for name in sorted({*left, *right}):
            one, other = left.get(name, Tokens()), right.get(name, Tokens())
            is_total = (one.input, one.output) == (other.input, other.output)
            yield f"{what} {name}", _describe_part(one, is_total=is_total), _describe_part(other, is_total=is_total)


def _describe_part(tokens: Tokens, *, is_total: bool) -> str:
    """The counts of a step or model; those that cost extra only where input and output are the same."""
    if not is_total:
        return _format_tokens(tokens)
    known = {name: getattr(tokens, name) for name in ("requests", "cached", "cache_write", "reasoning")}
    return ", ".join(f"{name.replace('_', ' ')} {_format_count(count)}" for name, count in known.items())


def _yes_or_no(*, is_so: bool) -> str:
    return "yes" if is_so else "no"


_ORIGINS: dict[str, Callable[[Observation], str]] = {
    "counts by step": lambda one: _yes_or_no(is_so=one.steps is not None),
    "counts by model": lambda one: _yes_or_no(is_so=one.by_model is not None),
    "counted by the provider": lambda one: _yes_or_no(is_so=one.assurance is not Assurance.LOCAL),
}


def _format_count(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def gap(apart: timedelta, pairs: int, settles: datetime, policy: UsagePolicy) -> Finding:
    """The last two observations are equal, but too close to each other."""
    needed = interval_of(policy)
    if pairs:
        message = f"⏳ Data identical across {pairs} of {policy.min_stable_pairs} intervals"
    else:
        message = (
            f"⏳ Data identical, but only {apart // timedelta(minutes=1)} of {needed} lie between the observations"
        )
    return Finding(
        status=UsageStatus.PENDING,
        code=UsageCode.GAP,
        message=message,
        explanation=f"Equal observations count when {needed} lie between them: an equal one counts from "
        f"{settles:%Y-%m-%d %H:%M:%S} UTC on.",
    )


def stable(run: UsageRun, observation: Observation, apart: timedelta, policy: UsagePolicy) -> Finding:
    """The counts are stable; check that they are complete and belong to the run."""
    covered = coverage(run, observation)
    doubt = (
        _check_declarations(run, observation)
        or _check_own_count(run, observation, policy.tolerance)
        or _check_coverage(run, covered)
        or _check_attribution(run, observation, covered)
        or _check_models(run, observation)
        or _check_counts(run, observation, policy.tolerance)
    )
    if doubt is not None:
        return doubt
    return Finding(
        status=UsageStatus.VERIFIED,
        code=UsageCode.STABLE,
        message=f"✅ Data stable across {_format_minutes(apart, policy)} minute interval",
        explanation="Two observations, far enough apart, are equal, at the highest count seen or one that a person "
        "accepted, with "
        f"tokens in {covered.have} of {covered.expected} steps. An observation that differs withdraws it.",
    )


def minutes(apart: timedelta) -> float:
    """Convert a duration to minutes."""
    return apart / timedelta(minutes=1)


def interval_of(policy: UsagePolicy) -> str:
    """Format the interval to its last digit, so that 59.99 does not read as 60."""
    return f"{policy.interval_min!r}".removesuffix(".0") + " minutes"


def _format_minutes(apart: timedelta, policy: UsagePolicy) -> str:
    """Format the minutes, rounded; rounded down where the interval is shorter than 60 minutes."""
    return f"{minutes(apart):.0f}" if policy.interval_min >= INTERVAL_MIN else f"{apart // timedelta(minutes=1)}"


def _check_declarations(run: UsageRun, observation: Observation) -> Finding | None:
    silent = {one.id: one.local for one in run.steps if one.expects_usage is False}
    billed = [one for one, tokens in (observation.steps or {}).items() if one in silent and tokens.total]
    if observation.steps is None and total_of(observation).total:
        # Where the provider does not count by step, the steps' own counts decide.
        billed = [one for one, local in silent.items() if local is not None and local.total]
    # Tokens counted for several runs may belong to the others; the check of the sum decides.
    is_billed = observation.cohort is None and total_of(observation).total
    if not billed and not (run.uses_none and is_billed):
        return None
    who = f"Steps {_join_names(billed)} were" if billed else "The run was"
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.UNDECLARED_USAGE,
        message=f"⚠️ {who} declared to use no model, and billed for {_format_tokens(total_of(observation))}",
        explanation="Either the declaration is wrong, or another client used the same key; check what called the "
        "provider.",
    )


def _check_coverage(run: UsageRun, covered: Coverage) -> Finding | None:
    if run.uses_none or (covered.have >= covered.expected and covered.expected):
        return None
    named = f" No tokens: {_join_names(covered.empty)}." if covered.empty else ""
    why = named if covered.expected else " The run declares no step that the tokens could belong to."
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.INCOMPLETE,
        message=f"⚠️ Data stable but incomplete: only {covered.have}/{covered.expected} steps have tokens",
        explanation=f"Every step must have tokens unless it is declared to use no model.{why} Check whether these "
        "steps failed, "
        "were skipped, or called no model.",
    )


def _check_attribution(run: UsageRun, observation: Observation, covered: Coverage) -> Finding | None:
    known = set(step_names(run, observation))
    unknown = {name: one.total for name, one in (observation.steps or {}).items() if name not in known and one.total}
    outside = observation.unattributed + sum(unknown.values())
    if not outside and covered.have <= covered.expected:
        return None
    where = f" (steps {_join_names([*unknown])})" if unknown else ""
    what = f"{outside:,} tokens in no declared step" if outside else "more steps have tokens than were declared"
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.UNATTRIBUTED,
        message=f"⚠️ Data stable, but {what}{where}",
        explanation="The provider counted tokens that the run did not record: a step is missing, or another client "
        "used the same "
        "key or project.",
    )


def _unknown_models(known: Iterable[str], models: Iterable[str]) -> list[str]:
    """Find the models that no known name means."""
    found = ModelNames(known)
    return [one for one in models if not any(found.find(one))]


def _check_models(run: UsageRun, observation: Observation) -> Finding | None:
    is_shared = observation.cohort is not None and observation.cohort.runs > 1
    shared = observation.cohort.models if observation.cohort and is_shared else ()
    # Where the runs of a cohort do not all name their models, at least this run's own models must be billed.
    ours = unique_models(shared or [one for step in run.steps for one in step.models])
    theirs = unique_models(observation.models)
    is_known = ours and theirs
    unmatched = _unknown_models(theirs, ours)
    if shared or not is_shared:
        unmatched += _unknown_models(ours, theirs)
    if not is_known or not unmatched:
        return None
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.MODEL_MISMATCH,
        message=f"⚠️ Models differ: the run used {_join_names(ours)}, the provider billed {_join_names(theirs)}",
        explanation="An alias counts as its dated version; no other names count as equal. Check which model really "
        "answered.",
    )


def _check_counts(run: UsageRun, observation: Observation, tolerance: int) -> Finding | None:
    if observation.assurance is Assurance.LOCAL:
        return LOCAL_ONLY
    if observation.cohort is not None:
        ambiguous = _check_cohort(run, observation, observation.cohort, tolerance)
        if ambiguous is not None or observation.cohort.runs > 1:
            return ambiguous
    for pair in _count_pairs(run, observation):
        if pair.is_different(tolerance):
            return Finding(
                status=UsageStatus.WARNING,
                code=UsageCode.DISCREPANCY,
                message=f"⚠️ {pair.whose} counted {_describe_counts(pair, tolerance)}",
                explanation="Both counts are final, and they differ: some calls were retried or broken off, or "
                "another client used "
                "the same key or project.",
            )
    return None


def _count_pairs(run: UsageRun, observation: Observation) -> list[CountPair]:
    """Pair the counts of both sides: the whole run and each model; or single steps where a step has no count."""
    local = run.local
    if local is not None:
        return [
            CountPair(whose="The run", local=local, billed=total_of(observation)),
            *pairs_by_model(run, observation),
        ]
    if observation.steps is None:
        return []
    return [
        CountPair(whose=f"Step {one.id}", local=one.local, billed=observation.steps.get(one.id, Tokens()))
        for one in run.steps
        if one.local is not None
    ]


def _check_own_count(run: UsageRun, observation: Observation, tolerance: int) -> Finding | None:
    """Check that a run which shares its count has one of its own: else it is not known which tokens are its."""
    cohort = observation.cohort
    is_split = observation.steps is not None or observation.steps_with_tokens is not None
    if cohort is None or cohort.runs < 2 or run.local is not None or is_split:
        return None
    return _check_cohort(run, observation, cohort, tolerance)


def _check_cohort(run: UsageRun, observation: Observation, cohort: Cohort, tolerance: int) -> Finding | None:
    """Check a count that is not the run's alone against what the runs of the cohort report themselves."""
    share = f"{cohort.runs} runs share what is counted"
    way_out = "give the run a key, a project or a session of its own"
    billed = unique_models(observation.models)
    if cohort.has_open:
        what, why = f"{share}, and one of them has not ended", "it may still use more"
        way_out = f"end it, `meruit usage end RUN`, or {way_out}"
    elif cohort.local is None or run.local is None:
        alone = "only the time shows which run used these tokens"
        what = alone if cohort.runs == 1 else share
        why = "not all runs report their own count, or some have an attribution key of another kind"
    elif (pair := CountPair(whose="", local=cohort.local, billed=total_of(observation))).is_different(tolerance):
        what, why = _describe_mismatch(pair, cohort, tolerance), "the sum of their own counts differs"
    elif cohort.runs > 1 and len(billed) > 1 and not (is_one_model(billed) or is_one_model(cohort.models)):
        what = f"{share} of {_join_names(billed)}"
        why = "it is not known which of them used which model"
    else:
        return None
    return Finding(
        status=UsageStatus.WARNING,
        code=UsageCode.AMBIGUOUS_ATTRIBUTION,
        message=f"⚠️ Ambiguous: {what}",
        explanation=f"The tokens cannot be attributed to one run, because {why}; {way_out}.",
    )


def _describe_mismatch(pair: CountPair, cohort: Cohort, tolerance: int) -> str:
    if cohort.runs > 1:
        return f"{cohort.runs} runs that share an attribution key counted {_describe_counts(pair, tolerance)}"
    return f"the run counted {_describe_counts(pair, tolerance, 'account')} in its minutes"


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _format_tokens(tokens: Tokens) -> str:
    return f"{tokens.input:,} in / {tokens.output:,} out"


def _describe_counts(pair: CountPair, tolerance: int, by: str = "provider") -> str:
    """Format both counts, with the first count that differs where input and output do not."""
    ours, theirs = pair.local, pair.billed
    parts = [
        (ours.input, theirs.input, ""),
        (ours.output, theirs.output, ""),
        (ours.requests, theirs.requests, " in {:,} calls"),
        (ours.cached, theirs.cached, ", {:,} cached"),
        (ours.cache_write, theirs.cache_write, ", {:,} written to the cache"),
    ]
    one, other = next(
        (label.format(one), label.format(other))
        for one, other, label in parts
        if one is not None and other is not None and abs(one - other) > tolerance
    )
    return f"{_format_tokens(ours)}{one}, the {by} {_format_tokens(theirs)}{other}"
