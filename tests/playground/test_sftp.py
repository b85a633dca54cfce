"""The drop for files, driven by clients that nobody here wrote."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.errors import MeruitError
from meruit.model.environment import SourceKind
from meruit.playground import files as drop
from meruit.playground import sftp
from meruit.playground.files import FileDrop, key_of
from meruit.playground.state import PlaygroundState

SECRET = "s3cret-of-the-playground"
OPENSSH = shutil.which("sftp")
SCP = shutil.which("scp")


@pytest.fixture
def state(tmp_path: Path) -> PlaygroundState:
    made = PlaygroundState.create(tmp_path / "one.playground", settings={"secret": SECRET})
    made.put(SourceKind.FILES, "inbound/roster.csv", b"id\nA1\n", event="seeded")
    made.checkpoint()
    return made


@contextlib.asynccontextmanager
async def serving(state: PlaygroundState, tmp_path: Path) -> AsyncIterator[sftp.SftpServer]:
    server = await sftp.serve({"one": state}.get, "127.0.0.1", 0, tmp_path / "keys" / "host_key")
    try:
        yield server
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def connected(
    server: sftp.SftpServer, user: str = "one", password: str = SECRET
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with asyncssh.connect(
        "127.0.0.1", server.port, username=user, password=password, known_hosts=None, config=None, client_keys=None
    ) as connection:
        yield connection


def with_client(
    state: PlaygroundState, tmp_path: Path, acting: Callable[[asyncssh.SFTPClient], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with (
            serving(state, tmp_path) as server,
            connected(server) as connection,
            connection.start_sftp_client() as client,
        ):
            await acting(client)

    asyncio.run(run())


def files(state: PlaygroundState) -> dict[str, bytes]:
    return {one.key: one.content() for one in state.items(SourceKind.FILES)}


@given(st.text(alphabet=st.sampled_from("ab./ ~\\"), max_size=30) | st.text(max_size=30))
def test_no_path_leads_out(path: str) -> None:
    try:
        key = key_of(path)
    except OSError:
        assert "\x00" in path
        return
    assert not key.startswith("/")
    assert not {"", ".", ".."} & set(key.split("/")) or key == ""
    assert key_of(f"/{key}") == key


def test_what_is_written_is_an_item_once_it_is_closed(state: PlaygroundState, tmp_path: Path) -> None:
    async def act(client: asyncssh.SFTPClient) -> None:
        await client.mkdir("outbound")
        async with client.open("outbound/roster.json", "wb") as file:
            await file.write(b"[1, 2")
            await file.write(b", 3]")
            assert "outbound/roster.json" not in files(state)
        assert files(state)["outbound/roster.json"] == b"[1, 2, 3]"
        attrs = await client.stat("outbound/roster.json")
        assert (attrs.size, attrs.type) == (9, asyncssh.FILEXFER_TYPE_REGULAR)

    with_client(state, tmp_path, act)
    assert [event.facts["size"] for event in state.events() if event.type == "file_put"] == [9]
    (kept,) = [one for one in state.snapshots()["drop"].items if one.key.startswith("outbound")]
    assert kept.facts["size"] == 9


def test_files_are_read_appended_to_cut_and_listed(state: PlaygroundState, tmp_path: Path) -> None:
    async def act(client: asyncssh.SFTPClient) -> None:
        async with client.open("inbound/roster.csv", "rb") as file:
            read: object = await file.read()
            assert read == b"id\nA1\n"
            assert (await file.stat()).size == 6
        async with client.open("inbound/roster.csv", "ab") as file:
            await file.write(b"A2\n")
        assert files(state)["inbound/roster.csv"] == b"id\nA1\nA2\n"
        await client.truncate("inbound/roster.csv", 3)
        assert files(state)["inbound/roster.csv"] == b"id\n"
        async with client.open("inbound/roster.csv", "r+b") as file:
            await file.truncate(1)
            await file.seek(3)
            await file.write(b"!")
        assert files(state)["inbound/roster.csv"] == b"i\x00\x00!"
        await client.chmod("inbound/roster.csv", 0o644)
        await client.mkdir("made")
        assert set(await client.listdir("/")) == {".", "..", "inbound", "made"}
        assert set(await client.listdir("inbound")) == {".", "..", "roster.csv"}
        assert await client.isdir("made")
        assert await client.realpath("made/../inbound") == "/inbound"
        async with client.open("inbound/roster.csv", "wb"):
            pass
        assert files(state)["inbound/roster.csv"] == b""

    with_client(state, tmp_path, act)


def test_moves_take_everything_and_overwrite_only_if_asked(state: PlaygroundState, tmp_path: Path) -> None:
    async def act(client: asyncssh.SFTPClient) -> None:
        await client.makedirs("claims/empty")
        for name in ("claims/a.tmp", "claims/b.837"):
            async with client.open(name, "wb") as file:
                await file.write(name.encode())
        with pytest.raises(asyncssh.SFTPError, match="exists"):
            await client.rename("claims/a.tmp", "claims/b.837")
        await client.posix_rename("claims/a.tmp", "claims/b.837")
        assert files(state)["claims/b.837"] == b"claims/a.tmp"
        assert "claims/a.tmp" not in files(state)
        await client.rename("claims", "sent")
        assert set(await client.listdir("sent")) == {".", "..", "b.837", "empty"}
        assert not await client.exists("claims")
        for old, new in (("sent", "sent/inside"), ("nowhere", "x"), ("sent/b.837", "inbound/roster.csv/x")):
            with pytest.raises(asyncssh.SFTPError):
                await client.rename(old, new)
        await client.rename("sent", "sent")

    with_client(state, tmp_path, act)


def test_directories_are_made_removed_and_reset(state: PlaygroundState, tmp_path: Path) -> None:
    async def act(client: asyncssh.SFTPClient) -> None:
        await client.mkdir("made")
        for refused in ("made", "inbound", "inbound/roster.csv", "inbound/roster.csv/x", "/"):
            with pytest.raises(asyncssh.SFTPError):
                await client.mkdir(refused)
        for refused in ("inbound", "inbound/roster.csv", "nowhere", "/"):
            with pytest.raises(asyncssh.SFTPError):
                await client.rmdir(refused)
        await client.rmdir("made")
        assert not await client.exists("made")
        await client.mkdir("made")
        await asyncio.to_thread(state.reset)
        assert not await client.exists("made")
        await client.mkdir("made")
        assert await client.exists("made")

    with_client(state, tmp_path, act)


def test_what_cannot_be_done_is_refused_and_changes_nothing(
    state: PlaygroundState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(sftp, "MAX_OPEN", 1)
    before = files(state)

    async def act(client: asyncssh.SFTPClient) -> None:
        async def refused(doing: Awaitable[object], match: str = "") -> None:
            with pytest.raises(asyncssh.SFTPError, match=match):
                await doing

        await refused(client.open("nowhere.txt", "rb"), "no such")
        await refused(client.open("inbound", "rb"), "directory")
        await refused(client.open("inbound/roster.csv", "xb"), "exists")
        await refused(client.open("inbound/roster.csv/x", "wb"), "is a file")
        await refused(client.open(b"\xff.txt", "wb"), "UTF-8")
        await refused(client.open("x" * 2000, "wb"), "characters")
        await refused(client.remove("inbound"), "directory")
        await refused(client.remove("nowhere"), "no such")
        await refused(client.listdir("inbound/roster.csv"), "file")
        await refused(client.symlink("/etc/passwd", "link"), "no links")
        await refused(client.link("inbound/roster.csv", "link"), "no links")
        await refused(client.readlink("inbound/roster.csv"), "no links")
        await refused(client.statvfs("/"), "no links")
        await refused(client.truncate("inbound", 1), "directory")
        await refused(client.truncate("inbound/roster.csv", 10**9), "at most")
        await refused(client.stat("/etc/passwd"), "no such")
        await refused(client.stat("../../../../etc/passwd"), "no such")
        async with client.open("inbound/roster.csv", "rb") as file:
            await refused(file.write(b"x"), "not open for writing")
            await refused(client.open("inbound/roster.csv", "rb"), "at once")

    with_client(state, tmp_path, act)
    assert files(state) == before


def test_a_file_has_a_size_limit_and_keeps_what_arrived(
    state: PlaygroundState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp, "MAX_FILE_BYTES", 100)

    async def act(client: asyncssh.SFTPClient) -> None:
        file = await client.open("big", "wb")
        await file.write(b"x" * 60)
        with pytest.raises(asyncssh.SFTPError, match="100 bytes"):
            await file.write(b"x" * 60)
        with pytest.raises(asyncssh.SFTPError, match="for reading"):
            await file.read(1, 0)
        await file.close()

    with_client(state, tmp_path, act)
    assert files(state)["big"] == b"x" * 60


def test_there_are_so_many_files_and_no_more(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drop, "MAX_FILES", 2)
    full = FileDrop(state)
    full.put("second", b"")
    with pytest.raises(OSError, match="2 files"):
        full.put("third", b"")
    full.put("second", b"again")


def test_the_size_limit_includes_earlier_versions(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drop, "MAX_BYTES", 100)
    full = FileDrop(state)
    full.put("second", b"x" * 40)
    full.put("second", b"x" * 40)
    with pytest.raises(OSError, match="100 bytes"):
        full.put("second", b"x" * 40)
    with pytest.raises(OSError, match="100 bytes"):
        full.rename("second", "third", replaces=False)
    full.put("third", b"x")


def test_no_content_is_read_to_see_whether_there_is_room(
    state: PlaygroundState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlaygroundState, "items", None)
    looking = FileDrop(state)
    looking.put("inbound/new", b"")
    looking.make_directory("made")
    assert looking.find("inbound") is None
    assert sorted(looking.listing("inbound")) == ["new", "roster.csv"]


def test_open_files_of_all_sessions_share_the_limit(
    state: PlaygroundState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp, "MAX_BYTES", 100)

    async def run() -> None:
        async with (
            serving(state, tmp_path) as server,
            connected(server) as connection,
            connection.start_sftp_client() as one,
            connection.start_sftp_client() as two,
        ):
            sparse, other = await one.open("sparse", "wb"), await two.open("other", "wb")
            await sparse.write(b"x", 59)
            with pytest.raises(asyncssh.SFTPError, match="100 bytes"):
                await other.write(b"x", 59)
            # What was refused takes no room, however often.
            for _ in range(3):
                with pytest.raises(asyncssh.SFTPError, match="100 bytes"):
                    await two.truncate("inbound/roster.csv", 60)
            await other.write(b"x" * 39)
            with pytest.raises(asyncssh.SFTPError, match="100 bytes"):
                await one.open("inbound/roster.csv", "rb")
            await sparse.close()
            await other.write(b"x", 59)
            await other.close()

    asyncio.run(run())
    assert (len(files(state)["sparse"]), len(files(state)["other"])) == (60, 60)


def test_files_opened_all_at_once_are_counted_too(
    state: PlaygroundState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp, "MAX_OPEN", 2)

    async def act(client: asyncssh.SFTPClient) -> None:
        opening = [client.open("inbound/roster.csv", "rb") for _ in range(6)]
        opened = await asyncio.gather(*opening, return_exceptions=True)
        assert sum(isinstance(one, asyncssh.SFTPError) for one in opened) == 4

    with_client(state, tmp_path, act)


def test_an_upload_that_breaks_off_leaves_what_arrived(state: PlaygroundState, tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(state, tmp_path) as server:
            async with connected(server) as connection:
                client = await connection.start_sftp_client()
                await client.mkdir("outbound")
                file = await client.open("outbound/half.tmp", "wb")
                await file.write(b"half of")
                connection.abort()
            server.close()
            await server.wait_closed()
        for _ in range(200):
            if "outbound/half.tmp" in files(state):
                return
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert files(state)["outbound/half.tmp"] == b"half of"


def test_only_the_playgrounds_own_secret_opens_it(state: PlaygroundState, tmp_path: Path) -> None:
    nameless = PlaygroundState.create(tmp_path / "two.playground")

    async def run() -> None:
        server = await sftp.serve({"one": state, "two": nameless}.get, "127.0.0.1", 0, tmp_path / "host_key")
        try:
            for user, password in (("one", "wrong"), ("one", ""), ("two", ""), ("two", SECRET), ("three", SECRET)):
                with pytest.raises(asyncssh.PermissionDenied):
                    async with connected(server, user, password):
                        pass
            async with connected(server) as connection:
                # Nothing but files is to be had.
                with pytest.raises(asyncssh.Error):
                    await connection.run("id", check=True)
                with pytest.raises(asyncssh.Error):
                    await connection.open_connection("127.0.0.1", server.port)
        finally:
            server.close()
            await server.wait_closed()

    asyncio.run(run())


def test_the_servers_key_stays_the_same_and_private(state: PlaygroundState, tmp_path: Path) -> None:
    async def key() -> bytes:
        async with serving(state, tmp_path) as server:
            found = await asyncssh.get_server_host_key("127.0.0.1", server.port, config=None)
            assert found is not None
            return found.export_public_key()

    assert asyncio.run(key()) == asyncio.run(key())
    assert (tmp_path / "keys" / "host_key").stat().st_mode & 0o077 == 0


def test_a_missing_playground_fails_only_its_client(state: PlaygroundState, tmp_path: Path) -> None:
    known = {"one": state}

    async def run() -> None:
        server = await sftp.serve(known.get, "127.0.0.1", 0, tmp_path / "host_key")
        try:
            async with connected(server) as connection, connection.start_sftp_client() as client:
                state.close()
                state.path.unlink()
                with pytest.raises(asyncssh.SFTPError, match=sftp.GONE):
                    await client.stat("inbound/roster.csv")
                known.clear()
                async with connection.start_sftp_client() as another:
                    with pytest.raises(asyncssh.SFTPError, match=sftp.GONE):
                        await another.listdir("/")
        finally:
            server.close()
            await server.wait_closed()

    asyncio.run(run())


def test_too_many_connections_are_turned_away(
    state: PlaygroundState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sftp, "MAX_CONNECTIONS", 1)

    async def run() -> None:
        async with serving(state, tmp_path) as server, connected(server):
            with pytest.raises((asyncssh.Error, OSError)):
                async with connected(server):
                    pass

    asyncio.run(run())


def test_without_asyncssh_it_says_what_to_install(
    state: PlaygroundState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(MeruitError, match=r"meruit\[playground\]"):
        asyncio.run(sftp.serve({"one": state}.get, "127.0.0.1", 0, tmp_path / "host_key"))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=50)), max_size=8))
def test_writes_anywhere_come_to_what_a_disk_would_hold(writes: list[tuple[int, bytes]]) -> None:
    opened, disk = sftp.OpenFile("x", b"0123456789", reads=True, writes=True, appends=False), bytearray(b"0123456789")
    for offset, data in writes:
        opened.write(offset, data)
        if data:
            disk.extend(bytes(max(offset + len(data) - len(disk), 0)))
            disk[offset : offset + len(data)] = data
    assert opened.read(0, 1000).rstrip(b"\x00") == bytes(disk).rstrip(b"\x00")


def password_environment(folder: Path) -> dict[str, str]:
    """The environment in which OpenSSH's clients find the password."""
    asking = folder / "askpass"
    asking.write_text(f"#!/bin/sh\necho {SECRET}\n")
    asking.chmod(0o700)
    return {"SSH_ASKPASS": str(asking), "SSH_ASKPASS_REQUIRE": "force", "HOME": str(folder)}


