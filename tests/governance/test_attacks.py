"""Attackers who know the rules are noticed; honest agents who resemble them are not held."""

import pytest

from meruit.governance.attacks import AttackTrial, try_attacks
from meruit.model.governance import Policy

TRIES = 20


@pytest.fixture(scope="module")
def found() -> dict[str, AttackTrial]:
    return {one.attack: one for one in try_attacks(1, TRIES)}


def test_colluding_pairs_are_stopped(found: dict[str, AttackTrial]) -> None:
    assert found["colluding pair"].stopped == TRIES
    assert found["pair that fails one time in nine"].stopped >= TRIES * 3 // 4


def test_agents_that_change_their_names_are_flagged(found: dict[str, AttackTrial]) -> None:
    assert found["rotating identities"].noticed == TRIES


def test_no_honest_look_alike_is_stopped(found: dict[str, AttackTrial]) -> None:
    honest = [one for one in found.values() if one.honest]
    assert [one.attack for one in honest if one.stopped] == []
    assert {one.attack.startswith("honest:") for one in honest} == {True}


def test_rates_have_intervals_that_hold_them(found: dict[str, AttackTrial]) -> None:
    for one in found.values():
        assert 0 <= one.low <= one.rate <= one.high <= 1
        assert 0 <= one.stopped_low <= one.stopped_rate <= one.stopped_high <= 1
        assert one.stopped <= one.noticed <= one.tries == TRIES


def test_a_rule_that_is_off_notices_nothing() -> None:
    off = {one.attack: one.noticed for one in try_attacks(1, 2, Policy(off=["concentrated_pair"]))}
    assert off["colluding pair"] == 0
