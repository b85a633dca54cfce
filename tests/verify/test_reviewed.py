"""Bugs that a first reader found, each once and for all."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from meruit import (
    Cause,
    Checked,
    Fault,
    GovernanceResult,
    GovernanceStatus,
    LatencyExtractor,
    Measured,
    MetricExtractor,
    Missing,
    ReasonCode,
    Status,
    SuccessCriteria,
    VerificationEngine,
    VerificationResult,
    rejudge,
)
from meruit.errors import BatchUnsupported, MeruitError
from meruit.judge.batch import judge_columns
from meruit.model.canonical import digest, payload_digest
from meruit.registry import Check, checks, metrics


def criterion(metric: str, kind: str, comparison: str, threshold: Any, **keys: Any) -> dict[str, Any]:
    return {"metric": metric, "metric_type": kind, "comparison": comparison, "threshold": threshold, **keys}


def verify(*asked: dict[str, Any], output: Any = None, engine: VerificationEngine | None = None) -> VerificationResult:
    return (engine or VerificationEngine()).verify_sync("c", {}, output or {}, {"criteria": list(asked)}, {})


def statuses(result: VerificationResult) -> list[Status]:
    return [judged.status for judged in result.criterion_results]


class Answers(MetricExtractor):
    """Says what it is told about the metrics it is told."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
        self.calls += 1
        return self.answer

    def supported_metrics(self) -> list[str]:
        return list(self.answer) or ["mine"]


def test_engines_built_at_once_in_many_threads_know_every_metric() -> None:
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from meruit.verify.engine import VerificationEngine\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = list(pool.map(lambda _: len(VerificationEngine().catalogue.names()), range(8)))\n"
        "assert len(set(found)) == 1 and found[0] > 10, found\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("one", "other"), [(1, "1"), (0.5, "0.5"), (1, True), (10**30, str(10**30)), (0.5, {"$decimal": "0.5"})]
)
def test_a_number_and_its_text_have_different_digests(one: Any, other: Any) -> None:
    assert digest({"a": one}) != digest({"a": other})


def test_schemas_that_differ_only_in_type_are_asked_apart() -> None:
    asked = [
        criterion(
            "matches_schema", "matches_schema", "eq", True, params={"schema": {"properties": {"id": {"const": value}}}}
        )
        for value in (1, "1")
    ]
    assert statuses(verify(*asked, output={"id": 1})) == [Status.MET, Status.NOT_MET]


def test_words_are_not_looked_for_by_a_metric_that_cannot() -> None:
    result = verify(criterion("word_count", "count", "contains_all", ["apple", "pear"]), output={"text": "x"})
    assert result.criterion_results[0].cause is Cause.AUTHOR_ERROR
    assert not result.success


def test_a_share_that_is_half_found_is_not_all_found() -> None:
    patterns = {"patterns": ["a", "b"]}
    for kind in ("boolean", "contains"):
        result = verify(
            criterion("matches_pattern", kind, "eq", True, params=patterns, penalty=1), output={"text": "a"}
        )
        assert (statuses(result), result.penalty) == ([Status.NOT_MET], 1.0)


@pytest.mark.parametrize("word", [1.10, True, Decimal("1.10")])
def test_a_keyword_that_has_lost_its_spelling_is_refused(word: Any) -> None:
    with pytest.raises(ValueError, match="quote it"):
        SuccessCriteria.model_validate(
            {"criteria": [criterion("contains_keywords", "contains", "contains_all", [word])]}
        )


def test_a_criterion_that_cannot_be_asked_takes_nothing_from_the_next() -> None:
    engine = VerificationEngine({"x": Answers(pol=1)})
    asked = criterion("pol", "numeric", "gte", 1)
    result = verify({**asked, "params": {"a": 1}}, asked, engine=engine)
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_columns_refuse_the_integers_that_single_values_refuse() -> None:
    plan = VerificationEngine().compile({"criteria": [criterion("word_count", "numeric", "gte", 1)]}).plan
    for column in (np.array([2**53 + 1, 2**53]), [2**53 + 1, 2**53], np.array([2**53 + 1, 2**53], dtype=object)):
        assert judge_columns(plan, {"word_count": column}).states.tolist() == [[2, 1]]
    assert judge_columns(plan, {"word_count": [10**400, 1]}).states.tolist() == [[2, 1]]
    with pytest.raises(BatchUnsupported):
        judge_columns(plan, {"word_count": ["1"]})


