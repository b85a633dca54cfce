"""Policies as the kernel reads them: each filter is run here, instruction by instruction, for both machines."""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.sandbox.confine import (
    COMPUTING,
    MACHINES,
    SYSCALLS,
    ArgumentEquals,
    ArgumentEqualsInt32,
    ArgumentHasBit,
    ArgumentLacksBits,
    Condition,
    Instruction,
    Machine,
    Policy,
    compile_filter,
    interpreter_policy,
    jail_policy,
)

X86, ARM = MACHINES["x86_64"], MACHINES["aarch64"]
BOTH = pytest.mark.parametrize("on", [X86, ARM], ids=["x86-64", "arm64"])
POLICIES = {"jail": jail_policy(3), "interpreter": interpreter_policy()}
ALLOW, KILL, REFUSE, UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
LONGEST_PROGRAM = 4_096
X32 = 0x40000000
WORD, LONG = 2**32, 2**64
Arguments = tuple[int, int, int, int, int, int]


# The kernel's side.


def ruled(program: list[Instruction], number: int, arch: int, arguments: Arguments) -> int:
    """What the kernel would do with the call: classic BPF over the description that seccomp hands it."""
    described = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    loaded, at = 0, 0
    for _ in program:
        operation, if_true, if_false, operand = program[at]
        at += 1
        match operation:
            case 0x20:
                assert operand % 4 == 0
                (loaded,) = struct.unpack_from("<I", described, operand)
            case 0x15:
                at += if_true if loaded == operand else if_false
            case 0x35:
                at += if_true if loaded >= operand else if_false
            case 0x45:
                at += if_true if loaded & operand else if_false
            case 0x06:
                return operand
            case _:
                raise AssertionError(f"an instruction that seccomp does not know: {operation:#x}")
    raise AssertionError("the program has no end")


def well_formed(program: list[Instruction]) -> None:
    """What the kernel's own verifier asks of a program."""
    assert 0 < len(program) <= LONGEST_PROGRAM
    assert program[-1][0] == 0x06
    for at, (operation, if_true, if_false, operand) in enumerate(program):
        assert operation in (0x20, 0x15, 0x35, 0x45, 0x06)
        assert 0 <= operand < WORD
        for jump in (if_true, if_false):
            assert 0 <= jump <= 255
            assert jump == 0 or at + 1 + jump < len(program)
        struct.pack("=HBBI", operation, if_true, if_false, operand)


# The policy's side, said without jumps.


def holds(condition: Condition, arguments: Arguments) -> bool:
    given_value = arguments[condition.argument]
    match condition:
        case ArgumentEquals(_, value):
            return given_value == value
        case ArgumentEqualsInt32(_, value):
            return given_value % WORD == value
        case ArgumentLacksBits(_, bits):
            return given_value % WORD & bits == 0
        case ArgumentHasBit(_, bit):
            return given_value % WORD & bit != 0


def expected(policy: Policy, on: Machine, number: int, arguments: Arguments) -> int:
    """The same decision, straight from the words of the policy."""
    if on is X86 and number >= X32:
        return KILL
    if number == SYSCALLS["clone3"][on.column]:
        return UNKNOWN
    for name, ways in policy.items():
        if SYSCALLS[name][on.column] == number:
            allowed = any(all(holds(condition, arguments) for condition in way) for way in ways)
            return ALLOW if allowed else UNKNOWN if name == "sched_getaffinity" else REFUSE
    return REFUSE


# What is asked.

