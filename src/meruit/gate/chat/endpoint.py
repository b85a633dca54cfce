"""A model behind an OpenAI-compatible chat endpoint: a complete answer, a clear refusal, or an error to retry."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import msgspec

from meruit.errors import (
    AuthorError,
    HttpError,
    HttpFailure,
    ModelRefused,
    SourceError,
    Unreachable,
    UnreadableChatReply,
)
from meruit.gate.chat.stream import ChatAnswerBuilder, error_in, iter_event_data, parse_json, to_sendable_message
from meruit.model.chat import ModelAnswer, ToolSpec
from meruit.sources.credentials import SecretToken
from meruit.sources.http import HttpClient, HttpResponse, check_base_url
from meruit.sources.http_replies import (
    FORBIDDEN,
    NOT_FOUND,
    SERVER_ERRORS,
    TOO_MANY,
    HttpReply,
    check_status,
    excerpt_of,
    invalid_json_error,
    is_transient,
    quote_of,
    retry_after_s,
)
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy, Sleep

TIMEOUT_S = 600.0
"""Seconds for one answer, from name resolution to the last byte; models take long."""
CONNECT_S = 10.0
RETRIES = 2
"""Retries within one request; the worker retries the run as well."""
FIRST_WAIT_S = 0.5
MAX_WAIT_S = 60.0
"""Longest pause that a server may request; most limit requests per minute."""
MAX_REPLY_BYTES = 16 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error reply that are read."""
PATH = "/chat/completions"
RESERVED_SETTINGS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "n"})
"""Fields that every request sets, so that settings may not."""

_OK = range(200, 300)
_ERRORS = range(400, 600)
_CONFLICT = 409
_QUOTA_EXHAUSTED = "insufficient_quota"
"""How a provider reports, with the status for too many requests, that a retry does not help."""


