"""Build the answer of a chat endpoint, from one piece or from a stream of many."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from meruit.errors import UnreadableChatReply
from meruit.model.chat import ModelAnswer, ToolCall, Usage
from meruit.model.decoding import convert_to, decode_json

DONE = b"[DONE]"
CUT_OFF = "length"
"""Finish reason of a model that reached its limit of tokens."""
MAX_TOKENS = 2**40
MAX_CALLS = 256
"""Most tool calls of one answer."""
MAX_ID_CHARS = 200
MAX_NAME_CHARS = 64
_NAMELESS = re.compile(r"[^a-zA-Z0-9_-]")


class _Function(msgspec.Struct):
    name: str | None = None
    # Any: JSON in a string; some servers send the JSON itself.
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    # Any: an answer must not be lost because its usage is not valid.
    usage: Any = None


@dataclass(slots=True)
class _PartialToolCall:
    """A call, as far as it was received."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ChatAnswerBuilder:
    """Builds one answer from its pieces."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[_PartialToolCall] = []
        self._by_index: dict[int, _PartialToolCall] = {}
        self._usage = Usage(requests=1, uncounted=1)
        self._finish: str | None = None
        self._model = self._id = ""

    @property
    def is_complete(self) -> bool:
        """Whether there is a finish reason, and every call has a name."""
        return self._finish is not None and all(call.name for call in self._calls)

    def add(self, came: Any) -> None:
        """Add one piece, or the only one; raises UnreadableChatReply."""
        try:
            reply = convert_to(came, _Reply)
        except msgspec.ValidationError as problem:
            raise UnreadableChatReply(str(problem)) from None
        self._id = self._id or reply.id or ""
        self._model = self._model or reply.model or ""
        if reply.usage is not None:
            self._usage = _parse_usage(reply.usage)
        for choice in reply.choices:
            # Of several choices, the first.
            if choice.index == 0:
                self._add_choice(choice)

    def _add_choice(self, choice: _Choice) -> None:
        if choice.message is not None:
            self._add_text(choice.message)
            for place, call in enumerate(choice.message.tool_calls or ()):
                self._extend_call(self._start_call(place), call)
            # One piece is complete; some servers give no finish reason.
            self._finish = choice.finish_reason or "stop"
        if choice.delta is not None:
            self._add_text(choice.delta)
            for call in choice.delta.tool_calls or ():
                self._extend_call(self._call_of_fragment(call), call)
        self._finish = choice.finish_reason or self._finish

    def _add_text(self, message: _Message) -> None:
        parts = message.content if isinstance(message.content, list) else [_Part(message.content)]
        self._text += [part.text for part in (*parts, _Part(message.refusal)) if part.text]

    def _call_of_fragment(self, fragment: _Call) -> _PartialToolCall:
        """Find the call that a fragment continues; some servers send no index, or the same index for all."""
        if fragment.index is not None:
            known = self._by_index.get(fragment.index)
        else:
            known = self._calls[-1] if self._calls else None
        if known is None:
            return self._start_call(fragment.index)
        another = bool(fragment.function.name) and bool(fragment.id) and fragment.id != known.id
        return self._start_call(fragment.index) if another else known

    def _start_call(self, index: int | None) -> _PartialToolCall:
        if len(self._calls) >= MAX_CALLS:
            raise UnreadableChatReply(f"it has more than {MAX_CALLS} tool calls")
        made = _PartialToolCall()
        self._calls.append(made)
        if index is not None:
            self._by_index[index] = made
        return made

    def _extend_call(self, call: _PartialToolCall, fragment: _Call) -> None:
        call.id = call.id or fragment.id or ""
        name, arguments = fragment.function.name, fragment.function.arguments
        if name and name != call.name:
            call.name += name
        if arguments is not None:
            call.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def answer(self, called_before: int) -> ModelAnswer:
        """Build the answer; calls without an id get the next numbers of the conversation."""
        finish = self._finish or "stop"
        return ModelAnswer(
            text=_join_surrogates("".join(self._text)),
            calls=tuple(
                ToolCall(call_id, _join_surrogates(call.name), _arguments(call, finish))
                for call, call_id in zip(self._calls, self._ids(called_before), strict=True)
            ),
            usage=self._usage,
            finish=_join_surrogates(finish),
            model=_join_surrogates(self._model),
            id=_join_surrogates(self._id),
        )

    def _ids(self, called_before: int) -> list[str]:
        given = [_join_surrogates(call.id) for call in self._calls]
        used = set(given)
        ids: dict[str, None] = {}
        for place, name in enumerate(given, called_before + 1):
            if not name or len(name) > MAX_ID_CHARS or name in ids:
                name = next(free for free in _call_ids_from(place) if free not in used)  # noqa: PLW2901 - its new id
                used.add(name)
            ids[name] = None
        return [*ids]


def _call_ids_from(place: int) -> Iterator[str]:
    return (f"call_{number}" for number in count(place))


def _arguments(call: _PartialToolCall, finish: str) -> str:
    written = _join_surrogates("".join(call.arguments))
    # Cut off before its first character: it must not pass for a call without arguments.
    return written or ("{" if finish == CUT_OFF else "")


def _join_surrogates(text: str) -> str:
    """Join surrogate pairs: streams cut characters in two, and half of one cannot be encoded."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# Any: usage as a server sends it, valid or not.
