"""A FHIR R4 server, read whole: every page of the plainest search, each resource as it was sent.

No filter is ever sent. A server that does not know a parameter may answer that there is nothing, and nothing can be
told from that; what is selected is selected from what was read.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from meruit.model.errors import AuthorError
from meruit.model.world import Item, Read, Snapshot, SourceKind, item
from meruit.sources import slices
from meruit.sources.asking import OK, Asker, Reply, base, not_whole, quote_of
from meruit.sources.credentials import Token
from meruit.sources.reading import DEFAULT, INCOMPLETE, UNSETTLED, Policy, Reading, Trouble, each, some, whole

PAGE = 200
"""How many resources are asked for at a time."""
MAX_BY_ID = 500
"""How many resources are asked for one by one, to see whether the lists lag behind."""
MAX_VERSION_DIGITS = 20
ACCEPT = "application/fhir+json"

_UNSUPPORTED = {400, 404, 405, 422}
_GONE = {404, 410}
MARK_CHARS = 16
"""Of the digest beside a version."""
_BUNDLE = slices.object_of({"entry": slices.array_of(slices.object_of({"resource": slices.with_text}))})


class FhirSource:
    """All resources of some types on a FHIR R4 server."""

    kind = SourceKind.FHIR

    def __init__(
        self,
        base_url: str,
        types: Sequence[str] | None = None,
        *,
        client: httpx.AsyncClient,
        token: Token | None = None,
        known: Collection[str] = (),
        policy: Policy = DEFAULT,
    ) -> None:
        """Without `types`, all that the server declares searchable.

        `known` are keys such as `Patient/1` that an earlier reading found. Each of them that is not listed any more is
        asked for by its id: only a resource that the server says is gone counts as gone. So is each that is listed,
        unless they are many: searches lag behind writes, and reading by id does not.
        """
        if "?" in base_url or "#" in base_url:
            raise AuthorError("a FHIR base URL has no query; write it up to the part before /Patient")
        self._base = base(base_url).rstrip("/")
        self._types = None if types is None else [_type_name(name) for name in dict.fromkeys(types)]
        self._client = client
        self._token = token
        self._known = tuple(known)
        self._policy = policy

    async def read(self) -> Snapshot:
        """Every resource, or what trouble there was."""
        return await whole(self.kind, self._base, self._policy, self._gather)

    async def _gather(self, reading: Reading) -> None:
        asker = Asker(self._client, self._base, token=self._token, reading=reading, policy=self._policy)
        walk = _Walk(self._base, asker, reading)
        types = self._types if self._types is not None else await walk.searchable()
        reads: dict[str, list[Read]] = {name: [] for name in types}
        try:
            await each(types, lambda name: walk.read_type(name, reads[name]))
            missing = [key for key in self._known if key not in reading.items and key.partition("/")[0] in reads]
            if len(missing) > MAX_BY_ID:
                raise Trouble(
                    f"{INCOMPLETE}: {self._base} lists {len(missing):,} resources no more that it had, among them "
                    f"{some(missing)}; see whether it was emptied"
                )
            await each(missing, lambda key: walk.confirm_gone(key, reads[key.partition("/")[0]]))
            if self._known:
                await walk.confirm_listed()
        finally:
            reading.reads += [one for name in types for one in reads[name]]
            reading.reads += walk.clock()


class _Page(NamedTuple):
    """One page of a search."""

    items: list[Item]
    total: int | None
    next_link: str | None
    date: str | None


class _Listed(NamedTuple):
    """What all pages of a search held."""

    keys: set[str]
    is_whole: bool
    """False where nobody can tell whether there were more."""


class _Walk:
    """One reading's way through a server."""

    def __init__(self, base_url: str, asker: Asker, reading: Reading) -> None:
        self._base = base_url
        self._asker = asker
        self._reading = reading
        self._declared: dict[str, bool] | None = None
        self._dates: list[str] = []

    async def read_type(self, name: str, reads: list[Read]) -> None:
        """Every resource of one type; raises Trouble."""
        url = f"{self._base}/{name}?_count={PAGE}"
        try:
            first = await self._search(name, url, reads)
        except _Unsupported as refusal:
            await self._check_undeclared(name, refusal, reads)
            return
        if first.is_whole:
            return
        counted = await self._search(name, f"{url}&_total=accurate", reads)
        # A server that does not know this parameter may answer that there is nothing, and has counted nothing then.
        if not counted.is_whole or not first.keys <= counted.keys:
            raise Trouble(
                f"{INCOMPLETE}: {self._base} sent a full page of {name} with neither a total that can be true nor a "
                "next link; nobody can tell whether there are more"
            )

    async def _search(self, name: str, first: str, reads: list[Read]) -> "_Listed":
        """Read all pages; of one full page with no way on, and no total that fits it, only a count can tell."""
        url, page = first, await self._asked(name, first, reads)
        seen = {one.key for one in page.items}
        visited, total = {first}, page.total
        while page.next_link is not None:
            url = self._following(name, url, page.next_link, visited)
            visited.add(url)
            try:
                page = await self._asked(name, url, reads)
            except _Unsupported as refusal:
                # The type was there on the page before.
                raise Trouble(f"{INCOMPLETE}: {refusal}") from None
            seen.update(one.key for one in page.items)
            # The last word on it counts: until the last page it is an estimate with some servers.
            total = total if page.total is None else page.total
        if total is not None and len(seen) < total:
            raise Trouble(
                f"{INCOMPLETE}: saw {len(seen):,} of {total:,} {name} and no next link at {self._base}; "
                "ask whoever runs the server why it pages no further"
            )
        # A total of less than was seen is proved false, and proves nothing.
        return _Listed(seen, total == len(seen) or url != first or len(page.items) < PAGE)

    async def _asked(self, name: str, url: str, reads: list[Read]) -> "_Page":
        page = await self._asker.get(
            url, lambda reply: _page(reply, name), accept=ACCEPT, count=lambda found: len(found.items), reads=reads
        )
        self._dates += [page.date] if page.date else []
        for one in page.items:
            before = self._reading.items.get(one.key)
            # Pages shift while others write: of two readings of one resource the newer one counts.
            if before is None or not _is_older(one, before):
                self._reading.add(one)
        return page

    def _following(self, name: str, url: str, link: str, visited: Collection[str]) -> str:
        """The next page's URL; raises Trouble for a way that leads elsewhere, in a circle, or too far."""
        following = self._asker.same_origin(url, link)
        if following in visited:
            raise Trouble(
                f"{INCOMPLETE}: the next links of {self._asker.shown(url)} lead in a circle; "
                "ask whoever runs the server"
            )
        if len(visited) >= self._reading.limits.pages:
            raise Trouble(
                f"{INCOMPLETE}: {self._base} has more than {self._reading.limits.pages:,} pages of {name}; "
                "read a smaller store"
            )
        return following

    async def _check_undeclared(self, name: str, refusal: "_Unsupported", reads: list[Read]) -> None:
        """Raise Trouble unless the server declares that it has no such type."""
        if name in await self._types():
            raise Trouble(str(refusal))
        reads.append(Read(f"{self._base}/metadata declares no {name}", items=0))

    async def searchable(self) -> list[str]:
        """The types that the server declares searchable; raises Trouble when it declares none."""
        declared = await self._types()
        left = [name for name, can in declared.items() if not can]
        if left:
            self._reading.note(f"{self._base}/metadata declares no search of {some(left)}: not read")
        found = [name for name, can in declared.items() if can]
        if not found:
            raise Trouble(f"{self._base}/metadata declares no type that can be searched; give `types`")
        return found

    async def _types(self) -> dict[str, bool]:
        """What the server declares: type to whether it can be searched."""
        if self._declared is None:
            url = f"{self._base}/metadata"
            self._declared = await self._asker.get(url, _declared, accept=ACCEPT, count=len)
        return self._declared

    async def confirm_gone(self, key: str, reads: list[Read]) -> None:
        """Raise Trouble unless the server says that it has this resource no more."""
        url = f"{self._base}/{quote(key)}"
        if not await self._asker.get(url, _is_gone, accept=ACCEPT, reads=reads):
            raise Trouble(f"{UNSETTLED}: {self._base} still has {key} and does not list it; its search may lag behind")

    async def confirm_listed(self) -> None:
        """Raise Trouble where a resource is not as it is listed."""
        listed = list(self._reading.items.values())
        if len(listed) > MAX_BY_ID:
            self._reading.note(
                f"{len(listed):,} resources are too many to ask for by id: a search that lags behind would be believed"
            )
            return
        await each(listed, self._confirm)
        self._reading.note(f"{len(listed):,} resources are asked for by id and are as listed", len(listed))

    async def _confirm(self, listed: Item) -> None:
        reads: list[Read] = []
        lag = await self._asker.get(
            f"{self._base}/{quote(listed.key)}", lambda reply: _lag(reply, listed), accept=ACCEPT, reads=reads
        )
        if lag is not None:
            self._reading.reads += reads
            raise Trouble(f"{UNSETTLED}: {self._base} lists {listed.key}{lag}; its search may lag behind")

    def clock(self) -> list[Read]:
        """By the server's own clock, when its replies were made."""
        dates = list(dict.fromkeys(self._dates))
        return [Read(f"the server's Date: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}")] if dates else []


