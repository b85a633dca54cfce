"""What holds of a run's tokens in every small world, and in any world that chance makes up."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.sampling import examples
from tests.usage.oracle import ENDED, VERIFIED, WARNING, A, B, after, failed, opinion, run_of, split, whole

from meruit.errors import FetchError
from meruit.model.chat import MOST_TOKENS
from meruit.model.usage import (
    Acknowledgement,
    Anchor,
    Assurance,
    Cohort,
    Observation,
    Tokens,
    UsageCode,
    UsagePolicy,
    UsageRun,
    UsageStatus,
    UsageStep,
    UsageVerdict,
    sum_tokens,
)
from meruit.usage.decision import decide, is_equal

RUN = run_of("a", "b")
CONTENTS = {
    "zero": whole(0, Tokens()),
    "some": split(0, a=A, b=B),
    "more": split(0, a=Tokens(70, 6, 3), b=B),
    "moved": split(0, a=Tokens(50, 6, 3), b=Tokens(50, 4, 2)),
    "part": split(0, a=A),
    "error": failed(0),
}
"""`more` then `some` is a fall, `some` then `moved` one of a step, `part` lacks one."""


class World(NamedTuple):
    run: UsageRun
    looks: list[Observation]
    policy: UsagePolicy = UsagePolicy()
    words: tuple[Acknowledgement, ...] = ()

    def verdict(self) -> UsageVerdict:
        return decide(self.run, self.looks, self.policy, self.words)


def small_worlds(kinds: str, gaps: tuple[int, ...], length: int) -> Iterator[list[Observation]]:
    """Every sequence of these looks with every choice of pauses between them."""
    chosen = [CONTENTS[kind] for kind in kinds.split()]
    for several in product(chosen, repeat=length):
        for pauses in product(gaps, repeat=length - 1):
            times = accumulate(pauses, initial=10)
            yield [
                replace(one, id=f"{n}", at=after(minutes))
                for n, (one, minutes) in enumerate(zip(several, times, strict=True))
            ]


@pytest.mark.parametrize(
    ("kinds", "gaps", "length"),
    [
        ("zero some more moved part error", (30, 60, 90), 1),
        ("zero some more moved part error", (30, 60, 90), 2),
        ("zero some more moved part error", (30, 60, 90), 3),
        ("zero some more moved error", (30, 60), 4),
        ("some more error", (30, 60), 5),
    ],
)
def test_in_every_small_world_two_implementations_agree_and_verified_means_what_it_says(
    kinds: str, gaps: tuple[int, ...], length: int
) -> None:
    for looks in small_worlds(kinds, gaps, length):
        verdict = decide(RUN, looks)
        assert (verdict.status, verdict.code, verdict.withdrawn) == opinion(RUN, looks), looks
        if verdict.status is VERIFIED:
            assert is_earned(World(RUN, looks))


@pytest.mark.parametrize(
    "policy",
    [
        UsagePolicy(anchor=Anchor.SPAN),
        UsagePolicy(min_stable_pairs=2),
        UsagePolicy(anchor=Anchor.SPAN, min_stable_pairs=2),
        UsagePolicy(anomaly_is_permanent=True),
        UsagePolicy(totals_only=True),
    ],
    ids=["span", "two pairs", "span, two pairs", "permanent", "totals only"],
)
@pytest.mark.parametrize("declares_no_usage", [False, True])
def test_in_every_smaller_world_they_agree_under_any_policy(policy: UsagePolicy, declares_no_usage: bool) -> None:
    run = replace(RUN, declares_no_usage=declares_no_usage)
    for looks in small_worlds("zero some more moved", (30, 60), 3):
        verdict = decide(run, looks, policy)
        assert (verdict.status, verdict.code, verdict.withdrawn) == opinion(run, looks, policy), looks


def test_in_every_small_world_a_persons_word_at_any_time_is_understood_alike() -> None:
    for looks in small_worlds("zero some more moved", (60,), 4):
        for minutes in (70, 100, 190):
            word = Acknowledgement(after(minutes), "ada", "seen")
            for policy in (UsagePolicy(), UsagePolicy(anomaly_is_permanent=True)):
                verdict = decide(RUN, looks, policy, [word])
                assert (verdict.status, verdict.code, verdict.withdrawn) == opinion(RUN, looks, policy, [word])


def is_earned(world: World) -> bool:
    """Two equal looks an interval apart and nothing else between them; complete; none before them, or since, higher."""
    assert world.run.ended_at is not None
    ended_at = world.run.ended_at
    seen = sorted((one for one in world.looks if is_observation(one, ended_at)), key=lambda one: (one.at, one.id))
    streak = [seen[-1]]
    for one, other in pairwise(reversed(seen)):
        if not is_equal(one, other, world.policy):
            break
        streak.append(other)
    verdict = world.verdict()
    far = [(one, other) for one in streak for other in streak if other.at - one.at >= world.policy.interval]
    is_pair = any(other.at > one.at for one, other in far)
    is_whole = world.run.uses_none or verdict.steps_with_tokens == verdict.total_steps > 0
    totals = [one.total for one in seen if one.total is not None and one.total.total]
    is_highest = all(one.input <= totals[-1].input and one.output <= totals[-1].output for one in totals)
    return is_pair and is_whole and (is_highest or bool(world.words))


def is_observation(look: Observation, ended_at: datetime) -> bool:
    is_behind = look.watermark is not None and look.watermark < ended_at
    return look.at >= ended_at and look.error is None and look.total is not None and not is_behind


# Any world.

COUNTS = st.sampled_from([0, 1, 10, 10, 60, MOST_TOKENS])
MAYBE = st.none() | COUNTS
TOKENS = st.builds(Tokens, COUNTS, COUNTS, MAYBE, MAYBE, MAYBE, MAYBE)
NAMES = st.sampled_from(["a", "b", "c"])
MODELS = st.lists(st.sampled_from(["gpt-4o", "gpt-4o-2024-08-06", "openai/gpt-4o-mini", ""]), max_size=2).map(tuple)
BY_MODEL = st.dictionaries(
    st.sampled_from(["gpt-4o", "gpt-4o-2024-08-06", "openai/gpt-4o-mini", ""]), TOKENS, max_size=3
)
STEPS = st.builds(
    UsageStep,
    id=NAMES,
    expects_usage=st.sampled_from([None, True, False]),
    succeeded=st.none() | st.booleans(),
    local=st.none() | TOKENS,
    models=MODELS,
    by_model=st.just({}) | BY_MODEL,
)
RUNS = st.builds(
    UsageRun,
    ended_at=st.sampled_from([ENDED, ENDED, ENDED, ENDED, None]),
    steps=st.lists(STEPS, max_size=3, unique_by=lambda one: one.id).map(tuple),
    declares_no_usage=st.sampled_from([False, False, True]),
)
LANES = st.builds(Cohort, st.integers(1, 3), st.none() | TOKENS, MODELS, st.sampled_from([False, False, True]))
ANY_CONTENT = st.builds(
    Observation,
    id=st.just(""),
    at=st.just(ENDED),
    total=TOKENS | TOKENS | TOKENS | st.none(),
    steps=st.none() | st.dictionaries(NAMES, TOKENS, max_size=3),
    steps_with_tokens=st.none() | st.integers(0, 3),
    total_steps=st.none() | st.integers(0, 3),
    unattributed=st.sampled_from([0, 0, 0, 5]),
    models=MODELS,
    cohort=st.none() | LANES,
    assurance=st.sampled_from(Assurance),
    watermark=st.sampled_from([None, None, ENDED, ENDED - timedelta(minutes=1)]),
    error=st.sampled_from([*[None] * 8, *FetchError]),
    by_model=st.none() | BY_MODEL,
)
"""A look of any kind."""


@st.composite
def fitting(draw: st.DrawFn, run: UsageRun) -> Observation:
    """A look that nearly fits what the run says of itself, so that it comes down to the last rules."""
    locals_ = {one.id: one.local or draw(TOKENS) for one in run.steps if one.expects_usage is not False}
    total = replace(sum_tokens(locals_.values()), requests=draw(MAYBE))
    content = Observation("", ENDED, draw(st.sampled_from([total, total, Tokens(10, 60)])))
    changes = {
        "steps": st.sampled_from([locals_, {**locals_, "c": A}]),
        "steps_with_tokens": st.just(len(locals_)),
        "total_steps": st.just(len(run.steps)),
        "models": MODELS,
        "unattributed": st.just(5),
        "assurance": st.sampled_from([Assurance.REQUEST, Assurance.LOCAL]),
        "cohort": LANES | st.builds(Cohort, st.integers(1, 2), st.just(content.total)),
    }
    chosen = draw(st.sets(st.sampled_from([*changes]), max_size=2))
    return replace(content, **{name: draw(change) for name, change in changes.items() if name in chosen})


POLICIES = st.builds(
    UsagePolicy,
    interval_min=st.sampled_from([0, 30, 60, 60, 60]),
    anchor=st.sampled_from(Anchor),
    min_stable_pairs=st.sampled_from([1, 1, 2]),
    totals_only=st.booleans(),
    tolerance=st.sampled_from([0, 0, 10]),
    anomaly_is_permanent=st.booleans(),
)
MINUTES = st.integers(-1, 12).map(lambda tens: tens * 30)
WORDS = st.lists(
    st.builds(Acknowledgement, at=MINUTES.map(after), by=st.just("ada"), reason=st.just("seen")), max_size=2
).map(tuple)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Few contents, seen again and again: else no two looks would ever be equal."""
    run = draw(st.just(RUN) | RUNS)
    contents = st.sampled_from([*CONTENTS.values()]) | fitting(run) | ANY_CONTENT
    few = draw(st.lists(contents, min_size=1, max_size=3))
    times = draw(st.lists(MINUTES, max_size=6))
    looks = [replace(draw(st.sampled_from(few)), id=f"{n}", at=after(at)) for n, at in enumerate(times)]
    if draw(st.booleans()):
        looks += [replace(few[0], id=f"late-{at}", at=after(at)) for at in (500, 560)]
    return World(run, looks, draw(st.just(UsagePolicy()) | POLICIES), draw(st.just(()) | WORDS))


