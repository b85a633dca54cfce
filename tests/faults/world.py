"""What hostile code must not touch, and whether it did: files, sockets, signals, processes, secrets."""

import contextlib
import os
import resource
import secrets
import shutil
import signal
import socket
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

USUAL_PLACES = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), Path("/run"), Path("/"))
SECRET_LETTERS = 24
WINDOW_BYTES = 6
"""So many bytes of a secret in a row are no chance."""
TOKEN_NAME = "MERUIT_FAULT_TOKEN"  # the name of a variable, not its value
CHILDREN_ARE_TOLD = Path("/proc/thread-self/children").exists()
"""Not every kernel is built to."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGURG, signal.SIGUSR1, signal.SIGIO, signal.SIGALRM)


def random_text(letters: int = SECRET_LETTERS) -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(letters))


def marked() -> str:
    """A secret of the environment, with a mark in it by which code that searches memory would know it."""
    secret = random_text()
    return f"{secret}mark{random_text(8)}-{secret}"


def _token() -> tuple[str, str]:
    """The secret that this process was started with, and its mark."""
    token = os.environ[TOKEN_NAME]
    return token[:SECRET_LETTERS], token[SECRET_LETTERS:-SECRET_LETTERS]


class Process(NamedTuple):
    """One line of the census."""

    pid: int
    parent: int
    state: str
    name: str
    born: int
    """When it started: two processes may have the same number, but not both."""


def census() -> dict[int, Process]:
    """Every process that lives now."""
    found = {}
    # Taken dozens of times a second: paths and buffers would be most of its cost.
    for number in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{number}/stat", "rb", buffering=0) as file:  # noqa: PTH123
            head, _, tail = file.read().decode(errors="replace").rpartition(")")
            fields = tail.split()
            name = head.partition("(")[2]
            found[int(number)] = Process(int(number), int(fields[1]), fields[0], name, int(fields[19]))
    return found


def descendants(root: int, *, zombies: bool = False) -> list[Process]:
    """Who descends from a process, itself not among them."""
    everyone = census()
    below: dict[int, list[Process]] = {}
    for process in everyone.values():
        below.setdefault(process.parent, []).append(process)
    found, stack = [], [root]
    while stack:
        for process in below.get(stack.pop(), ()):
            stack.append(process.pid)
            if zombies or process.state != "Z":
                found.append(process)
    return found


def below(root: int) -> Iterator[int]:
    """Who descends from a process, as its threads tell: far cheaper, but one may be missed while another ends."""
    if not CHILDREN_ARE_TOLD:
        yield from (process.pid for process in descendants(root))
        return
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{root}/task"):  # noqa: PTH208
            with contextlib.suppress(OSError), open(f"/proc/{root}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123
                for child in map(int, file.read().split()):
                    yield child
                    yield from below(child)


def resident_mb(pid: int) -> float:
    """The memory of a process that is really there; 0 when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    return 0.0


