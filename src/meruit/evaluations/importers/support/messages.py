"""Chat messages of other tools in one form: role, content, and tool calls as `function` with name and arguments."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from meruit.evaluations.importers.support.pieces import items, mapping, plain

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "agent": "assistant"}
# As tuples: the type of a part may be any JSON, also what has no hash.
THOUGHTS = ("reasoning", "thinking")
"""Parts of a message that are not its answer."""
RESULTS = ("tool_call_response", "tool_result")
"""Parts that hold what a tool gave back, in a message of the user or of the tool."""


def text_of(content: Any) -> str:
    """The text of a content: a text itself, or the text parts of a list, each on its own line."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        found = content.get("text", content.get("content"))
        return found if isinstance(found, str) else ""
    parts = [text_of(part) for part in items(content) if mapping(part).get("type") not in THOUGHTS + RESULTS]
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
    """A conversation in the common form; what tools gave back is a message of its own."""
    made = []
    for one in items(messages):
        message = to_message(one)
        parts = mapping(one).get("content", mapping(one).get("parts"))
        results = [_to_result(mapping(part)) for part in items(parts) if mapping(part).get("type") in RESULTS]
        made += results
        if not results or message["content"] or "tool_calls" in message:
            made.append(message)
    return made


def _to_result(part: Mapping[str, Any]) -> dict[str, Any]:
    found = next((part[key] for key in ("response", "result", "content") if part.get(key) is not None), "")
    text = found if isinstance(found, str) else text_of(found) or msgspec.json.encode(plain(found)).decode()
    call_id = next((part[key] for key in ("id", "tool_use_id") if isinstance(part.get(key), str)), None)
    return {"role": "tool", "content": text, **({} if call_id is None else {"tool_call_id": call_id})}


def last_answer(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The text of the last message of the assistant; None where there is none."""
    return next((one["content"] for one in reversed(messages) if one["role"] == "assistant" and one["content"]), None)


def prompt_of(given: Any) -> str:
    """The prompt as text: a text itself, or the last message of the user that has one."""
    if isinstance(given, str):
        return given
    asked: Iterable[str] = (one["content"] for one in reversed(to_messages(given)) if one["role"] == "user")
    return next(filter(None, asked), "")
