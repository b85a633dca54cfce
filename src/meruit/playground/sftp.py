"""A file drop over SFTP: each user sees the files of one playground, and nothing of this machine."""

import asyncio
import errno
import hmac
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

from meruit.errors import MeruitError, PlaygroundFull
from meruit.playground.files import MAX_BYTES, MAX_FILE_BYTES, FileDrop, key_of
from meruit.playground.state import PlaygroundState

if TYPE_CHECKING:
    import asyncssh

MAX_CONNECTIONS = 64
"""Connections at once, of all playgrounds; one more is closed."""
MAX_OPEN = 32
"""Files that one session has open at once."""
LOGIN_S = 30
KEEPALIVE_S = 60
VERSION = 3
"""The protocol version that every client speaks."""
OWNER = "agent"
GONE = "the playground is busy"
NEEDS = "the drop for files needs asyncssh: pip install 'meruit[playground]'"

Find = Callable[[str], PlaygroundState | None]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class OpenFile:
    """A file that one client has open; others see its content when it is closed, or when its connection ends."""

    def __init__(
        self,
        key: str,
        content: bytes | None,
        *,
        reads: bool,
        writes: bool,
        appends: bool,
        beside: "WeakSet[OpenFile] | None" = None,
    ) -> None:
        """Open it in memory; files that are open `beside` it share the same space."""
        self._beside = WeakSet[OpenFile]() if beside is None else beside
        self.content = bytearray()
        self._must_have_room(len(content or b""))
        self._beside.add(self)
        self.key = key
        self.content = bytearray(content or b"")
        self.reads = reads
        self.writes = writes
        self.appends = appends
        self.changed = content is None

    def read(self, offset: int, size: int) -> bytes:
        """Read a part; shorter at its end."""
        if not self.reads:
            raise PermissionError(errno.EACCES, "the file is not open for reading")
        return bytes(self.content[offset : offset + size])

    def write(self, offset: int, data: bytes) -> int:
        """Write over a part; a gap is filled with zeros."""
        offset = len(self.content) if self.appends else offset
        if offset + len(data) > len(self.content):
            self.resize(offset + len(data))
        self._must_be_writable()
        self.content[offset : offset + len(data)] = data
        self.changed = True
        return len(data)

    def resize(self, size: int) -> None:
        """Cut it, or extend it with zeros."""
        self._must_be_writable()
        if size > MAX_FILE_BYTES:
            raise OSError(errno.ENOSPC, f"a file has {MAX_FILE_BYTES} bytes at most")
        self._must_have_room(size)
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))
        self.changed = True

    def release(self) -> None:
        """Free its memory at once, even if an exception that was raised here still refers to it."""
        self._beside.discard(self)

    def _must_have_room(self, size: int) -> None:
        if sum(len(one.content) for one in self._beside) - len(self.content) + size > MAX_BYTES:
            raise OSError(errno.ENOSPC, f"open files have {MAX_BYTES} bytes at most, together")

    def _must_be_writable(self) -> None:
        if not self.writes:
            raise PermissionError(errno.EACCES, "the file is not open for writing")


class SftpServer:
    """A running SFTP server, which ends with all its connections when it is closed."""

    def __init__(self, acceptor: "asyncssh.SSHAcceptor", connections: "set[asyncssh.SSHServerConnection]") -> None:
        self._acceptor = acceptor
        self._connections = connections

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._acceptor.get_port()

    def close(self) -> None:
        """Stop listening, and end every connection."""
        self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()

    async def wait_closed(self) -> None:
        """Wait until the last connection has ended."""
        await asyncio.gather(*(connection.wait_closed() for connection in list(self._connections)))
        await self._acceptor.wait_closed()


