"""Calls to URLs that clients registered (webhooks, a governance service): public addresses only."""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import httpx

from meruit.errors import AddressFault, HttpError, OutboundFailed, OutboundRefused
from meruit.model.record import Record
from meruit.sources.http import MAX_PORT, PORTS, HttpClient, HttpResponse, tls_context
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_URL_CHARS = 2048
MAX_REPLY_BYTES = 64 * 1024
"""How much of a reply is read; the rest is dropped."""
MAX_ADDRESSES = 4
"""How many addresses of one name are tried."""
MAX_CONNECTIONS = 64
TIMEOUT_S = 10.0
"""How long one call may take, from the DNS request to the last byte of the reply."""

_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
# Teredo and 6to4 carry an IPv4 address inside; the other such forms lie outside of 2000::/3.
_TUNNELS = tuple(map(ipaddress.IPv6Network, ("2001::/32", "2002::/16", "3fff::/20")))
_INNER_IPV4 = tuple(
    map(
        ipaddress.IPv4Network, ("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "168.63.129.16")
    )
)
"""Global by number, but not public: protocol assignments and the metadata services of clouds."""
_HOST_NAME = re.compile(r"(?=.{1,253}\.?$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")
_AUTHORITY = re.compile(r"[^/?#]*")
# The C library reads 2130706433, 0x7f.1 and 127.1 as addresses.
_NUMERIC_NAME = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")


class GuardedTransport(httpx.AsyncBaseTransport):
    """Connects to public addresses and allowed networks only; raises OutboundRefused or OutboundFailed.

    The name is resolved once, every address that it has must be allowed, and the connection goes to exactly that
    address. A name that resolves differently the second time changes nothing.
    """

    def __init__(self, allowed_networks: Sequence[Network], *, tls: ssl.SSLContext, resolve: Resolve | None) -> None:
        self._allowed = tuple(allowed_networks)
        self._resolve = resolve or _resolve
        # No connection is kept alive: two names may share an address, and a connection is trusted for one name only.
        self._transport = httpx.AsyncHTTPTransport(
            verify=tls,
            trust_env=False,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first address that accepts a connection."""
        addresses = await self._addresses(request.url)
        for address in addresses[:-1]:
            try:
                return await self._send(request, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                # Nothing was sent yet; the next address may be reachable.
                continue
        return await self._send(request, addresses[-1])

    async def _send(self, request: httpx.Request, address: str) -> httpx.Response:
        # The header Host was made from the URL with the name; only the connection uses the address.
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host_name(request.url)},
        )
        return await self._transport.handle_async_request(pinned)

    async def _addresses(self, target: httpx.URL) -> list[str]:
        """Resolve the name; every one of its addresses must be allowed, also those that are not tried."""
        host = host_name(target)
        try:
            found = list(dict.fromkeys(await self._resolve(host, target.port or PORTS[target.scheme])))
        except (OSError, UnicodeError):
            raise OutboundFailed(f"{host} could not be resolved") from None
        if not found:
            raise OutboundFailed(f"{host} has no address")
        for address in found:
            _check_address(host, ipaddress.ip_address(address), self._allowed)
        return found[:MAX_ADDRESSES]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class OutboundReply(Record, frozen=True):
    """The reply to a call of a registered URL."""

    status: int
    body: bytes
    """Its first bytes, at most MAX_REPLY_BYTES."""


class Outbound:
    """Posts to URLs that clients registered; an async context manager, one for the whole service."""

    def __init__(
        self,
        *,
        allowed_networks: Sequence[Network] = (),
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._allowed = tuple(allowed_networks)
        self._transport = GuardedTransport(self._allowed, tls=tls or tls_context("https"), resolve=resolve)
        self._policy = ReadPolicy(
            retry=BackoffSchedule(tries=1), limits=ReadLimits(timeout_s=timeout_s, connect_s=timeout_s / 2)
        )

    async def post(self, url: str, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
        """Send bytes to a URL; raises OutboundRefused or OutboundFailed. Any status is a reply, a redirect too."""
        check_url(url, self._allowed)
        http = HttpClient(transport=self._transport, policy=self._policy)
        try:
            # Only the host is shown: the path of a webhook may be a secret.
            return await http.request(
                "POST", url, _read_outbound, headers=headers, content=content, where=host_name(httpx.URL(url))
            )
        except HttpError as error:
            if isinstance(error.__cause__, OutboundRefused):
                raise error.__cause__ from None
            raise OutboundFailed(str(error)) from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _read_outbound(response: HttpResponse) -> OutboundReply:
    reply = await response.read_start(MAX_REPLY_BYTES)
    return OutboundReply(reply.status, reply.content)


def check_url(url: str, allowed_networks: Sequence[Network] = ()) -> None:
    """Raise OutboundRefused for a URL that could never be called; makes no DNS request."""
    _parse_url(url, allowed_networks)


def _parse_url(url: str, allowed: Sequence[Network]) -> httpx.URL:
    if len(url) > MAX_URL_CHARS:
        raise OutboundRefused(f"a URL may have {MAX_URL_CHARS} characters at most", AddressFault.TOO_LONG)
    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise OutboundRefused("this is not a valid URL; write https://host/path", AddressFault.SYNTAX) from None
    if target.scheme not in PORTS:
        raise OutboundRefused("only http:// and https:// URLs are called", AddressFault.SCHEME)
    authority = _AUTHORITY.match(url.partition("://")[2])
    if target.userinfo or (authority and "@" in authority[0]):
        raise OutboundRefused("the URL has a user or a password in it; use a header instead", AddressFault.CREDENTIALS)
    if target.port is not None and not 0 < target.port <= MAX_PORT:
        raise OutboundRefused(f"a port is a number from 1 to {MAX_PORT}", AddressFault.PORT)
    _check_host(host_name(target), allowed)
    return target


def host_name(target: httpx.URL) -> str:
    """Return the host as DNS and certificates spell it: `xn--…` for names beyond ASCII."""
    return target.raw_host.decode("ascii")


def _check_host(host: str, allowed: Sequence[Network]) -> None:
    literal = _literal(host)
    if literal is not None:
        _check_address(host, literal, allowed)
    elif not _HOST_NAME.fullmatch(host):
        raise OutboundRefused("the URL has no valid host; write https://host/path", AddressFault.HOST)
    elif _NUMERIC_NAME.fullmatch(host):
        raise OutboundRefused("write a numeric address as four decimal numbers", AddressFault.NUMERIC_HOST)


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _check_address(host: str, address: Address, allowed: Sequence[Network]) -> None:
    if not _is_public(address) and not any(address in network for network in allowed):
        raise OutboundRefused(
            f"{host} leads to an address that is not public; the operator may allow its network",
            AddressFault.NOT_PUBLIC,
        )


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not any(address in net for net in _INNER_IPV4)
    return address.is_global and address in _PUBLIC_IPV6 and not any(address in tunnel for tunnel in _TUNNELS)


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
