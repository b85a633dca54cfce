"""The one client that reaches out over HTTP; nobody inside can be reached by naming an address to us.

The name is resolved once, every address it has must be a public one, and the connection goes to exactly that address:
a name that answers differently the second time changes nothing.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import httpx

from meruit.errors import OutboundFailed, OutboundRefused
from meruit.model.record import Record

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
"""How long one call may take, from the name to the reply's last byte."""
MAX_PORT = 65535
PORTS = {"http": 80, "https": 443}

_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
# Teredo and 6to4 carry an IPv4 address inside; the other such forms lie outside of 2000::/3.
_TUNNELS = tuple(map(ipaddress.IPv6Network, ("2001::/32", "2002::/16", "3fff::/20")))
_INNER_IPV4 = tuple(
    map(
        ipaddress.IPv4Network, ("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "168.63.129.16")
    )
)
"""Global by their number, and yet not other people's: protocol assignments, and what clouds tell their machines."""
_HOST_NAME = re.compile(r"(?=.{1,253}\.?$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")
_AUTHORITY = re.compile(r"[^/?#]*")
# The C library reads 2130706433, 0x7f.1 and 127.1 as addresses.
_NUMERIC_NAME = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")


class OutboundReply(Record, frozen=True):
    """What the other side answered."""

    status: int
    body: bytes
    """Its first bytes, at most MAX_REPLY_BYTES."""


class Outbound:
    """Calls other people's URLs; an async context manager, one for the whole service."""

    def __init__(
        self,
        *,
        allowed_networks: Sequence[Network] = (),
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._allowed = tuple(allowed_networks)
        self._timeout_s = timeout_s
        self._resolve = resolve or _resolve
        # Nothing is kept alive: two names may share an address, and a connection is trusted for one name only.
        self._transport = httpx.AsyncHTTPTransport(
            verify=tls or True,
            trust_env=False,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0),
        )

    async def post(self, url: str, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
        """Send bytes to a URL; raises OutboundRefused or OutboundFailed. Any status is a reply, a redirect too."""
        target = _parse_url(url, self._allowed)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(target, content, headers)
        except TimeoutError:
            raise OutboundFailed(f"{_host_name(target)} did not answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as problem:
            raise OutboundFailed(f"{_host_name(target)} could not be called: {type(problem).__name__}") from problem

    async def _post(self, target: httpx.URL, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
        addresses = await self._addresses(target)
        for address in addresses[:-1]:
            try:
                return await self._send(target, address, content, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                # Nothing was sent yet; the next address may be reachable.
                continue
        return await self._send(target, addresses[-1], content, headers)

    async def _addresses(self, target: httpx.URL) -> list[str]:
        """Where the name leads; every one of its addresses must be allowed, also those that are not tried."""
        host = _host_name(target)
        try:
            found = list(dict.fromkeys(await self._resolve(host, target.port or PORTS[target.scheme])))
        except (OSError, UnicodeError):
            raise OutboundFailed(f"{host} could not be resolved") from None
        if not found:
            raise OutboundFailed(f"{host} has no address")
        for address in found:
            _check_address(host, ipaddress.ip_address(address), self._allowed)
        return found[:MAX_ADDRESSES]

    async def _send(self, target: httpx.URL, address: str, content: bytes, headers: Mapping[str, str]) -> OutboundReply:
        # The header Host is made from the URL with the name, which only then gives way to the address.
        request = httpx.Request("POST", target, content=content, headers=headers)
        request.url = target.copy_with(host=address)
        request.extensions = {"sni_hostname": _host_name(target), "timeout": {"connect": self._timeout_s / 2}}
        response = await self._transport.handle_async_request(request)
        try:
            body = bytearray()
            # As sent, never unpacked: a few bytes could unpack to gigabytes.
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= MAX_REPLY_BYTES:
                    break
        finally:
            await response.aclose()
        return OutboundReply(response.status_code, bytes(body[:MAX_REPLY_BYTES]))

    async def aclose(self) -> None:
        """Close what is open."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def check_url(url: str, allowed_networks: Sequence[Network] = ()) -> None:
    """Raise OutboundRefused for a URL that could never be called; asks no name server."""
    _parse_url(url, allowed_networks)


def _parse_url(url: str, allowed: Sequence[Network]) -> httpx.URL:
    if len(url) > MAX_URL_CHARS:
        raise OutboundRefused(f"a URL may have {MAX_URL_CHARS} characters at most")
    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise OutboundRefused("this is no URL; write https://host/path") from None
    if target.scheme not in PORTS:
        raise OutboundRefused("only http:// and https:// URLs are called")
    authority = _AUTHORITY.match(url.partition("://")[2])
    if target.userinfo or (authority and "@" in authority[0]):
        raise OutboundRefused("a URL with a user or a password in it is not called; use a header")
    if target.port is not None and not 0 < target.port <= MAX_PORT:
        raise OutboundRefused(f"a port is a number from 1 to {MAX_PORT}")
    _check_host(_host_name(target), allowed)
    return target


def _host_name(target: httpx.URL) -> str:
    """The host as name servers and certificates know it: `xn--…` for what lies beyond ASCII."""
    return target.raw_host.decode("ascii")


def _check_host(host: str, allowed: Sequence[Network]) -> None:
    literal = _literal(host)
    if literal is not None:
        _check_address(host, literal, allowed)
    elif not _HOST_NAME.fullmatch(host):
        raise OutboundRefused("the URL names no host; write https://host/path")
    elif _NUMERIC_NAME.fullmatch(host):
        raise OutboundRefused("write a numeric address as four decimal numbers")


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _check_address(host: str, address: Address, allowed: Sequence[Network]) -> None:
    if not _is_public(address) and not any(address in network for network in allowed):
        raise OutboundRefused(f"{host} leads to an address that is not public; the operator may allow its network")


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not any(address in net for net in _INNER_IPV4)
    return address.is_global and address in _PUBLIC_IPV6 and not any(address in tunnel for tunnel in _TUNNELS)


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
