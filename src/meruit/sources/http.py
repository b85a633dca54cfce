"""Questions over HTTP on behalf of one reading: again where that may help, a token renewed once, nothing endless."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import httpx

from meruit.errors import AuthorError, OutboundFailed, OutboundRefused, SourceError
from meruit.model.environment import Read
from meruit.sources.credentials import SecretToken, redact
from meruit.sources.http_guard import MAX_PORT, PORTS
from meruit.sources.retry import INCOMPLETE, MAX_WAIT_S, ReadPolicy, SourceReading, time_limit, with_retries

T = TypeVar("T")

OK = 200
UNAUTHORIZED = 401
NOT_FOUND = 404
TOO_MANY = 429
NOT_IMPLEMENTED = 501
MAX_SHOWN_CHARS = 300
"""How much of a URL is shown."""
MAX_QUOTED_CHARS = 200
"""How much of what a server said is quoted."""
MAX_KIND_CHARS = 60
MAX_ISSUES = 3
"""How many issues of one OperationOutcome are quoted."""

_TRANSIENT_STATUSES = {408, 425, TOO_MANY}
_SERVER_ERRORS = 500
_REDIRECTS = range(300, 400)
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


class SourceReply(NamedTuple):
    """What a server answered."""

    where: str
    """The URL, fit to be shown."""
    status: int
    headers: httpx.Headers
    content: bytes

    def text(self) -> str:
        """The content; raises Trouble for bytes that are not UTF-8."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise SourceError(
                f"{self.where} sent bytes that are not UTF-8, at byte {problem.start}; see what it serves there"
            ) from None


