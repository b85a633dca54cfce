"""Criteria that bring code of their own: it runs as the operator allows, and costs only its own criteria."""

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit import (
    Cause,
    CriterionResult,
    CustomCode,
    CustomExtractor,
    Fault,
    MetricExtractor,
    Provenance,
    Sandbox,
    Status,
    SuccessCriteria,
    Tier,
    Verdict,
    VerificationEngine,
    VerificationResult,
    rejudge,
)
from meruit.model.canonical import payload_bytes
from meruit.model.verdict import ReasonCode
from meruit.sandbox import contract, expression
from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.sandbox import SMALL_BYTES

BASE = {"metric_type": "numeric", "comparison": "gte", "threshold": 1}
WORDS = {
    "metrics": ["words", "lines"],
    "code": (
        "def metric(input, output, metadata):\n"
        "    text = output['text']\n"
        "    return {'words': len(text.split()), 'lines': text.count('\\n') + 1}\n"
    ),
}
CRASH = {"metrics": ["crash"], "code": "def metric(input, output, metadata):\n    return {'crash': 1 / 0}\n"}
SLOW = {"metrics": ["slow"], "code": "def metric(input, output, metadata):\n    while True:\n        pass\n"}
FULL = {**WORDS, "metrics": ["words"], "tier": "python-full"}
WORK = {"text": "one two\nthree"}
EVERYTHING = CustomCode(tiers=frozenset(Tier))


def criteria(*parts: dict[str, Any], custom: Any = (), **whole: Any) -> SuccessCriteria:
    filled = [part if "assert" in part else {**BASE, **part} for part in parts]
    return SuccessCriteria.model_validate({"criteria": filled, "custom_metrics": list(custom), **whole})


def verify(asked: Any, engine: VerificationEngine | None = None, output: Any = None) -> VerificationResult:
    """The verdict; judging it again from the record alone gives the same bytes."""
    result = (engine or VerificationEngine()).verify_sync("c", {}, WORK if output is None else output, asked)
    if isinstance(asked, SuccessCriteria):
        assert rejudge(asked, result).to_json() == result.to_json()
        read = VerificationResult.from_json(result.to_json())
        assert rejudge(asked, read).to_json() == result.to_json()
    return result


def only(result: VerificationResult) -> CriterionResult:
    (judged,) = result.criterion_results
    return judged


# What it computes.


def test_criteria_are_judged_by_their_own_code() -> None:
    asked = criteria({"metric": "words", "threshold": 3}, {"metric": "lines", "comparison": "lte"}, custom=[WORDS])
    result = verify(asked)
    assert result.metrics == {"words": 3, "lines": 2}
    assert [judged.met for judged in result.criterion_results] == [True, False]
    for judged in result.criterion_results:
        assert judged.provenance is Provenance.COMPUTED
        assert judged.details is not None
        assert judged.details["sandbox"]["tier"] == "python"
        assert judged.details["sandbox"]["code_sha256"]
    versions = result.versions
    assert versions["words"] == versions["lines"]
    assert len(versions["words"]) == 64


