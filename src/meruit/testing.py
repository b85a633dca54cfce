"""Helpers for tests of agents and verifiers: scripted models, verifiers without an agent, the type of a fixture."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from meruit._lazy import lazy_names
from meruit.errors import AgentError, ScriptOver
from meruit.gate.ask_verifier import ask_verifier
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import OUTPUT_TOOL, SchemaMismatch, output_type_of
from meruit.gate.verdict import VerifierAnswer
from meruit.gate.verifier import VERIFIER_PARAMETERS
from meruit.model.chat import ModelAnswer, ToolCall, ToolSpec, Usage
from meruit.suggestions import nearest

if TYPE_CHECKING:
    from meruit.pytest_plugin.fixture import MeruitFixture

__all__ = ["MeruitFixture", "ScriptedModel", "calls", "says", "submits", "verdict_of"]

# It needs pytest, which these helpers do not.
__getattr__ = lazy_names(__name__, {"pytest_plugin.fixture": ("MeruitFixture",)})[0]


def __dir__() -> list[str]:
    return __all__


ScriptLine = ModelAnswer | Exception | Callable[[Sequence[dict[str, Any]]], ModelAnswer]


class ScriptedModel:
    """A model that gives the answers of a script, one per turn, and records the requests.

    It answers by the number of turns in the conversation, not by the number of requests: a run that is driven again
    after a crash gets the same answers.
    """

    def __init__(self, script: Iterable[ScriptLine]) -> None:
        self.script = [_check_line(place, line) for place, line in enumerate(script, start=1)]
        self.asked: list[list[dict[str, Any]]] = []
        self.forced: list[str | None] = []

    async def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[ToolSpec],  # noqa: ARG002 - the script has the calls
        force: str | None = None,
    ) -> ModelAnswer:
        """Return the next line of the script, or raise it if it is an exception."""
        self.asked.append([*messages])
        self.forced.append(force)
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(self.script):
            raise ScriptOver(f"the script has {len(self.script)} answers, and the agent needs another; add one")
        line = self.script[turn]
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, ModelAnswer) else line(messages)


# Any: a line of the author's script.
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
    wrong = f"line {place} of the script is of type {type(line).__name__}, which is not a valid answer"
    raise AgentError(f"{wrong}; write {better}")


def says(text: str = "", *calls: ToolCall, tokens: tuple[int, int] = (10, 5)) -> ModelAnswer:
    """Make an answer of a scripted model."""
    usage = Usage(tokens[0], tokens[1], requests=1)
    return ModelAnswer(text=text, calls=calls, usage=usage, finish="tool_calls" if calls else "stop", model="scripted")


def calls(name: str, call_id: str = "call_1", **arguments: Any) -> ToolCall:
    """Make a tool call for such an answer."""
    return ToolCall(call_id, name, msgspec.json.encode(arguments).decode())


def submits(call_id: str = "call_1", **output: Any) -> ModelAnswer:
    """Make an answer that submits an output."""
    return says("", calls(OUTPUT_TOOL, call_id, **output))


def verdict_of(output: Any, *, reject_on: tuple[type[Exception], ...] = (), **supply: Any) -> VerifierAnswer:
    """Call the verifier of an output as the gate would; returns Acceptance, Rejection, SystemErrorVerdict or Deferral.

    `supply` has values for the parameters of the verifier: `attempt`, `deps`, `agent_ctx`, `answer` and so on.
    """
    unknown = [name for name in supply if name not in VERIFIER_PARAMETERS]
    if unknown:
        close = nearest(unknown[0], VERIFIER_PARAMETERS)
        known = ", ".join(VERIFIER_PARAMETERS)
        raise AgentError(f"{unknown[0]!r} is not a parameter of verifiers{close}; use one of {known}")
    kind = output_type_of(type(output), None, reject_on)
    if kind.verifier is None:
        raise AgentError(f"{kind.name} has no verify method; add one")
    read = kind.candidate(output)
    if isinstance(read, SchemaMismatch):
        raise AgentError(f"the output is not a valid {kind.name}: {read.problems}")
    usual = {"attempt": 1, "max_attempts": 5, "submission_id": "test", "deps": None}
    contexts = {"agent_ctx": AgentContext(), "execution_ctx": ExecutionContext()}
    return asyncio.run(ask_verifier(read, kind.verifier, {**usual, **contexts, **supply})).verdict.said
