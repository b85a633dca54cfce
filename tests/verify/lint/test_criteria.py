"""Criteria are proven: nothing passes by doing nothing, good work passes, and every criterion can fail."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.metrics.support.extractor import MetricExtractor
from meruit.model.criterion import SuccessCriteria
from meruit.model.kinds import SHARES
from meruit.model.work import PRIVATE_INPUTS
from meruit.verify.engine import VerificationEngine
from meruit.verify.lint.criteria import Gold, LintReport, Severity, lint, null_agents
from meruit.verify.lint.mutations import MAX_SIZE

_, EMPTY_TEXT, ECHO = null_agents({})


def criterion(**changes: Any) -> dict[str, Any]:
    return {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2, **changes}


def report(
    *criteria: dict[str, Any],
    gold: Any = None,
    metadata: Any = None,
    work_input: Any = None,
    engine: VerificationEngine | None = None,
    **whole: Any,
) -> LintReport:
    wanted = SuccessCriteria.model_validate({"criteria": criteria, **whole})
    work = None if gold is None else Gold(gold, metadata or {})
    return lint(engine or VerificationEngine(), wanted, work_input=work_input, gold=work)


def codes(found: LintReport) -> list[str]:
    return [finding.code for finding in found.findings]


# Agents that do nothing.


def test_criteria_that_ask_for_work_hold() -> None:
    found = report(criterion())
    assert (found.ok, found.findings, found.gold, found.mutants_tried) == (True, [], None, 0)
    assert found.null_agents == {
        "{}": "inconclusive",
        EMPTY_TEXT: "fail",
        ECHO: "fail",
    }


def test_an_empty_text_must_not_pass() -> None:
    found = report(criterion(comparison="lte", threshold=100))
    assert not found.ok
    assert found.findings[0].code == "null_agent_passes"
    assert found.null_agents[EMPTY_TEXT] == "pass"


def test_an_agent_that_echoes_its_input_must_not_pass() -> None:
    found = report(criterion(), work_input={"question": "what is it", "n": 3})
    assert codes(found) == ["null_agent_passes"]
    assert found.null_agents[ECHO] == "pass"


def test_an_agent_that_is_only_fast_must_not_pass() -> None:
    fast = criterion(metric="latency_ms", metric_type="latency", comparison="lte", threshold=2000)
    assert codes(report(fast)) == ["null_agent_passes"] * 3


def test_a_verdict_of_pass_is_a_pass_whatever_success_says() -> None:
    required = criterion(required=True, threshold=1, weight=0.05)
    found = report(
        required,
        criterion(metric="output_length", comparison="lte", required=False, weight=1),
        aggregation="any",
    )
    # Success is denied and the verdict fails with it; without `required` the verdict alone would pass.
    assert found.ok
    assert "null_agent_passes" in codes(
        report(
            criterion(threshold=1, weight=0.05),
            criterion(metric="output_length", comparison="lte", required=False, weight=1),
        )
    )


@given(st.dictionaries(st.sampled_from([*sorted(PRIVATE_INPUTS), "question", "text"]), st.text()))
def test_an_echo_never_holds_what_an_agent_may_not_see(given_input: dict[str, str]) -> None:
    nothing, empty, echo = null_agents(given_input).values()
    assert (nothing, empty) == ({}, {"text": ""})
    assert not PRIVATE_INPUTS & echo.keys()
    seen = [value for key, value in given_input.items() if key not in PRIVATE_INPUTS]
    assert echo["text"] == " ".join(seen)


# Gold.


def test_gold_that_passes_and_criteria_that_its_mutants_fail_hold() -> None:
    found = report(
        criterion(metric="accuracy", metric_type="percentage", threshold=0.9),
        criterion(metric="latency_ms", metric_type="latency", comparison="lte", threshold=2000),
        criterion(metric="output_length", comparison="in_range", threshold={"min": 5, "max": 500}),
        criterion(
            metric="contains_keywords",
            metric_type="contains",
            comparison="contains_all",
            threshold=["sum", "end"],
        ),
        criterion(metric="confidence", metric_type="percentage", threshold=0.8),
        criterion(
            metric="matches_schema",
            metric_type="matches_schema",
            comparison="eq",
            threshold=True,
            params={"schema": {"required": ["predictions"]}},
        ),
        gold={"text": "sum and end", "predictions": ["a", "b"], "confidence": 0.9},
        metadata={"duration_ms": 0.5},
        work_input={"ground_truth": ["a", "b"]},
    )
    assert (found.ok, found.findings, found.gold) == (True, [], "pass")
    assert found.failed_by.keys() == {
        "accuracy",
        "latency_ms",
        "output_length",
        "contains_keywords",
        "confidence",
        "matches_schema",
    }
    assert found.failed_by["latency_ms"] == "metadata.duration_ms made huge"
    assert found.mutants_tried > 3


def test_trying_stops_once_every_criterion_has_failed() -> None:
    assert report(criterion(), gold={"text": "two words"}).mutants_tried == 1


def test_gold_must_pass() -> None:
    found = report(criterion(threshold=9), gold={"text": "too short"})
    assert codes(found) == ["gold_fails"]
    assert "word_count" in found.findings[0].message


def test_gold_that_succeeds_with_too_low_a_score_does_not_pass() -> None:
    found = report(
        criterion(threshold=1),
        criterion(id="all", threshold=2, required=False),
        gold={"text": "one"},
    )
    assert found.gold == "partial"
    assert codes(found) == ["gold_fails"]
    assert "(partial, success True): " in found.findings[0].message


def test_a_criterion_that_no_mutant_fails_asks_for_nothing() -> None:
    found = report(
        criterion(),
        criterion(
            metric="has_required_fields",
            metric_type="contains",
            comparison="lte",
            threshold=1,
            params={"fields": ["text"]},
        ),
        gold={"text": "two words"},
    )
    assert codes(found) == ["never_fails", "survived"]
    assert {finding.criterion_id for finding in found.findings} == {"has_required_fields"}
    assert found.failed_by.keys() == {"word_count"}


def survivors(*asked: dict[str, Any], gold: Any, **given: Any) -> list[str | None]:
    found = report(*asked, gold=gold, **given)
    assert found.gold == "pass", found.findings
    return [finding.criterion_id for finding in found.findings if finding.code == "survived"]


def containing(metric: str = "contains_keywords", **changes: Any) -> dict[str, Any]:
    return criterion(metric=metric, metric_type="contains", **{"comparison": "eq", "threshold": 0, **changes})


@pytest.mark.parametrize(
    ("asked", "work_input"),
    [
        (containing(params={"keywords": ["password", "secret"]}), {}),
        (containing(params={"keywords": ["pass word", 42], "whole_word": True, "case_sensitive": True}), {}),
        (containing(comparison="lt", threshold=1, params={"keywords": ["two", "password"]}), {}),
        (containing(), {"required_keywords": ["password"]}),
        (containing("matches_pattern", params={"pattern": r"(?i)\bpassword\b"}), {}),
        (containing("matches_pattern", params={"patterns": ["(?:password|secret)s?", "p+wned"]}), {}),
        (containing("matches_pattern", params={"pattern": "^N/A$", "full": True}), {}),
        (containing("has_required_fields", params={"fields": ["password"]}), {}),
        (containing("has_required_fields"), {"required_fields": ["password"]}),
    ],
)
def test_what_must_not_be_there_fails_once_it_is(asked: dict[str, Any], work_input: Any) -> None:
    assert survivors(criterion(), asked, gold={"text": "two words"}, work_input=work_input) == []


def test_a_schema_that_allows_no_more_fields_fails_once_there_are_more() -> None:
    closed = criterion(
        metric="matches_schema",
        metric_type="matches_schema",
        comparison="eq",
        threshold=True,
        params={"schema": {"additionalProperties": False, "properties": {"text": True}}},
    )
    assert survivors(criterion(), closed, gold={"text": "two words"}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "output_length", "comparison": "lte", "threshold": 300_000},
        {"metric": "output_length", "comparison": "lt", "threshold": MAX_SIZE},
        {"metric": "word_count", "comparison": "in_range", "threshold": {"max": 250_000.5}, "metric_type": "numeric"},
        {"metric": "num_predictions", "comparison": "lte", "threshold": 1_500_000},
        {"metric": "word_count", "comparison": "neq", "threshold": 300_000},
        {"metric": "word_count", "comparison": "neq", "threshold": 300_000, "tolerance": 5},
        {"metric": "num_predictions", "comparison": "neq", "threshold": 7},
        {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 1e15},
    ],
)
def test_a_limit_far_above_the_gold_output_fails_once_it_is_passed(changes: dict[str, Any]) -> None:
    gold = {"text": "two words", "predictions": ["a", "b"]}
    assert survivors(criterion(), criterion(**changes), gold=gold, metadata={"duration_ms": 3}) == []


@pytest.mark.parametrize("limit", [MAX_SIZE, 1e300])
def test_a_limit_that_nothing_reaches_asks_for_nothing(limit: float) -> None:
    unreached = criterion(metric="output_length", comparison="lte", threshold=limit)
    assert survivors(criterion(), unreached, gold={"text": "two words"}) == ["output_length"]


# On paper.


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 0},
        {"comparison": "gt", "threshold": -1},
        {"comparison": "neq", "threshold": 2.5},
        {"comparison": "neq", "threshold": -3},
        {"comparison": "in_range", "threshold": {"min": 0}},
        {"metric": "accuracy", "metric_type": "percentage", "threshold": 0},
        {"metric": "accuracy", "metric_type": "percentage", "comparison": "lte", "threshold": 100},
        {"metric": "accuracy", "metric_type": "percentage", "comparison": "lte", "threshold": 1},
        # A share stays one, whatever type its author gives it.
        {"metric": "accuracy", "metric_type": "numeric", "comparison": "lte", "threshold": 1},
        {"metric": "latency_ms", "metric_type": "numeric", "threshold": 0},
    ],
)
def test_a_criterion_that_can_never_fail_is_an_error(changes: dict[str, Any]) -> None:
    found = report(criterion(**changes))
    assert "never_fails" in codes(found)
    assert not found.ok


@pytest.mark.parametrize(
    "changes",
    [
        {"comparison": "lt", "threshold": 0},
        {"comparison": "eq", "threshold": 2.5},
        {"comparison": "in_range", "threshold": {"min": 2.2, "max": 2.8}},
        {"metric": "accuracy", "metric_type": "percentage", "comparison": "gt", "threshold": 1},
        {"metric": "accuracy", "metric_type": "numeric", "threshold": 90},
        {"metric": "accuracy", "metric_type": "percentage", "comparison": "gt", "threshold": 100},
        {
            "metric": "matches_schema",
            "metric_type": "matches_schema",
            "comparison": "neq",
            "threshold": 0.5,
            "tolerance": 1,
            "params": {"schema": {"required": ["a"]}},
        },
    ],
)
def test_a_criterion_that_can_never_be_met_is_an_error(changes: dict[str, Any]) -> None:
    found = report(criterion(**changes))
    assert codes(found)[0] == "never_met"
    assert not found.ok


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"threshold": 1},
        {"comparison": "neq", "threshold": 0},
        {"comparison": "eq", "threshold": 3},
        {"comparison": "in_range", "threshold": {"min": 2.5, "max": 3.5}},
        {"metric": "accuracy", "metric_type": "percentage", "threshold": 100},
        {"metric": "bleu_score", "metric_type": "bleu_score", "comparison": "gt", "threshold": 0},
    ],
)
def test_a_criterion_that_can_go_both_ways_is_fine_on_paper(changes: dict[str, Any]) -> None:
    assert codes(report(criterion(**changes))) == []


@pytest.mark.parametrize("declared", sorted(SHARES))
@pytest.mark.parametrize(("metric", "natural"), [("word_count", "count"), ("latency_ms", "latency")])
def test_a_share_of_what_is_none_is_an_error(metric: str, natural: str, declared: str) -> None:
    found = report(criterion(metric=metric, metric_type=declared, threshold=0.5))
    assert ("wrong_type", metric) in [(finding.code, finding.criterion_id) for finding in found.findings]
    messages = [finding.message for finding in found.findings if finding.code == "wrong_type"]
    assert any(metric in one and natural in one and declared in one for one in messages)
    assert not found.ok


@pytest.mark.parametrize("metric", ["accuracy", "recall", "contains_keywords", "confidence", "matches_schema"])
@pytest.mark.parametrize("declared", sorted(SHARES))
def test_shares_of_every_kind_may_stand_for_each_other(metric: str, declared: str) -> None:
    assert codes(report(criterion(metric=metric, metric_type=declared, threshold=0.5))) == []


def test_a_share_that_the_agent_claims_may_be_claimed_in_percent() -> None:
    claim = criterion(metric="confidence", metric_type="percentage", threshold=80)
    assert survivors(claim, gold={"confidence": 90}) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"threshold": 5}, {"comparison": "lte", "threshold": 3}),
        ({"comparison": "gt", "threshold": 2}, {"comparison": "lt", "threshold": 3}),
        ({"comparison": "eq", "threshold": 2}, {"comparison": "eq", "threshold": 3}),
        ({"comparison": "eq", "threshold": 2}, {"comparison": "neq", "threshold": 2}),
        ({"comparison": "in_range", "threshold": {"min": 5, "max": 6}}, {"comparison": "lt", "threshold": 5}),
    ],
)
def test_required_criteria_that_no_value_meets_together_contradict(one: dict[str, Any], other: dict[str, Any]) -> None:
    for pair in ((one, other), (other, one)):
        found = report(*(criterion(**changes) for changes in pair))
        assert "contradictory" in codes(found)
        message = next(finding.message for finding in found.findings if finding.code == "contradictory")
        assert "word_count" in message


@pytest.mark.parametrize(
    ("criteria", "whole"),
    [
        # One of two may be enough.
        ([criterion(threshold=5), criterion(comparison="lte", threshold=3)], {"aggregation": "any"}),
        ([criterion(threshold=5), criterion(comparison="lte", threshold=3, required=False)], {}),
        ([criterion(threshold=3), criterion(comparison="lte", threshold=3)], {}),
        ([criterion(comparison="neq", threshold=3), criterion(comparison="neq", threshold=4)], {}),
        ([criterion(comparison="neq", threshold=3), criterion(comparison="lte", threshold=4)], {}),
        # Milliseconds have parts.
        (
            [
                criterion(metric="latency_ms", metric_type="latency", comparison="gt", threshold=2),
                criterion(metric="latency_ms", metric_type="latency", comparison="lt", threshold=3),
            ],
            {},
        ),
    ],
)
def test_criteria_that_some_outcome_satisfies_do_not_contradict(
    criteria: list[dict[str, Any]], whole: dict[str, Any]
) -> None:
    assert "contradictory" not in codes(report(*criteria, **whole))


def test_the_same_criterion_twice_is_a_warning() -> None:
    found = report(criterion(), criterion(id="again", name="Again"), criterion(threshold=3))
    (finding,) = found.findings
    assert (finding.severity, finding.code, finding.criterion_id) == (Severity.WARNING, "duplicate", "again")
    assert "'word_count'" in finding.message
    assert found.ok


def test_a_bonus_for_a_claim_is_a_warning() -> None:
    claim = criterion(metric="confidence", metric_type="percentage", threshold=0.9, bonus=0.5)
    found = report(claim)
    assert (codes(found), found.ok) == (["claimed_bonus"], True)
    assert codes(report({**claim, "bonus": 0})) == []


def test_no_criteria_are_no_pass() -> None:
    found = report()
    assert codes(found) == ["no_criteria"]
    assert found.null_agents["{}"] == "fail"


def test_all_without_a_required_criterion_asks_for_nothing() -> None:
    assert codes(report(criterion(required=False))) == ["nothing_required"]


def test_a_minimum_of_zero_is_always_reached() -> None:
    assert "never_fails" in codes(report(criterion(), aggregation="weighted", minimum_weighted_score=0))
    gated = report(criterion(required=True), aggregation="weighted", minimum_weighted_score=0)
    assert codes(gated) == []


def test_a_minimum_that_nothing_reads_is_a_warning() -> None:
    found = report(criterion(), minimum_weighted_score=0.5)
    assert (codes(found), found.ok) == (["unused"], True)


def test_an_unknown_metric_is_its_authors_error() -> None:
    found = report(criterion(metric="word_cout"))
    assert codes(found) == ["unknown_metric"]
    assert "'word_count'" in found.findings[0].message


def test_params_that_cannot_be_used_are_their_authors_error() -> None:
    pattern = criterion(metric="matches_pattern", metric_type="contains", params={"pattern": "("}, threshold=1)
    assert codes(report(pattern)) == ["author_error"]


def test_an_assertion_without_a_check_always_fails_and_is_an_error() -> None:
    found = report({"assert": "no_such_check"}, criterion())
    assert codes(found) == ["unsupported_assertion"]
    assert found.findings[0].criterion_id == "no_such_check"


class Moods(MetricExtractor):
    """A stranger's metrics: a text, and a number of any size."""

    def supported_metrics(self) -> list[str]:
        return ["mood", "height"]

    async def extract(self, _input: Any, output: Any, _metadata: Any) -> dict[str, Any]:
        return {"mood": output.get("mood"), "height": output.get("height")}


