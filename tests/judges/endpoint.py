"""A local server that speaks both chat APIs as providers do, scripted as models of known behaviour."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-4711"
KEY_VARIABLE = "JUDGE_KEY"
INPUT_TOKENS, OUTPUT_TOKENS = 120, 9


@dataclass(frozen=True)
class Asked:
    """One question, as the server understood it."""

    api: str
    model: str
    system: str
    user: str
    answers: list[Any]
    """The possible answers, in the order in which they were shown."""
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def nonce(self) -> str:
        found = re.search(r"begin with <work-([0-9a-f]{32})", self.system)
        assert found is not None
        return found[1]

    def part(self, name: str) -> str:
        """What stands inside a fence."""
        _, _, rest = self.user.partition(f'<work-{self.nonce} part="{name}">\n')
        return rest.partition(f"\n</work-{self.nonce}>")[0]


@dataclass(frozen=True)
class Say:
    """What the model does."""

    answer: Any = None
    reason: str = "because"
    raw: str | None = None
    """The text of the answer, in place of a JSON object."""
    refusal: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """The whole reply."""
    wait: threading.Event | None = None
    """Answers only once it is set."""
    model: str | None = None
    usage: bool = True


Script = Callable[[Asked], Say]


class Endpoint:
    """The server and what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.lock = threading.Lock()
        self.url = ""


@contextmanager
def endpoint(script: Script) -> Iterator[Endpoint]:
    """A server on a free port."""
    made = Endpoint(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = _read(self.path, body, headers)
            if asked is None:
                return self._send(401, {}, b'{"error": {"message": "bad key", "type": "authentication_error"}}')
            with made.lock:
                made.asked.append(asked)
            say = made.script(asked)
            if say.wait is not None:
                say.wait.wait(30)
            try:
                self._send(say.status, say.headers, say.body if say.body is not None else _reply(asked, say))
            except (BrokenPipeError, ConnectionResetError):
                # The client did not wait.
                self.close_connection = True
            return None

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in {"content-type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def _read(path: str, body: dict[str, Any], headers: dict[str, str]) -> Asked | None:
    """The question in a request; None for a wrong key. Everything that a provider demands is asserted."""
    if path == "/v1/messages":
        if headers.get("x-api-key") != KEY:
            return None
        assert headers["anthropic-version"] == "2023-06-01"
        assert body["max_tokens"] > 0
        assert "seed" not in body
        (tool,) = body["tools"]
        assert body["tool_choice"] == {"type": "tool", "name": tool["name"]}
        system, schema = body["system"], tool["input_schema"]
        (message,) = body["messages"]
    else:
        assert path == "/v1/chat/completions"
        if headers.get("authorization") != f"Bearer {KEY}":
            return None
        first, message = body["messages"]
        assert first["role"] == "system"
        system = first["content"]
        if "tools" in body:
            (tool,) = body["tools"]
            assert body["tool_choice"]["function"]["name"] == tool["function"]["name"]
            schema = tool["function"]["parameters"]
        else:
            assert body["response_format"]["type"] == "json_schema"
            assert body["response_format"]["json_schema"]["strict"] is True
            schema = body["response_format"]["json_schema"]["schema"]
    assert message["role"] == "user"
    assert schema["additionalProperties"] is False
    assert [*schema["required"]] == ["reason", "answer"]
    api = "anthropic" if path == "/v1/messages" else "openai"
    answers = schema["properties"]["answer"]["enum"]
    return Asked(api, body["model"], system, message["content"], answers, body, headers)


def _reply(asked: Asked, say: Say) -> bytes:
    if say.status != 200:
        return json.dumps({"error": {"message": f"status {say.status}", "type": "error"}}).encode()
    said = {"reason": say.reason, "answer": say.answer}
    model = say.model or f"{asked.model}-2026-01-01"
    if asked.api == "anthropic":
        content: list[dict[str, Any]] = [{"type": "tool_use", "id": "toolu_1", "name": "vote", "input": said}]
        stop = "tool_use"
        if say.refusal is not None:
            content, stop = [{"type": "text", "text": say.refusal}], "refusal"
        elif say.raw is not None:
            content, stop = [{"type": "text", "text": say.raw}], "end_turn"
        reply: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
        reply |= {"content": content, "stop_reason": stop}
        if say.usage:
            reply["usage"] = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
        return json.dumps(reply).encode()
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": say.refusal}
    finish = "stop"
    text = say.raw if say.raw is not None else json.dumps(said)
    if say.refusal is None and "tools" in asked.body:
        call = {"id": "call_1", "type": "function", "function": {"name": "vote", "arguments": text}}
        message["tool_calls"], finish = [call], "tool_calls"
    elif say.refusal is None:
        message["content"] = text
    reply = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
    reply["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    if say.usage:
        total = INPUT_TOKENS + OUTPUT_TOKENS
        reply["usage"] = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}
    return json.dumps(reply).encode()
