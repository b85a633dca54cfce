"""Metrics that the author's own code computes inside a sandbox."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from meruit.errors import ContextError, Failure, MeruitError
from meruit.metrics.support.extractor import MetricExtractor
from meruit.model.canonical import digest
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.kinds import Tier
from meruit.model.limits import DEFAULT_TIMEOUT_MS
from meruit.model.work import Work
from meruit.sandbox.contract import BOOLEAN, VALUE, SandboxResult, WorkContext, code_digest

if TYPE_CHECKING:
    from meruit.sandbox.sandbox import Sandbox

ExtractedMetrics = dict[str, Measured | Missing]


class CustomExtractor(MetricExtractor):
    """Extract the metrics that custom code computes; the code runs in the given sandbox and nowhere else."""

    def __init__(
        self,
        code: str,
        sandbox: "Sandbox",
        metrics: Sequence[str] = ("custom",),
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        # One text is a sequence of texts too.
        if isinstance(metrics, str) or not metrics or len(set(metrics)) < len(metrics):
            raise MeruitError(f"metrics is {metrics!r}; list the names that the code computes, each once")
        if not hasattr(sandbox, "execute"):
            raise MeruitError(f"a CustomExtractor takes code and a Sandbox that runs it, not {type(sandbox).__name__}")
        self.code = code
        self.sandbox = sandbox
        self.metrics = tuple(metrics)
        self.timeout_ms = timeout_ms
        # The names too: the same code with other names gives another result.
        self.version = digest(
            [code_digest(code), self.metrics, sandbox.tier, sandbox.engine, timeout_ms, sandbox.memory_limit_mb]
        )

    def supported_metrics(self) -> list[str]:
        """Every name that `extract` may return."""
        return list(self.metrics)

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> dict[str, float]:
        """The number of each declared metric; without those that the code did not compute."""
        found = await self.measure(task_input, task_output, metadata)
        # The sandbox lets only numbers out.
        return {name: cast("float", one.value) for name, one in found.items() if isinstance(one, Measured)}

    async def measure(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> ExtractedMetrics:
        """Each declared metric of one piece of work, with the evidence of the run; or why it has none."""
        return await self.measure_in(context_of(Work(task_output, task_input, metadata)))

    async def measure_in(self, context: WorkContext) -> ExtractedMetrics:
        """The same, in a context that several pieces of code share."""
        try:
            result = await self.sandbox.execute(self.code, context, self.timeout_ms)
        except ContextError as refused:
            return self._missing_for_context_error(refused)
        return self._to_metrics(result)

    def extract_sync(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> ExtractedMetrics:
        """The same for callers without an event loop."""
        context = {"input": task_input, "output": task_output, "metadata": metadata}
        try:
            result = self.sandbox.execute_sync(self.code, context, self.timeout_ms)
        except ContextError as refused:
            return self._missing_for_context_error(refused)
        return self._to_metrics(result)

    def _to_metrics(self, result: SandboxResult) -> ExtractedMetrics:
        if result.failure is not None:
            fault = Fault.SYSTEM if result.failure is Failure.SANDBOX_UNAVAILABLE else Fault.AUTHOR
            why = f"custom code (tier {self.sandbox.tier}): {result.message or result.failure}"
            details = {"sandbox": {**result.evidence, "failure": str(result.failure)}}
            return dict.fromkeys(self.metrics, Missing(why, Cause(result.failure), fault, details))
        numbers: Mapping[str, float] = result["metrics"]
        if self.sandbox.tier is Tier.EXPR:
            # An expression gives one value without a name; it belongs to the requested metric.
            numbers = dict.fromkeys(self.metrics, _value_of_expression(numbers))
        return {name: self._number(name, numbers, result.evidence) for name in self.metrics}

    def _number(self, name: str, numbers: Mapping[str, float], evidence: Mapping[str, Any]) -> Measured | Missing:
        if name in numbers:
            return Measured(numbers[name], {"sandbox": evidence})
        failure = Failure.RESULT_REJECTED
        why = f"custom code (tier {self.sandbox.tier}): metric() returned no {name!r}"
        return Missing(why, Cause(failure), Fault.AUTHOR, {"sandbox": {**evidence, "failure": str(failure)}})

    def _missing_for_context_error(self, refused: ContextError) -> ExtractedMetrics:
        """The finding when the work cannot be passed in: it is not JSON, or too large."""
        cause = Cause.TOO_COSTLY if refused.too_large else Cause.WRONG_TYPE
        return dict.fromkeys(self.metrics, Missing(f"custom code: {refused}", cause, Fault.AGENT))


def context_of(work: Work) -> WorkContext:
    """The work as the sandbox takes it. Use `work.derive`, so that it is written once."""
    return WorkContext(input=work.input, output=work.output, metadata=work.metadata)


def _value_of_expression(found: Mapping[str, float]) -> float:
    """The expression's number, or true or false."""
    return bool(found[BOOLEAN]) if BOOLEAN in found else found[VALUE]
