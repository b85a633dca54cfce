"""An endpoint for webhooks: believes what is signed, and remembers it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError
from tests.e2e.serving import recorded_by


class Receiver:
    """What came, in the order it came."""

    def __init__(self) -> None:
        self.secret: str | None = None
        self.bad: list[str] = []
        self.came: list[str] = []
        """Outcome ids."""
        self.deliveries: dict[str, set[str]] = {}
        """By event, the bodies that came: more than one would be a lie in one of them."""
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)

    def receive(self, body: bytes, headers: dict[str, str]) -> int:
        """Which status it answers."""
        with self._news:
            assert self.secret is not None
            try:
                event: Any = Webhook(self.secret).verify(body, headers)
            except WebhookVerificationError as problem:
                self.bad.append(f"{problem}: {body[:200]!r}")
                return 400
            if headers.get("webhook-id") != event["event_id"]:
                self.bad.append(f"{headers.get('webhook-id')} is not {event['event_id']}")
            self.deliveries.setdefault(event["event_id"], set()).add(json.dumps(event, sort_keys=True))
            self.came += recorded_by(event)
            self._news.notify_all()
            return 204

    def await_all(self, outcomes: set[str], within_s: float) -> set[str]:
        """Those that did not come within that time."""
        with self._news:
            self._news.wait_for(lambda: outcomes <= set(self.came), within_s)
            return outcomes - set(self.came)


@contextmanager
def receiving() -> Iterator[tuple[Receiver, str]]:
    """A receiver on this machine, and its URL."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if len(body) < int(self.headers["content-length"]):
                # Whoever sent it was killed before its end.
                self.close_connection = True
                return
            status = receiver.receive(body, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the library gives it
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """A caller that was killed in the middle of its request is what this is for."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver, f"http://127.0.0.1:{server.server_address[1]}/events"
        finally:
            server.shutdown()
            thread.join()
