"""What a FHIR R4 server does with one request, whether it came alone or in a bundle."""

from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import format_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from meruit.checks.fhir_types.search_parameters import parameters_by_name
from meruit.errors import BadPatch, FhirRefusal
from meruit.playground.fhir.json import Json, decode_stored, write
from meruit.playground.fhir.json_patch import apply_patch
from meruit.playground.fhir.resources import (
    FHIR,
    TYPES,
    StoredResource,
    delete,
    has_version,
    read_current,
    require_resource,
    require_type,
    require_version,
    store_resource,
)
from meruit.playground.fhir.search import Parameters, history, only_match, search
from meruit.playground.state import ItemVersion, PlaygroundState


class FhirCall(msgspec.Struct, frozen=True):
    """One request, its body read."""

    method: str
    path: tuple[str, ...]
    """Below the server's base: `("Patient", "1")`."""
    query: Parameters = ()
    # Any: a client may send any JSON.
    resource: Any = None
    if_match: str | None = None
    if_none_match: str | None = None
    if_none_exist: str | None = None
    strict: bool = False
    """Whether a search with an unknown parameter is refused."""
    identity: str | None = None
    """The id of a new resource, if it was assigned already."""


class FhirReply(msgspec.Struct, frozen=True):
    """A reply of the server."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = {}
    at: str | None = None
    """When the resource last changed."""


class FhirEndpoint:
    """A FHIR R4 server over one playground."""

    def __init__(self, state: PlaygroundState, base: str, new_id: Callable[[], str]) -> None:
        self.state = state
        self.base = base
        self.new_id = new_id

    def perform(self, call: FhirCall) -> FhirReply:
        """Do what a request asks; raises FhirRefusal."""
        choices = self._choices(call.path)
        if not choices:
            raise FhirRefusal(404, "not-supported", f"nothing is served at {'/'.join(call.path)[:200]!r}")
        method = "GET" if call.method == "HEAD" else call.method
        if method not in choices:
            allow = ", ".join(choices)
            raise FhirRefusal(405, "not-supported", f"{call.method[:20]} is not allowed here; use {allow}", allow=allow)
        return choices[method](call)

    def _choices(self, path: tuple[str, ...]) -> dict[str, Callable[[FhirCall], FhirReply]]:
        match path:
            case ("metadata",):
                return {"GET": self._metadata}
            case ("_history",):
                return {"GET": self._history}
            case (kind,):
                require_type(kind)
                return {
                    "GET": self._search,
                    "POST": self._create,
                    "PUT": self._update_where,
                    "DELETE": self._delete_where,
                }
            case (kind, *rest):
                require_type(kind)
                return self._choices_of_type(tuple(rest))
            case _:
                return {}

    def _choices_of_type(self, rest: tuple[str, ...]) -> dict[str, Callable[[FhirCall], FhirReply]]:  # noqa: PLR0911 - one a route
        if rest[0].startswith("$"):
            return {}
        match rest:
            case ("_search",):
                return {"POST": self._search}
            case ("_history",):
                return {"GET": self._history}
            case (_,):
                return {"GET": self._read, "PUT": self._update, "PATCH": self._patch, "DELETE": self._delete}
            case (_, "_history"):
                return {"GET": self._history_of_one}
            case (_, "_history", _):
                return {"GET": self._read_version}
            case _:
                return {}

    def _metadata(self, _call: FhirCall) -> FhirReply:
        return FhirReply(200, capabilities(self.base))

    def _search(self, call: FhirCall) -> FhirReply:
        # A full reference leads here, as one without the server's address does.
        query = [(name, value.removeprefix(f"{self.base}/")) for name, value in call.query]
        return FhirReply(200, write(search(self.state, call.path[0], query, base=self.base, strict=call.strict)))

    def _history(self, call: FhirCall) -> FhirReply:
        under = f"{call.path[0]}/" if len(call.path) > 1 else ""
        address = "/".join((self.base, *call.path))
        return FhirReply(200, write(history(self.state, under, call.query, base=self.base, address=address)))

    def _history_of_one(self, call: FhirCall) -> FhirReply:
        key, address = "/".join(call.path[:2]), "/".join((self.base, *call.path))
        if self.state.latest(FHIR, key) is None:
            raise FhirRefusal(404, "not-found", f"there is no {key}")
        found = history(self.state, key, call.query, base=self.base, address=address, instance=True)
        return FhirReply(200, write(found))

    def _read(self, call: FhirCall) -> FhirReply:
        found = read_current(self.state, "/".join(call.path))
        if call.if_none_match is not None and has_version(call.if_none_match, found.version):
            return FhirReply(304, headers=_tags(found.version, found.at))
        return _version_reply(found)

    def _read_version(self, call: FhirCall) -> FhirReply:
        kind, identity, _, wanted = call.path
        for found in self.state.versions(FHIR, f"{kind}/{identity}"):
            if found.version == wanted:
                if found.content is None:
                    raise FhirRefusal(410, "deleted", f"{kind}/{identity} was deleted by version {wanted}")
                return _version_reply(found)
        raise FhirRefusal(404, "not-found", f"{kind}/{identity} has no version {wanted[:40]!r}")

    def _create(self, call: FhirCall) -> FhirReply:
        kind = call.path[0]
        resource = require_resource(call.resource, kind)
        with self.state.change():
            if call.if_none_exist is not None:
                found = only_match(self.state, kind, query_of(call.if_none_exist))
                if found is not None:
                    standing = read_current(self.state, found.key)
                    return msgspec.structs.replace(
                        _version_reply(standing),
                        headers=self._location_headers(standing.key, standing.version, standing.at),
                    )
            return self._keep(f"{kind}/{call.identity or self.new_id()}", resource, call)

    def _update(self, call: FhirCall) -> FhirReply:
        kind, identity = call.path
        resource = require_resource(call.resource, kind, identity)
        with self.state.change():
            key = f"{kind}/{identity}"
            require_version(self.state.latest(FHIR, key), call.if_match)
            return self._keep(key, resource, call)

    def _update_where(self, call: FhirCall) -> FhirReply:
        kind = call.path[0]
        resource = require_resource(call.resource, kind)
        with self.state.change():
            found = only_match(self.state, kind, call.query)
            given = resource.get("id")
            if found is None:
                return self._keep(f"{kind}/{given if given is not None else self.new_id()}", resource, call)
            if given is not None and found.key != f"{kind}/{given}":
                raise FhirRefusal(
                    400, "invalid", f"the condition is met by {found.key}, and the resource says id {given!r}"
                )
            require_version(self.state.latest(FHIR, found.key), call.if_match)
            return self._keep(found.key, resource, call)

    def _patch(self, call: FhirCall) -> FhirReply:
        kind, identity = call.path
        key = f"{kind}/{identity}"
        with self.state.change():
            standing = read_current(self.state, key)
            require_version(standing, call.if_match)
            try:
                changed = apply_patch(decode_stored((standing.content or b"{}").decode()), call.resource)
            except BadPatch as problem:
                raise FhirRefusal(422, "processing", str(problem)) from None
            return self._keep(key, require_resource(changed, kind, identity), call)

    def _delete(self, call: FhirCall) -> FhirReply:
        key = "/".join(call.path)
        with self.state.change():
            if call.if_match is not None:
                require_version(self.state.latest(FHIR, key), call.if_match)
            version = delete(self.state, key, noted=_event_facts(call))
        return FhirReply(204, headers={"ETag": f'W/"{version}"'} if version else {})

    def _delete_where(self, call: FhirCall) -> FhirReply:
        with self.state.change():
            found = only_match(self.state, call.path[0], call.query)
            if found is None:
                return FhirReply(204)
            return self._delete(msgspec.structs.replace(call, path=tuple(found.key.split("/")), query=()))

    def _keep(self, key: str, resource: Json, call: FhirCall) -> FhirReply:
        stored: StoredResource = store_resource(
            self.state, key, relative(resource, f"{self.base}/"), noted=_event_facts(call)
        )
        headers = self._location_headers(stored.key, stored.version, stored.at)
        return FhirReply(status=201 if stored.created else 200, content=stored.content, headers=headers, at=stored.at)

    def _location_headers(self, key: str, version: str, at: str) -> dict[str, str]:
        return {"Location": f"{self.base}/{key}/_history/{version}", **_tags(version, at)}


def query_of(text: str) -> list[tuple[str, str]]:
    """Parse the parameters of a query; raises FhirRefusal."""
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=1_000)
    except ValueError:
        raise FhirRefusal(400, "invalid", f"{text[:100]!r} cannot be read as a query") from None


# Any: JSON.
def relative(value: Any, base: str) -> Any:
    """Remove this server's address from references: the server may move, and they must stay valid."""
    if isinstance(value, dict):
        made = {name: relative(part, base) for name, part in value.items()}
        reference = made.get("reference")
        if isinstance(reference, str):
            made["reference"] = reference.removeprefix(base)
        return made
    return [relative(part, base) for part in value] if isinstance(value, list) else value


