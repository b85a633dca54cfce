"""278 to 278: a service is reviewed, and certified or not by the payer's rules."""

from collections.abc import Iterator, Sequence

from meruit.checks.formats.x12 import Loop, Segment, TransactionSet
from meruit.errors import EventRejected, PriorAuthNotAllowed
from meruit.playground.portal import payer
from meruit.playground.portal.payer import PriorAuthRequest, PriorAuthStatus, Row, text
from meruit.playground.state import PlaygroundState
from meruit.playground.x12.eligibility import Person, find_subscriber, first_segment, name_lines, traces, tree
from meruit.playground.x12.write import Line

BY = "x12"
"""The provider's name in a request's history."""
INITIAL, CANCEL, APPEALS = "I", "3", ("1", "2")
URGENT = ("U", "03")
ACTIONS = {
    PriorAuthStatus.APPROVED: "A1",
    PriorAuthStatus.DENIED: "A3",
    PriorAuthStatus.PENDING: "A4",
    PriorAuthStatus.APPEALED: "A4",
    PriorAuthStatus.WITHDRAWN: "C",
}
"""HCR01, by the status of a request."""
NO_CERTIFICATION, NOT_DONE = "T5", "33"
"""Why a request that names a certification is refused: it does not exist, or its status does not allow it."""


def answer(state: PlaygroundState, asked: TransactionSet, today: str, time: str) -> list[Line]:
    """Build the body of a 278 response; requests are stored, so call it inside a change of the state."""
    body: list[Line] = [("BHT", "0007", "11", asked.segments[1].get(3), today, time, "18")]
    subscriber, mark = Person((), None), asked.marks.component
    for place, (loop, line) in enumerate(tree(asked)):
        body.append(line)
        match loop.level:
            case "22":
                subscriber = find_subscriber(state, loop)
                body += [subscriber.line] if subscriber.line else []
                body += [("AAA", "N", "", subscriber.trouble, "C")] if subscriber.trouble else []
            case "EV":
                services = [one for one in asked.loops if one.level == "SS" and one.parent == place]
                body += _event(state, asked, loop, services, subscriber, today)
            case "SS":
                body += traces(loop)
                body += [_split(one, mark) for one in loop.segments if one.name in ("SV1", "SV2", "SV3")]
            case _:
                body += name_lines(loop)
    return body


def _event(
    state: PlaygroundState, asked: TransactionSet, loop: Loop, services: Sequence[Loop], subscriber: Person, today: str
) -> Iterator[Line]:
    yield from traces(loop)
    if subscriber.member is None:
        return
    mark, um = asked.marks.component, first_segment(loop, "UM")
    try:
        request = _apply_request(state, asked, loop, services, text(subscriber.member, "id"))
    except EventRejected as rejected:
        yield ("AAA", "N", "", str(rejected), "C")
        return
    if um is not None:
        yield _split(um, mark)
    status = PriorAuthStatus(request["status"])
    certified = text(request, "auth_number") or text(request, "id")
    yield (
        "HCR",
        ACTIONS[status],
        certified if status is PriorAuthStatus.APPROVED else "",
        text(request, "reason_code"),
    )
    yield ("REF", "NT", text(request, "id"))
    dates: list[Line] = [tuple(one.elements) for one in loop.segments if one.name == "DTP" and one.get(1) == "AAH"]
    yield from dates or [("DTP", "AAH", "D8", today)]
    yield from (_split(one, mark) for one in loop.segments if one.name == "HI")
    notes = [one.get("note") for one in request["history"] if isinstance(one, dict) and one.get("by") == payer.PAYER]
    if notes and notes[-1]:
        yield ("MSG", str(notes[-1]))


def _apply_request(
    state: PlaygroundState, asked: TransactionSet, loop: Loop, services: Sequence[Loop], member: str
) -> Row:
    """Return the request of an event: a new one, or the one it names, withdrawn or appealed if it asks for that."""
    known = next((one.get(2) for one in loop.segments if one.name == "REF" and one.get(1) in ("BB", "NT")), None)
    if known is None:
        return payer.submit(state, _build_prior_auth(asked, loop, services, member))
    mine = [one for one in payer.rows(state, payer.PRIOR_AUTH) if text(one, "member") == member]
    found = next((one for one in mine if known in (text(one, "auth_number"), text(one, "id"))), None)
    if found is None or text(found, "status") not in set(PriorAuthStatus):
        raise EventRejected(NO_CERTIFICATION)
    um = first_segment(loop, "UM")
    action = um.get(2) if um else ""
    try:
        if action == CANCEL:
            found = payer.withdraw(state, text(found, "id"), by=BY)
        elif action in APPEALS:
            payer.appeal(state, text(found, "id"), _message(loop), by=BY)
            found["status"] = PriorAuthStatus.APPEALED.value
    except PriorAuthNotAllowed:
        raise EventRejected(NOT_DONE) from None
    return {**found, "history": found.get("history") if isinstance(found.get("history"), list) else []}


def _build_prior_auth(asked: TransactionSet, loop: Loop, services: Sequence[Loop], member: str) -> PriorAuthRequest:
    mark, um = asked.marks.component, first_segment(loop, "UM")
    codes = [code for one in services for segment in one.segments if (code := _procedure(segment, mark))]
    diagnoses = [part for one in loop.segments if one.name == "HI" for part in one.elements[1:]]
    attached = [one.get(6) for part in (loop, *services) for one in part.segments if one.name == "PWK"]
    trace = first_segment(loop, "TRN")
    return PriorAuthRequest(
        member=member,
        cpt=codes[0] if codes else "",
        diagnosis=_component(diagnoses[0], 2, mark) if diagnoses else "",
        urgency="urgent" if um is not None and um.get(6) in URGENT else "standard",
        npi=_provider(asked, (loop, *services)),
        notes=_message(loop),
        by=BY,
        attachments=[name for name in attached if name],
        more={"channel": BY, "trace": trace.get(2) if trace else "", "services": codes},
    )


def _provider(asked: TransactionSet, loops: Sequence[Loop]) -> str:
    """Return the provider of the service, or otherwise the requester."""
    wanted = [*loops, *(one for one in asked.loops if one.level == "21")]
    found = (segment.get(9) for one in wanted for segment in one.segments if segment.name == "NM1")
    return next((number for number in found if number), "")


def _procedure(segment: Segment, mark: str) -> str:
    match segment.name:
        case "SV1" | "SV3":
            return _component(segment.get(1), 2, mark)
        case "SV2":
            return _component(segment.get(2), 2, mark)
        case _:
            return ""


def _message(loop: Loop) -> str:
    return " ".join(one.get(1) for one in loop.segments if one.name == "MSG")


def _component(element: str, number: int, mark: str) -> str:
    parts = element.split(mark)
    return parts[number - 1] if number <= len(parts) else ""


def _split(segment: Segment, mark: str) -> Line:
    """Copy a segment with its composites split, so that they are written in the reply's delimiters."""
    return (segment.name, *(tuple(one.split(mark)) if mark in one else one for one in segment.elements[1:]))
