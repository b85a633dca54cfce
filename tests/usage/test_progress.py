"""Progress of observations: judging the next one alone gives what judging all of them gives."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.usage.oracle import ENDED, after, run_of, split, whole
from tests.usage.test_decision_properties import RUN, WORLDS, World

from meruit.model.usage import Acknowledgement, Observation, Tokens, UsagePolicy, UsageStatus
from meruit.usage import progress as progress_module
from meruit.usage.decision import decide
from meruit.usage.progress import ObservedRun, UsageProgress, judge_all, judge_next
from meruit.usage.schedule import Schedule, is_early, next_observation

SCHEDULES = st.sampled_from([Schedule(), Schedule(give_up_h=3, late_observations=1, fresh_h=2)])
SOME = Tokens(60, 6, 3)


@pytest.fixture(autouse=True)
def _fold_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "FOLD_FROM", 1)


def restored(progress: UsageProgress | None) -> UsageProgress | None:
    """As it is read from its row."""
    return None if progress is None else msgspec.json.decode(msgspec.json.encode(progress), type=UsageProgress)


@given(WORLDS, SCHEDULES, st.data())
def test_the_next_observation_alone_decides_as_all_of_them_do(
    world: World, schedule: Schedule, data: st.DataObject
) -> None:
    """In any order of arrival: what is not later than the others is judged with all of them."""
    # What a person accepts covers what was recorded by then.
    words = world.words[:1]
    arriving = [
        msgspec.structs.replace(one, early=data.draw(st.booleans())) for one in data.draw(st.permutations(world.looks))
    ]
    seen: list[Observation] = []
    stands = judge_all(world.run, seen, words, world.policy, schedule)
    continued = 0
    for one in arriving:
        progress = restored(stands.progress)
        if progress is not None and progress.is_continued_by(one, world.policy, schedule):
            stands = judge_next(world.run, progress, stands.verdict, one, schedule)
            continued += 1
        else:
            stands = judge_all(world.run, [*seen, one], words, world.policy, schedule)
        seen.append(one)
        assert stands.verdict == decide(world.run, seen, world.policy, words)
        assert stands.due == next_observation(world.run.ended_at, stands.verdict, seen, world.policy, schedule)
        assert stands.progress == judge_all(world.run, seen, words, world.policy, schedule).progress
    assert continued >= len([one for n, one in enumerate(seen[1:], 1) if one.at > max(_times(seen[:n], words))])


def _times(seen: list[Observation], words: tuple[Acknowledgement, ...]) -> list[datetime]:
    return [*(one.at for one in seen), *(one.at for one in words)]


@given(WORLDS, st.integers(0, 120))
def test_an_observation_is_early_by_progress_as_by_all_observations(world: World, minutes: int) -> None:
    seen = sorted(world.looks, key=lambda one: (one.at, one.id))
    stands = judge_all(world.run, seen, (), world.policy, Schedule())
    if stands.progress is None:
        return
    latest = stands.progress.latest_at
    for content in (one for one in seen if world.run.ended_at is not None):
        coming = msgspec.structs.replace(content, id="next", at=latest + timedelta(minutes=minutes))
        by_all = is_early(seen, stands.verdict, coming, world.policy)
        assert stands.progress.is_early(stands.verdict, coming) == by_all


def _judged(*looks: Observation) -> ObservedRun:
    return judge_all(RUN, looks, (), UsagePolicy(), Schedule())


def test_what_is_not_later_or_judged_otherwise_does_not_continue() -> None:
    progress = _judged(whole(10, SOME), whole(70, SOME)).progress
    assert progress is not None
    assert progress.is_continued_by(whole(71, SOME), UsagePolicy(), Schedule())
    assert not progress.is_continued_by(whole(70, SOME), UsagePolicy(), Schedule())
    assert not progress.is_continued_by(whole(71, SOME), UsagePolicy(tolerance=1), Schedule())
    assert not progress.is_continued_by(whole(71, SOME), UsagePolicy(), Schedule(give_up_h=1))


def test_a_conflict_stays_whatever_follows() -> None:
    stands = _judged(whole(10, SOME), msgspec.structs.replace(whole(10, Tokens(1, 1)), id=whole(10, SOME).id))
    assert stands.progress is not None
    following = judge_next(RUN, stands.progress, stands.verdict, whole(70, SOME), Schedule())
    assert following.verdict == stands.verdict
    assert following.due.waits == "person"


def test_the_state_does_not_grow_with_the_observations() -> None:
    run = run_of("a")
    stands = judge_all(run, [split(10, a=SOME)], (), UsagePolicy(), Schedule())
    sizes = []
    for number in range(1, 300):
        assert stands.progress is not None
        one = split(10 + 10 * number, a=Tokens(60 + number, 6, 3))
        stands = judge_next(run, stands.progress, stands.verdict, one, Schedule())
        sizes.append(len(msgspec.json.encode(stands.progress)))
    assert stands.verdict.status is UsageStatus.PENDING
    assert max(sizes) - min(sizes) < 100


def test_few_observations_keep_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "FOLD_FROM", 3)
    assert _judged(whole(10, SOME), whole(70, SOME)).progress is None
    assert _judged(whole(10, SOME), whole(70, SOME), whole(80, SOME)).progress is not None


def test_observations_of_an_open_run_wait_for_its_end() -> None:
    run = msgspec.structs.replace(RUN, ended_at=None)
    stands = judge_all(run, [whole(10, SOME)], (), UsagePolicy(), Schedule())
    assert stands.progress is not None
    following = judge_next(run, stands.progress, stands.verdict, whole(70, SOME), Schedule())
    assert (following.due.at, following.verdict) == (None, decide(run, [whole(10, SOME)]))
    assert after(0) == ENDED
