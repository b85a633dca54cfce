"""The OpenAI Agents SDK behind the gate: `await run_with_gate(agent, input)` replaces `Runner.run(agent, input)`."""

from typing import Any

import msgspec

from meruit.bridges.candidates import candidate_in
from meruit.errors import AgentError
from meruit.gate.context import AgentContext
from meruit.gate.gate import Gate
from meruit.gate.verdict import Passed
from meruit.model.chat import Usage as ChatUsage

try:
    from agents import Agent, AgentOutputSchema, AgentOutputSchemaBase, ModelBehaviorError, Runner, RunResult, Usage
    from agents.items import TResponseInputItem
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "this bridge is for the OpenAI Agents SDK: pip install openai-agents", name=missing.name
    ) from None

CONVERSATION_SETTINGS = frozenset({"session", "conversation_id"})
"""Settings with which the SDK or the server stores the conversation."""


class GatedRun(msgspec.Struct, frozen=True):
    """The result of a run."""

    # Any: the return value of the verifier.
    output: Any
    """The final result."""
    attempts_used: int
    usage: Usage
    """Usage of all requests, revisions included."""
    run: RunResult
    """The SDK's result of the revision that passed."""


async def run_with_gate(
    agent: Agent[Any],
    input: str | list[TResponseInputItem],  # noqa: A002 - as the SDK calls it
    output_type: Any = None,
    *,
    run: dict[str, Any] | None = None,
    **settings: Any,
) -> GatedRun:
    """Run the agent until its output passes; after a rejection it continues with the feedback.

    The output type is the agent's own, unless named; every answer must match it, plain text too. `run` has arguments
    for `Runner.run`: `context`, `max_turns`, `session` and so on. Settings are those of `Gate`, for example
    `max_attempts`, or `store` for a record. Raises VerificationExhausted, CouldNotVerify, VerificationWaiting and the
    errors of the SDK.
    """
    given = dict(run or {})
    asked, kind = _prepare_agent(agent, output_type, plain="verify" in settings)
    query = _query(input)
    gate = Gate(kind, **{"deps": given.get("context"), "query": query, **settings, "agent": agent.name})
    context = AgentContext(run_id=gate.run_id, agent=agent.name, query=query)
    usage, items = Usage(), input
    while True:
        result = await Runner.run(asked, items, **given)
        usage.add(result.context_wrapper.usage)
        if result.interruptions:
            raise AgentError(f"{agent.name} waits for an approval, which run_with_gate cannot give; use Runner.run")
        context.turn = usage.requests
        answer = await gate.submit(_candidate(gate, result.final_output), agent_ctx=context, usage=_count(usage))
        if isinstance(answer, Passed):
            return GatedRun(output=answer.result, attempts_used=gate.state.attempts_used, usage=usage, run=result)
        feedback: TResponseInputItem = {"role": "user", "content": answer.feedback}
        items = [feedback] if given.keys() & CONVERSATION_SETTINGS else [*result.to_input_list(), feedback]


def _query(given: str | list[TResponseInputItem]) -> str:
    """The text of what the user said last."""
    if isinstance(given, str):
        return given
    # Any: items are dictionaries of many shapes.
    items: list[Any] = given
    messages = [item for item in items if isinstance(item, dict) and item.get("role") == "user"]
    content = messages[-1].get("content") if messages else ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content or () if isinstance(part, dict) and "text" in part)


def _count(usage: Usage) -> ChatUsage:
    cached = usage.input_tokens_details.cached_tokens or 0
    return ChatUsage(usage.input_tokens, usage.output_tokens, cached, usage.requests)


class _LenientOutputSchema(AgentOutputSchema):
    """Asks for the output type but accepts any answer, so that the gate rejects it with its problems."""

    def validate_json(self, json_str: str) -> Any:
        try:
            return super().validate_json(json_str)
        except ModelBehaviorError:
            return json_str


def _prepare_agent(agent: Agent[Any], output_type: Any, *, plain: bool) -> tuple[Agent[Any], Any]:
    """Return the agent to run, and its output type."""
    own, strict = output_type or agent.output_type, True
    if isinstance(own, AgentOutputSchema):
        own, strict = own.output_type, own.is_strict_json_schema()
    if own in (None, str) and plain:
        return agent, str
    if own is None or isinstance(own, AgentOutputSchemaBase):
        raise AgentError(f"{agent.name} has no output type; pass one: run_with_gate(…, output_type=…)")
    return agent.clone(output_type=_LenientOutputSchema(own, strict_json_schema=strict)), own


def _candidate(gate: Gate, output: Any) -> Any:
    return candidate_in(gate.output, output) if isinstance(output, str) and gate.output.kind is not str else output
