"""A chat endpoint on loopback that speaks the protocol of OpenAI's, as strictly, and answers by a script.

    with ChatServer([TooMany(), Says(calls=[Call("agent_output", {"n": 1})])]) as server:
        ChatEndpoint(server.url, "scripted")

A script is a list, from which each request takes the next answer, or a function of the request. A request that OpenAI
would refuse is refused as OpenAI refuses it, and takes no answer.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PATH = "/v1/chat/completions"
CREATED = 1_700_000_000
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ROLES = {"system", "developer", "user", "assistant", "tool"}
STUCK_S = 20.0
"""How long a held answer waits for a test that has forgotten it."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call of a tool in an answer."""

    name: str
    arguments: Mapping[str, Any] | str
    """Text is sent as it is."""
    id: str | None = None
    """None for one of the server's own; an empty one stays empty."""

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Says:
    """An answer, streamed where that is asked for."""

    text: str = ""
    calls: Sequence[Call] = ()
    finish: str | None = None
    tokens: tuple[int, int, int] = (10, 5, 2)
    """Of the question, of the answer, and those of the question that were cached."""
    piece: int = 4
    """Characters that a stream sends at a time."""


@dataclass(frozen=True)
class Fails:
    """A status with an error as OpenAI words it."""

    status: int
    message: str = "The server had an error while processing your request."
    kind: str = "server_error"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class TooMany(Fails):
    """Too many requests."""

    def __init__(self, retry_after: str = "0", **headers: str) -> None:
        message = "Rate limit reached for requests."
        super().__init__(429, message, "requests", "rate_limit_exceeded", {"Retry-After": retry_after, **headers})


@dataclass(frozen=True)
class Raw:
    """Bytes of one's own under a status of one's own."""

    content: bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Break(Enum):
    """How an answer breaks off."""

    CLOSED = "the connection closes in the middle of a chunk"
    GARBAGE = "a chunk is no JSON"
    CUT = "the stream ends in good order, half-way"
    ERROR = "an error comes in place of a chunk"


@dataclass(frozen=True)
class Breaks:
    """The first half of an answer; all but CLOSED is for streams."""

    answer: Says
    how: Break = Break.CLOSED


@dataclass(frozen=True)
class Held:
    """An answer that comes when it is let go, or never, where its caller has no such patience."""

    answer: Says
    let_go: threading.Event = field(default_factory=threading.Event)


Play = Says | Fails | Raw | Breaks | Held
Script = Sequence[Play] | Callable[[Json], Play]


