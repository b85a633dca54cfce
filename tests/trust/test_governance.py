"""What the rules' answers amount to, whatever the rules are."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.governance import Action, Disposition, Dossier, Flag, GovernanceResult, History, Policy
from meruit.registry import FlagRule, flags
from meruit.trust import governance
from meruit.trust.governance import WORST, govern, together, unknown_rules

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
    assert result.concluded is result.disposition is expected
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


def test_whoever_has_the_dossier_comes_to_the_same_flags() -> None:
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


def test_confidence_is_the_share_of_the_rules_that_could_look() -> None:
    only = Policy(off=[name for name in NAMES if name not in ("canary_leak", "clock_order")])
    assert govern(Dossier(), only).confidence == 0.0
    assert govern(Dossier(canaries=1), only).confidence == 0.5
    assert govern(Dossier(canaries=1, started_at=1.0, ended_at=2.0), only).confidence == 1.0


@given(RESULTS, RESULTS)
def test_of_two_answers_the_worse_counts(one: GovernanceResult, other: GovernanceResult) -> None:
    both, swapped = together(one, other), together(other, one)
    assert both.concluded is max(one.concluded, other.concluded, key=WORST.index)
    assert both.concluded is swapped.concluded is both.disposition
    assert both.names == [*one.names, *other.names]
    assert both.confidence == min(one.confidence, other.confidence)


def test_what_a_policy_says_that_no_rule_understands_is_told() -> None:
    policy = Policy(
        off=["clock_order", "clocks"],
        limits={"retry_farming": {"attempts_max": 3}, "canary_leak": {"n": 1}, "anomaly": {"hihg": 1}, "zzz": {}},
    )
    assert [*unknown_rules(policy)] == [
        "no rule is named 'clocks'",
        "the rule canary_leak has no limit 'n'; it has none",
        "the rule anomaly has no limit 'hihg'; it has high, medium, n_min, spread_min",
        "no rule is named 'zzz'",
    ]
    assert not [*unknown_rules(Policy())]
