"""Models behind any OpenAI-compatible chat endpoint: a whole answer, a clear refusal, or the reason to try later."""

import asyncio
import re
import ssl
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from math import isnan
from typing import Any

import httpx
import msgspec

from meruit.errors import AuthorError, ModelRefused, SourceError, Unreachable, UnreadableChatReply
from meruit.gate.chat.stream import ChatAnswerBuilder, error_in, iter_event_data, parse_json, to_sendable_message
from meruit.model.chat import ModelAnswer, ToolSpec
from meruit.sources.credentials import SecretToken, redact
from meruit.sources.http import check_base_url
from meruit.sources.http_replies import HttpReply, excerpt_of, invalid_json_error, quote_of
from meruit.sources.retry import BackoffSchedule, ReadPolicy, Sleep, time_limit, with_retries

TIMEOUT_S = 600.0
"""How long one answer may take, from the name to its last byte; models think long."""
CONNECT_S = 10.0
RETRIES = 2
"""How often we ask again within one question; whoever drives the agent has a patience of its own."""
FIRST_WAIT_S = 0.5
MAX_WAIT_S = 60.0
"""The longest pause that a server may ask of us; most count requests by the minute."""
MAX_REPLY_BYTES = 16 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
"""How much of a refusal is read."""
PATH = "/chat/completions"
RESERVED_SETTINGS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "n"})
"""What is said for every question, and so no setting."""

_OK = range(200, 300)
_REDIRECTS = range(300, 400)
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY, _NOT_IMPLEMENTED = 401, 403, 404, 429, 501
_TRANSIENT = {408, 409, 425, _TOO_MANY}
_SERVER_ERRORS = range(500, 600)
_ERRORS = range(400, 600)
_QUOTA_EXHAUSTED = "insufficient_quota"
"""How a provider says that no waiting helps, with the status that otherwise asks for it."""
_VISIBLE = re.compile(r"[\x21-\x7e]+")