@lru_cache(maxsize=16)
def capabilities(base: str) -> bytes:
    """Build the CapabilityStatement."""
    interactions = [
        {"code": code}
        for code in (
            *("read", "vread", "update", "patch", "delete", "history-instance", "history-type", "create"),
            "search-type",
        )
    ]
    resources = [
        {
            "type": kind,
            "interaction": interactions,
            "versioning": "versioned-update",
            "readHistory": True,
            "updateCreate": True,
            "conditionalCreate": True,
            "conditionalUpdate": True,
            "conditionalDelete": "single",
            "searchParam": [{"name": one.name, "type": one.kind} for one in parameters_by_name(kind).values()],
        }
        for kind in sorted(TYPES)
    ]
    return write(
        {
            "resourceType": "CapabilityStatement",
            "status": "active",
            "date": "2026-01-01",
            "kind": "instance",
            "implementation": {"description": "A playground of Meruit", "url": base},
            "fhirVersion": "4.0.1",
            "format": ["json"],
            "patchFormat": ["application/json-patch+json"],
            "rest": [
                {
                    "mode": "server",
                    "resource": resources,
                    "interaction": [{"code": code} for code in ("transaction", "batch", "history-system")],
                }
            ],
        }
    )


def _event_facts(call: FhirCall) -> dict[str, str]:
    return {"request": f"{call.method} {'/'.join(call.path)}"}


def _version_reply(found: ItemVersion) -> FhirReply:
    return FhirReply(status=200, content=found.content or b"", headers=_tags(found.version, found.at), at=found.at)


def _tags(version: str, at: str) -> dict[str, str]:
    return {"ETag": f'W/"{version}"', "Last-Modified": format_datetime(datetime.fromisoformat(at), usegmt=True)}