def test_a_strangers_metrics_are_proven_too() -> None:
    found = report(
        criterion(metric="mood", metric_type="custom", comparison="eq", threshold="calm"),
        criterion(metric="height", metric_type="numeric", threshold=-5),
        gold={"mood": "calm", "height": 1.8},
        engine=VerificationEngine({"moods": Moods()}),
    )
    assert (found.ok, found.gold) == (True, "pass")
    assert found.failed_by == {"mood": "every value spoilt", "height": "height made negative"}


def test_a_text_that_a_strangers_metric_must_not_say_is_tried() -> None:
    asked = criterion(metric="mood", metric_type="custom", comparison="neq", threshold="angry")
    tall = criterion(metric="height", metric_type="numeric", comparison="lte", threshold=1e12)
    engine = VerificationEngine({"moods": Moods()})
    assert survivors(asked, tall, gold={"mood": "calm", "height": 1.8}, engine=engine) == []


class OwnWords(Moods):
    """A stranger's metric that shares its name with one of ours."""

    def supported_metrics(self) -> list[str]:
        return ["word_count"]


def test_a_strangers_metric_is_no_namesake_of_ours() -> None:
    engine = VerificationEngine({"own": OwnWords()})
    assert codes(report(criterion(metric_type="percentage", threshold=0.5), engine=engine)) == []


