"""The engine from the outside: criteria and work in, one result out, never an exception."""

import asyncio
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from meruit import (
    Cause,
    Checked,
    ContainsExtractor,
    CriterionResult,
    Fault,
    GovernanceResult,
    GovernanceStatus,
    LatencyExtractor,
    Measured,
    MetricExtractor,
    Missing,
    Provenance,
    ReasonCode,
    Skipped,
    Status,
    SuccessCriteria,
    TextQualityExtractor,
    Verdict,
    VerificationEngine,
    VerificationResult,
    Work,
    rejudge,
)
from meruit.errors import ExtractorConflict
from meruit.model.criterion import Assertion
from meruit.registry import Check, checks, metrics


def criteria(*parts: dict[str, Any], **whole: Any) -> SuccessCriteria:
    base = {"metric_type": "numeric", "comparison": "gte", "threshold": 0}
    filled = [part if "assert" in part else {**base, **part} for part in parts]
    return SuccessCriteria.model_validate({"criteria": filled, **whole})


def verify(
    asked: Any,
    output: Any = None,
    given: Any = None,
    metadata: Any = None,
    engine: VerificationEngine | None = None,
) -> VerificationResult:
    chosen = engine or VerificationEngine()
    result = chosen.verify_sync("contract", given or {}, output or {}, asked, metadata or {})
    awaited = asyncio.run(chosen.verify("contract", given or {}, output or {}, asked, metadata or {}))
    assert awaited.criterion_results == result.criterion_results
    return result


def only(result: VerificationResult) -> CriterionResult:
    (judged,) = result.criterion_results
    return judged


class Fixed(MetricExtractor):
    """Returns what it is told; counts how often it is asked."""

    def __init__(self, answer: Any, *names: str) -> None:
        self.answer = answer
        self.names = list(names) or ["mine"]
        self.calls = 0

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Any:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def supported_metrics(self) -> list[str]:
        return self.names


MINE = {"metric": "mine"}


