"""The kernel's limits that a process puts on itself: system calls, files, memory, user.

Standard library only, because it runs in workers that load nothing else of ours. Each limit either takes effect or
raises `ConfinementError`; no worker runs with only some of them.
"""

import ctypes
import functools
import os
import platform
import resource
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meruit.errors import ConfinementError


class Machine(NamedTuple):
    """A processor's names for system calls."""

    arch: int
    """What the kernel calls it in a filter."""
    column: int
    """Its column in the table below."""


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1), "arm64": Machine(0xC00000B7, 1)}

# fmt: off
SYSCALLS: Mapping[str, tuple[int | None, int | None]] = {
    # name: (x86-64, arm64); None where the processor has no such call
    "access": (21, None), "arch_prctl": (158, None), "brk": (12, 214), "clock_getres": (229, 114),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "clone": (56, 220), "clone3": (435, 435),
    "close": (3, 57), "execve": (59, 221), "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94),
    "faccessat": (269, 48), "fstat": (5, 80), "futex": (202, 98), "getpid": (39, 172), "getrandom": (318, 278),
    "getrusage": (98, 165), "gettid": (186, 178), "gettimeofday": (96, 169), "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446), "lseek": (8, 62),
    "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "munmap": (11, 215), "nanosleep": (35, 101), "newfstatat": (262, 79), "openat": (257, 56), "poll": (7, None),
    "ppoll": (271, 73), "prctl": (157, 167), "pread64": (17, 67), "prlimit64": (302, 261), "read": (0, 63),
    "readv": (19, 65), "restart_syscall": (219, 128), "rseq": (334, 293), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124), "seccomp": (317, 277), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "sigaltstack": (131, 132), "statx": (332, 291), "time": (201, None), "times": (100, 153), "write": (1, 64),
    "writev": (20, 66), "capset": (126, 91),
}
# fmt: on


class ArgumentEquals(NamedTuple):
    """An argument must have exactly this value."""

    argument: int
    value: int


class ArgumentEqualsInt32(NamedTuple):
    """An argument of 32 bits must have exactly this value; the kernel does not look at the rest of the register."""

    argument: int
    value: int


class ArgumentLacksBits(NamedTuple):
    """An argument must have none of these bits."""

    argument: int
    bits: int


class ArgumentHasBit(NamedTuple):
    """An argument must have all of these bits; one bit at a time."""

    argument: int
    bit: int


Condition = ArgumentEquals | ArgumentEqualsInt32 | ArgumentLacksBits | ArgumentHasBit
EPERM, ENOSYS = 1, 38
_PROT_EXEC, _MAP_ANONYMOUS, _CLONE_THREAD = 0x4, 0x20, 0x10000
_PR_SET_NAME, _PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 15, 1, 4, 38
_SIGKILL = 9

Policy = Mapping[str, tuple[tuple[Condition, ...], ...]]
"""The calls that are allowed, each under any of its sets of conditions; none is named that is not."""

# Wait and wake, private or shared, with a bit set or without; none that asks who holds a lock.
_WAITING = (0, 1, 9, 10, 128, 129, 137, 138, 265, 393)
_OF_ANOTHER = 0x80000000
"""Begins the name of a clock that belongs to some other process."""

COMPUTING: Policy = {
    **dict.fromkeys(("brk", "munmap", "mremap", "madvise", "sched_yield", "close"), ((),)),
    **dict.fromkeys(("rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group"), ((),)),
    **dict.fromkeys(("nanosleep", "gettimeofday", "time", "times", "getpid", "gettid", "getrusage"), ((),)),
    **dict.fromkeys(("clock_gettime", "clock_getres", "clock_nanosleep"), ((ArgumentLacksBits(0, _OF_ANOTHER),),)),
    "futex": tuple((ArgumentEqualsInt32(1, operation),) for operation in _WAITING),
    "sched_getaffinity": ((ArgumentEqualsInt32(0, 0),),),
}
"""What any computation needs of a kernel, and what can neither harm nor see anyone else."""

REFUSALS = {"sched_getaffinity": ENOSYS}
"""Calls that are refused with another error than EPERM.

The C library asks for the processors of a thread when it is asked for the stack of that thread. It answers only if this
call works or does not exist. Without the answer, the interpreter takes 1 MiB of new stack for each script it parses.
"""


def jail_policy(channel: int) -> Policy:
    """For CPython that runs a stranger's code: it computes, and speaks on one descriptor. No open, no new process."""
    return {
        **COMPUTING,
        "read": ((ArgumentEqualsInt32(0, channel),),),
        "write": ((ArgumentEqualsInt32(0, channel),),),
        "mmap": ((ArgumentLacksBits(2, _PROT_EXEC),),),
        "mprotect": ((ArgumentLacksBits(2, _PROT_EXEC),),),
    }