def run_ns(pid: int) -> int:
    """How long the threads of a process have run."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:  # noqa: PTH123
                total += int(file.read().split()[0])
    return total


class Doors:
    """Listeners on loopback that count who comes."""

    def __init__(self, home: Path) -> None:
        self.touched: list[str] = []
        self.unix, self.unix_datagram = home / "stream", home / "datagram"
        self.abstract = f"meruit-fault-{random_text()}"
        self._tcp = self._listening(socket.AF_INET, ("127.0.0.1", 0), "tcp")
        self._listening(socket.AF_UNIX, str(self.unix), "unix stream")
        self._listening(socket.AF_UNIX, f"\0{self.abstract}", "abstract unix")
        self._udp = self._receiving(socket.AF_INET, ("127.0.0.1", 0), "udp")
        self._receiving(socket.AF_UNIX, str(self.unix_datagram), "unix datagram")
        for path in (self.unix, self.unix_datagram):
            path.chmod(0o777)
        self.tcp, self.udp = self._tcp.getsockname()[1], self._udp.getsockname()[1]

    def inheritable_connection(self) -> socket.socket:
        """A connection to our own door that a careless parent would leave to its children."""
        connection = socket.create_connection(("127.0.0.1", self.tcp))
        connection.set_inheritable(True)
        while not self.touched:
            time.sleep(0.001)
        self.touched.clear()
        return connection

    def _listening(self, family: int, address: Any, name: str) -> socket.socket:
        door = socket.socket(family, socket.SOCK_STREAM)
        door.bind(address)
        door.listen(64)
        threading.Thread(target=self._accept, args=(door, name), daemon=True).start()
        return door

    def _receiving(self, family: int, address: Any, name: str) -> socket.socket:
        door = socket.socket(family, socket.SOCK_DGRAM)
        door.bind(address)
        threading.Thread(target=self._receive, args=(door, name), daemon=True).start()
        return door

    def _accept(self, door: socket.socket, name: str) -> None:
        while True:
            guest, _ = door.accept()
            self.touched.append(f"{name} was connected to")
            threading.Thread(target=self._receive, args=(guest, name), daemon=True).start()

    def _receive(self, guest: socket.socket, name: str) -> None:
        while received := guest.recv(4096):
            self.touched.append(f"{name} received {len(received)} bytes")


class World:
    """Everything a snippet may aim at. `broken()` says what was hit since the last time it was asked."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="faults-"))
        self.home.chmod(0o755)
        self.secrets = {name: random_text() for name in ("canary", "stdin", "planted")}
        self.secrets["token"], self.mark = _token()
        self.name = f"meruit-fault-{random_text(8)}"
        self.folder = self._open_folder("watched")
        self._held = self._open_folder("held")
        self.canary = self._file(self.home / "canary", self._told("canary"))
        self.ledger = self._file(self._held / "ledger", "untouched")
        self.ledger.chmod(0o666)
        planted = self._open_folder("planted")
        self.planted = self._file(planted / f"planted{random_text(8)}.py", f"SECRET = {self._told('planted')!r}\n")
        self.doors = Doors(self.home)
        self.signals: list[int] = []
        for number in SIGNALS:
            signal.signal(number, lambda got, _frame: self.signals.append(got))
        self.decoy = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
        self._careless()
        self._silent()
        os.chdir(self._open_folder("here"))
        os.umask(0o022)
        self._self = _own_state()
        self._files = self._file_states()

    def targets(self) -> dict[str, Any]:
        """What a snippet is told in `input`: addresses only, never a secret."""
        return {
            "canary": str(self.canary),
            "folder": str(self.folder),
            "ledger": str(self.ledger),
            "planted": str(self.planted.parent),
            "module": self.planted.stem,
            "name": self.name,
            "mark": self.mark,
            "token": TOKEN_NAME,
            "tcp": self.doors.tcp,
            "udp": self.doors.udp,
            "unix": str(self.doors.unix),
            "unix_datagram": str(self.doors.unix_datagram),
            "abstract": self.doors.abstract,
            "parent": os.getpid(),
            "decoy": self.decoy.pid,
        }

    def broken(self) -> list[str]:
        """What hostile code has reached."""
        return [
            *self._broken_files(),
            *self._taken(self.doors.touched),
            *(f"signal {number} reached the host" for number in self._taken(self.signals)),
            *(["the decoy was killed"] if self.decoy.poll() is not None else []),
            *(["the host itself was changed"] if _own_state() != self._self else []),
            *self._heard(),
        ]

    def leaked(self, text: str, numbers: list[float]) -> list[str]:
        """Secrets that stand in an answer, as text or as the number of their bytes."""
        found = []
        for name, secret in self.secrets.items():
            windows = [secret[at : at + WINDOW_BYTES] for at in range(len(secret) - WINDOW_BYTES + 1)]
            as_numbers = {float(int.from_bytes(w.encode(), order)) for w in windows for order in ("big", "little")}
            if any(window in text for window in windows) or any(float(number) in as_numbers for number in numbers):
                found.append(f"the {name} secret is in the answer")
        return found

    def close(self) -> None:
        self.decoy.kill()
        self.decoy.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _told(self, name: str) -> str:
        return self.secrets[name] + self.mark + self.secrets[name]

    def _open_folder(self, name: str) -> Path:
        folder = self.home / name
        folder.mkdir()
        folder.chmod(0o777)
        return folder

    def _file(self, path: Path, text: str) -> Path:
        path.write_text(text)
        path.chmod(0o644)
        return path

    def _careless(self) -> None:
        """Descriptors that a good sandbox does not hand down."""
        self._open = [os.open(self.canary, os.O_RDONLY), os.open(self.ledger, os.O_RDWR), os.open("/", os.O_RDONLY)]
        for descriptor in self._open:
            os.set_inheritable(descriptor, True)
        self._connection = self.doors.inheritable_connection()

    def _silent(self) -> None:
        """From here on whatever is printed is printed by someone else; a secret waits on stdin."""
        stdin = self._file(self.home / "stdin", self._told("stdin"))
        os.dup2(os.open(stdin, os.O_RDONLY), 0)
        self._printed = self._file(self.home / "printed", "")
        printed = os.open(self._printed, os.O_WRONLY | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(printed, descriptor)

    def _heard(self) -> list[str]:
        text = self._printed.read_text(errors="replace")
        if text:
            os.truncate(self._printed, 0)
        return [f"printed on the host's streams: {text[:200]!r}"] if text else []

    def _broken_files(self) -> Iterator[str]:
        for folder in (self.folder, Path()):
            for path in sorted(folder.iterdir()):
                yield f"{path.name} was written"
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for place in USUAL_PLACES:
            if (place / self.name).exists() or (place / f"sem.{self.name}").exists():
                yield f"a file was left in {place}"
                for name in (self.name, f"sem.{self.name}"):
                    (place / name).unlink(missing_ok=True)
        states = self._file_states()
        if states != self._files:
            yield f"a file was changed: {states} was {self._files}"
            self._files = states

    def _file_states(self) -> list[Any]:
        def state(path: Path) -> Any:
            if not path.exists():
                return "gone"
            found = path.stat()
            return (*found[:7], found.st_mtime_ns, path.read_bytes())

        return [sorted(self._held.iterdir()), *(state(path) for path in (self.canary, self.ledger, self.planted))]

    def _taken(self, kept: list[Any]) -> list[Any]:
        taken = kept[:]
        kept.clear()
        return taken


def _own_state() -> tuple[Any, ...]:
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    comm, oom = (Path("/proc/self", name).read_text() for name in ("comm", "oom_score_adj"))
    return limits, os.nice(0), os.sched_getaffinity(0), os.sched_getscheduler(0), os.umask(0o022), comm, oom, sys.path
