"""State rows and events over HTTP."""

import asyncio
import base64
from typing import Any

import httpx
import pytest

from meruit.model.environment import Snapshot, SourceKind
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy
from meruit.sources.rows import EventsSource, RowsSource

URL = "https://portal.test/state?view=all"
ONCE = ReadPolicy(retry=BackoffSchedule(tries=1))


def trouble(found: Snapshot) -> str:
    assert found.trouble is not None
    return found.trouble


def rows(text: str, status: int = 200, **others: Any) -> Snapshot:
    async def reading() -> Snapshot:
        transport = httpx.MockTransport(lambda request: httpx.Response(status, text=text))
        async with httpx.AsyncClient(transport=transport) as client:
            given = {"policy": ONCE, **others}
            return await RowsSource(URL, client=client, **given).read()

    return asyncio.run(reading())


def test_rows_are_keyed_by_resource_and_key_and_kept_as_sent() -> None:
    found = rows(
        '{"auth": {"A1": {"units": 1.00}, "A2": {}}, "claims": [{"id": 7, "x": 1e2}], "page": {"n": 1}, "v": 3}',
        key="id",
    )
    assert found.trouble is None
    assert {one.key: one.body for one in found.items} == {
        "auth/A1": '{"units": 1.00}',
        "auth/A2": "{}",
        "claims/7": '{"id": 7, "x": 1e2}',
        "page": '{"n": 1}',
        "v": "3",
    }
    assert found.reads[0].items == 5


def test_a_document_of_objects_can_be_named_one() -> None:
    found = rows('{"full_state": {"a": {"b": 1}}, "empty": {}}', documents=["full_state"])
    assert {one.key: one.body for one in found.items} == {"full_state": '{"a": {"b": 1}}'}


def test_a_row_that_changes_has_another_version() -> None:
    assert rows('{"a": {"1": {"x": 1}}}').manifest() != rows('{"a": {"1": {"x": 2}}}').manifest()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": [{"id": 1}]}', "list of a "),
        ('{"a": {"1": {}, "1": {}}}', "twice"),
        ("[]", "JSON"),
        ("<html>", "JSON"),
        ('{"a": {"1/2": {}}, "a/1": {"2": {}}}', "two rows a/1/2"),
    ],
)
def test_rows_without_a_key_are_an_error(text: str, words: str) -> None:
    assert words in trouble(rows(text))


@pytest.mark.parametrize("row", ["{}", '{"id": null}', '{"id": true}', '{"id": 1.5}', "3"])
def test_a_listed_row_without_its_key_is_trouble(row: str) -> None:
    assert "'id'" in trouble(rows(f'{{"a": [{row}]}}', key="id"))
    assert "two rows a/1" in trouble(rows('{"a": [{"id": 1}, {"id": "1"}]}', key="id"))


def test_a_status_that_is_not_good_is_trouble() -> None:
    assert "status 403" in trouble(rows("{}", 403))


# Pages are what the test makes them.
def events(pages: dict[str, Any], **others: Any) -> Snapshot:
    async def reading() -> Snapshot:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json=pages[request.url.params.get("after", "")])

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            given = {"policy": ONCE, **others}
            return await EventsSource("https://log.test/events", client=client, **given).read()

    return asyncio.run(reading())


def event(body: str, **others: Any) -> dict[str, Any]:
    return {"type": "hl7_outbound", "at": "2026-01-01T00:00:00Z", "body": body, **others}


def test_events_of_the_type_are_items_in_their_order() -> None:
    raw = base64.b64encode(b"MSH|\xff").decode()
    pages = {
        "": {"events": [event("MSH|1"), {"type": "login"}], "next": "/events?after=2"},
        "2": {"events": [event(raw, encoding="base64", facts={"to": "LAB", "at": "never"})], "next": None},
    }
    found = events(pages)
    assert (found.kind, found.trouble) == (SourceKind.HL7, None)
    assert {one.key: one.content() for one in found.items} == {"000001": b"MSH|1", "000002": b"MSH|\xff"}
    assert found.items[1].facts == {"to": "LAB", "type": "hl7_outbound", "at": "2026-01-01T00:00:00Z"}


def test_turns_and_interchanges_are_events_too() -> None:
    turn = {"type": "voice_turn", "body": "hello", "facts": {"speaker": "agent"}}
    found = events({"": {"events": [turn]}}, type="voice_turn")
    assert (found.kind, found.items[0].facts["speaker"]) == (SourceKind.VOICE, "agent")
    assert events({"": {"events": []}}, type="x12_response").kind is SourceKind.X12


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"events": {}},
        {"events": [3]},
        {"events": [{"body": "MSH"}]},
        {"events": [], "next": 3},
        {"events": [event("not base64!", encoding="base64")]},
        {"events": [{"type": "hl7_outbound"}]},
        {"events": [], "next": "https://evil.test/"},
        {"events": [], "next": "https://log.test/events"},
    ],
)
def test_what_is_no_page_of_events_is_trouble(page: Any) -> None:
    assert trouble(events({"": page}))


def test_pages_without_end_are_trouble() -> None:
    pages: dict[str, Any] = {
        str(place or ""): {"events": [], "next": f"/events?after={place + 1}"} for place in range(9)
    }
    found = events(pages, policy=ReadPolicy(BackoffSchedule(tries=1), ReadLimits(pages=5)))
    assert trouble(found).startswith("incomplete_read: ")


def test_a_shape_that_is_said_is_not_guessed() -> None:
    text = '{"auth": {"A1": {"n": 1}}, "page": {"n": 1}}'
    assert [one.key for one in rows(text).items] == ["auth/A1", "page"]
    assert "auth" in trouble(rows(text, shape="document"))
    assert [one.key for one in rows(text, shape="document", documents=["auth"]).items] == ["auth", "page"]
    assert "page" in trouble(rows(text, shape="rows"))
    assert [one.key for one in rows(text, shape="rows", documents=["page"]).items] == ["auth/A1", "page"]


def test_a_document_may_have_objects_beside_values_and_may_be_empty() -> None:
    text = '{"account": {"member": {"n": 1}, "open": true}, "drafts": {}}'
    assert [one.key for one in rows(text, shape="document").items] == ["account", "drafts"]


def test_a_list_is_not_a_document() -> None:
    text = '{"auths": [{"id": "A1"}], "page": {"n": 1}}'
    assert "auths" in trouble(rows(text, shape="document"))
    assert [one.key for one in rows(text, shape="document", documents=["auths"]).items] == ["auths", "page"]