def interpreter_policy() -> Policy:
    """For the interpreter's worker, which is yet to be executed and loaded; Landlock says which files it may open."""
    return {
        **COMPUTING,
        **dict.fromkeys(("read", "readv", "write", "writev", "pread64", "lseek", "poll", "ppoll"), ((),)),
        **dict.fromkeys(("openat", "newfstatat", "fstat", "statx", "access", "faccessat"), ((),)),
        **dict.fromkeys(("getrandom", "set_robust_list", "set_tid_address", "rseq", "arch_prctl"), ((),)),
        **dict.fromkeys(("rt_sigaction", "execve", "execveat"), ((),)),
        # Libraries are mapped from files; pages made up by the worker itself never become code.
        "mmap": ((ArgumentLacksBits(2, _PROT_EXEC),), (ArgumentLacksBits(3, _MAP_ANONYMOUS),)),
        "mprotect": ((ArgumentLacksBits(2, _PROT_EXEC),),),
        "clone": ((ArgumentHasBit(0, _CLONE_THREAD),),),
        "prlimit64": ((ArgumentEquals(2, 0),),),
        "prctl": ((ArgumentEqualsInt32(0, _PR_SET_NAME),),),
    }


@functools.cache
def machine() -> Machine:
    """The processor we run on; raises where no table is known for it."""
    found = MACHINES.get(platform.machine())
    if found is None or platform.system() != "Linux":
        raise ConfinementError(
            f"no walls are known for {platform.system()} on {platform.machine()}; Linux on x86-64 or arm64"
        )
    return found


# The classic BPF of seccomp: load a word, jump, return.
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
"""Calls of a second, forgotten ABI of x86-64 have this bit."""

Instruction = tuple[int, int, int, int]


