"""A telephone call in text: the agent says a turn, and the other side answers by its script."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp

from meruit.checks.values.speech import follows, words
from meruit.documents.tree import Path, format_path
from meruit.errors import InvalidPhoneScript, PlaygroundRefusal
from meruit.model.decoding import convert_to, decode_json
from meruit.model.environment import Item, SourceKind
from meruit.model.record import Record
from meruit.playground.http import Find, PlaygroundRequest, answer, playground_of, serve
from meruit.playground.state import PlaygroundState
from meruit.suggestions import nearest
from meruit.web.responses import Response
from meruit.web.routing import get, post

AGENT: Literal["agent"] = "agent"
OTHER = "payer"
"""The name of the other side, unless the script sets another."""
MAX_TEXT = 4_000
"""Characters of one turn."""
MAX_TURNS = 1_000
"""Turns of one call, of both sides."""
MAX_BODY_BYTES = 64 * 1024

Spoken = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]{0,31}$")]


class PhoneScriptLine(Record, frozen=True, forbid_unknown_fields=True):
    """One answer of the other side."""

    says: Spoken | list[Spoken]
    """One turn, or several that follow each other."""
    hears: list[Spoken] | None = None
    """Phrases, of which one is enough; without them it answers everything. Case and punctuation do not matter."""
    once: bool = False
    """Whether it answers the first time only."""
    speaker: Name | None = None
    """The speaker, if it is another one: after a transfer, for example."""


class PhoneScript(Record, frozen=True, forbid_unknown_fields=True):
    """How the other side of a call behaves."""

    script: list[PhoneScriptLine] = msgspec.field(default_factory=list)
    """The first line whose phrase is heard, and that is not used up, answers."""
    greeting: Spoken | None = None
    """Said when the call begins, before the agent's first turn."""
    otherwise: Spoken | None = None
    """Said when no line answers; silence if not set."""
    speaker: Name = OTHER


class PhoneTurn(Record, frozen=True):
    """One turn of a call."""

    key: str
    speaker: str
    text: str
    at: str


class PhoneTurns(Record, frozen=True):
    """The turns of a call, in order."""

    turns: list[PhoneTurn]


class PhoneUtterance(Record, frozen=True, forbid_unknown_fields=True):
    """A turn of the agent; an empty text only listens."""

    text: Annotated[str, Meta(max_length=MAX_TEXT)]
    speaker: Literal["agent"] = AGENT


class PhoneReply(Record, frozen=True):
    """A turn of the other side, before it is said."""

    text: str
    speaker: str
    line: int | None = None
    """Which line of the script answers, counted from 1."""


_TEXT = f"text of 1 to {MAX_TEXT:,} characters"
_WANTED = {
    "script": "a list of lines, each with what it hears and says",
    "greeting": _TEXT,
    "otherwise": _TEXT,
    "speaker": "a name of a-z, 0-9, - and _, such as payer",
    "says": f"{_TEXT}, or a list of such texts",
    "hears": f"a list of phrases, each {_TEXT}",
    "once": "true or false",
}
"""The expected value of each key."""
_MISSING = re.compile("missing required field `(.+?)`")
_STEP = re.compile(r"\[([0-9]+)\]|\.([a-z]+)")


def read_script(written: Mapping[str, Any] | None) -> PhoneScript:
    """Read the script in a seed's `call`; raises InvalidPhoneScript."""
    _reject_unknown_keys(written, PhoneScript, ())
    lines = (written or {}).get("script")
    for number, line in enumerate(lines if isinstance(lines, list) else []):
        _reject_unknown_keys(line, PhoneScriptLine, ("script", number))
    try:
        script = convert_to(written or {}, PhoneScript)
    except msgspec.ValidationError as problem:
        raise _explain_problem(str(problem)) from None
    speakers: list[tuple[Path, str | None]] = [((), script.speaker)]
    speakers += [(("script", number), line.speaker) for number, line in enumerate(script.script)]
    for place, speaker in speakers:
        if speaker == AGENT:
            wrong = f"the other side cannot speak as {AGENT!r}; give it another name"
            raise _invalid_script((*place, "speaker"), wrong)
    return script


# Any: the script has not been validated yet.
def _reject_unknown_keys(written: Any, kind: type[Record], place: Path) -> None:
    known = kind.__struct_fields__
    for name in written if isinstance(written, Mapping) else ():
        if name not in known:
            close = nearest(str(name), known)
            raise _invalid_script((*place, name), f"unknown key {name!r}{close}; valid keys: {', '.join(known)}")


