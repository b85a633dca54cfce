"""270 to 271: whether a member is covered, and for what."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from meruit.checks.formats.x12 import Loop, Segment, TransactionSet
from meruit.checks.values.decimals import format_decimal
from meruit.playground.portal import payer
from meruit.playground.portal.payer import Row, text
from meruit.playground.state import PlaygroundState
from meruit.playground.x12.write import Line, digits, name

MAX_SERVICES = 99
"""Service types that are answered for one patient."""
MEDICAL = "30"
ACTIVE, INACTIVE, COPAY = "1", "6", "B"
IN_NETWORK, VISIT = "Y", "27"

NOT_FOUND, BAD_ID, BAD_BIRTH_DATE, BAD_NAME, NO_DEPENDENT = "75", "72", "71", "73", "67"
"""The AAA codes of a person who does not match."""


class Person(msgspec.Struct, frozen=True):
    """The person that a loop names, and whether the payer knows them."""

    line: Line
    """The NM1 of the reply."""
    member: Row | None
    trouble: str | None = None
    """The code of an AAA."""


def answer(state: PlaygroundState, asked: TransactionSet, today: str, time: str) -> list[Line]:
    """Build the body of a 271."""
    bht = asked.segments[1]
    body: list[Line] = [("BHT", "0022", "11", bht.get(3), today, time)]
    subscriber = Person((), None)
    for loop, line in tree(asked):
        body.append(line)
        match loop.level:
            case "22":
                subscriber = find_subscriber(state, loop)
                body += _patient(asked, loop, subscriber)
            case "23":
                body += _patient(asked, loop, _find_dependent(loop, subscriber))
            case _:
                body += name_lines(loop)
    return body


def tree(asked: TransactionSet) -> Iterator[tuple[Loop, Line]]:
    """Yield each loop of a request with the HL of the reply: the tree is the same."""
    parents = {loop.parent for loop in asked.loops}
    for place, loop in enumerate(asked.loops):
        parent = asked.loops[loop.parent].number if loop.parent is not None else ""
        yield loop, ("HL", loop.number, parent, loop.level, "1" if place in parents else "0")


def name_lines(loop: Loop) -> list[Line]:
    """Return the name segment of a loop, as the request has it."""
    found = first_segment(loop, "NM1")
    return [tuple(found.elements)] if found else []


def first_segment(loop: Loop, wanted: str) -> Segment | None:
    """Return the first segment of a name."""
    return next((segment for segment in loop.segments if segment.name == wanted), None)


def traces(loop: Loop) -> list[Line]:
    """Return the request's traces, as the reply repeats them."""
    return [("TRN", "2", *segment.elements[2:]) for segment in loop.segments if segment.name == "TRN"]


def find_subscriber(state: PlaygroundState, loop: Loop) -> Person:
    """Return the member that a loop names, if its details match."""
    nm1 = first_segment(loop, "NM1")
    asked: Line = tuple(nm1.elements) if nm1 else ()
    if nm1 is None or not nm1.get(9):
        return Person(line=asked, member=None, trouble=BAD_ID)
    member = payer.row(state, payer.MEMBER, nm1.get(9))
    if member is None:
        return Person(line=asked, member=None, trouble=NOT_FOUND)
    last, given = name(text(member, "name"))
    trouble = _contradiction(loop, nm1, member)
    line: Line = (*("NM1", nm1.get(1), "1", last, given, "", "", "", "MI"), nm1.get(9))
    return Person(line=asked, member=None, trouble=trouble) if trouble else Person(line, member)


def _find_dependent(loop: Loop, subscriber: Person) -> Person:
    nm1 = first_segment(loop, "NM1")
    asked: Line = tuple(nm1.elements) if nm1 else ()
    if subscriber.member is None or nm1 is None:
        return Person(asked, None)
    dependents = subscriber.member.get("dependents")
    for one in dependents if isinstance(dependents, list) else []:
        if isinstance(one, dict) and _contradiction(loop, nm1, one, first_name=True) is None:
            last, given = name(text(one, "name"))
            return Person((*("NM1", nm1.get(1), "1", last, given),), {**subscriber.member, "dependents": None, **one})
    return Person(line=asked, member=None, trouble=NO_DEPENDENT)


def _contradiction(loop: Loop, nm1: Segment, known: Mapping[str, Any], *, first_name: bool = False) -> str | None:
    """Return which details of a person do not match."""
    last, given = name(text(known, "name"))
    names = [(nm1.get(3), last), *([(nm1.get(4), given)] if first_name else [])]
    if any(one and other and one.casefold() != other.casefold() for one, other in names):
        return BAD_NAME
    dmg, born = first_segment(loop, "DMG"), digits(text(known, "birth_date"))
    return BAD_BIRTH_DATE if dmg and born and digits(dmg.get(2)) not in ("", born) else None


def _patient(asked: TransactionSet, loop: Loop, person: Person) -> Iterator[Line]:
    yield from traces(loop)
    if person.line:
        yield person.line
    if person.trouble:
        yield ("AAA", "N", "", person.trouble, "C")
    if person.member is None:
        return
    yield from _about(person.member)
    for service in _services(asked, loop):
        yield from _benefits(person.member, service)


def _about(member: Row) -> Iterator[Line]:
    if text(member, "group"):
        yield ("REF", "6P", text(member, "group"))
    born = digits(text(member, "birth_date"))
    if born:
        yield ("DMG", "D8", born, text(member, "gender")[:1].upper())
    for qualifier, field in (("346", "coverage_from"), ("347", "coverage_to")):
        if digits(text(member, field)):
            yield ("DTP", qualifier, "D8", digits(text(member, field)))


def _services(asked: TransactionSet, loop: Loop) -> Sequence[str]:
    mark = asked.marks.repetition
    found = [segment.get(1) for segment in loop.segments if segment.name == "EQ"]
    split = [code for one in found for code in (one.split(mark) if mark else [one]) if code]
    return list(dict.fromkeys(split))[:MAX_SERVICES] or ([MEDICAL] if found else [])


def _benefits(member: Row, service: str) -> Iterator[Line]:
    if not payer.is_active(member):
        yield ("EB", INACTIVE, "", service)
        return
    yield ("EB", ACTIVE, "", service, "", text(member, "plan"))
    copay = payer.amount(member, "copay")
    if copay is not None:
        yield ("EB", COPAY, "", service, "", "", VISIT, format_decimal(copay), "", "", "", "", IN_NETWORK)
    more = member.get("benefits")
    for one in more if isinstance(more, list) else []:
        if isinstance(one, dict) and text(one, "service") in ("", service):
            yield from _benefit(one, service)


def _benefit(one: Row, service: str) -> Iterator[Line]:
    amount, percent = payer.amount(one, "amount"), payer.amount(one, "percent")
    yield (
        *("EB", text(one, "code"), text(one, "level"), service, "", "", text(one, "period")),
        "" if amount is None else format_decimal(amount),
        "" if percent is None else format_decimal(percent / 100),
        *("", "", "", text(one, "network")),
    )
    if text(one, "note"):
        yield ("MSG", text(one, "note"))
