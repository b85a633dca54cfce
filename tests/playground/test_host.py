"""One host, many playgrounds: each has its own secret, its own state, and outlives the process."""

import asyncio
import errno
import functools
import inspect
import os
import re
import socket
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import asyncssh
import httpx
import pytest

from meruit.errors import AlreadyServed, FhirRefusal, MeruitError, PlaygroundFull, TooManyPlaygrounds, UnknownPlayground
from meruit.model.environment import SourceKind
from meruit.playground import descriptors, mllp, sftp
from meruit.playground import host as hosting
from meruit.playground.host import Host, Playground
from meruit.playground.portal import app as portal
from meruit.playground.seed import Seed
from meruit.playground.state import NAMES, QUOTA_BYTES, REFUSED, Clock, PlaygroundState

SEED = Seed(resources={"Patient/1": {"resourceType": "Patient"}}, files={"in/a.txt": b"a"})
MESSAGE = b"\x0bMSH|^~\\&|A|B|C|D|20260306||ADT^A01|1|P|2.5.1\r\x1c\r"


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, run to its end."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined] # how pytest learns the fixtures
    return run


def folders(directory: Path) -> list[str]:
    return [one.name for one in directory.iterdir() if one.is_dir()]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def status(url: str, secret: str | None = None) -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(url, headers=bearer(secret) if secret is not None else {})).status_code


async def send(address: str, message: bytes) -> bytes:
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    writer.write(message)
    reply = await reader.readuntil(b"\x1c\r")
    writer.close()
    await writer.wait_closed()
    return reply


async def files(playground: Playground, secret: str) -> list[str]:
    name, _, port = (playground.endpoints.sftp or "").rpartition(":")
    login = asyncssh.connect(name, int(port), username=playground.id, password=secret, known_hosts=None, config=[])
    async with login as connection, connection.start_sftp_client() as client:
        return [str(one) for one in await client.listdir("in") if str(one) not in (".", "..")]


