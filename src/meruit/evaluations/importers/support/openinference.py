"""Attributes of OpenInference, as Phoenix and its instrumentations write them: conversations, and their usual names."""

from collections.abc import Iterable, Mapping
from typing import Any

from meruit.evaluations.importers.support.messages import to_messages
from meruit.evaluations.importers.support.pieces import items, mapping

KIND = "openinference.span.kind"
OPERATIONS = {"LLM": "chat", "EMBEDDING": "embeddings", "TOOL": "execute_tool", "AGENT": "invoke_agent"}
NAMES = {
    "llm.model_name": "gen_ai.request.model",
    "llm.token_count.prompt": "gen_ai.usage.input_tokens",
    "llm.token_count.completion": "gen_ai.usage.output_tokens",
    "llm.token_count.prompt_details.cache_read": "gen_ai.usage.cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "session.id": "gen_ai.conversation.id",
    "agent.name": "gen_ai.agent.name",
    "tool.name": "gen_ai.tool.name",
}
MAX_PARTS = 12
"""Parts of a dotted name that become objects within each other; the rest of a longer name stays one part."""
MAX_INDEX_DIGITS = 11
"""Digits of a part of a name that is an index of a list."""


def read_conversation(attributes: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The messages under this name: a list of them, or an attribute for each field of each message."""
    whole = attributes.get(name)
    below = {key.removeprefix(f"{name}."): value for key, value in attributes.items() if key.startswith(f"{name}.")}
    found = [mapping(_nest(one)) for one in (*items(whole), *items(_nest(below)))]
    return to_messages([_plain_message(mapping(one.get("message", one))) for one in found])


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    contents = [mapping(one).get("message_content", one) for one in items(message.get("contents"))]
    calls = [mapping(one).get("tool_call", one) for one in items(message.get("tool_calls"))]
    return {**message, "content": message.get("content") or contents, "tool_calls": calls}


def _nest(value: Any) -> Any:
    """Dotted names as objects within objects; an object whose names are all numbers as a list."""
    if isinstance(value, list):
        return [_nest(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    return _to_tree((name.split(".", MAX_PARTS), part) for name, part in value.items())


def _to_tree(pairs: Iterable[tuple[list[str], Any]]) -> Any:
    branches: dict[str, list[tuple[list[str], Any]]] = {}
    made: dict[str, Any] = {}
    for (first, *rest), value in pairs:
        if rest:
            branches.setdefault(first, []).append((rest, value))
        else:
            made[first] = _nest(value) if isinstance(value, list) else value
    made |= {name: _to_tree(branch) for name, branch in branches.items()}
    if made and all(name.isascii() and name.isdigit() and len(name) <= MAX_INDEX_DIGITS for name in made):
        return [made[name] for name in sorted(made, key=int)]
    return made


def to_gen_ai(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes with the names of OpenTelemetry beside those of OpenInference."""
    if KIND not in attributes:
        return attributes
    named = {new: attributes[old] for old, new in NAMES.items() if old in attributes}
    texts = {
        f"gen_ai.{side}.messages": read_conversation(attributes, f"llm.{side}_messages") for side in ("input", "output")
    }
    operation = OPERATIONS.get(str(attributes[KIND]))
    if operation == "execute_tool":
        named["gen_ai.tool.call.arguments"] = attributes.get("tool.parameters", attributes.get("input.value"))
    return {
        "gen_ai.operation.name": operation,
        **named,
        **{key: one for key, one in texts.items() if one},
        **attributes,
    }
