"""A fax machine, an inbox and decision support: what an agent sends, and what is kept of it."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.playground.documents import pdf, tiff

from meruit.errors import DocumentError
from meruit.model.environment import SourceKind
from meruit.playground import cds, fax, inbox
from meruit.playground.seed import apply_seed, read_seed
from meruit.playground.state import PlaygroundState

CARD: dict[str, Any] = {
    "summary": "Prefer apixaban",
    "indicator": "warning",
    "source": "Renal dosing",
    "when": {"patientId": "ann"},
    "suggestions": [
        {
            "uuid": "apixaban",
            "label": "Order apixaban",
            "actions": [
                {
                    "type": "create",
                    "description": "Order it",
                    "resource": {"resourceType": "MedicationRequest", "status": "active", "intent": "order"},
                }
            ],
        }
    ],
}


def with_card(mistake: dict[str, Any]) -> dict[str, Any]:
    return {"cds": [{"id": "renal", "hook": "order-select", "cards": [CARD | mistake]}]}


SEED: dict[str, Any] = {
    "fax": {"number": "+1 555 010 0100", "busy": ["+1 555 010 0666"]},
    "messages": [{"from": "ann.smith", "patient": "Patient/ann", "subject": "Blood test", "body": "Fasting?"}],
    "cds": [{"id": "renal", "hook": "order-select", "cards": [CARD]}],
}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[PlaygroundState]:
    with contextlib.closing(PlaygroundState.create(tmp_path / "one.playground")) as made:
        apply_seed(made, read_seed(SEED, lambda _name: b""))
        yield made


def asking(state: PlaygroundState, ask: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    find = {"one": state}.get
    ids = iter(range(100))
    apps: dict[str, Any] = {
        "fax": fax.app(find),
        "inbox": inbox.app(find),
        "cds": cds.app(find, new_id=lambda: f"new-{next(ids)}"),
    }

    async def any_of_them(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["path"].split("/")[2]](scope, receive, send)

    async def run() -> None:
        transport = httpx.ASGITransport(app=any_of_them)
        async with httpx.AsyncClient(transport=transport, base_url="http://test/one") as client:
            await ask(client)

    asyncio.run(run())


def documents(state: PlaygroundState, kind: SourceKind) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one.content()) for one in state.items(kind)]


def test_a_fax_keeps_its_pages_number_and_status(state: PlaygroundState) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        sent = await client.post("/fax", params={"to": "+1 (555) 010-0199"}, content=pdf("a", "b"))
        assert (sent.status_code, sent.json()["status"], sent.json()["pages"]) == (201, "sent", 2)
        busy = await client.post("/fax", params={"to": "+15550100666"}, content=tiff(3))
        assert (busy.status_code, busy.json()["status"], busy.json()["pages"]) == (201, "busy", 3)
        listed = (await client.get("/fax")).json()["faxes"]
        assert [one["to"] for one in listed] == ["+15550100199", "+15550100666"]
        shown = await client.get(f"/fax/{listed[0]['key']}")
        assert (shown.content, shown.headers["content-type"]) == (pdf("a", "b"), "application/pdf")
        assert (await client.get("/fax/000099")).status_code == 404

    asking(state, ask)
    assert [one.facts["from"] for one in state.items(SourceKind.FAX)] == ["+15550100100"] * 2


@pytest.mark.parametrize(
    ("number", "content", "status"),
    [
        ("+15550100199", b"", 415),
        ("+15550100199", b"Dear colleague", 415),
        ("+15550100199", pdf("a")[:60], 415),
        ("+15550100199", tiff(0), 415),
        ("+15550100199", tiff(2)[:-9], 415),
        ("+15550100199", tiff(2, circle=True), 415),
        ("", pdf("a"), 400),
        ("Lakeside Cardiology", pdf("a"), 400),
    ],
)
def test_what_cannot_be_faxed_is_refused_and_not_kept(
    state: PlaygroundState, number: str, content: bytes, status: int
) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        reply = await client.post("/fax", params={"to": number}, content=content)
        assert reply.status_code == status

    asking(state, ask)
    assert state.items(SourceKind.FAX) == []


def test_a_reply_goes_to_the_sender_about_the_same_patient(state: PlaygroundState) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        (message,) = (await client.get("/inbox/messages")).json()["messages"]
        assert (await client.get(f"/inbox/messages/{message['id']}")).json()["body"] == "Fasting?"
        sent = await client.post("/inbox/messages", json={"in_reply_to": message["id"], "body": "Yes."})
        assert sent.status_code == 201
        (kept,) = (await client.get("/inbox/messages", params={"folder": "sent"})).json()["messages"]
        assert {name: kept[name] for name in ("to", "patient", "subject", "from", "in_reply_to")} == {
            "to": "ann.smith",
            "patient": "Patient/ann",
            "subject": "Re: Blood test",
            "from": "practice",
            "in_reply_to": message["id"],
        }

    asking(state, ask)


def test_reading_a_message_changes_nothing(state: PlaygroundState) -> None:
    before = state.snapshots()

    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.get("/inbox/messages/000001")).status_code == 200

    asking(state, ask)
    assert state.snapshots() == before
    assert state.events()[-1].type == "message_read"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"body": "Hello"}, 400),
        ({"body": "", "to": "ann.smith"}, 400),
        ({"body": "x" * 20_001, "to": "ann.smith"}, 400),
        ({"body": "Hello", "in_reply_to": "000099"}, 404),
        ({"body": "Hello", "to": "ann.smith", "bcc": "all"}, 400),
        ([], 400),
    ],
)
def test_a_message_that_cannot_be_sent_is_not_kept(state: PlaygroundState, message: Any, status: int) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.post("/inbox/messages", json=message)).status_code == status

    asking(state, ask)
    assert len(state.items(SourceKind.MESSAGES)) == 1


def test_an_unknown_folder_is_refused(state: PlaygroundState) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.get("/inbox/messages", params={"folder": "trash"})).status_code == 400

    asking(state, ask)


def test_an_accepted_suggestion_is_carried_out_once(state: PlaygroundState) -> None:
    accept = {"outcome": "accepted", "acceptedSuggestions": [{"id": "apixaban"}]}

    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.get("/cds/services")).json()["services"][0]["id"] == "renal"
        fired = await client.post("/cds/hooks/order-select", json={"context": {"patientId": "ann"}})
        (card,) = fired.json()["cards"]
        assert (await client.get("/cds/cards")).json()["cards"] == [card]
        path = f"/cds/cards/{card['uuid']}/feedback"
        first = await client.post(path, json=accept)
        assert (first.status_code, first.json()["created"]) == (200, ["MedicationRequest/new-0"])
        assert (await client.post(path, json=accept)).status_code == 409

    asking(state, ask)
    (kept,) = documents(state, SourceKind.CDS)
    assert (kept["outcome"], kept["acceptedSuggestions"], kept["patient"]) == ("accepted", [{"id": "apixaban"}], "ann")
    assert [one.key for one in state.items(SourceKind.FHIR)] == ["MedicationRequest/new-0"]


@pytest.mark.parametrize(
    ("feedback", "status"),
    [
        ({"outcome": "accepted"}, 400),
        ({"outcome": "accepted", "acceptedSuggestions": [{"id": "aspirin"}]}, 400),
        ({"outcome": "accepted", "acceptedSuggestions": [{"id": "apixaban"}], "overrideReason": {}}, 400),
        ({"outcome": "overridden", "acceptedSuggestions": [{"id": "apixaban"}]}, 400),
        ({"outcome": "ignored"}, 400),
        ({}, 400),
    ],
)
def test_feedback_that_contradicts_the_card_is_refused(
    state: PlaygroundState, feedback: dict[str, Any], status: int
) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        await client.post("/cds/hooks/order-select", json={"context": {"patientId": "ann"}})
        assert (await client.post("/cds/cards/000001/feedback", json=feedback)).status_code == status
        assert (await client.post("/cds/cards/000009/feedback", json={"outcome": "overridden"})).status_code == 404

    asking(state, ask)
    assert [one["outcome"] for one in documents(state, SourceKind.CDS)] == [None]
    assert state.items(SourceKind.FHIR) == []


def test_an_overridden_card_keeps_its_reason(state: PlaygroundState) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        await client.post("/cds/hooks/order-select", json={"context": {"patientId": "ann"}})
        feedback = {"outcome": "overridden", "overrideReason": {"reason": {"code": "tolerated"}, "userComment": "fine"}}
        assert (await client.post("/cds/cards/000001/feedback", json=feedback)).status_code == 200

    asking(state, ask)
    (kept,) = documents(state, SourceKind.CDS)
    assert kept["overrideReason"] == {"reason": {"code": "tolerated"}, "userComment": "fine"}


@pytest.mark.parametrize(
    ("hook", "body", "status", "cards"),
    [
        ("order-select", {"context": {"patientId": "bob"}}, 200, 0),
        ("order-select", {"context": {}}, 400, None),
        ("order-select", {"context": {"patientId": 7}}, 400, None),
        ("order-select", {"patientId": "ann"}, 400, None),
        ("patient-view", {"context": {"patientId": "ann"}}, 404, None),
    ],
)
def test_a_hook_shows_only_what_fits_its_context(
    state: PlaygroundState, hook: str, body: dict[str, Any], status: int, cards: int | None
) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        reply = await client.post(f"/cds/hooks/{hook}", json=body)
        assert reply.status_code == status
        assert cards is None or len(reply.json()["cards"]) == cards

    asking(state, ask)
    assert state.items(SourceKind.CDS) == []


@pytest.mark.parametrize(
    ("seed", "place"),
    [
        ({"fax": {"bussy": []}}, "fax"),
        ({"fax": {"busy": [7]}}, "fax.busy[0]"),
        ({"messages": [{"from": "ann.smith"}]}, "messages[0]"),
        ({"messages": {}}, "messages"),
        (with_card({"indicator": "red"}), "cds[0].cards[0].indicator"),
        (with_card({"summary": "x" * 141}), "cds[0].cards[0].summary"),
        (with_card({"when": {"a..b": 1}}), "cds"),
    ],
)
def test_a_mistake_in_a_seed_is_reported_at_its_place(seed: dict[str, Any], place: str) -> None:
    with pytest.raises(DocumentError) as refused:
        read_seed(seed, lambda _name: b"")
    assert [one.where for one in refused.value.problems] == [place]