async def serve(find: Find, host: str, port: int, host_key_path: Path) -> SftpServer:
    """Serve every playground that `find` returns: its id is the user, its secret the password.

    The server's host key is made if there is none yet; port 0 is any free one.
    """
    try:
        import asyncssh
    except ImportError:
        raise MeruitError(NEEDS) from None
    connections: set[asyncssh.SSHServerConnection] = set()
    acceptor = await asyncssh.listen(
        host,
        port,
        server_factory=_authenticator_factory(find, connections),
        server_host_keys=[await asyncio.to_thread(_host_key, host_key_path)],
        sftp_factory=_session_factory(find),
        sftp_version=VERSION,
        allow_scp=False,
        password_auth=True,
        public_key_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        agent_forwarding=False,
        x11_forwarding=False,
        login_timeout=LOGIN_S,
        keepalive_interval=KEEPALIVE_S,
    )
    return SftpServer(acceptor, connections)


def _host_key(path: Path) -> "asyncssh.SSHKey":
    import asyncssh

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    return asyncssh.read_private_key(path)


def _is_password_valid(state: PlaygroundState | None, password: str) -> bool:
    secret = "" if state is None else str(state.settings().get("secret") or "")
    return hmac.compare_digest(secret.encode(), password.encode()) and bool(secret)


# These two classes are in functions because their bases are imported only when they are needed.
def _authenticator_factory(
    find: Find, connections: "set[asyncssh.SSHServerConnection]"
) -> "Callable[[], asyncssh.SSHServer]":
    import asyncssh

    class PasswordAuthenticator(asyncssh.SSHServer):
        """Accepts a login with a playground's secret."""

        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            self._connection = conn
            if len(connections) >= MAX_CONNECTIONS:
                conn.abort()
            connections.add(conn)

        def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - what asyncssh gives
            connections.discard(self._connection)

        def password_auth_supported(self) -> bool:
            return True

        async def validate_password(self, username: str, password: str) -> bool:
            return await asyncio.to_thread(_is_password_valid, find(username), password)

    return PasswordAuthenticator


