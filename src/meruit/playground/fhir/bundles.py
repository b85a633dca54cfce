"""Bundles that clients send: transactions, of which all is done or nothing, and batches."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec

from meruit.errors import FhirRefusal, PlaygroundFull
from meruit.playground.fhir.endpoint import FhirCall, FhirEndpoint, FhirReply, query_of
from meruit.playground.fhir.json import Json, Verbatim
from meruit.playground.fhir.resources import refusal_outcome, require_type, storage_refusal
from meruit.playground.fhir.search import only_match

ORDER = {"DELETE": 0, "POST": 1, "PUT": 2, "PATCH": 2, "GET": 3, "HEAD": 3}
"""The order in which a transaction is done, independent of the order of its entries."""
MAX_ENTRIES = 500
"""Of one bundle."""
MAX_SEARCHES = 50
"""Of one bundle, with conditions and histories: each reads all resources, and a transaction blocks other writers."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of all resources that a bundle reads or writes: a large one can be requested many times."""
_CONDITION = re.compile(r"([A-Z][A-Za-z]{1,63})\?(.+)")


class _BundleEntry(msgspec.Struct, frozen=True):
    """One entry of a bundle."""

    number: int
    call: FhirCall
    full_url: str | None
    done: FhirReply | None = None
    """The reply, if it was clear before anything was done."""


class _EntryResult(msgspec.Struct, frozen=True):
    method: str
    reply: FhirReply | FhirRefusal


class _Allowance:
    """What a bundle may still cost."""

    def __init__(self) -> None:
        self._searches = 0
        self._bytes = 0

    def search(self) -> None:
        """Count a search before it is done; raises FhirRefusal for one too many."""
        self._searches += 1
        if self._searches > MAX_SEARCHES:
            raise FhirRefusal(
                413, "too-costly", f"a bundle may ask for {MAX_SEARCHES} searches, conditions included; send several"
            )

    def perform(self, endpoint: FhirEndpoint, call: FhirCall) -> FhirReply:
        """Do what an entry asks; raises FhirRefusal if the replies together are too long."""
        if self._bytes > MAX_ANSWER_BYTES:
            raise _too_long()
        reply = endpoint.perform(call)
        self._bytes += len(reply.content)
        if self._bytes > MAX_ANSWER_BYTES:
            raise _too_long()
        return reply


def _too_long() -> FhirRefusal:
    why = f"what a bundle reads and writes may have {MAX_ANSWER_BYTES:,} bytes; send several"
    return FhirRefusal(413, "too-costly", why)


def execute_bundle(endpoint: FhirEndpoint, bundle: Any, *, strict: bool, with_resources: bool) -> Json:
    """Process a bundle; returns its replies in order. Raises FhirRefusal if it is invalid or a transaction fails."""
    if not isinstance(bundle, dict) or bundle.get("resourceType") != "Bundle":
        raise FhirRefusal(400, "structure", "send a Bundle here; a resource goes to the address of its type")
    kind, entries = bundle.get("type"), bundle.get("entry", [])
    if kind not in ("transaction", "batch"):
        raise FhirRefusal(400, "value", f"a bundle of type {kind!r} is not supported; use transaction or batch")
    if not isinstance(entries, list):
        raise FhirRefusal(400, "structure", "the bundle's entries must be a list", expression="Bundle.entry")
    if len(entries) > MAX_ENTRIES:
        raise FhirRefusal(
            413, "too-costly", f"a bundle may have {MAX_ENTRIES:,} entries; send several", expression="Bundle.entry"
        )
    do = _transaction if kind == "transaction" else _batch
    replies = do(endpoint, entries, strict=strict)
    return {
        "resourceType": "Bundle",
        "type": f"{kind}-response",
        "entry": [_response_entry(reply, with_resources=with_resources) for reply in replies],
    }


