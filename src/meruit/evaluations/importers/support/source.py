"""A file or folder that is imported: what recognises it, and its digest."""

import csv
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from meruit.errors import ImportDamaged, Problem, UnreadableFile
from meruit.evaluations.datafiles import ColumnMap
from meruit.evaluations.importers.support.json_stream import load, top_keys
from meruit.files import display_name

HEAD_BYTES = 256 * 1024
"""How much of a file is looked at to recognise it."""
MAX_FILES = 100_000
"""Files of a folder that are looked at."""
MAX_SMALL_BYTES = 64 * 1024 * 1024
"""The largest file that is read at once."""


@dataclass(frozen=True)
class ImportSource:
    """A file or folder, and how the user wants its rows read."""

    path: Path
    columns: ColumnMap = field(default_factory=ColumnMap)

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The beginning of the file; empty for a folder."""
        if self.is_folder:
            return b""
        with self.open() as file:
            return file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")

    @cached_property
    def first_row(self) -> Mapping[str, Any]:
        """The first object: of JSON Lines, of a list, the document itself, or a row of CSV; empty where none is."""
        text = self.head.lstrip()
        if text.startswith((b"{", b"[")):
            return _first_object(text)
        line, _, rest = text.partition(b"\n")
        try:
            names, cells = (next(csv.reader([part.decode()]), []) for part in (line, rest.partition(b"\n")[0]))
        except (UnicodeDecodeError, csv.Error):
            return {}
        return dict(zip(names, cells, strict=False)) if len(names) > 1 else {}

    @cached_property
    def first_keys(self) -> Set[str]:
        """The keys of the first object, also where it is longer than what is looked at; empty where none is."""
        text = self.head.lstrip().removeprefix(b"[").lstrip()
        return self.first_row.keys() or (top_keys(text) if text.startswith(b"{") else set())

    def says(self, *names: str) -> bool:
        """Whether the beginning of the file has all these names of JSON."""
        return all(f'"{name}"'.encode() in self.head for name in names)

    @contextmanager
    def open(self, name: str = "") -> Iterator[BinaryIO]:
        """Open the file, or one in the folder."""
        path = self.path / name if name else self.path
        try:
            with path.open("rb") as file:
                yield file
        except OSError as problem:
            reason = problem.strerror or problem
            raise UnreadableFile(display_name(path), [Problem("", f"cannot be read: {reason}")]) from None

    def load_small(self, name: str = "") -> Any:
        """A whole file of JSON that is small; raises ImportDamaged."""
        with self.open(name) as file:
            content = file.read(MAX_SMALL_BYTES + 1)
        if len(content) > MAX_SMALL_BYTES:
            raise ImportDamaged(f"{name or self.path.name} is larger than {MAX_SMALL_BYTES // 2**20} MiB")
        try:
            return load(content)
        except ImportDamaged as problem:
            raise ImportDamaged(f"{name or self.path.name} is {problem}") from None

    def has(self, name: str) -> bool:
        """Whether the folder has this file; a link that leads out of it is passed over."""
        file = self.path / name
        try:
            return self.is_folder and file.is_file() and file.resolve().is_relative_to(self.path.resolve())
        except (OSError, ValueError):
            # A name that no file can have, such as one that is too long.
            return False

    def files(self, pattern: str) -> list[str]:
        """Files of the folder by pattern, in order; links that lead out of it are passed over."""
        home = self.path.resolve()
        found = []
        for file in self.path.glob(pattern):
            if file.is_file() and file.resolve().is_relative_to(home):
                found.append(file.relative_to(self.path).as_posix())
                if len(found) > MAX_FILES:
                    raise ImportDamaged(f"the folder has more than {MAX_FILES:,} files; import parts of it")
        return sorted(found)

    def digest(self) -> str:
        """SHA-256 of the file, or of the names and contents of the folder's files of JSON and text."""
        hashed = sha256()
        if not self.is_folder:
            self._add(hashed, "")
            return hashed.hexdigest()
        for name in [one for one in self.files("**/*") if one.endswith((".json", ".jsonl", ".txt", ".toml"))]:
            hashed.update(name.encode() + b"\x00")
            self._add(hashed, name)
        return hashed.hexdigest()

    # Any: hashlib has no public type of its objects.
    def _add(self, hashed: Any, name: str) -> None:
        with self.open(name) as file:
            while chunk := file.read(1 << 20):
                hashed.update(chunk)


def _first_object(text: bytes) -> Mapping[str, Any]:
    inside = text[1:].lstrip() if text.startswith(b"[") else text
    for candidate in (inside, inside.partition(b"\n")[0].rstrip().removesuffix(b",").removesuffix(b"]")):
        try:
            found = load(candidate)
        except ImportDamaged:
            continue
        return found if isinstance(found, Mapping) else {}
    return _first_by_braces(inside)


def _first_by_braces(text: bytes) -> Mapping[str, Any]:
    """The first object of a list that is written over several lines, or in one."""
    end = -1
    for _ in range(200):
        end = text.find(b"}", end + 1)
        if end < 0:
            break
        try:
            found = load(text[: end + 1])
        except ImportDamaged:
            continue
        return found if isinstance(found, Mapping) else {}
    return {}
