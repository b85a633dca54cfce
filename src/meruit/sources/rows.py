"""Read the state and the event log of an application, as JSON over HTTP."""

import base64
from collections.abc import Collection, Mapping
from typing import Any

import httpx

from meruit.errors import SourceError
from meruit.model.environment import Snapshot, SourceKind, make_item
from meruit.sources import json_text as slices
from meruit.sources.credentials import SecretToken
from meruit.sources.http import check_base_url
from meruit.sources.http_replies import OK, HttpReply, invalid_json_error, quote_of
from meruit.sources.retry import DEFAULT, INCOMPLETE, ReadPolicy, SourceReading, take_snapshot
from meruit.sources.source_client import SourceClient

KINDS = {"hl7_outbound": SourceKind.HL7, "x12_response": SourceKind.X12, "voice_turn": SourceKind.VOICE}
"""The kind of item of each event type."""
KEY_DIGITS = 6

_STATE = slices.object_of({}, others=slices.with_text)
_LIST = slices.array_of(slices.with_text)


class RowsSource:
    """Rows of an application's state: `{resource: {key: row} | [row…] | document}`."""

    kind = SourceKind.ROWS

    def __init__(
        self,
        url: str,
        *,
        client: httpx.AsyncClient,
        token: SecretToken | None = None,
        key: str | None = None,
        documents: Collection[str] = (),
        shape: str | None = None,
        policy: ReadPolicy = DEFAULT,
    ) -> None:
        """`key` is the field that identifies the rows of a list; `documents` are resources that are not rows.

        With `shape`, all other resources must be `rows`, or each must be a `document`, which neither a list nor an
        object of objects is. Without it, a resource is a document unless it is one of these two.
        """
        self._shape = shape
        self._url = check_base_url(url)
        self._client = client
        self._token = token
        self._key = key
        self._documents = frozenset(documents)
        self._policy = policy

    async def read(self) -> Snapshot:
        """Read every row; the snapshot says what could not be read."""
        return await take_snapshot(self.kind, self._url, self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        client = SourceClient(self._client, self._url, token=self._token, reading=reading, policy=self._policy)
        rows = await client.get(self._url, self._rows, count=len)
        for key, text in rows.items():
            reading.add(make_item(key, text.encode()))

    def _rows(self, reply: HttpReply) -> dict[str, str]:
        found: dict[str, str] = {}
        for resource, part in _object(reply, _STATE).items():
            for key, text in self._parts(reply, resource, part):
                if key in found:
                    raise SourceError(f"{reply.where} has two rows {key}; set a `key` that identifies them")
                found[key] = text
        return found

    def _parts(self, reply: HttpReply, resource: str, part: slices.JsonSlice) -> list[tuple[str, str]]:
        match part.value:
            case _ if resource in self._documents:
                return [(resource, part.text)]
            case list() if self._shape == "document":
                raise SourceError(
                    f"{reply.where} has {resource}, which is a list and so rows, not a document; "
                    f"set `shape: rows` with a `key`, or add it to `documents`"
                )
            case dict(rows) if self._shape == "document" and rows and _is_of_objects(rows):
                raise SourceError(
                    f"{reply.where} has {resource}, which is an object of objects and so rows, not a document; "
                    f"set `shape: rows`, or add it to `documents`"
                )
            case _ if self._shape == "document":
                return [(resource, part.text)]
            case dict(rows) if _is_of_objects(rows):
                return [(f"{resource}/{key}", row.text) for key, row in _read(reply, part.text, _STATE).items()]
            case list():
                return [
                    (f"{resource}/{self._key_of(reply, resource, row.value)}", row.text)
                    for row in _read(reply, part.text, _LIST)
                ]
            case _ if self._shape == "rows":
                raise SourceError(
                    f"{reply.where} has {resource}, which is not rows: it must be a list, or an object of objects; "
                    f"add it to `documents`, or set `shape: document`"
                )
            case _:
                return [(resource, part.text)]

    # An application may send any JSON as a row.
    def _key_of(self, reply: HttpReply, resource: str, row: Any) -> str:
        key = row.get(self._key) if isinstance(row, dict) and self._key is not None else None
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise SourceError(
                f"{reply.where} has a list of {resource} whose rows have no key; "
                + (
                    "set `key` to the field that identifies them"
                    if self._key is None
                    else f"some have no {self._key!r}"
                )
            )
        return str(key)


# Any: an application may send any JSON.
def _is_of_objects(rows: Mapping[str, Any]) -> bool:
    return all(isinstance(row, dict) for row in rows.values())


class EventsSource:
    """Events of one type from an application's log: pages of `{events: [{type, at, body, facts}…], next}`."""

    def __init__(
        self,
        url: str,
        *,
        client: httpx.AsyncClient,
        token: SecretToken | None = None,
        type: str = "hl7_outbound",  # noqa: A002 -- as the events name it
        policy: ReadPolicy = DEFAULT,
    ) -> None:
        """The type decides whether items are messages, interchanges or turns; a binary body has `encoding: base64`."""
        self.kind = KINDS.get(type, SourceKind.HL7)
        self._url = check_base_url(url)
        self._client = client
        self._token = token
        self._type = type
        self._policy = policy

    async def read(self) -> Snapshot:
        """Read every event in order; the snapshot says what could not be read."""
        return await take_snapshot(self.kind, self._url, self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        client = SourceClient(self._client, self._url, token=self._token, reading=reading, policy=self._policy)
        url: str | None = self._url
        visited: set[str] = set()
        while url is not None:
            visited.add(url)
            events, following = await client.get(url, _events, count=lambda page: len(page[0]))
            for event in events:
                if event["type"] == self._type:
                    key = f"{len(reading.items) + 1:0{KEY_DIGITS}}"
                    reading.add(make_item(key, _body(self._url, event), facts=_facts(event)))
            url = None if following is None else client.resolve_link(url, following)
            if url in visited or len(visited) >= reading.limits.pages:
                raise SourceError(
                    f"{INCOMPLETE}: the pages of {client.display_url(self._url)} do not end; ask its operator"
                )


def _events(reply: HttpReply) -> tuple[list[dict[str, Any]], str | None]:
    match _object(reply, slices.value):
        case {"events": list(events), **rest} if all(
            isinstance(event, dict) and isinstance(event.get("type"), str) for event in events
        ) and isinstance(following := rest.get("next"), (str, type(None))):
            return events, following or None
        case _:
            raise SourceError(f"{reply.where} has no list of events{quote_of(reply)}; check the address")


def _body(where: str, event: Mapping[str, Any]) -> bytes:
    body, encoding = event.get("body"), event.get("encoding", "text")
    try:
        if encoding == "base64":
            return base64.b64decode(body or "", validate=True)
        if isinstance(body, str):
            return body.encode()
    except (ValueError, TypeError):
        pass
    raise SourceError(f"{where} has an event {event.get('type')} whose body cannot be read; ask its operator")


def _facts(event: Mapping[str, Any]) -> dict[str, Any]:
    facts = event.get("facts")
    known = {name: event[name] for name in ("type", "at") if name in event}
    return {**(facts if isinstance(facts, dict) else {}), **known}


def _object(reply: HttpReply, reader: slices.Reader) -> dict[str, Any]:
    if reply.status != OK:
        raise SourceError(f"{reply.where} answered with status {reply.status}{quote_of(reply)}; check who may read it")
    found = _read(reply, reply.text(), reader)
    if not isinstance(found, dict):
        raise invalid_json_error(reply, ValueError("it is not an object"))
    return found


def _read(reply: HttpReply, text: str, reader: slices.Reader) -> Any:
    try:
        return slices.read(text, reader)
    except ValueError as problem:
        raise invalid_json_error(reply, problem) from None
