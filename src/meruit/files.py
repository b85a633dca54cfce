"""Read the files that a user names, standard input included, up to a limit."""

import sys
from pathlib import Path
from typing import BinaryIO

from meruit.errors import DocumentError, MeruitError, OutsideFolder, Problem, UnreadableFile

MAX_FILE_BYTES = 64 * 1024 * 1024
"""The largest file that is read."""


def read_bytes(path: str | Path) -> bytes:
    """Read a file, or standard input for `-`; raises DocumentError when it cannot be read."""
    try:
        if str(path) == "-":
            # Standard input that was closed before we started is None.
            content = _read_up_to_limit(sys.stdin.buffer) if sys.stdin is not None else b""
        else:
            with Path(path).open("rb") as file:
                content = _read_up_to_limit(file)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UnreadableFile(display_name(path), [Problem("", f"cannot be read: {reason}")]) from None
    if len(content) > MAX_FILE_BYTES:
        raise DocumentError(display_name(path), [Problem("", f"more than {MAX_FILE_BYTES // 2**20} MiB")])
    return content


def find_beside(folder: Path, name: str) -> Path:
    """Find a file in the folder or below it, and nowhere else: the author of the name may be a third party.

    Raises OutsideFolder, or MeruitError for what is not a file that can be read.
    """
    try:
        home = folder.resolve(strict=True)
        file = (home / name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as problem:
        # On older Pythons a loop of links is a RuntimeError.
        reason = getattr(problem, "strerror", None) or problem
        raise MeruitError(f"{name!r} cannot be read: {reason}") from None
    if not file.is_relative_to(home):
        raise OutsideFolder(f"{name!r} is outside the folder of the file that names it; put both in one folder")
    # A pipe without a writer would block for ever.
    if not file.is_file():
        raise MeruitError(f"{name!r} is not a regular file")
    return file


def display_name(path: str | Path) -> str:
    """The name of a file in messages."""
    name = str(path) if path != "" else "''"
    return "standard input" if name == "-" else name


def _read_up_to_limit(file: BinaryIO) -> bytes:
    """Read one byte too many at most: some files, such as /dev/zero, have no end."""
    return file.read(MAX_FILE_BYTES + 1)