WORLDS = worlds()
JUDGED = worlds().filter(lambda world: world.run.ended_at is not None)


@examples(40)
@given(WORLDS)
def test_two_implementations_agree_in_any_world(world: World) -> None:
    verdict = world.verdict()
    assert (verdict.status, verdict.code, verdict.withdrawn) == opinion(*world)


NAMED = st.sampled_from(["gpt-4o", "gpt-4o-2024-05-13", "gpt-4o-2024-08-06", "openai/gpt-4o", "o1", ""])
FEW = st.builds(Tokens, st.sampled_from([1, 2]), st.just(1), st.none(), st.sampled_from([None, 0, 1]))


@examples(40)
@given(
    st.dictionaries(NAMED, FEW, min_size=1, max_size=4),
    st.none() | st.lists(NAMED, min_size=1, max_size=4),
    st.data(),
    st.sampled_from([None, Cohort(1, Tokens(1, 1)), Cohort(2, Tokens(1, 1), ("gpt-4o",)), Cohort(2, Tokens(1, 1))]),
    st.sampled_from([0, 0, 1]),
)
def test_two_implementations_tie_out_alike_model_by_model(
    ours: dict[str, Tokens], names: list[str] | None, data: st.DataObject, cohort: Cohort | None, tolerance: int
) -> None:
    """What the run says is billed under its own names or others, each count where it was or elsewhere."""
    steps = [UsageStep(f"{n}", local=one, by_model={name: one}) for n, (name, one) in enumerate(ours.items())]
    counts = data.draw(st.permutations([*ours.values()]))
    theirs: dict[str, Tokens] = {}
    for name, one in zip([*(names or []), *ours], counts, strict=False):
        theirs[name] = sum_tokens([theirs[name], one]) if name in theirs else one
    total = sum_tokens(counts)
    local = None if cohort is None else replace(cohort, local=replace(total, cached=None))
    look = Observation("", ENDED, total, models=(*theirs,), cohort=local, by_model=None if names is None else theirs)
    run = UsageRun(ENDED, tuple(steps))
    looks = [replace(look, id=f"{at}", at=after(at)) for at in (10, 70)]
    policy = UsagePolicy(tolerance=tolerance)
    verdict = decide(run, looks, policy)
    assert (verdict.status, verdict.code, verdict.withdrawn) == opinion(run, looks, policy)


