"""A FHIR R4 server, read whole: every page of the plainest search, each resource as it was sent.

No filter is ever sent. A server that does not know a parameter may answer that there is nothing, and nothing can be
told from that; what is selected is selected from what was read.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple
from urllib.parse import quote

import httpx

from meruit.errors import AddressFault, AuthorError, InvalidAddress, SourceError, UnsupportedInteraction
from meruit.model.environment import Item, Read, Snapshot, SourceKind
from meruit.sources.credentials import SecretToken
from meruit.sources.fhir_replies import (
    FhirCapabilities,
    FhirHistoryEntry,
    FhirSearchPage,
    is_gone,
    is_older,
    lag_of,
    read_capabilities,
    read_history,
    read_page,
    version_of,
)
from meruit.sources.http import check_base_url
from meruit.sources.retry import (
    DEFAULT,
    INCOMPLETE,
    UNSETTLED,
    ReadPolicy,
    SourceReading,
    for_each,
    format_keys,
    take_snapshot,
)
from meruit.sources.source_client import SourceClient

PAGE = 200
"""How many resources are asked for at a time."""
MAX_BY_ID = 500
"""How many resources are asked for one by one, to see whether the lists lag behind."""
MAX_PAST_PAGES = 50
"""How many pages of one history are read, the newest first: what an agent did is on the first of them."""
LAG_S = 2.0
"""How far apart readings must agree where no history tells whether a search lags behind a creation."""
ACCEPT = "application/fhir+json"


class FhirSource:
    """All resources of some types on a FHIR R4 server."""

    kind = SourceKind.FHIR

    def __init__(
        self,
        base_url: str,
        types: Sequence[str] | None = None,
        *,
        client: httpx.AsyncClient,
        token: SecretToken | None = None,
        known: Collection[str] = (),
        lag_s: float = LAG_S,
        policy: ReadPolicy = DEFAULT,
    ) -> None:
        """Without `types`, all that the server declares searchable.

        `known` are keys such as `Patient/1` that an earlier reading found. Each of them that is not listed any more is
        asked for by its id: only a resource that the server says is gone counts as gone. So is each that is listed,
        unless they are many: searches lag behind writes, and reading by id does not. What is new has no known id; a
        history names it, and where the server keeps none, only readings that agree `lag_s` apart are believed.
        """
        if "?" in base_url or "#" in base_url:
            raise InvalidAddress(
                AddressFault.QUERY, "a FHIR base URL has no query; write it up to the part before /Patient"
            )
        self._base = check_base_url(base_url).rstrip("/")
        self._types = None if types is None else [_type_name(name) for name in dict.fromkeys(types)]
        self._client = client
        self._token = token
        self._known = tuple(known)
        self._lag_s = lag_s
        self._policy = policy
        self._apart_s = 0.0

    @property
    def apart_s(self) -> float:
        """How far apart readings must be to count as agreeing, by what the last one found."""
        return self._apart_s

    async def read(self) -> Snapshot:
        """Every resource, or what trouble there was."""
        return await take_snapshot(self.kind, self._base, self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        asker = SourceClient(self._client, self._base, token=self._token, reading=reading, policy=self._policy)
        walk = _Walk(self._base, asker, reading)
        types = self._types if self._types is not None else await walk.searchable_types()
        reads: dict[str, list[Read]] = {name: [] for name in types}
        try:
            await for_each(types, lambda name: walk.read_type(name, reads[name]))
            past = await walk.history(types)
            self._apart_s = self._agreement_gap_s(past, reading)
            missing = [key for key in dict.fromkeys((*self._known, *past.live_keys())) if key not in reading.items]
            await walk.confirm_missing([key for key in missing if _type_of(key) in reads], reads)
            await walk.confirm_listed(past, all_of_them=bool(self._known))
        finally:
            reading.reads += [one for name in types for one in reads[name]]
            reading.reads += walk.server_dates()

    def _agreement_gap_s(self, past: "_HistoryIndex", reading: SourceReading) -> float:
        """How far apart readings must be to be believed, which is told."""
        if past.is_whole:
            return 0.0
        reading.note(
            "no whole history tells what was created: a search that lags behind for longer than the "
            f"{self._lag_s:g} s between readings that agree would be believed"
        )
        return self._lag_s


class _HistoryIndex(NamedTuple):
    """What the server's histories tell."""

    newest: dict[str, FhirHistoryEntry]
    """The last thing that happened to each resource."""
    is_whole: bool
    """False where something may have happened that they do not tell."""

    def live_keys(self) -> list[str]:
        """The keys of all that was not deleted last."""
        return [key for key, entry in self.newest.items() if not entry.is_deletion]

    def is_at_odds_with(self, listed: Item) -> bool:
        """Whether something happened to a resource after what is listed."""
        entry = self.newest.get(listed.key)
        if entry is None:
            return False
        version = version_of(listed)
        return entry.is_deletion or bool(entry.version and version and entry.version != version)


