"""The simulated market: proof never invalidates honest work, holds rarely do, and a seed gives the same report."""

import pytest
from hypothesis import settings
from tests.sampling import is_in_full

from meruit.governance.simulation.agents import HONEST
from meruit.governance.simulation.cheats import CHEATS
from meruit.governance.simulation.trial import RuleTrial, TrialReport, trial
from meruit.model.governance import Policy
from meruit.registry import flags

SEEDS = (1,) if settings().max_examples < 1_000 else (1, 2, 3)
OUTCOMES = 8_000 if is_in_full() else 5_000
HELD_PER_10K_MAX = 10

# What each rule must at least find of its own cheats; those that must see a history first find later ones only.
RECALL_MIN = {
    "anomaly": 0.05,
    "concentrated_pair": 0.3,
    "perfect_accuracy_streak": 0.4,
    "reference_copy": 0.25,
    "retry_farming": 0.05,
    "sybil_output": 0.1,
    "threshold_bunching": 0.4,
    "replayed_output": 0.5,
    "latency_mismatch": 0.7,
    "canary_leak": 0.7,
}
RECALL_USUAL = 0.8


def report(seed: int) -> TrialReport:
    return trial(seed, OUTCOMES)


def test_every_rule_has_its_cheats() -> None:
    assert sorted(CHEATS) == flags.names()
    assert not {*HONEST} & {*CHEATS}


# A trial takes seconds, so one test asks all there is to ask of it.
@pytest.mark.parametrize("seed", SEEDS)
def test_the_rules_stand_their_trial(seed: int) -> None:
    found = report(seed)
    no_honest_outcome_is_invalidated(found)
    each_rule_holds_at_most_ten_of_ten_thousand_honest_outcomes(found)
    every_kind_of_cheat_is_caught_often_enough(found)
    the_counts_agree_with_each_other(found)
    assert TrialReport.from_json(found.to_json()) == found


def no_honest_outcome_is_invalidated(found: TrialReport) -> None:
    assert (found.invalidated_honest, found.invalidated_honest_per_10k) == (0, 0.0)
    assert all(rule.invalidated_honest == 0 for rule in found.rules)
    assert all(rule.false_positives == 0 for rule in found.rules if rule.action in ("invalidate", "refuse", "withhold"))


def each_rule_holds_at_most_ten_of_ten_thousand_honest_outcomes(found: TrialReport) -> None:
    for rule in found.rules:
        assert rule.held_honest * 10_000 <= HELD_PER_10K_MAX * found.honest, rule
    assert found.held_honest_per_10k <= HELD_PER_10K_MAX


def every_kind_of_cheat_is_caught_often_enough(found: TrialReport) -> None:
    for rule in found.rules:
        assert rule.cheats >= 20, rule
        assert rule.recall is not None
        assert rule.recall >= RECALL_MIN.get(rule.rule, RECALL_USUAL), rule


def the_counts_agree_with_each_other(found: TrialReport) -> None:
    assert found.outcomes == OUTCOMES == found.honest + found.cheating
    assert found.cheating == sum(rule.cheats for rule in found.rules)
    # Cheats that are honest for once are honest outcomes too, but of no honest kind.
    assert found.honest > sum(kind.outcomes for kind in found.kinds)
    assert all(kind.outcomes > OUTCOMES // 80 and kind.held + kind.invalidated <= kind.flagged for kind in found.kinds)
    for rule in found.rules:
        assert rule.true_positives + rule.false_positives <= rule.flagged
        assert rule.true_positives <= rule.cheats
        assert rule.held_honest + rule.invalidated_honest <= rule.false_positives
        assert rule.false_per_10k == pytest.approx(rule.false_positives * 10_000 / found.honest)


def test_the_same_seed_gives_the_same_report() -> None:
    assert trial(7, 400).to_json() == trial(7, 400).to_json()
    assert trial(7, 400).rules != trial(8, 400).rules


def test_progress_is_reported() -> None:
    reported: list[tuple[int, int]] = []
    trial(1, 5, progress=lambda done, total: reported.append((done, total)))
    assert reported == [(number, 5) for number in range(1, 6)]


def test_a_policy_is_tried_as_it_would_be_used() -> None:
    def rule(report: TrialReport, name: str) -> RuleTrial:
        return next(one for one in report.rules if one.rule == name)

    policy = Policy(off=["canary_leak"], limits={"reference_copy": {"similarity_min": 0.1}})
    found = trial(3, 600, policy)
    assert (rule(found, "canary_leak").flagged, rule(found, "canary_leak").precision) == (0, None)
    assert rule(found, "reference_copy").held_honest > 50
    assert found.held_honest > 50


def test_without_honest_outcomes_rates_are_zero() -> None:
    # The first agent of this seed cheats.
    alone = next(found for seed in range(50) if (found := trial(seed, 1)).honest == 0)
    assert alone.held_honest_per_10k == 0.0
    assert sum(rule.recall is not None for rule in alone.rules) == 1