def test_absent_latency_is_missing_and_never_fast() -> None:
    result = verify(
        criteria({"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000})
    )
    assert only(result).status is Status.INDETERMINATE
    assert only(result).cause is Cause.METRIC_MISSING
    assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)
    assert "duration_ms" in (only(result).error or "")


def test_bleu_is_computed_without_any_extra_import() -> None:
    asked = criteria({"metric": "bleu_score", "metric_type": "bleu_score", "threshold": 0.99})
    assert verify(asked, {"text": "a b c d e"}, {"reference": "a b c d e"}).success


@pytest.mark.parametrize("text", [None, 3, ["a"]])
def test_a_text_that_is_none_is_a_missing_metric_with_a_reason(text: Any) -> None:
    judged = only(verify(criteria({"metric": "word_count"}), {"text": text}))
    assert judged.cause is Cause.METRIC_MISSING
    assert judged.fault is Fault.AGENT


def test_unanswered_items_are_wrong_and_never_a_crash() -> None:
    truth = {"ground_truth": [{"label": "a"}] * 4}
    answers = {"predictions": [{"label": "a"}, {"label": "a"}, {}]}
    assert only(verify(criteria({"metric": "accuracy"}), answers, truth)).value == 0.5


def test_the_threshold_list_is_the_keyword_set_and_the_input_the_fallback() -> None:
    asked = {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all"}
    named = only(
        verify(
            criteria({**asked, "threshold": ["sun", "rain"]}),
            {"text": "The SUN"},
            {"required_keywords": ["sun"]},
        )
    )
    assert (named.met, named.value) == (False, 0.5)
    assert named.details == {"found": ["sun"], "missing": ["rain"]}
    fallback = verify(criteria({**asked, "threshold": True}), {"text": "sun"}, {"required_keywords": ["sun"]})
    assert fallback.success


def test_whole_words_may_be_asked_for() -> None:
    asked = {
        "metric": "contains_keywords",
        "metric_type": "contains",
        "comparison": "contains_all",
        "threshold": ["cat"],
    }
    assert verify(criteria(asked), {"text": "concatenate"}).success
    assert not verify(criteria({**asked, "params": {"whole_word": True}}), {"text": "concatenate"}).success


def test_two_criteria_may_ask_one_metric_different_things() -> None:
    asked = {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all"}
    result = verify(
        criteria({**asked, "threshold": ["a"]}, {**asked, "threshold": ["b"], "id": "second"}), {"text": "a"}
    )
    assert [judged.met for judged in result.criterion_results] == [True, False]
    assert result.metrics == {"contains_keywords": 1.0, "contains_keywords[second]": 0.0}


def test_a_null_field_is_not_present() -> None:
    asked = {
        "metric": "has_required_fields",
        "metric_type": "contains",
        "comparison": "contains_all",
        "threshold": ["a", "b"],
    }
    assert only(verify(criteria(asked), {"a": 1, "b": None})).value == 0.5
    assert verify(criteria({**asked, "params": {"null_ok": True}}), {"a": 1, "b": None}).success


def test_patterns_can_be_computed() -> None:
    asked = {"metric": "matches_pattern", "metric_type": "boolean", "comparison": "eq", "threshold": True}
    assert verify(criteria({**asked, "params": {"pattern": r"\d{4}"}}), {"text": "in 1974"}).success
    hostile = criteria({**asked, "params": {"pattern": "^(a+)+$"}})
    assert not verify(hostile, {"text": "a" * 50_000 + "!"}).success


@pytest.mark.parametrize(
    "part",
    [
        {"metric": "matches_schema", "params": {"schema": {"type": "no such type"}}},
        {"metric": "matches_schema", "params": {"schema": {"$ref": "http://127.0.0.1:9/x"}}},
        {"metric": "matches_pattern", "params": {"pattern": "("}},
        {"metric": "latency_ms", "params": {"unit": "s"}},
        {"metric": "contains_keywords", "params": {"whole_wrd": True}},
    ],
)
def test_what_cannot_be_computed_as_written_is_the_authors_fault(part: dict[str, Any]) -> None:
    result = verify(criteria(part), {"text": "a"}, metadata={"duration_ms": 1})
    assert (only(result).cause, only(result).fault) == (Cause.AUTHOR_ERROR, Fault.AUTHOR)
    assert result.verdict is Verdict.INCONCLUSIVE


def test_claims_and_measurements_are_told_apart() -> None:
    result = verify(
        criteria({"metric": "confidence"}, {"metric": "latency_ms"}, {"metric": "word_count"}),
        {"text": "a", "confidence": 0.9},
        metadata={"duration_ms": 5},
    )
    assert [judged.provenance for judged in result.criterion_results] == [
        Provenance.CLAIMED,
        Provenance.OBSERVED,
        Provenance.COMPUTED,
    ]


def test_an_impossible_claim_is_the_agents_fault() -> None:
    judged = only(
        verify(
            criteria({"metric": "confidence", "metric_type": "percentage", "threshold": 0.8}),
            {"confidence": 95},
        )
    )
    assert (judged.cause, judged.fault) == (Cause.OUT_OF_DOMAIN, Fault.AGENT)


def test_two_extractors_of_one_metric_are_refused_at_the_start() -> None:
    with pytest.raises(ExtractorConflict, match="'latency_ms'"):
        VerificationEngine({"ours": LatencyExtractor(), "theirs": Fixed({}, "latency_ms")})


def test_an_extractor_that_fails_costs_its_own_criteria_only() -> None:
    engine = VerificationEngine({"bad": Fixed(RuntimeError("no \ud800 luck"), "mine"), "latency": LatencyExtractor()})
    result = verify(criteria(MINE, {"metric": "latency_ms"}), metadata={"duration_ms": 5}, engine=engine)
    assert [judged.status for judged in result.criterion_results] == [Status.INDETERMINATE, Status.MET]
    assert result.criterion_results[0].cause is Cause.EXTRACTOR_ERROR
    assert result.to_json()


@pytest.mark.parametrize("answer", [None, [], "text", {}, {"other": 1}, {"mine": None}])
def test_an_extractor_that_answers_nothing_leaves_its_metric_missing(answer: Any) -> None:
    judged = only(verify(criteria(MINE), engine=VerificationEngine({"x": Fixed(answer)})))
    assert judged.status is Status.INDETERMINATE
    assert judged.fault is Fault.SYSTEM


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (np.float32(0.5), 0.5),
        (np.array(2.5), 2.5),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (True, True),
        (("a", "b"), ["a", "b"]),
    ],
)
def test_numbers_of_other_libraries_are_taken_as_numbers(value: Any, kept: Any) -> None:
    result = verify(
        criteria({**MINE, "metric_type": "custom"}), engine=VerificationEngine({"x": Fixed({"mine": value})})
    )
    judged = only(result)
    if isinstance(kept, list):
        assert judged.cause is Cause.WRONG_TYPE
    else:
        assert (judged.value, type(judged.value)) == (kept, type(kept))


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "\ud800",
        math.nan,
        math.inf,
        Decimal("NaN"),
        object(),
        {"a": 1},
        b"1",
        10**400,
        [1] * 20_000,
        [object()],
        1j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_the_wrong_kind_costs_its_own_criterion_only(value: Any) -> None:
    engine = VerificationEngine({"x": Fixed({"mine": value}), "latency": LatencyExtractor()})
    result = verify(criteria(MINE, {"metric": "latency_ms"}), metadata={"duration_ms": 5}, engine=engine)
    assert [judged.status for judged in result.criterion_results] == [Status.INDETERMINATE, Status.MET]
    assert result.to_json()


def test_an_unknown_metric_names_the_nearest() -> None:
    judged = only(verify(criteria({"metric": "acuracy"})))
    assert (judged.cause, judged.fault) == (Cause.UNKNOWN_METRIC, Fault.AUTHOR)
    assert "'accuracy'" in (judged.error or "")


def test_an_engine_with_extractors_computes_exactly_theirs() -> None:
    engine = VerificationEngine({"text": TextQualityExtractor(rouge_types=["rouge1"]), "content": ContainsExtractor()})
    assert "rouge1" in engine.catalogue.names()
    assert "rouge2" not in engine.catalogue.names()
    assert "latency_ms" not in engine.catalogue.names()
    assert only(verify(criteria({"metric": "latency_ms"}), engine=engine)).cause is Cause.UNKNOWN_METRIC


def test_an_extractor_of_the_users_takes_no_params() -> None:
    judged = only(verify(criteria({**MINE, "params": {"a": 1}}), engine=VerificationEngine({"x": Fixed({"mine": 1})})))
    assert judged.cause is Cause.AUTHOR_ERROR


def test_equal_work_is_not_measured_twice_until_the_time_is_up() -> None:
    extractor = Fixed({"mine": 1})
    now = [0.0]
    engine = VerificationEngine({"x": extractor}, timer=lambda: now[0])
    for _ in range(3):
        engine.verify_sync("c", {}, {"a": 1}, criteria(MINE), {})
    assert extractor.calls == 1
    engine.verify_sync("c", {}, {"a": 2}, criteria(MINE), {})
    assert extractor.calls == 2
    now[0] = 300.0
    engine.verify_sync("c", {}, {"a": 1}, criteria(MINE), {})
    assert extractor.calls == 3


def test_a_failure_is_not_kept() -> None:
    extractor = Fixed(RuntimeError())
    engine = VerificationEngine({"x": extractor})
    for _ in range(2):
        engine.verify_sync("c", {}, {}, criteria(MINE), {})
    assert extractor.calls == 2


def test_without_a_time_to_live_nothing_is_kept() -> None:
    extractor = Fixed({"mine": 1})
    engine = VerificationEngine({"x": extractor}, cache_ttl_s=0)
    for _ in range(2):
        engine.verify_sync("c", {}, {}, criteria(MINE), {})
    assert extractor.calls == 2


def test_work_that_is_not_json_is_judged_without_a_digest() -> None:
    result = verify(
        criteria({"metric": "word_count"}, {"metric": "rouge1"}),
        {"text": "a", "odd": object()},
        {"reference": "a"},
    )
    assert result.success
    assert result.output_digest is None
    assert result.input_digest is not None


def test_a_result_says_what_it_rests_on() -> None:
    result = verify(criteria({"metric": "word_count"}), {"text": "a b"})
    again = verify(criteria({"metric": "word_count"}), {"text": "a b"})
    assert (result.criteria_digest, result.output_digest) == (again.criteria_digest, again.output_digest)
    assert result.criteria_digest != verify(criteria({"metric": "word_count", "threshold": 1})).criteria_digest
    assert result.versions == {"engine": "1", "word_count": "1"}
    assert result.verified_at.tzinfo is not None
    assert datetime.now(UTC) - result.verified_at < timedelta(minutes=5)


def test_the_same_number_written_otherwise_gives_the_same_digest() -> None:
    one = verify(criteria({"metric": "word_count", "threshold": 2000}))
    assert one.criteria_digest == verify(criteria({"metric": "word_count", "threshold": 2000.0})).criteria_digest
    assert one.criteria_digest == verify(criteria({"metric": "word_count", "threshold": "2.0e3"})).criteria_digest


def test_without_governance_the_result_says_that_nobody_was_asked() -> None:
    result = verify(criteria({"metric": "word_count"}), {"text": "a"})
    assert (result.governance, result.governance_flags) == (GovernanceStatus.NOT_CHECKED, [])


class Governance:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    async def validate_outcome(self, **asked: Any) -> Any:
        self.asked = asked
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_governance_is_asked_with_the_agent_the_work_and_both_kinds_of_metrics() -> None:
    governance = Governance(GovernanceResult(valid=True, flags=["odd"]))
    asked = criteria({"metric": "confidence"}, {"metric": "word_count"})
    result = verify(
        asked,
        {"text": "a", "confidence": 0.9},
        metadata={"agent_id": "a1"},
        engine=VerificationEngine(governance=governance),
    )
    assert (result.success, result.governance, result.governance_flags) == (
        True,
        GovernanceStatus.CLEAR,
        ["odd"],
    )
    assert governance.asked["contract_id"] == "contract"
    assert governance.asked["claimed_metrics"] == {"confidence": 0.9, "word_count": 1}
    context = governance.asked["execution_context"]
    assert (context["agent_id"], context["work_id"]) == ("a1", None)
    assert (context["claimed_metrics"], context["measured_metrics"]) == (
        {"confidence": 0.9},
        {"word_count": 1},
    )


def test_an_implausible_outcome_is_no_success_and_keeps_its_criteria() -> None:
    engine = VerificationEngine(governance=Governance(GovernanceResult(valid=False, flags=["clock"])))
    result = verify(criteria({"metric": "word_count", "bonus": 1}), {"text": "a"}, engine=engine)
    assert (result.success, result.verdict, result.bonus) == (False, Verdict.PASS, 1.0)
    assert (result.governance, result.governance_flags) == (GovernanceStatus.INVALID, ["clock"])
    assert result.reasons[-1].code is ReasonCode.GOVERNANCE_INVALID


@pytest.mark.parametrize("answer", [ConnectionError("down"), None, object()])
def test_governance_that_cannot_be_asked_fails_closed(answer: Any) -> None:
    engine = VerificationEngine(governance=Governance(answer))
    result = verify(criteria({"metric": "word_count"}), {"text": "a"}, engine=engine)
    assert (result.success, result.governance) == (False, GovernanceStatus.REVIEW)
    assert result.reasons[-1].code is ReasonCode.GOVERNANCE_UNAVAILABLE


@pytest.mark.parametrize(
    ("asked", "output", "code"),
    [
        (criteria({"metric": "word_count"}), "text", ReasonCode.BAD_INPUT),
        (criteria({"metric": "word_count"}), [1], ReasonCode.BAD_INPUT),
        ({"criteria": [{"metric": "x"}]}, {}, ReasonCode.BAD_INPUT),
        ("criteria", {}, ReasonCode.BAD_INPUT),
        (None, {}, ReasonCode.BAD_INPUT),
    ],
)
def test_what_cannot_be_judged_at_all_is_an_error_result_and_no_exception(
    asked: Any, output: Any, code: ReasonCode
) -> None:
    result = verify(asked, output)
    assert (result.verdict, result.success, result.criterion_results) == (Verdict.ERROR, False, [])
    assert result.reasons[0].code is code
    assert result.to_json()


def test_more_criteria_than_allowed_are_an_error_result() -> None:
    engine = VerificationEngine(max_criteria_per_task=10)
    asked = criteria(*[{"metric": "word_count"}] * 11)
    result = verify(asked, {"text": "a"}, engine=engine)
    assert result.reasons[0].code is ReasonCode.TOO_MANY_CRITERIA
    assert "max_criteria_per_task" in result.reasons[0].message


def test_a_thousand_criteria_are_judged_where_they_are_allowed() -> None:
    result = verify(criteria(*[{"metric": "word_count"}] * 1_000), {"text": "a"})
    assert result.success
    assert len({judged.criterion_id for judged in result.criterion_results}) == 1_000


def test_a_clock_that_fails_is_an_error_of_ours_not_of_the_agent() -> None:
    calls = iter([datetime(2026, 1, 1, tzinfo=UTC)] * 2)
    state = {"first": True}

    def clock() -> datetime:
        if state.pop("first", False):
            raise OSError("no clock")
        return next(calls)

    result = VerificationEngine(clock=clock).verify_sync("c", {}, {"text": "a"}, criteria({"metric": "word_count"}))
    assert (result.verdict, result.reasons[0].code) == (Verdict.ERROR, ReasonCode.INTERNAL)


def test_compiled_criteria_can_be_kept_and_reused() -> None:
    engine = VerificationEngine()
    prepared = engine.compile(criteria({"metric": "word_count", "threshold": 2}))
    assert not engine.verify_sync("c", {}, {"text": "a"}, prepared).success
    result = engine.verify_sync("c", {}, {"text": "a b"}, prepared)
    assert result.success
    assert rejudge(prepared.plan, result).to_json() == result.to_json()


def test_an_engine_remembers_criteria_it_has_compiled_and_forgets_the_oldest() -> None:
    engine = VerificationEngine()
    sets = [criteria({"metric": "word_count", "threshold": number}) for number in range(300)]
    for asked in [*sets, *sets[:3]]:
        engine.verify_sync("c", {}, {"text": "a"}, asked)
    assert len(engine._compiled) == 256


def test_the_synchronous_twin_works_inside_a_running_loop() -> None:
    engine = VerificationEngine({"x": Fixed({"mine": 1})})

    async def inside() -> VerificationResult:
        return engine.verify_sync("c", {}, {}, criteria(MINE))

    assert asyncio.run(inside()).success


def test_cancelling_a_verification_cancels_it() -> None:
    class Slow(Fixed):
        async def extract(self, *_: Any) -> Any:
            await asyncio.sleep(30)

    async def run() -> None:
        task = asyncio.create_task(VerificationEngine({"x": Slow(None)}).verify("c", {}, {}, criteria(MINE)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_an_unknown_assertion_fails_on_its_authors_account_and_the_others_go_on() -> None:
    result = verify(criteria({"metric": "word_count"}, {"assert": "no-such-check", "axis": "safety"}), {"text": "a"})
    unknown = result.criterion_results[1]
    assert (unknown.status, unknown.score, unknown.fault) == (Status.NOT_MET, 0.0, Fault.AUTHOR)
    assert unknown.details is not None
    assert unknown.details["unsupported_assertion"] == "no-such-check"
    assert result.criterion_results[0].met
    assert (result.verdict, result.axes["safety"].score) == (Verdict.PARTIAL, 0.0)


@pytest.fixture
def check_named(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(answer: Any) -> None:
        def run(assertion: Assertion, work: Work) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        checks.names()
        monkeypatch.setitem(
            checks._found, "mine", Check("mine", "A check of this test.", lambda asked: lambda work: run(asked, work))
        )

    return put


def test_an_installed_check_scores_through_the_same_path(check_named: Any) -> None:
    check_named(Checked("2/3", {"fieldResults": []}))
    result = verify(criteria({"assert": "mine"}))
    assert (only(result).exact, result.verdict) == ("2/3", Verdict.PARTIAL)


@pytest.mark.parametrize(
    "answer", [RuntimeError("source down"), 0.5, None, Missing("down", Cause.CHECK_ERROR, Fault.SYSTEM)]
)
def test_a_check_that_fails_is_indeterminate_and_never_the_agents_fault(answer: Any, check_named: Any) -> None:
    check_named(answer)
    result = verify(criteria({"assert": "mine"}))
    assert (only(result).status, only(result).fault) == (Status.INDETERMINATE, Fault.SYSTEM)
    assert result.verdict is Verdict.INCONCLUSIVE


def test_a_check_may_say_that_it_does_not_apply(check_named: Any) -> None:
    check_named(Skipped("potassium is normal"))
    result = verify(criteria({"assert": "mine"}, {"metric": "word_count"}), {"text": "a"})
    assert result.criterion_results[0].status is Status.EXCLUDED
    assert result.success


def test_ten_megabytes_of_output_are_judged() -> None:
    text = "lorem ipsum dolor " * 600_000
    asked = criteria(
        {"metric": "word_count"},
        {
            "metric": "contains_keywords",
            "metric_type": "contains",
            "comparison": "contains_any",
            "threshold": ["amet"],
        },
        {"metric": "matches_pattern", "params": {"pattern": "(a+)+$"}},
        {"metric": "rougeL"},
    )
    result = verify(asked, {"text": text}, {"reference": "lorem ipsum"})
    assert result.criterion_results[0].value == 1_800_000
    assert len(result.to_json()) < 20_000


def test_deeply_nested_and_cyclic_work_is_judged_or_refused_without_a_crash() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    cyclic: dict[str, Any] = {"text": "a"}
    cyclic["self"] = cyclic
    schema = {"metric": "matches_schema", "params": {"schema": {"type": "object"}}}
    for output in ({"text": "a", "deep": deep}, cyclic):
        result = verify(criteria({"metric": "word_count"}, schema), output)
        assert result.criterion_results[0].met
        assert result.criterion_results[1].status is Status.INDETERMINATE


def test_a_contract_id_of_any_kind_is_kept_as_text() -> None:
    result = VerificationEngine().verify_sync(7, {}, {"text": "a"}, "nothing")  # type: ignore[arg-type]
    assert result.contract_id == "7"


@pytest.mark.parametrize("contract", ["\ud800", 5, None, "Ünïcode"])
def test_every_result_can_be_written_and_read(contract: Any) -> None:
    result = VerificationEngine().verify_sync(contract, {}, {"text": "a"}, criteria({"metric": "word_count"}))
    assert VerificationResult.from_json(result.to_json()) == result


def test_half_characters_in_the_input_are_spelled_out_in_the_details() -> None:
    asked = {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all", "threshold": True}
    result = verify(criteria(asked), {"text": "a"}, {"required_keywords": ["\ud800", "a"]})
    assert VerificationResult.from_json(result.to_json()) == result
    assert only(result).details == {"found": ["a"], "missing": ["\\ud800"]}


def test_flags_of_governance_are_spelled_out() -> None:
    engine = VerificationEngine(governance=Governance(GovernanceResult(valid=True, flags=["\ud800"])))
    assert verify(criteria({"metric": "word_count"}), {"text": "a"}, engine=engine).governance_flags == ["\\ud800"]


@pytest.mark.parametrize("leaving", [SystemExit(0), asyncio.CancelledError(), GeneratorExit()])
def test_an_extractor_that_leaves_costs_its_own_criterion(leaving: BaseException) -> None:
    class Leaver(Fixed):
        async def extract(self, *_: Any) -> Any:
            raise leaving

    result = verify(criteria(MINE), engine=VerificationEngine({"x": Leaver(None)}))
    assert only(result).cause is Cause.EXTRACTOR_ERROR


def test_an_interrupt_reaches_the_caller() -> None:
    class Interrupted(Fixed):
        async def extract(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        VerificationEngine({"x": Interrupted(None)}).verify_sync("c", {}, {}, criteria(MINE))


def test_governance_that_leaves_fails_closed() -> None:
    class Leaver(Governance):
        async def validate_outcome(self, **asked: Any) -> Any:
            raise SystemExit(0)

    engine = VerificationEngine(governance=Leaver(None))
    assert (
        verify(criteria({"metric": "word_count"}), {"text": "a"}, engine=engine).governance is GovernanceStatus.REVIEW
    )


@pytest.mark.parametrize("value", [["\ud800", "a"], [10**5000], [1.5]])
def test_a_list_that_cannot_be_looked_into_costs_one_criterion(value: Any) -> None:
    asked = {"metric": "confidence", "metric_type": "contains", "comparison": "contains_any", "threshold": ["a"]}
    result = verify(criteria(asked, {"metric": "word_count"}), {"confidence": value, "text": "a"})
    assert [judged.status for judged in result.criterion_results] == [Status.INDETERMINATE, Status.MET]
    assert result.to_json()


@pytest.mark.parametrize("details", [{"a": "\ud800", "b": ["\udfff", 1]}, {"a": object()}])
def test_details_that_cannot_be_written_down_are_not_kept_as_they_are(details: Any, check_named: Any) -> None:
    check_named(Checked("1", details))
    assert verify(criteria({"assert": "mine"})).to_json()


def test_ids_and_validation_stay_linear() -> None:
    twins = SuccessCriteria.model_validate({"criteria": [{"assert": "same"}] * 20_000})
    assert len(set(twins.ids)) == 20_000
    with pytest.raises(ValueError, match="id"):
        SuccessCriteria.model_validate({"criteria": [{"assert": "n", "id": f"x{n // 2}"} for n in range(20_000)]})


@pytest.mark.parametrize(
    ("finding", "cause"),
    [
        (RuntimeError("broken"), Cause.EXTRACTOR_ERROR),
        (Measured({"a": 1}), Cause.WRONG_TYPE),  # type: ignore[arg-type]
        (Measured(0.5, {"a": object()}), None),
    ],
)
def test_a_metric_of_ours_that_misbehaves_costs_its_own_criterion_only(
    finding: Any, cause: Cause | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_work: Work) -> Any:
        if isinstance(finding, Exception):
            raise finding
        return finding

    metric = msgspec.structs.replace(metrics.get("word_count"), prepare=lambda _ask: measure)
    monkeypatch.setitem(metrics._found, "word_count", metric)
    result = verify(criteria({"metric": "word_count"}, {"metric": "output_length"}), {"text": "a"})
    assert result.criterion_results[0].cause is cause
    assert result.criterion_results[1].met
    assert result.to_json()
