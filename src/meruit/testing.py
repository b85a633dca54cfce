"""For tests of agents and verifiers: a model that says what it is told to, and a verifier asked without an agent."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from meruit.errors import AgentError, ScriptOver, nearest
from meruit.gate.ask_verifier import ask_verifier
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import OUTPUT_TOOL, SchemaMismatch, output_type_of
from meruit.gate.verdict import VerifierVerdict
from meruit.gate.verifier import INJECTED
from meruit.model.chat import ModelAnswer, ToolCall, ToolSpec, Usage

__all__ = ["ScriptedModel", "calls", "says", "submits", "verdict_of"]

ScriptLine = ModelAnswer | Exception | Callable[[Sequence[dict[str, Any]]], ModelAnswer]


class ScriptedModel:
    """A model that gives the answers of a script, one a turn, and keeps what it was asked.

    It answers by the number of turns in the conversation, not by how often it was asked: a run that is driven again
    after a crash hears the same.
    """

    def __init__(self, script: Iterable[ScriptLine]) -> None:
        self.script = [_check_line(place, line) for place, line in enumerate(script, start=1)]
        self.asked: list[list[dict[str, Any]]] = []
        self.forced: list[str | None] = []

    async def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[ToolSpec],  # noqa: ARG002 - a script knows what to call
        force: str | None = None,
    ) -> ModelAnswer:
        """The next line of the script; one that is an exception is raised."""
        self.asked.append([*messages])
        self.forced.append(force)
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(self.script):
            raise ScriptOver(f"the script has {len(self.script)} answers, and the model was asked for another")
        line = self.script[turn]
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, ModelAnswer) else line(messages)


# Any: whatever somebody wrote there.
def _check_line(place: int, line: Any) -> ScriptLine:
    if isinstance(line, ModelAnswer | Exception) or (callable(line) and not isinstance(line, type)):
        return line
    match line:
        case ToolCall():
            better = 'says("", calls(…))'
        case str():
            better = f"says({msgspec.json.encode(line).decode()})"
        case _:
            better = "says(…)"
    wrong = f"line {place} of the script is of type {type(line).__name__}, which is no answer"
    raise AgentError(f"{wrong}; write {better}")


def says(text: str = "", *calls: ToolCall, tokens: tuple[int, int] = (10, 5)) -> ModelAnswer:
    """An answer of a scripted model."""
    usage = Usage(tokens[0], tokens[1], requests=1)
    return ModelAnswer(text, calls, usage, "tool_calls" if calls else "stop", "scripted")


def calls(name: str, call_id: str = "call_1", **arguments: Any) -> ToolCall:
    """A tool's call in such an answer."""
    return ToolCall(call_id, name, msgspec.json.encode(arguments).decode())


def submits(call_id: str = "call_1", **output: Any) -> ModelAnswer:
    """An answer that hands in an output."""
    return says("", calls(OUTPUT_TOOL, call_id, **output))


def verdict_of(output: Any, **supply: Any) -> VerifierVerdict:
    """What an output's own verifier says of it, as the gate would hear it: Acceptance, Rejection or SystemErrorVerdict.

    `supply` is given to the verifier where it asks for it: `attempt`, `deps`, `agent_ctx` and so on.
    """
    unknown = [name for name in supply if name not in INJECTED]
    if unknown:
        close = nearest(unknown[0], INJECTED)
        raise AgentError(f"a verifier is given no {unknown[0]!r}{close}; there are {', '.join(INJECTED)}")
    kind = output_type_of(type(output))
    if kind.verifier is None:
        raise AgentError(f"{kind.name} has no verify")
    read = kind.candidate(output)
    if isinstance(read, SchemaMismatch):
        raise AgentError(f"this is no {kind.name}: {read.problems}")
    usual = {"attempt": 1, "max_attempts": 5, "submission_id": "test", "deps": None}
    contexts = {"agent_ctx": AgentContext(), "execution_ctx": ExecutionContext()}
    return asyncio.run(ask_verifier(read, kind.verifier, {**usual, **contexts, **supply})).verdict.said
