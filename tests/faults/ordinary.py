"""Becomes an ordinary user for good, with the interpreter still in reach.

A tests' interpreter may live where others cannot go, such as the home of root. Then a mount namespace of this process's
own shows others a way there; the namespace ends with the process, and nobody else sees it.
"""

import ctypes
import os
import sys
import tempfile
from pathlib import Path

NOBODY = 65_534
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE, _MS_BIND, _MS_NOSUID, _MS_NODEV = 0x4000, 0x40000, 0x1000, 0x2, 0x4
_EVERYONE_MAY_PASS = 0o001


class Impossible(Exception):
    """This machine does not let us try as an ordinary user."""


def become_ordinary() -> None:
    """Give up root, keeping every path that the interpreter needs."""
    if os.geteuid() != 0:
        raise Impossible("these tests run as an ordinary user already")
    wanted = sorted({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), Path(__file__).resolve().parents[2]})
    hidden: dict[Path, list[Path]] = {}
    for path in wanted:
        barrier = _barrier(path)
        if barrier is not None:
            hidden.setdefault(barrier, []).append(path)
    if hidden:
        _show(hidden)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    if not os.access(sys.executable, os.X_OK):
        raise Impossible("the interpreter cannot be reached by an ordinary user")


def _barrier(path: Path) -> Path | None:
    """The first folder on the way that others cannot pass."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & _EVERYONE_MAY_PASS:
            return folder
    return None


def _show(hidden: dict[Path, list[Path]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
        if libc.mount(source.encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()):
            raise Impossible(f"an ordinary user cannot reach the interpreter: {os.strerror(ctypes.get_errno())}")

    if libc.unshare(_CLONE_NEWNS) != 0:
        raise Impossible(f"an ordinary user cannot reach the interpreter: {os.strerror(ctypes.get_errno())}")
    mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE)
    for barrier, paths in hidden.items():
        # Held aside under other names while their place is covered.
        held = {path: Path(tempfile.mkdtemp(prefix="held-")) for path in paths}
        for path, aside in held.items():
            mount(str(path), aside, "", _MS_BIND | _MS_REC)
        mount("tmpfs", barrier, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
        for path, aside in held.items():
            path.mkdir(parents=True, exist_ok=True)
            mount(str(aside), path, "", _MS_BIND | _MS_REC)
            libc.umount2(str(aside).encode(), 2)
            aside.rmdir()