def test_a_claim_in_percent_is_held_against_a_threshold_in_percent() -> None:
    asked = criterion("confidence", "percentage", "gte", 80)
    assert statuses(verify(asked, output={"confidence": 88})) == [Status.MET]
    assert statuses(verify(asked, output={"confidence": 70})) == [Status.NOT_MET]
    assert statuses(verify(criterion("confidence", "percentage", "gte", 0.8), output={"confidence": 88})) == [
        Status.INDETERMINATE
    ]


@pytest.mark.parametrize(
    "odd", [Fraction(10**400), Decimal("sNaN"), type("Odd", (), {"ndim": 0, "item": lambda _: 1 / 0})()]
)
def test_one_odd_value_costs_one_criterion(odd: Any) -> None:
    engine = VerificationEngine({"x": Answers(odd=odd, fine=1)})
    result = verify(criterion("odd", "numeric", "gte", 0), criterion("fine", "numeric", "gte", 0), engine=engine)
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_what_was_measured_is_what_was_digested() -> None:
    class Meddler(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            task_output["text"] = "changed by the extractor"
            return self.answer

    from meruit import TextQualityExtractor

    engine = VerificationEngine({"x": Meddler(mine=1), "text": TextQualityExtractor()})
    output = {"text": "one"}
    result = verify(
        criterion("mine", "numeric", "gte", 0), criterion("word_count", "count", "gte", 0), output=output, engine=engine
    )
    assert result.metrics["word_count"] == 1
    assert result.output_digest == payload_digest({"text": "one"})


def test_changing_a_result_changes_no_other() -> None:
    engine = VerificationEngine()
    prepared = engine.compile({"criteria": [criterion("word_count", "count", "in_range", [1, 2])]})
    first = engine.verify_sync("c", {}, {"text": "a"}, prepared, {})
    first.criterion_results[0].threshold["min"] = 999
    second = engine.verify_sync("c", {}, {"text": "a"}, prepared, {})
    assert second.criterion_results[0].threshold == {"min": 1, "max": 2}


def test_changing_criteria_after_they_were_compiled_changes_nothing() -> None:
    words = ["a"]
    prepared = VerificationEngine().compile(
        {"criteria": [criterion("contains_keywords", "contains", "contains_all", words)]}
    )
    words.append("b")
    assert prepared.plan.rules[0].criterion.threshold == ["a"]


def test_nan_and_null_are_not_the_same_work() -> None:
    assert payload_digest({"a": None}) is not None
    assert payload_digest({"a": float("nan")}) is None
    assert payload_digest({"a": [{"b": (float("nan"),)}], "c": None}) is None


def test_large_integers_are_json_too() -> None:
    assert payload_digest({"a": 10**30}) is not None
    assert payload_digest({"a": 10**30}) != payload_digest({"a": 10**30 + 1})


def test_an_answer_that_lacks_what_was_asked_is_not_kept() -> None:
    extractor = Answers()
    engine = VerificationEngine({"x": extractor})
    for _ in range(2):
        verify(criterion("mine", "numeric", "gte", 0), engine=engine)
    assert extractor.calls == 2


class Says:
    def __init__(self, valid: Any, flags: Any) -> None:
        self.valid, self.flags = valid, flags


class Governance:
    def __init__(self, answer: Any, wait_s: float = 0) -> None:
        self.answer, self.wait_s = answer, wait_s

    async def validate_outcome(self, *, contract_id: str, claimed_metrics: Any, execution_context: Any) -> Any:
        claimed_metrics.clear()
        await asyncio.sleep(self.wait_s)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


WORDS = criterion("word_count", "count", "gte", 1)


@pytest.mark.parametrize(
    "answer", [Says("false", []), Says(1, []), Says(None, []), asyncio.CancelledError(), Says(True, 7)]
)
def test_governance_that_answers_no_clear_yes_or_no_means_review(answer: Any) -> None:
    result = verify(WORDS, output={"text": "a"}, engine=VerificationEngine(governance=Governance(answer)))
    assert (result.success, result.governance) == (False, GovernanceStatus.REVIEW)


def test_one_flag_is_one_flag_and_metrics_stay_ours() -> None:
    engine = VerificationEngine(governance=Governance(Says(False, "fraud")))
    result = verify(WORDS, output={"text": "a"}, engine=engine)
    assert (result.governance_flags, result.metrics) == (["fraud"], {"word_count": 1})


def test_nobody_is_waited_for_forever() -> None:
    class Slow(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            await asyncio.sleep(60)

    engine = VerificationEngine({"x": Slow(mine=1)}, Governance(GovernanceResult(valid=True), 60), patience_s=0.05)
    result = verify(criterion("mine", "numeric", "gte", 0), engine=engine)
    assert "0.05 s" in (result.criterion_results[0].error or "")
    assert result.governance is GovernanceStatus.REVIEW


def test_a_version_may_be_a_number() -> None:
    extractor = Answers(mine=1)
    extractor.version = 2  # type: ignore[assignment]
    result = verify(criterion("mine", "numeric", "gte", 0), engine=VerificationEngine({"x": extractor}))
    assert VerificationResult.from_json(result.to_json()).versions["mine"] == "2"


def test_criteria_compiled_by_another_engine_are_refused_clearly() -> None:
    asked = {"criteria": [criterion("mine", "numeric", "gte", 0)]}
    foreign = VerificationEngine({"x": Answers(mine=1)}).compile(asked)
    result = VerificationEngine().verify_sync("c", {}, {}, foreign, {})
    assert result.reasons[0].code is ReasonCode.BAD_INPUT
    assert "another engine" in result.reasons[0].message


def test_a_result_that_judged_nothing_cannot_be_judged_again() -> None:
    engine = VerificationEngine()
    nothing = engine.verify_sync("c", {}, "text", {"criteria": [WORDS]}, {})  # type: ignore[arg-type]
    with pytest.raises(MeruitError, match="judged by other criteria"):
        rejudge(engine.compile({"criteria": [WORDS]}).plan, nothing)


@pytest.mark.parametrize("text", ["NO", "yes", 0, 1])
def test_required_is_true_or_false_and_nothing_else(text: Any) -> None:
    with pytest.raises(ValueError, match="required"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "required": text}]})