@looped
async def test_every_system_of_a_playground_answers(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        url = await host.serve_http()
        made = await host.create(SEED)
        assert host.find(made.id) == made
        assert host.listing() == [made]
        assert made.endpoints.fhir == f"{url}/playgrounds/{made.id}/fhir"
        async with httpx.AsyncClient(headers=bearer(made.secret)) as client:
            found = (await client.get(f"{made.endpoints.fhir}/Patient")).json()
            assert found["link"][0]["url"] == f"{made.endpoints.fhir}/Patient"
            assert found["entry"][0]["fullUrl"] == f"{made.endpoints.fhir}/Patient/1"
            created = await client.post(f"{made.endpoints.fhir}/Task", json={"resourceType": "Task"})
            assert created.headers["location"].startswith(f"{made.endpoints.fhir}/Task/")
            assert (await client.post(f"{made.endpoints.call}/turns", json={"text": "hello"})).status_code == 201
            events = (await client.get(made.endpoints.events)).json()["events"]
            assert [event["type"] for event in events] == ["fhir_create", "voice_turn"]
        async with httpx.AsyncClient(follow_redirects=True) as client:
            assert made.endpoints.portal is not None
            assert "<form" in (await client.get(made.endpoints.portal)).text
        assert b"MSA|AA" in await send(made.endpoints.mllp, MESSAGE)
        assert await files(made, made.secret) == ["a.txt"]
        world = await host.snapshots(made.id)
        assert [item.content() for item in world["outbound"].items] == [MESSAGE[1:-2]]
        assert len(world["ehr"].items) == 2


@looped
async def test_a_secret_opens_its_own_playground_only(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.serve_http()
        one, two = await host.create(SEED), await host.create(SEED)
        assert one.secret != two.secret
        for system in ("fhir/Patient", "x12", "call/turns", "events"):
            root = one.endpoints.fhir.removesuffix("/fhir")
            assert await status(f"{root}/{system}", one.secret) != 401
            for secret in (two.secret, "x", one.secret[:-1], None):
                assert await status(f"{root}/{system}", secret) == 401, system
        async with httpx.AsyncClient() as client:
            refused = await client.get(f"{one.endpoints.fhir}/Patient", auth=("clerk", one.secret))
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert refused.json()["resourceType"] == "OperationOutcome"
            assert (await client.get(one.endpoints.events)).json()["status"] == 401
            assert (await client.get(one.endpoints.fhir.replace(one.id, "pg_0"))).status_code == 401
            assert (await client.get(one.endpoints.fhir.replace("/fhir", "/soap"))).status_code == 404
            assert (await client.get(f"{host.public_url}/")).status_code == 404
        with pytest.raises(asyncssh.PermissionDenied):
            await files(one, two.secret)


@looped
async def test_messages_need_the_secret_where_a_host_is_shared(tmp_path: Path) -> None:
    def signed(secret: str) -> bytes:
        fields = MESSAGE.split(b"|")
        return b"|".join([*fields[:7], secret.encode(), *fields[8:]])

    bound = {"127.0.0.1": False, "127.0.0.2": False, "::1": False, "localhost": False, "0.0.0.0": True, "": True}
    assert {bind: Host(tmp_path, bind=bind).needs_secret for bind in bound} == bound
    async with Host(tmp_path / "own") as own:
        assert (await own.create(SEED)).endpoints.mllp_secret_in is None
    async with Host(tmp_path / "shared", is_shared=True) as host:
        one, two = await host.create(SEED), await host.create(SEED)
        assert one.endpoints.mllp_secret_in == "MSH-8"
        assert b"MSA|AR" in await send(one.endpoints.mllp, MESSAGE)
        assert b"MSA|AR" in await send(one.endpoints.mllp, signed(two.secret))
        assert b"MSA|AA" in await send(one.endpoints.mllp, signed(one.secret))
        world = await host.snapshots(one.id)
        assert [item.content() for item in world["outbound"].items] == [signed("")[1:-2]]


@looped
async def test_a_playground_goes_back_and_a_branch_goes_its_own_way(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.serve_http()
        made = await host.create(SEED)
        start = await host.snapshots(made.id)
        await send(made.endpoints.mllp, MESSAGE)
        await host.checkpoint(made.id, "sent")
        sent = await host.snapshots(made.id)
        branched = await host.branch(made.id)
        assert branched.secret != made.secret
        assert branched.endpoints.mllp != made.endpoints.mllp
        assert await host.snapshots(branched.id) == sent
        await send(branched.endpoints.mllp, MESSAGE)
        await host.reset(made.id)
        assert await host.snapshots(made.id) == start
        await host.reset(made.id, "sent")
        assert await host.snapshots(made.id) == sent
        assert len((await host.snapshots(branched.id))["outbound"].items) == 2
        await host.reset(branched.id)
        assert await host.snapshots(branched.id) == start
        assert await status(branched.endpoints.events, branched.secret) == 200
        assert await status(branched.endpoints.events, made.secret) == 401

        await host.remove(made.id)
        assert host.find(made.id) is None
        assert host.listing() == [branched]
        assert await status(made.endpoints.events, made.secret) == 401
        with pytest.raises(ConnectionError):
            await send(made.endpoints.mllp, MESSAGE)
        for gone in (host.remove(made.id), host.reset(made.id), host.branch(made.id), host.snapshots("x")):
            with pytest.raises(UnknownPlayground):
                await gone
    assert folders(tmp_path) == [branched.id]


@looped
async def test_playgrounds_outlive_their_host(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        made = [await host.create(SEED), await host.create()]
        await send(made[0].endpoints.mllp, MESSAGE)
        worlds = [await host.snapshots(one.id) for one in made]
    taken = socket.socket()
    taken.bind(("127.0.0.1", int(made[1].endpoints.mllp.rpartition(":")[2])))
    taken.listen()
    with taken:
        async with Host(tmp_path) as host:
            again = host.listing()
            assert [(one.id, one.secret) for one in again] == [(one.id, one.secret) for one in made]
            assert again[0].endpoints.mllp == made[0].endpoints.mllp
            assert again[1].endpoints.mllp != made[1].endpoints.mllp, "somebody else has that port now"
            assert [await host.snapshots(one.id) for one in again] == worlds
            await host.reset(again[0].id)
            assert (await host.snapshots(again[0].id))["outbound"].items == []


@looped
async def test_an_application_around_it_can_serve_it(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        host.public_url = "https://bench.example"
        made = await host.create(SEED)
        assert made.endpoints.fhir == f"https://bench.example/playgrounds/{made.id}/fhir"
        assert made.endpoints.mllp.startswith("bench.example:")
        for base in ("http://inside/playgrounds", "http://inside"):
            transport = httpx.ASGITransport(app=host.app)
            async with httpx.AsyncClient(transport=transport, headers=bearer(made.secret)) as client:
                found = (await client.get(f"{base}/{made.id}/fhir/Patient")).json()
                assert found["link"][0]["url"] == f"{made.endpoints.fhir}/Patient"
                assert (await client.get(f"{base}/{made.id}/events")).status_code == 200
        await host.app({"type": "lifespan"}, _never, _never)


async def _never(*_: Any) -> Any:
    raise AssertionError


@looped
async def test_a_playground_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        with pytest.raises(FhirRefusal):
            await host.create(Seed(resources={"Patient/a_b": {}}))
        assert host.listing() == []
    assert folders(tmp_path) == []


@looped
async def test_what_a_killed_host_left_half_made_is_cleared_away(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        made = await host.create()
    left = [
        tmp_path / ".pg_1" / "state.db",
        tmp_path / made.id / ".state.db.at-x.1-2.tmp",
        tmp_path / ".pg_2" / "state.db",
    ]
    for number, file in enumerate(left):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        if number < 2:
            for old in (file, file.parent):
                os.utime(old, (0, 0))
    async with Host(tmp_path) as host:
        assert [one.id for one in host.listing()] == [made.id]
    assert sorted(folders(tmp_path)) == [".pg_2", made.id]
    assert [file.exists() for file in left] == [False, False, True]


@looped
async def test_without_their_libraries_other_systems_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_: object) -> None:
        raise MeruitError(sftp.NEEDS)

    def app(_find: object) -> None:
        raise MeruitError("no jinja2")

    monkeypatch.setattr(sftp, "serve", serve)
    monkeypatch.setattr(portal, "app", app)
    async with Host(tmp_path) as host:
        endpoints = (await host.create()).endpoints
        assert (endpoints.sftp, endpoints.portal) == (None, None)
        assert endpoints.trouble == f"no jinja2; {sftp.NEEDS}"
        assert b"MSA" in await send(endpoints.mllp, MESSAGE)


@looped
async def test_files_of_playgrounds_at_rest_are_not_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "MAX_OPEN", 2)
    async with Host(tmp_path) as host:
        made = [await host.create() for _ in range(4)]
        states = [state for one in made if (state := host.state_of(one.id)) is not None and state.settings()]
        assert [state._connection is not None for state in states] == [False, False, True, True]
        assert [len(await host.snapshots(one.id)) for one in made] == [len(NAMES)] * 4
        assert host.state_of("x") is None


@looped
async def test_a_full_host_and_a_port_in_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "MAX_PLAYGROUNDS", 1)
    async with Host(tmp_path) as host:
        await host.create()
        with pytest.raises(TooManyPlaygrounds) as refused:
            await host.create()
        assert refused.value.code == "cannot_be_made"
        port = int((await host.serve_http()).rpartition(":")[2])
        with pytest.raises(MeruitError, match=str(port)):
            await host.serve_http(port)


@looped
async def test_a_busy_playground_is_unreachable_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "SNAPSHOT_WAIT_S", 0.05)
    async with Host(tmp_path) as host:
        made = await host.create(SEED)
        state = host.state_of(made.id)
        assert isinstance(state, PlaygroundState)
        with state.change(), pytest.raises(MeruitError, match="in use"):
            await host.snapshots(made.id)
        monkeypatch.undo()
        assert "ehr" in await host.snapshots(made.id)


@looped
async def test_who_connects_and_says_nothing_whole_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "REQUEST_S", 0.05)
    async with Host(tmp_path) as host:
        port = int((await host.serve_http()).rpartition(":")[2])
        for said in (b"", b"GET / HTTP/1.1\r\nHost:", b"POST /playgrounds/x/fhir HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()


@looped
async def test_so_many_connections_are_served_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "MAX_CONNECTIONS", 2)
    async with Host(tmp_path) as host:
        url = await host.serve_http()
        assert await status(url) == 404
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        # It counts once the server has taken it in.
        async with asyncio.timeout(60):
            while await status(url) != 503:
                pass
        writer.close()
        await writer.wait_closed()


@looped
async def test_who_gives_up_waits_for_the_disk_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(tmp_path) as host:
        making = asyncio.create_task(host.create(SEED))
        await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert host.listing() == []
    assert folders(tmp_path) == []


@looped
async def test_time_and_chance_are_given(tmp_path: Path) -> None:
    numbers = count(1)
    moment = datetime(2026, 3, 6, tzinfo=UTC)
    async with Host(tmp_path, clock=lambda: moment, entropy=lambda size: next(numbers).to_bytes(size)) as host:
        made = await host.create(SEED)
        state = host.state_of(made.id)
        assert isinstance(state, PlaygroundState)
        assert {event.at for event in state.events()} == {"2026-03-06T00:00:00.000000Z"}
        assert made.id == "pg_064c4fbbf840000000000002"
        assert made.secret == "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB"


# Room, and names.


@looped
async def test_a_full_playground_refuses_by_every_protocol(tmp_path: Path) -> None:
    x12 = (
        b"ISA*00*          *00*          *ZZ*CLINIC         *ZZ*PAYER          *260303*1200*^*00501*000000001*0*P*:~"
        b"GS*HS*CLINIC*PAYER*20260303*1200*1*X*005010X279A1~ST*270*0001*005010X279A1~BHT*0022*13*1*20260303*1200~"
        b"SE*3*0001~GE*1*1~IEA*1*000000001~"
    )
    entry = {"resource": {"resourceType": "Patient"}, "request": {"method": "POST", "url": "Patient"}}

    def bundle(kind: str) -> dict[str, Any]:
        return {"resourceType": "Bundle", "type": kind, "entry": [entry]}

    async with Host(tmp_path, quota_bytes=1024 * 1024) as host, httpx.AsyncClient() as client:
        await host.serve_http()
        made = await host.create(SEED)
        ends, state = made.endpoints, host.state_of(made.id)
        assert state is not None
        # Not even a byte that would fit on a page that is there already.
        state.set(quota_bytes=state.used_bytes() - 1)
        before = await host.snapshots(made.id)
        client.headers.update(bearer(made.secret))

        created = await client.post(f"{ends.fhir}/Patient", json={"resourceType": "Patient"})
        assert (created.status_code, created.json()["issue"][0]["code"]) == (507, "no-store")
        assert (await client.post(ends.fhir, json=bundle("transaction"))).status_code == 507
        several = await client.post(ends.fhir, json=bundle("batch"))
        assert several.json()["entry"][0]["response"]["status"] == "507 Insufficient Storage"
        assert (await client.delete(f"{ends.fhir}/Patient/1")).status_code == 507
        for address, content in (
            (ends.x12, x12),
            (ends.x12, b"nothing" * 2_000),
            (f"{ends.call}/turns", b'{"text": "a"}'),
        ):
            refused = await client.post(address, content=content)
            assert refused.status_code == 507, address
        acknowledged = await send(ends.mllp, MESSAGE)
        assert b"\rMSA|AR|1|" in acknowledged
        name, _, port = (ends.sftp or "").rpartition(":")
        login = asyncssh.connect(name, int(port), username=made.id, password=made.secret, known_hosts=None, config=[])
        async with login as connection, connection.start_sftp_client() as drop:
            opened = await drop.open("in/b.txt", "wb")
            await opened.write(b"x" * 10_000)
            with pytest.raises(asyncssh.SFTPFailure):
                await opened.close()
            for refusing in (drop.remove("in/a.txt"), drop.mkdir("new"), drop.rename("in/a.txt", "in/c.txt")):
                with pytest.raises(asyncssh.SFTPFailure):
                    await refusing

        assert await host.snapshots(made.id) == before
        # What is there can still be read, and what was refused was told.
        assert (await client.get(f"{ends.fhir}/Patient/1")).status_code == 200
        told = [event.type for event in state.events()]
        assert told.count(REFUSED) == 12


@looped
async def test_the_hosts_quota_covers_earlier_playgrounds(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        made = await host.create()
        assert (
            (host.state_of(made.id) or PlaygroundState(tmp_path)).settings()["quota_bytes"]
            == QUOTA_BYTES
            == 256 * 1024**2
        )
    async with Host(tmp_path, quota_bytes=200_000) as host:
        state = host.state_of(made.id)
        assert state is not None
        with pytest.raises(PlaygroundFull):
            state.put(SourceKind.FILES, "a", bytes(200_000), event="file_put")
        with pytest.raises(PlaygroundFull):
            await host.create(Seed(files={"a": bytes(150_000)}))
        assert [one.id for one in host.listing()] == [made.id]


@looped
async def test_ids_and_secrets_have_one_form(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        made = await host.create()
        branched = await host.branch(made.id)
    for one in (made, branched):
        assert re.fullmatch(hosting.ID, one.id)
        assert re.fullmatch(r"[A-Za-z0-9_-]{32}", one.secret)


def test_one_process_at_a_time_serves_a_directory(tmp_path: Path) -> None:
    with hosting.lock_directory(tmp_path):
        with pytest.raises(AlreadyServed) as refused, hosting.lock_directory(tmp_path):
            pass
        assert str(tmp_path) in str(refused.value)
    with hosting.lock_directory(tmp_path):
        pass


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    parent, other = socket.socketpair()
    with hosting.lock_directory(tmp_path):
        child = os.fork()
        if not child:
            other.send(b"ready")
            # It lives until the parent says something.
            other.recv(1)
            os._exit(0)
        assert parent.recv(5) == b"ready"
    with parent, other:
        try:
            with hosting.lock_directory(tmp_path):
                pass
        finally:
            parent.send(b"!")
            os.waitpid(child, 0)


class _Listening:
    """Stands in for `mllp.listen` and fails first in the given ways."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.ports: list[int] = []
        self.states: list[PlaygroundState] = []
        self._listen = mllp.listen

    async def __call__(
        self, state: PlaygroundState, host: str, port: int, clock: Clock, *, secret: str, needs_secret: bool
    ) -> mllp.MllpListener:
        self.ports.append(port)
        self.states.append(state)
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, os.strerror(number))
        return await self._listen(state, host, port, clock, secret=secret, needs_secret=needs_secret)


@looped
async def test_only_a_port_in_use_is_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Host(tmp_path) as host:
        made = await host.create()
        port = int(made.endpoints.mllp.rpartition(":")[2])
    listening = _Listening(errno.EADDRINUSE)
    monkeypatch.setattr(mllp, "listen", listening)
    async with Host(tmp_path) as host:
        assert listening.ports == [port, 0]
        listening.failures = [errno.EMFILE]
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)) as refused:
            await host.create()
        assert refused.value.errno == errno.EMFILE
        assert listening.ports == [port, 0, 0]
        assert listening.states[-1]._connection is None
        assert [one.id for one in host.listing()] == [made.id]
    assert folders(tmp_path) == [made.id]
