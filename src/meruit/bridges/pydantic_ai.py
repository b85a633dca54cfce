"""pydantic-ai behind the gate: `Agent(model, output_type=gate_output(AgentOutput, max_attempts=3))`."""

import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from meruit.bridges.candidates import candidate_in
from meruit.errors import AgentError, SubmissionConflict
from meruit.gate.context import AgentContext
from meruit.gate.definition import OUTPUT_TOOL
from meruit.gate.gate import Gate
from meruit.gate.limits import GateLimits
from meruit.gate.loop import SECOND_OUTPUT
from meruit.gate.verdict import Passed
from meruit.model.chat import Usage

try:
    from pydantic_ai import ModelRetry, RunContext, StructuredDict, ToolOutput
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import ModelResponse
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "this bridge is for pydantic-ai: pip install pydantic-ai-slim", name=missing.name
    ) from None


# Any, here and below: the output and the final result are of the author's own types, as are an agent's deps.
def gate_output(output_type: Any, *, tool_name: str = OUTPUT_TOOL, **settings: Any) -> ToolOutput[Any]:
    """An `output_type` for an agent: its run ends when its output passes, with the final result.

    Settings are those of `Gate`, for example `max_attempts`, or `store` for a record. A rejection is the reply to the
    model's call; of several calls in one turn the first is judged. `Agent.run` raises VerificationExhausted,
    CouldNotVerify and VerificationWaiting. The retries of the agent are set for you. For a streamed run use
    `run_stream_events` or `event_stream_handler`: `run_stream` cannot retry.
    """
    gates = _RunGates(output_type, settings)
    spec = gates.sample.output.spec

    async def agent_output(context: RunContext[Any], arguments: dict[str, Any]) -> Any:
        if context.partial_output:
            return arguments
        gate = gates.gate_for(context)
        return await _submit(gate, context, candidate_in(gate.output, msgspec.json.encode(arguments).decode()))

    try:
        # Every payload reaches the gate, which counts schema errors separately and gives feedback.
        agent_output.__annotations__["arguments"] = StructuredDict(spec.parameters)
    except UserError as problem:
        raise AgentError(f"pydantic-ai cannot use {gates.sample.output.name} as an output: {problem}") from None
    agent_output.__annotations__["return"] = gates.sample.verifier.returns
    return ToolOutput(
        agent_output, name=tool_name, description=spec.description, max_retries=most_retries(gates.sample.state.limits)
    )


def gate_validator(output_type: Any, **settings: Any) -> Callable[[RunContext[Any], Any], Awaitable[Any]]:
    """A validator for `agent.output_validator(…)`, for outputs without a tool call: native, prompted or plain text.

    The agent's own retries apply, 1 by default. With too few retries, the first output raises AgentError.
    """
    gates = _RunGates(output_type, settings)
    needed = most_retries(msgspec.structs.replace(gates.sample.state.limits, schema_errors=1))

    async def validate(context: RunContext[Any], output: Any) -> Any:
        if context.partial_output:
            return output
        if context.max_retries < needed:
            raise AgentError(
                f"this agent has {context.max_retries} retries, and its verifier may need {needed}: "
                f'Agent(…, retries={{"output": {needed}}}), and not run_stream, which never retries'
            )
        return await _submit(gates.gate_for(context), context, output)

    return validate


def most_retries(limits: GateLimits) -> int:
    """Most retries of a model before a gate with these limits ends the run itself."""
    judged = (limits.max_attempts - 1) * limits.no_progress
    return judged + (judged + 1) * (limits.schema_errors - 1)


async def _submit(gate: Gate, context: RunContext[Any], candidate: Any) -> Any:
    if not _is_first_output(context):
        raise ModelRetry(SECOND_OUTPUT.format(context.tool_name))
    agent_ctx = AgentContext(
        run_id=gate.run_id, agent=_agent_name(context), query=_query(context), turn=context.run_step
    )
    # Both are the same when a durable run is recovered.
    submission_id = f"{context.run_step}:{context.tool_call_id or 'text'}"
    try:
        answer = await gate.submit(candidate, submission_id=submission_id, agent_ctx=agent_ctx, usage=_usage(context))
    except SubmissionConflict:
        # Some providers give two calls of one turn the same id.
        raise ModelRetry(SECOND_OUTPUT.format(context.tool_name)) from None
    if isinstance(answer, Passed):
        return answer.result
    raise ModelRetry(answer.feedback)


def _is_first_output(context: RunContext[Any]) -> bool:
    """Whether no call before this one in the model's answer submits an output: only the first one is judged."""
    last = context.messages[-1] if context.messages else None
    if context.tool_call_id is None or not isinstance(last, ModelResponse):
        return True
    calls = [part.tool_call_id for part in last.tool_calls if part.tool_name == context.tool_name]
    return context.tool_call_id not in calls[1:] or context.tool_call_id == calls[0]


def _query(context: RunContext[Any]) -> str:
    """The text of the prompt, which may also have images and files."""
    prompt = context.prompt
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(part for part in prompt if isinstance(part, str))


def _usage(context: RunContext[Any]) -> Usage:
    used = context.usage
    return Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, used.requests)


def _agent_name(context: RunContext[Any]) -> str:
    return (None if context.agent is None else context.agent.name) or "pydantic-ai"


class _RunGates:
    """The gates of all current runs."""

    def __init__(self, output_type: Any, settings: dict[str, Any]) -> None:
        if "run_id" in settings:
            raise AgentError("the run of the agent names the run of the gate: Agent.run(…, run_id=…)")
        self._output_type, self._settings = output_type, settings
        self._open: dict[tuple[str | None, int], Gate] = {}
        # Wrong settings are an error here, not at the first run.
        self.sample = Gate(output_type, **settings)

    def gate_for(self, context: RunContext[Any]) -> Gate:
        # The usage object lives as long as its run; nothing else signals the end.
        key = (context.run_id, id(context.usage))
        if key not in self._open:
            own = {
                "run_id": context.run_id,
                "agent": _agent_name(context),
                "query": _query(context),
                "deps": context.deps,
            }
            self._open[key] = Gate(self._output_type, **own | self._settings)
            weakref.finalize(context.usage, self._open.pop, key, None).atexit = False
        return self._open[key]
