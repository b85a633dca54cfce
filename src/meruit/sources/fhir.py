"""Read a FHIR R4 server completely: every page of an unfiltered search, each resource as it was sent.

No filter is ever sent: a server that does not know a parameter may answer that there is nothing, and that would prove
nothing. Resources are selected from what was read.
"""

from collections.abc import Collection, Sequence
from urllib.parse import quote

import httpx
import msgspec

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
"""How many resources are requested per page."""
MAX_BY_ID = 500
"""How many resources are requested one by one, to check whether the lists lag behind."""
MAX_PAST_PAGES = 50
"""How many pages of one history are read, newest first: what an agent did is on the first of them."""
LAG_S = 2.0
"""How far apart two equal readings must be when no history shows whether a search lags behind."""
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
        """Without `types`, read all types that the server declares searchable.

        `known` are keys such as `Patient/1` that an earlier reading found. Each of them that is not listed any more is
        requested by its id: it counts as deleted only if the server says so. Listed ones are requested too, unless
        there are many: searches lag behind writes, and reading by id does not. The id of a new resource is not known;
        a history names it. If the server keeps no history, two equal readings `lag_s` apart are required.
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
        """The time between two readings that may count as equal, from what the last one found."""
        return self._apart_s

    async def read(self) -> Snapshot:
        """Read every resource; the snapshot says what could not be read."""
        return await take_snapshot(self.kind, self._base, self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        client = SourceClient(self._client, self._base, token=self._token, reading=reading, policy=self._policy)
        walk = _Walk(self._base, client, reading)
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
        """Return the time between two readings that may count as equal, and record the reason."""
        if past.is_whole:
            return 0.0
        reading.note(
            "no complete history shows what was created: a search that lags behind for more than the "
            f"{self._lag_s:g} s between two equal readings goes unnoticed"
        )
        return self._lag_s


class _HistoryIndex(msgspec.Struct, frozen=True):
    """What the server's histories show."""

    newest: dict[str, FhirHistoryEntry]
    """The last change of each resource."""
    is_whole: bool
    """False if changes may be missing."""

    def live_keys(self) -> list[str]:
        """Return the keys of all resources that were not deleted last."""
        return [key for key, entry in self.newest.items() if not entry.is_deletion]

    def is_at_odds_with(self, listed: Item) -> bool:
        """Return whether a resource changed after the version that is listed."""
        entry = self.newest.get(listed.key)
        if entry is None:
            return False
        version = version_of(listed)
        return entry.is_deletion or bool(entry.version and version and entry.version != version)


class _SearchResult(msgspec.Struct, frozen=True):
    """The result of all pages of a search."""

    keys: set[str]
    is_whole: bool
    """False if there may be more."""