class _Unsupported(Trouble):
    """The server does not know what we ask for."""


def _page(reply: Reply, name: str) -> _Page:
    if reply.status in _UNSUPPORTED:
        raise _Unsupported(
            f"{reply.where} answered with status {reply.status}{quote_of(reply)}; see whether the base URL is right"
        )
    bundle = _resource(reply, _BUNDLE)
    if bundle.get("resourceType") != "Bundle" or bundle.get("type") != "searchset":
        raise Trouble(
            f"{reply.where} answered with no search result{quote_of(reply)}; see whether it is a FHIR R4 server"
        )
    entries = bundle.get("entry", [])
    total = bundle.get("total")
    if not isinstance(entries, list) or not (total is None or (type(total) is int and total >= 0)):
        raise _malformed(reply, "its `entry` or `total` is not what FHIR says")
    found = [_item(reply, name, entry) for entry in entries]
    return _Page([one for one in found if one is not None], total, _next_link(reply, bundle), reply.headers.get("date"))


# What stands in an entry is the server's, so anything at all.
def _item(reply: Reply, name: str, entry: Any) -> Item | None:
    """The resource of one entry; None for one that only comes along."""
    match entry:
        case {"resource": slices.Sliced(value={"resourceType": "OperationOutcome"} as outcome)} if name != (
            "OperationOutcome"
        ):
            _check_outcome(reply, outcome)
            return None
        case {"search": {"mode": "include"}, "resource": slices.Sliced(value={"resourceType": str(other)})} if (
            other != name
        ):
            return None
        case {"resource": slices.Sliced(text=text, value={"resourceType": str(found), "id": str(id_)} as resource)}:
            pass
        case _:
            raise _malformed(reply, "an entry has no resource with a type and an id")
    if found != name or not id_:
        raise _malformed(reply, f"it lists {found}/{id_} among {name}")
    meta = resource.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    if any(isinstance(tag, dict) and tag.get("code") == "SUBSETTED" for tag in _list(meta.get("tag"))):
        raise Trouble(f"{INCOMPLETE}: {reply.where} sent only parts of {found}/{id_}; ask for whole resources")
    return item(f"{found}/{id_}", text.encode(), version=_marked(resource))