@pytest.mark.skipif(SCP is None, reason="needs OpenSSH's scp")
def test_openssh_scp_exits_with_0_and_makes_no_parents(state: PlaygroundState, tmp_path: Path) -> None:
    (tmp_path / "local.txt").write_bytes(b"by scp")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_bytes(b"b")

    async def run() -> list[int]:
        async with serving(state, tmp_path) as server:
            known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/known"]
            command, there = [str(SCP), "-F", "none", *known, "-P", str(server.port)], "one@127.0.0.1:"
            copies = [
                [f"{tmp_path}/local.txt", f"{there}inbound/up.txt"],
                ["-r", f"{tmp_path}/folder", f"{there}outbound"],
                [f"{there}inbound/roster.csv", f"{tmp_path}/down.csv"],
                [f"{tmp_path}/local.txt", f"{there}nowhere/up.txt"],
            ]
            done = [
                await asyncio.to_thread(
                    subprocess.run,
                    [*command, *one],
                    env=password_environment(tmp_path),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=300,
                )
                for one in copies
            ]
            return [one.returncode for one in done]

    assert asyncio.run(run()) == [0, 0, 0, 1]
    assert (tmp_path / "down.csv").read_bytes() == b"id\nA1\n"
    assert files(state) == {
        "inbound/roster.csv": b"id\nA1\n",
        "inbound/up.txt": b"by scp",
        "outbound/b.txt": b"b",
    }