class _SearchResult(NamedTuple):
    """What all pages of a search held."""

    keys: set[str]
    is_whole: bool
    """False where nobody can tell whether there were more."""


class _Walk:
    """One reading's way through a server."""

    def __init__(self, base_url: str, asker: SourceClient, reading: SourceReading) -> None:
        self._base = base_url
        self._asker = asker
        self._reading = reading
        self._said: FhirCapabilities | None = None
        self._absent: set[str] = set()
        self._dates: list[str] = []

    async def read_type(self, name: str, reads: list[Read]) -> None:
        """Every resource of one type; raises Trouble."""
        url = f"{self._base}/{name}?_count={PAGE}"
        try:
            first = await self._search(name, url, reads)
        except UnsupportedInteraction as refusal:
            await self._check_undeclared(name, refusal, reads)
            return
        if first.is_whole:
            return
        counted = await self._search(name, f"{url}&_total=accurate", reads)
        # A server that does not know this parameter may answer that there is nothing, and has counted nothing then.
        if not counted.is_whole or not first.keys <= counted.keys:
            raise SourceError(
                f"{INCOMPLETE}: {self._base} sent a full page of {name} with neither a total that can be true nor a "
                "next link; nobody can tell whether there are more"
            )

    async def _search(self, name: str, first: str, reads: list[Read]) -> _SearchResult:
        """Read all pages; of one full page with no way on, and no total that fits it, only a count can tell."""
        url, page = first, await self._fetch_page(name, first, reads)
        seen = {one.key for one in page.items}
        visited, total = {first}, page.total
        while page.next_link is not None:
            url = self._next_url(name, url, page.next_link, visited)
            visited.add(url)
            try:
                page = await self._fetch_page(name, url, reads)
            except UnsupportedInteraction as refusal:
                # The type was there on the page before.
                raise SourceError(f"{INCOMPLETE}: {refusal}") from None
            seen.update(one.key for one in page.items)
            # The last word on it counts: until the last page it is an estimate with some servers.
            total = total if page.total is None else page.total
        if total is not None and len(seen) < total:
            raise SourceError(
                f"{INCOMPLETE}: saw {len(seen):,} of {total:,} {name} and no next link at {self._base}; "
                "ask whoever runs the server why it pages no further"
            )
        # A total of less than was seen is proved false, and proves nothing.
        return _SearchResult(seen, total == len(seen) or url != first or len(page.items) < PAGE)

    async def _fetch_page(self, name: str, url: str, reads: list[Read]) -> FhirSearchPage:
        page = await self._asker.get(
            url, lambda reply: read_page(reply, name), accept=ACCEPT, count=lambda found: len(found.items), reads=reads
        )
        self._dates += [page.date] if page.date else []
        for one in page.items:
            before = self._reading.items.get(one.key)
            # Pages shift while others write: of two readings of one resource the newer one counts.
            if before is None or not is_older(one, before):
                self._reading.add(one)
        return page

    def _next_url(self, name: str, url: str, link: str, visited: Collection[str]) -> str:
        """The next page's URL; raises Trouble for a way that leads elsewhere, in a circle, or too far."""
        following = self._asker.resolve_link(url, link)
        if following in visited:
            raise SourceError(
                f"{INCOMPLETE}: the next links of {self._asker.display_url(url)} lead in a circle; "
                "ask whoever runs the server"
            )
        if len(visited) >= self._reading.limits.pages:
            raise SourceError(
                f"{INCOMPLETE}: {self._base} has more than {self._reading.limits.pages:,} pages of {name}; "
                "read a smaller store"
            )
        return following

    async def _check_undeclared(self, name: str, refusal: UnsupportedInteraction, reads: list[Read]) -> None:
        """Raise Trouble unless the server declares that it has no such type."""
        if name in (await self._capabilities()).search:
            raise SourceError(str(refusal))
        self._absent.add(name)
        reads.append(Read(f"{self._base}/metadata declares no {name}", items=0))

    async def searchable_types(self) -> list[str]:
        """The types that the server declares searchable; raises Trouble when it declares none."""
        declared = (await self._capabilities()).search
        left = [name for name, can in declared.items() if not can]
        if left:
            self._reading.note(f"{self._base}/metadata declares no search of {format_keys(left)}: not read")
        found = [name for name, can in declared.items() if can]
        if not found:
            raise SourceError(f"{self._base}/metadata declares no type that can be searched; give `types`")
        return found

    async def _capabilities(self) -> FhirCapabilities:
        if self._said is None:
            url = f"{self._base}/metadata"
            self._said = await self._asker.get(
                url, read_capabilities, accept=ACCEPT, count=lambda said: len(said.search)
            )
        return self._said

    async def history(self, types: Sequence[str]) -> _HistoryIndex:
        """What happened to resources of these types, as far as the server keeps a history; raises Trouble."""
        try:
            declared = await self._capabilities()
        except SourceError as problem:
            self._reading.note(f"nobody knows whether there is a history: {problem}")
            return _HistoryIndex({}, is_whole=False)
        with_own = [name for name in types if name in declared.history]
        urls = [f"{self._base}/{name}/_history?_count={PAGE}" for name in with_own]
        without = [name for name in types if name not in declared.history and name not in self._absent]
        if without and declared.has_history:
            urls.append(f"{self._base}/_history?_count={PAGE}")
        elif without:
            self._reading.note(f"{self._base}/metadata declares no history of {format_keys(without)}")
        found: list[_HistoryIndex] = []
        await for_each(urls, lambda url: self._add_history(url, found))
        is_whole = (declared.has_history or not without) and all(one.is_whole for one in found)
        newest = {key: entry for one in found for key, entry in one.newest.items()}
        return _HistoryIndex(newest, is_whole and self._is_complete_history(newest))

    async def _add_history(self, first: str, found: list[_HistoryIndex]) -> None:
        """Read all pages of one history."""
        newest: dict[str, FhirHistoryEntry] = {}
        entries, url, visited = 0, first, {first}
        try:
            while True:
                page = await self._asker.get(
                    url,
                    lambda reply: read_history(reply, self._base),
                    accept=ACCEPT,
                    count=lambda past: len(past.entries),
                )
                entries += len(page.entries)
                for one in page.entries:
                    # The newest comes first.
                    newest.setdefault(one.key, one)
                if page.next_link is None or len(visited) >= MAX_PAST_PAGES:
                    break
                url = self._next_url("a history", url, page.next_link, visited)
                visited.add(url)
        except UnsupportedInteraction as refusal:
            self._reading.note(f"declared, and yet no history: {refusal}")
            found.append(_HistoryIndex(newest, is_whole=False))
            return
        is_whole = page.next_link is None and (
            entries < PAGE or url != first if page.total is None else entries >= page.total
        )
        if not is_whole:
            self._reading.note(f"{self._asker.display_url(first)} shows no more than the newest {entries:,} entries")
        found.append(_HistoryIndex(newest, is_whole))

    def _is_complete_history(self, newest: Collection[str]) -> bool:
        """Whether a history that should hold everything does; one that does not proves nothing."""
        lacking = [key for key in self._reading.items if key not in newest]
        if lacking:
            self._reading.note(
                f"the history of {self._base} lacks {format_keys(lacking)}, which it lists: it proves nothing"
            )
        return not lacking

    async def confirm_missing(self, keys: Sequence[str], reads: dict[str, list[Read]]) -> None:
        """Raise Trouble unless the server says of each that it has it no more."""
        if len(keys) > MAX_BY_ID:
            raise SourceError(
                f"{INCOMPLETE}: {self._base} lists {len(keys):,} resources no more that it had, among them "
                f"{format_keys(keys)}; see whether it was emptied"
            )
        await for_each(keys, lambda key: self._confirm_gone(key, reads[_type_of(key)]))

    async def _confirm_gone(self, key: str, reads: list[Read]) -> None:
        """Raise Trouble unless the server says that it has this resource no more."""
        url = f"{self._base}/{quote(key)}"
        if not await self._asker.get(url, is_gone, accept=ACCEPT, reads=reads):
            raise SourceError(
                f"{UNSETTLED}: {self._base} still has {key} and does not list it; its search may lag behind"
            )

    async def confirm_listed(self, past: _HistoryIndex, *, all_of_them: bool) -> None:
        """Raise Trouble where a resource is not as it is listed; those of which the history says so are asked first."""
        listed = self._reading.items.values()
        odd = [one for one in listed if past.is_at_odds_with(one)]
        # The first that is at odds with its list ends it, so that these few will do.
        await for_each(odd[:MAX_BY_ID], self._confirm)
        if not all_of_them:
            return
        if len(listed) <= MAX_BY_ID:
            await for_each(listed, self._confirm)
            self._reading.note(f"{len(listed):,} resources are asked for by id and are as listed", len(listed))
        elif not past.is_whole or not all(version_of(one) for one in listed):
            self._reading.note(
                f"{len(listed):,} resources are too many to ask for by id: a search that lags behind would be believed"
            )

    async def _confirm(self, listed: Item) -> None:
        reads: list[Read] = []
        lag = await self._asker.get(
            f"{self._base}/{quote(listed.key)}", lambda reply: lag_of(reply, listed), accept=ACCEPT, reads=reads
        )
        if lag is not None:
            self._reading.reads += reads
            raise SourceError(f"{UNSETTLED}: {self._base} lists {listed.key}{lag}; its search may lag behind")

    def server_dates(self) -> list[Read]:
        """By the server's own clock, when its replies were made."""
        dates = list(dict.fromkeys(self._dates))
        return [Read(f"the server's Date: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}")] if dates else []


def _type_of(key: str) -> str:
    return key.partition("/")[0]


def _type_name(name: str) -> str:
    if not name.isascii() or not name.isalnum():
        raise AuthorError(f"{name!r} is no FHIR resource type; write one such as Patient")
    return name
