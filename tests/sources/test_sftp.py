"""Files over SFTP, from OpenSSH's own server."""

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from tests.servers.running import SshServer

from meruit.model.errors import AuthorError
from meruit.model.world import Encoding, Snapshot
from meruit.sources import files, sftp
from meruit.sources.credentials import Token
from meruit.sources.guarded import Guard
from meruit.sources.reading import Limits, Policy, Retry
from meruit.sources.sftp import Login, SftpSource

ONCE = Policy(retry=Retry(tries=1))


def login(server: SshServer, **others: Any) -> Login:
    given: dict[str, Any] = {"key": Token.given(server.key), "known_hosts": server.known_hosts, **others}
    return Login(server.user, **given)


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
    assert "is not the server that is known" in found.trouble


def test_another_user_key_is_refused_and_not_shown(sshd: SshServer) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    found = read(sshd, sshd.root, login=login(sshd, key=Token.given(key)))
    assert found.trouble is not None
    assert "does not let" in found.trouble
    for text in (found.trouble, repr(login(sshd)), found.to_json().decode()):
        assert key not in text
        assert sshd.key not in text


def test_a_key_that_is_none_is_told(sshd: SshServer) -> None:
    found = read(sshd, sshd.root, login=login(sshd, key=Token.given("no key")))
    assert found.trouble is not None
    assert "private key" in found.trouble


def test_any_host_is_accepted_only_when_that_is_said(sshd: SshServer) -> None:
    root = filled(sshd, "any", {"a": b"one"})
    said = login(sshd, known_hosts=None, accept_any_host=True)
    assert read(sshd, root, login=said).trouble is None
    with pytest.raises(AuthorError, match="which server"):
        login(sshd, known_hosts=None)
    with pytest.raises(AuthorError, match="password or a private key"):
        login(sshd, key=None)


def test_limits_are_trouble(sshd: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    root = filled(sshd, "limits", {"a": b"one", "b": b"two", "c/d/e": b"three"})
    few = read(sshd, root, policy=Policy(retry=Retry(tries=1), limits=Limits(items=1)))
    short = read(sshd, root, policy=Policy(retry=Retry(tries=1), limits=Limits(bytes_total=4)))
    monkeypatch.setattr(sftp, "MAX_DEPTH", 1)
    for found in (few, short, read(sshd, root)):
        assert found.trouble is not None
        assert found.trouble.startswith("incomplete_read")


def test_a_guard_keeps_inner_servers_out_of_reach(sshd: SshServer) -> None:
    found = read(sshd, sshd.root, guard=Guard())
    assert found.trouble is not None
    assert "not public" in found.trouble


def test_a_server_that_is_down_is_tried_again(sshd: SshServer) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    source = SftpSource("127.0.0.1", 1, login=login(sshd), policy=Policy(sleep=sleep))
    found = asyncio.run(source.read())
    assert found.trouble is not None
    assert "could not be read" in found.trouble
    assert waits == [0.2, 0.4]


def test_a_password_opens_a_server_that_takes_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")

    class Door(asyncssh.SSHServer):
        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == ("clerk", "open-sesame")

    async def tried(password: str) -> Snapshot:
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Door,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(tmp_path)),
        )
        try:
            entry = Login("clerk", password=Token.given(password), accept_any_host=True)
            return await SftpSource("127.0.0.1", server.get_port(), login=entry, root="/", policy=ONCE).read()
        finally:
            server.close()
            await server.wait_closed()

    found = asyncio.run(tried("open-sesame"))
    assert found.trouble is None
    assert found.manifest().keys() == {"a"}
    refused = asyncio.run(tried("wrong-guess"))
    assert refused.trouble is not None
    assert "wrong-guess" not in refused.trouble
