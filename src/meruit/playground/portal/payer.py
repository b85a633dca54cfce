"""The payer behind the portal and the clearinghouse: members, claims, prior authorisations and how they are decided.

All of it is rows of the playground. They come from seeds, so a row may lack any field: a missing one is empty.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec

from meruit.checks.values.decimals import numeral
from meruit.checks.values.speech import words
from meruit.errors import PriorAuthNotAllowed
from meruit.model.environment import Item, SourceKind
from meruit.model.record import Record
from meruit.playground.fhir.json import decode_stored, write
from meruit.playground.state import PlaygroundState, rfc3339

MEMBER, CLAIM, PRIOR_AUTH, APPEAL = "member", "claim", "prior_auth", "appeal"
AUTH_RULE, MESSAGE = "auth_rule", "message"
"""The kinds of rows: the first part of their keys."""
PAYER = "payer"
"""The payer's name in a request's history."""
CONDITIONS = ("member", "plan", "cpt", "diagnosis", "urgency")
"""What a rule may require of a request: one text, or any of several."""
MAX_DOCUMENTS = 50
"""Documents of one request."""

Row = dict[str, Any]
"""One row, as JSON."""


class PriorAuthStatus(StrEnum):
    """The status of a prior authorisation."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    APPEALED = "appealed"


OPEN = (PriorAuthStatus.PENDING, PriorAuthStatus.APPEALED)
"""Those that can be withdrawn."""
TAKES_DOCUMENTS = (PriorAuthStatus.PENDING, PriorAuthStatus.DENIED, PriorAuthStatus.APPEALED)

DECISIONS = {
    "certified": PriorAuthStatus.APPROVED,
    "not_certified": PriorAuthStatus.DENIED,
    "pended": PriorAuthStatus.PENDING,
}
"""The status that each `decision` of a rule gives."""


class PriorAuthDocument(Record, frozen=True):
    """A document of a request; only what identifies it is kept, not its content."""

    name: str
    size: int
    sha256: str
    type: str


class PriorAuthRequest(Record, frozen=True):
    """A request for a prior authorisation."""

    member: str
    cpt: str
    diagnosis: str = ""
    urgency: str = "standard"
    npi: str = ""
    notes: str = ""
    documents: list[PriorAuthDocument] = msgspec.field(default_factory=list)
    attachments: list[str] = msgspec.field(default_factory=list)
    """Names of documents that are announced and come another way."""
    by: str = "clerk"
    more: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Fields that the channel adds to the row."""


def rows(state: PlaygroundState, resource: str) -> list[Row]:
    """Return all rows of a kind, by key; each has its `id`."""
    return [_row(one) for one in state.items(SourceKind.ROWS, under=f"{resource}/")]


def row(state: PlaygroundState, resource: str, key: str) -> Row | None:
    """Return one row, if there is one."""
    found = state.get(SourceKind.ROWS, f"{resource}/{key}")
    return None if found is None else _row(found)


def text(of: Mapping[str, Any], name: str) -> str:
    """Return a field as text; empty if it is missing."""
    value = of.get(name)
    return "" if value is None else str(value)


def amount(of: Mapping[str, Any], name: str) -> Decimal | None:
    """Return a field as an amount of money; None if it is missing."""
    found = numeral(of.get(name))
    return None if found is None or found < 0 else found


def is_active(member: Mapping[str, Any]) -> bool:
    """Return whether a member is covered; the default is yes."""
    return member.get("active") not in (False, "false", "no", 0)


def find_members(state: PlaygroundState, asked: str) -> list[Row]:
    """Find members by id, or by a name that has all the words."""
    wanted = set(words(asked))
    if not wanted:
        return []
    return [
        one
        for one in rows(state, MEMBER)
        if text(one, "id").casefold() == asked.strip().casefold() or wanted <= set(words(text(one, "name")))
    ]


def claims_of(state: PlaygroundState, member: str) -> list[Row]:
    """Return the claims of a member."""
    return [one for one in rows(state, CLAIM) if text(one, "member") == member]


def submit(state: PlaygroundState, asked: PriorAuthRequest) -> Row:
    """Create a prior authorisation, and decide it by the payer's rules."""
    with state.change():
        number = _next(state, PRIOR_AUTH, "PA")
        made: Row = {
            "id": f"PA-{number:06}",
            **{name: getattr(asked, name) for name in ("member", "cpt", "diagnosis", "urgency", "npi", "notes")},
            "status": PriorAuthStatus.PENDING.value,
            "attachments": [*(one.name for one in asked.documents), *asked.attachments],
            "documents": [one.to_dict() for one in asked.documents],
            "created_at": rfc3339(state.clock()),
            "history": [],
            **asked.more,
        }
        _note(state, made, "submitted", asked.by)
        _decide(state, made)
        _put(state, PRIOR_AUTH, made, "prior_auth_created")
        return made


