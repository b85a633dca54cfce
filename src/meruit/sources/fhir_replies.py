"""Parse replies of a FHIR R4 server: pages of searches and histories, its capabilities, and single resources."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec

from meruit.errors import SourceError, UnsupportedInteraction
from meruit.model.environment import Item, make_item
from meruit.sources import json_text as slices
from meruit.sources.http_replies import NOT_IMPLEMENTED, OK, HttpReply, invalid_json_error, quote_of
from meruit.sources.retry import INCOMPLETE

MAX_VERSION_DIGITS = 20
MARK_CHARS = 16
"""The length of the digest beside a version."""

_UNSUPPORTED = {400, 404, 405, 422}
_NO_HISTORY = _UNSUPPORTED | {403, 410, NOT_IMPLEMENTED}
_GONE = {404, 410}
_BUNDLE = slices.object_of({"entry": slices.array_of(slices.object_of({"resource": slices.with_text}))})
_KEY = re.compile(r"([A-Z][A-Za-z]{1,60}/[A-Za-z0-9.-]{1,64})(?:/_history/[^/?#]+)?")


class FhirSearchPage(msgspec.Struct, frozen=True):
    """One page of a search."""

    items: list[Item]
    total: int | None
    next_link: str | None
    date: str | None


class FhirHistoryEntry(msgspec.Struct, frozen=True):
    """One change of a resource."""

    key: str
    version: str | None
    is_deletion: bool


class FhirHistoryPage(msgspec.Struct, frozen=True):
    """One page of a history, newest first."""

    entries: list[FhirHistoryEntry]
    total: int | None
    next_link: str | None


class FhirCapabilities(msgspec.Struct, frozen=True):
    """What a server declares that it can do."""

    search: dict[str, bool]
    """Each type that it has, and whether it can be searched."""
    history: frozenset[str]
    """The types that have a history."""
    has_history: bool
    """Whether there is one history of all types."""


def read_page(reply: HttpReply, name: str) -> FhirSearchPage:
    """Parse a search page of one type; raises SourceError."""
    if reply.status in _UNSUPPORTED:
        raise UnsupportedInteraction(
            f"{reply.where} answered with status {reply.status}{quote_of(reply)}; check the base URL"
        )
    bundle = _resource(reply, _BUNDLE)
    if bundle.get("resourceType") != "Bundle" or bundle.get("type") != "searchset":
        raise SourceError(
            f"{reply.where} answered with no search result{quote_of(reply)}; check that it is a FHIR R4 server"
        )
    entries, total = _contents(reply, bundle)
    found = [_item(reply, name, entry) for entry in entries]
    return FhirSearchPage(
        items=[one for one in found if one is not None],
        total=total,
        next_link=_next_link(reply, bundle),
        date=reply.headers.get("date"),
    )


def read_history(reply: HttpReply, base_url: str) -> FhirHistoryPage:
    """Parse a history page; raises UnsupportedInteraction if it is not one, and SourceError if the server failed."""
    if reply.status in _NO_HISTORY:
        raise UnsupportedInteraction(f"{reply.where} answered with status {reply.status}{quote_of(reply)}")
    bundle = _resource(reply, slices.value)
    if bundle.get("resourceType") != "Bundle" or bundle.get("type") != "history":
        raise UnsupportedInteraction(f"{reply.where} answered with no history{quote_of(reply)}")
    try:
        entries, total = _contents(reply, bundle)
        return FhirHistoryPage(
            entries=[_entry(reply, base_url, one) for one in entries], total=total, next_link=_next_link(reply, bundle)
        )
    except SourceError as problem:
        raise UnsupportedInteraction(str(problem)) from None


# A server may send any JSON in a bundle.
def _contents(reply: HttpReply, bundle: Mapping[str, Any]) -> tuple[list[Any], int | None]:
    entries, total = bundle.get("entry", []), bundle.get("total")
    if not isinstance(entries, list) or not (total is None or (type(total) is int and total >= 0)):
        raise _invalid_reply(reply, "its `entry` or `total` is not what FHIR says")
    return entries, total


# As above.
def _entry(reply: HttpReply, base_url: str, entry: Any) -> FhirHistoryEntry:
    """Parse one entry of a history; a deletion has no resource, and only its request says what was deleted."""
    match entry:
        case {"request": {"method": "DELETE", **request}}:
            addresses = (request.get("url"), entry.get("fullUrl"))
            keys = [key for key in (_key(one, base_url) for one in addresses) if key is not None]
            if not keys:
                raise _invalid_reply(reply, "a deletion does not say what was deleted")
            return FhirHistoryEntry(keys[0], None, is_deletion=True)
        case {"resource": {"resourceType": str(name), "id": str(id_)} as resource}:
            return FhirHistoryEntry(f"{name}/{id_}", _version(resource), is_deletion=False)
        case _:
            raise _invalid_reply(reply, "an entry has neither a resource nor a deletion")


# As above.
def _key(address: Any, base_url: str) -> str | None:
    """Return `Patient/1` for an address on this server; other servers have other resources of that key."""
    found = _KEY.fullmatch(address.removeprefix(f"{base_url}/")) if isinstance(address, str) else None
    return found[1] if found else None


# As above.
def _item(reply: HttpReply, name: str, entry: Any) -> Item | None:
    """Return the resource of one entry; None for one that is only included."""
    match entry:
        case {"resource": slices.JsonSlice(value={"resourceType": "OperationOutcome"} as outcome)} if name != (
            "OperationOutcome"
        ):
            _check_outcome(reply, outcome)
            return None
        case {"search": {"mode": "include"}, "resource": slices.JsonSlice(value={"resourceType": str(other)})} if (
            other != name
        ):
            return None
        case {"resource": slices.JsonSlice(text=text, value={"resourceType": str(found), "id": str(id_)} as resource)}:
            pass
        case _:
            raise _invalid_reply(reply, "an entry has no resource with a type and an id")
    if found != name or not id_:
        raise _invalid_reply(reply, f"it lists {found}/{id_} among {name}")
    meta = resource.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    if any(isinstance(tag, dict) and tag.get("code") == "SUBSETTED" for tag in _list(meta.get("tag"))):
        raise SourceError(f"{INCOMPLETE}: {reply.where} sent only parts of {found}/{id_}; ask for whole resources")
    return make_item(f"{found}/{id_}", text.encode(), version=_version_mark(resource))


def _check_outcome(reply: HttpReply, outcome: Mapping[str, Any]) -> None:
    """Raise SourceError for an outcome among the results that reports a failure; warnings are ignored."""
    for issue in _list(outcome.get("issue")):
        if isinstance(issue, dict) and issue.get("severity") in {"error", "fatal"}:
            reason = issue.get("diagnostics") or issue.get("code") or "nothing more"
            raise SourceError(f"{reply.where} reports a failure in its results ({reason!s:.200}); ask its operator")


def _next_link(reply: HttpReply, bundle: Mapping[str, Any]) -> str | None:
    links = [link for link in _list(bundle.get("link")) if isinstance(link, dict) and link.get("relation") == "next"]
    if not links:
        return None
    if len(links) > 1 or not isinstance(links[0].get("url"), str):
        raise _invalid_reply(reply, "its next link is not one URL")
    return str(links[0]["url"])


def read_capabilities(reply: HttpReply) -> FhirCapabilities:
    """Parse a CapabilityStatement; raises SourceError if it is not one."""
    statement = _resource(reply, slices.value)
    if statement.get("resourceType") != "CapabilityStatement":
        raise SourceError(f"{reply.where} has no CapabilityStatement{quote_of(reply)}; check the base URL")
    search: dict[str, bool] = {}
    history: set[str] = set()
    served = [one for one in _list(statement.get("rest")) if isinstance(one, dict)]
    for resource in [one for rest in served for one in _list(rest.get("resource"))]:
        if isinstance(resource, dict) and isinstance(name := resource.get("type"), str):
            codes = _interactions(resource)
            search[name] = search.get(name, False) or "search-type" in codes
            history |= {name} if "history-type" in codes else set()
    return FhirCapabilities(
        search=search,
        history=frozenset(history),
        has_history=any("history-system" in _interactions(rest) for rest in served),
    )


# As above.
def _interactions(part: Mapping[str, Any]) -> list[Any]:
    return [one.get("code") for one in _list(part.get("interaction")) if isinstance(one, dict)]


def is_gone(reply: HttpReply) -> bool:
    """Return whether the server says that a resource is deleted; raises SourceError for other replies."""
    if reply.status in _GONE:
        return True
    if reply.status == OK:
        _resource(reply, slices.value)
        return False
    raise SourceError(f"{reply.where} answered with status {reply.status}{quote_of(reply)}; ask its operator")


def lag_of(reply: HttpReply, listed: Item) -> str | None:
    """Describe how a resource requested by id differs from its list entry; None if it does not."""
    if is_gone(reply):
        return ", which is gone"
    found, known = json.loads(reply.text()), json.loads(listed.content())
    versions = [_version(one) for one in (found, known)]
    # Without versions the contents are compared, ignoring the order of keys.
    return None if (versions[0] == versions[1] if all(versions) else found == known) else " as it was"


def _version_mark(resource: Mapping[str, Any]) -> str | None:
    """Return the server's version and a digest: a server that lets clients choose versions would hide their changes."""
    version = _version(resource)
    if version is None:
        return None
    content = {name: value for name, value in resource.items() if name != "meta"}
    return f"{version}-{sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:MARK_CHARS]}"


