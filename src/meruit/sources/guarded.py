"""Reading for other people: a client that reaches public addresses only, and those that the operator allows."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import httpx

from meruit.sources.outbound import (
    MAX_ADDRESSES,
    MAX_CONNECTIONS,
    PORTS,
    Network,
    OutboundFailed,
    OutboundRefused,
    Resolve,
    check_url,
)


class Guard:
    """Says where a name leads, and refuses one that leads inside."""

    def __init__(self, allowed_networks: Sequence[Network] = (), resolve: Resolve | None = None) -> None:
        self._allowed = tuple(allowed_networks)
        self._resolve = resolve or _resolve

    def check(self, url: str) -> None:
        """Raise OutboundRefused for a URL that is never called."""
        check_url(url, self._allowed)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where to connect; raises OutboundRefused if any of its addresses is not public, OutboundFailed for none."""
        try:
            found = list(dict.fromkeys(await self._resolve(host, port)))
        except (OSError, UnicodeError):
            raise OutboundFailed(f"{host} could not be resolved") from None
        if not found:
            raise OutboundFailed(f"{host} has no address")
        for address in found:
            self._check_address(host, address)
        return found[:MAX_ADDRESSES]

    def _check_address(self, host: str, address: str) -> None:
        literal = ipaddress.ip_address(address)
        try:
            check_url(f"http://[{literal}]/" if literal.version == 6 else f"http://{literal}/", self._allowed)
        except OutboundRefused:
            raise OutboundRefused(
                f"{host} leads to an address that is not public; the operator may allow its network"
            ) from None


class GuardedTransport(httpx.AsyncBaseTransport):
    """Connects to exactly the address that was checked: a name that answers differently later changes nothing."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        # Nothing is kept alive: two names may share an address, and a connection is trusted for one name only.
        self._transport = httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first address that can be reached."""
        self._guard.check(str(request.url))
        host = request.url.raw_host.decode("ascii")
        addresses = await self._guard.addresses(host, request.url.port or PORTS[request.url.scheme])
        for address in addresses[:-1]:
            try:
                return await self._send(request, host, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                # Nothing was sent yet; the next address may be reachable.
                continue
        return await self._send(request, host, addresses[-1])

    async def _send(self, request: httpx.Request, host: str, address: str) -> httpx.Response:
        # The header Host was made from the URL with the name, which only then gives way to the address.
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await self._transport.handle_async_request(pinned)

    async def aclose(self) -> None:
        """Close what is open."""
        await self._transport.aclose()


def guarded_client(allowed_networks: Sequence[Network] = (), resolve: Resolve | None = None) -> httpx.AsyncClient:
    """A client for sources that others name: it reads no inner address, takes no proxy, follows no redirect."""
    return httpx.AsyncClient(transport=GuardedTransport(Guard(allowed_networks, resolve)), trust_env=False)


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