def _explain_problem(problem: str) -> InvalidPhoneScript:
    """Convert an error of the library to one about the script."""
    place = _place(problem)
    if (missing := _MISSING.search(problem)) is not None:
        return _invalid_script(place, f"{missing[1]!r} is missing: {_WANTED[missing[1]]}")
    named = [step for step in place if isinstance(step, str)]
    if not named or (named == ["script"] and len(place) > 1):
        return _invalid_script(place, "expected a mapping")
    return _invalid_script(place, f"expected {_WANTED[named[-1]]}")


def _invalid_script(path: Path, fault: str) -> InvalidPhoneScript:
    return InvalidPhoneScript(path, format_path(("call", *path)), fault)


def _place(problem: str) -> Path:
    _, _, path = problem.rpartition(" - at `$")
    return tuple(int(number) if number else name for number, name in _STEP.findall(path))


def replies(script: PhoneScript, text: str, spent: set[int]) -> list[PhoneReply]:
    """Return the answers to a turn, given the numbers of the lines that were said already."""
    heard = words(text)
    for number, line in enumerate(script.script, 1):
        if line.once and number in spent:
            continue
        if line.hears is None or any(follows(heard, words(phrase)) for phrase in line.hears):
            lines = [line.says] if isinstance(line.says, str) else line.says
            return [PhoneReply(one, line.speaker or script.speaker, number) for one in lines]
    return [PhoneReply(script.otherwise, script.speaker)] if script.otherwise else []


def say(state: PlaygroundState, text: str) -> list[Item]:
    """Add the agent's turn and what the other side says before and after it; returns the turns of the other side."""
    script = read_script(state.settings().get("call"))
    with state.change():
        earlier = state.items(SourceKind.VOICE)
        greeting = [PhoneReply(script.greeting, script.speaker)] if script.greeting and not earlier else []
        spent = {turn.facts["line"] for turn in earlier if "line" in turn.facts}
        answered = replies(script, text, spent) if text else []
        if len(earlier) + len(greeting) + bool(text) + len(answered) > MAX_TURNS:
            raise PlaygroundRefusal(409, f"the call is over: it may have {MAX_TURNS} turns")
        before = [_keep(state, reply) for reply in greeting]
        if text:
            state.append(SourceKind.VOICE, text.encode(), facts={"speaker": AGENT}, event="voice_turn")
        return before + [_keep(state, reply) for reply in answered]


def _keep(state: PlaygroundState, reply: PhoneReply) -> Item:
    facts: dict[str, Any] = {"speaker": reply.speaker}
    if reply.line is not None:
        facts["line"] = reply.line
    return state.append(SourceKind.VOICE, reply.text.encode(), facts=facts, event="voice_turn")


def app(find: Find) -> ASGIApp:
    """Build the application that serves `/{playground_id}/call/turns`."""
    return serve(find, [_say, _list_turns], max_body_bytes=MAX_BODY_BYTES)


# A coroutine awaits the body; the rest is done in a thread.
@post("/{playground_id:str}/call/turns")
async def _say(request: PlaygroundRequest) -> Response[bytes]:
    state = playground_of(request)
    try:
        saying = decode_json(await request.body(), PhoneUtterance)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise PlaygroundRefusal(400, _complaint(problem)) from None
    return answer(_turns(await asyncio.to_thread(say, state, saying.text)), 201)


def _complaint(problem: Exception) -> str:
    if isinstance(problem, msgspec.ValidationError) and str(problem).endswith("`$.speaker`"):
        return f"you can only speak as {AGENT!r}"
    return f'send {{"text": "what you say"}} as JSON, of at most {MAX_TEXT} characters: {problem}'


@get("/{playground_id:str}/call/turns", sync_to_thread=True)
def _list_turns(request: PlaygroundRequest) -> Response[bytes]:
    return answer(_turns(playground_of(request).items(SourceKind.VOICE)))


def _turns(items: Sequence[Item]) -> PhoneTurns:
    return PhoneTurns([_turn(one) for one in items])


def _turn(one: Item) -> PhoneTurn:
    return PhoneTurn(one.key, str(one.facts.get("speaker", "")), one.content().decode(), str(one.facts.get("at", "")))