LONGS = st.one_of(
    st.sampled_from([0, 1, 3, 4, 15, 16, 0x20, 0x24, 0x10000, 0x1003F, WORD - 1, WORD, WORD + 3, WORD + 15, LONG - 1]),
    st.integers(0, 2**20),
    st.integers(0, LONG - 1),
)
ARGUMENTS = st.tuples(LONGS, LONGS, LONGS, LONGS, LONGS, LONGS)
KNOWN = sorted({number for numbers in SYSCALLS.values() for number in numbers if number is not None})
CALLS = st.sampled_from(KNOWN) | st.integers(0, 600) | st.integers(0, WORD - 1)
CONDITIONS = st.one_of(
    st.builds(ArgumentEquals, st.integers(0, 5), LONGS),
    st.builds(ArgumentEqualsInt32, st.integers(0, 5), st.integers(0, WORD - 1)),
    st.builds(ArgumentLacksBits, st.integers(0, 5), st.integers(1, WORD - 1)),
    st.builds(ArgumentHasBit, st.integers(0, 5), st.integers(0, 31).map(lambda bit: 1 << bit)),
)
WAYS = st.lists(st.lists(CONDITIONS, max_size=4).map(tuple), min_size=1, max_size=4).map(tuple)
ANY_POLICY = st.dictionaries(st.sampled_from(sorted(SYSCALLS)), WAYS, max_size=8)


@BOTH
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(number=CALLS, arguments=ARGUMENTS)
@example(number=X32, arguments=(3, 0, 0, 0, 0, 0))
@example(number=X32 - 1, arguments=(3, 0, 0, 0, 0, 0))
@example(number=X32 + 1, arguments=(3, 0, 0, 0, 0, 0))
@example(number=WORD - 1, arguments=(0, 0, 0, 0, 0, 0))
@example(number=435, arguments=(0x10000, 0, 0, 0, 0, 0))
def test_a_filter_decides_as_its_policy_says(policy: Policy, on: Machine, number: int, arguments: Arguments) -> None:
    program = compile_filter(policy, on)
    assert ruled(program, number, on.arch, arguments) == expected(policy, on, number, arguments)


@BOTH
@given(policy=ANY_POLICY, number=CALLS, arguments=ARGUMENTS)
def test_any_policy_compiles_to_what_it_says(policy: Policy, on: Machine, number: int, arguments: Arguments) -> None:
    program = compile_filter(policy, on)
    well_formed(program)
    assert ruled(program, number, on.arch, arguments) == expected(policy, on, number, arguments)


@BOTH
@given(policy=ANY_POLICY, arch=st.integers(0, WORD - 1), number=CALLS, arguments=ARGUMENTS)
@example(policy=jail_policy(3), arch=0x40000003, number=20, arguments=(0, 0, 0, 0, 0, 0))
@example(policy=jail_policy(3), arch=0x40000028, number=20, arguments=(0, 0, 0, 0, 0, 0))
def test_another_abi_ends_the_process(
    policy: Policy, on: Machine, arch: int, number: int, arguments: Arguments
) -> None:
    if arch != on.arch:
        assert ruled(compile_filter(policy, on), number, arch, arguments) == KILL


@BOTH
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_call_that_is_named_is_allowed_in_each_of_its_ways(policy: Policy, on: Machine) -> None:
    program = compile_filter(policy, on)
    well_formed(program)
    for name, ways in policy.items():
        number = SYSCALLS[name][on.column]
        if number is None:
            continue
        for way in ways:
            arguments = [0] * 6
            for condition in way:
                if isinstance(condition, ArgumentLacksBits):
                    arguments[condition.argument] &= ~condition.bits
                else:
                    arguments[condition.argument] |= condition[1]
            a, b, c, d, e, f = arguments
            assert ruled(program, number, on.arch, (a, b, c, d, e, f)) == ALLOW, name


@BOTH
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_number_that_is_not_named_is_refused(policy: Policy, on: Machine) -> None:
    program = compile_filter(policy, on)
    named = {SYSCALLS[name][on.column] for name in policy} | {435}
    for number in range(1_100):
        if number not in named:
            assert ruled(program, number, on.arch, (0,) * 6) == REFUSE, number


@BOTH
@pytest.mark.parametrize("high", [0, 1, 1 << 31, WORD - 1])
def test_a_descriptor_is_compared_as_the_kernel_reads_it(on: Machine, high: int) -> None:
    program = compile_filter(jail_policy(3), on)
    for name in ("read", "write"):
        number = SYSCALLS[name][on.column]
        assert number is not None
        assert ruled(program, number, on.arch, (high << 32 | 3, 0, 0, 0, 0, 0)) == ALLOW
        assert ruled(program, number, on.arch, (high << 32 | 2, 0, 0, 0, 0, 0)) == REFUSE