class ChatEndpoint:
    """A ChatModel over HTTP: `ChatEndpoint("https://api.openai.com/v1", "gpt-5", api_key=…)`."""

    def __init__(  # noqa: PLR0913 - one for each setting of an endpoint
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | SecretToken | None = None,
        api_key_env: str | None = None,
        environment: Mapping[str, str] | None = None,
        stream: bool = False,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        settings: Mapping[str, Any] | None = None,
        client: httpx.AsyncClient | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Check the settings; raises AuthorError.

        `api_key_env` names a variable of `environment`. `settings` are added to every request: `{"temperature": 0}`.
        Without a `client`, each request has its own connection and uses no proxy.
        """
        self._url = _address(base_url)
        if not model:
            raise AuthorError("a chat endpoint needs the name of a model")
        if timeout_s <= 0 or retries < 0:
            raise AuthorError(f"timeout_s must be above 0 and retries at least 0, not {timeout_s:g} and {retries}")
        self.model = model
        self.stream = stream
        self._token = _token(api_key, api_key_env, environment)
        self._timeout_s = timeout_s
        self._retries = retries
        self._sleep = sleep
        self._settings = _check_settings(settings or {})
        self._client = client

    def __repr__(self) -> str:
        return f"ChatEndpoint({str(self._url)!r}, {self.model!r})"

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        """Return the model's complete next message; raises Unreachable where a retry may help, else ModelRefused."""
        content = self._encode_request(messages, tools, force)
        called_before = sum(len(message.get("tool_calls") or ()) for message in messages)
        accept = "text/event-stream" if self.stream else "application/json"
        # A client for each request: it belongs to the current event loop.
        http = HttpClient(client=self._client, token=self._token, policy=self._policy())
        try:
            builder = await http.request(
                "POST",
                str(self._url),
                self._read_response,
                headers={"Content-Type": "application/json", "Accept": accept},
                content=content,
            )
        except SourceError as error:
            raise (Unreachable if error.again else ModelRefused)(str(error)) from None
        return builder.answer(called_before)

    def _policy(self) -> ReadPolicy:
        return ReadPolicy(
            retry=BackoffSchedule(tries=self._retries + 1, first_wait_s=FIRST_WAIT_S),
            limits=ReadLimits(timeout_s=self._timeout_s, connect_s=CONNECT_S, reply_bytes=MAX_REPLY_BYTES),
            sleep=self._sleep,
        )

    def _encode_request(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None
    ) -> bytes:
        body: dict[str, Any] = {
            **self._settings,
            "model": self.model,
            "messages": [*map(to_sendable_message, messages)],
        }
        if tools:
            body["tools"] = [{"type": "function", "function": _function_spec(tool)} for tool in tools]
        if force is not None:
            body["tool_choice"] = {"type": "function", "function": {"name": force}}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as problem:
            raise ModelRefused(f"the conversation cannot be written as JSON: {problem}") from None

    async def _read_response(self, response: HttpResponse) -> ChatAnswerBuilder:
        """Return the whole answer; raises SourceError for a part of one."""
        if response.status not in _OK:
            raise self._refusal(await response.read_start(MAX_ERROR_BYTES))
        if "event-stream" in response.headers.get("content-type", ""):
            return await self._read_stream(response)
        reply = await response.read()
        try:
            return _require_complete(self._add_chunk(reply, ChatAnswerBuilder()), reply.where)
        except UnreadableChatReply as problem:
            raise invalid_json_error(reply, problem) from None

    async def _read_stream(self, response: HttpResponse) -> ChatAnswerBuilder:
        builder = ChatAnswerBuilder()
        async for data in iter_event_data(response.iter_bytes()):
            try:
                self._add_chunk(HttpReply(response.where, response.status, response.headers, data), builder)
            except UnreadableChatReply as problem:
                raise SourceError(
                    f"{response.where} broke off its answer: {problem}; check that it is up", again=True
                ) from None
        return _require_complete(builder, response.where)

    def _add_chunk(self, reply: HttpReply, builder: ChatAnswerBuilder) -> ChatAnswerBuilder:
        chunk = parse_json(reply.content)
        error = error_in(chunk)
        if error is not None:
            # Some servers report an error in a reply whose status says that all is well.
            code = error.get("code")
            status = code if isinstance(code, int) and code in _ERRORS else SERVER_ERRORS.start
            raise self._refusal(replace(reply, status=status))
        builder.add(chunk)
        return builder

    def _refusal(self, reply: HttpReply) -> SourceError:
        """Build the error for a reply that is not an answer; it says whether a retry may help."""
        status = reply.status
        message = f"{reply.where} answered with status {status}{quote_of(reply)}"
        if status == FORBIDDEN:
            advice = f"check that {self._token} is valid for it" if self._token else "give it an api_key"
            return SourceError(f"{message}; {advice}")
        if status == NOT_FOUND:
            return SourceError(f"{message}; check that there is a model {self.model!r}, and the path of base_url")
        if status == TOO_MANY and _QUOTA_EXHAUSTED in reply.content.decode(errors="replace"):
            return SourceError(f"{message}; check the quota of the account")
        if is_transient(status) or status == _CONFLICT:
            wait_s = retry_after_s(reply)
            wait_s = None if wait_s is None else min(wait_s, MAX_WAIT_S)
            return HttpError(HttpFailure.BUSY, f"{message}; try again later", again=True, wait_s=wait_s)
        try:
            check_status(reply, self._token)
        except HttpError as error:
            return error
        return SourceError(f"{message}; check what the model is asked" if excerpt_of(reply) else message)


def _address(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(check_base_url(base_url))
    except AuthorError as problem:
        raise AuthorError(f"the base_url of a chat endpoint cannot be used: {problem}") from None
    # The query of the URL stays: some servers expect their version there.
    return url.copy_with(path=url.path.rstrip("/") + PATH, fragment=None)


def _token(
    api_key: str | SecretToken | None, name: str | None, environment: Mapping[str, str] | None
) -> SecretToken | None:
    if name is None:
        return SecretToken.from_value(api_key) if isinstance(api_key, str) else api_key
    if api_key is not None:
        raise AuthorError("a chat endpoint has one key: pass api_key or api_key_env, not both")
    if environment is None:
        raise AuthorError(f"api_key_env={name!r} needs an environment; add environment=os.environ")
    return SecretToken.from_environment(name, environment)


def _check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    taken = sorted(RESERVED_SETTINGS & settings.keys())
    if taken:
        raise AuthorError(f"settings may not contain {', '.join(taken)}: every request sets that itself")
    try:
        msgspec.json.encode(dict(settings))
    except (TypeError, ValueError, RecursionError) as problem:
        raise AuthorError(f"the settings of a chat endpoint must be JSON: {problem}") from None
    return dict(settings)


def _function_spec(tool: ToolSpec) -> dict[str, Any]:
    # Some servers refuse a function without parameters.
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _require_complete(builder: ChatAnswerBuilder, where: str) -> ChatAnswerBuilder:
    if not builder.is_complete:
        raise SourceError(f"{where} sent an incomplete answer; check that it is up", again=True)
    return builder