@pytest.mark.skipif(OPENSSH is None, reason="needs OpenSSH's sftp")
def test_openssh_puts_gets_lists_and_renames(state: PlaygroundState, tmp_path: Path) -> None:
    (tmp_path / "local.txt").write_bytes(b"from openssh" * 10_000)
    batch = (
        f"mkdir outbound\nput {tmp_path}/local.txt outbound/up.tmp\nrename outbound/up.tmp outbound/up.txt\n"
        f"get inbound/roster.csv {tmp_path}/down.csv\nls -l\nrm inbound/roster.csv\nquit\n"
    )

    async def run() -> "subprocess.CompletedProcess[str]":
        async with serving(state, tmp_path) as server:
            options = ["StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path}/known", f"Port={server.port}"]
            # `-b` would forbid to ask for a password, so the commands come over standard input.
            command = [str(OPENSSH), "-F", "none", *(part for option in options for part in ("-o", option))]
            return await asyncio.to_thread(
                subprocess.run,
                [*command, "one@127.0.0.1"],
                input=batch,
                env=password_environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=300,
            )

    done = asyncio.run(run())
    assert done.returncode == 0, done.stderr
    assert files(state) == {"outbound/up.txt": b"from openssh" * 10_000}
    assert (tmp_path / "down.csv").read_bytes() == b"id\nA1\n"
    assert "inbound" in done.stdout
