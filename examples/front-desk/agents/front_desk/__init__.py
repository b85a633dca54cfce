"""A module for each task: `gold` does it right, and every other public function makes the mistake it is named for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import getmembers, isfunction

from front_desk.desk import Desk

Agent = Callable[[Desk], object]
NEAR_MISS = "near_miss_"
"""With a number from 1, a task's mistakes in the order in which its module makes them, whatever their names."""


def doing_nothing(desk: Desk) -> None:
    """Look at the instruction, and go home."""


def agents(task: str) -> Mapping[str, Agent]:
    """Every agent of a task by its name: `gold`, `null` and the mistakes, these also as `near_miss_1` and so on."""
    module = import_module(f"front_desk.{task.replace('-', '_')}")
    own = [made for _, made in getmembers(module, isfunction) if made.__module__ == module.__name__]
    found = {one.__name__: one for one in sorted(own, key=lambda one: one.__code__.co_firstlineno)}
    named: dict[str, Agent] = {name: one for name, one in found.items() if not name.startswith("_")}
    mistakes = [one for name, one in named.items() if not name.startswith("gold")]
    numbered = {f"{NEAR_MISS}{number}": one for number, one in enumerate(mistakes, 1)}
    return {"null": doing_nothing, **named, **numbered}
