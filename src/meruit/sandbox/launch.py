"""Started instead of the interpreter: confines its own process, then executes the interpreter.

Standard library only, and as little of it as possible, because it runs before each worker.
"""

import os
import sys

from meruit.errors import ConfinementError
from meruit.sandbox.confine import (
    SyscallFilter,
    become_nobody,
    die_with_parent,
    interpreter_policy,
    limit_files,
    limit_resources,
    no_new_privileges,
)

OVERHEAD_BYTES = 512 * 1024 * 1024
"""Address space of the worker before it runs code: program, stacks, allocator."""
LIFETIME_CPU_S = 6 * 3600
"""Ends a worker that survives its host; far more than a worker uses before it is replaced."""
ALLOCATOR = {
    # Every further arena would reserve address space, which is limited.
    "MALLOC_ARENA_MAX": "1",
    # Free memory that is kept: what is given back after a call costs the next call page faults.
    "MALLOC_TRIM_THRESHOLD_": str(8 * 1024 * 1024),
    # Many short texts are freed at once, and the next call asks for as many. Longer ones are still put together again.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=4096:glibc.malloc.tcache_max=48",
}
"""The whole environment of the interpreter: settings of the C library's allocator, which others ignore."""
MAX_FILES = 16
NO_STREAM = 3
"""The lowest descriptor after the standard streams."""
LIBRARY_FOLDERS = tuple(
    f"{root}/{folder}"
    for root in ("", "/usr")
    for folder in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
)
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld-musl-x86_64.so.1", "ld-musl-aarch64.so.1")


def main(program: str, memory_limit_mb: str, *arguments: str) -> None:
    """Confine this process and execute the program; exits with 126 and a reason on stderr when a limit fails."""
    parent = os.getppid()
    try:
        # Leave the host's terminal: an interrupt is for the host.
        os.setsid()
        os.closerange(NO_STREAM, os.sysconf("SC_OPEN_MAX"))
        _fill_streams()
        # By its descriptor: the unprivileged user may not be allowed to read its folder.
        descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
        libraries, loaders = (
            [f"{folder}/{name}" for folder in LIBRARY_FOLDERS for name in names] for names in (LIBRARIES, LOADERS)
        )
        if os.fstat(descriptor).st_mode & 0o001:
            become_nobody()
        # After the change of user, which would undo it.
        die_with_parent(parent)
        no_new_privileges()
        limit_files([*libraries, "/etc/ld.so.cache"], [descriptor, *loaders])
        address_space = int(memory_limit_mb) * 2**20 + OVERHEAD_BYTES
        limit_resources(AS=address_space, CPU=LIFETIME_CPU_S, NOFILE=MAX_FILES, FSIZE=0, CORE=0, MEMLOCK=0)
        SyscallFilter(interpreter_policy()).enforce()
        os.execve(descriptor, [program, *arguments], ALLOCATOR)  # noqa: S606 - the path is our own choice
    except (ConfinementError, OSError) as refused:
        sys.stderr.write(f"{refused}\n")
        sys.stderr.flush()
        os._exit(126)


def _fill_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    Otherwise the program does it when it starts; the file limits refuse that, and the program aborts.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < NO_STREAM:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it has no name to give
    os.close(descriptor)