def compile_filter(policy: Policy, on: Machine) -> list[Instruction]:
    """The policy as a program: what it names is allowed, anything else is refused, another ABI ends the process."""
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_IF_EQUAL, 1, 0, on.arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if on.column == 0:
        program += [(_JUMP_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    # The C library falls back to `clone`, whose flags a filter can read.
    program += _on_syscall(SYSCALLS["clone3"][on.column], [(_RETURN, 0, 0, _ERRNO | ENOSYS)])
    for name, ways in policy.items():
        body: list[Instruction] = []
        for conditions in ways:
            body += _compile_conditions(conditions)
        if () not in ways:
            body.append((_RETURN, 0, 0, _ERRNO | REFUSALS.get(name, EPERM)))
        program += _on_syscall(SYSCALLS[name][on.column], body)
    return [*program, (_RETURN, 0, 0, _ERRNO | EPERM)]


def _on_syscall(number: int | None, body: list[Instruction]) -> list[Instruction]:
    return [] if number is None else [(_JUMP_IF_EQUAL, 0, len(body), number), *body]


def _compile_conditions(conditions: tuple[Condition, ...]) -> list[Instruction]:
    """Allow when all conditions hold, else fall through to what follows."""
    program: list[Instruction] = [(_RETURN, 0, 0, _ALLOW)]
    for condition in reversed(conditions):
        low = _ARGUMENTS + 8 * condition.argument
        past = len(program)
        test: list[Instruction]
        match condition:
            case ArgumentEquals(_, value):
                test = [
                    (_LOAD, 0, 0, low + 4),
                    (_JUMP_IF_EQUAL, 0, past + 2, value >> 32),
                    (_LOAD, 0, 0, low),
                    (_JUMP_IF_EQUAL, 0, past, value & 0xFFFFFFFF),
                ]
            case ArgumentEqualsInt32(_, value):
                test = [(_LOAD, 0, 0, low), (_JUMP_IF_EQUAL, 0, past, value)]
            case ArgumentLacksBits(_, bits):
                test = [(_LOAD, 0, 0, low), (_JUMP_IF_ANY_BIT, past, 0, bits)]
            case ArgumentHasBit(_, bit):
                test = [(_LOAD, 0, 0, low), (_JUMP_IF_ANY_BIT, 0, past, bit)]
        program = [*test, *program]
    return program


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    """A system call by name; Unconfined when the kernel refuses it."""
    number = SYSCALLS[name][machine().column]
    if number is None:
        raise ConfinementError(f"this processor has no call {name}")
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise ConfinementError(f"the kernel refuses {name}: {os.strerror(ctypes.get_errno())}")
    return result


def no_new_privileges() -> None:
    """Stop executed programs from gaining rights; the two limits below require it."""
    _call("prctl", ctypes.c_long(_PR_SET_NO_NEW_PRIVS), ctypes.c_long(1), *(ctypes.c_long(0),) * 3)


class SyscallFilter:
    """A policy compiled for this machine, ready to be put into force."""

    def __init__(self, policy: Policy) -> None:
        program = b"".join(struct.pack("=HBBI", *instruction) for instruction in compile_filter(policy, machine()))
        self._kept = ctypes.create_string_buffer(program, len(program))
        self._given = _Program(len(program) // 8, ctypes.addressof(self._kept))

    def enforce(self) -> None:
        """Allow only the policy's system calls, for this process and the programs it executes; cannot be undone."""
        _call("seccomp", ctypes.c_long(1), ctypes.c_long(0), ctypes.byref(self._given))


# Landlock's rights, by the version that brought them.
_EXECUTE, _READ_FILE = 1 << 0, 1 << 2
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_RIGHTS = {4: 0b11}
_SCOPES = {6: 0b11}


def landlock_version() -> int:
    """Which Landlock the kernel has; 0 for none."""
    try:
        return _call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except ConfinementError:
        return 0


def limit_files(readable: Iterable[str] = (), executable: Iterable[str | int] = ()) -> None:
    """Allow only the named files: no TCP, no signals or abstract sockets to others, as far as the kernel can."""
    version = landlock_version()
    if version == 0:
        raise ConfinementError(
            "the kernel has no Landlock (5.13 or later, and enabled), which keeps files out of reach"
        )
    handled = [_newest(rights, version) for rights in (_FILE_RIGHTS, _NETWORK_RIGHTS, _SCOPES)]
    attributes = struct.pack("=QQQ", *handled)
    # An older kernel refuses a longer description than it knows.
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call(
        "landlock_create_ruleset", ctypes.create_string_buffer(attributes), ctypes.c_size_t(size), ctypes.c_uint(0)
    )
    try:
        for path in readable:
            _allow_path(ruleset, path, _READ_FILE)
        for target in executable:
            _allow_path(ruleset, target, _READ_FILE | _EXECUTE)
        _call("landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _newest(rights: Mapping[int, int], version: int) -> int:
    return max((bits for since, bits in rights.items() if since <= version), default=0)


def _allow_path(ruleset: int, target: str | int, rights: int) -> None:
    if isinstance(target, int):
        descriptor, ours = target, False
    else:
        try:
            descriptor, ours = os.open(target, os.O_PATH | os.O_CLOEXEC), True
        except OSError:
            # A file that does not exist needs no rule.
            return
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        _call("landlock_add_rule", ctypes.c_int(ruleset), ctypes.c_int(1), ctypes.create_string_buffer(rule), 0)
    finally:
        if ours:
            os.close(descriptor)


NOBODY = 65_534
"""The user id of workers whose host is root."""


def become_nobody() -> bool:
    """Give up root for good; False where this process was not root to begin with.

    In a container that has only one user, the process stays root but drops every capability of root.
    """
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
        _call("capset", header, ctypes.create_string_buffer(bytes(24)))
        return False
    return True


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _call("prctl", ctypes.c_long(_PR_SET_PDEATHSIG), ctypes.c_long(_SIGKILL), *(ctypes.c_long(0),) * 3)
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Forbid core dumps, and reading of this process by other processes of the same user."""
    _call("prctl", ctypes.c_long(_PR_SET_DUMPABLE), ctypes.c_long(0), *(ctypes.c_long(0),) * 3)


def limit_resources(**limits: int) -> None:
    """Lower resource limits for good, by the kernel's names: `AS=…`, `CPU=…`."""
    set_limits(lowest_limits(**limits))


Limits = tuple[tuple[int, tuple[int, int]], ...]
"""The kernel's number of each resource, with its limits."""


def lowest_limits(**limits: int) -> Limits:
    """Limits by the kernel's names, for this process and its children; a lower one that was set before stays."""
    found = []
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(kind)[1]
        lowest = limit if ceiling == resource.RLIM_INFINITY else min(limit, ceiling)
        found.append((kind, (lowest, lowest)))
    return tuple(found)


def set_limits(limits: Limits) -> None:
    """Put limits into force; they cannot be raised again."""
    for kind, both in limits:
        resource.setrlimit(kind, both)


def address_space_now() -> int:
    """How much address space this process has taken already, in bytes."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib would be imported into the jail
        return int(file.read().split()[0]) * resource.getpagesize()