def _check_outcome(reply: Reply, outcome: Mapping[str, Any]) -> None:
    """Raise Trouble for an outcome among the results that tells of a failure; warnings are no failure."""
    for issue in _list(outcome.get("issue")):
        if isinstance(issue, dict) and issue.get("severity") in {"error", "fatal"}:
            said = issue.get("diagnostics") or issue.get("code") or "nothing more"
            raise Trouble(f"{reply.where} reports a failure among its results ({said!s:.200}); ask whoever runs it")


def _next_link(reply: Reply, bundle: Mapping[str, Any]) -> str | None:
    links = [link for link in _list(bundle.get("link")) if isinstance(link, dict) and link.get("relation") == "next"]
    if not links:
        return None
    if len(links) > 1 or not isinstance(links[0].get("url"), str):
        raise _malformed(reply, "its next link is not one URL")
    return str(links[0]["url"])


def _declared(reply: Reply) -> dict[str, bool]:
    statement = _resource(reply, slices.value)
    if statement.get("resourceType") != "CapabilityStatement":
        raise Trouble(
            f"{reply.where} has no CapabilityStatement{quote_of(reply)}; see whether the base URL is a FHIR R4 server's"
        )
    found: dict[str, bool] = {}
    for rest in _list(statement.get("rest")):
        for resource in _list(rest.get("resource")) if isinstance(rest, dict) else []:
            if isinstance(resource, dict) and isinstance(name := resource.get("type"), str):
                codes = [one.get("code") for one in _list(resource.get("interaction")) if isinstance(one, dict)]
                found[name] = found.get(name, False) or "search-type" in codes
    return found