def test_amounts_beyond_exact_millionths_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8589934592"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "bonus": "9007199254740993.000001"}]})


def test_the_largest_number_may_be_written() -> None:
    made = SuccessCriteria.model_validate({"criteria": [{**WORDS, "metric_type": "numeric", "threshold": 1e300}]})
    assert made.criteria[0].threshold == 1e300


def test_a_python_caller_hears_what_is_wrong_in_plain_words() -> None:
    result = VerificationEngine().verify_sync("c", {}, {}, {"criteria": [{**WORDS, "comparison": "gtee"}]}, {})
    assert result.reasons[0].message.startswith("criteria[0].comparison: expected one of 'gte'")
    assert "(did you mean 'gte'?)" in result.reasons[0].message


@pytest.mark.parametrize("first", [0, 1])
def test_a_refused_question_takes_no_other_down(first: int) -> None:
    asked = [criterion("word_count", "count", "contains_all", ["x"]), WORDS]
    result = verify(asked[first], asked[1 - first], output={"text": "a b"})
    assert {judged.comparison: judged.status for judged in result.criterion_results} == {
        "contains_all": Status.INDETERMINATE,
        "gte": Status.MET,
    }


def test_an_extractor_that_fails_before_it_can_be_awaited_costs_its_own_criterion() -> None:
    class Hasty(Answers):
        def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            raise RuntimeError("too soon")

    engine = VerificationEngine({"x": Hasty(mine=1), "y": Answers(fine=1)})
    result = verify(criterion("mine", "numeric", "gte", 0), criterion("fine", "numeric", "gte", 0), engine=engine)
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]
    assert "too soon" in (result.criterion_results[0].error or "")


def test_an_extractor_that_answers_at_once_is_welcome() -> None:
    class Plain(Answers):
        def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            return self.answer

    engine = VerificationEngine({"x": Plain(mine=1)})
    assert verify(criterion("mine", "numeric", "gte", 0), engine=engine).success


