"""Attackers who know the rules are noticed; honest agents who resemble them are not held."""

import pytest
from tests.sampling import is_in_full

from meruit.governance.attack_trial import AttackTrial
from meruit.governance.attacks import try_attacks
from meruit.model.governance import Policy

TRIES = 20 if is_in_full() else 8
EDITED = "earlier output with a word changed"


@pytest.fixture(scope="module")
def found() -> dict[str, AttackTrial]:
    return {one.attack: one for one in try_attacks(1, TRIES)}


def test_colluding_pairs_are_stopped(found: dict[str, AttackTrial]) -> None:
    assert found["colluding pair"].noticed == TRIES
    assert found["colluding pair"].stopped >= TRIES * 4 // 5
    assert found["pair that fails one time in nine"].noticed >= TRIES * 3 // 4
    assert found["pair that fails one time in nine"].stopped >= TRIES // 2


def test_an_excellent_agent_with_one_consumer_is_flagged_and_hardly_ever_held(found: dict[str, AttackTrial]) -> None:
    # It cannot be told from a pair that works for no one else, so neither is held.
    assert found["colluding pair that works for no one else"].noticed == TRIES
    assert found["colluding pair that works for no one else"].stopped == 0
    assert found["honest: excellent, nearly always for one consumer"].stopped <= TRIES // 10


def test_agents_that_change_their_names_are_flagged(found: dict[str, AttackTrial]) -> None:
    assert found["rotating identities"].noticed == TRIES


def test_no_honest_look_alike_is_stopped(found: dict[str, AttackTrial]) -> None:
    honest = [one for one in found.values() if one.honest]
    assert [one.attack for one in honest if one.stopped] == []
    assert {one.attack.startswith("honest:") for one in honest} == {True}


@pytest.mark.parametrize("secret", ["planted string", "copy of the reference", "earlier output"])
def test_disguised_copies_are_stopped(found: dict[str, AttackTrial], secret: str) -> None:
    several = {name: one for name, one in found.items() if name.startswith(secret)}
    free = {name for name, one in several.items() if one.stopped < TRIES}
    # Other fields of the output differ: it may be a notice under an answer, and is only flagged.
    assert free <= {"earlier output in another field", "earlier output with a counter", EDITED}
    assert all(one.noticed == TRIES for name, one in several.items() if name != EDITED)
    assert len(several) >= 12


def test_a_counter_does_not_hide_a_copy(found: dict[str, AttackTrial]) -> None:
    assert found["earlier output with a counter"].stopped >= TRIES * 3 // 4
    assert found[EDITED].noticed >= TRIES // 3


def test_rates_have_intervals_that_hold_them(found: dict[str, AttackTrial]) -> None:
    for one in found.values():
        assert 0 <= one.low <= one.rate <= one.high <= 1
        assert 0 <= one.stopped_low <= one.stopped_rate <= one.stopped_high <= 1
        assert one.stopped <= one.noticed <= one.tries == TRIES


def test_a_rule_that_is_off_notices_nothing() -> None:
    off = {one.attack: one.noticed for one in try_attacks(1, 2, Policy(off=["concentrated_pair"]))}
    assert off["colluding pair"] == 0


def test_searches_for_hidden_criteria_are_flagged(found: dict[str, AttackTrial]) -> None:
    assert found["search for hidden words, one at a time"].noticed == TRIES
    assert found["search for a limit by figures"].noticed == TRIES
    for search in ("by halves", "by halves, level by level"):
        assert found[f"search for hidden words {search}"].noticed >= TRIES * 4 // 5
    assert found["honest: revises each text four times"].noticed == 0
    for honest in ("answers by a form", "fails most of its lists", "fails most of its texts without spaces"):
        assert found[f"honest: {honest}"].noticed <= TRIES // 10