def version_of(one: Item) -> str:
    """Return the server's version of an item, without our digest; empty if it has none."""
    return one.version.rpartition("-")[0]


# A server may send any JSON in a resource.
def _version(resource: Mapping[str, Any]) -> str | None:
    meta = resource.get("meta")
    version = meta.get("versionId") if isinstance(meta, dict) else None
    return version if isinstance(version, str) and version else None


def _resource(reply: HttpReply, reader: slices.Reader) -> dict[str, Any]:
    if reply.status != OK:
        raise SourceError(f"{reply.where} answered with status {reply.status}{quote_of(reply)}; ask its operator")
    try:
        found = slices.read(reply.text(), reader)
    except ValueError as problem:
        raise invalid_json_error(reply, problem) from None
    if not isinstance(found, dict):
        raise invalid_json_error(reply, ValueError("it is not an object"))
    return found


def _invalid_reply(reply: HttpReply, what: str) -> SourceError:
    return SourceError(f"{reply.where} sent a result that cannot be trusted: {what}; ask the operator of the server")


def is_older(one: Item, other: Item) -> bool:
    """Return whether one version of a resource is older than another; False if unknown."""
    mine, theirs = _age(one), _age(other)
    return mine is not None and theirs is not None and mine < theirs


def _age(one: Item) -> tuple[datetime, int] | None:
    try:
        moment = datetime.fromisoformat(json.loads(one.content())["meta"]["lastUpdated"]).astimezone(UTC)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    version = version_of(one)
    return moment, int(version) if version.isdecimal() and len(version) < MAX_VERSION_DIGITS else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