class _Walk:
    """One reading of a server."""

    def __init__(self, base_url: str, client: SourceClient, reading: SourceReading) -> None:
        self._base = base_url
        self._client = client
        self._reading = reading
        self._said: FhirCapabilities | None = None
        self._absent: set[str] = set()
        self._dates: list[str] = []

    async def read_type(self, name: str, reads: list[Read]) -> None:
        """Read every resource of one type; raises SourceError."""
        url = f"{self._base}/{name}?_count={PAGE}"
        try:
            first = await self._search(name, url, reads)
        except UnsupportedInteraction as refusal:
            await self._check_undeclared(name, refusal, reads)
            return
        if first.is_whole:
            return
        counted = await self._search(name, f"{url}&_total=accurate", reads)
        # A server that does not know this parameter may answer that there is nothing, and has then not counted.
        if not counted.is_whole or not first.keys <= counted.keys:
            raise SourceError(
                f"{INCOMPLETE}: {self._base} sent a full page of {name} with neither a total that can be true nor a "
                "next link; there may be more"
            )

    async def _search(self, name: str, first: str, reads: list[Read]) -> _SearchResult:
        """Read all pages; one full page without a next link and a matching total needs a count."""
        url, page = first, await self._fetch_page(name, first, reads)
        seen = {one.key for one in page.items}
        visited, total = {first}, page.total
        while page.next_link is not None:
            url = self._next_url(name, url, page.next_link, visited)
            visited.add(url)
            try:
                page = await self._fetch_page(name, url, reads)
            except UnsupportedInteraction as refusal:
                # The previous page had the type.
                raise SourceError(f"{INCOMPLETE}: {refusal}") from None
            seen.update(one.key for one in page.items)
            # The last total counts: some servers estimate it until the last page.
            total = total if page.total is None else page.total
        if total is not None and len(seen) < total:
            raise SourceError(
                f"{INCOMPLETE}: saw {len(seen):,} of {total:,} {name} and no next link at {self._base}; "
                "ask its operator why the next page is missing"
            )
        # A total below the number that was seen is wrong, and proves nothing.
        return _SearchResult(seen, total == len(seen) or url != first or len(page.items) < PAGE)

    async def _fetch_page(self, name: str, url: str, reads: list[Read]) -> FhirSearchPage:
        page = await self._client.get(
            url, lambda reply: read_page(reply, name), accept=ACCEPT, count=lambda found: len(found.items), reads=reads
        )
        self._dates += [page.date] if page.date else []
        for one in page.items:
            before = self._reading.items.get(one.key)
            # Pages shift during writes: of two versions of one resource the newer one counts.
            if before is None or not is_older(one, before):
                self._reading.add(one)
        return page

    def _next_url(self, name: str, url: str, link: str, visited: Collection[str]) -> str:
        """Return the URL of the next page; raises SourceError for another server, a loop, or too many pages."""
        following = self._client.resolve_link(url, link)
        if following in visited:
            raise SourceError(
                f"{INCOMPLETE}: the next links of {self._client.display_url(url)} form a loop; "
                "ask the operator of the server"
            )
        if len(visited) >= self._reading.limits.pages:
            raise SourceError(
                f"{INCOMPLETE}: {self._base} has more than {self._reading.limits.pages:,} pages of {name}; "
                "read a smaller store"
            )
        return following

    async def _check_undeclared(self, name: str, refusal: UnsupportedInteraction, reads: list[Read]) -> None:
        """Raise SourceError unless the server declares that it does not have this type."""
        if name in (await self._capabilities()).search:
            raise SourceError(str(refusal))
        self._absent.add(name)
        reads.append(Read(f"{self._base}/metadata declares no {name}", items=0))

    async def searchable_types(self) -> list[str]:
        """Return the types that the server declares searchable; raises SourceError if there are none."""
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
            self._said = await self._client.get(
                url, read_capabilities, accept=ACCEPT, count=lambda statement: len(statement.search)
            )
        return self._said

    async def history(self, types: Sequence[str]) -> _HistoryIndex:
        """Read the history of these types, as far as the server keeps one; raises SourceError."""
        try:
            declared = await self._capabilities()
        except SourceError as problem:
            self._reading.note(f"it is unknown whether there is a history: {problem}")
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
                page = await self._client.get(
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
            self._reading.note(f"the declared history cannot be read: {refusal}")
            found.append(_HistoryIndex(newest, is_whole=False))
            return
        is_whole = page.next_link is None and (
            entries < PAGE or url != first if page.total is None else entries >= page.total
        )
        if not is_whole:
            self._reading.note(f"{self._client.display_url(first)} shows only the newest {entries:,} entries")
        found.append(_HistoryIndex(newest, is_whole))

    def _is_complete_history(self, newest: Collection[str]) -> bool:
        """Return whether a history that should be complete is; an incomplete one proves nothing."""
        lacking = [key for key in self._reading.items if key not in newest]
        if lacking:
            self._reading.note(
                f"the history of {self._base} lacks {format_keys(lacking)}, which it lists: it proves nothing"
            )
        return not lacking

    async def confirm_missing(self, keys: Sequence[str], reads: dict[str, list[Read]]) -> None:
        """Raise SourceError unless the server says of each that it is deleted."""
        if len(keys) > MAX_BY_ID:
            raise SourceError(
                f"{INCOMPLETE}: {self._base} lists {len(keys):,} known resources no longer, among them "
                f"{format_keys(keys)}; check whether it was emptied"
            )
        await for_each(keys, lambda key: self._confirm_gone(key, reads[_type_of(key)]))

    async def _confirm_gone(self, key: str, reads: list[Read]) -> None:
        """Raise SourceError unless the server says that this resource is deleted."""
        url = f"{self._base}/{quote(key)}"
        if not await self._client.get(url, is_gone, accept=ACCEPT, reads=reads):
            raise SourceError(
                f"{UNSETTLED}: {self._base} still has {key} and does not list it; its search may lag behind"
            )

    async def confirm_listed(self, past: _HistoryIndex, *, all_of_them: bool) -> None:
        """Raise SourceError if a resource differs from its list entry; those named by the history come first."""
        listed = self._reading.items.values()
        odd = [one for one in listed if past.is_at_odds_with(one)]
        # The first difference ends the reading, so these few are enough.
        await for_each(odd[:MAX_BY_ID], self._confirm)
        if not all_of_them:
            return
        if len(listed) <= MAX_BY_ID:
            await for_each(listed, self._confirm)
            self._reading.note(f"{len(listed):,} resources are asked for by id and are as listed", len(listed))
        elif not past.is_whole or not all(version_of(one) for one in listed):
            self._reading.note(
                f"{len(listed):,} resources are too many to ask for by id: a search that lags behind goes unnoticed"
            )

    async def _confirm(self, listed: Item) -> None:
        reads: list[Read] = []
        lag = await self._client.get(
            f"{self._base}/{quote(listed.key)}", lambda reply: lag_of(reply, listed), accept=ACCEPT, reads=reads
        )
        if lag is not None:
            self._reading.reads += reads
            raise SourceError(f"{UNSETTLED}: {self._base} lists {listed.key}{lag}; its search may lag behind")

    def server_dates(self) -> list[Read]:
        """Return the dates of the replies, by the server's clock."""
        dates = list(dict.fromkeys(self._dates))
        return [Read(f"the server's Date: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}")] if dates else []


def _type_of(key: str) -> str:
    return key.partition("/")[0]


def _type_name(name: str) -> str:
    if not name.isascii() or not name.isalnum():
        raise AuthorError(f"{name!r} is not a FHIR resource type; write one such as Patient")
    return name
