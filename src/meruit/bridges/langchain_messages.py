"""Find the candidate in LangChain messages, and build the replies."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from meruit.bridges.candidates import candidate_in
from meruit.errors import AgentError
from meruit.gate.definition import OUTPUT_TOOL, OutputType
from meruit.model.chat import Usage

MARK = "meruit"
"""Key that marks messages of the gate."""
ONE_ONLY = "Ignored: submit one output at a time."


# Any, here and below: an output of the author's own type, and the tool calls of LangChain.
def extract_candidate(output: OutputType, messages: Sequence[BaseMessage]) -> Any:
    """Find the candidate in the last message: the arguments of the output tool, or its text."""
    last = messages[-1] if messages else None
    if not isinstance(last, AIMessage):
        raise AgentError(
            "the last message is not from the model; route the graph from the model to the gate, or pass read=…"
        )
    calls = _calls(last)
    if not calls:
        return str(last.text) if output.kind is str else candidate_in(output, str(last.text))
    call = _output_call(output, calls)
    if call is None:
        names = ", ".join(str(one["name"]) for one in calls)
        raise AgentError(
            f"the last message calls {names}; route such calls to their tools, and only outputs to the gate"
        )
    arguments = call["args"]
    return candidate_in(output, arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


def replies(output: OutputType, messages: Sequence[BaseMessage], feedback: str) -> list[BaseMessage]:
    """Build the replies to the last message; every call needs one, because model APIs require it."""
    calls = _calls(messages[-1]) if messages else []
    mark = {MARK: "feedback"}
    if not calls:
        return [HumanMessage(feedback, additional_kwargs=mark)]
    submitted = _output_call(output, calls) or calls[0]
    return [
        ToolMessage(feedback if one is submitted else ONE_ONLY, tool_call_id=one["id"], additional_kwargs=mark)
        for one in calls
    ]


def query_in(messages: Sequence[BaseMessage]) -> str:
    """The text of what the user said last."""
    asked = [one for one in messages if isinstance(one, HumanMessage) and MARK not in one.additional_kwargs]
    return str(asked[-1].text) if asked else ""


def usage_of(messages: Sequence[BaseMessage]) -> Usage:
    """Tokens of the model's messages, as far as it reports them."""
    used = Usage()
    for one in messages:
        if isinstance(one, AIMessage):
            counts: Mapping[str, Any] = one.usage_metadata or {}
            cached = (counts.get("input_token_details") or {}).get("cache_read") or 0
            used += Usage(counts.get("input_tokens", 0), counts.get("output_tokens", 0), cached, requests=1)
    return used


def _calls(message: BaseMessage) -> list[Mapping[str, Any]]:
    return [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []


def _output_call(output: OutputType, calls: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((one for one in calls if one["name"] in (OUTPUT_TOOL, output.name)), None)