def test_a_strangers_own_timeout_is_told_as_its_own() -> None:
    class Late(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            raise TimeoutError("the model's endpoint")

    result = verify(criterion("mine", "numeric", "gte", 0), engine=VerificationEngine({"x": Late(mine=1)}))
    assert "the model's endpoint" in (result.criterion_results[0].error or "")


def test_what_an_extractor_does_with_its_answer_later_changes_nothing() -> None:
    extractor = Answers(mine=1)
    engine = VerificationEngine({"x": extractor})
    asked = criterion("mine", "numeric", "gte", 1)
    assert verify(asked, engine=engine).success
    extractor.answer["mine"] = 0
    assert verify(asked, engine=engine).success
    assert extractor.calls == 1


def test_judging_again_answers_only_the_question_that_was_asked() -> None:
    engine = VerificationEngine()
    one, other = (
        {"criteria": [criterion("contains_keywords", "contains", "contains_all", words)]} for words in (["a"], ["b"])
    )
    result = engine.verify_sync("c", {}, {"text": "a"}, one, {})
    with pytest.raises(MeruitError, match="judged by other criteria"):
        rejudge(engine.compile(other).plan, result)


@pytest.mark.parametrize("answer", [Says(True, ["odd"]), Says(False, ["fraud"]), RuntimeError("down")])
def test_judging_again_keeps_what_governance_said(answer: Any) -> None:
    engine = VerificationEngine(governance=Governance(answer))
    prepared = engine.compile({"criteria": [WORDS]})
    result = engine.verify_sync("c", {}, {"text": "a"}, prepared, {})
    assert rejudge(prepared.plan, result).to_json() == result.to_json()


def test_a_record_can_be_judged_again_where_its_metrics_are_not_installed() -> None:
    asked = SuccessCriteria.model_validate(
        {
            "criteria": [
                criterion("accuracy", "percentage", "gte", 90),
                criterion("contains_keywords", "contains", "contains_all", ["a"]),
                criterion("contains_keywords", "contains", "contains_all", ["b"], id="second"),
            ]
        }
    )
    output = {"predictions": ["x"] * 10, "text": "a"}
    result = VerificationEngine().verify_sync("c", {"ground_truth": ["x"] * 10}, output, asked, {})
    stored = VerificationResult.from_json(result.to_json())
    again = rejudge(SuccessCriteria.model_validate_json(asked.model_dump_json()), stored)
    assert again.to_json() == result.to_json()
    assert again.criterion_results[0].met


def test_more_than_all_was_not_found() -> None:
    engine = VerificationEngine({"x": Answers(mine=3)})
    result = verify(criterion("mine", "count", "contains_all", ["a", "b"], bonus=1), engine=engine)
    assert (statuses(result), result.bonus) == ([Status.INDETERMINATE], 0.0)


def test_strangers_are_given_copies() -> None:
    class Meddler(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            task_output["deep"]["n"] = 99
            return {"one": 1}

    class Reader(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            return {"two": task_output["deep"]["n"]}

    output = {"deep": {"n": 1}}
    engine = VerificationEngine({"x": Meddler(one=1), "y": Reader(two=1)})
    asked = (criterion("one", "numeric", "gte", 0), criterion("two", "numeric", "lte", 1))
    assert verify(*asked, output=output, engine=engine).success
    assert output == {"deep": {"n": 1}}


def test_an_extract_of_ones_own_is_called() -> None:
    class Mine(LatencyExtractor):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            return {"latency_ms": 7}

    result = verify(criterion("latency_ms", "latency", "lte", 9), engine=VerificationEngine({"x": Mine()}))
    assert result.metrics == {"latency_ms": 7}


def test_a_passing_failure_is_not_kept() -> None:
    extractor = Answers(mine=Missing("503", Cause.EXTRACTOR_ERROR, Fault.SYSTEM))
    engine = VerificationEngine({"x": extractor})
    asked = criterion("mine", "numeric", "gte", 0)
    assert not verify(asked, engine=engine).success
    extractor.answer["mine"] = 1
    assert verify(asked, engine=engine).success


def test_a_read_only_mapping_is_digested_like_any_other() -> None:
    result = VerificationEngine().verify_sync("c", {}, MappingProxyType({"text": "a"}), {"criteria": [WORDS]}, {})
    assert result.output_digest == payload_digest({"text": "a"})


def test_keys_that_are_no_text_are_no_json() -> None:
    with pytest.raises(TypeError):
        digest({1: "a"})


def test_masked_entries_are_missing() -> None:
    plan = VerificationEngine().compile({"criteria": [WORDS]}).plan
    for kind in (np.int64, np.float64):
        column = np.ma.array(np.array([5, 5], kind), mask=[False, True])
        assert judge_columns(plan, {"word_count": column}).states.tolist() == [[1, 2]]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("crash", [SystemExit(0), Unspeakable(), KeyError("x")])
def test_whatever_a_metric_of_ours_does_costs_its_own_criterion(
    crash: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_work: Any) -> Any:
        raise crash

    monkeypatch.setitem(metrics._found, "word_count", metrics.get("word_count")._replace(prepare=lambda _ask: measure))
    result = verify(WORDS, criterion("output_length", "count", "gte", 1), output={"text": "a"})
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_a_metric_that_cannot_be_prepared_costs_its_own_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_ask: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setitem(metrics._found, "word_count", metrics.get("word_count")._replace(prepare=prepare))
    result = verify(WORDS, criterion("output_length", "count", "gte", 1), output={"text": "a"})
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]
    assert result.criterion_results[0].fault == "system"


@pytest.mark.parametrize("score", [None, [1], float("inf"), 1, "1e-10000000", "1" * 100, "nan", ""])
def test_a_check_that_gives_no_score_is_indeterminate(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.names()
    monkeypatch.setitem(checks._found, "mine", Check("mine", "A check.", lambda _a: lambda _w: Checked(score)))
    result = verify({"assert": "mine"}, WORDS, output={"text": "a"})
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


@pytest.mark.parametrize(
    "finding",
    [
        Measured(1, [1]),  # type: ignore[arg-type]
        Measured(1, None, "bogus"),  # type: ignore[arg-type]
        Missing("x", "weird"),  # type: ignore[arg-type]
        Missing(7),  # type: ignore[arg-type]
        Measured(1, {"a": {1: 2}}),
    ],
)
def test_whatever_a_plugin_answers_the_record_can_be_read_back(finding: Any) -> None:
    result = verify(criterion("mine", "numeric", "gte", 0), engine=VerificationEngine({"x": Answers(mine=finding)}))
    assert VerificationResult.from_json(result.to_json()) == result


def test_details_are_a_copy() -> None:
    details = {"seen": [1]}
    engine = VerificationEngine({"x": Answers(mine=Measured(1, details))})
    result = verify(criterion("mine", "numeric", "gte", 0), engine=engine)
    details["seen"].append(2)
    assert result.criterion_results[0].details == {"seen": [1]}


@pytest.mark.parametrize("number", ["1e99999999999999999999", Decimal("sNaN"), Decimal("Infinity")])
def test_a_number_beyond_all_numbers_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": number}]})
    with pytest.raises(ValueError, match="expected"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "params": {"a": Decimal("sNaN")}}]})


