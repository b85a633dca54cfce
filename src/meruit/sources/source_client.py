"""What readers of a source use to read over HTTP: every request is recorded, links stay on the server."""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import TypeVar

import httpx

from meruit.errors import HttpError, HttpFailure, SourceError
from meruit.model.environment import Read
from meruit.sources.credentials import SecretToken
from meruit.sources.http import IDENTITY, HttpClient, HttpResponse, origin
from meruit.sources.http_replies import MAX_SHOWN_CHARS, HttpReply, check_status, truncate
from meruit.sources.retry import INCOMPLETE, ReadPolicy, SourceReading

T = TypeVar("T")


class SourceClient:
    """Reads from one server, and records each request. It shows its token to that server only."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        base_url: str,
        *,
        token: SecretToken | None,
        reading: SourceReading,
        policy: ReadPolicy,
    ) -> None:
        self._origin = origin(httpx.URL(base_url))
        self._token = token
        self._reading = reading
        self._http = HttpClient(client=client, token=token, policy=policy, renewals_max=1)

    async def get(
        self,
        url: str,
        read: Callable[[HttpReply], T],
        *,
        accept: str = "application/json",
        count: Callable[[T], int] | None = None,
        reads: list[Read] | None = None,
    ) -> T:
        """Return what `read` makes of the reply and record the request; `read` may raise SourceError."""
        recorded = self._reading.reads if reads is None else reads

        async def take(response: HttpResponse) -> T:
            reply = await self._read(response)
            answer = Read(reply.where, reply.status, reply.headers.get("etag"), sha256(reply.content).hexdigest())
            try:
                check_status(reply, self._token)
                value = read(reply)
            except SourceError:
                recorded.append(answer)
                raise
            items = count(value) if count is not None else None
            recorded.append(
                Read(what=answer.what, status=answer.status, etag=answer.etag, sha256=answer.sha256, items=items)
            )
            return value

        return await self.fetch(url, take, accept=accept)

    async def fetch(
        self,
        url: str,
        take: Callable[[HttpResponse], Awaitable[T]],
        *,
        accept: str = "*/*",
        encoding: str = IDENTITY,
    ) -> T:
        """Return what `take` makes of a response whose body it reads itself; raises SourceError."""
        try:
            return await self._http.request("GET", url, take, headers={"Accept": accept, "Accept-Encoding": encoding})
        except HttpError as error:
            if error.reason is HttpFailure.TOO_LARGE:
                error.args = (f"{INCOMPLETE}: {error}",)
            raise

    def display_url(self, url: str) -> str:
        """Format a URL for an error: without user, password and secrets, and not too long."""
        return self._http.display_url(url)

    def resolve_link(self, url: str, link: str) -> str:
        """Return the URL of a link; raises SourceError for a link to another server."""
        try:
            target = httpx.URL(url).join(link)
            leaves = origin(target) != self._origin or bool(target.userinfo)
        except (httpx.InvalidURL, ValueError, TypeError):
            raise SourceError(
                f"{self.display_url(url)} has a next link that is not a valid URL; check the server's configuration"
            ) from None
        if leaves:
            raise SourceError(
                f"{self.display_url(url)} has a next link to another server, "
                f"{truncate(_format_origin(target), MAX_SHOWN_CHARS)}, which is not followed; "
                "set the address that the server itself uses"
            )
        return str(target)

    async def _read(self, response: HttpResponse) -> HttpReply:
        content = bytearray()
        async for chunk in response.iter_bytes():
            content += chunk
            self._reading.take(len(chunk), response.where)
        return HttpReply(response.where, response.status, response.headers, bytes(content))


def _format_origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"