def _session_factory(find: Find) -> "Callable[[asyncssh.SSHServerChannel[bytes]], asyncssh.SFTPServer]":  # noqa: C901 - methods
    import asyncssh

    # Weak references: the files of a connection take memory only as long as it exists.
    opened_by: defaultdict[str, WeakSet[OpenFile]] = defaultdict(WeakSet)

    class SftpSession(asyncssh.SFTPServer):
        """One client's view; every method of its base that would act on the real disk is replaced."""

        def __init__(self, chan: "asyncssh.SSHServerChannel[bytes]") -> None:
            super().__init__(chan)
            self._channel = chan
            self._user = str(chan.get_extra_info("username"))
            self._found: FileDrop | None = None
            self._open = 0

        @property
        def _drop(self) -> FileDrop:
            state = find(self._user)
            if state is None:
                raise OSError(errno.EIO, GONE)
            if self._found is None or self._found.state is not state:
                self._found = FileDrop(state)
            return self._found

        def format_user(self, uid: int | None) -> str:  # noqa: ARG002
            return OWNER

        def format_group(self, gid: int | None) -> str:  # noqa: ARG002
            return OWNER

        async def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> OpenFile:  # noqa: ARG002
            if self._open >= MAX_OPEN:
                raise OSError(errno.EMFILE, f"{MAX_OPEN} files are open at once at most")
            key, writes = _key(path), bool(pflags & (asyncssh.FXF_WRITE | asyncssh.FXF_APPEND))
            # A client may request many at once, and each waits for the disk.
            self._open += 1
            try:
                content = await _in_thread(
                    self._drop.content,
                    key,
                    creates=writes and bool(pflags & asyncssh.FXF_CREAT),
                    exclusive=bool(pflags & asyncssh.FXF_EXCL),
                )
                return OpenFile(
                    key,
                    None if writes and pflags & asyncssh.FXF_TRUNC else content,
                    reads=bool(pflags & asyncssh.FXF_READ),
                    writes=writes,
                    appends=bool(pflags & asyncssh.FXF_APPEND),
                    beside=opened_by[self._user],
                )
            except BaseException:
                self._open -= 1
                raise

        async def close(self, file_obj: object) -> None:
            opened = _as_open_file(file_obj)
            self._open -= 1
            try:
                if opened.changed:
                    opened.changed = False
                    await _in_thread(self._drop.put, opened.key, bytes(opened.content))
            finally:
                opened.release()

        def read(self, file_obj: object, offset: int, size: int) -> bytes:
            return _as_open_file(file_obj).read(offset, size)

        def write(self, file_obj: object, offset: int, data: bytes) -> int:
            return _as_open_file(file_obj).write(offset, data)

        async def stat(self, path: bytes) -> asyncssh.SFTPAttrs:
            found = await _in_thread(self._drop.find, _key(path))
            return _attrs(None if found is None else found.facts)

        lstat = stat

        def fstat(self, file_obj: object) -> asyncssh.SFTPAttrs:
            return asyncssh.SFTPAttrs(size=len(_as_open_file(file_obj).content), permissions=stat.S_IFREG | 0o600)

        async def setstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
            found = await _in_thread(self._drop.find, _key(path))
            # Owner, permissions and times of a file are not kept here.
            if attrs.size is not None:
                if found is None:
                    raise IsADirectoryError(errno.EISDIR, "this is a directory")
                beside = opened_by[self._user]
                opened = OpenFile(found.key, found.content(), reads=False, writes=True, appends=False, beside=beside)
                try:
                    opened.resize(attrs.size)
                    await _in_thread(self._drop.put, opened.key, bytes(opened.content))
                finally:
                    opened.release()

        lsetstat = setstat

        def fsetstat(self, file_obj: object, attrs: asyncssh.SFTPAttrs) -> None:
            if attrs.size is not None:
                _as_open_file(file_obj).resize(attrs.size)

        async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
            found = await _in_thread(self._drop.listing, _key(path))
            for name, one in {".": None, "..": None, **found}.items():
                yield asyncssh.SFTPName(name.encode(), attrs=_attrs(one))

        async def remove(self, path: bytes) -> None:
            await _in_thread(self._drop.remove, _key(path))

        async def mkdir(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:  # noqa: ARG002
            await _in_thread(self._drop.make_directory, _key(path))

        async def rmdir(self, path: bytes) -> None:
            await _in_thread(self._drop.remove_directory, _key(path))

        def realpath(self, path: bytes) -> bytes:
            return b"/" + _key(path).encode()

        async def rename(self, oldpath: bytes, newpath: bytes) -> None:
            await _in_thread(self._drop.rename, _key(oldpath), _key(newpath), replaces=False)

        async def posix_rename(self, oldpath: bytes, newpath: bytes) -> None:
            await _in_thread(self._drop.rename, _key(oldpath), _key(newpath), replaces=True)

        def fsync(self, file_obj: object) -> None: ...

        def exit(self) -> None:
            # Without an exit status, OpenSSH's scp reports a failure.
            self._channel.exit(0)

        def _refuse_operation(self, *given: object, **named: object) -> NoReturn:  # noqa: ARG002 - whatever is asked
            raise asyncssh.SFTPOpUnsupported("there are no links, locks or volumes here")

        open56 = readlink = symlink = link = lock = unlock = statvfs = fstatvfs = _refuse_operation

    return SftpSession


async def _in_thread(what: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T:
    try:
        return await asyncio.to_thread(what, *given, **named)
    except PlaygroundFull as full:
        raise OSError(errno.ENOSPC, str(full)) from None
    except MeruitError:
        raise OSError(errno.EIO, GONE) from None


def _key(path: bytes) -> str:
    try:
        return key_of(path.decode())
    except UnicodeDecodeError:
        raise OSError(errno.EINVAL, "a path is UTF-8") from None


def _as_open_file(file_obj: object) -> OpenFile:
    # asyncssh returns what `open` gave it.
    assert isinstance(file_obj, OpenFile)  # noqa: S101
    return file_obj


# Any: facts are JSON.
def _attrs(found: Mapping[str, Any] | None) -> "asyncssh.SFTPAttrs":
    import asyncssh

    if found is None:
        return asyncssh.SFTPAttrs(permissions=stat.S_IFDIR | 0o700, size=0)
    touched = int(datetime.fromisoformat(str(found["modified"])).timestamp())
    return asyncssh.SFTPAttrs(permissions=stat.S_IFREG | 0o600, size=found["size"], atime=touched, mtime=touched)
