"""What each rule about a run's tokens says: a status, a code, the specified message, and what would change it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

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

MAX_NAMES = 5
"""How many steps or models a sentence names."""


class Finding(NamedTuple):
    """What one rule says."""

    status: UsageStatus
    code: UsageCode
    message: str
    explanation: str


RUN_OPEN = Finding(
    UsageStatus.PENDING, UsageCode.RUN_OPEN, "⏳ The run is still open", "Only a run that has ended is judged."
)
NOT_STARTED = Finding(
    UsageStatus.PENDING,
    UsageCode.NOT_STARTED,
    "⏳ Not looked at yet",
    "There is no look at the provider's count since the run ended.",
)
DECREASE_RECOVERED = Finding(
    UsageStatus.WARNING,
    UsageCode.DECREASED,
    "⚠️ Token counts decreased, and came back",
    "The policy bars a run whose count ever fell, until a person accepts that: "
    "`meruit usage acknowledge RUN --reason …`.",
)
LOCAL_ONLY = Finding(
    UsageStatus.WARNING,
    UsageCode.LOCAL_ONLY,
    "⚠️ Only the run's own counts are known",
    "Nothing here comes from the provider; reconcile with its usage API.",
)


def conflict(observation_id: str) -> Finding:
    """One look is told in two ways."""
    return Finding(
        UsageStatus.WARNING,
        UsageCode.CONFLICTING_EVIDENCE,
        f"⚠️ Attempt {observation_id} stands twice, with different contents",
        "One look cannot have found two things: the evidence was changed, or two looks were given one name.",
    )


def only_errors(looks: Sequence[Observation], ended_at: datetime) -> Finding:
    """No look found anything out."""
    last = looks[-1]
    error = failure(last, ended_at)
    times = f"All of {len(looks)} attempts" if len(looks) > 1 else "The attempt"
    said = f": {last.detail}" if last.detail else ""
    then = "it waits for a new key or scope." if error is FetchError.AUTH else "it is tried again, less and less often."
    return Finding(
        UsageStatus.DATA_NOT_AVAILABLE,
        UsageCode.API_ERROR,
        f"🕐 The usage API could not be read ({error})",
        f"{times} failed, the last with {error}{said}. An error is no zero; {then}",
    )


def zero(kept: Observation | None) -> Finding:
    """Nothing is counted, though something should be."""
    before = "" if kept is None else f" The count of {_format_tokens(total_of(kept))} that was seen before is kept."
    return Finding(
        UsageStatus.DATA_NOT_AVAILABLE,
        UsageCode.ZERO_TOKENS,
        "🕐 The usage API returned zero tokens",
        f"The provider counts no token for this run.{before} It may be too recent, or the wrong key or project is "
        "asked; a look that finds tokens changes it.",
    )


def decrease(less: Mapping[str, int]) -> Finding:
    """Something is below the most that was seen of it."""
    others = [name for name in less if name not in (INPUT, OUTPUT)]
    where = f" ({_join_names(others)} fell)" if others else ""
    return Finding(
        UsageStatus.WARNING,
        UsageCode.DECREASED,
        f"⚠️ Token counts decreased: −{less.get(INPUT, 0):,} in, −{less.get(OUTPUT, 0):,} out{where}",
        "A count that a provider has given must never fall. This holds until the count is back at its highest, "
        "or a person accepts the lower one: `meruit usage acknowledge RUN --reason …`.",
    )


def first(policy: UsagePolicy) -> Finding:
    """There is but one look."""
    return Finding(
        UsageStatus.PENDING,
        UsageCode.FIRST,
        "⏳ First attempt succeeded, awaiting a second",
        f"One look proves nothing; an equal one at least {interval_of(policy)} later does.",
    )


def change(before: Observation, look: Observation, policy: UsagePolicy) -> Finding:
    """The last two looks differ."""
    return Finding(
        UsageStatus.PENDING,
        UsageCode.CHANGING,
        f"⏳ Data still changing: {_format_tokens(total_of(before))} → {_format_tokens(total_of(look))}",
        f"The last two looks differ; equal ones at least {interval_of(policy)} apart settle it.",
    )


def gap(apart: timedelta, pairs: int, settles: datetime, policy: UsagePolicy) -> Finding:
    """The last two looks are equal, and prove too little."""
    needed = interval_of(policy)
    if pairs:
        said = f"⏳ Data identical across {pairs} of {policy.min_stable_pairs} intervals"
    else:
        said = f"⏳ Data identical, but only {apart // timedelta(minutes=1)} of {needed} lie between the looks"
    return Finding(
        UsageStatus.PENDING,
        UsageCode.GAP,
        said,
        f"Equal looks prove something when {needed} lie between them; the next one that counts is due at "
        f"{settles:%Y-%m-%d %H:%M:%S} UTC.",
    )


def stable(run: UsageRun, look: Observation, apart: timedelta, policy: UsagePolicy) -> Finding:
    """Nothing moves any more; whether it is whole, and the run's, is asked now."""
    covered = coverage(run, look)
    doubt = (
        _check_declarations(run, look)
        or _check_coverage(run, covered)
        or _check_attribution(run, look, covered)
        or _check_models(run, look)
        or _check_counts(run, look, policy.tolerance)
    )
    if doubt is not None:
        return doubt
    return Finding(
        UsageStatus.VERIFIED,
        UsageCode.STABLE,
        f"✅ Data stable across {_format_minutes(apart, policy)} minute interval",
        "Two equal looks, far enough apart, at the highest count seen, or one that a person accepted, with tokens in "
        f"{covered.have} of {covered.expected} steps. A look that differs withdraws it.",
    )