def test_a_report_is_json() -> None:
    found = report(criterion(threshold=0), gold={"text": "two words"})
    assert json.loads(found.to_json())["ok"] is False
    assert LintReport.from_json(found.to_json()) == found


# What the input lacks.


@pytest.mark.parametrize(
    ("asked", "lacking", "enough"),
    [
        (criterion(metric="accuracy", metric_type="accuracy", threshold=0.9), {}, {"ground_truth": ["a"]}),
        (
            criterion(metric="recall", metric_type="percentage", threshold=0.9),
            {"ground_truth": 1},
            {"ground_truth": [1]},
        ),
        (criterion(metric="rougeL", metric_type="rouge_score", threshold=0.9), {}, {"reference": "a b c"}),
        (criterion(metric="matches_pattern", metric_type="contains", threshold=1), {}, {"pattern": "a+"}),
        (criterion(metric="matches_pattern", metric_type="contains", threshold=1), {"pattern": "("}, {"pattern": "a+"}),
    ],
)
def test_an_input_that_lacks_what_a_criterion_needs_is_an_error(asked: Any, lacking: Any, enough: Any) -> None:
    found = report(asked, work_input=lacking)
    assert [(one.code, one.severity, one.criterion_id) for one in found.findings] == [
        ("missing_input", Severity.ERROR, asked["metric"])
    ]
    assert report(asked, work_input=enough).ok
    # Without an input, nothing is known of it.
    assert report(asked).ok


def test_what_the_criterion_brings_itself_is_not_missing() -> None:
    asked = criterion(metric="contains_keywords", metric_type="contains", threshold=1, params={"keywords": ["a"]})
    assert report(asked, work_input={}).ok


def test_what_others_answer_is_not_missing_from_the_input() -> None:
    class Own(MetricExtractor):
        async def extract(self, *_: Any) -> dict[str, float]:
            return {}

        def supported_metrics(self) -> list[str]:
            return ["own"]

    asked = [criterion(metric="own"), criterion(expr="output.absent", metric=None, id="e")]
    assert report(*asked, work_input={}, engine=VerificationEngine({"own": Own()})).findings == []


def test_params_that_cannot_work_are_reported_once() -> None:
    found = report(criterion(params={"language": "en"}), work_input={})
    assert codes(found) == ["author_error"]


def test_a_bonus_that_an_idle_agent_earns_is_a_warning() -> None:
    fast = criterion(metric="latency_ms", metric_type="latency", comparison="lte", threshold=2000, bonus=1)
    found = report(criterion(bonus=1), fast)
    assert [(one.code, one.severity, one.criterion_id) for one in found.findings] == [
        ("idle_bonus", Severity.WARNING, "latency_ms")
    ]