def add_documents(state: PlaygroundState, key: str, documents: Sequence[PriorAuthDocument], *, by: str) -> Row:
    """Add documents to a request; a waiting one is decided again. Raises PriorAuthNotAllowed."""
    with state.change():
        found = _existing(state, key)
        if text(found, "status") not in TAKES_DOCUMENTS:
            raise PriorAuthNotAllowed(f"A request that is {text(found, 'status')} takes no more documents.")
        if len(_list_of(found, "documents")) + len(documents) > MAX_DOCUMENTS:
            raise PriorAuthNotAllowed(f"A request can have {MAX_DOCUMENTS} documents at most.")
        found["attachments"] = [*_list_of(found, "attachments"), *(one.name for one in documents)]
        found["documents"] = [*_list_of(found, "documents"), *(one.to_dict() for one in documents)]
        _note(state, found, "documents added", by, ", ".join(one.name for one in documents))
        if found["status"] == PriorAuthStatus.PENDING:
            _decide(state, found)
        _put(state, PRIOR_AUTH, found, "documents_added")
        return found


def withdraw(state: PlaygroundState, key: str, *, by: str) -> Row:
    """Withdraw a request; raises PriorAuthNotAllowed if it is decided."""
    with state.change():
        found = _existing(state, key)
        if text(found, "status") not in OPEN:
            raise PriorAuthNotAllowed(f"A request that is {text(found, 'status')} cannot be withdrawn.")
        found["status"] = PriorAuthStatus.WITHDRAWN.value
        _note(state, found, "withdrawn", by)
        _put(state, PRIOR_AUTH, found, "prior_auth_withdrawn")
        return found


def appeal(state: PlaygroundState, key: str, reason: str, *, by: str) -> Row:
    """Appeal a denial; raises PriorAuthNotAllowed if there is none. Returns the appeal."""
    with state.change():
        found = _existing(state, key)
        if text(found, "status") != PriorAuthStatus.DENIED:
            raise PriorAuthNotAllowed("Only a denied request can be appealed.")
        made: Row = {
            "id": f"AP-{_next(state, APPEAL, 'AP'):06}",
            "prior_auth": found["id"],
            "member": found.get("member"),
            "reason": reason,
            "status": "received",
            "created_at": rfc3339(state.clock()),
        }
        found["status"] = PriorAuthStatus.APPEALED.value
        _note(state, found, "appealed", by, reason)
        _put(state, APPEAL, made, "appeal_created")
        _put(state, PRIOR_AUTH, found, "prior_auth_appealed")
        return made


def _row(one: Item) -> Row:
    found = decode_stored(one.content().decode())
    key = one.key.partition("/")[2]
    # A row of a seed may be any JSON.
    return {**found, "id": key} if isinstance(found, dict) else {"id": key}


def _existing(state: PlaygroundState, key: str) -> Row:
    found = row(state, PRIOR_AUTH, key)
    if found is None:
        raise PriorAuthNotAllowed("This request does not exist.")
    return found


def _put(state: PlaygroundState, resource: str, changed: Row, event: str) -> None:
    state.put(SourceKind.ROWS, f"{resource}/{changed['id']}", write(changed), event=event)


def _next(state: PlaygroundState, resource: str, prefix: str) -> int:
    pattern = re.compile(rf"{resource}/{prefix}-([0-9]{{1,9}})")
    taken = (pattern.fullmatch(one.key) for one in state.items(SourceKind.ROWS, under=f"{resource}/{prefix}-"))
    return max((int(found[1]) for found in taken if found), default=0) + 1


def _decide(state: PlaygroundState, request: Row) -> None:
    """Apply the first rule, by key, whose conditions a request meets; without one the request waits."""
    member = row(state, MEMBER, text(request, "member")) or {}
    facts = {**{name: text(request, name) for name in CONDITIONS}, "plan": text(member, "plan")}
    for rule in rows(state, AUTH_RULE):
        if not _meets(rule, facts, len(_list_of(request, "attachments"))):
            continue
        status = DECISIONS.get(text(rule, "decision"), PriorAuthStatus.PENDING)
        if status is not PriorAuthStatus.PENDING or rule.get("reason"):
            request["status"] = status.value
            if status is PriorAuthStatus.APPROVED:
                request["auth_number"] = f"AUTH-{text(request, 'id').removeprefix('PA-')}"
            if rule.get("reason_code") is not None:
                request["reason_code"] = text(rule, "reason_code")
            _note(state, request, status.value, PAYER, text(rule, "reason"))
        return


def _meets(rule: Row, facts: Mapping[str, str], documents: int) -> bool:
    for name in CONDITIONS:
        wanted = rule.get(name)
        if wanted is not None and facts[name] not in map(str, wanted if isinstance(wanted, list) else [wanted]):
            return False
    return documents >= (numeral(rule.get("documents")) or 0)


def _note(state: PlaygroundState, request: Row, event: str, by: str, note: str = "") -> None:
    entry = {"at": rfc3339(state.clock()), "event": event, "by": by, **({"note": note} if note else {})}
    request["history"] = [*_list_of(request, "history"), entry]


def _list_of(of: Row, name: str) -> list[Any]:
    found = of.get(name)
    return list(found) if isinstance(found, list) else []