def _is_gone(reply: Reply) -> bool:
    if reply.status in _GONE:
        return True
    if reply.status == OK:
        _resource(reply, slices.value)
        return False
    raise Trouble(f"{reply.where} answered with status {reply.status}{quote_of(reply)}; ask whoever runs it")


def _lag(reply: Reply, listed: Item) -> str | None:
    """How what is asked for by id differs from what is listed; None where it does not."""
    if _is_gone(reply):
        return ", which is gone"
    found, known = json.loads(reply.text()), json.loads(listed.content())
    versions = [_version(one) for one in (found, known)]
    # Without versions the content tells, however it is written.
    return None if (versions[0] == versions[1] if all(versions) else found == known) else " as it was"


def _marked(resource: Mapping[str, Any]) -> str | None:
    """The server's version and a digest: a server that lets clients choose versions would hide what they change."""
    version = _version(resource)
    if version is None:
        return None
    content = {name: value for name, value in resource.items() if name != "meta"}
    return f"{version}-{sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:MARK_CHARS]}"


# What stands in a resource is the server's, so anything at all.
def _version(resource: Mapping[str, Any]) -> str | None:
    meta = resource.get("meta")
    version = meta.get("versionId") if isinstance(meta, dict) else None
    return version if isinstance(version, str) and version else None


def _resource(reply: Reply, reader: slices.Reader) -> dict[str, Any]:
    if reply.status != OK:
        raise Trouble(f"{reply.where} answered with status {reply.status}{quote_of(reply)}; ask whoever runs it")
    try:
        found = slices.read(reply.text(), reader)
    except ValueError as problem:
        raise not_whole(reply, problem) from None
    if not isinstance(found, dict):
        raise not_whole(reply, ValueError("it is no object"))
    return found


def _malformed(reply: Reply, what: str) -> Trouble:
    return Trouble(f"{reply.where} sent a search result that cannot be trusted: {what}; ask whoever runs the server")


def _is_older(one: Item, other: Item) -> bool:
    """Whether one reading of a resource is older than another; unknown is no."""
    mine, theirs = _age(one), _age(other)
    return mine is not None and theirs is not None and mine < theirs


def _age(one: Item) -> tuple[datetime, int] | None:
    try:
        moment = datetime.fromisoformat(json.loads(one.content())["meta"]["lastUpdated"]).astimezone(UTC)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    version = one.version.rpartition("-")[0]
    return moment, int(version) if version.isdecimal() and len(version) < MAX_VERSION_DIGITS else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_name(name: str) -> str:
    if not name.isascii() or not name.isalnum():
        raise AuthorError(f"{name!r} is no FHIR resource type; write one such as Patient")
    return name