def test_code_runs_once_for_all_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    execute = Sandbox.execute

    async def counted(self: Sandbox, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
        calls.append(code)
        return await execute(self, code, context, timeout_ms)

    monkeypatch.setattr(Sandbox, "execute", counted)
    asked = criteria({"metric": "words"}, {"metric": "words", "threshold": 2}, {"metric": "lines"}, custom=[WORDS])
    verify(asked)
    assert len(calls) == 1
    unasked = criteria({"metric": "word_count"}, custom=[WORDS])
    assert verify(unasked).success
    assert len(calls) == 1


def test_an_expression_is_a_metric_of_one_criterion() -> None:
    asked = criteria(
        {"expr": "size(output.text)", "threshold": 13},
        {"metric": "letters", "expr": "size(output.text)", "threshold": 14},
        {"name": "Letters at all", "expr": "size(output.text)"},
    )
    result = verify(asked)
    assert [judged.met for judged in result.criterion_results] == [True, False, True]
    names = ["size(output.text)", "letters", "Letters at all"]
    assert [judged.metric for judged in result.criterion_results] == names
    assert result.metrics == dict.fromkeys(names, 13)
    assert {*names} <= result.versions.keys()
    assert {judged.provenance for judged in result.criterion_results} == {Provenance.COMPUTED}


def test_an_expression_stands_for_itself_whatever_others_are_called() -> None:
    asked = criteria(
        {"metric": "word_count", "threshold": 3},
        {"metric": "word_count", "expr": "7", "id": "own"},
        {"metric": "words", "expr": "8"},
        {"metric": "words"},
        {"metric": "words", "expr": "9"},
        {"name": "word_count[last]", "expr": "10"},
        {"metric": "word_count", "id": "last"},
        custom=[WORDS],
    )
    result = verify(asked)
    assert [judged.value for judged in result.criterion_results] == [3, 7, 8, 3, 9, 10, 3]
    assert result.metrics == {
        "word_count": 3,
        "word_count[own]": 7,
        "words": 8,
        "words[words-2]": 3,
        "words[words-3]": 9,
        "word_count[last]": 10,
    }


def test_a_slot_is_never_called_as_another_criterion_is() -> None:
    asked = criteria(
        {"name": "m[b]", "expr": "1"}, {"metric": "m", "expr": "2"}, {"metric": "m", "expr": "3", "id": "b"}
    )
    result = verify(asked)
    assert [judged.value for judged in result.criterion_results] == [1, 2, 3]


def test_an_expression_in_percent_is_on_the_scale_it_says() -> None:
    asked = criteria({"expr": "95.5", "metric_type": "percentage", "threshold": 95})
    assert verify(asked).success


def test_a_value_that_its_type_cannot_have_keeps_its_evidence() -> None:
    judged = only(verify(criteria({"expr": "-1", "metric_type": "count"})))
    assert (judged.cause, judged.status) == (Cause.OUT_OF_DOMAIN, Status.INDETERMINATE)
    assert judged.details is not None
    assert "sandbox" in judged.details


def test_the_wide_python_runs_where_the_operator_allows_it() -> None:
    judged = only(verify(criteria({"metric": "words"}, custom=[FULL]), VerificationEngine(custom=EVERYTHING)))
    assert judged.value == 3


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
@settings(max_examples=20)
def test_code_and_expression_decide_alike(value: int, threshold: int) -> None:
    code = "def metric(input, output, metadata):\n    return {'n': output['n']}\n"
    asked = criteria(
        {"metric": "n", "threshold": threshold},
        {"expr": "output.n", "threshold": threshold},
        custom=[{"metrics": ["n"], "code": code}],
    )
    coded, expressed = verify(asked, output={"n": value}).criterion_results
    assert coded.met == expressed.met == (value >= threshold)
    assert coded.value == expressed.value == value


# What goes wrong.


def test_failing_code_costs_its_own_criteria_only() -> None:
    asked = criteria(
        {"metric": "crash"},
        {"metric": "slow"},
        {"expr": "output.absent"},
        {"expr": "size("},
        {"metric": "words"},
        {"metric": "word_count"},
        custom=[WORDS, CRASH, SLOW],
    )
    result = verify(asked, VerificationEngine(custom=CustomCode(timeout_ms=300)))
    causes = [judged.cause for judged in result.criterion_results]
    assert causes == [Cause.CRASHED, Cause.TIMEOUT, Cause.CRASHED, Cause.UNSUPPORTED_CONSTRUCT, None, None]
    assert result.metrics == {"words": 3, "word_count": 3}
    assert result.verdict is Verdict.INCONCLUSIVE
    for judged in result.criterion_results[:4]:
        assert (judged.status, judged.fault) == (Status.INDETERMINATE, Fault.AUTHOR)
        assert judged.details is not None
        assert judged.details["sandbox"]["failure"] == judged.cause


def test_work_that_is_no_json_is_measured_by_all_but_custom_code() -> None:
    asked = criteria({"metric": "words"}, {"expr": "1"}, {"metric": "word_count"}, custom=[WORDS])
    result = verify(asked, output={"text": "a b", "odd": {1, 2}})
    causes = [judged.cause for judged in result.criterion_results]
    assert causes == [Cause.WRONG_TYPE, Cause.WRONG_TYPE, None]


def test_an_operator_may_run_no_custom_code_at_all() -> None:
    asked = criteria({"metric": "words"}, {"expr": "1"}, {"metric": "word_count"}, custom=[WORDS])
    engine = VerificationEngine(custom=None)
    prepared = engine.compile(asked)
    assert (prepared.custom, prepared.owners) == ({}, ())
    places = [slot.place for slot in prepared.slots]
    assert places == ["custom_metrics[0].code", "criteria[1].expr", None]
    code, expression, word_count = verify(asked, engine).criterion_results
    for judged in (code, expression):
        assert (judged.cause, judged.fault) == (Cause.SANDBOX_UNAVAILABLE, Fault.SYSTEM)
        assert "CustomExtractor" in (judged.error or "")
        assert judged.provenance is Provenance.COMPUTED
    assert word_count.met


def test_a_tier_must_be_allowed() -> None:
    asked = criteria({"metric": "words"}, {"metric": "word_count"}, custom=[FULL])
    barred, word_count = verify(asked).criterion_results
    assert (barred.cause, barred.fault) == (Cause.SANDBOX_UNAVAILABLE, Fault.SYSTEM)
    assert "extractors.custom.sandbox" in (barred.error or "")
    assert "--allow-python-full" in (barred.error or "")
    assert word_count.met
    assert VerificationEngine().compile(asked).slots[0].place == "custom_metrics[0].tier"


@pytest.mark.parametrize("tier", [Tier.EXPR, Tier.PYTHON])
def test_the_narrow_tiers_can_be_barred_too(tier: Tier) -> None:
    engine = VerificationEngine(custom=CustomCode(tiers=frozenset(Tier) - {tier}))
    asked = criteria({"metric": "words"}, custom=[WORDS]) if tier is Tier.PYTHON else criteria({"expr": "1"})
    judged = only(verify(asked, engine))
    assert judged.cause is Cause.SANDBOX_UNAVAILABLE
    assert tier in (judged.error or "")


class Fixed(MetricExtractor):
    """Says one thing."""

    def __init__(self, name: str = "mine") -> None:
        self.name = name

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> dict[str, float]:
        return {self.name: 5.0}

    def supported_metrics(self) -> list[str]:
        return [self.name]


@pytest.mark.parametrize("engine", [VerificationEngine(), VerificationEngine({"x": Fixed("word_count")})])
def test_a_declared_name_that_the_engine_knows_is_refused_and_computed_by_nobody(engine: VerificationEngine) -> None:
    clash = {**WORDS, "metrics": ["words", "word_count"]}
    taken, free = verify(
        criteria({"metric": "word_count"}, {"metric": "words"}, custom=[clash]), engine
    ).criterion_results
    assert (taken.cause, taken.fault, taken.value) == (Cause.AUTHOR_ERROR, Fault.AUTHOR, None)
    assert "'word_count'" in (taken.error or "")
    assert free.value == 3


def test_an_extractor_called_like_an_owner_is_refused() -> None:
    engine = VerificationEngine({"custom_metrics[0]": Fixed(), "expr[1]": Fixed("yours")})
    asked = criteria({"metric": "words"}, {"expr": "1"}, {"metric": "mine"}, {"metric": "yours"}, custom=[WORDS])
    words, one, mine, yours = verify(asked, engine).criterion_results
    assert "'custom_metrics[0]'" in (words.error or "")
    assert one.cause is Cause.AUTHOR_ERROR
    assert (mine.value, yours.value) == (5.0, 5.0)


def test_custom_code_takes_no_params() -> None:
    asked = criteria({"metric": "words", "params": {"a": 1}}, {"metric": "words"}, custom=[WORDS])
    refused, asked_plainly = verify(asked).criterion_results
    assert (refused.cause, "params" in (refused.error or "")) == (Cause.AUTHOR_ERROR, True)
    assert asked_plainly.value == 3


# Criteria compiled for one engine.


def test_compiled_criteria_run_where_the_same_code_is_allowed_and_nowhere_else() -> None:
    asked = criteria({"metric": "words"}, {"expr": "1"}, custom=[WORDS])
    prepared = VerificationEngine().compile(asked)
    assert verify(prepared, VerificationEngine()).success
    for policy in (None, CustomCode(timeout_ms=1), EVERYTHING):
        result = verify(prepared, VerificationEngine(custom=policy))
        assert result.verdict is Verdict.ERROR
        assert result.reasons[0].code is ReasonCode.BAD_INPUT
    plain = VerificationEngine().compile(criteria({"metric": "word_count"}))
    assert verify(plain, VerificationEngine(custom=None)).success
    theirs = VerificationEngine({"x": Fixed()}).compile(criteria({"metric": "mine"}, {"expr": "1"}))
    assert verify(theirs).reasons[0].code is ReasonCode.BAD_INPUT


def test_criteria_as_a_mapping_may_bring_code_but_name_no_file() -> None:
    whole = {"criteria": [{"metric": "words", **BASE}], "custom_metrics": [WORDS]}
    assert verify(whole).metrics == {"words": 3}
    file = {**whole, "custom_metrics": [{"metrics": ["words"], "code_file": "/etc/passwd"}]}
    result = verify(file)
    assert result.verdict is Verdict.ERROR
    assert "`code`" in result.reasons[0].message


# The cache, copies, and patience.


class Counting:
    """Stands in for a sandbox, and remembers what it was given."""

    tier = Tier.PYTHON
    memory_limit_mb = 256
    engine = "counting 1"

    def __init__(self, *answers: Mapping[str, float] | None, wait_s: float = 0) -> None:
        self.answers = list(answers)
        self.given: list[Mapping[str, Any]] = []
        self.wait_s = wait_s

    async def execute(self, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
        await asyncio.sleep(self.wait_s)
        self.given.append(context)
        return SandboxResult(self.answers.pop(0), {"tier": "python"})


def custom_engine(sandbox: Any, kind: type[CustomExtractor] = CustomExtractor, **parts: Any) -> VerificationEngine:
    return VerificationEngine({"x": kind("code", sandbox, ("mine",), timeout_ms=50)}, **parts)


def test_equal_code_on_equal_work_runs_once() -> None:
    sandbox = Counting({"mine": 1})
    engine = custom_engine(sandbox)
    assert [verify(criteria({"metric": "mine"}), engine).success for _ in range(3)] == [True] * 3
    assert len(sandbox.given) == 1


def test_a_failed_answer_is_not_kept() -> None:
    sandbox = Counting({}, {"mine": 1}, {"mine": 2})
    engine = custom_engine(sandbox)
    asked = criteria({"metric": "mine"})
    assert [only(verify(asked, engine)).value for _ in range(3)] == [None, 1, 1]


def test_what_is_kept_is_told_apart_by_code_and_names() -> None:
    engine = VerificationEngine()
    for name, number in (("a", 1), ("b", 2), ("a", 2), ("b", 1)):
        code = f"def metric(input, output, metadata):\n    return {{'a': {number}, 'b': {number}}}\n"
        asked = criteria({"metric": name}, custom=[{"metrics": [name], "code": code}])
        assert verify(asked, engine).metrics == {name: number}
    for name in ("a", "b"):
        assert verify(criteria({"metric": name, "expr": "1", "id": "same"}), engine).metrics == {name: 1}


def test_work_is_copied_for_strangers_and_not_for_a_sandbox() -> None:
    class Strange(CustomExtractor):
        """May do with the work as it likes before it crosses."""

    for kind, same in ((CustomExtractor, True), (Strange, False)):
        sandbox = Counting({"mine": 1})
        output = {"text": ["a"]}
        verify(criteria({"metric": "mine"}), custom_engine(sandbox, kind), output)
        assert (sandbox.given[0]["output"]["text"] is output["text"]) is same


def test_patience_is_never_shorter_than_what_the_code_may_take() -> None:
    engine = custom_engine(Counting({"mine": 1}, wait_s=0.1), patience_s=0.01)
    assert only(verify(criteria({"metric": "mine"}), engine)).value == 1


def test_the_time_of_all_code_together_can_be_limited() -> None:
    engine = VerificationEngine()
    compiled = engine.compile(criteria({"metric": "words"}, {"expr": "1"}, custom=[WORDS]))
    assert {one.timeout_ms for one in compiled.limit_code_time(3_000).custom.values()} == {1_500}
    assert {one.timeout_ms for one in compiled.limit_code_time(1).custom.values()} == {100}
    assert {one.timeout_ms for one in compiled.limit_code_time(10**6).custom.values()} == {5_000}
    assert engine.verify_sync("c", {}, WORK, compiled.limit_code_time(3_000)).success
    plain = engine.compile(criteria({"metric": "word_count"}))
    assert plain.limit_code_time(1) is plain


def test_many_works_at_once_are_each_judged_by_their_own_numbers() -> None:
    engine = VerificationEngine(cache_ttl_s=0)
    asked = criteria({"metric": "words"}, {"expr": "size(output.text)"}, custom=[WORDS])

    async def all_at_once() -> list[VerificationResult]:
        works = ({"text": "w " * number} for number in range(1, 20))
        return await asyncio.gather(*(engine.verify("c", {}, work, asked) for work in works))

    for number, result in enumerate(asyncio.run(all_at_once()), start=1):
        assert result.metrics == {"words": number, "size(output.text)": 2 * number}


def test_a_record_with_code_is_plain_json() -> None:
    result = verify(criteria({"metric": "crash"}, {"metric": "words"}, custom=[CRASH, WORDS]))
    crashed, words = json.loads(result.to_json())["criterion_results"]
    assert crashed["details"]["sandbox"]["failure"] == "crashed"
    assert words["details"]["sandbox"]["timeout_ms"] == 5_000


def test_nothing_is_contained_in_a_number() -> None:
    wanted = {"metric": "mine", "metric_type": "numeric", "comparison": "contains_all", "threshold": ["a"], "bonus": 5}
    custom = [{"metrics": ["mine"], "code": "def metric(input, output, metadata):\n    return {'mine': 1}\n"}]
    result = verify(criteria(wanted, custom=custom))
    assert (only(result).status, result.bonus) == (Status.INDETERMINATE, 0.0)
    assert only(result).cause is Cause.AUTHOR_ERROR


def test_work_is_written_once_for_all_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[Any]()
    write = payload_bytes

    def note(value: Any) -> Any:
        written.append(value)
        return write(value)

    monkeypatch.setattr(contract, "payload_bytes", note)
    several = [{"metric": f"m{number}", "expr": f"size(output.text) + {number}"} for number in range(20)]
    assert len(verify(criteria(*several), VerificationEngine(), {"text": "abc"}).metrics) == 20
    assert len(written) == 1
    # Also where it cannot be written.
    refused = verify(criteria(*several), VerificationEngine(), {"text": float("nan")})
    assert {one.cause for one in refused.criterion_results} == {Cause.WRONG_TYPE}
    assert len(written) == 2


def test_large_work_is_handed_to_expressions_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[bool]()
    evaluate = expression.evaluate

    def note(code: str, context: bytes) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return evaluate(code, context)

    monkeypatch.setattr(expression, "evaluate", note)
    for size in (10, SMALL_BYTES):
        context = {"output": {"text": "x" * size}}
        assert asyncio.run(Sandbox(Tier.EXPR).execute("size(output.text)", context))["metrics"] == {"value": size}
    assert threads == [True, False]
