"""Custom code as an extractor: each declared metric is a number with its evidence, or a reason with it."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit import CustomExtractor, Failure, MeruitError, Sandbox, SuccessCriteria, VerificationEngine, Work
from meruit.errors import ContextError
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.kinds import Tier
from meruit.sandbox.contract import MAX_CONTEXT_BYTES, SandboxResult

WORDS = "def metric(input, output, metadata):\n    return {'custom': len(output['text'].split()), 'other': 7}\n"
EVIDENCE = {"tier": "python", "engine": "fake 1"}


class Fake:
    """A sandbox that answers as it is told."""

    tier = Tier.PYTHON
    memory_limit_mb = 256
    engine = "fake 1"

    def __init__(self, answer: Any = None, **parts: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Mapping[str, Any], int]] = []
        vars(self).update(parts)

    async def execute(self, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
        return self.execute_sync(code, context, timeout_ms)

    def execute_sync(self, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
        self.calls.append((code, context, timeout_ms))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SandboxResult(self.answer, EVIDENCE)


# Any, here and below: a stand-in for a sandbox, and whatever work holds.
def extractor(sandbox: Any, *metrics: str, code: str = WORDS, **parts: Any) -> CustomExtractor:
    return CustomExtractor(code, sandbox, metrics or ("custom",), **parts)


def found(made: CustomExtractor, work: Work | None = None) -> dict[str, Measured | Missing]:
    given = work or Work(output={"text": "a b c"})
    awaited = asyncio.run(made.measure(given.input, given.output, given.metadata))
    assert made.extract_sync(given.input, given.output, given.metadata) == awaited
    return awaited


def test_the_specified_form_takes_code_and_a_sandbox_and_computes_custom() -> None:
    made = CustomExtractor(WORDS, Sandbox())
    assert made.supported_metrics() == ["custom"]
    criteria = {"criteria": [{"metric": "custom", "metric_type": "count", "comparison": "eq", "threshold": 3}]}
    engine = VerificationEngine({"mine": made})
    result = engine.verify_sync("c", {}, {"text": "a b c"}, SuccessCriteria.model_validate(criteria))
    assert (result.success, result.metrics) == (True, {"custom": 3})
    (judged,) = result.criterion_results
    assert judged.details is not None
    assert judged.details["sandbox"]["tier"] == "python"
    assert result.versions["custom"] == made.version


def test_each_declared_metric_is_measured_with_its_evidence_and_others_are_left() -> None:
    sandbox = Fake({"a": 1, "b": 2.5, "c": 3})
    assert found(extractor(sandbox, "a", "b", timeout_ms=70)) == {
        "a": Measured(1, {"sandbox": EVIDENCE}),
        "b": Measured(2.5, {"sandbox": EVIDENCE}),
    }
    context = {"input": {}, "output": {"text": "a b c"}, "metadata": {}}
    assert sandbox.calls == [(WORDS, context, 70)] * 2


def test_a_declared_metric_that_is_not_returned_is_its_authors_fault() -> None:
    answer = found(extractor(Fake({"a": 1}), "a", "b"))
    assert isinstance(answer["a"], Measured)
    missing = answer["b"]
    assert isinstance(missing, Missing)
    assert all(value in missing.why for value in ("tier python", "'b'"))
    assert missing == Missing(
        missing.why,
        Cause.RESULT_REJECTED,
        Fault.AUTHOR,
        {"sandbox": {**EVIDENCE, "failure": "result_rejected"}},
    )


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("message", ["it went wrong", ""])
def test_a_failure_is_a_reason_for_each_metric_with_its_evidence(failure: Failure, message: str) -> None:
    class Failing(Fake):
        def execute_sync(self, code: str, context: Mapping[str, Any], timeout_ms: int = 5_000) -> SandboxResult:
            return SandboxResult(None, EVIDENCE, failure, message)

    fault = Fault.SYSTEM if failure is Failure.SANDBOX_UNAVAILABLE else Fault.AUTHOR
    why = f"custom code (tier python): {message or failure}"
    expected = Missing(why, Cause(failure), fault, {"sandbox": {**EVIDENCE, "failure": str(failure)}})
    assert found(extractor(Failing(), "a", "b")) == {"a": expected, "b": expected}


@pytest.mark.parametrize(
    ("output", "cause", "told"),
    [
        ({"text": float("nan")}, Cause.WRONG_TYPE, "as JSON"),
        ({"text": object()}, Cause.WRONG_TYPE, "as JSON"),
        ({"text": "x" * MAX_CONTEXT_BYTES}, Cause.TOO_COSTLY, "at most 16 MiB"),
    ],
)
def test_work_that_is_not_json_is_the_agents_fault(output: dict[str, Any], cause: Cause, told: str) -> None:
    missing = found(extractor(Sandbox()), Work(output=output))["custom"]
    assert isinstance(missing, Missing)
    assert (missing.cause, missing.fault) == (cause, Fault.AGENT)
    assert told in missing.why


def test_other_errors_of_a_sandbox_are_raised() -> None:
    with pytest.raises(RuntimeError):
        found(extractor(Fake(RuntimeError("no"))))
    assert isinstance(found(extractor(Fake(ContextError("no"))))["custom"], Missing)


def test_an_expressions_number_is_the_one_metric() -> None:
    made = extractor(Sandbox(Tier.EXPR), "length", code="size(output.text)")
    measured = found(made)["length"]
    assert isinstance(measured, Measured)
    assert measured.value == 5
    assert measured.details is not None
    assert measured.details["sandbox"]["tier"] == "expr"


def test_a_version_follows_all_that_a_number_depends_on() -> None:
    made = [
        extractor(Fake()),
        extractor(Fake(), code=WORDS + "#"),
        extractor(Fake(), code="\ud800"),
        extractor(Fake(), "other"),
        extractor(Fake(), timeout_ms=1),
        extractor(Fake(tier=Tier.PYTHON_FULL)),
        extractor(Fake(engine="fake 2")),
        extractor(Fake(memory_limit_mb=16)),
    ]
    assert len({each.version for each in made}) == len(made)
    assert extractor(Fake()).version == made[0].version


texts = st.text(st.characters(codec="utf-8"), max_size=50)


@given(texts, st.lists(st.integers(-(2**40), 2**40), max_size=5))
def test_code_sees_the_work_as_it_is(text: str, numbers: list[int]) -> None:
    code = (
        "def metric(input, output, metadata):\n"
        "    return {'size': len(output['text']), 'sum': sum(input['numbers']), 'empty': len(metadata)}\n"
    )
    made = extractor(Sandbox(), "size", "sum", "empty", code=code)
    answer = made.extract_sync({"numbers": numbers}, {"text": text}, {})
    values = {name: getattr(finding, "value", finding) for name, finding in answer.items()}
    assert values == {"size": len(text), "sum": sum(numbers), "empty": 0}


def test_loading_the_metrics_loads_no_interpreter() -> None:
    script = (
        "import sys\nfrom meruit.registry import metrics\nfrom meruit import VerificationEngine\n"
        "VerificationEngine().verify_sync('c', {}, {}, {'criteria': []})\n"
        "assert 'meruit.metrics.custom' in sys.modules and metrics.names()\n"
        "print(*sorted({'pydantic_monty', 'cel_expr_python', 'meruit.sandbox.sandbox'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []


@pytest.mark.parametrize("metrics", ["mape", [], ["a", "a"]])
def test_names_are_a_list_of_different_names(metrics: Any) -> None:
    with pytest.raises(MeruitError, match="metrics is"):
        CustomExtractor(WORDS, Sandbox(), metrics)


def test_code_needs_a_sandbox() -> None:
    with pytest.raises(MeruitError, match="not NoneType"):
        CustomExtractor(WORDS, None)  # type: ignore[arg-type]


def test_numbers_alone_are_what_the_specified_method_returns() -> None:
    made = CustomExtractor(WORDS, Sandbox(), ["custom", "absent"])
    assert asyncio.run(made.extract({}, {"text": "a b c"}, {})) == {"custom": 3}


@pytest.mark.parametrize(("code", "value"), [("output.n > 1", True), ("output.n > 9", False), ("output.n", 3)])
def test_an_expression_gives_a_number_or_its_truth(code: str, value: float) -> None:
    made = CustomExtractor(code, Sandbox("expr"), ["own"])
    (measured,) = made.extract_sync({}, {"n": 3}, {}).values()
    assert isinstance(measured, Measured)
    assert (measured.value, type(measured.value)) == (value, type(value))
