"""Applying the rules: the worst action counts, and a rule that raises holds the outcome."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.governance import evaluate as governance
from meruit.governance.evaluate import MAX_ENTRIES, combine_results, find_excesses, govern, unknown_rules
from meruit.model.governance import (
    UNAVAILABLE,
    WORST,
    Action,
    Baseline,
    Dealings,
    Disposition,
    Dossier,
    Flag,
    GovernanceResult,
    History,
    MetricFact,
    Policy,
    Suspicion,
)
from meruit.registry import FlagRule, flags

EXAMPLES = [example.dossier for rule in flags for example in rule.examples]
NAMES = flags.names()
WORST_OF = {
    Action.INVALIDATE: Disposition.INVALID,
    Action.HOLD: Disposition.HOLD,
    Action.REFUSE: Disposition.HOLD,
    Action.FLAG: Disposition.CLEAR,
    Action.WITHHOLD: Disposition.CLEAR,
}
PROOF = {
    "canary_leak",
    "clock_order",
    "duplicate_claim",
    "evaluator_tamper",
    "impossible_task_pass",
    "range_impossible",
    "usage_mismatch",
}
"""What is proof, and may invalidate; the last only once the provider's count is final."""
RESULTS = st.builds(
    GovernanceResult,
    valid=st.booleans(),
    flags=st.lists(st.sampled_from(["one", "two"]), max_size=2),
    disposition=st.none() | st.sampled_from(Disposition),
    confidence=st.floats(0, 1),
)


@given(st.sampled_from(EXAMPLES), st.lists(st.sampled_from(NAMES)))
def test_the_disposition_is_that_of_the_worst_action(dossier: Dossier, off: list[str]) -> None:
    result = govern(dossier, Policy(off=off))
    actions = [flag.action for flag in result.flags if isinstance(flag, Flag)]
    expected = max((WORST_OF[action] for action in actions), key=WORST.index, default=Disposition.CLEAR)
    assert result.conclusion is result.disposition is expected
    assert result.valid is (expected is not Disposition.INVALID)
    assert not {*off} & {*result.names}
    assert 0 <= result.confidence <= 1


@dataclass
class Reordered:
    """The rules in another order."""

    rules: list[FlagRule]

    def __iter__(self):  # type: ignore[no-untyped-def]  # as the registry's
        return iter(self.rules)


@given(st.sampled_from(EXAMPLES), st.permutations([*flags]))
def test_the_order_of_the_rules_changes_nothing(dossier: Dossier, rules: list[FlagRule]) -> None:
    expected = govern(dossier)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(governance, "flags", Reordered(rules))
        found = govern(dossier)
    assert sorted(found.names) == sorted(expected.names)
    assert (found.disposition, found.confidence) == (expected.disposition, expected.confidence)


def test_proof_may_invalidate_and_statistics_never_do() -> None:
    may = {rule.name for rule in flags if rule.action is Action.INVALIDATE}
    for dossier in EXAMPLES:
        may |= {flag.rule for flag in govern(dossier).flags if isinstance(flag, Flag) and flag.action == "invalidate"}
    assert may == PROOF


def test_a_result_names_its_flags_and_survives_json() -> None:
    for dossier in EXAMPLES:
        result = govern(dossier)
        assert all(isinstance(flag, Flag) and flag.version for flag in result.flags)
        assert GovernanceResult.from_json(result.to_json()).names == result.names


def test_the_same_dossier_gives_the_same_flags() -> None:
    finite = [dossier for dossier in EXAMPLES if all(abs(claim) < 1e308 for claim in dossier.claims.values())]
    assert all(govern(Dossier.from_json(dossier.to_json())) == govern(dossier) for dossier in finite)


def test_a_rule_that_is_off_is_not_asked() -> None:
    dossier = Dossier(canaries=1, leaked=["aa"])
    assert govern(dossier).names == ["canary_leak"]
    assert govern(dossier, Policy(off=["canary_leak"])).disposition is Disposition.CLEAR
    nobody = govern(dossier, Policy(off=NAMES))
    assert (nobody.valid, nobody.flags, nobody.confidence) == (True, [], 0.0)


def test_limits_can_be_others_one_by_one() -> None:
    dossier = Dossier(agent_id="a", history=History(near_duplicates=4))
    assert govern(dossier).names == []
    assert govern(dossier, Policy(limits={"retry_farming": {"attempts_max": 3}})).names == ["retry_farming"]
    assert govern(dossier, Policy(limits={"reference_copy": {"chars_min": 3}})).names == []


