"""The governance rules: what all of them promise, and what each finds at its limits."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.evidence import Provenance
from meruit.model.governance import Action, Baseline, Dealings, Dossier, History, MetricFact, Suspicion
from meruit.model.kinds import MetricType
from meruit.registry import FlagExample, FlagRule, flags

EXAMPLES = [(rule, example) for rule in flags for example in rule.examples]
NEVER_LACKING = {"claimed_only", "duplicate_claim", "impossible_task_pass", "null_agent_pass"}
"""Rules whose inputs every dossier has."""


def judged(name: str, dossier: Dossier) -> list[Suspicion] | None:
    rule = flags.get(name)
    found = rule.judge(dossier, rule.limits)
    return None if found is None else [*found]


def suspected(name: str, dossier: Dossier) -> list[Suspicion]:
    """What the rule found, where it could look."""
    found = judged(name, dossier)
    assert found is not None
    return found


def action_of(name: str, dossier: Dossier) -> Action | None:
    """What the rule does to the outcome; None where it finds nothing."""
    found = suspected(name, dossier)
    assert len(found) <= 1
    return (found[0].action or flags.get(name).action) if found else None


@pytest.mark.parametrize(
    ("rule", "example"), EXAMPLES, ids=lambda part: part.name if isinstance(part, FlagRule) else ""
)
def test_an_example_is_true(rule: FlagRule, example: FlagExample) -> None:
    found = rule.judge(example.dossier, rule.limits)
    assert (None if found is None else bool(found)) is example.expect


@pytest.mark.parametrize("rule", [*flags], ids=lambda rule: rule.name)
def test_a_rule_explains_itself_and_shows_all_it_can_say(rule: FlagRule) -> None:
    assert rule.summary.endswith(".")
    lacking: set[bool | None] = set() if rule.name in NEVER_LACKING else {None}
    assert {example.expect for example in rule.examples} == {True, False} | lacking


NUMBERS = st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1.7e308])
WILD_FACTS = st.lists(
    st.builds(
        MetricFact,
        metric=st.sampled_from(["m", "n"]),
        criterion_id=st.just("c"),
        value=NUMBERS,
        kind=st.none() | st.sampled_from(MetricType),
        provenance=st.none() | st.sampled_from(Provenance),
    ),
    max_size=3,
)
WILD = st.builds(
    Dossier,
    agent_id=st.just("a"),
    consumer_id=st.just("c"),
    metrics=WILD_FACTS,
    claims=st.dictionaries(st.sampled_from(["m", "n", "o"]), st.floats()),
    claimed_ms=NUMBERS,
    observed_ms=NUMBERS,
    output_tokens=NUMBERS,
    started_at=NUMBERS,
    ended_at=NUMBERS,
    received_at=NUMBERS,
    claimed_tokens=NUMBERS,
    provider_tokens=NUMBERS,
    reference_similarity=NUMBERS,
    history=st.builds(
        History,
        margins=st.lists(st.floats(), max_size=20),
        accuracies=st.lists(st.floats(), max_size=20),
        baselines=st.dictionaries(
            st.sampled_from(["m", "n"]), st.builds(Baseline, st.integers(0, 99), st.floats(), st.floats(0))
        ),
        dealings=st.builds(Dealings, *[st.integers(0, 50)] * 8),
    ),
)


@given(WILD)
def test_no_dossier_breaks_a_rule(dossier: Dossier) -> None:
    for rule in flags:
        for suspicion in rule.judge(dossier, rule.limits) or ():
            suspicion.to_json()


# Each rule's own limits.


def fact(value: float | None, kind: MetricType | None = None, **others: object) -> MetricFact:
    return MetricFact("m", "c", value, kind, **others)  # type: ignore[arg-type]  # as the test says


@pytest.mark.parametrize(
    ("kind", "possible", "impossible"),
    [
        (MetricType.ACCURACY, [0.0, 1.0, 1.01, 100.0], [-0.001, 100.001, math.nan, math.inf]),
        (MetricType.CONTAINS, [0.0, 0.5, 1.0], [-0.1]),
        (MetricType.LATENCY, [0.0, 1e12], [-0.001, math.inf]),
        (MetricType.COUNT, [0.0, 1.5], [-1.0]),
        (MetricType.BOOLEAN, [0.0, 1.0], [0.5, 2.0, -1.0]),
        (MetricType.NUMERIC, [-5.0, 1e300], [math.nan, -math.inf]),
        (None, [-5.0], [math.nan]),
    ],
)
def test_a_value_or_claim_outside_its_domain_is_impossible(
    kind: MetricType | None, possible: list[float], impossible: list[float]
) -> None:
    for value in possible:
        assert judged("range_impossible", Dossier(metrics=[fact(value, kind)])) == []
        assert judged("range_impossible", Dossier(metrics=[fact(None, kind)], claims={"m": value})) == []
    for value in impossible:
        (measured,) = suspected("range_impossible", Dossier(metrics=[fact(value, kind)]))
        (claimed,) = suspected("range_impossible", Dossier(metrics=[fact(None, kind)], claims={"m": value}))
        shown = value if math.isfinite(value) else str(value)
        assert (measured.metric, measured.evidence) == ("m", {"value": shown})
        assert (claimed.metric, claimed.evidence) == ("m", {"claimed": shown})


def test_a_claim_may_be_meant_as_any_type_that_its_metric_has() -> None:
    both = [fact(None, MetricType.COUNT), fact(None, MetricType.NUMERIC)]
    assert judged("range_impossible", Dossier(metrics=both, claims={"m": -1.0})) == []


@pytest.mark.parametrize(
    ("tokens", "claimed", "observed", "found"),
    [
        (3000.0, 1000.0, None, 0),
        (3001.0, 1000.0, None, 1),
        # The observed time may be shorter than the work, which started before the observation.
        (3001.0, None, 1000.0, 0),
        (3001.0, 1100.0, 1000.0, 0),
        # A clock that counts in milliseconds says 0 for less than one.
        (3.0, 0.0, None, 0),
        (4.0, 0.0, None, 1),
        (3001.0, None, None, 0),
        (3001.0, None, -5.0, 0),
        (-1.0, 1000.0, None, 1),
        (math.inf, 1000.0, None, 1),
        (5000.0, -1.0, 1000.0, 1),
        (None, -1.0, None, 1),
    ],
)
def test_more_tokens_a_second_than_any_model_writes_are_impossible(
    tokens: float | None, claimed: float | None, observed: float | None, found: int
) -> None:
    dossier = Dossier(output_tokens=tokens, claimed_ms=claimed, observed_ms=observed)
    assert len(judged("range_impossible", dossier) or ()) == found


@pytest.mark.parametrize(
    ("tokens", "claimed", "started", "ended", "found"),
    [
        # Whole seconds: what seems to take none may have taken nearly one.
        (3000.0, None, 100.0, 100.0, 0),
        (3001.0, None, 100.0, 100.0, 1),
        (6000.0, None, 100.0, 101.0, 0),
        (6001.0, None, 100.0, 101.0, 1),
        (6001.0, 5000.0, 100.0, 101.0, 0),
        (9000.0, None, 101.0, 100.0, 0),
        (9000.0, None, None, 100.0, 0),
        (9000.0, None, 100.0, None, 0),
        (9000.0, None, -1.7e308, 1.7e308, 0),
    ],
)
def test_without_a_claimed_duration_the_claimed_times_give_it(
    tokens: float, claimed: float | None, started: float | None, ended: float | None, found: int
) -> None:
    dossier = Dossier(output_tokens=tokens, claimed_ms=claimed, started_at=started, ended_at=ended)
    assert len(suspected("range_impossible", dossier)) == found


@pytest.mark.parametrize(
    ("started", "ended", "received", "found"),
    [
        (100.0, 99.75, None, 0),
        (100.0, 99.74, None, 1),
        (None, 105.0, 100.0, 0),
        (None, 105.01, 100.0, 1),
        (120.0, 110.0, 100.0, 2),
    ],
)
def test_clocks_may_be_a_little_off(started: float | None, ended: float, received: float | None, found: int) -> None:
    dossier = Dossier(started_at=started, ended_at=ended, received_at=received)
    assert len(judged("clock_order", dossier) or ()) == found


@pytest.mark.parametrize(
    ("claimed", "observed", "earlier", "action"),
    [
        (850.0, 1000.0, 0, None),
        (849.9, 1000.0, 0, Action.FLAG),
        (849.9, 1000.0, 1, Action.FLAG),
        (849.9, 1000.0, 2, Action.HOLD),
        (850.0, 1000.0, 9, None),
        # Exactly at the limit, which floats put a little higher.
        (850.18, 1000.2, 0, None),
        (2000.0, 1000.0, 0, None),
        (0.0, 55.5, 0, None),
    ],
)
def test_a_claim_to_be_faster_than_seen_is_held_the_third_time(
    claimed: float, observed: float, earlier: int, action: Action | None
) -> None:
    history = History(latency_mismatches=earlier)
    assert action_of("latency_mismatch", Dossier(claimed_ms=claimed, observed_ms=observed, history=history)) is action


@pytest.mark.parametrize(
    ("claimed", "counted", "differs"),
    [
        (105.0, 100.0, False),
        (106.0, 100.0, True),
        (95.0, 100.0, False),
        (94.0, 100.0, True),
        (1020.0, 1000.0, False),
        (1021.0, 1000.0, True),
        (979.0, 1000.0, True),
        (5.0, 0.0, False),
        (6.0, 0.0, True),
    ],
)
def test_usage_is_held_until_the_count_is_final(claimed: float, counted: float, differs: bool) -> None:
    dossier = Dossier(claimed_tokens=claimed, provider_tokens=counted)
    assert action_of("usage_mismatch", dossier) is (Action.HOLD if differs else None)
    final = Dossier(claimed_tokens=claimed, provider_tokens=counted, usage_reconciled=True)
    assert action_of("usage_mismatch", final) is (Action.INVALIDATE if differs else None)


SHARE = MetricType.ACCURACY
PLAIN = MetricType.NUMERIC


@pytest.mark.parametrize(
    ("claim", "measured", "kind", "action"),
    [
        # Exactly 5 and 20 %, where floats say a little more.
        (0.95, 0.9025, SHARE, None),
        (0.95, 0.9024, SHARE, Action.FLAG),
        (0.9, 0.72, SHARE, Action.FLAG),
        (0.9, 0.719, SHARE, Action.HOLD),
        (100.0, 95.0, PLAIN, None),
        (100.0, 94.9, PLAIN, Action.FLAG),
        (100.0, 120.0, PLAIN, Action.FLAG),
        (100.0, 120.1, PLAIN, Action.HOLD),
        (-100.0, -95.0, PLAIN, None),
        (-100.0, 100.0, PLAIN, Action.HOLD),
        # One share on two scales, in either direction.
        (95.0, 0.95, SHARE, None),
        (0.95, 95.0, SHARE, None),
        (95.0, 0.6, SHARE, Action.HOLD),
        (95.0, 0.95, PLAIN, Action.HOLD),
        (1.0, 1.0, SHARE, None),
        # Nothing claimed.
        (0.0, 0.0, PLAIN, None),
        (0.0, -0.0, SHARE, None),
        (0.0, 1.0, PLAIN, Action.HOLD),
        (0.0, 0.005, SHARE, None),
        (0.0, 0.0051, SHARE, Action.HOLD),
        # Rounded as it is written: to whole percents, or finer.
        (0.01, 0.0149, SHARE, None),
        (1.5, 0.0154, SHARE, None),
        (0.001, 0.0014, SHARE, None),
        (0.001, 0.0016, SHARE, Action.HOLD),
        (0.5, 0.54, SHARE, Action.FLAG),
        (5e-324, 1e308, PLAIN, Action.HOLD),
    ],
)
def test_a_claim_is_held_against_what_was_measured(
    claim: float, measured: float, kind: MetricType, action: Action | None
) -> None:
    dossier = Dossier(claims={"m": claim}, metrics=[fact(measured, kind, provenance=Provenance.COMPUTED)])
    assert action_of("claimed_vs_measured", dossier) is action


def test_a_claim_is_compared_with_its_closest_measurement() -> None:
    measured = [fact(value, SHARE, provenance=Provenance.COMPUTED) for value in (0.2, 0.95, 0.7)]
    assert judged("claimed_vs_measured", Dossier(claims={"m": 0.95}, metrics=measured)) == []
    (found,) = suspected("claimed_vs_measured", Dossier(claims={"m": 0.5}, metrics=measured))
    assert (found.metric, found.evidence, found.statistic) == ("m", {"claimed": 0.5, "measured": 0.7}, 0.4)


@pytest.mark.parametrize(
    "against", [fact(0.5, provenance=Provenance.CLAIMED), fact(None), fact(math.nan), MetricFact("other", "c", 0.5)]
)
def test_a_claim_without_a_measurement_is_not_compared(against: MetricFact) -> None:
    assert judged("claimed_vs_measured", Dossier(claims={"m": 0.9}, metrics=[against])) is None
    assert judged("claimed_vs_measured", Dossier(claims={"m": math.inf}, metrics=[fact(0.5)])) is None


def test_every_change_of_the_evaluator_is_named() -> None:
    before, after = {"tests": "1", "reference": "2", "gone": "3"}, {"tests": "9", "reference": "2", "new": "4"}
    dossier = Dossier(evaluator_before=before, evaluator_after=after, canary_intact=False)
    changed, touched = suspected("evaluator_tamper", dossier)
    assert (changed.evidence, touched.evidence) == ({"changed": ["gone", "new", "tests"]}, {"canary_intact": False})


def test_leaked_strings_are_named_by_hash() -> None:
    (found,) = suspected("canary_leak", Dossier(canaries=3, leaked=["bb", "aa"]))
    assert (found.evidence, found.statistic) == ({"leaked": ["aa", "bb"], "planted": 3}, 2.0)


@pytest.mark.parametrize(
    ("similarity", "chars", "copied"), [(0.98, 64, True), (0.9799, 64, False), (0.98, 63, False), (1.0, 5000, True)]
)
def test_a_copy_of_the_reference_is_long(similarity: float, chars: int, copied: bool) -> None:
    dossier = Dossier(reference_similarity=similarity, output_chars=chars)
    assert action_of("reference_copy", dossier) is (Action.HOLD if copied else None)


@pytest.mark.parametrize(
    ("rule", "history"),
    [("replayed_output", History(replayed_in="c1")), ("sybil_output", History(shared_with="b"))],
)
def test_a_repeated_output_is_long(rule: str, history: History) -> None:
    assert action_of(rule, Dossier(agent_id="a", output_chars=64, history=history)) is Action.HOLD
    assert action_of(rule, Dossier(agent_id="a", output_chars=63, history=history)) is None


def test_a_bonus_for_claims_is_withheld_metric_by_metric() -> None:
    said = [
        MetricFact("a", "1", 1.0, provenance=Provenance.CLAIMED, bonus_micros=5),
        MetricFact("a", "2", 1.0, provenance=Provenance.CLAIMED, bonus_micros=6),
        MetricFact("b", "3", 1.0, provenance=Provenance.CLAIMED, bonus_micros=7),
        MetricFact("c", "4", 1.0, provenance=Provenance.CLAIMED),
        MetricFact("d", "5", 1.0, provenance=Provenance.COMPUTED, bonus_micros=8),
    ]
    found = judged("claimed_only", Dossier(metrics=said)) or []
    assert [(one.metric, one.evidence) for one in found] == [("a", {"bonus_micros": 11}), ("b", {"bonus_micros": 7})]


@pytest.mark.parametrize(
    ("margins", "found"),
    [
        ([0.0] * 11, True),
        ([0.0099] * 10, False),
        ([0.01] * 60, False),
        # P(X >= 13 of 15) is 1.9e-5 and P(X >= 14 of 15) is 2.2e-6.
        ([0.0] * 13 + [0.02] * 2, False),
        ([0.0] * 14 + [0.02], True),
        # Neither a miss nor a clear win says anything, nor what is long ago.
        ([0.0] * 11 + [-0.01, 0.03, 0.5] * 9, True),
        ([0.0] * 11 + [0.5] * 54, False),
    ],
)
def test_results_bunch_when_too_many_lie_just_past_the_threshold(margins: list[float], found: bool) -> None:
    assert bool(judged("threshold_bunching", Dossier(history=History(margins=margins)))) is found


def test_six_results_near_the_threshold_are_enough() -> None:
    assert judged("threshold_bunching", Dossier(history=History(margins=[0.0] * 6))) == []
    assert judged("threshold_bunching", Dossier(history=History(margins=[0.0] * 5 + [0.03]))) is None


def paired(dealings: Dealings, *, earned: bool = True) -> Dossier:
    return Dossier(
        agent_id="a", consumer_id="c", metrics=[fact(1.0, bonus_micros=int(earned))], history=History(dealings=dealings)
    )


def dealings(pair: int, pair_bonus: int, others: int = 0, others_bonus: int = 0, market: int = 1000) -> Dealings:
    """A pair whose agent also worked for others, in a market where one in ten earns a bonus."""
    return Dealings(pair, pair_bonus, pair + others, pair_bonus + others_bonus, pair, pair_bonus, market, market // 10)


@pytest.mark.parametrize(
    ("before", "earned", "action"),
    [
        # Nobody else ever dealt with either: a half is the most favourable rate, and 2^-30 is just under 1e-9. Nothing
        # shows whether the agent is as good elsewhere, so it is not held.
        (dealings(29, 29), True, Action.FLAG),
        (dealings(28, 28), True, None),
        # Four in five is not more than four in five.
        (dealings(99, 79), True, None),
        (dealings(99, 80), True, Action.FLAG),
        (dealings(99, 80), False, None),
        # One failure in nine, on purpose; the work for others decides whether it is held.
        (dealings(80, 71, market=100_000), True, Action.FLAG),
        (dealings(80, 71, others=2, others_bonus=1, market=100_000), True, Action.FLAG),
        (dealings(80, 71, others=10, others_bonus=2, market=100_000), True, Action.HOLD),
        # Half of the agent's work is not more than half.
        (dealings(39, 39, others=40), True, None),
        (dealings(39, 39, others=39, others_bonus=5), True, Action.HOLD),
        # As good with others.
        (dealings(39, 39, others=30, others_bonus=30), True, None),
        (Dealings(39, 39, 45, 39, 90, 85, 1000, 100), True, None),
        (Dealings(39, 39, 45, 39, 39, 39, 1000, 900), True, None),
    ],
)
def test_a_pair_far_better_than_elsewhere_is_held(before: Dealings, earned: bool, action: Action | None) -> None:
    assert action_of("concentrated_pair", paired(before, earned=earned)) is action


def test_a_consumer_whose_new_agents_all_earn_is_flagged() -> None:
    before = Dealings(5, 5, 5, 5, 80, 78, 1000, 300)
    found = judged("concentrated_pair", paired(before))
    assert found is not None
    assert [(one.name, one.action, one.evidence["n"]) for one in found] == [
        ("concentrated_pair:consumer", Action.FLAG, 81)
    ]
    for honest in (
        # The agent mostly works for others; the consumer's agents earn what agents earn; too few to say.
        Dealings(5, 5, 50, 5, 80, 78, 1000, 300),
        Dealings(5, 5, 5, 5, 80, 78, 1000, 900),
        Dealings(5, 5, 5, 5, 10, 10, 1000, 300),
    ):
        assert judged("concentrated_pair", paired(honest)) == []


def test_a_withheld_claim_is_not_an_earned_bonus() -> None:
    claimed = Dossier(metrics=[fact(1.0, bonus_micros=1, provenance=Provenance.CLAIMED)])
    assert not claimed.earned_bonus
    assert msgspec.structs.replace(claimed, claimed_may_earn=True).earned_bonus


def test_twelve_dealings_are_the_least() -> None:
    # With rates that any bonus would be a wonder at, so that the count alone decides.
    limits = {**flags.get("concentrated_pair").limits, "p_max": 1.0}
    judge = flags.get("concentrated_pair").judge
    assert judge(paired(dealings(11, 11)), limits)
    assert judge(paired(dealings(10, 10)), limits) == []


def test_a_pair_needs_an_agent_and_a_consumer() -> None:
    assert judged("concentrated_pair", Dossier(consumer_id="c")) is None


def test_counts_that_contradict_each_other_break_nothing() -> None:
    assert judged("concentrated_pair", paired(Dealings(pair=40, pair_bonus=40))) is not None
    for odd in (
        *(Dealings(-1, 0, -1), Dealings(20, 20, -1), Dealings(20, 10**399), Dealings(10**399, 10**399, 10**399)),
        Dealings(-5, -5, -5, -5, -5, -5, -5, -5),
    ):
        assert judged("concentrated_pair", paired(odd)) is not None
    anyhow = {**flags.get("concentrated_pair").limits, "n_min": -9.0}
    assert flags.get("concentrated_pair").judge(paired(Dealings(-1, 0, -1)), anyhow) == []


def test_a_difference_beyond_any_float_is_found_without_a_figure() -> None:
    (found,) = suspected("usage_mismatch", Dossier(claimed_tokens=1e308, provider_tokens=-1e308))
    assert found.statistic is None
    (farmed,) = suspected("retry_farming", Dossier(agent_id="a", history=History(near_duplicates=10**399)))
    assert farmed.statistic is None


def against(value: float, n: int = 10, mean: float = 10.0, deviation: float = 1.0) -> Dossier:
    return Dossier(metrics=[fact(value)], history=History(baselines={"m": Baseline(n, mean, deviation)}))


@pytest.mark.parametrize(
    ("value", "severity"),
    [(13.0, None), (13.01, "medium"), (14.0, "medium"), (14.01, "high"), (7.0, None), (6.99, "medium"), (5.9, "high")],
)
def test_three_deviations_are_an_anomaly_and_four_a_grave_one(value: float, severity: str | None) -> None:
    found = judged("anomaly", against(value))
    assert found is not None
    assert [(one.name, one.metric, one.evidence["severity"]) for one in found] == (
        [("anomaly:m:3sigma", "m", severity)] if severity else []
    )


def test_an_anomaly_needs_something_to_measure_by() -> None:
    assert judged("anomaly", against(99.0, n=9)) is None
    assert judged("anomaly", against(99.0, mean=0.0, deviation=0.0)) is None
    assert judged("anomaly", against(math.nan)) is None
    assert judged("anomaly", Dossier(metrics=[fact(None)], history=against(1.0).history)) is None
    # A difference in the last digit is neither spread nor anomaly.
    assert judged("anomaly", against(10.0 + 1e-14, deviation=1e-16)) == []
    assert judged("anomaly", against(10.1, deviation=0.0))


def test_a_metric_of_two_criteria_is_flagged_once_for_the_worst() -> None:
    twice = Dossier(metrics=[fact(15.0), fact(20.0), fact(14.0)], history=against(0.0).history)
    (found,) = suspected("anomaly", twice)
    assert found.statistic == 10.0


@pytest.mark.parametrize(
    ("accuracies", "found"),
    [
        ([1.0] * 20, True),
        ([1.0] * 19, False),
        ([100.0] * 20, True),
        ([99.0, 98.0] + [100.0] * 58, True),
        # The mean is 0.965 exactly, then a little more.
        ([1.0] * 50 + [0.79] * 10, False),
        ([1.0] * 50 + [0.795] * 10, True),
        ([1.0] * 61 + [0.97] * 60, False),
    ],
)
def test_too_many_perfect_accuracies_are_a_pattern(accuracies: list[float], found: bool) -> None:
    flagged = judged("perfect_accuracy_streak", Dossier(history=History(accuracies=accuracies))) or []
    assert [one.name for one in flagged] == (["pattern:perfect_accuracy_streak"] if found else [])