def test_money_is_also_told_in_whole_millionths() -> None:
    asked = [{**WORDS, "bonus": "8589934591.999999", "id": str(number)} for number in range(5)]
    result = verify(*asked, output={"text": "a"})
    assert (result.bonus_micros, result.penalty_micros) == (5 * 8589934591999999, 0)


def test_criteria_in_use_are_not_forgotten_for_others() -> None:
    engine = VerificationEngine()
    hot = SuccessCriteria.model_validate({"criteria": [WORDS]})
    engine.verify_sync("c", {}, {"text": "a"}, hot)
    kept = engine._compiled.get(id(hot))
    for number in range(300):
        engine.verify_sync(
            "c", {}, {"text": "a"}, SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": number}]})
        )
        engine.verify_sync("c", {}, {"text": "a"}, hot)
    assert kept is not None
    assert engine._compiled.get(id(hot)) is kept


def test_what_cannot_be_copied_is_handed_over_as_it_is() -> None:
    engine = VerificationEngine({"x": Answers(mine=1)})
    assert verify(criterion("mine", "numeric", "gte", 1), output={"lock": threading.Lock()}, engine=engine).success


def test_an_interrupt_inside_a_running_loop_reaches_the_caller_too() -> None:
    class Interrupted(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            raise KeyboardInterrupt

    async def inside() -> None:
        verify(criterion("mine", "numeric", "gte", 1), engine=VerificationEngine({"x": Interrupted(mine=1)}))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(inside())


def test_threads_that_share_an_engine_do_not_disturb_each_other() -> None:
    engine = VerificationEngine()
    # More sets than are remembered, so that threads push out what others are using.
    sets = [SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": number}]}) for number in range(260)]

    def judge(number: int) -> bool:
        result = engine.verify_sync("c", {}, {"text": "a " * 130}, sets[number % 260], {})
        return result.success is (number % 260 <= 130)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(judge, range(6_000)))
    finally:
        sys.setswitchinterval(before)
