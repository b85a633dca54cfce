"""276 to 277: the status of a claim."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from meruit.checks.formats.x12 import Loop, Segment, TransactionSet
from meruit.checks.values.decimals import format_decimal, numeral
from meruit.playground.portal import payer
from meruit.playground.portal.payer import Row, text
from meruit.playground.state import PlaygroundState
from meruit.playground.x12.eligibility import Person, find_subscriber, name_lines, tree
from meruit.playground.x12.write import Line, digits

MAX_CLAIMS = 50
"""Claims that are reported for one question."""
STATUSES = {
    "received": ("A2", "20"),
    "pending": ("P1", "20"),
    "paid": ("F1", "65"),
    "denied": ("F2", "585"),
}
"""Category and code of a claim's status; `category` and `code` of the row have priority."""
NO_CLAIM = ("A4", "35")
NO_MEMBER = ("D0", "33", "IL")
OURS, THEIRS = ("1K",), ("EJ", "D9", "BLT")
"""Qualifiers of the payer's number for a claim, and of the provider's."""


def answer(state: PlaygroundState, asked: TransactionSet, today: str, time: str) -> list[Line]:
    """Build the body of a 277."""
    body: list[Line] = [("BHT", "0010", "08", asked.segments[1].get(3), today, time, "DG")]
    subscriber = Person((), None)
    for loop, line in tree(asked):
        body.append(line)
        if loop.level == "22":
            subscriber = find_subscriber(state, loop)
            body += [subscriber.line] if subscriber.line else []
        else:
            body += name_lines(loop)
        if loop.level in ("22", "23"):
            for question in _questions(loop):
                body += _claim_status_lines(state, subscriber, question, today)
    return body


def _questions(loop: Loop) -> list[Sequence[Segment]]:
    """Yield each trace with its filters."""
    starts = [place for place, segment in enumerate(loop.segments) if segment.name == "TRN"]
    return [loop.segments[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)]


def _claim_status_lines(
    state: PlaygroundState, subscriber: Person, question: Sequence[Segment], today: str
) -> Iterator[Line]:
    trace: Line = ("TRN", "2", question[0].get(2))
    repeated: list[Line] = [
        tuple(segment.elements) for segment in question if segment.name == "REF" and segment.get(1) in THEIRS
    ]
    dates: list[Line] = [tuple(segment.elements) for segment in question if _is_service_date(segment)]
    if subscriber.member is None:
        yield from (trace, ("STC", NO_MEMBER, today), *repeated, *dates)
        return
    claims = [one for one in payer.claims_of(state, text(subscriber.member, "id")) if _is_requested(one, question)]
    if not claims:
        yield from (trace, ("STC", NO_CLAIM, today), *repeated, *dates)
    for claim in claims[:MAX_CLAIMS]:
        account = text(claim, "account")
        yield from (trace, _status(claim, today), ("REF", "1K", text(claim, "id")))
        yield from repeated or ([("REF", "EJ", account)] if account else [])
        served = digits(text(claim, "service_date"))
        yield from [("DTP", "472", "D8", served)] if served else dates


def _status(claim: Row, today: str) -> Line:
    category, code = STATUSES.get(text(claim, "status"), STATUSES["pending"])
    return (
        "STC",
        (text(claim, "category") or category, text(claim, "code") or code),
        digits(text(claim, "decided_on")) or digits(text(claim, "received_on")) or today,
        "",
        _money(claim, "amount"),
        _money(claim, "paid"),
        digits(text(claim, "decided_on")),
        "",
        digits(text(claim, "check_date")),
        text(claim, "check_number"),
    )


def _money(claim: Row, field: str) -> str:
    found = payer.amount(claim, field)
    return "" if found is None else format_decimal(found)


def _is_requested(claim: Row, question: Sequence[Segment]) -> bool:
    """Return whether a claim matches: by a number if one is given, otherwise by date and amount."""
    for segment in question:
        if segment.name == "REF" and segment.get(1) in OURS:
            return segment.get(2) == text(claim, "id")
        if segment.name == "REF" and segment.get(1) in THEIRS:
            return segment.get(2) in (text(claim, "id"), text(claim, "account"))
    return all(_fits(claim, segment) for segment in question)


def _fits(claim: Row, segment: Segment) -> bool:
    if _is_service_date(segment):
        start, _, end = segment.get(3).partition("-")
        served = digits(text(claim, "service_date"))
        return not served or digits(start) <= served <= (digits(end) or digits(start))
    if segment.name == "AMT":
        billed, asked = payer.amount(claim, "amount"), numeral(segment.get(2))
        return billed is None or asked is None or Decimal(billed) == asked
    return True


def _is_service_date(segment: Segment) -> bool:
    return segment.name == "DTP" and segment.get(1) == "472"
