"""Each wall by what the kernel refuses once it stands; every try is made by a process of its own."""

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meruit.errors import ConfinementError
from meruit.sandbox import confine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

PATIENCE_S = 60
BEFORE = """
import ctypes, errno, json, os, resource, signal, socket, sys
from meruit.sandbox import confine
libc = ctypes.CDLL(None, use_errno=True)
found = {}

def tried(name, deed):
    try:
        deed()
    except OSError as refused:
        found[name] = errno.errorcode[refused.errno]
    except MemoryError:
        found[name] = "MemoryError"
    else:
        found[name] = "done"

def called(name, number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    found[name] = "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def tell():
    os.write(1, json.dumps(found).encode())
"""


def started(script: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-c", BEFORE + script, *arguments],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def told(script: str, *arguments: str) -> dict[str, Any]:
    """What a process found out behind its walls; skips where the kernel has none to offer."""
    done = started(script, *arguments)
    if b"ConfinementError" in done.stderr:
        pytest.skip(done.stderr.decode().splitlines()[-1])
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# System calls.

SEALED = """
confine.no_new_privileges()
confine.SyscallFilter(confine.jail_policy(1)).enforce()
"""


def test_a_sealed_process_computes_and_speaks_on_one_descriptor() -> None:
    found = told(
        """
seal = confine.SyscallFilter(confine.jail_policy(1))
end, other = os.pipe()
import mmap
confine.no_new_privileges()
seal.enforce()
tried("compute", lambda: sorted(str(number) for number in range(20_000)))
tried("memory", lambda: bytearray(50_000_000))
tried("open", lambda: os.open("/dev/null", os.O_RDONLY))
tried("write elsewhere", lambda: os.write(other, b"x"))
tried("read elsewhere", lambda: os.read(0, 1))
tried("socket", lambda: socket.socket())
tried("fork", lambda: os.fork())
tried("exec", lambda: os.execv("/bin/true", ["true"]))
tried("kill", lambda: os.kill(os.getppid(), 0))
tried("pipe", lambda: os.pipe())
tried("dup", lambda: os.dup(1))
tried("stat", lambda: os.stat("/"))
tried("limits", lambda: libc.prlimit)
tried("code", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC))
tried("data", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE))
called("clone3", 435, ctypes.c_void_p(0), ctypes.c_size_t(0))
called("unnamed", 1000)
tell()
os._exit(0)
"""
    )
    assert [name for name, end in found.items() if end == "done"] == ["compute", "memory", "limits", "data"]
    assert found.pop("clone3") == "ENOSYS"
    assert {end for end in found.values() if end != "done"} == {"EPERM"}


def test_a_limit_on_calls_has_no_way_back() -> None:
    found = told(
        f"""
wider = confine.SyscallFilter(confine.interpreter_policy())
{SEALED}
try:
    wider.enforce()
except confine.ConfinementError as refused:
    found["wider"] = str(refused).partition(": ")[2]
tried("open", lambda: os.open("/dev/null", os.O_RDONLY))
tell()
os._exit(0)
"""
    )
    assert found == {"wider": "Operation not permitted", "open": "EPERM"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a second ABI of x86-64")
def test_the_forgotten_abi_ends_the_process() -> None:
    done = started(f"{SEALED}\nlibc.syscall(ctypes.c_long(0x40000000 + 39))\nos._exit(0)")
    assert done.returncode == -signal.SIGSYS


@pytest.mark.skipif(platform.machine() != "x86_64", reason="another ABI of x86-64")
def test_the_abi_of_32_bits_ends_the_process() -> None:
    # mov eax, 20 (getpid, for 32 bits); int 0x80; ret
    ready = """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
old = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
"""
    if started(f"{ready}\nos._exit(0 if old() == os.getpid() else 1)").returncode != 0:
        pytest.skip("this kernel does not run 32 bits at all")
    assert started(f"{ready}\n{SEALED}\nold()\nos._exit(0)").returncode == -signal.SIGSYS


# Files.

FENCED = """
readable, other, program = sys.argv[1:4]
confine.no_new_privileges()
confine.limit_files([readable, readable + ".absent"], [program])
"""


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str, str]:
    """A file that may be read, another one beside it, and a program."""
    named, other = tmp_path / "named", tmp_path / "other"
    named.write_text("named")
    other.write_text("other")
    return str(named), str(other), os.path.realpath("/bin/true")


def test_only_named_files_are_in_reach(places: tuple[str, str, str]) -> None:
    found = told(
        f"""
{FENCED}
tried("read named", lambda: os.read(os.open(readable, os.O_RDONLY), 9))
tried("write named", lambda: os.open(readable, os.O_WRONLY))
tried("read other", lambda: os.open(other, os.O_RDONLY))
tried("read system", lambda: os.open("/etc/passwd", os.O_RDONLY))
tried("list", lambda: os.listdir("/"))
tried("remove", lambda: os.unlink(other))
tried("make", lambda: os.mkdir(other + ".folder"))
tried("read program", lambda: os.open(program, os.O_RDONLY))
tried("start named", lambda: os.execv(readable, ["named"]))
tell()
os._exit(0)
""",
        *places,
    )
    assert {name for name, end in found.items() if end == "done"} == {"read named", "read program"}
    assert {end for end in found.values() if end != "done"} == {"EACCES"}
    assert Path(places[1]).read_text() == "other"


def test_a_descriptor_names_a_program_as_well_as_a_path_does(tmp_path: Path) -> None:
    found = told(
        """
descriptor = os.open(sys.argv[1], os.O_RDONLY)
confine.no_new_privileges()
confine.limit_files((), [descriptor])
tried("by path", lambda: os.open(sys.argv[1], os.O_RDONLY))
tried("still open", lambda: os.fstat(descriptor))
tried("neighbour", lambda: os.open(sys.argv[2], os.O_RDONLY))
tell()
os._exit(0)
""",
        os.path.realpath("/bin/true"),
        os.path.realpath("/bin/sh"),
    )
    assert found == {"by path": "done", "still open": "done", "neighbour": "EACCES"}


@pytest.mark.skipif(sys.platform != "linux" or confine.landlock_version() < 4, reason="no TCP in this Landlock")
def test_no_tcp_goes_out_or_comes_in() -> None:
    found = told(
        """
server = socket.create_server(("127.0.0.1", 0))
tried("before", lambda: socket.create_connection(server.getsockname()[:2]).close())
confine.no_new_privileges()
confine.limit_files()
tried("connect", lambda: socket.create_connection(server.getsockname()[:2]))
tried("bind", lambda: socket.create_server(("127.0.0.1", 0)))
tell()
os._exit(0)
"""
    )
    assert found == {"before": "done", "connect": "EACCES", "bind": "EACCES"}


@pytest.mark.skipif(sys.platform != "linux" or confine.landlock_version() < 6, reason="no scopes in this Landlock")
def test_no_signal_reaches_the_parent() -> None:
    found = told(
        """
tried("before", lambda: os.kill(os.getppid(), 0))
confine.no_new_privileges()
confine.limit_files()
tried("after", lambda: os.kill(os.getppid(), 0))
tell()
os._exit(0)
"""
    )
    assert found == {"before": "done", "after": "EPERM"}


def test_without_giving_up_privileges_an_ordinary_user_gets_no_wall() -> None:
    script = """
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
for name, wall in (("files", confine.limit_files), ("calls", confine.SyscallFilter(confine.jail_policy(1)).enforce)):
    try:
        wall()
    except confine.ConfinementError as refused:
        found[name] = str(refused).partition(":")[0]
tell()
"""
    done = started(script)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["calls"].endswith("seccomp")


# What may be used.


def test_resources_end_where_the_limit_is(tmp_path: Path) -> None:
    found = told(
        """
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
confine.limit_resources(AS=confine.address_space_now() + 64 * 2**20, FSIZE=0, NOFILE=file + 1, CORE=0)
tried("half", lambda: bytearray(32 * 2**20))
tried("twice", lambda: bytearray(128 * 2**20))
tried("write", lambda: os.write(file, b"x"))
tried("one more file", lambda: os.open("/dev/null", os.O_RDONLY))
found["hard"] = resource.getrlimit(resource.RLIMIT_CORE)
tell()
""",
        str(tmp_path / "file"),
    )
    assert found == {
        "half": "done",
        "twice": "MemoryError",
        "write": "EFBIG",
        "one more file": "EMFILE",
        "hard": [0, 0],
    }


def test_a_lower_ceiling_that_was_there_stays() -> None:
    found = told(
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
confine.limit_resources(NOFILE=100)
found["kept"] = resource.getrlimit(resource.RLIMIT_NOFILE)
confine.limit_resources(NOFILE=10)
found["lowered"] = resource.getrlimit(resource.RLIMIT_NOFILE)
tell()
"""
    )
    assert found == {"kept": [20, 20], "lowered": [10, 10]}


def test_processor_time_ends(tmp_path: Path) -> None:
    done = started("confine.limit_resources(CPU=1)\nwhile True:\n    pass\n")
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


def test_the_address_space_in_use_is_known() -> None:
    assert 2**20 < confine.address_space_now() < 2**50


# Who it is, and how long.


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_becomes_nobody_for_good(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    found = told(
        """
found["became"] = confine.become_nobody()
found["ids"] = [*os.getresuid(), *os.getresgid()]
found["groups"] = os.getgroups()
tried("read", lambda: os.open(sys.argv[1], os.O_RDONLY))
tried("back", lambda: os.setuid(0))
tell()
""",
        str(secret),
    )
    assert found == {"became": True, "ids": [confine.NOBODY] * 6, "groups": [], "read": "EACCES", "back": "EPERM"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to drop")
def test_root_without_anybody_to_become_drops_its_rights(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0)
    found = told(
        """
def refused(*_):
    raise OSError(errno.EINVAL, "one user only")
os.setgroups = refused
found["became"] = confine.become_nobody()
tried("read", lambda: os.open(sys.argv[1], os.O_RDONLY))
tried("chown", lambda: os.chown(sys.argv[1], 1, 1))
tell()
""",
        str(secret),
    )
    assert found == {"became": False, "read": "EACCES", "chown": "EPERM"}


def test_an_ordinary_user_stays_who_it_is() -> None:
    found = told(
        """
if os.geteuid() == 0:
    os.setresuid(1234, 1234, 1234)
me = os.getresuid()
found["became"] = confine.become_nobody()
found["same"] = os.getresuid() == me
tell()
"""
    )
    assert found == {"became": False, "same": True}


def test_a_worker_dies_with_its_parent() -> None:
    # The output ends when the last process that holds it ends: the child, which would otherwise wait on.
    done = started(
        """
import time
parent = os.getpid()
ready, say = os.pipe()
if os.fork() == 0:
    confine.die_with_parent(parent)
    os.write(say, b"x")
    time.sleep(10 * 60)
os.read(ready, 1)
os.write(1, b"ready")
os.kill(parent, signal.SIGKILL)
"""
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"ready")


def test_an_orphan_does_not_wait_for_its_parent_to_die() -> None:
    done = started("confine.die_with_parent(os.getpid())\nos.write(1, b'still here')")
    assert (done.returncode, done.stdout) == (1, b"")


def test_hidden_memory_is_not_dumped() -> None:
    found = told(
        """
PR_GET_DUMPABLE = 3
found["before"] = libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
confine.hide_memory()
found["after"] = libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
tell()
"""
    )
    assert found == {"before": 1, "after": 0}


# Machines and kernels that are not ours: what would be asked of them.


@pytest.fixture
def unmemorised() -> Any:
    """The machine is looked at anew, before and after."""
    confine.machine.cache_clear()
    yield
    confine.machine.cache_clear()


@pytest.mark.parametrize(("processor", "system"), [("riscv64", "Linux"), ("x86_64", "Darwin"), ("", "")])
@pytest.mark.usefixtures("unmemorised")
def test_an_unknown_machine_has_no_walls(monkeypatch: pytest.MonkeyPatch, processor: str, system: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(platform, "system", lambda: system)
    with pytest.raises(ConfinementError, match=f"{system} on {processor}"):
        confine.SyscallFilter(confine.jail_policy(3))
    assert confine.landlock_version() == 0
    with pytest.raises(ConfinementError, match="no Landlock"):
        confine.limit_files()


@pytest.mark.parametrize(("processor", "column"), [("x86_64", 0), ("aarch64", 1), ("arm64", 1)])
@pytest.mark.usefixtures("unmemorised")
def test_known_machines_have_their_own_column(monkeypatch: pytest.MonkeyPatch, processor: str, column: int) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert confine.machine().column == column
    confine.SyscallFilter(confine.interpreter_policy())


@pytest.mark.usefixtures("unmemorised")
def test_a_call_that_the_processor_lacks_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ConfinementError, match="arch_prctl"):
        confine._call("arch_prctl")


def test_a_refused_call_says_which_and_why() -> None:
    with pytest.raises(ConfinementError, match="landlock_restrict_self: "):
        confine._call("landlock_restrict_self", ctypes.c_int(-1), ctypes.c_uint(0))


def test_a_kernel_without_landlock_has_no_wall_around_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "landlock_version", lambda: 0)
    with pytest.raises(ConfinementError, match=r"no Landlock"):
        confine.limit_files()


class Kernel:
    """Takes down what is asked of it, and agrees."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __call__(self, name: str, *arguments: Any) -> int:
        self.asked.append((name, arguments))
        # A descriptor is expected, and will be closed.
        return os.open(os.devnull, os.O_RDONLY) if name == "landlock_create_ruleset" else 0


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    listening = Kernel()
    monkeypatch.setattr(confine, "_call", listening)
    return listening


@pytest.mark.parametrize(
    ("version", "files", "network", "scopes", "size"),
    [(1, 13, 0, 0, 8), (2, 14, 0, 0, 8), (3, 15, 0, 0, 8), (4, 15, 2, 0, 16), (5, 16, 2, 0, 16), (6, 16, 2, 2, 24)],
)
def test_all_that_a_landlock_knows_is_asked_of_it(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, version: int, files: int, network: int, scopes: int, size: int
) -> None:
    monkeypatch.setattr(confine, "landlock_version", lambda: version)
    confine.limit_files(["/", "/no/such/file"], [os.devnull])
    names = [name for name, _ in kernel.asked]
    assert names == ["landlock_create_ruleset", *["landlock_add_rule"] * 2, "landlock_restrict_self"]
    attributes, length, flags = kernel.asked[0][1]
    assert (length.value, flags.value) == (size, 0)
    rights = [(1 << bits) - 1 for bits in (files, network, scopes)]
    assert struct.unpack("=QQQ", attributes.raw[:24]) == tuple(rights)
    allowed = [struct.unpack_from("=Qi", arguments[2].raw)[0] for _, arguments in kernel.asked[1:3]]
    assert allowed == [0b100, 0b101]


def test_a_newer_landlock_is_asked_for_what_we_know(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    monkeypatch.setattr(confine, "landlock_version", lambda: 99)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        confine.limit_files((), [descriptor])
        os.fstat(descriptor)
    finally:
        os.close(descriptor)
    assert kernel.asked[0][1][1].value == 24


def test_each_wall_is_asked_of_the_kernel_by_name(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    confine.no_new_privileges()
    confine.hide_memory()
    confine.die_with_parent(os.getppid())
    confine.SyscallFilter(confine.jail_policy(3)).enforce()
    asked = [(name, [given.value for given in arguments[:2]]) for name, arguments in kernel.asked]
    assert asked == [("prctl", [38, 1]), ("prctl", [4, 0]), ("prctl", [1, 9]), ("seccomp", [1, 0])]
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    confine.die_with_parent(os.getpid())
    assert left == [1]


@pytest.mark.parametrize("alone", [False, True])
def test_root_gives_up_root_or_at_least_its_rights(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, alone: bool
) -> None:
    done: list[Any] = []

    def became(*ids: Any) -> None:
        if alone:
            raise PermissionError("one user only")
        done.append(ids)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("setgroups", "setresgid", "setresuid"):
        monkeypatch.setattr(os, name, became)
    assert confine.become_nobody() is not alone
    assert [name for name, _ in kernel.asked] == (["capset"] if alone else [])
    assert done == ([] if alone else [([],), (confine.NOBODY,) * 3, (confine.NOBODY,) * 3])


def test_an_ordinary_user_is_left_alone(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert not confine.become_nobody()
    assert kernel.asked == []


def test_limits_are_only_ever_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_CPU: 5, resource.RLIMIT_CORE: 50}
    done: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (0, ceilings[kind]))
    monkeypatch.setattr(resource, "setrlimit", done.__setitem__)
    confine.limit_resources(AS=10, CPU=10, CORE=10)
    assert done == {resource.RLIMIT_AS: (10, 10), resource.RLIMIT_CPU: (5, 5), resource.RLIMIT_CORE: (10, 10)}
