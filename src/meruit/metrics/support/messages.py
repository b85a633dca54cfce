"""The tool calls in recorded messages, whichever API or framework wrote them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import orjson

from meruit.errors import AuthorError
from meruit.model.evidence import Cause, Fault, Missing, Provenance
from meruit.model.work import Work

MAX_MESSAGES = 100_000
MAX_CALLS = 10_000
"""Recorded calls that are compared."""
MAX_EXPECTED = 200
"""Calls that a criterion names."""
ARGUMENT_RULES = ("subset", "exact", "ignore")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a tool, as it was recorded."""

    name: str
    arguments: Any
    """An object as a rule; a text where what the model wrote is not JSON."""


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """The tool calls of one work, in order, and how far they can be trusted."""

    calls: tuple[RecordedCall, ...]
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class CallPattern:
    """A call that a criterion expects or forbids."""

    name: str
    """With `*` for any characters."""
    arguments: Mapping[str, Any] | None = None
    rule: str = "subset"

    def fits(self, call: RecordedCall) -> bool:
        """Whether a recorded call is such a call."""
        if not fnmatchcase(call.name, self.name):
            return False
        if self.arguments is None or self.rule == "ignore":
            return True
        if not isinstance(call.arguments, Mapping):
            return False
        if self.rule == "exact" and call.arguments.keys() != self.arguments.keys():
            return False
        return all(
            name in call.arguments and _canonical(call.arguments[name]) == _canonical(value)
            for name, value in self.arguments.items()
        )

    def __str__(self) -> str:
        """As evidence shows it."""
        return self.name if self.arguments is None else f"{self.name}({', '.join(sorted(self.arguments))})"


def _canonical(value: Any) -> bytes:
    # 1 and 1.0 are one number of JSON.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)


def call_patterns(value: Any, where: str, rule: str = "subset") -> tuple[CallPattern, ...]:
    """The calls that an author lists: names, or objects with `name` and `arguments`; raises AuthorError."""
    items = value if isinstance(value, list | tuple) else [value]
    if len(items) > MAX_EXPECTED:
        raise AuthorError(f"{where} lists {len(items)} calls; the limit is {MAX_EXPECTED}")
    return tuple(_call_pattern(item, where, rule) for item in items)


def _call_pattern(item: Any, where: str, rule: str) -> CallPattern:
    if isinstance(item, str) and item:
        return CallPattern(item, rule=rule)
    if isinstance(item, Mapping) and isinstance(item.get("name"), str) and item["name"]:
        unknown = sorted(str(key) for key in item.keys() - {"name", "arguments"})
        arguments = item.get("arguments")
        if not unknown and (arguments is None or isinstance(arguments, Mapping)):
            return CallPattern(item["name"], arguments, rule)
    raise AuthorError(f"{where} takes names of tools, or objects with name and arguments, not {item!r}")


def calls_of(work: Work) -> RecordedCalls | Missing:
    """The tool calls in `metadata.messages` (observed) or else in `output.messages` (the agent's claim)."""
    for holder, provenance in ((work.metadata, Provenance.OBSERVED), (work.output, Provenance.CLAIMED)):
        messages = holder.get("messages")
        if messages is None:
            continue
        if not isinstance(messages, list | tuple) or len(messages) > MAX_MESSAGES:
            return Missing(f"messages is not a list of at most {MAX_MESSAGES}", Cause.WRONG_TYPE, Fault.SYSTEM)
        found: list[RecordedCall] = []
        for message in messages:
            found.extend(_calls_of(message))
            if len(found) > MAX_CALLS:
                return Missing(f"more than {MAX_CALLS} tool calls are recorded", Cause.TOO_COSTLY, Fault.SYSTEM)
        return RecordedCalls(tuple(found), provenance)
    return Missing("no messages are recorded, neither in metadata.messages nor in output.messages", fault=Fault.SYSTEM)


def _calls_of(message: Any) -> Iterator[RecordedCall]:
    if not isinstance(message, Mapping):
        return
    # Items of OpenAI's Responses API stand beside messages.
    if message.get("type") == "function_call":
        yield from _call_of(message)
    for call in _items(message.get("tool_calls")):
        yield from _call_of(call)
    # Blocks of Anthropic; parts of Gemini and pydantic-ai.
    for part in (*_items(message.get("content")), *_items(message.get("parts"))):
        if part.get("type") == "tool_use" or part.get("part_kind") == "tool-call":
            yield from _call_of(part)
        for name in ("functionCall", "function_call"):
            if isinstance(part.get(name), Mapping):
                yield from _call_of(part[name])


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _call_of(call: Mapping[str, Any]) -> Iterator[RecordedCall]:
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    names = (function, inner.get("function_name"), inner.get("tool_name"), inner.get("name"))
    name = next((name for name in names if isinstance(name, str) and name), None)
    if name is not None:
        keys = (key for key in ("arguments", "args", "input") if inner.get(key) is not None)
        yield RecordedCall(name, _parse_arguments(inner.get(next(keys, ""))))


def _parse_arguments(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value) if value.strip() else {}
    except ValueError:
        return value