def minutes(apart: timedelta) -> float:
    """As people count it."""
    return apart / timedelta(minutes=1)


def interval_of(policy: UsagePolicy) -> str:
    """To its last digit: what is less than specified must not read as if it were not."""
    return f"{policy.interval_min!r}".removesuffix(".0") + " minutes"


def _format_minutes(apart: timedelta, policy: UsagePolicy) -> str:
    """As specified; where less than that is enough, never up."""
    return f"{minutes(apart):.0f}" if policy.interval_min >= INTERVAL_MIN else f"{apart // timedelta(minutes=1)}"


def _check_declarations(run: UsageRun, look: Observation) -> Finding | None:
    silent = {one.id: one.local for one in run.steps if one.expects_usage is False}
    billed = [one for one, tokens in (look.steps or {}).items() if one in silent and tokens.total]
    if look.steps is None and total_of(look).total:
        # Where steps cannot be told apart, by their own word.
        billed = [one for one, local in silent.items() if local is not None and local.total]
    # What is counted for several runs may all be the others'; whether it is, their sum shows.
    is_billed = look.cohort is None and total_of(look).total
    if not billed and not (run.uses_none and is_billed):
        return None
    who = f"Steps {_join_names(billed)} were" if billed else "The run was"
    return Finding(
        UsageStatus.WARNING,
        UsageCode.UNDECLARED_USAGE,
        f"⚠️ {who} declared to use no model, and billed for {_format_tokens(total_of(look))}",
        "Either the declaration is wrong, or somebody else used the same key; see what called the provider.",
    )


def _check_coverage(run: UsageRun, covered: Coverage) -> Finding | None:
    if run.uses_none or (covered.have >= covered.expected and covered.expected):
        return None
    named = f" No tokens: {_join_names(covered.empty)}." if covered.empty else ""
    why = named if covered.expected else " The run declares no step that the tokens could belong to."
    return Finding(
        UsageStatus.WARNING,
        UsageCode.INCOMPLETE,
        f"⚠️ Data stable but incomplete: only {covered.have}/{covered.expected} steps have tokens",
        f"Every step that is not declared to use no model must have tokens.{why} See whether they failed, were "
        "skipped, or called no model.",
    )


def _check_attribution(run: UsageRun, look: Observation, covered: Coverage) -> Finding | None:
    known = set(step_names(run, look))
    strangers = {name: one.total for name, one in (look.steps or {}).items() if name not in known and one.total}
    outside = look.unattributed + sum(strangers.values())
    if not outside and covered.have <= covered.expected:
        return None
    where = f" (steps {_join_names([*strangers])})" if strangers else ""
    what = f"{outside:,} tokens in no declared step" if outside else "more steps have tokens than were declared"
    return Finding(
        UsageStatus.WARNING,
        UsageCode.UNATTRIBUTED,
        f"⚠️ Data stable, but {what}{where}",
        "The provider counted what the run does not know of: a step that was not recorded, or another user of the "
        "same key or project.",
    )


def _unknown_models(known: Iterable[str], models: Iterable[str]) -> list[str]:
    """Those models that are none of the known ones, by whatever name."""
    found = ModelNames(known)
    return [one for one in models if not any(found.find(one))]


