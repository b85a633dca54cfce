"""What all pages share: headers, files, error pages, the stream of changes."""

import gzip
import re
import threading
from hashlib import sha256
from importlib.resources import files
from typing import Any

import pytest
from tests.api.conftest import Deployment
from tests.console.conftest import SignIn

from meruit.console.page import RenderedPage, Toasts
from meruit.console.static_files import static_path
from meruit.model.access import Role
from meruit.store.access.keys import NewKey

HTMX = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"


def test_the_vendored_script_is_the_pinned_one() -> None:
    content = files("meruit.console").joinpath("static", "htmx-2.0.11.min.js").read_bytes()
    assert sha256(content).hexdigest() == HTMX


def test_pages_forbid_all_but_their_own_origin(reader: SignIn) -> None:
    policy = reader().get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_pages_have_no_inline_style_or_script(reader: SignIn) -> None:
    text = reader().get("/evaluations").text
    assert not re.search(r"<style|\sstyle=|<script(?! src)|\son\w+=", text)


def test_files_are_kept_for_good_and_named_by_content(console: Deployment) -> None:
    for name in ("meruit.css", "console.js", "htmx.js", "icon.svg"):
        reply = console.ask("GET", static_path(name))
        assert (reply.status_code, reply.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
        packed = console.ask("GET", static_path(name), headers={"accept-encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == reply.content
    assert console.ask("GET", "/static/0000000000000000/meruit.css").status_code == 404
    assert console.ask("GET", "/static/0000000000000000/secret").status_code == 404


def test_the_first_page_is_light(console: Deployment, reader: SignIn) -> None:
    page = reader().get("/")
    sizes = [len(gzip.compress(page.content))]
    sizes += [
        len(gzip.compress(console.ask("GET", static_path(name)).content))
        for name in ("meruit.css", "console.js", "htmx.js")
    ]
    assert sum(sizes) < 150_000


def test_an_unknown_page_is_a_page_and_an_unknown_route_a_problem(console: Deployment) -> None:
    page = console.ask("GET", "/no-such", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for path, accept in (("/v1/no-such", "text/html"), ("/no-such", "*/*")):
        problem = console.ask("GET", path, headers={"accept": accept})
        assert (problem.status_code, problem.headers["content-type"]) == (404, "application/problem+json")


def test_a_role_that_may_not_see_a_page_gets_one_that_says_so(reader: SignIn) -> None:
    reply = reader(Role.AGENT).get("/evaluations")
    assert reply.status_code == 403
    assert "agent" in reply.text


def test_the_stream_says_that_something_changed(console: Deployment, reader: SignIn) -> None:
    one = reader()
    store = console.store
    store.recorder.write(NewKey("default", Role.OPERATOR, "noticed", None, None, store.surroundings.entropy))
    reply = console.follow(
        "/live?types=key.created",
        lambda body: b"event: change" in body,
        headers={"cookie": one.cookie, "last-event-id": "0", "host": "127.0.0.1"},
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"event: follow" in reply.content
    assert b"noticed" not in reply.content


def test_the_stream_refuses_types_that_do_not_exist(reader: SignIn) -> None:
    assert reader().get("/live?types=nonsense").status_code == 400


def test_a_message_is_shown_once() -> None:
    toasts = Toasts()
    toasts.put("a", "Released.")
    assert (toasts.take("a"), toasts.take("a")) == ("Released.", "")
    for number in range(Toasts.MOST + 1):
        toasts.put(str(number), "x")
    assert toasts.take("0") == ""


def test_a_message_is_shown_once_by_several_workers() -> None:
    sent: list[bytes] = []
    first, second = Toasts(sent.append), Toasts()
    first.put("a", "Released.")
    second.receive(sent.pop())
    assert (first.take("a"), second.take("a")) == ("Released.", "Released.")
    second.put("a", "Released.")
    second.receive(sent.pop())
    assert (second.take("a"), sent) == ("", [])


def test_an_id_in_the_search_leads_to_its_page(reader: SignIn) -> None:
    outcome = "out_" + "0" * 34
    assert reader().get(f"/search?q={outcome}").headers["location"] == f"/outcomes/{outcome}"
    assert "Nothing is named" in reader().get("/search?q=nothing-like-it").text
    assert reader().get("/search?q=rev_" + "0" * 34).headers["location"] == "/reviews/rev_" + "0" * 34


def test_pages_are_rendered_beside_the_event_loop(
    console: Deployment, reader: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()
    encode = RenderedPage._encode

    def note(*given: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(*given)

    monkeypatch.setattr(RenderedPage, "_encode", note)
    assert [reader().get(path).status_code for path in ("/evaluations", "/outcomes")] == [200, 200]
    assert len(threads) >= 2
    assert console._thread not in threads