def _parse_usage(usage: Any) -> Usage:
    """Read the counts; without a valid count of input and output the request is uncounted, never zero tokens."""

    def is_count(value: Any) -> bool:
        # A number beyond the limit is not a valid count.
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS

    def number(value: Any) -> int:
        return int(value) if is_count(value) else 0

    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    put_in, put_out = counts.get("prompt_tokens"), counts.get("completion_tokens")
    # No prompt has zero tokens: some hosts write 0 where they do not count.
    is_known = number(put_in) > 0 and is_count(put_out)
    return Usage(
        input_tokens=number(put_in),
        output_tokens=number(put_out),
        cached_tokens=number(cached),
        requests=1,
        uncounted=0 if is_known else 1,
    )


def parse_json(data: bytes) -> Any:
    """Parse JSON; raises UnreadableChatReply."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as problem:
        raise UnreadableChatReply(str(problem)) from None


def error_in(came: Any) -> dict[str, Any] | None:
    """Find the error that a server sent instead of an answer."""
    match came:
        case {"error": dict(error)}:
            return error
        case {"error": str(message)}:
            return {"message": message}
        case _:
            return None


async def iter_event_data(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate over the data of server-sent events, up to `[DONE]`."""
    event: list[bytes] = []
    async for line in _lines(parts):
        if line.startswith(b"data:"):
            event.append(line[5:].removeprefix(b" "))
        elif not line and event:
            data = b"\n".join(event)
            if data.strip() == DONE:
                return
            yield data
            event = []
    # An event without its end is not complete, and ignored.


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest: list[bytes] = []
    async for part in parts:
        first, *others = part.split(b"\n")
        rest.append(first)
        for other in others:
            yield b"".join(rest).removesuffix(b"\r")
            rest = [other]


def to_sendable_message(message: dict[str, Any]) -> dict[str, Any]:
    """Make a message acceptable to every server: some parse the arguments of earlier calls and fail on invalid JSON."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{**call, "function": _to_sendable_function(call["function"])} for call in calls]}


def _to_sendable_function(function: dict[str, Any]) -> dict[str, Any]:
    name, arguments = function["name"], function["arguments"]
    try:
        decode_json(arguments, dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        arguments = json.dumps({"unreadable": arguments}) if arguments else "{}"
    return {"name": _NAMELESS.sub("_", name)[:MAX_NAME_CHARS] or "_", "arguments": arguments}
