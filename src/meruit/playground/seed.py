"""The first content of a playground: resources, rows, files, messages, and how calls, faxes and hooks are answered."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, TypeVar

import msgspec

from meruit.checks.fhir_types.search import compile_search
from meruit.documents.document import Document, parse, sort_and_limit_problems
from meruit.documents.tree import Path, format_path
from meruit.errors import (
    AuthorError,
    DocumentError,
    FhirRefusal,
    InvalidPhoneScript,
    MeruitError,
    Problem,
    SeedError,
    UnreadableContent,
)
from meruit.model.environment import SourceKind
from meruit.model.record import Record
from meruit.playground.fhir.bundles import resolve_references
from meruit.playground.fhir.endpoint import query_of
from meruit.playground.fhir.json import Json, write
from meruit.playground.fhir.json import parse as parse_json
from meruit.playground.fhir.resources import IDENTITY, TYPES, store_resource
from meruit.playground.portal.payer import AUTH_RULE, DECISIONS, text
from meruit.playground.state import PlaygroundEvent, PlaygroundState
from meruit.suggestions import nearest

MAX_FHIR_FILE_BYTES = 64 * 1024 * 1024
"""Of one file of resources."""
EVENT = "seed"
"""The event of an item that a seed brought."""

_T = TypeVar("_T")
_STEP = re.compile(r"\[([0-9]+)\]|\.(\w+)")
"""A step of a path in an error of the library."""
Read = Callable[[str], bytes]
"""Reads a file that a seed names; raises OSError or MeruitError."""


class Seed(Record, frozen=True):
    """The first content of a playground, read and validated."""

    resources: dict[str, Json] = msgspec.field(default_factory=dict)
    """By key: `Patient/1`."""
    rows: dict[str, Json] = msgspec.field(default_factory=dict)
    """By key: `prior_auth/1`."""
    files: dict[str, bytes] = msgspec.field(default_factory=dict)
    hl7: list[bytes] = msgspec.field(default_factory=list)
    x12: list[bytes] = msgspec.field(default_factory=list)
    call: Json = msgspec.field(default_factory=dict)
    """How a call is answered."""
    fax: Json = msgspec.field(default_factory=dict)
    """Our number, and the numbers that do not answer."""
    messages: list[Json] = msgspec.field(default_factory=list)
    """What is in the inbox."""
    cds: list[Json] = msgspec.field(default_factory=list)
    """The services of decision support, and their cards."""
    facts: Json = msgspec.field(default_factory=dict)
    """Names that a task's instruction and checks may use."""


# Any: a document can have values of any type.
def read_seed(source: str | Mapping[str, Any], read: Read) -> Seed:
    """Read a seed, given as the name of a YAML or JSON file or as its content.

    Raises DocumentError with every problem.
    """
    if not isinstance(source, str):
        return _Reader(Document(name="seed", value=dict(source), lines={}), read).seed()
    try:
        text = read(source)
    except OSError as problem:
        raise DocumentError(source, [Problem("", f"cannot be read: {problem.strerror or problem}")]) from None
    return _Reader(parse(text, source), read).seed()


def apply_seed(state: PlaygroundState, seed: Seed) -> None:
    """Put the content of a seed into a playground, at one moment."""
    with state.change():
        for key, resource in seed.resources.items():
            store_resource(state, key, resource, noted={"from": EVENT})
        for key, row in seed.rows.items():
            state.put(SourceKind.ROWS, key, write(row), event=EVENT)
        for path, content in seed.files.items():
            state.put(SourceKind.FILES, path, content, event=EVENT)
        for message in seed.hl7:
            state.append(SourceKind.HL7, message, event=EVENT)
        for interchange in seed.x12:
            state.append(SourceKind.X12, interchange, event=EVENT)
        if seed.messages:
            # It imports a web framework.
            from meruit.playground.inbox import read_messages, receive

            for one in read_messages(seed.messages):
                receive(state, one, event=EVENT)
        settings = {"call": seed.call, "fax": seed.fax, "cds": seed.cds, "facts": seed.facts}
        state.set(**{name: value for name, value in settings.items() if value})


def is_of_seed(event: PlaygroundEvent) -> bool:
    """Whether an event is about content that a seed brought."""
    return event.type == EVENT or (event.kind is SourceKind.FHIR and event.facts.get("from") == EVENT)


class _NamedResource(msgspec.Struct, frozen=True):
    """A resource, and the names by which others refer to it."""

    key: str
    resource: Json
    full_url: str | None