def _check_models(run: UsageRun, look: Observation) -> Finding | None:
    is_shared = look.cohort is not None and look.cohort.runs > 1
    told = look.cohort.models if look.cohort and is_shared else ()
    # Of those that share an attribution key and do not all name their models, at least the run's own must be billed.
    ours = unique_models(told or [one for step in run.steps for one in step.models])
    theirs = unique_models(look.models)
    is_known = ours and theirs
    strange = _unknown_models(theirs, ours)
    if told or not is_shared:
        strange += _unknown_models(ours, theirs)
    if not is_known or not strange:
        return None
    return Finding(
        UsageStatus.WARNING,
        UsageCode.MODEL_MISMATCH,
        f"⚠️ Models differ: the run used {_join_names(ours)}, the provider billed {_join_names(theirs)}",
        "An alias counts as its dated version, and nothing else does; see which model really answered.",
    )


def _check_counts(run: UsageRun, look: Observation, tolerance: int) -> Finding | None:
    if look.assurance is Assurance.LOCAL:
        return LOCAL_ONLY
    if look.cohort is not None:
        ambiguous = _check_cohort(run, look, look.cohort, tolerance)
        if ambiguous is not None or look.cohort.runs > 1:
            return ambiguous
    for twice in _count_pairs(run, look):
        if twice.is_different(tolerance):
            return Finding(
                UsageStatus.WARNING,
                UsageCode.DISCREPANCY,
                f"⚠️ {twice.whose} counted {_describe_counts(twice, tolerance)}",
                "Both counts are final, and they differ: calls that were retried or broken off, or another user of the "
                "same key or project.",
            )
    return None


def _count_pairs(run: UsageRun, look: Observation) -> list[CountPair]:
    """What both sides count: the whole run and each model; or, where one of its steps does not say, those that do."""
    local = run.local
    if local is not None:
        return [CountPair("The run", local, total_of(look)), *pairs_by_model(run, look)]
    if look.steps is None:
        return []
    return [
        CountPair(f"Step {one.id}", one.local, look.steps.get(one.id, Tokens()))
        for one in run.steps
        if one.local is not None
    ]


def _check_cohort(run: UsageRun, look: Observation, cohort: Cohort, tolerance: int) -> Finding | None:
    """Where the count is not the run's alone, and what all say of themselves does not prove whose is what."""
    share = f"{cohort.runs} runs share what is counted"
    way_out = "give the run a key, a project or a session of its own"
    billed = unique_models(look.models)
    if cohort.has_open:
        what, why = f"{share}, and one of them has not ended", "it may yet use more"
        way_out = f"end it, `meruit usage end RUN`, or {way_out}"
    elif cohort.local is None or run.local is None:
        alone = "nothing but the time tells whose tokens these are"
        what = alone if cohort.runs == 1 else share
        why = "not all who may have used them say how much, or some are told by another kind of attribution key"
    elif (twice := CountPair("", cohort.local, total_of(look))).is_different(tolerance):
        what, why = _describe_mismatch(twice, cohort, tolerance), "what is said of them does not tie out"
    elif cohort.runs > 1 and len(billed) > 1 and not (is_one_model(billed) or is_one_model(cohort.models)):
        what = f"{share} of {_join_names(billed)}"
        why = "nothing says which of them used which model"
    else:
        return None
    return Finding(
        UsageStatus.WARNING,
        UsageCode.AMBIGUOUS_ATTRIBUTION,
        f"⚠️ Ambiguous: {what}",
        f"Nobody can say whose tokens these are, as {why}; {way_out}.",
    )


def _describe_mismatch(twice: CountPair, cohort: Cohort, tolerance: int) -> str:
    if cohort.runs > 1:
        return f"{cohort.runs} runs that share an attribution key counted {_describe_counts(twice, tolerance)}"
    return f"the run counted {_describe_counts(twice, tolerance, 'account')} in its minutes"


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _format_tokens(tokens: Tokens) -> str:
    return f"{tokens.input:,} in / {tokens.output:,} out"


def _describe_counts(twice: CountPair, tolerance: int, by: str = "provider") -> str:
    """What both sides say; where input and output do not tell them apart, what does as well."""
    ours, theirs = twice.local, twice.billed
    parts = [
        (ours.input, theirs.input, ""),
        (ours.output, theirs.output, ""),
        (ours.requests, theirs.requests, " in {:,} calls"),
        (ours.cached, theirs.cached, ", {:,} cached"),
        (ours.cache_write, theirs.cache_write, ", {:,} written to the cache"),
    ]
    one, other = next(
        (said.format(one), said.format(other))
        for one, other, said in parts
        if one is not None and other is not None and abs(one - other) > tolerance
    )
    return f"{_format_tokens(ours)}{one}, the {by} {_format_tokens(theirs)}{other}"
