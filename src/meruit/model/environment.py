"""The state of the environment: what each system held before an agent acted, and after.

Bodies are kept as they were received, so that 1.0 stays 1.0 and a stray byte stays where it was.
"""

import base64
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from meruit.model.decoding import convert_to
from meruit.model.record import Record

ENVIRONMENT_KEY = "world"
"""The key of the environment's state in a work: before in its input, after in its output."""
FACTS_KEY = "facts"
"""The key of the input with a task's own names, for `${…}`."""


class SourceKind(StrEnum):
    """What kind of system a source reads."""

    FHIR = "fhir"
    """Resources, keyed `Patient/1`."""
    HL7 = "hl7"
    """Messages that were sent, keyed by their order."""
    ROWS = "rows"
    """Rows of an application's state, keyed `resource/key`; a bare `resource` is one document."""
    FILES = "files"
    """Files, keyed by path."""
    VOICE = "voice"
    """Turns of a call, keyed by their order; `speaker` is among their facts."""
    X12 = "x12"
    """Interchanges that were answered, keyed by their order."""
    FAX = "fax"
    """Documents that were faxed, keyed by their order; number and status are among their facts."""
    MESSAGES = "messages"
    """Secure messages in JSON, keyed by their order."""
    CDS = "cds"
    """Cards of decision support in JSON, keyed by their order: what was shown, and what came of it."""
    ANSWER = "answer"
    """What the agent answered when it completed its task; at most one item."""


class Encoding(StrEnum):
    """How an item's body is written here."""

    TEXT = "text"
    BASE64 = "base64"
    """For bytes that are not UTF-8."""
    BEFORE = "before"
    """Not repeated: the item is unchanged from the state before."""
    LEFT = "left"
    """Not kept: too large; version and facts are all that is known, `size` and `limit` among them."""
    LOST = "lost"
    """Lost: the record refers to an item of the state before that it does not have."""


class Item(Record, frozen=True):
    """One thing that a system holds."""

    key: str
    version: str
    """Changes whenever the content does: the server's version, or a digest."""
    body: str | None = None
    encoding: Encoding = Encoding.TEXT
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Facts besides the body: size, speaker, time, direction."""

    def content(self) -> bytes:
        """The body as bytes; empty where none was kept."""
        if self.body is None:
            return b""
        return base64.b64decode(self.body, validate=True) if self.encoding is Encoding.BASE64 else self.body.encode()


class Read(Record, frozen=True):
    """One request to a system, so that an auditor can see what a snapshot is based on."""

    what: str
    """A URL or path, without credentials."""
    status: int | None = None
    etag: str | None = None
    sha256: str | None = None
    """Of the reply's body."""
    items: int | None = None


class Snapshot(Record, frozen=True):
    """All items of a system at one time, or why it could not be read."""

    kind: SourceKind
    items: list[Item] = msgspec.field(default_factory=list)
    reads: list[Read] = msgspec.field(default_factory=list)
    trouble: str | None = None
    """Why the items are incomplete: system down, incomplete read, never stable."""
    settled_after_ms: int | None = None

    def manifest(self) -> dict[str, str]:
        """Key to version."""
        return {item.key: item.version for item in self.items}


ANSWER_SOURCE = "answer"
"""The name under which an agent's answer is read; no source of a task has it."""
MAX_ANSWER_BYTES = 1024 * 1024


# Any: text, or JSON.
def answer_snapshot(answer: Any) -> Snapshot:
    """An agent's answer as a source; empty without one."""
    if answer is None:
        return Snapshot(SourceKind.ANSWER)
    is_text = isinstance(answer, str)
    content = answer.encode("utf-8", "surrogatepass") if is_text else msgspec.json.encode(answer)
    return Snapshot(
        SourceKind.ANSWER, [make_item(ANSWER_SOURCE, content, facts={"format": "text" if is_text else "json"})]
    )


EnvironmentState = dict[str, Snapshot]
"""Each source's snapshot, by the name that the task gives it."""


def make_item(key: str, content: bytes, *, version: str | None = None, facts: Mapping[str, Any] | None = None) -> Item:
    """An item of some content; its version is a digest unless the system has one of its own."""
    try:
        body, encoding = content.decode(), Encoding.TEXT
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(content).decode(), Encoding.BASE64
    return Item(
        key=key, version=version or sha256(content).hexdigest(), body=body, encoding=encoding, facts=facts or {}
    )


def too_large_item(key: str, version: str, *, size: int, limit: int, facts: Mapping[str, Any] | None = None) -> Item:
    """An item that is too large to keep; it is listed without its body, so that the snapshot stays complete."""
    return Item(
        key=key,
        version=version,
        body=None,
        encoding=Encoding.LEFT,
        facts={**(facts or {}), "size": size, "limit": limit},
    )


def compact_state(before: EnvironmentState, after: EnvironmentState) -> EnvironmentState:
    """The state after, without the bodies that are unchanged from the state before."""
    return {name: _compact_snapshot(before.get(name), found) for name, found in after.items()}


def _compact_snapshot(before: Snapshot | None, after: Snapshot) -> Snapshot:
    if before is None:
        return after
    known = {one.key: one for one in before.items}
    items = [
        Item(one.key, one.version, None, Encoding.BEFORE) if known.get(one.key) == one else one for one in after.items
    ]
    return msgspec.structs.replace(after, items=items)


def restore_state(before: EnvironmentState, after: EnvironmentState) -> EnvironmentState:
    """Undo `compact_state`; an item without a counterpart in the state before loses its body."""
    return {name: _restore_snapshot(before.get(name), found) for name, found in after.items()}


def _restore_snapshot(before: Snapshot | None, after: Snapshot) -> Snapshot:
    known = {one.key: one for one in before.items} if before is not None else {}
    items = [_body_of(one, known) if one.encoding is Encoding.BEFORE else one for one in after.items]
    return msgspec.structs.replace(after, items=items)


def _body_of(one: Item, known: Mapping[str, Item]) -> Item:
    found = known.get(one.key)
    if found is None or found.version != one.version:
        return Item(one.key, one.version, None, Encoding.LOST)
    return found


def environment_in(part: Mapping[str, Any]) -> EnvironmentState:
    """The state in a work's input or output; raises `msgspec.ValidationError` for an invalid one."""
    found = part.get(ENVIRONMENT_KEY)
    return {} if found is None else convert_to(found, EnvironmentState)


def as_work_part(world: EnvironmentState) -> dict[str, Any]:
    """The state as part of a work's input or output."""
    return {ENVIRONMENT_KEY: msgspec.to_builtins(world)}