@BOTH
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_nothing_of_other_processes_can_be_seen(policy: Policy, on: Machine) -> None:
    program = compile_filter(policy, on)

    def asked(name: str, *arguments: int) -> int:
        number = SYSCALLS[name][on.column]
        assert number is not None
        return ruled(program, number, on.arch, (*arguments, *(0,) * (6 - len(arguments))))  # type: ignore[arg-type]

    for clock in (0, 1, 2, 3, 7):
        assert asked("clock_gettime", clock) == ALLOW
    # The clock of process 1, and of ourselves by our number.
    for clock in (~1 << 3 | 2, ~4321 << 3 | 2):
        for name in ("clock_gettime", "clock_getres", "clock_nanosleep"):
            assert asked(name, clock % LONG) == REFUSE
    assert asked("sched_getaffinity", 0) == ALLOW
    # As if the kernel had no such call: a C library that asks about its own thread then goes on without an answer.
    assert asked("sched_getaffinity", 1) == UNKNOWN
    assert asked("futex", 0, 128) == ALLOW
    for asks_who_holds_it in (6, 7, 8, 11, 12, 13, 128 | 6):
        assert asked("futex", 0, asks_who_holds_it) == REFUSE


@BOTH
def test_no_page_becomes_code_in_the_jail(on: Machine) -> None:
    program = compile_filter(jail_policy(3), on)
    for name in ("mmap", "mprotect"):
        number = SYSCALLS[name][on.column]
        assert number is not None
        assert ruled(program, number, on.arch, (0, 4096, 0b011, 0x22, 0, 0)) == ALLOW
        for protection in (0b100, 0b101, 0b111, 1 << 32 | 0b100):
            assert ruled(program, number, on.arch, (0, 4096, protection, 0x22, 0, 0)) == REFUSE


@BOTH
def test_the_interpreter_maps_code_from_files_only_and_starts_threads_only(on: Machine) -> None:
    program = compile_filter(interpreter_policy(), on)

    def asked(name: str, *arguments: int) -> int:
        number = SYSCALLS[name][on.column]
        assert number is not None
        a, b, c, d, e, f = (*arguments, *[0] * 6)[:6]
        return ruled(program, number, on.arch, (a, b, c, d, e, f))

    assert asked("mmap", 0, 4096, 0b101, 0x02) == ALLOW
    assert asked("mmap", 0, 4096, 0b101, 0x22) == REFUSE
    assert asked("mmap", 0, 4096, 0b011, 0x22) == ALLOW
    assert asked("mprotect", 0, 4096, 0b101) == REFUSE
    assert asked("clone", 0x3D0F00) == ALLOW
    assert asked("clone", 17) == REFUSE
    assert asked("clone3") == UNKNOWN
    assert asked("prlimit64", 0, 7, 0, 1) == ALLOW
    assert asked("prlimit64", 0, 7, 1 << 32, 1) == REFUSE
    assert asked("prctl", 15) == ALLOW
    assert asked("prctl", 22) == REFUSE


# What no policy may come to name by accident.

