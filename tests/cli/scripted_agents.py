"""Agents whose models say what a script says, for commands and routes to run."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from meruit.errors import Unreachable, VerificationRejected
from meruit.gate.agent import Agent
from meruit.gate.definition import AgentDefinition
from meruit.gate.team import Team, WorkItem
from meruit.gate.tools import Deferred
from meruit.model.chat import ModelAnswer, ToolSpec
from meruit.testing import ScriptedModel, calls, says, submits

EVIDENCE = "the-answer-is-three"
"""What only the verifier knows."""


class Number(BaseModel):
    """An output that is good from 3 on."""

    n: int

    def verify(self) -> dict[str, Any]:
        if self.n < 3:
            raise VerificationRejected(f"{self.n} is too small", code="small", metadata={"evidence": EVIDENCE})
        return {"number": self.n, "checked_against": EVIDENCE}


class Unjudged(BaseModel):
    """An output whose verifier breaks."""

    n: int

    def verify(self) -> None:
        raise ConnectionError("the oracle is away")


class Doubted(BaseModel):
    """An output whose verifier asks a person."""

    n: int

    def verify(self, answer: str | None = None) -> int | Deferred:
        if answer is None:
            return Deferred(f"is {self.n} right?")
        if answer == "no":
            raise VerificationRejected("A person says no.", code="refused")
        return self.n


class Hopeless(BaseModel):
    """An output whose verifier asks somebody who does not answer."""

    n: int

    def verify(self, answer: str | None = None) -> int | Deferred:
        return Deferred("is it right?", 0.01)


class Endless:
    """A model that never answers."""

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        await asyncio.Event().wait()
        raise AssertionError(messages, tools, force)


class Interrupted(Endless):
    """A model during whose answer somebody presses Ctrl-C."""

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        signal.raise_signal(signal.SIGINT)
        return await super().answer(messages, tools, force)


class Troubled(Endless):
    """A model that cannot be reached; somebody presses Ctrl-C soon after."""

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        asyncio.get_running_loop().call_later(1.5, signal.raise_signal, signal.SIGINT)
        raise Unreachable("the model is away")


def weather(place: str) -> str:
    """Look out of the window."""
    return f"sunny in {place}"


def approval() -> Deferred:
    """Ask a person."""
    return Deferred("a person's word")


def in_vain() -> Deferred:
    """Ask somebody who does not answer."""
    return Deferred("nobody's word", 0.01)


THIRD_TIME = (submits("a", n=1), submits("b", n=2), submits("c", n=3))
writer = Agent("writer", "Count.", ScriptedModel(THIRD_TIME), output_type=Number)
hasty = Agent("hasty", "Count.", ScriptedModel(THIRD_TIME), output_type=Number, verify_max_attempts=2)
unlucky = Agent("unlucky", "", ScriptedModel([submits(n=1)]), output_type=Unjudged, system_error_limit=1)
asker = Agent("asker", "", ScriptedModel([says("", calls("approval")), submits(n=3)]), [approval], Number)
patient = Agent("patient", "", ScriptedModel([says("", calls("in_vain")), submits(n=3)]), [in_vain], Number)
doubter = Agent("the doubter", "", ScriptedModel([submits(n=1), submits(n=2)]), output_type=Doubted)
hopeless = Agent("hopeless", "", ScriptedModel([submits(n=1)]), output_type=Hopeless)
endless = Agent("endless", "", Endless(), output_type=Number)
interrupted = Agent("interrupted", "", Interrupted(), output_type=Number)
clumsy = Agent("clumsy", "", ScriptedModel([submits(m=1), submits(m=2), submits(m=3)]), output_type=Number)
troubled = Agent("troubled", "", Troubled(), output_type=Number)
curious = Agent(
    "curious", "", ScriptedModel([says("", calls("weather", place="Rome")), submits(n=3)]), [weather], Number
)
plain = Agent("plain", "", ScriptedModel([says("two\nlines")]))
pair = Team("pair", [WorkItem("first", writer, "{query}"), WorkItem("second", plain, "{results}", ("first",))])
lost = Team("lost", [WorkItem("only", hasty, "{query}")])
agents: list[AgentDefinition | Team] = [pair, lost, hasty, unlucky, asker, endless, curious, doubter]
crew = [doubter, hopeless]
by_name = {"writer": writer}
nothing = ["writer"]
