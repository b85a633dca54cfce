"""Signing in, sessions, and forms that another site may have made."""

from collections.abc import Callable

import pytest
from tests.api.conftest import HERE, Deployment
from tests.console.conftest import Reader, SignIn, cookie_of, sign_in

from meruit.console.app import build_pages
from meruit.console.page import SESSION_COOKIE
from meruit.model.access import Caller, Role
from meruit.store import tables
from meruit.store.access.keys import Revoke

THERE = ("203.0.113.9", 1)


def test_a_key_is_exchanged_for_a_session_cookie(console: Deployment) -> None:
    reply = sign_in(console, console.key(), to="/evaluations?x=1")
    assert (reply.status_code, reply.headers["location"]) == (303, "/evaluations?x=1")
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "max-age=28800" in cookie
    assert "secure" not in cookie
    assert Reader(console, cookie_of(reply)).get("/evaluations").status_code == 200


def test_the_cookie_is_secure_behind_tls(console: Deployment) -> None:
    reply = console.ask("POST", "https://127.0.0.1/sign-in", data={"key": console.key()})
    assert "secure" in reply.headers["set-cookie"].lower()


def test_a_page_without_session_leads_to_sign_in(console: Deployment) -> None:
    reply = console.ask("GET", "/evaluations?verdict=fail")
    assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in?next=%2Fevaluations%3Fverdict%3Dfail")
    boosted = console.ask("GET", "/evaluations", headers={"hx-request": "true"})
    assert boosted.headers["hx-redirect"] == "/sign-in?next=%2Fevaluations"
    assert console.ask("GET", "/live", headers={"accept": "text/event-stream"}).status_code == 401


@pytest.mark.parametrize("to", ["//evil.example", "/\\evil.example", "https://evil.example", "", "/sign-in", "/a\nb"])
def test_signing_in_never_leads_elsewhere(console: Deployment, to: str) -> None:
    assert sign_in(console, console.key(), to=to).headers["location"] == "/"


def test_a_wrong_key_is_refused_and_not_shown(console: Deployment) -> None:
    reply = sign_in(console, "mk_wrong<script>")
    assert reply.status_code == 401
    assert "set-cookie" not in reply.headers
    assert "mk_wrong" not in reply.text


def test_tokens_are_kept_as_hashes(console: Deployment) -> None:
    token = sign_in(console, console.key()).cookies[SESSION_COOKIE]
    with console.store.database.reading() as connection:
        rows = connection.execute(tables.sessions.select()).all()
    assert rows
    assert all(token.encode() not in bytes(row.token_hash) for row in rows)


def test_signing_out_ends_the_session_for_every_copy(reader: SignIn) -> None:
    one = reader()
    assert one.post("/sign-out").status_code == 303
    assert one.get("/").status_code == 303


def test_a_session_ends_with_its_key(console: Deployment) -> None:
    key = console.key(Role.OPERATOR)
    one = Reader(console, cookie_of(sign_in(console, key)))
    assert one.get("/").status_code == 200
    console.store.recorder.write(Revoke(key.partition(".")[0], None))
    console.service.authenticator.clear_cache()
    assert one.get("/").status_code == 303


def test_a_form_needs_a_token_of_its_session(reader: SignIn) -> None:
    one, other = reader(), reader()
    for token in ("", "00.11", other.token()):
        assert one.post("/sign-out", csrf=token).status_code == 403
    assert one.get("/").status_code == 200


def test_a_form_of_another_site_is_refused(console: Deployment, reader: SignIn) -> None:
    one = reader()
    headers = {"cookie": one.cookie, "sec-fetch-site": "cross-site"}
    assert console.ask("POST", "/sign-out", headers=headers, data={"csrf": one.token()}).status_code == 403
    foreign = {"origin": "https://evil.example"}
    assert console.ask("POST", "/sign-in", headers=foreign, data={"key": console.key()}).status_code == 403


def test_the_api_takes_no_cookie(console: Deployment, reader: SignIn) -> None:
    assert console.ask("GET", "/v1/outcomes", headers={"cookie": reader().cookie}).status_code == 401


@pytest.fixture
def keyless(deploy: Callable[..., Deployment]) -> Deployment:
    """A service without keys."""
    return deploy(pages=build_pages)


def test_without_keys_this_machine_sees_pages(keyless: Deployment) -> None:
    assert keyless.ask("GET", "/").status_code == 200
    assert keyless.ask("GET", "/", client=THERE).status_code == 401
    assert keyless.ask("GET", "http://evil.example/").status_code == 401
    assert keyless.ask("GET", "/", headers={"x-forwarded-for": "203.0.113.9"}).status_code == 401
    asked_by_page = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert keyless.ask("GET", "/", headers=asked_by_page).status_code == 401
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert keyless.ask("GET", "/", headers=linked).status_code == 200


def test_the_first_key_closes_the_pages(keyless: Deployment) -> None:
    keyless.key()
    assert keyless.ask("GET", "/").status_code == 303


def test_a_visitor_reads_without_a_key_and_cannot_act(deploy: Callable[..., Deployment]) -> None:
    visitor = Caller("default", Role.AUDITOR, "")
    shown = deploy(pages=lambda store: build_pages(store, visitor))
    shown.key()
    assert shown.ask("GET", "/evaluations", client=HERE).status_code == 200
    assert shown.ask("GET", "/evaluations", client=THERE).status_code == 401
