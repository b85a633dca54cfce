"""Third-party extractors: whatever they do costs their own criteria only."""

import asyncio
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from tests.verify.engines import Answers, Governance, criterion, statuses, verify

from meruit import (
    Cause,
    Fault,
    GovernanceResult,
    GovernanceStatus,
    LatencyExtractor,
    Measured,
    Missing,
    Status,
    VerificationEngine,
    VerificationResult,
)
from meruit.model.canonical import payload_digest


@pytest.mark.parametrize(
    "odd", [Fraction(10**400), Decimal("sNaN"), type("Odd", (), {"ndim": 0, "item": lambda _: 1 / 0})()]
)
def test_one_odd_value_costs_one_criterion(odd: Any) -> None:
    engine = VerificationEngine({"x": Answers(odd=odd, fine=1)})
    result = verify(criterion("odd", "numeric", "gte", 0), criterion("fine", "numeric", "gte", 0), engine=engine)
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_the_digest_is_of_the_work_that_was_measured() -> None:
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


def test_an_extractor_for_large_work_does_not_hold_up_the_loop() -> None:
    class Blocking(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            self.thread = threading.get_ident()
            return self.answer

    extractor = Blocking(mine=1)
    engine = VerificationEngine({"x": extractor})
    compiled = engine.compile({"criteria": [criterion("mine", "numeric", "gte", 0)]})

    async def judge() -> tuple[int, VerificationResult]:
        return threading.get_ident(), await engine.verify_beside_loop("c", {}, {"text": "a"}, compiled)

    loop_thread, result = asyncio.run(judge())
    assert result.metrics["mine"] == 1
    assert extractor.thread != loop_thread


def test_an_incomplete_answer_is_not_cached() -> None:
    extractor = Answers()
    engine = VerificationEngine({"x": extractor})
    for _ in range(2):
        verify(criterion("mine", "numeric", "gte", 0), engine=engine)
    assert extractor.calls == 2


def test_a_version_may_be_a_number() -> None:
    extractor = Answers(mine=1)
    extractor.version = 2  # type: ignore[assignment]
    result = verify(criterion("mine", "numeric", "gte", 0), engine=VerificationEngine({"x": extractor}))
    assert VerificationResult.from_json(result.to_json()).versions["mine"] == "2"


def test_extractors_and_governance_are_awaited_up_to_a_limit() -> None:
    class Slow(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            await asyncio.sleep(60)

    engine = VerificationEngine({"x": Slow(mine=1)}, Governance(GovernanceResult(valid=True), 60), patience_s=0.05)
    result = verify(criterion("mine", "numeric", "gte", 0), engine=engine)
    assert "0.05 s" in (result.criterion_results[0].error or "")
    assert result.governance is GovernanceStatus.REVIEW


def test_an_extractor_that_raises_before_the_await_costs_one_criterion() -> None:
    class Hasty(Answers):
        def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            raise RuntimeError("too soon")

    engine = VerificationEngine({"x": Hasty(mine=1), "y": Answers(fine=1)})
    result = verify(criterion("mine", "numeric", "gte", 0), criterion("fine", "numeric", "gte", 0), engine=engine)
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]
    assert "too soon" in (result.criterion_results[0].error or "")


def test_an_extractor_may_be_synchronous() -> None:
    class Plain(Answers):
        def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            return self.answer

    engine = VerificationEngine({"x": Plain(mine=1)})
    assert verify(criterion("mine", "numeric", "gte", 0), engine=engine).success


def test_a_timeout_of_the_extractor_itself_is_reported() -> None:
    class Late(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            raise TimeoutError("the model's endpoint")

    result = verify(criterion("mine", "numeric", "gte", 0), engine=VerificationEngine({"x": Late(mine=1)}))
    assert "the model's endpoint" in (result.criterion_results[0].error or "")


def test_a_cached_answer_is_a_copy() -> None:
    extractor = Answers(mine=1)
    engine = VerificationEngine({"x": extractor})
    asked = criterion("mine", "numeric", "gte", 1)
    assert verify(asked, engine=engine).success
    extractor.answer["mine"] = 0
    assert verify(asked, engine=engine).success
    assert extractor.calls == 1


def test_a_count_above_the_number_of_items_is_indeterminate() -> None:
    engine = VerificationEngine({"x": Answers(mine=3)})
    result = verify(criterion("mine", "count", "contains_all", ["a", "b"], bonus=1), engine=engine)
    assert (statuses(result), result.bonus) == ([Status.INDETERMINATE], 0.0)


def test_extractors_are_given_copies() -> None:
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


def test_an_overridden_extract_is_called() -> None:
    class Mine(LatencyExtractor):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            return {"latency_ms": 7}

    result = verify(criterion("latency_ms", "latency", "lte", 9), engine=VerificationEngine({"x": Mine()}))
    assert result.metrics == {"latency_ms": 7}


def test_a_temporary_failure_is_not_cached() -> None:
    extractor = Answers(mine=Missing("503", Cause.EXTRACTOR_ERROR, Fault.SYSTEM))
    engine = VerificationEngine({"x": extractor})
    asked = criterion("mine", "numeric", "gte", 0)
    assert not verify(asked, engine=engine).success
    extractor.answer["mine"] = 1
    assert verify(asked, engine=engine).success


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
def test_a_result_with_any_plugin_answer_can_be_read_back(finding: Any) -> None:
    result = verify(criterion("mine", "numeric", "gte", 0), engine=VerificationEngine({"x": Answers(mine=finding)}))
    assert VerificationResult.from_json(result.to_json()) == result


def test_details_are_a_copy() -> None:
    details = {"seen": [1]}
    engine = VerificationEngine({"x": Answers(mine=Measured(1, details))})
    result = verify(criterion("mine", "numeric", "gte", 0), engine=engine)
    details["seen"].append(2)
    assert result.criterion_results[0].details == {"seen": [1]}


def test_work_that_cannot_be_copied_is_passed_as_it_is() -> None:
    engine = VerificationEngine({"x": Answers(mine=1)})
    assert verify(criterion("mine", "numeric", "gte", 1), output={"lock": threading.Lock()}, engine=engine).success


def test_an_interrupt_inside_a_running_loop_reaches_the_caller() -> None:
    class Interrupted(Answers):
        async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
            raise KeyboardInterrupt

    async def inside() -> None:
        verify(criterion("mine", "numeric", "gte", 1), engine=VerificationEngine({"x": Interrupted(mine=1)}))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(inside())