@given(WORLDS)
def test_there_is_one_status_one_code_and_a_word_for_both(world: World) -> None:
    verdict = world.verdict()
    assert isinstance(verdict.status, UsageStatus)
    assert isinstance(verdict.code, UsageCode)
    assert verdict.message
    assert verdict.explanation
    assert (verdict.status is VERIFIED) == (verdict.code is UsageCode.STABLE)
    assert UsageVerdict.from_json(verdict.to_json()) == verdict


@given(WORLDS, st.data())
def test_neither_order_nor_repetition_matters(world: World, data: st.DataObject) -> None:
    again = data.draw(st.lists(st.sampled_from(world.looks), max_size=3)) if world.looks else []
    mixed = data.draw(st.permutations([*world.looks, *again]))
    words = data.draw(st.permutations(world.words))
    assert decide(world.run, iter(mixed), world.policy, words) == world.verdict()


@given(WORLDS)
def test_verified_is_earned(world: World) -> None:
    verdict = world.verdict()
    if verdict.status is VERIFIED:
        assert is_earned(world)
        assert verdict.assurance is not Assurance.LOCAL
        assert verdict.tokens is not None
        assert verdict.minutes is not None
        assert verdict.minutes >= world.policy.interval_min


@given(WORLDS)
def test_zero_is_never_verified_unless_it_was_declared(world: World) -> None:
    verdict = world.verdict()
    if verdict.status is VERIFIED and not world.run.uses_none and verdict.tokens is not None:
        counted = [one.total.total for one in world.looks if one.id in verdict.compared and one.total is not None]
        assert all(counted)


