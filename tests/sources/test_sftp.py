"""Files over SFTP, from OpenSSH's own server."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from tests.servers.running import SshServer

from meruit.errors import AuthorError, MeruitError
from meruit.model.environment import Encoding, Snapshot
from meruit.sources import file_items as files
from meruit.sources import sftp
from meruit.sources.credentials import SecretToken
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy
from meruit.sources.sftp import SftpLogin, SftpSource

ONCE = ReadPolicy(retry=BackoffSchedule(tries=1))


def login(server: SshServer, **others: Any) -> SftpLogin:
    given: dict[str, Any] = {"key": SecretToken.from_value(server.key), "known_hosts": server.known_hosts, **others}
    return SftpLogin(server.user, **given)


def read(server: SshServer, root: Path, **others: Any) -> Snapshot:
    given: dict[str, Any] = {"login": login(server), "policy": ONCE, **others}
    source = SftpSource("127.0.0.1", server.port, root=str(root), **given)
    return asyncio.run(source.read())


def filled(server: SshServer, name: str, held: dict[str, bytes]) -> Path:
    root = server.root / name
    for path, content in held.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return root


def test_every_file_below_the_root_is_read(sshd: SshServer) -> None:
    held = {"a.txt": b"one", "out/b.json": b"{}", "out/deep/c.bin": bytes(range(256)), "out/empty": b""}
    found = read(sshd, filled(sshd, "every", held))
    assert found.trouble is None
    assert {one.key: one.content() for one in found.items} == held
    assert found.items[0].facts["size"] == 3
    assert found.items[0].facts["modified"].endswith("Z")


def test_a_large_file_is_hashed_and_not_kept(sshd: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(sftp, "BLOCK_BYTES", 700)
    found = read(sshd, filled(sshd, "large", {"big": b"x" * 1001, "small": b"x" * 1000}))
    big, small = found.items
    assert (big.encoding, big.body, big.facts["size"]) == (Encoding.LEFT, None, 1001)
    assert small.content() == b"x" * 1000


def test_links_and_names_that_are_no_text_lose_nothing(sshd: SshServer) -> None:
    root = filled(sshd, "odd", {"a": b"one"})
    (root / "link").symlink_to("/etc/passwd")
    with open(os.fsencode(root) + b"/n\xff", "wb") as file:  # noqa: PTH123 -- a path of bytes
        file.write(b"two")
    found = read(sshd, root)
    assert found.manifest().keys() == {"a", "n\\xff"}
    assert any("link" in one.what for one in found.reads)


def test_a_root_that_is_not_there_is_trouble_not_emptiness(sshd: SshServer) -> None:
    found = read(sshd, sshd.root / "nowhere")
    assert found.trouble is not None
    assert "nowhere" in found.trouble


def test_another_host_key_is_never_talked_to(sshd: SshServer) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    wrong = login(sshd, known_hosts=f"[127.0.0.1]:{sshd.port} {other}")
    found = read(sshd, sshd.root, login=wrong)
    assert found.trouble is not None
    assert "HostKeyNotVerifiable" in found.trouble


def test_another_user_key_is_refused_and_not_shown(sshd: SshServer) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    found = read(sshd, sshd.root, login=login(sshd, key=SecretToken.from_value(key)))
    assert found.trouble is not None
    assert "PermissionDenied" in found.trouble
    for text in (found.trouble, repr(login(sshd)), found.to_json().decode()):
        assert key not in text
        assert sshd.key not in text


def test_an_invalid_key_is_refused(sshd: SshServer) -> None:
    found = read(sshd, sshd.root, login=login(sshd, key=SecretToken.from_value("no key")))
    assert found.trouble is not None
    assert "private key" in found.trouble


def test_any_host_is_accepted_only_when_that_is_said(sshd: SshServer) -> None:
    root = filled(sshd, "any", {"a": b"one"})
    said = login(sshd, known_hosts=None, accept_any_host=True)
    assert read(sshd, root, login=said).trouble is None
    with pytest.raises(AuthorError, match="known_hosts"):
        login(sshd, known_hosts=None)
    with pytest.raises(AuthorError, match="private key"):
        login(sshd, key=None)


def test_limits_are_trouble(sshd: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    root = filled(sshd, "limits", {"a": b"one", "b": b"two", "c/d/e": b"three"})
    few = read(sshd, root, policy=ReadPolicy(retry=BackoffSchedule(tries=1), limits=ReadLimits(items=1)))
    short = read(sshd, root, policy=ReadPolicy(retry=BackoffSchedule(tries=1), limits=ReadLimits(bytes_total=4)))
    monkeypatch.setattr(sftp, "MAX_DEPTH", 1)
    for found in (few, short, read(sshd, root)):
        assert found.trouble is not None
        assert found.trouble.startswith("incomplete_read")


def test_a_server_that_is_down_is_tried_again(sshd: SshServer) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    source = SftpSource("127.0.0.1", 1, login=login(sshd), policy=ReadPolicy(sleep=sleep))
    found = asyncio.run(source.read())
    assert found.trouble is not None
    assert "127.0.0.1:1 " in found.trouble
    assert waits == [0.2, 0.4]


class Door(asyncssh.SSHServer):
    """Lets one clerk in by password."""

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == ("clerk", "open-sesame")


def behind_the_door(
    root: Path, password: str = "open-sesame", files_of: type[asyncssh.SFTPServer] = asyncssh.SFTPServer
) -> Snapshot:
    """What a clerk reads from a server of asyncssh's."""

    async def tried() -> Snapshot:
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Door,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: files_of(channel, chroot=os.fsencode(root)),
        )
        try:
            entry = SftpLogin("clerk", password=SecretToken.from_value(password), accept_any_host=True)
            return await SftpSource("127.0.0.1", server.get_port(), login=entry, root="/", policy=ONCE).read()
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(tried())


def test_a_password_opens_a_server_that_takes_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    found = behind_the_door(tmp_path)
    assert found.trouble is None
    assert found.manifest().keys() == {"a"}
    refused = behind_the_door(tmp_path, "wrong-guess")
    assert refused.trouble is not None
    assert "wrong-guess" not in refused.trouble


def test_a_file_that_changes_while_it_is_read_is_unsettled(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    sizes = count(3)

    class Growing(asyncssh.SFTPServer):
        def fstat(self, file_obj: object) -> asyncssh.SFTPAttrs:
            return asyncssh.SFTPAttrs(size=next(sizes), mtime=1)

    found = behind_the_door(tmp_path, files_of=Growing)
    assert found.trouble is not None
    assert found.trouble.startswith("unsettled: a changed")


def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    class Climbing(asyncssh.SFTPServer):
        async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
            attrs = asyncssh.SFTPAttrs(type=asyncssh.FILEXFER_TYPE_REGULAR, permissions=0o100644)
            yield asyncssh.SFTPName(b"../../etc/passwd", attrs=attrs)

    found = behind_the_door(tmp_path, files_of=Climbing)
    assert found.trouble is not None
    assert "impossible name" in found.trouble


def test_without_asyncssh_it_is_said_what_to_install(sshd: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(MeruitError, match=r"pip install 'meruit\[playground\]'"):
        SftpSource("127.0.0.1", login=login(sshd))
