"""The files of a playground, by paths.

A directory exists when it was made or when something is in it, as on the object stores behind such drops. That it was
made is an event, so a reset undoes it with everything else. Errors are those of a disk.
"""

import errno
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from meruit.model.environment import Item, SourceKind
from meruit.playground.state import MAX_EVENTS, PlaygroundEvent, PlaygroundState

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Of one file."""
MAX_BYTES = 256 * 1024 * 1024
"""Of all files of one playground with all their versions: each takes space for good."""
MAX_FILES = 10_000
"""In one playground; and so many directories."""
MAX_PATH = 1_000
"""Characters of a path."""
PUT, REMOVED, RENAMED = "file_put", "file_removed", "file_renamed"
MADE, UNMADE = "directory_made", "directory_removed"
RESET = "reset"


def key_of(path: str) -> str:
    """Return the key of a path: relative to the top, which no path leaves."""
    if "\x00" in path or len(path) > MAX_PATH:
        raise OSError(errno.EINVAL, f"a path has no NUL and at most {MAX_PATH} characters")
    parts: list[str] = []
    for part in PurePosixPath("/", path).parts[1:]:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return "/".join(parts)


class FileDrop:
    """The files of one playground; every call may block as long as the disk takes."""

    def __init__(self, state: PlaygroundState) -> None:
        self.state = state
        self._made: frozenset[str] = frozenset()
        """Directories that were made and still exist."""
        self._seen = 0
        """The last event that `_made` includes."""

    def find(self, key: str) -> Item | None:
        """Return a file, or None for a directory; raises FileNotFoundError."""
        found = self._file(key)
        if found is None and not self._is_directory(key):
            raise FileNotFoundError(errno.ENOENT, "no such file or directory")
        return found

    # Any: facts are JSON.
    def listing(self, key: str) -> dict[str, Mapping[str, Any] | None]:
        """List a directory by name: a file's facts, or None for a directory."""
        if self.find(key) is not None:
            raise NotADirectoryError(errno.ENOTDIR, "this is a file")
        under = f"{key}/" if key else ""
        found: dict[str, Mapping[str, Any] | None] = {}
        for path, facts in self.state.facts(SourceKind.FILES, under=under).items():
            name, slash, _ = path[len(under) :].partition("/")
            found[name] = None if slash else facts
        for made in self._directories():
            if made.startswith(under) and made != key:
                found[made[len(under) :].partition("/")[0]] = None
        return found

    def content(self, key: str, *, creates: bool = False, exclusive: bool = False) -> bytes | None:
        """Return what a file holds; None if there is none and one may be created."""
        found = self._file(key)
        if found is not None and creates and exclusive:
            raise FileExistsError(errno.EEXIST, "the file exists")
        if found is not None:
            return found.content()
        if self._is_directory(key):
            raise IsADirectoryError(errno.EISDIR, "this is a directory")
        if not creates:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        self._must_have_parent(key)
        self._must_have_room(key)
        return None

    def put(self, key: str, content: bytes) -> None:
        """Write a file."""
        with self.state.change():
            if self._file(key) is None:
                self._must_have_room(key)
            self._must_hold(len(content))
            self.state.put(SourceKind.FILES, key, content, event=PUT, noted={"size": len(content)})

    def remove(self, key: str) -> None:
        """Remove a file."""
        with self.state.change():
            if self.find(key) is None:
                raise IsADirectoryError(errno.EISDIR, "this is a directory")
            self.state.remove(SourceKind.FILES, key, event=REMOVED)

    def rename(self, old: str, new: str, *, replaces: bool) -> None:
        """Move a file, or a directory with everything in it; with `replaces` it may replace another file."""
        with self.state.change():
            moving = self.find(old)
            if old == new:
                return
            if not old or new.startswith(f"{old}/"):
                raise OSError(errno.EINVAL, "a directory cannot be moved into itself")
            self._must_be_free(new, unless_file=replaces and moving is not None)
            self._must_have_parent(new)
            self._must_have_room(new)
            made = self._directories()
            under = self.state.facts(SourceKind.FILES, under=f"{old}/") if moving is None else {old: moving.facts}
            self._must_hold(sum(facts["size"] for facts in under.values()))
            for one in [moving] if moving is not None else self.state.items(SourceKind.FILES, under=f"{old}/"):
                moved = new + one.key[len(old) :]
                self.state.remove(SourceKind.FILES, one.key, event=RENAMED, noted={"to": moved})
                self.state.put(SourceKind.FILES, moved, one.content(), event=RENAMED, noted={"from": one.key})
            for directory in sorted(made):
                if directory == old or directory.startswith(f"{old}/"):
                    self.state.log(UNMADE, {"path": directory})
                    self.state.log(MADE, {"path": new + directory[len(old) :]})

    def make_directory(self, key: str) -> None:
        """Make a directory."""
        with self.state.change():
            self._must_be_free(key)
            self._must_have_parent(key)
            self._must_have_room(key)
            self.state.log(MADE, {"path": key})

    def remove_directory(self, key: str) -> None:
        """Remove an empty directory."""
        with self.state.change():
            if not key or self.listing(key):
                raise OSError(errno.ENOTEMPTY, "the directory is not empty")
            self.state.log(UNMADE, {"path": key})

    def _file(self, key: str) -> Item | None:
        return self.state.get(SourceKind.FILES, key) if key else None

    def _is_directory(self, key: str) -> bool:
        if not key or any(made == key or made.startswith(f"{key}/") for made in self._directories()):
            return True
        return self.state.count(SourceKind.FILES, under=f"{key}/") > 0

    def _must_be_free(self, key: str, *, unless_file: bool = False) -> None:
        if self._is_directory(key) or (self._file(key) is not None and not unless_file):
            raise FileExistsError(errno.EEXIST, "the name exists")

    def _must_have_parent(self, key: str) -> None:
        """Refuse a path in a directory that does not exist, as OpenSSH does."""
        parent = key.rpartition("/")[0]
        if self._file(parent) is None and not self._is_directory(parent):
            raise FileNotFoundError(errno.ENOENT, "no such directory")

    def _must_have_room(self, key: str) -> None:
        """Refuse a path through a file, and more files than allowed."""
        parents = [str(parent) for parent in PurePosixPath(key).parents][:-1]
        if any(self._file(parent) is not None for parent in parents):
            raise NotADirectoryError(errno.ENOTDIR, "a part of the path is a file")
        if max(self.state.count(SourceKind.FILES), len(self._directories())) >= MAX_FILES:
            raise OSError(errno.ENOSPC, f"there are {MAX_FILES} files or directories already")

    def _must_hold(self, size: int) -> None:
        """Refuse more bytes than allowed."""
        if self.state.content_bytes(SourceKind.FILES) + size > MAX_BYTES:
            raise OSError(errno.ENOSPC, f"files and their earlier versions have {MAX_BYTES} bytes at most, together")

    def _directories(self) -> frozenset[str]:
        """Return the directories that were made and still exist, updated from the events."""
        fresh = self._events(self._seen)
        if any(event.type == RESET for event in fresh):
            # A reset has replaced the earlier events.
            self._made, fresh = frozenset(), self._events(0)
        made = set(self._made)
        for event in fresh:
            if event.type == MADE:
                made.add(event.facts["path"])
            elif event.type == UNMADE:
                made.discard(event.facts["path"])
        if fresh:
            self._made, self._seen = frozenset(made), fresh[-1].seq
        return self._made

    def _events(self, after: int) -> list[PlaygroundEvent]:
        found: list[PlaygroundEvent] = []
        while fresh := self.state.events(found[-1].seq if found else after, MAX_EVENTS):
            found += fresh
        return found
