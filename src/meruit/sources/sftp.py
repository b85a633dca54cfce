"""Read the files of an SFTP server completely; a server with another host key is not read."""

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meruit.errors import AuthorError, MeruitError, OutboundFailed, OutboundRefused, SourceError
from meruit.model.environment import Item, Snapshot, SourceKind
from meruit.sources.credentials import SecretToken, redact
from meruit.sources.file_items import CHUNK_BYTES, MAX_DEPTH, Intake, add_unique, file_name, moment
from meruit.sources.retry import (
    DEFAULT,
    INCOMPLETE,
    UNSETTLED,
    ReadPolicy,
    SourceReading,
    take_snapshot,
    time_limit,
    with_retries,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncssh

SFTP_PORT = 22
MAX_SAID_CHARS = 200
"""How much of a server's message an error quotes."""
# asyncssh splits these into parallel requests.
BLOCK_BYTES = 4 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class SftpLogin:
    """A login, and how the server is identified."""

    username: str
    password: SecretToken | None = None
    key: SecretToken | None = None
    """The text of a private key, without a passphrase."""
    known_hosts: str | None = None
    """Lines of an OpenSSH known_hosts file."""
    accept_any_host: bool = False
    """Whether any host key is accepted; for playgrounds and tests on your own machine."""

    def __post_init__(self) -> None:
        if (self.known_hosts is None) != self.accept_any_host:
            raise AuthorError("set `known_hosts`, or `accept_any_host` for a server of your own")
        if self.password is None and self.key is None:
            raise AuthorError("an SFTP login needs a password or a private key")


class SftpSource:
    """All files below a folder of an SFTP server; links are not followed."""

    kind = SourceKind.FILES

    def __init__(
        self,
        host: str,
        port: int = SFTP_PORT,
        *,
        login: SftpLogin,
        root: str = ".",
        policy: ReadPolicy = DEFAULT,
    ) -> None:
        """Keys of the files are relative to `root`."""
        _ssh()
        self._host = host
        self._port = port
        self._login = login
        self._root = root
        self._policy = policy
        self._where = f"sftp://{host}:{port}"

    async def read(self) -> Snapshot:
        """Read every file; the snapshot says what could not be read."""
        return await take_snapshot(self.kind, self._where, self._policy, self._gather)

    async def _gather(self, reading: SourceReading) -> None:
        async def attempt() -> None:
            reading.items.clear()
            reading.reads.clear()
            reading.taken_bytes = 0
            async with self._connect() as client:
                await self._walk(reading, client)
            reading.note(f"{self._where} {self._root}", items=len(reading.items))

        await with_retries(attempt, self._policy)

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[asyncssh.SFTPClient]":
        """Open a session; every failure in it becomes a SourceError."""
        ssh = _ssh()
        options = await self._options()
        try:
            async with time_limit(self._policy.limits.timeout_s, self._where):
                connection = await ssh.connect(self._host, self._port, **options)
            async with connection, connection.start_sftp_client() as client:
                yield client
        except (OSError, ssh.Error, OutboundFailed, OutboundRefused) as problem:
            raise self._to_source_error(problem) from None

    def _to_source_error(self, problem: Exception) -> SourceError:
        ssh, again = _ssh(), False
        match problem:
            case ssh.HostKeyNotVerifiable():
                what, advice = "is not the known server", "check `known_hosts` and the server"
            case ssh.PermissionDenied():
                what, advice = f"refuses the login of {self._login.username}", "check the login"
            case ssh.SFTPError():
                what, advice = f"does not show all of {self._root}", "check that it exists and may be read"
            case OutboundRefused():
                what, advice = "is not read", "name a server that may be read"
            case _:
                what, advice, again = "could not be read", "check that it is up", True
        reason = redact(" ".join(str(problem).split())[:MAX_SAID_CHARS], self._login.password, self._login.key)
        return SourceError(f"{self._where} {what} ({type(problem).__name__}: {reason}); {advice}", again=again)

    # asyncssh takes options of many types.
    async def _options(self) -> dict[str, Any]:
        """Build the options; configuration, agent, keys and known hosts of this machine are not used."""
        ssh, login, host_matcher, keys = _ssh(), self._login, None, None
        try:
            if login.known_hosts is not None:
                hosts = ssh.import_known_hosts(login.known_hosts)

                # By the name that was requested, not by its address.
                def host_matcher(_host: str, address: str, _port: int | None) -> Any:
                    return hosts.match(self._host, address, self._port)

            if login.key is not None:
                keys = [ssh.import_private_key(await login.key.value())]
        except ValueError as problem:
            reason = redact(str(problem), login.key)
            raise SourceError(
                f"{self._where} is not read ({reason}); check the private key and `known_hosts`"
            ) from None
        return {
            "config": None,
            "username": login.username,
            "password": None if login.password is None else await login.password.value(),
            "client_keys": keys,
            "agent_path": None,
            "known_hosts": host_matcher,
            "gss_host": None,
            "connect_timeout": self._policy.limits.timeout_s,
            "login_timeout": self._policy.limits.timeout_s,
        }

    async def _walk(self, reading: SourceReading, client: "asyncssh.SFTPClient") -> None:
        root = self._root.encode()
        folders: list[tuple[bytes, int]] = [(b"", 0)]
        while folders:
            folder, depth = folders.pop()
            if depth > MAX_DEPTH or len(folders) > reading.limits.items:
                raise SourceError(f"{INCOMPLETE}: {file_name(folder)} is deeper than {MAX_DEPTH} folders; read a part")
            for name, kind in await self._names(reading, client, _join(root, folder)):
                path = _join(folder, name) if folder else name
                if kind == _ssh().FILEXFER_TYPE_DIRECTORY:
                    folders.append((path, depth + 1))
                elif kind == _ssh().FILEXFER_TYPE_REGULAR:
                    add_unique(reading, await self._file(reading, client, _join(root, path), path))
                else:
                    reading.note(f"{file_name(path)} is a link or not a regular file: not read")

    async def _names(
        self, reading: SourceReading, client: "asyncssh.SFTPClient", folder: bytes
    ) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        async with time_limit(self._policy.limits.timeout_s, self._where):
            async for entry in client.scandir(folder):
                name = entry.filename.encode() if isinstance(entry.filename, str) else entry.filename
                if name in {b".", b".."}:
                    continue
                if b"/" in name:
                    raise SourceError(f"{self._where} lists the impossible name {file_name(name)}; ask its operator")
                found.append((name, entry.attrs.type))
                if len(found) > reading.limits.items:
                    raise SourceError(
                        f"{INCOMPLETE}: {self._where} has more than {reading.limits.items:,} names in one folder; "
                        "read a part of it"
                    )
        return sorted(found)

    async def _file(self, reading: SourceReading, client: "asyncssh.SFTPClient", place: bytes, path: bytes) -> Item:
        async with time_limit(self._policy.limits.timeout_s, self._where), client.open(place, "rb") as opened:
            # It is typed as if all files were text; one that is opened like this returns bytes.
            file: Any = opened
            before = await file.stat()
            intake = Intake()
            while piece := await file.read(BLOCK_BYTES, intake.size):
                intake.feed(piece)
                reading.take(len(piece), file_name(path))
            after = await file.stat()
        if (before.size, before.mtime) != (after.size, after.mtime) or after.size not in {None, intake.size}:
            raise SourceError(
                f"{UNSETTLED}: {file_name(path)} changed while it was read; wait until the writer has finished",
                again=True,
            )
        return intake.item(file_name(path), None if after.mtime is None else moment(after.mtime))


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name if name else folder


def _ssh() -> Any:
    """Import asyncssh when it is first needed; that takes a third of a second."""
    try:
        import asyncssh
    except ImportError:
        raise MeruitError("reading SFTP needs asyncssh; `pip install 'meruit[playground]'`") from None
    return asyncssh