class ChatServer:
    """The server; a context manager."""

    def __init__(self, script: Script = (), *, key: str | None = None) -> None:
        self.key = key
        """What callers must show; None for an open door."""
        self.asked: list[Json] = []
        """Every request that was well formed, in order."""
        self.refused: list[str] = []
        """Why others were not."""
        self.headers: list[Mapping[str, str]] = []
        """Of all requests."""
        self._script = script
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.chat = self
        # A short poll, which is how long an end may take.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def play(self, body: Json) -> Play:
        """What the next request is answered."""
        with self._lock:
            self.asked.append(body)
            if callable(self._script):
                return self._script(body)
            if len(self.asked) > len(self._script):
                return Fails(500, f"the script has {len(self._script)} answers, and was asked for another")
            return self._script[len(self.asked) - 1]

    def wait(self, held: Held) -> None:
        """Until the answer is let go, or the server closes."""
        for _ in range(int(STUCK_S / 0.01)):
            if held.let_go.wait(0.01) or self._closing.is_set():
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Callers that gave up leave connections behind, for which nobody should wait.
    block_on_close = False
    request_queue_size = 128
    chat: ChatServer

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called
        """Say nothing."""

    def do_GET(self) -> None:
        self._fail(Fails(404, f"Unknown request URL: GET {self.path}.", "invalid_request_error", "unknown_url"))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chat = self.server.chat
        chat.headers.append(dict(self.headers.items()))
        problem = self._problem(content)
        if problem is not None:
            chat.refused.append(problem.message)
            self._fail(problem)
            return
        body = json.loads(content)
        self._answer(chat.play(body), body)

    def _problem(self, content: bytes) -> Fails | None:
        wrong = "invalid_request_error"
        if self.path.partition("?")[0] != PATH:
            return Fails(404, f"Unknown request URL: POST {self.path}.", wrong, "unknown_url")
        key = self.server.chat.key
        if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
            shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return Fails(401, f"Incorrect API key provided: {shown}.", wrong, "invalid_api_key")
        try:
            problem = next(problems(json.loads(content)), None)
        except ValueError:
            problem = "We could not parse the JSON body of your request."
        return None if problem is None else Fails(400, problem, wrong)

    def _answer(self, play: Play, body: Json) -> None:
        match play:
            case Fails():
                self._fail(play)
            case Raw():
                self._send(play.status, play.content, play.kind, play.headers)
            case Held():
                self.server.chat.wait(play)
                self._answer(play.answer, body)
            case Says() if body.get("stream"):
                self._stream([*chunks(play, body)])
            case Says():
                self._send(200, json.dumps(completion(play, body)).encode())
            case Breaks() if body.get("stream"):
                self._break([*chunks(play.answer, body)], play.how)
            case Breaks():
                content = json.dumps(completion(play.answer, body)).encode()
                self._head(200, "application/json", {"Content-Length": str(len(content))})
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True

    def _fail(self, play: Fails) -> None:
        error = {"message": play.message, "type": play.kind, "param": None, "code": play.code}
        self._send(play.status, json.dumps({"error": error}).encode(), headers=play.headers)

    def _send(
        self, status: int, content: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
    ) -> None:
        self._head(status, kind, {"Content-Length": str(len(content)), **(headers or {})})
        self.wfile.write(content)

    def _head(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        # Not send_response, which would send a date of its own beside that of the script.
        self.send_response_only(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, events: Sequence[Json]) -> None:
        self._begin()
        for event in events:
            self._chunk(sse(json.dumps(event)))
        self._chunk(sse("[DONE]"))
        self._chunk(b"")

    def _break(self, events: Sequence[Json], how: Break) -> None:
        self._begin()
        for event in events[: len(events) // 2]:
            self._chunk(sse(json.dumps(event)))
        match how:
            case Break.CLOSED:
                self.wfile.write(b'400\r\ndata: {"choices": [{"ind')
            case Break.GARBAGE:
                self._chunk(sse('{"choices": [{"ind'))
            case Break.CUT:
                self._chunk(b"")
            case Break.ERROR:
                self._chunk(
                    sse(json.dumps({"error": {"message": "The server is overloaded.", "type": "server_error"}}))
                )
        # One that ends in good order stays open, as its client believes it does.
        self.close_connection = how is not Break.CUT

    def _begin(self) -> None:
        self._head(200, "text/event-stream; charset=utf-8", {"Transfer-Encoding": "chunked"})

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()


def sse(data: str) -> bytes:
    """A server-sent event."""
    return f"data: {data}\n\n".encode()


def completion(says: Says, body: Json) -> Json:
    """An answer in one piece."""
    message: Json = {"role": "assistant", "content": says.text or None, "refusal": None}
    if says.calls:
        message["tool_calls"] = [
            {"id": _id(call, place, body), "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for place, call in enumerate(says.calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(says)}
    return {**_about(body, "chat.completion"), "choices": [choice], "usage": _usage(says)}


def chunks(says: Says, body: Json) -> Iterator[Json]:
    """The same in pieces; with its usage only where that is asked for."""
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    about = _about(body, "chat.completion.chunk") | ({"usage": None} if usage else {})

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**about, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": "" if says.text or not says.calls else None, "refusal": None})
    for piece in _pieces(says.text, says.piece):
        yield chunk({"content": piece})
    for place, call in enumerate(says.calls):
        begun = {"id": _id(call, place, body), "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield chunk({"tool_calls": [{"index": place, **begun}]})
        for piece in _pieces(call.text, says.piece):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(says))
    if usage:
        yield {**about, "choices": [], "usage": _usage(says)}


def problems(body: Any) -> Iterator[str]:
    """Why OpenAI would refuse a request."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        yield "you must provide a model parameter"
        return
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "Invalid 'messages': empty array. Expected an array with minimum length 1."
        return
    yield from _tool_problems(body)
    if "stream_options" in body and not body.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    yield from _conversation_problems(messages)


def _tool_problems(body: Json) -> Iterator[str]:
    names = []
    for place, tool in enumerate(body.get("tools", ())):
        function = tool.get("function", {})
        if tool.get("type") != "function" or not NAME.fullmatch(str(function.get("name"))):
            yield f"Invalid 'tools[{place}].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        if function.get("parameters", {"type": "object"}).get("type") != "object":
            yield f"Invalid schema for function {function.get('name')!r}: schema must be of type 'object'."
        missing = [ref for ref in _refs(function.get("parameters")) if not _leads(function["parameters"], ref)]
        if missing:
            yield f"Invalid schema for function {function.get('name')!r}: reference {missing[0]} cannot be resolved."
        names.append(function.get("name"))
    if "tools" in body and not names:
        yield "Invalid 'tools': empty array. Expected an array with minimum length 1."
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("function", {}).get("name") not in names:
        yield "Invalid value for 'tool_choice': it names a function that is not among 'tools'."


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for one in inner:
        yield from _refs(one)


def _leads(schema: Any, ref: str) -> bool:
    for name in ref.removeprefix("#").split("/")[1:]:
        if name not in schema:
            return False
        schema = schema[name]
    return True


def _conversation_problems(messages: Sequence[Json]) -> Iterator[str]:
    owed: list[str] = []
    for place, message in enumerate(messages):
        if message.get("role") not in ROLES:
            yield f"Invalid value: {message.get('role')!r}. Supported values are: {sorted(ROLES)}."
        if message["role"] == "tool":
            if message.get("tool_call_id") not in owed:
                yield "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            owed = [one for one in owed if one != message.get("tool_call_id")]
        elif owed:
            break
        calls = message.get("tool_calls") or []
        if not isinstance(message.get("content"), str | list) and not calls:
            yield f"Invalid value for 'messages[{place}].content': expected a string, got null."
        for call in calls:
            if not call.get("id") or call["id"] in owed:
                yield f"Invalid 'messages[{place}].tool_calls': each needs an id of its own."
            owed.append(call["id"])
            yield from _call_problems(place, call.get("function", {}))
    if owed:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(owed)}"
        )


def _call_problems(place: int, function: Json) -> Iterator[str]:
    if not NAME.fullmatch(str(function.get("name"))):
        yield f"Invalid 'messages[{place}].tool_calls[0].function.name': string does not match pattern."
    # OpenAI takes any text there; vLLM and others read it as JSON, and refuse what they cannot read.
    try:
        json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        yield f"Invalid 'messages[{place}].tool_calls[0].function.arguments': not a JSON text."


def _about(body: Json, kind: str) -> Json:
    turn = sum(message["role"] == "assistant" for message in body["messages"]) + 1
    return {"id": f"chatcmpl-{turn}", "object": kind, "created": CREATED, "model": f"{body['model']}-2026-01-01"}


def _id(call: Call, place: int, body: Json) -> str:
    return f"call_{_about(body, '')['id']}_{place}" if call.id is None else call.id


def _finish(says: Says) -> str:
    return says.finish or ("tool_calls" if says.calls else "stop")


def _usage(says: Says) -> Json:
    asked, answered, cached = says.tokens
    details = {"cached_tokens": cached, "audio_tokens": 0}
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
        "prompt_tokens_details": details,
    }


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[place : place + size] for place in range(0, len(text), size))