def _batch(endpoint: FhirEndpoint, entries: list[Any], *, strict: bool) -> list[_EntryResult]:
    replies: list[_EntryResult] = []
    allowance = _Allowance()
    for number, entry in enumerate(entries):
        method = ""
        try:
            call = _read(endpoint, number, entry, strict=strict).call
            method = call.method
            if _is_search(call):
                allowance.search()
            replies.append(_EntryResult(method, allowance.perform(endpoint, call)))
        except FhirRefusal as refused:
            replies.append(_EntryResult(method, refused))
        except PlaygroundFull as full:
            replies.append(_EntryResult(method, storage_refusal(full)))
    return replies


def _transaction(endpoint: FhirEndpoint, entries: list[Any], *, strict: bool) -> list[_EntryResult]:
    replies: dict[int, FhirReply] = {}
    known: dict[tuple[str, str], str] = {}
    allowance = _Allowance()
    with endpoint.state.change():
        planned = []
        for number, entry in enumerate(entries):
            with _annotate_refusal(number):
                read = _read(endpoint, number, entry, strict=strict)
                if _is_search(read.call):
                    allowance.search()
                planned.append(_plan(endpoint, read))
        _refuse_duplicates(planned)
        names = {entry.full_url: key for entry in planned if entry.full_url and (key := _key(entry))}

        def find_reference(kind: str, query: str) -> str:
            if (kind, query) not in known:
                allowance.search()
                match = only_match(endpoint.state, require_type(kind), query_of(query))
                if match is None:
                    raise FhirRefusal(412, "not-found", f"the reference {kind}?{query} matches nothing")
                known[kind, query] = match.key
            return known[kind, query]

        for entry in sorted(planned, key=lambda one: ORDER[one.call.method]):
            with _annotate_refusal(entry.number):
                call = msgspec.structs.replace(
                    entry.call, resource=resolve_references(entry.call.resource, names, find_reference)
                )
                replies[entry.number] = entry.done or allowance.perform(endpoint, call)
    return [_EntryResult(entry.call.method, replies[entry.number]) for entry in planned]


# Any: a client may send any JSON.
def resolve_references(value: Any, names: Mapping[str, str], sought: Callable[[str, str], str | None]) -> Any:
    """Copy a resource, with names of others in its bundle, and conditions, as references.

    `sought` resolves a reference such as `Patient?identifier=1`; None leaves it as it is.
    """
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [resolve_references(element, names, sought) for element in value]
    if not isinstance(value, dict):
        return value
    copied = {name: resolve_references(member, names, sought) for name, member in value.items()}
    reference = copied.get("reference")
    if isinstance(reference, str) and (condition := _CONDITION.fullmatch(reference)) is not None:
        copied["reference"] = sought(*condition.groups()) or reference
    return copied


@contextmanager
def _annotate_refusal(number: int) -> Iterator[None]:
    """Add the number of the entry to a refusal inside."""
    try:
        yield
    except FhirRefusal as refused:
        raise FhirRefusal(
            refused.status,
            refused.code,
            f"entry {number} failed, so nothing was done: {refused.diagnostics}",
            expression=f"Bundle.entry[{number}]",
            allow=refused.allow,
        ) from None


def _plan(endpoint: FhirEndpoint, read: _BundleEntry) -> _BundleEntry:
    """Build an entry whose key is known before anything is done, so that others can refer to it."""
    call, state = read.call, endpoint.state
    match call.method, call.path:
        case "POST", (kind,):
            if call.if_none_exist is not None:
                found = only_match(state, require_type(kind), query_of(call.if_none_exist))
                if found is not None:
                    done = endpoint.perform(FhirCall("GET", tuple(found.key.split("/"))))
                    return msgspec.structs.replace(
                        read, call=msgspec.structs.replace(call, path=tuple(found.key.split("/"))), done=done
                    )
            return msgspec.structs.replace(
                read, call=msgspec.structs.replace(call, identity=endpoint.new_id(), if_none_exist=None)
            )
        case "PUT", (kind,):
            found = only_match(state, require_type(kind), call.query)
            given = call.resource.get("id") if isinstance(call.resource, dict) else None
            identity = found.key.partition("/")[2] if found is not None else given or endpoint.new_id()
            if given is not None and given != identity:
                raise FhirRefusal(
                    400, "invalid", f"the condition is met by {kind}/{identity}, the resource says id {given!r}"
                )
            if isinstance(call.resource, dict):
                call = msgspec.structs.replace(call, resource={**call.resource, "id": identity})
            return msgspec.structs.replace(
                read, call=msgspec.structs.replace(call, path=(kind, str(identity)), query=())
            )
        case "DELETE", (kind,):
            found = only_match(state, require_type(kind), call.query)
            if found is None:
                return msgspec.structs.replace(read, done=FhirReply(204))
            return msgspec.structs.replace(
                read, call=msgspec.structs.replace(call, path=tuple(found.key.split("/")), query=())
            )
        case _:
            return read