@given(JUDGED, st.sampled_from(FetchError), st.integers(-1, 400))
def test_an_error_neither_makes_nor_breaks_anything(world: World, error: FetchError, minutes: int) -> None:
    before = world.verdict()
    assume(before.code not in (UsageCode.NOT_STARTED, UsageCode.API_ERROR))
    after_it = decide(world.run, [*world.looks, failed(minutes + 0.5, error)], world.policy, world.words)
    plain = {"held": False, "explanation": ""}
    assert replace(after_it, **plain) == replace(before, **plain)


@given(JUDGED, st.sampled_from(FetchError))
def test_an_error_after_any_verdict_leaves_it_and_says_so(world: World, error: FetchError) -> None:
    before = world.verdict()
    assume(before.compared)
    held = decide(world.run, [*world.looks, failed(1000, error)], world.policy, world.words)
    assert held.held
    assert held.explanation != before.explanation or before.held
    assert (held.status, held.code, held.message, held.tokens) == (
        before.status,
        before.code,
        before.message,
        before.tokens,
    )


@given(JUDGED, st.integers(1, 50))
def test_growth_withdraws_and_the_history_remains(world: World, more: int) -> None:
    earned = [replace(CONTENTS["some"], id=f"late-{n}", at=after(1000 + 60 * n)) for n in range(3)]
    world = world._replace(run=RUN, looks=[*world.looks, *earned])
    before = world.verdict()
    assume(before.status is VERIFIED)
    grown = replace(split(2000, a=Tokens(60 + more, 6, 3), b=B), id="grown")
    withdrawn = decide(RUN, [*world.looks, grown], world.policy, world.words)
    assert withdrawn.code is UsageCode.CHANGING
    assert withdrawn.withdrawn == before.withdrawn + 1
    assert withdrawn.history[: len(before.history)] == before.history
    stable = [replace(grown, id=f"again-{n}", at=after(2000 + 60 * n)) for n in (1, 2)]
    again = decide(RUN, [*world.looks, grown, *stable], world.policy, world.words)
    assert (again.status, again.withdrawn) == (VERIFIED, before.withdrawn + 1)


@given(JUDGED)
def test_the_history_ends_with_the_status_and_has_no_repeats(world: World) -> None:
    verdict = world.verdict()
    if verdict.history:
        assert (verdict.history[-1].status, verdict.history[-1].code) == (verdict.status, verdict.code)
    assert all((one.status, one.code) != (other.status, other.code) for one, other in pairwise(verdict.history))
    assert all(one.at <= other.at for one, other in pairwise(verdict.history))


@given(WORLDS, ANY_CONTENT)
def test_one_id_with_two_contents_always_warns(world: World, other: Observation) -> None:
    assume(world.looks)
    other = replace(other, id=world.looks[0].id, at=world.looks[0].at)
    assume(other != world.looks[0])
    verdict = decide(world.run, [*world.looks, other], world.policy, world.words)
    assert (verdict.status, verdict.code) == (WARNING, UsageCode.CONFLICTING_EVIDENCE)


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))])
EXTREMES = ZONES.flatmap(
    lambda zone: st.sampled_from([datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)])
)
MOMENTS = st.datetimes(timezones=ZONES) | EXTREMES


@given(WORLDS, st.lists(MOMENTS, min_size=8, max_size=8), st.floats(0, allow_nan=False))
def test_any_moment_and_any_interval_have_an_answer(world: World, moments: list[datetime], interval: float) -> None:
    looks = [replace(one, at=moment) for one, moment in zip(world.looks, moments, strict=False)]
    words = [replace(one, at=moments[-1]) for one in world.words]
    run = world.run if world.run.ended_at is None else replace(world.run, ended_at=min(moments))
    assert decide(run, looks, replace(world.policy, interval_min=interval), words).message