def test_confidence_is_the_share_of_rules_with_enough_facts() -> None:
    only = Policy(off=[name for name in NAMES if name not in ("canary_leak", "clock_order")])
    assert govern(Dossier(), only).confidence == 0.0
    assert govern(Dossier(canaries=1), only).confidence == 0.5
    assert govern(Dossier(canaries=1, started_at=1.0, ended_at=2.0), only).confidence == 1.0


@given(RESULTS, RESULTS)
def test_of_two_answers_the_worse_counts(one: GovernanceResult, other: GovernanceResult) -> None:
    both, swapped = combine_results(one, other), combine_results(other, one)
    assert both.conclusion is max(one.conclusion, other.conclusion, key=WORST.index)
    assert both.conclusion is swapped.conclusion is both.disposition
    assert both.names == [*one.names, *other.names]
    assert both.confidence == min(one.confidence, other.confidence)


def test_unknown_rules_and_limits_of_a_policy_are_named() -> None:
    policy = Policy(
        off=["clock_order", "clocks"],
        limits={"retry_farming": {"attempts_max": 3}, "canary_leak": {"n": 1}, "anomaly": {"hihg": 1}, "zzz": {}},
    )
    clocks, leak, anomaly, last = unknown_rules(policy)
    assert "'clocks'" in clocks
    assert "canary_leak" in leak
    assert "'n'" in leak
    assert all(name in anomaly for name in ("anomaly", "'hihg'", "high", "medium", "n_min", "spread_min"))
    assert "'zzz'" in last
    assert not [*unknown_rules(Policy())]


# A rule that breaks.


def with_rule(judge: Callable[[Dossier, Mapping[str, float]], Any], dossier: Dossier) -> GovernanceResult:
    """What all rules say, and one more."""
    odd = FlagRule("odd", "Odd.", Action.FLAG, {}, judge, "7", ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(governance, "flags", Reordered([odd, *flags]))
        return govern(dossier)


def raising(_dossier: Dossier, _limits: Mapping[str, float]) -> Any:
    raise ZeroDivisionError("the whole output might stand here")


@pytest.mark.parametrize(
    ("judge", "error"),
    [
        (raising, "ZeroDivisionError"),
        (lambda _dossier, _limits: 5, "TypeError"),
        (lambda _dossier, _limits: ["suspect"], "AttributeError"),
        (lambda _dossier, _limits: [Suspicion({"what": object()})], "TypeError"),
        (lambda _dossier, _limits: [Suspicion({}, name="\ud800")], "UnicodeEncodeError"),
        (lambda _dossier, _limits: [Suspicion({}, action="whatever")], "ValidationError"),  # type: ignore[arg-type]
    ],
)
def test_a_rule_that_raises_holds_the_outcome_and_others_apply(judge: Any, error: str) -> None:
    dossier = Dossier(agent_id="a", canaries=1, history=History(near_duplicates=9))
    found, usual = with_rule(judge, dossier), govern(dossier)
    assert found.flags == [
        Flag(UNAVAILABLE, "7", Action.HOLD, evidence={"rule": "odd", "error": error}),
        *usual.flags,
    ]
    assert (usual.conclusion, found.conclusion, found.valid) == (Disposition.CLEAR, Disposition.HOLD, True)
    assert found.confidence == pytest.approx(usual.confidence * len(NAMES) / (len(NAMES) + 1))
    assert GovernanceResult.from_json(found.to_json()) == found


def test_a_rule_that_raises_does_not_overrule_proof() -> None:
    assert with_rule(raising, Dossier(canaries=1, leaked=["aa"])).conclusion is Disposition.INVALID


# What the dossier of a client may hold.


def fact(**more: Any) -> list[MetricFact]:
    return [MetricFact(**{"metric": "m", "criterion_id": "c", "value": 1.0, **more})]


def past(**more: Any) -> dict[str, Any]:
    return {"history": History(**more)}


def dealt(*counts: int) -> dict[str, Any]:
    return past(dealings=Dealings(*counts))


@pytest.mark.parametrize("dossier", EXAMPLES, ids=lambda _: "")
def test_the_rules_own_examples_are_within_bounds(dossier: Dossier) -> None:
    finite = all(math.isfinite(claim) for claim in dossier.claims.values())
    assert bool([*find_excesses(dossier)]) is not finite


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"claimed_ms": -1e15, "claimed_tokens": 5, "agent_id": "a" * 200, "canaries": 10**9},
        {"claims": {"m" * 4096: 1.0}, "metrics": fact(metric="x" * 4096, bonus_micros=10**15)},
        past(margins=[0.1] * 60, accuracies=[1.0] * 60, near_duplicates=10**9),
        past(baselines={"m": Baseline(10**9, -5.0, 0.0)}),
        {"claims": {"n": -1.0, "pair": 0.5}, "leaked": ["a"] * 1000},
        dealt(10**9, 10**9, 10**9, 10**9, 10**9, 10**9, 10**9, 10**9),
        dealt(3, 2, 5, 2, 4, 3, 0, 0),
    ],
)
def test_values_within_their_limits_are_accepted(known: dict[str, Any]) -> None:
    assert [*find_excesses(Dossier(**known))] == []


