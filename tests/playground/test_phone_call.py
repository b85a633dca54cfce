"""A call by its script, and the log of what was done."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.documents.tree import format_path
from meruit.errors import InvalidPhoneScript, PlaygroundRefusal
from meruit.model.environment import SourceKind
from meruit.playground import events
from meruit.playground import phone_call as call
from meruit.playground.phone_call import PhoneScript, read_script, replies
from meruit.playground.state import PlaygroundState

SCRIPT: dict[str, Any] = {
    "greeting": "Cedar Health, this call may be recorded.",
    "script": [
        {"hears": ["member id", "ID number"], "says": "And the date of birth?", "once": True},
        {"hears": ["january"], "says": ["Thank you.", "It has been approved, number 4471."]},
        {"hears": ["supervisor"], "says": "Ann speaking.", "speaker": "supervisor"},
    ],
    "otherwise": "Sorry, say that again?",
}


@pytest.fixture
def state(tmp_path: Path) -> PlaygroundState:
    return PlaygroundState.create(tmp_path / "one.playground", settings={"call": SCRIPT})


def asking(state: PlaygroundState, ask: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    apps = {"call": call.app({"one": state}.get), "events": events.app({"one": state}.get)}

    async def either(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["path"].split("/")[2]](scope, receive, send)

    async def run() -> None:
        transport = httpx.ASGITransport(app=either)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await ask(client)

    asyncio.run(run())


def said(state: PlaygroundState) -> list[tuple[str, str]]:
    return [(one.facts["speaker"], one.content().decode()) for one in state.items(SourceKind.VOICE)]


def test_a_call_goes_by_its_script(state: PlaygroundState) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        async def say(text: str) -> list[str]:
            reply = await client.post("/one/call/turns", json={"text": text, "speaker": "agent"})
            assert reply.status_code == 201
            return [turn["text"] for turn in reply.json()["turns"]]

        assert await say("Hello, the MEMBER-ID is 7.") == [SCRIPT["greeting"], SCRIPT["script"][0]["says"]]
        assert await say("My member ID again") == ["Sorry, say that again?"]
        assert await say("January first") == ["Thank you.", "It has been approved, number 4471."]
        assert await say("january!") == ["Thank you.", "It has been approved, number 4471."]
        assert await say("Your supervisor, please") == ["Ann speaking."]
        assert await say("") == []
        turns = (await client.get("/one/call/turns")).json()["turns"]
        assert [turn["key"] for turn in turns] == [f"{number:06}" for number in range(1, len(turns) + 1)]
        assert [turn["speaker"] for turn in turns[:3]] == ["payer", "agent", "payer"]

    asking(state, ask)
    assert said(state)[-2:] == [("agent", "Your supervisor, please"), ("supervisor", "Ann speaking.")]
    assert {event.type for event in state.events()} == {"voice_turn"}


def test_an_empty_text_only_listens(state: PlaygroundState) -> None:
    assert [one.content().decode() for one in call.say(state, "")] == [SCRIPT["greeting"]]
    assert call.say(state, "") == []
    assert said(state) == [("payer", SCRIPT["greeting"])]


def test_what_was_said_once_may_be_said_again_after_a_reset(state: PlaygroundState) -> None:
    state.checkpoint()
    call.say(state, "member id")
    state.reset()
    assert len(call.say(state, "member id")) == 2


def test_a_call_without_a_script_is_answered_by_silence(tmp_path: Path) -> None:
    quiet = PlaygroundState.create(tmp_path / "quiet.playground")
    assert call.say(quiet, "Hello?") == []
    assert said(quiet) == [("agent", "Hello?")]


def test_a_call_has_an_end(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "MAX_TURNS", 4)
    call.say(state, "one")
    with pytest.raises(PlaygroundRefusal, match="4 turns"):
        call.say(state, "january")
    assert len(said(state)) == 3


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"text": "approved", "speaker": "payer"}', "'agent'"),
        (b'{"text": 5}', "Expected `str`"),
        (b'{"text": "x", "at": "now"}', "unknown field"),
        (b"{}", "`text`"),
        (b"not json", "JSON"),
        (b'{"text": "\xff"}', "JSON"),
        (b'{"text": "\\ud800"}', "JSON"),
        (b'{"text": "%s"}' % (b"x" * 4001), "4000"),
    ],
)
def test_what_cannot_be_said_is_refused(state: PlaygroundState, content: bytes, told: str) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        reply = await client.post("/one/call/turns", content=content)
        assert reply.status_code == 400
        assert reply.headers["content-type"] == "application/problem+json"
        assert told in reply.json()["detail"]
        assert (await client.post("/one/call/turns", content=b"x" * 70_000)).status_code == 413
        assert (await client.get("/two/call/turns")).status_code == 404
        assert (await client.get("/one/call")).status_code == 404

    asking(state, ask)
    assert said(state) == []


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"script": [{"hears": ["x"]}]}, ("script", 0)),
        (
            {"script": [{"says": "x", "heard": ["y"]}]},
            ("script", 0, "heard"),
        ),
        ({"script": [{"says": "x"}, {"sais": "y"}]}, ("script", 1, "sais")),
        ({"scrpt": []}, ("scrpt",)),
        ({"script": {}}, ("script",)),
        ({"script": [7]}, ("script", 0)),
        ({"script": [{"says": "x", "hears": "y"}]}, ("script", 0, "hears")),
        ({"script": [{"says": "x", "hears": ["y", 7]}]}, ("script", 0, "hears", 1)),
        ({"script": [{"says": ""}]}, ("script", 0, "says")),
        ({"script": [{"says": "x", "once": "yes"}]}, ("script", 0, "once")),
        ({"greeting": ""}, ("greeting",)),
        ({"speaker": "A B"}, ("speaker",)),
        ({"speaker": "agent"}, ("speaker",)),
        ({"script": [{"says": "x", "speaker": "agent"}]}, ("script", 0, "speaker")),
    ],
)
def test_an_invalid_script_is_refused_with_its_path(written: dict[str, Any], path: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidPhoneScript) as caught:
        read_script(written)
    assert caught.value.path == path
    assert str(caught.value).startswith(format_path(("call", *path)))


@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=20), max_size=3))
def test_a_phrase_is_heard_wherever_it_is_said(around: str, phrases: list[str]) -> None:
    script = read_script({"script": [{"hears": phrases, "says": "yes"}], "otherwise": "no"})
    for phrase in phrases:
        assert [one.text for one in replies(script, f"{around} . {phrase} . {around}", set())] == ["yes"]
    assert [one.text for one in replies(PhoneScript(), around, set())] == []


@settings(max_examples=15)
@given(st.text(min_size=1, max_size=200).filter(lambda text: text.isprintable() or "\n" in text))
def test_any_text_is_kept_as_it_was_said(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    state = PlaygroundState.create(tmp_path_factory.mktemp("any") / "one.playground", settings={"call": SCRIPT})

    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.post("/one/call/turns", json={"text": text})).status_code == 201

    asking(state, ask)
    assert said(state)[1] == ("agent", text)
    state.close()


def test_events_come_in_pages_without_those_of_the_seed(state: PlaygroundState) -> None:
    for number in range(7):
        state.put(SourceKind.ROWS, f"auth_rule/{number}", b"{}", event="seed")
    state.put(SourceKind.FHIR, "Patient/1", b"{}", event="fhir_create", noted={"from": "seed"})
    for text in ("one", "two"):
        call.say(state, text)

    async def ask(client: httpx.AsyncClient) -> None:
        found, after = [], 0
        while True:
            page = (await client.get("/one/events", params={"after": after, "limit": 2})).json()
            assert page["next"] >= after
            if not page["events"]:
                break
            assert len(page["events"]) <= 2
            found += page["events"]
            after = page["next"]
        assert [(one["type"], one["kind"], one["key"]) for one in found] == [
            ("voice_turn", "voice", f"{number:06}") for number in range(1, 6)
        ]
        whole = (await client.get("/one/events")).json()
        assert whole["events"] == found
        for odd in ("after=-1", "after=x", "limit=0", "limit=9999"):
            reply = await client.get(f"/one/events?{odd}")
            assert (reply.status_code, reply.headers["content-type"]) == (400, "application/problem+json")
        assert (await client.get("/two/events")).status_code == 404

    asking(state, ask)
