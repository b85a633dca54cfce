"""Every refusal is a problem that says enough and repeats nothing."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from tests.api.conftest import Deployment

from meruit.api.bodies.json_body import StrictRequest
from meruit.api.logging import JsonFormatter, configure_logs
from meruit.api.problems import MAX_DRAINED_BYTES, MAX_ERRORS, exception_handlers
from meruit.errors import (
    ApiProblem,
    AuthorError,
    CriteriaError,
    DocumentError,
    InvalidUsageReport,
    MeruitError,
    Problem,
    StoreUnavailable,
    Unavailable,
    WrongState,
)
from meruit.web.app import WebApp
from meruit.web.parameters import FromPath, FromQuery, JSONBody
from meruit.web.requests import Request
from meruit.web.routing import get, post
from meruit.web.validation import NOT_ALLOWED

SECRET = "canary-1234"


class Colour(Enum):
    RED = "red"


class Paint(msgspec.Struct):
    colour: Colour
    litres: int


@get("/raise/{name:str}")
async def raising(name: FromPath[str]) -> None:
    raise ERRORS[name]


@get("/query")
async def query(
    n: FromQuery[int], colour: FromQuery[Colour | None] = None, ident: FromQuery[UUID | None] = None
) -> int:
    return n


@post("/paint")
async def paint(data: JSONBody[Paint]) -> Paint:
    return data


@post("/lax")
async def lax(data: JSONBody[dict[str, int]]) -> None: ...


ERRORS: dict[str, Exception] = {
    "own": ApiProblem(409, "conflict", "it runs already", title="Busy", headers={"Retry-After": "7"}),
    "criteria": CriteriaError("c.yaml", [Problem("criteria[0].metric", "no such metric", 3), Problem("", "two", None)]),
    "document": DocumentError("c.yaml", [Problem("a", "one \ud800")]),
    "unavailable": Unavailable("c.yaml", [Problem("a", "not here")]),
    "many": CriteriaError("c", [Problem(f"a[{n}]", "wrong") for n in range(MAX_ERRORS + 5)]),
    "state": WrongState("not_awarded", "con_1"),
    "report": InvalidUsageReport("steps[0]", "odd"),
    "store": StoreUnavailable(SECRET),
    "plain": MeruitError(SECRET),
    "author": AuthorError(SECRET),
    "bug": ValueError(SECRET),
    "form": HTTPException(400, SECRET),
}


@pytest.fixture
def app() -> WebApp:
    return WebApp(
        [raising, query, paint, lax],
        request_class=StrictRequest,
        exception_handlers=exception_handlers,
        max_body_bytes=100,
    )


@pytest.fixture
def client(app: WebApp) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as opened:
        yield opened


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert SECRET not in response.text
    assert SECRET not in str(response.headers)
    found: dict[str, Any] = response.json()
    assert found["type"] == f"urn:meruit:problem:{code}"
    assert found["status"] == status
    assert found.keys() - {"errors"} == {"type", "title", "status", "detail", "instance", "request_id"}
    assert all(found[key] for key in ("title", "detail", "instance", "request_id"))
    return found


def test_our_own_problem_arrives_whole(client: TestClient) -> None:
    response = client.get("/raise/own")
    found = problem(response, 409, "conflict")
    assert (found["title"], found["detail"], found["instance"]) == ("Busy", "it runs already", "/raise/own")
    assert response.headers["retry-after"] == "7"
    assert "errors" not in found


def test_every_problem_of_the_criteria_is_listed(client: TestClient) -> None:
    found = problem(client.get("/raise/criteria"), 400, "bad_criteria")
    assert found["errors"] == [
        {"where": "criteria[0].metric", "message": "no such metric", "line": 3},
        {"where": "", "message": "two"},
    ]
    assert problem(client.get("/raise/document"), 400, "bad_document")["errors"][0]["message"] == "one ?"
    assert problem(client.get("/raise/unavailable"), 422, "unavailable_here")["errors"] == [
        {"where": "a", "message": "not here"}
    ]
    assert len(problem(client.get("/raise/many"), 400, "bad_criteria")["errors"]) == MAX_ERRORS


def test_an_error_is_answered_with_its_own_code_and_status(client: TestClient) -> None:
    assert problem(client.get("/raise/state"), 409, "not_awarded")["detail"] == "con_1"
    assert problem(client.get("/raise/report"), 400, "invalid")["errors"] == [{"where": "steps[0]", "message": "odd"}]
    later = client.get("/raise/store")
    problem(later, 503, "unavailable")
    assert later.headers["retry-after"] == "1"


@pytest.mark.parametrize("name", ["plain", "author"])
def test_an_error_without_a_status_is_internal(client: TestClient, name: str) -> None:
    problem(client.get(f"/raise/{name}"), 500, "internal")


def test_what_no_route_takes_is_a_problem_too(client: TestClient) -> None:
    assert problem(client.get("/no/such %2F"), 404, "not_found")["instance"].startswith("/no/such%20")
    refused = client.delete("/query")
    problem(refused, 405, "method_not_allowed")
    assert set(refused.headers["allow"].split(", ")) == {"GET", "OPTIONS"}
    problem(client.get("/query", headers={"Host": f"{SECRET} x"}), 400, "bad_request")


def test_an_error_of_starlette_gets_our_words(client: TestClient) -> None:
    problem(client.get("/raise/form"), 400, "bad_request")


@pytest.mark.parametrize(
    ("url", "where", "message"),
    [
        ("/query", "n", "is required"),
        (f"/query?n={SECRET}", "n", "Expected `int`, got `str`"),
        (f"/query?n=1&colour={SECRET}", "colour", "must be one of red"),
        (f"/query?n=1&ident={SECRET}", "ident", "not valid"),
    ],
)
def test_a_wrong_parameter_is_named_without_its_value(client: TestClient, url: str, where: str, message: str) -> None:
    found = problem(client.get(url), 400, "invalid")
    (error,) = found["errors"]
    assert error == {"where": where, "message": error["message"]}
    assert error["message"].endswith(message)
    assert found["detail"] == f"{where}: {error['message']}"
    assert SECRET not in found["detail"]


def test_a_wrong_field_of_a_body_is_named_without_its_value(client: TestClient) -> None:
    found = problem(client.post("/paint", json={"colour": SECRET, "litres": 1}), 400, "bad_body")
    assert found["errors"] == [{"where": "colour", "message": NOT_ALLOWED}]
    found = problem(client.post("/paint", json={"colour": "red", "litres": SECRET}), 400, "bad_body")
    assert found["errors"] == [{"where": "litres", "message": "Expected `int`, got `str`"}]
    found = problem(client.post("/lax", json={"a": SECRET}), 400, "bad_body")
    assert found["errors"][0]["message"] == "Expected `int`, got `str`"


@pytest.mark.parametrize(("length", "connection"), [(101, None), (MAX_DRAINED_BYTES + 1, "close"), (None, "close")])
def test_a_body_far_too_large_ends_the_connection(app: WebApp, length: int | None, connection: str | None) -> None:
    """The server would else read what remains, to the last byte."""
    headers = [(b"content-type", b"application/json")]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    sent = asyncio.run(answered(app, headers, [{"type": "http.request", "body": b" " * 101, "more_body": True}] * 3))
    assert sent[0]["status"] == 413
    assert dict(sent[0]["headers"]).get(b"connection", b"").decode() == (connection or "")


def test_a_client_that_leaves_early_is_not_a_failure(app: WebApp) -> None:
    half: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = asyncio.run(answered(app, [(b"content-type", b"application/json")], half))
    assert sent[0]["status"] == 400


async def answered(app: WebApp, headers: list[tuple[bytes, bytes]], messages: list[dict[str, Any]]) -> list[Any]:
    coming = iter(messages)
    sent: list[Any] = []

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {
        "type": "http", "method": "POST", "path": "/paint", "raw_path": b"/paint", "query_string": b"",
        "headers": headers, "state": {"request_id": "r-1"}, "client": None, "server": None, "scheme": "http",
        "http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": "", "extensions": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return sent


def test_internal_errors_are_logged_and_not_shown(client: TestClient) -> None:
    log = io.StringIO()
    handler = configure_logs(stream=log)
    try:
        problem(client.get("/raise/bug"), 500, "internal")
    finally:
        assert isinstance(handler.formatter, JsonFormatter)
        logging.getLogger().removeHandler(handler)
    written = [json.loads(line) for line in log.getvalue().splitlines()]
    # Services that other tests of this process share log their events when they come to it.
    lines = [line for line in written if line["event"] != "event"]
    assert [(line["event"], line["error"]) for line in lines] == [("request_failed", "ValueError")]
    assert SECRET not in log.getvalue()
    assert any("raising" in place for place in lines[0]["at"])


def test_the_request_id_is_that_of_the_request() -> None:
    seen: list[str] = []

    @get("/")
    async def home(request: Request) -> None:
        request.scope["state"]["request_id"] = "r-42"
        raise ApiProblem(404, "gone", "not here")

    with TestClient(WebApp([home], exception_handlers=exception_handlers)) as opened:
        seen.append(opened.get("/").json()["request_id"])
    assert seen == ["r-42"]


@pytest.mark.parametrize(
    ("path", "params", "where"),
    [
        ("/v1/contracts", {"state": "nope"}, "state"),
        ("/v1/ledger/statement", {"account": "agent:x", "currency": "EUR", "from": "x" * 41}, "from"),
        (f"/v1/outcomes/out_{'0' * 34}/diff", {"from": "0"}, "from"),
        (f"/v1/outcomes/out_{'0' * 34}/diff", {"to": "x"}, "to"),
        ("/v1/contracts", {"limit": "x"}, "limit"),
    ],
)
def test_a_parameter_is_called_as_its_caller_called_it(
    deployment: Deployment, admin: str, path: str, params: dict[str, str], where: str
) -> None:
    reply = deployment.ask("GET", path, key=admin, params=params)
    assert reply.status_code == 400
    assert [error["where"] for error in reply.json()["errors"]] == [where], reply.text
