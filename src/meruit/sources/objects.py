"""Read files completely: those of a folder on this machine, and the objects of a bucket over Google's JSON API."""

import asyncio
import base64
import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlencode

import httpx
import msgspec

from meruit.errors import AuthorError, SourceError
from meruit.model.decoding import decode_json
from meruit.model.environment import Item, Snapshot, SourceKind
from meruit.sources.credentials import SecretToken
from meruit.sources.file_items import CHUNK_BYTES, MAX_DEPTH, Intake, add_unique, file_name, moment
from meruit.sources.http import HttpResponse, check_base_url
from meruit.sources.http_replies import NOT_FOUND, OK, HttpReply, check_status, invalid_json_error, quote_of
from meruit.sources.retry import (
    DEFAULT,
    INCOMPLETE,
    UNSETTLED,
    ReadPolicy,
    SourceReading,
    for_each,
    take_snapshot,
    with_retries,
)
from meruit.sources.source_client import SourceClient

GOOGLE = "https://storage.googleapis.com"
PAGE = 1_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ELSEWHERE = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO}
# A pipe in the place of a file must not block the reading until another process writes into it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderSource:
    """All files below a folder on this machine; links are not followed."""

    kind = SourceKind.FILES

    def __init__(self, path: Path, prefix: str = "", *, policy: ReadPolicy = DEFAULT) -> None:
        """With `prefix`, read only that folder below `path`; keys are relative to it."""
        self._path = path
        self._prefix = _folder_parts(prefix)
        self._policy = policy

    async def read(self) -> Snapshot:
        """Read every file; the snapshot says what could not be read."""
        return await take_snapshot(self.kind, str(self._path), self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        async def attempt() -> None:
            reading.items.clear()
            reading.reads.clear()
            reading.taken_bytes = 0
            # A slow disk must not block the event loop.
            await asyncio.to_thread(self._walk, reading)

        await with_retries(attempt, self._policy)

    def _walk(self, reading: SourceReading) -> None:
        try:
            folder = self._open_folder()
        except OSError as problem:
            raise SourceError(
                f"the folder {self._path} cannot be read: {problem.strerror}; check that it exists"
            ) from None
        if folder is None:
            reading.note(f"{self._path} has no folder {'/'.join(self._prefix)}", items=0)
            return
        _walk_folder(reading, folder, b"", 0)
        reading.note(str(self._path.joinpath(*self._prefix)), items=len(reading.items))

    def _open_folder(self) -> int | None:
        """Open the folder to read; None if the prefix does not exist."""
        folder: int | None = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in self._prefix:
            if folder is None:
                break
            outer = folder
            try:
                folder = _open_below(part.encode(), _FOLDER, outer)
            finally:
                os.close(outer)
        return folder


def _walk_folder(reading: SourceReading, folder: int, place: bytes, depth: int) -> None:
    """Read a folder and close it. Everything is opened relative to its own folder, so that links cannot lead out."""
    try:
        if depth > MAX_DEPTH:
            raise SourceError(f"{INCOMPLETE}: {file_name(place)} is deeper than {MAX_DEPTH} folders; read a part of it")
        for name in _names(folder):
            path = place + b"/" + name if place else name
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise _concurrent_change(path) from None
            if stat.S_ISDIR(found.st_mode):
                inner = _open_below(name, _FOLDER, folder)
                if inner is None:
                    raise _concurrent_change(path)
                _walk_folder(reading, inner, path, depth + 1)
            elif stat.S_ISREG(found.st_mode):
                add_unique(reading, _file(reading, folder, name, path))
            else:
                kind = "a link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
                reading.note(f"{file_name(path)} is {kind}: not read")
    except OSError as problem:
        raise SourceError(
            f"{file_name(place) or 'the folder'} cannot be read: {problem.strerror}; check who may read it", again=True
        ) from None
    finally:
        os.close(folder)


def _names(folder: int) -> list[bytes]:
    with os.scandir(folder) as entries:
        return sorted(os.fsencode(entry.name) for entry in entries)


def _open_below(name: bytes, flags: int, folder: int) -> int | None:
    """Open something in a folder; None if it is missing or of another kind."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as problem:
        if problem.errno in _ELSEWHERE:
            return None
        raise


def _file(reading: SourceReading, folder: int, name: bytes, path: bytes) -> Item:
    opened = _open_below(name, _FILE, folder)
    if opened is None:
        raise _concurrent_change(path)
    try:
        before = os.fstat(opened)
        if not stat.S_ISREG(before.st_mode):
            raise _concurrent_change(path)
        intake = Intake()
        while piece := os.read(opened, CHUNK_BYTES):
            intake.feed(piece)
            reading.take(len(piece), file_name(path))
        after = os.fstat(opened)
    finally:
        os.close(opened)
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size) or intake.size != after.st_size:
        raise _concurrent_change(path)
    return intake.item(file_name(path), moment(after.st_mtime))


def _concurrent_change(path: bytes) -> SourceError:
    return SourceError(
        f"{UNSETTLED}: {file_name(path)} changed while it was read; wait until the writer has finished", again=True
    )


def _folder_parts(prefix: str) -> tuple[str, ...]:
    parts = PurePosixPath(prefix).parts
    if prefix.startswith("/") or ".." in parts:
        raise AuthorError(f"{prefix!r} is not a folder below the root; write one such as outbound/today")
    return parts


class GcsSource:
    """All objects of a bucket below a prefix, over Google's JSON API."""

    kind = SourceKind.FILES

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        client: httpx.AsyncClient,
        endpoint: str = GOOGLE,
        token: SecretToken | None = None,
        policy: ReadPolicy = DEFAULT,
    ) -> None:
        """A prefix is a folder: `a` has `a/b`, not `ab`; keys are relative to it. `endpoint` may be an emulator."""
        self._endpoint = check_base_url(endpoint).rstrip("/")
        self._objects = f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        self._prefix = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""
        self._client = client
        self._token = token
        self._policy = policy

    async def read(self) -> Snapshot:
        """Read every object; the snapshot says what could not be read."""
        return await take_snapshot(self.kind, self._objects, self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        client = SourceClient(self._client, self._endpoint, token=self._token, reading=reading, policy=self._policy)

        async def fetch(one: _GcsObject) -> None:
            add_unique(reading, await self._fetch(client, reading, one))

        await for_each([one async for one in self._list_objects(client, reading)], fetch)

    async def _list_objects(self, client: SourceClient, reading: SourceReading) -> AsyncIterator["_GcsObject"]:
        """List the objects of the bucket, page by page."""
        asked = {"prefix": self._prefix, "maxResults": str(PAGE)}
        visited: set[str] = set()
        count = 0
        for _ in range(reading.limits.pages):
            url = f"{self._objects}?{urlencode(asked)}"
            page = await client.get(url, _page, count=lambda found: len(found.items))
            count += len(page.items)
            if count > reading.limits.items:
                raise SourceError(
                    f"{INCOMPLETE}: {self._objects} has more than {reading.limits.items:,} objects below it"
                )
            for one in page.items:
                if one.name.endswith("/"):
                    reading.note(f"{one.name} is a folder placeholder: not read")
                else:
                    yield one
            if not page.nextPageToken:
                return
            if page.nextPageToken in visited:
                raise SourceError(f"{INCOMPLETE}: the pages of {self._objects} form a loop; ask its operator")
            visited.add(page.nextPageToken)
            asked["pageToken"] = page.nextPageToken
        raise SourceError(
            f"{INCOMPLETE}: {self._objects} has more than {reading.limits.pages:,} pages; read one folder"
        )

    async def _fetch(self, client: SourceClient, reading: SourceReading, one: "_GcsObject") -> Item:
        where = f"{self._objects}/{quote(one.name, safe='')}"
        # The listed object, even if another has replaced it since.
        which = {"generation": one.generation} if one.generation else {}

        async def take(response: HttpResponse) -> Intake:
            check_status(HttpReply(where, response.status, response.headers, b""), self._token)
            if response.status == NOT_FOUND:
                raise SourceError(f"{UNSETTLED}: {where} was listed and is gone; wait until the writer has finished")
            if response.status != OK:
                raise SourceError(f"{where} answered with status {response.status}; check who may read it")
            intake = Intake()
            async for piece in response.iter_raw(CHUNK_BYTES):
                intake.feed(piece)
                reading.take(len(piece), where)
            if not await asyncio.to_thread(one.matches, intake):
                raise SourceError(
                    f"{where} sent {intake.size:,} bytes that are not the {one.size:,} that it lists; try again later",
                    again=True,
                )
            return intake

        # An object that is stored compressed would otherwise be decompressed on its way, and not match the list.
        url = f"{where}?{urlencode({'alt': 'media', **which})}"
        intake = await client.fetch(url, take, encoding="gzip")
        return intake.item(one.name.removeprefix(self._prefix), one.updated)


class _GcsObject(msgspec.Struct, frozen=True):
    """An object as a bucket lists it; Google writes numbers as text."""

    name: str
    size: int
    generation: str | None = None
    md5Hash: str | None = None  # noqa: N815 -- Google's name
    crc32c: str | None = None
    updated: str | None = None

    def matches(self, intake: Intake) -> bool:
        """Return whether this content is what was listed."""
        if intake.size != self.size:
            return False
        if self.md5Hash is not None:
            return base64.b64encode(intake.md5.digest()).decode() == self.md5Hash
        content = intake.content()
        # A composed object has no other digest; a large one is compared by its size only.
        if self.crc32c is None or content is None:
            return True
        return base64.b64encode(crc32c(content).to_bytes(4, "big")).decode() == self.crc32c


class _GcsPage(msgspec.Struct, frozen=True):
    """A page of a bucket's list."""

    items: list[_GcsObject] = []
    nextPageToken: str | None = None  # noqa: N815 -- Google's name


def _page(reply: HttpReply) -> _GcsPage:
    if reply.status != OK:
        raise SourceError(
            f"{reply.where} answered with status {reply.status}{quote_of(reply)}; "
            "check the bucket's name and who may read it"
        )
    try:
        return decode_json(reply.text(), _GcsPage, strict=False)
    except (ValueError, RecursionError) as problem:
        raise invalid_json_error(reply, problem) from None


def crc32c(content: bytes) -> int:
    """Compute the CRC-32C, which Google gives every object."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = tuple(map(_crc32c_of, range(256)))