class ChatEndpoint:
    """A ChatModel over HTTP: `ChatEndpoint("https://api.openai.com/v1", "gpt-5", api_key=…)`."""

    def __init__(  # noqa: PLR0913 - one a thing that an endpoint may want
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
        """Raises AuthorError for what cannot be meant.

        `api_key_env` names a variable of `environment`. `settings` go into every request, as `{"temperature": 0}`.
        Without a `client`, each question has a connection of its own and knows no proxy.
        """
        self._url = _address(base_url)
        if not model:
            raise AuthorError("a chat endpoint needs the name of a model")
        if timeout_s <= 0 or retries < 0:
            raise AuthorError(f"timeout_s is more than 0 and retries at least 0, not {timeout_s:g} and {retries}")
        self.model = model
        self.stream = stream
        self._token = _token(api_key, api_key_env, environment)
        self._timeout_s = timeout_s
        self._policy = ReadPolicy(retry=BackoffSchedule(tries=retries + 1, first_wait_s=FIRST_WAIT_S), sleep=sleep)
        self._settings = _check_settings(settings or {})
        self._client = client
        self._tls: ssl.SSLContext | None = None
        self._making = threading.Lock()

    def __repr__(self) -> str:
        return f"ChatEndpoint({str(self._url)!r}, {self.model!r})"

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        """The model's whole next message; raises Unreachable where trying later may help, else ModelRefused."""
        asked = self._encode_request(messages, tools, force)
        called_before = sum(len(message.get("tool_calls") or ()) for message in messages)
        try:
            async with self._open_client() as client:
                gathered = await with_retries(lambda: self._send_with_token(client, asked), self._policy)
        except SourceError as trouble:
            # Servers quote what they were sent.
            sentence = redact(str(trouble), self._token)
            raise (Unreachable if trouble.again else ModelRefused)(sentence) from None
        return gathered.answer(called_before)

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

    @asynccontextmanager
    async def _open_client(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._client is not None:
            yield self._client
            return
        # Reading all certificates takes long enough to hold up everybody else.
        tls = await asyncio.to_thread(self._tls_context)
        # A client for each question: it belongs to the event loop of whoever asks.
        async with httpx.AsyncClient(verify=tls, trust_env=False) as client:
            yield client

    def _tls_context(self) -> ssl.SSLContext | bool:
        """Whom we trust, read once; over http there is nobody to be trusted."""
        if self._url.scheme == "http":
            return False
        with self._making:
            if self._tls is None:
                self._tls = httpx.create_ssl_context(trust_env=False)
            return self._tls

    async def _send_with_token(self, client: httpx.AsyncClient, asked: bytes) -> ChatAnswerBuilder:
        """One try; a key that can be fetched anew is fetched anew when it is refused."""
        if self._token is None:
            return await self._send(client, asked, None)
        used = await self._token.value()
        try:
            return await self._send(client, asked, used)
        except _ApiKeyRefused:
            if not await self._token.renew(used):
                raise
            return await self._send(client, asked, await self._token.value())

    async def _send(self, client: httpx.AsyncClient, asked: bytes, secret: str | None) -> ChatAnswerBuilder:
        where = str(self._url)
        # Never packed: a few bytes could unpack to gigabytes.
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self.stream:
            headers["Accept"] = "text/event-stream"
        if secret is not None:
            if not _VISIBLE.fullmatch(secret):
                raise SourceError(f"{self._token} holds signs that no key has; see that it is the key alone")
            headers["Authorization"] = f"Bearer {secret}"
        # All of it is bounded below; a server that is not there is found out sooner.
        patience = httpx.Timeout(None, connect=min(self._timeout_s, CONNECT_S))
        request = client.build_request("POST", self._url, content=asked, headers=headers, timeout=patience)
        try:
            async with time_limit(self._timeout_s, where):
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    return await self._read_response(response, where)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.StreamError) as problem:
            said = f"{type(problem).__name__} {problem}".strip()
            raise SourceError(f"{where} could not be asked: {said}; see whether it is up", again=True) from None

    async def _read_response(self, response: httpx.Response, where: str) -> ChatAnswerBuilder:
        """What came, whole: half an answer is none."""
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in ("", "identity"):
            raise SourceError(
                f"{where} packed its answer ({packed[:40]}), which nobody asked for; see what stands before it"
            )
        if response.status_code not in _OK:
            said = HttpReply(
                where, response.status_code, response.headers, await _first_bytes(response, MAX_ERROR_BYTES)
            )
            raise self._refusal(said, said.status)
        if "event-stream" in response.headers.get("content-type", ""):
            return await self._read_stream(response, where)
        reply = HttpReply(
            where,
            response.status_code,
            response.headers,
            b"".join([part async for part in _iter_reply_bytes(response)]),
        )
        try:
            return _require_complete(self._add_chunk(reply, ChatAnswerBuilder(), reply.content), where)
        except UnreadableChatReply as problem:
            raise invalid_json_error(reply, problem) from None

    async def _read_stream(self, response: httpx.Response, where: str) -> ChatAnswerBuilder:
        gathering = ChatAnswerBuilder()
        async for data in iter_event_data(_iter_reply_bytes(response)):
            try:
                reply = HttpReply(where, response.status_code, response.headers, data)
                self._add_chunk(reply, gathering, data)
            except UnreadableChatReply as problem:
                raise SourceError(
                    f"{where} broke off its answer: {problem}; see whether it is up", again=True
                ) from None
        return _require_complete(gathering, where)

    def _add_chunk(self, reply: HttpReply, gathering: ChatAnswerBuilder, data: bytes) -> ChatAnswerBuilder:
        came = parse_json(data)
        error = error_in(came)
        if error is not None:
            # Some say what went wrong only after they have said that all is well.
            told = error.get("code")
            raise self._refusal(reply, told if isinstance(told, int) and told in _ERRORS else _SERVER_ERRORS.start)
        gathering.add(came)
        return gathering

    def _refusal(self, reply: HttpReply, status: int) -> SourceError:
        """Why there is no answer, and whether there may be one later."""
        said = f"{reply.where} answered with status {status}{quote_of(reply)}"
        if status in _REDIRECTS:
            place = reply.headers.get("location", "nowhere")[:300]
            return SourceError(
                f"{reply.where} redirects to {place}, which is not followed; give the address it leads to"
            )
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            kind = _ApiKeyRefused if status == _UNAUTHORIZED else SourceError
            key = f"see whether {self._token} is valid for it" if self._token else "give it an api_key"
            return kind(f"{said}; {key}")
        if status == _NOT_FOUND:
            return SourceError(
                f"{said}; see whether there is a model {self.model!r}, and whether base_url ends as it must"
            )
        if status == _TOO_MANY and _QUOTA_EXHAUSTED in reply.content.decode(errors="replace"):
            return SourceError(f"{said}; see what the account has left")
        if status in _TRANSIENT or (status in _SERVER_ERRORS and status != _NOT_IMPLEMENTED):
            return SourceError(f"{said}; try again later", again=True, wait_s=_wait_s(reply.headers))
        return SourceError(f"{said}; see what the model is asked" if excerpt_of(reply) else said)


class _ApiKeyRefused(SourceError):
    """The key is refused."""


def _address(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(check_base_url(base_url))
    except AuthorError as problem:
        raise AuthorError(f"the base_url of a chat endpoint cannot be used: {problem}") from None
    # What follows the path stays, as some servers want their version there.
    return url.copy_with(path=url.path.rstrip("/") + PATH, fragment=None)


def _token(
    api_key: str | SecretToken | None, name: str | None, environment: Mapping[str, str] | None
) -> SecretToken | None:
    if name is None:
        return SecretToken.from_value(api_key) if isinstance(api_key, str) else api_key
    if api_key is not None:
        raise AuthorError("a chat endpoint has one key: give api_key or api_key_env, not both")
    if environment is None:
        raise AuthorError(f"api_key_env={name!r} is a variable of which environment? add environment=os.environ")
    return SecretToken.from_environment(name, environment)


def _check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    taken = sorted(RESERVED_SETTINGS & settings.keys())
    if taken:
        raise AuthorError(f"settings may not hold {', '.join(taken)}: each question says that for itself")
    try:
        msgspec.json.encode(dict(settings))
    except (TypeError, ValueError, RecursionError) as problem:
        raise AuthorError(f"the settings of a chat endpoint must be JSON: {problem}") from None
    return dict(settings)


def _function_spec(tool: ToolSpec) -> dict[str, Any]:
    # Some servers refuse a function without parameters.
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _require_complete(gathering: ChatAnswerBuilder, where: str) -> ChatAnswerBuilder:
    if not gathering.is_complete:
        raise SourceError(f"{where} gave half an answer, or none; see whether it is up", again=True)
    return gathering


async def _iter_reply_bytes(response: httpx.Response) -> AsyncIterator[bytes]:
    """The bytes of an answer; raises Trouble for too many."""
    taken = 0
    async for part in response.aiter_bytes():
        taken += len(part)
        if taken > MAX_REPLY_BYTES:
            raise SourceError(
                f"{response.url} answered with more than {MAX_REPLY_BYTES:,} bytes; ask the model for less"
            )
        yield part


async def _first_bytes(response: httpx.Response, most: int) -> bytes:
    found = bytearray()
    async for part in response.aiter_bytes():
        found += part
        if len(found) >= most:
            break
    return bytes(found[:most])


def _wait_s(headers: httpx.Headers) -> float | None:
    """How long the server asks us to wait, within reason; a date is read against the server's own clock."""
    asked = headers.get("retry-after", "").strip()
    try:
        seconds = float(asked)
    except ValueError:
        try:
            now = parsedate_to_datetime(headers.get("date", ""))
            seconds = (parsedate_to_datetime(asked) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return None if isnan(seconds) else min(max(seconds, 0.0), MAX_WAIT_S)