class SourceClient:
    """Asks one server. A token goes to the origin that it is meant for, and nowhere else."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        base_url: str,
        *,
        token: SecretToken | None,
        reading: SourceReading,
        policy: ReadPolicy,
    ) -> None:
        self._client = client
        self._origin = origin(httpx.URL(base_url))
        self._token = token
        self._reading = reading
        self._policy = policy
        self._renewed = False
        self._fetching = asyncio.Lock()

    async def get(
        self,
        url: str,
        read: Callable[[SourceReply], T],
        *,
        accept: str = "application/json",
        count: Callable[[T], int] | None = None,
        reads: list[Read] | None = None,
    ) -> T:
        """What `read` makes of the reply, which it may refuse with Trouble; the question is written down."""
        written = self._reading.reads if reads is None else reads

        async def take(response: httpx.Response) -> T:
            content = await self._content(response)
            reply = SourceReply(self.display_url(url), response.status_code, response.headers, content)
            answer = Read(reply.where, reply.status, response.headers.get("etag"), sha256(content).hexdigest())
            try:
                check_status(reply)
                value = read(reply)
            except SourceError:
                written.append(answer)
                raise
            items = count(value) if count is not None else None
            written.append(Read(answer.what, answer.status, answer.etag, answer.sha256, items))
            return value

        return await self.ask(url, take, accept=accept)

    async def ask(
        self,
        url: str,
        take: Callable[[httpx.Response], Awaitable[T]],
        *,
        accept: str = "*/*",
        # Never packed by itself: a few bytes could unpack to gigabytes.
        encoding: str = "identity",
    ) -> T:
        """What `take` makes of a response whose body it reads itself; raises Trouble."""

        async def attempt() -> T:
            async with self._send(url, {"Accept": accept, "Accept-Encoding": encoding}) as response:
                return await take(response)

        async def attempt_with_token() -> T:
            used = await self._secret()
            try:
                return await attempt()
            except _Unauthorized:
                if not await self._renew(used):
                    raise
                return await attempt()

        try:
            return await with_retries(attempt_with_token, self._policy)
        except SourceError as trouble:
            # Servers quote what they were sent.
            trouble.args = (redact(str(trouble), self._token),)
            raise

    async def _secret(self) -> str | None:
        # Many questions are asked at one time, and one of them fetches the token for all.
        async with self._fetching:
            return None if self._token is None else await self._token.value()

    async def _renew(self, refused: str | None) -> bool:
        """Whether there is another token than the one that was refused; it is renewed once in a reading."""
        if self._token is None or refused is None:
            return False
        async with self._fetching:
            if await self._token.value() != refused:
                return True
            if self._renewed:
                return False
            self._renewed = True
            return await self._token.renew(refused)

    def display_url(self, url: str) -> str:
        """A URL as it may be shown: without user, password and secrets, and not too long."""
        plain = str(httpx.URL(url).copy_with(username=None, password=None, fragment=None))
        return _truncate(redact(plain, self._token), MAX_SHOWN_CHARS)

    def resolve_link(self, url: str, link: str) -> str:
        """Where a link leads; raises Trouble for one that leaves the server that we were told to read."""
        try:
            target = httpx.URL(url).join(link)
            leaves = origin(target) != self._origin or bool(target.userinfo)
        except (httpx.InvalidURL, ValueError, TypeError):
            raise SourceError(
                f"{self.display_url(url)} has a next link that is no URL; see how the server is set up"
            ) from None
        if leaves:
            raise SourceError(
                f"{self.display_url(url)} has a next link to {_truncate(_format_origin(target), MAX_SHOWN_CHARS)}, another server, "
                "which is not followed; give the address that the server itself goes by"
            )
        return str(target)

    @asynccontextmanager
    async def _send(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        where = self.display_url(url)
        if self._token is not None:
            headers = {**headers, "Authorization": f"Bearer {_header_safe(await self._token.value(), self._token)}"}
        request = self._client.build_request("GET", url, headers=headers, timeout=self._policy.limits.timeout_s)
        try:
            async with time_limit(self._policy.limits.timeout_s, where):
                response = await self._client.send(request, stream=True, follow_redirects=False)
                try:
                    if response.status_code == UNAUTHORIZED:
                        self._reading.reads.append(Read(where, UNAUTHORIZED))
                        raise _Unauthorized(
                            f"{where} does not let us in (status 401); "
                            + (f"see whether {self._token} is valid" if self._token else "give it a token")
                        )
                    yield response
                finally:
                    await response.aclose()
        except httpx.TimeoutException:
            limit_s = self._policy.limits.timeout_s
            raise SourceError(
                f"{where} did not answer within {limit_s:g} s; see whether it is up", again=True
            ) from None
        except (httpx.HTTPError, httpx.StreamError, OutboundFailed) as problem:
            raise SourceError(
                f"{where} could not be read: {type(problem).__name__} {_truncate(str(problem), MAX_QUOTED_CHARS)}; "
                "see whether it is up",
                again=True,
            ) from None
        except (OutboundRefused, httpx.InvalidURL) as problem:
            raise SourceError(f"{where} is not read: {problem}") from None

    async def _content(self, response: httpx.Response) -> bytes:
        limit = self._policy.limits.reply_bytes
        where = self.display_url(str(response.request.url))
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            self._reading.take(len(chunk), where)
            if len(content) > limit:
                raise SourceError(f"{INCOMPLETE}: {where} sent more than {limit:,} bytes in one reply; read less of it")
        return bytes(content)


class _Unauthorized(SourceError):
    """The server does not let us in."""


def check_base_url(url: str) -> str:
    """A URL to read from, checked; raises AuthorError for what cannot be one."""
    try:
        parsed = httpx.URL(url)
        port_fits = parsed.port is None or 0 < parsed.port <= MAX_PORT
    except (httpx.InvalidURL, ValueError, TypeError):
        raise AuthorError("this is no URL to read from; write https://host/path") from None
    if parsed.scheme not in PORTS or not parsed.host or not port_fits:
        raise AuthorError("a source is read over http or https; write https://host/path")
    if parsed.userinfo:
        raise AuthorError("a URL with a user or a password in it would show them; give a token instead")
    return url


def origin(url: httpx.URL) -> tuple[str, bytes, int | None]:
    """Scheme, host and port; equal for URLs that one server answers."""
    return url.scheme, url.raw_host.lower(), url.port or PORTS.get(url.scheme)


def excerpt_of(reply: SourceReply) -> str:
    """What a server said instead of what it was asked for, in a few words; empty when it said nothing."""
    text = reply.content[: 64 * MAX_QUOTED_CHARS].decode(errors="replace")
    try:
        said = _message_in(json.loads(reply.content))
    except (ValueError, RecursionError):
        title = _TITLE.search(text)
        said = _TAG.sub(" ", title[1] if title else text)
    return _truncate(said, MAX_QUOTED_CHARS)


# What a server sends as JSON is anything at all.
def _message_in(value: Any) -> str:
    match value:
        case {"resourceType": "OperationOutcome", "issue": list(issues)}:
            return "; ".join(_issue(issue) for issue in issues[:MAX_ISSUES])
        case {"error": {"message": str(message), **rest}}:
            return f"{rest.get('status', 'error')}: {message}"
        case {"error": str(message)} | {"detail": str(message)} | {"message": str(message)}:
            return message
        case {"resourceType": str(name)}:
            return f"a {name}"
        case _:
            # Anything else may be somebody's record, and is nobody's message.
            return ""


def _issue(issue: Any) -> str:
    match issue:
        case {"diagnostics": str(said)} | {"details": {"text": str(said)}} | {"code": str(said)}:
            return said
        case _:
            return "an issue without words"


def quote_of(reply: SourceReply) -> str:
    """` (it says: …)`, or nothing."""
    said = excerpt_of(reply)
    return f" (it says: {said})" if said else ""


def invalid_json_error(reply: SourceReply, problem: Exception) -> SourceError:
    """The trouble of a reply that should be JSON and is not."""
    kind = reply.headers.get("content-type", "no content type").partition(";")[0]
    if reply.content.lstrip()[:1] == b"<":
        return SourceError(
            f"{reply.where} answered with {_truncate(kind, MAX_KIND_CHARS)} in place of JSON{quote_of(reply)}; "
            "see whether it is the right address",
            again=True,
        )
    return SourceError(
        f"{reply.where} sent JSON that cannot be read: {_truncate(str(problem), MAX_QUOTED_CHARS)}; ask whoever runs it",
        again=True,
    )


def check_status(reply: SourceReply) -> None:
    """Raise Trouble for a status that no reader can do anything with; the others are the reader's."""
    status = reply.status
    if status in _REDIRECTS:
        place = _truncate(reply.headers.get("location", "nowhere"), MAX_SHOWN_CHARS)
        raise SourceError(
            f"{reply.where} redirects (status {status}) to {place}, which is not followed; give the address it leads to"
        )
    if status in _TRANSIENT_STATUSES or (status >= _SERVER_ERRORS and status != NOT_IMPLEMENTED):
        wait_s = _retry_after_s(reply)
        if wait_s is not None and wait_s > MAX_WAIT_S:
            raise SourceError(
                f"{reply.where} answered with status {status} and asks to wait {wait_s:,.0f} s, "
                f"longer than the {MAX_WAIT_S:g} s that we wait; try again then"
            )
        raise SourceError(
            f"{reply.where} answered with status {status}{quote_of(reply)}; try again later", again=True, wait_s=wait_s
        )


def _retry_after_s(reply: SourceReply) -> float | None:
    """How long the server asks us to wait; a date is read against the server's own clock."""
    asked = reply.headers.get("retry-after", "").strip()
    if asked.isascii() and asked.isdigit():
        return float(asked[:10])
    try:
        now = parsedate_to_datetime(reply.headers.get("date", ""))
        return max(0.0, (parsedate_to_datetime(asked) - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _header_safe(value: str, token: SecretToken) -> str:
    if not _VISIBLE.fullmatch(value):
        raise SourceError(f"{token} holds signs that no token has; see that it is the token alone")
    return value


def _format_origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _truncate(text: str, most: int) -> str:
    """One line of printable signs, no longer than that."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
