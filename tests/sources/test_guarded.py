"""A reader for other people reaches nobody inside."""

import asyncio
import ipaddress
from collections.abc import Sequence

import httpx
import pytest

from meruit.model.world import Snapshot
from meruit.sources.fhir import FhirSource
from meruit.sources.guarded import Guard, guarded_client
from meruit.sources.outbound import OutboundFailed, OutboundRefused, Resolve
from meruit.sources.reading import Policy, Retry

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
REPLY = b'{"resourceType": "Bundle", "type": "searchset", "total": 0}'


def resolving(*answers: Sequence[str]) -> Resolve:
    """A name server that gives one answer after another."""
    waiting = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    return resolve


async def read(client: httpx.AsyncClient, url: str) -> Snapshot:
    async with client:
        return await FhirSource(url, ["Patient"], client=client, policy=Policy(Retry(tries=1))).read()


async def with_server(
    allowed: list[ipaddress.IPv4Network | ipaddress.IPv6Network], resolve: Resolve | None, host: str
) -> tuple[Snapshot, list[bytes]]:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(REPLY) + REPLY)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await read(guarded_client(allowed, resolve), f"http://{host}:{port}/fhir"), heard


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "metadata.test"])
def test_an_inner_address_is_never_read(host: str) -> None:
    resolve = resolving(["127.0.0.1"]) if host in {"localhost", "metadata.test"} else None
    found, heard = asyncio.run(with_server([], resolve, host))
    assert found.trouble is not None
    assert "not public" in found.trouble
    assert heard == []


def test_one_inner_address_among_public_ones_is_enough_to_refuse() -> None:
    found, heard = asyncio.run(with_server([], resolving(["93.184.216.34", "127.0.0.1"]), "ehr.test"))
    assert found.trouble is not None
    assert "ehr.test leads to an address that is not public" in found.trouble
    assert heard == []


def test_what_the_operator_allows_is_read_at_the_address_that_was_checked() -> None:
    resolve = resolving(["127.0.0.1"], ["10.0.0.1"])
    found, heard = asyncio.run(with_server(list(LOOPBACK), resolve, "ehr.test"))
    assert found.trouble is None
    assert b"\r\nHost: ehr.test:" in heard[0].replace(b"host:", b"Host:")


def test_the_next_address_is_tried_when_the_first_cannot_be_reached() -> None:
    found, heard = asyncio.run(with_server(list(LOOPBACK), resolving(["127.9.9.9", "127.0.0.1"]), "ehr.test"))
    assert found.trouble is None
    assert len(heard) == 1


def test_a_name_that_leads_nowhere_is_told() -> None:
    async def failing(host: str, port: int) -> Sequence[str]:
        raise OSError

    for resolve, words in ((failing, "could not be resolved"), (resolving([]), "has no address")):
        with pytest.raises(OutboundFailed, match=words):
            asyncio.run(Guard(resolve=resolve).addresses("ehr.test", 80))
    with pytest.raises(OutboundRefused):
        asyncio.run(Guard(resolve=resolving(["fd00::1"])).addresses("ehr.test", 80))
    assert asyncio.run(Guard(LOOPBACK).addresses("127.0.0.1", 80)) == ["127.0.0.1"]
