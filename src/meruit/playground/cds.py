"""A CDS Hooks client: it fires a hook, shows the cards of its services, and records what the agent does with each.

The services answer by a script in the seed. A suggestion that is accepted is carried out, as an EHR does it: its
resources are created in the FHIR store.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp

from meruit.checks.formats import json_path as dotted
from meruit.errors import PlaygroundRefusal
from meruit.model.decoding import convert_to, decode_json
from meruit.model.environment import Item, SourceKind
from meruit.model.record import Record
from meruit.playground.fhir.resources import TYPES, store_resource
from meruit.playground.http import Find, PlaygroundRequest, answer, playground_of, serve
from meruit.playground.state import PlaygroundState
from meruit.web.parameters import FromPath
from meruit.web.responses import Response
from meruit.web.routing import get, post

MAX_BODY_BYTES = 1024 * 1024
MAX_CARDS = 10_000
SHOWN, ANSWERED = "cds_shown", "cds_feedback"

_T = TypeVar("_T")
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Summary = Annotated[str, Meta(min_length=1, max_length=140)]
"""As CDS Hooks limits it."""


class CardIndicator(StrEnum):
    """How urgent a card is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class CardOutcome(StrEnum):
    """What the agent did with a card."""

    ACCEPTED = "accepted"
    OVERRIDDEN = "overridden"


class CardAction(Record, frozen=True, forbid_unknown_fields=True):
    """What accepting a suggestion does."""

    type: Literal["create"]
    description: Name
    # Any: a FHIR resource.
    resource: dict[str, Any]


class CardSuggestion(Record, frozen=True, forbid_unknown_fields=True):
    """What a card suggests."""

    uuid: Name
    label: Name
    actions: list[CardAction] = msgspec.field(default_factory=list)


class OverrideCode(Record, frozen=True, forbid_unknown_fields=True):
    """A reason that a card offers for overriding it."""

    code: Name
    display: Name
    system: Name | None = None


class ScriptedCard(Record, frozen=True, forbid_unknown_fields=True):
    """A card that a service answers with."""

    summary: Summary
    indicator: CardIndicator
    source: Name
    """The label of where the advice comes from."""
    detail: str = ""
    suggestions: list[CardSuggestion] = msgspec.field(default_factory=list)
    override_reasons: list[OverrideCode] = msgspec.field(default_factory=list)
    # Any: a value of the context.
    when: dict[str, Any] = msgspec.field(default_factory=dict)
    """Shown only where the context has these values, by path; without any, always."""


class CdsService(Record, frozen=True, forbid_unknown_fields=True):
    """A decision support service, as it answers one hook."""

    id: Name
    hook: Name
    title: str = ""
    cards: list[ScriptedCard] = msgspec.field(default_factory=list)


class HookRequest(Record, frozen=True, forbid_unknown_fields=True):
    """A hook that the agent fires."""

    # Any: each hook has a context of its own.
    context: dict[str, Any]


class AcceptedSuggestion(Record, frozen=True):
    """A suggestion that was accepted."""

    id: Name


class OverrideReason(Record, frozen=True, rename={"user_comment": "userComment"}):
    """Why a card was overridden."""

    reason: dict[str, str] | None = None
    user_comment: Annotated[str, Meta(max_length=2_000)] | None = None


class CardFeedback(
    Record,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"accepted_suggestions": "acceptedSuggestions", "override_reason": "overrideReason"},
):
    """What became of a card, as CDS Hooks reports it."""

    outcome: CardOutcome
    accepted_suggestions: list[AcceptedSuggestion] = msgspec.field(default_factory=list)
    override_reason: OverrideReason | None = None


# Any: a seed's value, not validated yet.
def read_services(written: Any) -> list[CdsService]:
    """Read the `cds` of a seed; raises msgspec.ValidationError."""
    services = convert_to(written or [], list[CdsService])
    for service in services:
        for card in service.cards:
            for action in (action for one in card.suggestions for action in one.actions):
                if action.resource.get("resourceType") not in TYPES:
                    raise msgspec.ValidationError(
                        f"the suggestion {action.description!r} creates {action.resource.get('resourceType')!r}, "
                        "which FHIR R4 does not have"
                    )
            for path in card.when:
                dotted.compile_path(path)
    return services


