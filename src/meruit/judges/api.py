"""The chat APIs that judges speak: how a question is written for each, and how its answer is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from meruit.judges.prompt import REPAIR, JudgePrompt
from meruit.judges.settings import JudgeSettings
from meruit.sources.http import bearer_headers

VOTE = "vote"
"""The name of the tool, or of the schema, that structures the answer."""
ANTHROPIC_VERSION = "2023-06-01"


class TokenUse(msgspec.Struct, frozen=True):
    """What an endpoint counted; None where it did not say."""

    input: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An endpoint's answer, before it is read as a vote."""

    # Any: a model may answer with any JSON.
    reply: Any
    """The arguments of the tool call, or the text; None for neither."""
    refusal: str | None
    """What the model says instead of an answer, where it refuses."""
    model: str
    tokens: TokenUse


class ChatApi(Protocol):
    """One chat API."""

    path: str
    fixed_headers: Mapping[str, str]

    def headers(self, secret: str) -> Mapping[str, str]:
        """The headers that carry the key."""

    # Any: JSON.
    def body(self, voter: JudgeSettings, prompt: JudgePrompt, *, seed: int | None, repair: bool) -> dict[str, Any]:
        """The request; with `repair`, the same question again after an unreadable answer."""

    def read(self, payload: Any) -> ApiAnswer:
        """The answer in a reply; a reply of another form has an answer that says nothing."""


class OpenAiApi:
    """Chat completions of OpenAI and compatible endpoints."""

    path = "/chat/completions"
    fixed_headers: Mapping[str, str] = {}

    def headers(self, secret: str) -> Mapping[str, str]:
        """The headers that carry the key."""
        return bearer_headers(secret)

    def body(self, voter: JudgeSettings, prompt: JudgePrompt, *, seed: int | None, repair: bool) -> dict[str, Any]:
        """The request; with `repair`, the same question again after an unreadable answer."""
        body: dict[str, Any] = {
            "model": voter.model,
            "messages": [
                {"role": "system", "content": prompt.system},
                {"role": "user", "content": _with_repair(prompt.user, repair=repair)},
            ],
            "max_tokens": voter.max_tokens,
        }
        if voter.temperature is not None:
            body["temperature"] = voter.temperature
        if seed is not None:
            body["seed"] = seed
        if voter.answer == "tool":
            function = {"name": VOTE, "description": "Give your vote.", "parameters": prompt.schema}
            body["tools"] = [{"type": "function", "function": function}]
            body["tool_choice"] = {"type": "function", "function": {"name": VOTE}}
        else:
            schema = {"name": VOTE, "strict": True, "schema": prompt.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def read(self, payload: Any) -> ApiAnswer:
        """The answer in a reply; a reply of another form has an answer that says nothing."""
        choice = _first(_get(payload, "choices"))
        message = _get(choice, "message")
        usage = _get(payload, "usage")
        refusal = _get(message, "refusal")
        if _get(choice, "finish_reason") == "content_filter":
            refusal = refusal or "the endpoint filtered the answer"
        called = _get(_get(_first(_get(message, "tool_calls")), "function"), "arguments")
        return ApiAnswer(
            reply=called if called is not None else _get(message, "content"),
            refusal=str(refusal) if refusal else None,
            model=_text(_get(payload, "model")),
            tokens=TokenUse(_count(_get(usage, "prompt_tokens")), _count(_get(usage, "completion_tokens"))),
        )


class AnthropicApi:
    """Messages of Anthropic."""

    path = "/v1/messages"
    fixed_headers: Mapping[str, str] = {"anthropic-version": ANTHROPIC_VERSION}

    def headers(self, secret: str) -> Mapping[str, str]:
        """The headers that carry the key."""
        return {"x-api-key": secret}

    def body(self, voter: JudgeSettings, prompt: JudgePrompt, *, seed: int | None, repair: bool) -> dict[str, Any]:
        """The request; with `repair`, the same question again after an unreadable answer. It takes no seed."""
        del seed
        body: dict[str, Any] = {
            "model": voter.model,
            "max_tokens": voter.max_tokens,
            "system": prompt.system,
            "messages": [{"role": "user", "content": _with_repair(prompt.user, repair=repair)}],
            "tools": [{"name": VOTE, "description": "Give your vote.", "input_schema": prompt.schema}],
            "tool_choice": {"type": "tool", "name": VOTE},
        }
        if voter.temperature is not None:
            body["temperature"] = voter.temperature
        return body

    def read(self, payload: Any) -> ApiAnswer:
        """The answer in a reply; a reply of another form has an answer that says nothing."""
        blocks = _get(payload, "content")
        blocks = blocks if isinstance(blocks, list) else []
        called = next((_get(one, "input") for one in blocks if _get(one, "type") == "tool_use"), None)
        text = "".join(_text(_get(one, "text")) for one in blocks if _get(one, "type") == "text")
        usage = _get(payload, "usage")
        refused = _get(payload, "stop_reason") == "refusal"
        return ApiAnswer(
            reply=called if called is not None else text or None,
            refusal=(text or "the model refused") if refused else None,
            model=_text(_get(payload, "model")),
            tokens=TokenUse(_input_tokens(usage), _count(_get(usage, "output_tokens"))),
        )


APIS: dict[str, ChatApi] = {"openai": OpenAiApi(), "anthropic": AnthropicApi()}
"""By the `api` of a judge's settings."""


def _with_repair(user: str, *, repair: bool) -> str:
    # The unreadable answer is not sent back: it may quote the work, which would then stand outside of its fence.
    return f"{user}\n\n{REPAIR}" if repair else user


def _input_tokens(usage: Any) -> int | None:
    """All input tokens: Anthropic counts those that it read from or wrote to its cache beside the others."""
    parts = [_count(_get(usage, name)) for name in ("input_tokens", "cache_creation_input_tokens")]
    parts.append(_count(_get(usage, "cache_read_input_tokens")))
    return None if parts[0] is None else sum(part or 0 for part in parts)


# Any: a server may send any JSON.
def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