def _read(endpoint: FhirEndpoint, number: int, entry: Any, *, strict: bool) -> _BundleEntry:
    request = entry.get("request") if isinstance(entry, dict) else None
    if not isinstance(request, dict):
        raise FhirRefusal(400, "structure", "an entry needs a request with method and url")
    texts: dict[str, str | None] = {}
    for name in ("method", "url", "ifMatch", "ifNoneMatch", "ifNoneExist"):
        texts[name] = request.get(name)
        if not isinstance(texts[name], str | None):
            raise FhirRefusal(400, "structure", f"request.{name} must be text")
    method, url = texts["method"] or "", texts["url"] or ""
    if method not in ORDER:
        raise FhirRefusal(400, "value", f"request.method {method!r} is not one of {', '.join(ORDER)}")
    try:
        parts = urlsplit(url.removeprefix(endpoint.base).lstrip("/"))
    except ValueError:
        raise FhirRefusal(400, "value", f"request.url {url[:100]!r} is not a valid address") from None
    if parts.scheme or parts.netloc:
        raise FhirRefusal(
            400, "value", f"request.url {url[:100]!r} leads elsewhere; write it relative to {endpoint.base}"
        )
    full_url = entry.get("fullUrl")
    return _BundleEntry(
        number=number,
        call=FhirCall(
            method=method,
            path=tuple(parts.path.split("/")),
            query=query_of(parts.query),
            resource=entry.get("resource"),
            if_match=texts["ifMatch"],
            if_none_match=texts["ifNoneMatch"],
            if_none_exist=texts["ifNoneExist"],
            strict=strict,
        ),
        full_url=full_url if isinstance(full_url, str) else None,
    )


def _is_search(call: FhirCall) -> bool:
    """Return whether a call reads more than one resource or version."""
    if "_search" in call.path or "_history" in call.path:
        return True
    if call.path == ("metadata",) or len(call.path) > 1:
        return False
    return call.method != "POST" or call.if_none_exist is not None


def _key(entry: _BundleEntry) -> str:
    """Return the resource that an entry is about; empty if there is none, or several."""
    path, identity = entry.call.path, entry.call.identity
    if entry.call.method in ("GET", "HEAD"):
        return ""
    return "/".join(path[:2]) if len(path) > 1 else f"{path[0]}/{identity}" if identity else ""


def _refuse_duplicates(planned: list[_BundleEntry]) -> None:
    seen: dict[str, int] = {}
    for entry in planned:
        key = _key(entry)
        if not key or entry.done is not None:
            continue
        if key in seen:
            raise FhirRefusal(
                400,
                "duplicate",
                f"entries {seen[key]} and {entry.number} are both about {key}; nothing was done",
                expression=f"Bundle.entry[{entry.number}]",
            )
        seen[key] = entry.number


def _response_entry(done: _EntryResult, *, with_resources: bool) -> Json:
    reply = done.reply
    if isinstance(reply, FhirRefusal):
        return {"response": {"status": _status(reply.status), "outcome": refusal_outcome(reply)}}
    headers = {"location": reply.headers.get("Location"), "etag": reply.headers.get("ETag"), "lastModified": reply.at}
    response = {
        "status": _status(reply.status),
        **{name: value for name, value in headers.items() if value is not None},
    }
    if reply.content and (with_resources or done.method == "GET"):
        return {"resource": Verbatim(reply.content.decode()), "response": response}
    return {"response": response}


def _status(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}"
