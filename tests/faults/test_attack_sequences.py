"""Attacks by chance on contracts: nothing is appended or paid that was not agreed on, and nothing fails."""

import pytest
from tests.faults.attack_sequences import attack_for
from tests.sampling import IN_FULL, seed

SAMPLE = 6
HOUR_S = 3_600.0


def test_a_sample_of_attacks_finds_nothing() -> None:
    made, done, found = attack_for(HOUR_S, seed(), SAMPLE)
    assert found == []
    assert made == SAMPLE
    assert any(name.startswith("tamper ") for name in done), done


if IN_FULL:

    @pytest.mark.parametrize("part", range(2))
    def test_an_hour_of_attacks_finds_nothing(part: int) -> None:
        _, _, found = attack_for(HOUR_S / 2, seed() + part)
        assert found == []