def fire(state: PlaygroundState, hook: str, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ask every service of a hook, record the cards that are shown, and return them."""
    patient = context.get("patientId")
    if not isinstance(patient, str) or not patient:
        raise PlaygroundRefusal(400, "the context of a hook needs patientId")
    services = read_services(state.settings().get("cds"))
    hooks = sorted({one.hook for one in services})
    if hook not in hooks:
        known = ", ".join(hooks) or "none"
        raise PlaygroundRefusal(404, f"no service listens to the hook {hook[:80]!r}; there are {known}")
    fitting = [
        (service, card)
        for service in services
        for card in (service.cards if service.hook == hook else ())
        if all(value in dotted.values(context, dotted.compile_path(path)) for path, value in card.when.items())
    ]
    with state.change():
        return [_show(state, service, card, patient) for service, card in fitting]


def _show(state: PlaygroundState, service: CdsService, card: ScriptedCard, patient: str) -> dict[str, Any]:
    if state.count(SourceKind.CDS) >= MAX_CARDS:
        raise PlaygroundRefusal(507, f"{MAX_CARDS:,} cards were shown already")
    written = {
        "service": service.id,
        "hook": service.hook,
        "patient": patient,
        "summary": card.summary,
        "detail": card.detail,
        "indicator": card.indicator,
        "source": {"label": card.source},
        "suggestions": msgspec.to_builtins(card.suggestions),
        "overrideReasons": msgspec.to_builtins(card.override_reasons),
        "shown_at": state.moment(),
        "outcome": None,
        "acceptedSuggestions": [],
        "overrideReason": None,
    }
    item = state.append(SourceKind.CDS, msgspec.json.encode(written), event=SHOWN)
    return {"uuid": item.key, **written}


def give_feedback(
    state: PlaygroundState, key: str, feedback: CardFeedback, new_id: Callable[[], str]
) -> dict[str, Any]:
    """Record what became of a card, and carry out the suggestions that were accepted; a card ends once."""
    with state.change():
        found = state.get(SourceKind.CDS, key)
        if found is None:
            raise PlaygroundRefusal(404, "this card was not shown")
        card: dict[str, Any] = msgspec.json.decode(found.content())
        if card["outcome"] is not None:
            raise PlaygroundRefusal(409, f"this card was {card['outcome']} already")
        chosen = _suggestions_chosen(card, feedback)
        created = []
        for action in (action for one in chosen for action in one.get("actions", ())):
            resource = action["resource"]
            stored = store_resource(state, f"{resource['resourceType']}/{new_id()}", resource, noted={"from": SHOWN})
            created.append(stored.key)
        card |= {
            "outcome": feedback.outcome,
            "acceptedSuggestions": msgspec.to_builtins(feedback.accepted_suggestions),
            "overrideReason": msgspec.to_builtins(feedback.override_reason),
            "outcomeTimestamp": state.moment(),
            "created": created,
        }
        state.put(SourceKind.CDS, key, msgspec.json.encode(card), event=ANSWERED)
        return {"uuid": key, **card}


def _suggestions_chosen(card: Mapping[str, Any], feedback: CardFeedback) -> list[dict[str, Any]]:
    offered = {one["uuid"]: one for one in card["suggestions"]}
    wanted = [one.id for one in feedback.accepted_suggestions]
    if feedback.outcome is CardOutcome.OVERRIDDEN:
        if wanted:
            raise PlaygroundRefusal(400, "a card that is overridden has no accepted suggestions")
        return []
    if feedback.override_reason is not None:
        raise PlaygroundRefusal(400, "a card that is accepted has no reason for overriding it")
    if unknown := [one for one in wanted if one not in offered]:
        raise PlaygroundRefusal(400, f"the card suggests {', '.join(offered) or 'nothing'}, not {unknown[0][:80]!r}")
    if offered and not wanted:
        raise PlaygroundRefusal(400, f"name the suggestions that you accept: {', '.join(offered)}")
    return [offered[one] for one in dict.fromkeys(wanted)]


def app(find: Find, *, new_id: Callable[[], str]) -> ASGIApp:
    """Build the application that serves `/{playground_id}/cds`."""

    # Coroutines await the body; the rest is done in a thread.
    @post("/{playground_id:str}/cds/cards/{key:str}/feedback", status_code=200)
    async def report(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
        state = playground_of(request)
        wanted = '{"outcome": "accepted", "acceptedSuggestions": [{"id": "…"}]}'
        feedback = _decode(await request.body(), CardFeedback, wanted)
        return answer(await asyncio.to_thread(give_feedback, state, key, feedback, new_id))

    return serve(find, [_services, _fire, _cards, report], max_body_bytes=MAX_BODY_BYTES)


@get("/{playground_id:str}/cds/services", sync_to_thread=True)
def _services(request: PlaygroundRequest) -> Response[bytes]:
    services = read_services(playground_of(request).settings().get("cds"))
    return answer({"services": [{"id": one.id, "hook": one.hook, "title": one.title} for one in services]})


@post("/{playground_id:str}/cds/hooks/{hook:str}", status_code=200)
async def _fire(request: PlaygroundRequest, hook: FromPath[str]) -> Response[bytes]:
    state = playground_of(request)
    asked = _decode(await request.body(), HookRequest, '{"context": {"patientId": "…"}}')
    return answer({"cards": await asyncio.to_thread(fire, state, hook, asked.context)})


@get("/{playground_id:str}/cds/cards", sync_to_thread=True)
def _cards(request: PlaygroundRequest) -> Response[bytes]:
    return answer({"cards": [_to_json(one) for one in playground_of(request).items(SourceKind.CDS)]})


def _to_json(one: Item) -> dict[str, Any]:
    return {"uuid": one.key, **msgspec.json.decode(one.content())}


def _decode(body: bytes, kind: type[_T], wanted: str) -> _T:
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise PlaygroundRefusal(400, f"send {wanted} as JSON: {problem}") from None
