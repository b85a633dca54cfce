"""A judge of known error behind a chat API, to try model judges without a model: `python judge.py --port 8585`.

It answers POST /v1/chat/completions as OpenAI-compatible endpoints do. What it knows of politeness is a rule: a reply
that says thanks or sorry is polite, and no other. One vote in twenty is a slip, as models make them; which ones, only
the work and the seed decide, so that two runs agree.
"""

import argparse
import json
import re
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLIPS = 0.05
"""The share of votes that are the other answer."""
POLITE = re.compile(r"thank|sorry", re.IGNORECASE)
FENCED = re.compile(r'<work-([0-9a-f]+) part="(\w+)">\n(.*?)\n</work-\1>', re.DOTALL)
"""A part of the work, as Meruit's prompts show it."""
JSON = dict[str, Any]


def vote(work: dict[str, str], seed: int | None) -> JSON:
    """What the judge says of a reply."""
    is_polite = POLITE.search(work["output"]) is not None
    drawn = sha256(json.dumps([work, seed], sort_keys=True).encode()).digest()
    if int.from_bytes(drawn[:8]) / 2**64 < SLIPS:
        is_polite = not is_polite
    reason = "It says thanks or sorry." if is_polite else "It says neither thanks nor sorry."
    return {"reason": reason, "answer": "yes" if is_polite else "no"}


def complete(body: JSON) -> JSON:
    """The completion of a request; raises KeyError, TypeError or ValueError for one that no provider would take."""
    model, prompts = body["model"], [message["content"] for message in body["messages"]]
    form = body["response_format"]["json_schema"]["schema"]
    if body.get("stream"):
        raise ValueError("this judge does not stream")
    if {*form["properties"]["answer"]["enum"]} != {"yes", "no"}:
        raise ValueError("this judge answers yes or no")
    text = json.dumps(vote({name: part for _, name, part in FENCED.findall(prompts[-1])}, body.get("seed")))
    asked, said = sum(len(prompt) for prompt in prompts) // 4, len(text) // 4
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": f"chatcmpl-{sha256(text.encode()).hexdigest()[:12]}",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": f"{model}-2026-01-01",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }


class Model(BaseHTTPRequestHandler):
    """Answers one request after another on each connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Head and body leave together; else each answer waits for the client's acknowledgement."""

    def do_POST(self) -> None:
        """Answer, or say what is wrong with the request."""
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/chat/completions":
            return self._send(404, {"error": {"message": f"no {self.path}", "type": "invalid_request_error"}})
        try:
            return self._send(200, complete(json.loads(content)))
        except (KeyError, TypeError, ValueError) as problem:
            return self._send(400, {"error": {"message": repr(problem), "type": "invalid_request_error"}})

    def _send(self, status: int, reply: JSON) -> None:
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing for each vote."""


def main() -> None:
    """Serve until interrupted."""
    reader = argparse.ArgumentParser(description="A judge of known error behind a chat API.")
    reader.add_argument("--port", type=int, default=8585, help="0 for a free one (default: 8585)")
    server = ThreadingHTTPServer(("127.0.0.1", reader.parse_args().port), Model)
    server.daemon_threads = True
    print(f"listening on http://localhost:{server.server_port}/v1", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