@pytest.mark.parametrize(
    ("known", "where", "limit"),
    [
        ({"canaries": -1}, "canaries", "1,000,000,000"),
        ({"output_chars": 10**399}, "output_chars", "1,000,000,000"),
        ({"claimed_ms": 1.1e15}, "claimed_ms", "1e+15"),
        ({"claimed_tokens": 10**399}, "claimed_tokens", "1e+15"),
        ({"provider_tokens": -1e308}, "provider_tokens", "1e+15"),
        ({"started_at": math.nan}, "started_at", "1e+15"),
        ({"claims": {"a\nb": math.inf}}, "claims.a\\nb", "1e+15"),
        ({"claims": {"m" * 4097: 1.0}}, "claims." + "m" * 60, "4,096 characters"),
        ({"claims": {str(n): 1.0 for n in range(1001)}}, "claims", "1,000 entries"),
        ({"agent_id": "a" * 201}, "agent_id", "200 characters"),
        ({"leaked": ["a"] * 1001}, "leaked", "1,000 entries"),
        ({"leaked": ["a", "a" * 201]}, "leaked[1]", "200 characters"),
        ({"evaluator_before": {"tests": "a" * 201}}, "evaluator_before.tests", "200 characters"),
        ({"metrics": fact() * 1001}, "metrics", "1,000 entries"),
        ({"metrics": fact(value=-math.inf)}, "metrics[0].value", "1e+15"),
        ({"metrics": fact(bonus_micros=-1)}, "metrics[0].bonus_micros", "1,000,000,000,000,000"),
        (past(margins=[0.1] * 61), "history.margins", "60 entries"),
        (past(accuracies=[0.1] * 61), "history.accuracies", "60 entries"),
        (past(near_duplicates=10**399), "history.near_duplicates", "1,000,000,000"),
        (past(baselines={"m": Baseline(-1, 0.0, 0.0)}), "history.baselines.m.n", "1,000,000,000"),
        (past(baselines={"m": Baseline(1, 0.0, math.inf)}), "history.baselines.m.deviation", "1e+15"),
        (dealt(10**399, 0, 10**399, 0, 10**399), "history.dealings.pair", "1,000,000,000"),
        (dealt(-1, 0, -1), "history.dealings.pair", "1,000,000,000"),
        (dealt(20, 0, -1, 0, 20), "history.dealings.agent", "1,000,000,000"),
        (dealt(5, 0, 4, 0, 5), "history.dealings.pair", " agent"),
        (dealt(5, 0, 5, 0, 4), "history.dealings.pair", " consumer"),
        (dealt(5, 5, 5, 4, 5, 5), "history.dealings.pair_bonus", " agent_bonus"),
        (dealt(0, 0, 0, 0, 0, 0, 3, 4), "history.dealings.market_bonus", " market"),
        (past(near_tries=2, near_tries_failed=3), "history.near_tries_failed", " near_tries"),
    ],
)
def test_a_value_beyond_its_limit_is_named(known: dict[str, Any], where: str, limit: str) -> None:
    found = next(find_excesses(Dossier(**known)))
    assert found.where == where
    assert found.message.endswith(limit)


def test_a_huge_dossier_is_checked_up_to_a_limit() -> None:
    huge = Dossier(leaked=["a" * 201] * 100_000, claims={str(n): math.nan for n in range(100_000)})
    assert len([*find_excesses(huge)]) == 2 * MAX_ENTRIES + 2


@given(st.builds(Dealings, *[st.integers()] * 8), st.integers(), st.floats(), st.floats())
def test_every_rule_judges_a_dossier_within_its_limits(
    dealings: Dealings, attempts: int, claimed: float, counted: float
) -> None:
    history = History(dealings=dealings, near_duplicates=attempts, latency_mismatches=attempts)
    dossier = Dossier(
        agent_id="a", consumer_id="c", claimed_tokens=claimed, provider_tokens=counted, metrics=fact(), history=history
    )
    if not [*find_excesses(dossier)]:
        assert UNAVAILABLE not in govern(dossier).names
