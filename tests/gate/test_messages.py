"""Messages about wrong definitions, as authors read them."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from tests.golden import check_golden

from meruit.errors import MeruitError
from meruit.gate.agent import Agent
from meruit.gate.gate import Gate
from meruit.gate.team import Team, WorkItem
from meruit.gate.tools import tool
from meruit.gate.verifier import verifier_from, verifier_of
from meruit.testing import ScriptedModel, says, verdict_of

MEMBER = Agent("member", output_type=int)


class Plain(BaseModel):
    n: int = 1


class Checked(BaseModel):
    n: float

    def verify(self) -> float:
        return self.n


def positional(x: int, /) -> None: ...


def many(*xs: int) -> None: ...


def hidden(_x: int) -> None: ...


def with_verify(verify: Any) -> type:
    return type("Output", (), {"verify": verify})


def unknown_parameter(self: Any, other: int) -> int:
    return other


def generator(self: Any) -> Iterator[int]:
    yield 1


def nothing() -> None: ...


def item(name: str, needs: Any = ()) -> WorkItem:
    return WorkItem(name, MEMBER, "", needs)


# Any: wrong on purpose.
WRONG: Any = "Out"
REFUSED: dict[str, Callable[[], Any]] = {
    "tool, positional only": lambda: tool(positional),
    "tool, variadic": lambda: tool(many),
    "tool, no schema": lambda: tool(hidden),
    "verifier, unknown parameter": lambda: verifier_of(with_verify(unknown_parameter)),
    "verifier, generator": lambda: verifier_of(with_verify(generator)),
    "verifier, static": lambda: verifier_of(with_verify(staticmethod(nothing))),
    "verifier, no output": lambda: verifier_of(with_verify(nothing)),
    "verifier, not a function": lambda: verifier_from(partial(nothing)),
    "agent, output type": lambda: Agent("a", output_type=WRONG),
    "agent, model": lambda: Agent("a", "", WRONG),
    "agent, no model": lambda: Agent("a").run_sync("go"),
    "agent, empty query": lambda: Agent("a", "", ScriptedModel([])).run_sync(" "),
    "agent, event loop": lambda: asyncio.run(in_event_loop()),
    "agent, script over": lambda: Agent("a", "", ScriptedModel([])).run_sync("go"),
    "script, not an answer": lambda: ScriptedModel([says("hm"), WRONG]),
    "team, empty": lambda: Team("team", []),
    "team, name": lambda: Team("team", [item("a/b")]),
    "team, twice": lambda: Team("team", [item("a"), item("a", ("b",))]),
    "team, missing": lambda: Team("team", [item("a", ("b",))]),
    "team, text": lambda: Team("team", [item("a", "b")]),
    "team, cycle": lambda: Team("team", [item("a", ("b",)), item("b", ("a",)), item("c")]),
    "team, output": lambda: Team("team", [item("a")], output="b"),
    "gate, no verify": lambda: Gate(int),
    "gate, store": lambda: Gate(Checked, store=WRONG),
    "gate, budget": lambda: Gate(Checked, max_attempts=0),
    "gate, timeout": lambda: Gate(Checked, timeout_s=0),
    "testing, no verify": lambda: verdict_of(Plain()),
    "testing, not JSON": lambda: verdict_of(Checked(n=float("nan"))),
    "testing, unknown parameter": lambda: verdict_of(Checked(n=1), atempt=2),
}


async def in_event_loop() -> None:
    Agent("a", "", ScriptedModel([])).run_sync("go")


def message_of(refused: Callable[[], Any]) -> str:
    with pytest.raises(MeruitError) as caught:
        refused()
    return f"{type(caught.value).__name__} ({caught.value.code}): {caught.value}"


@pytest.mark.golden
def test_messages_about_wrong_definitions() -> None:
    check_golden("gate/definitions", "".join(f"{name}\n  {message_of(one)}\n\n" for name, one in REFUSED.items()))