# fmt: off
NEVER_IN_THE_JAIL = {
    "open", "openat", "openat2", "creat", "name_to_handle_at", "open_by_handle_at", "socket", "socketpair", "connect",
    "accept", "accept4", "bind", "listen", "sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg",
    "clone", "clone3", "fork", "vfork", "execve", "execveat", "kill", "tkill", "tgkill", "rt_sigqueueinfo",
    "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal", "pidfd_getfd", "ptrace", "process_vm_readv",
    "process_vm_writev", "process_madvise", "ioctl", "prctl", "arch_prctl", "bpf", "seccomp", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "mount", "umount2", "move_mount",
    "open_tree", "fsopen", "pivot_root", "chroot", "unshare", "setns", "keyctl", "add_key", "request_key",
    "userfaultfd", "perf_event_open", "shmget", "shmat", "shmctl", "msgget", "semget", "mq_open", "pkey_mprotect",
    "remap_file_pages", "modify_ldt", "personality", "init_module", "finit_module", "delete_module", "kexec_load",
    "reboot", "swapon", "syslog", "quotactl", "acct", "settimeofday", "clock_settime", "adjtimex", "setuid", "setgid",
    "setresuid", "setgroups", "capset", "setrlimit", "prlimit64", "dup", "dup2", "dup3", "fcntl", "pipe", "pipe2",
    "eventfd2", "signalfd4", "timerfd_create", "inotify_init1", "fanotify_init", "epoll_create1", "splice", "tee",
    "vmsplice", "sendfile", "copy_file_range", "readv", "writev", "pread64", "pwrite64", "preadv2", "pwritev2",
    "unlink", "unlinkat", "rename", "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat", "rmdir",
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "truncate", "ftruncate", "fallocate", "utimensat",
    "setxattr", "stat", "lstat", "fstat", "newfstatat", "statx", "readlink", "readlinkat", "getdents64", "chdir",
    "fchdir", "access", "faccessat", "faccessat2", "landlock_add_rule", "set_tid_address", "setsid", "setpgid",
    "sched_setscheduler", "sched_setaffinity", "setpriority", "timer_create", "setitimer", "alarm", "rt_sigaction",
    "get_robust_list", "kcmp", "lookup_dcookie", "iopl", "ioperm", "nfsservctl", "uselib", "vhangup", "getrandom",
}
NEVER_IN_THE_INTERPRETER = NEVER_IN_THE_JAIL - {
    "openat", "clone", "execve", "execveat", "prctl", "arch_prctl", "prlimit64", "readv", "writev", "pread64", "fstat",
    "newfstatat", "statx", "access", "faccessat", "set_tid_address", "rt_sigaction", "getrandom",
}
# fmt: on


def test_no_dangerous_call_is_in_a_policy() -> None:
    assert not NEVER_IN_THE_JAIL & jail_policy(3).keys()
    assert not NEVER_IN_THE_INTERPRETER & interpreter_policy().keys()


def test_every_policy_has_the_calls_that_computing_needs() -> None:
    for policy in POLICIES.values():
        assert all(policy[name] == ways for name, ways in COMPUTING.items())


def test_both_names_of_one_processor_mean_the_same() -> None:
    assert MACHINES["arm64"] == MACHINES["aarch64"]
    assert (X86.arch, ARM.arch) == (0xC000003E, 0xC00000B7)


def test_no_two_calls_have_one_number() -> None:
    for machine in (X86, ARM):
        numbers = [row[machine.column] for row in SYSCALLS.values() if row[machine.column] is not None]
        assert len(numbers) == len(set(numbers))


# The kernel's own tables, where a machine has its headers.


def defined(*headers: str) -> Mapping[str, int]:
    """The numbers in the first of these headers that is installed."""
    found = next((path for path in _installed(headers)), None)
    if found is None:
        pytest.skip(f"no kernel headers are installed ({headers[0]})")
    table: dict[str, int] = {}
    for name, number in re.findall(r"^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)\s*$", found.read_text(), re.MULTILINE):
        table.setdefault(name, int(number))
    return table


def _installed(headers: tuple[str, ...]) -> Iterator[Path]:
    return (path for header in headers for path in Path("/usr/include").glob(header))


def test_the_numbers_of_x86_64_are_the_kernels() -> None:
    table = defined("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h")
    assert {name: table.get(name) for name in SYSCALLS} == {name: row[0] for name, row in SYSCALLS.items()}


def test_the_numbers_of_arm64_are_the_kernels() -> None:
    table = dict(defined("asm-generic/unistd.h"))
    # Its name there has no prefix.
    table.setdefault("newfstatat", table["fstatat"])
    assert {name: table.get(name) for name in SYSCALLS} == {name: row[1] for name, row in SYSCALLS.items()}