class _Reader:
    """Reads one seed, and collects every problem with it."""

    def __init__(self, document: Document, read: Read) -> None:
        self.document = document
        self.read = read
        self.problems: list[Problem] = []

    def seed(self) -> Seed:
        parts = {
            "fhir": self._resources,
            "rows": self._rows,
            "files": self._files,
            "hl7": self._messages,
            "x12": self._messages,
            "call": self._call,
            "fax": self._fax,
            "messages": self._inbox,
            "cds": self._cds,
            "facts": self._mapping,
        }
        content = self.document.value
        found: dict[str, Any] = {}
        if not isinstance(content, dict):
            self._complain((), f"a seed is a mapping with some of {', '.join(parts)}")
            content = {}
        for name, value in content.items():
            if name not in parts:
                self._complain(
                    (name,), f"unknown key {name!r}{nearest(str(name), parts)}; there are {', '.join(parts)}"
                )
            elif value is not None:
                found["resources" if name == "fhir" else name] = parts[name]((name,), value)
        if self.problems:
            raise DocumentError(self.document.name, sort_and_limit_problems(self.problems))
        return Seed(**found)

    def _complain(self, path: Path, message: str) -> None:
        self.problems.append(Problem(where=format_path(path), message=message, line=self.document.line_of(path)))

    def _mapping(self, path: Path, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self._complain(path, "expected a mapping")
        return {}

    def _call(self, path: Path, value: Any) -> Json:
        # It imports a web framework.
        from meruit.playground.phone_call import read_script

        written = self._mapping(path, value)
        try:
            read_script(written)
        except InvalidPhoneScript as wrong:
            self._complain((*path, *wrong.path), wrong.fault)
        return written

    def _fax(self, path: Path, value: Any) -> Json:
        # These import a web framework, too.
        from meruit.playground.fax import read_line

        return self._validate(path, self._mapping(path, value), read_line)

    def _inbox(self, path: Path, value: Any) -> list[Any]:
        from meruit.playground.inbox import read_messages

        return self._validate(path, self._list(path, value), read_messages)

    def _cds(self, path: Path, value: Any) -> list[Any]:
        from meruit.playground.cds import read_services

        return self._validate(path, self._list(path, value), read_services)

    def _validate(self, path: Path, value: _T, read: Callable[[_T], object]) -> _T:
        """Return the value; complain where the library finds a fault in it."""
        try:
            read(value)
        except (msgspec.ValidationError, AuthorError) as problem:
            why, _, where = str(problem).partition(" - at `$")
            steps = tuple(int(number) if number else name for number, name in _STEP.findall(where))
            self._complain((*path, *steps), why)
        return value

    def _list(self, path: Path, value: Any) -> list[Any]:
        if isinstance(value, list):
            return value
        self._complain(path, "expected a list")
        return []

    def _messages(self, path: Path, value: Any) -> list[bytes]:
        return [self._content((*path, number), one) for number, one in enumerate(self._list(path, value))]

    def _rows(self, path: Path, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for resource, rows in self._mapping(path, value).items():
            for key, row in self._mapping((*path, resource), rows).items():
                if "/" in resource or not resource or not key:
                    self._complain((*path, resource, key), "a resource has no / in its name, and neither name is empty")
                found[f"{resource}/{key}"] = self._mapping((*path, resource, key), row)
                if resource == AUTH_RULE:
                    self._check_decision(
                        (*path, resource, key, "decision"), text(found[f"{resource}/{key}"], "decision")
                    )
        return found

    def _check_decision(self, path: Path, decision: str) -> None:
        """Refuse an unknown decision: the request would wait without a visible reason."""
        if decision and decision not in DECISIONS:
            close = nearest(decision, DECISIONS)
            self._complain(path, f"unknown decision {decision!r}{close}; there are {', '.join(DECISIONS)}")

    def _files(self, path: Path, value: Any) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, content in self._mapping(path, value).items():
            if not name or name.startswith("/") or not set(name.split("/")).isdisjoint({"", ".", ".."}):
                self._complain((*path, name), f"{name!r} is not a path below the drop; write it as outbound/roster.csv")
            found[str(PurePosixPath(name))] = self._content((*path, name), content)
        return found

    def _content(self, path: Path, value: Any) -> bytes:
        """Read text, `{base64: …}` or `{file: name}`."""
        match value:
            case str():
                return value.encode()
            case {"base64": str(text), **rest} if not rest:
                try:
                    return base64.b64decode("".join(text.split()), validate=True)
                except (binascii.Error, ValueError) as problem:
                    self._complain(path, f"not base64: {problem}")
            case {"file": str(name), **rest} if not rest:
                return self._file(path, name)
            case _:
                self._complain(path, "expected text, {base64: …} or {file: name}; quote it if it is meant as text")
        return b""

    def _file(self, path: Path, name: str) -> bytes:
        try:
            return self.read(name)
        except (OSError, MeruitError) as problem:
            reason = str(getattr(problem, "strerror", None) or problem)
            # The error may name the file already.
            message = reason if repr(name) in reason else f"{name} cannot be read: {reason}"
            advice = "name a file beside the seed, or beside the benchmark that uses it"
            self._complain(path, f"{message}; {advice}")
            return b""

    def _resources(self, path: Path, value: Any) -> dict[str, Json]:
        every: dict[str, _NamedResource] = {}
        places: dict[str, str] = {}
        for number, one in enumerate(self._list(path, value)):
            here = (*path, number)
            origin = one if isinstance(one, str) else format_path(here)
            try:
                found = list(self._read_resources(here, one))
            except SeedError as problem:
                self._complain(here, str(problem))
                continue
            for named in found:
                if named.key in every:
                    self._complain(here, f"{named.key} is in {places[named.key]} and in {origin}; keep one of them")
                every[named.key], places[named.key] = named, origin
        return _link_resources(list(every.values()))

    def _read_resources(self, path: Path, value: Any) -> Iterator[_NamedResource]:
        if isinstance(value, dict):
            yield from _resources_in(value, "the resource")
        elif not isinstance(value, str):
            raise SeedError("expected the name of a file, or a resource")
        else:
            before = len(self.problems)
            content = self._file(path, value)
            if len(self.problems) == before:
                for where, document in _documents(value, content):
                    yield from _resources_in(document, where)


def _documents(name: str, content: bytes) -> Iterator[tuple[str, Any]]:
    """Parse the JSON of a file: one document, or one per line."""
    if len(content) > MAX_FHIR_FILE_BYTES:
        raise SeedError(f"{name} has {len(content):,} bytes; at most {MAX_FHIR_FILE_BYTES:,} are read")
    if not name.lower().endswith((".ndjson", ".jsonl")):
        yield name, _json(name, content)
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"{name}, line {number}", _json(f"{name}, line {number}", line)


def _json(where: str, content: bytes) -> Any:
    try:
        return parse_json(content)
    except UnreadableContent as problem:
        raise SeedError(f"{where} {problem}") from None


def _resources_in(document: Any, where: str) -> Iterator[_NamedResource]:
    """Yield every resource of a bundle, or a single resource."""
    if not isinstance(document, dict):
        raise SeedError(f"{where} has no resource")
    if document.get("resourceType") != "Bundle" or document.get("type") in ("document", "message"):
        yield _one(document, None, where)
        return
    for number, entry in enumerate(document.get("entry") or []):
        place = f"{where}, entry {number}"
        if not isinstance(entry, dict):
            raise SeedError(f"{place} is not an entry of a bundle")
        method = (entry.get("request") or {}).get("method", "PUT")
        if method not in ("POST", "PUT"):
            raise SeedError(f"{place} asks for {method}; a seed's bundle can only bring resources, with POST or PUT")
        # A searchset may have an outcome of the server.
        if (entry.get("resource") or {}).get("resourceType") != "OperationOutcome":
            yield _one(entry.get("resource"), entry.get("fullUrl"), place)


def _one(resource: Any, full_url: Any, where: str) -> _NamedResource:
    if not isinstance(resource, dict):
        raise SeedError(f"{where} has no resource")
    kind = resource.get("resourceType")
    if kind is None:
        raise SeedError(f"{where} has no resourceType")
    if not isinstance(kind, str) or kind not in TYPES:
        raise SeedError(f"{where} has resourceType {kind!r}, which FHIR R4 does not have{nearest(str(kind), TYPES)}")
    if not isinstance(resource.get("meta", {}), dict):
        raise SeedError(f"{where} has a meta that is not an object")
    identity = resource.get("id")
    if identity is None and isinstance(full_url, str):
        identity = full_url.removeprefix("urn:uuid:").rpartition("/")[2]
    if identity is None:
        # The same seed gives the same content, so nothing is random.
        identity = sha256(write(resource)).hexdigest()[:16]
    if not isinstance(identity, str) or not IDENTITY.fullmatch(identity):
        raise SeedError(f"{where} has id {identity!r}: write A-Z, a-z, 0-9, - and ., at most 64 characters")
    return _NamedResource(
        key=f"{kind}/{identity}", resource=resource, full_url=full_url if isinstance(full_url, str) else None
    )


def _link_resources(every: list[_NamedResource]) -> dict[str, Json]:
    """Return the resources with references to each other by key; other references stay as they are."""
    names = {named.full_url: named.key for named in every if named.full_url}
    known: dict[tuple[str, str], str | None] = {}

    def find_reference(kind: str, query: str) -> str | None:
        if (kind, query) not in known:
            known[kind, query] = _only_match(every, kind, query)
        return known[kind, query]

    return {named.key: resolve_references(named.resource, names, find_reference) for named in every}


def _only_match(every: list[_NamedResource], kind: str, query: str) -> str | None:
    filters: dict[str, list[str]] = {}
    try:
        for name, value in query_of(query):
            filters.setdefault(name, []).append(value)
        fits = compile_search(kind, filters)
    except (AuthorError, FhirRefusal):
        return None
    found = [named.key for named in every if fits(named.resource)]
    return found[0] if len(found) == 1 else None
