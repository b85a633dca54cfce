"""Chat messages of other tools in one form: role, content, and tool calls as `function` with name and arguments."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meruit.evaluations.importers.support.pieces import items, mapping

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "agent": "assistant"}


def text_of(content: Any) -> str:
    """The text of a content: a text itself, or the text parts of a list, each on its own line."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        found = content.get("text", content.get("content"))
        return found if isinstance(found, str) else ""
    parts = [text_of(part) for part in content] if isinstance(content, list) else []
    return "\n".join(filter(None, parts))


def to_message(message: Any) -> dict[str, Any]:
    """One message in the common form."""
    found = mapping(message)
    role = str(found.get("role", "user"))
    content = found.get("content", found.get("parts", found.get("text", "")))
    made: dict[str, Any] = {"role": ROLES.get(role, role), "content": text_of(content)}
    calls = [to_call(one) for one in items(found.get("tool_calls"))]
    calls += [to_call(one) for one in items(content) if mapping(one).get("type") in ("tool_call", "tool_use")]
    if calls:
        made["tool_calls"] = calls
    call_id = found.get("tool_call_id")
    if isinstance(call_id, str):
        made["tool_call_id"] = call_id
    return made


def to_call(call: Any) -> dict[str, Any]:
    """A tool call in the common form."""
    found = mapping(call)
    inner = mapping(found.get("function"))
    name = inner.get("name") or found.get("name") or found.get("function_name") or found.get("function")
    arguments: Any = next(
        (one[key] for one in (inner, found) for key in ("arguments", "input", "args") if one.get(key) is not None),
        {},
    )
    made = {"type": "function", "function": {"name": str(name or "unknown"), "arguments": arguments}}
    call_id = found.get("id", found.get("tool_call_id"))
    return made if not isinstance(call_id, str) else {"id": call_id, **made}


def to_messages(messages: Any) -> list[dict[str, Any]]:
    """A conversation in the common form."""
    return [to_message(one) for one in items(messages)]


def last_answer(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The text of the last message of the assistant; None where there is none."""
    return next((one["content"] for one in reversed(messages) if one["role"] == "assistant" and one["content"]), None)


def prompt_of(given: Any) -> str:
    """The prompt as text: a text itself, or the last message of the user."""
    if isinstance(given, str):
        return given
    asked: Iterable[str] = (one["content"] for one in reversed(to_messages(given)) if one["role"] == "user")
    return next(iter(asked), "")
