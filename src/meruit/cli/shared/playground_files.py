"""Playgrounds in a data folder: find, copy and remove them without serving them."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from meruit.errors import UnknownPlayground
from meruit.model.environment import SourceKind
from meruit.model.record import Record
from meruit.playground.host import FILE, FOLDER, ID, new_id, new_secret, staging_file
from meruit.playground.state import PlaygroundState, utc_now

_FOLDER_PATTERNS = ("", "brn_*/")


class PlaygroundSummary(Record, frozen=True):
    """One playground in a list."""

    id: str
    created_at: str
    benchmark_run_id: str | None
    """The benchmark run whose task uses the playground as its environment, if any."""
    items: dict[str, int]
    """How many of each kind it holds."""
    checkpoints: list[str]


class PlaygroundFolder(msgspec.Struct, frozen=True):
    """The playgrounds of a data folder."""

    folder: Path

    @property
    def directory(self) -> Path:
        """The folder of the playgrounds."""
        return self.folder / FOLDER

    def states(self) -> Iterator[PlaygroundState]:
        """Open each playground, oldest first; one that is removed meanwhile is skipped."""
        found = [path for place in _FOLDER_PATTERNS for path in self.directory.glob(f"{place}pg_*/{FILE}")]
        for path in sorted(found, key=lambda one: one.parent.name):
            if path.is_file():
                with closing(PlaygroundState(path)) as state:
                    yield state

    @contextmanager
    def open_state(self, playground_id: str) -> Iterator[PlaygroundState]:
        """Open one playground; raises UnknownPlayground."""
        found = [*self._state_files(playground_id)]
        if not found:
            where = "; `meruit playground list` lists all" if self.directory.is_dir() else f" in {self.folder}"
            raise UnknownPlayground(f"no playground is named {playground_id[:80]!r}{where}")
        with closing(PlaygroundState(found[0])) as state:
            yield state

    def _state_files(self, playground_id: str) -> Iterator[Path]:
        if re.fullmatch(ID, playground_id):
            for place in _FOLDER_PATTERNS:
                yield from self.directory.glob(f"{place}{playground_id}/{FILE}")

    def branch(self, playground_id: str) -> str:
        """Copy a playground under a new secret and return the id of the copy."""
        name = new_id(utc_now, os.urandom)
        with self.open_state(playground_id) as state, staging_file(self.directory, name) as path:
            state.branch(path, secret=new_secret(os.urandom), mllp_port=None, task=None).close()
        return name

    def remove(self, playground_id: str) -> None:
        """Remove a playground and its content."""
        with self.open_state(playground_id) as state:
            place = state.path.parent
        # Renamed first, so that no host serves a half-removed playground.
        going = place.with_name(f".{place.name}")
        place.rename(going)
        shutil.rmtree(going)


def summarize_playground(state: PlaygroundState) -> PlaygroundSummary:
    """Count what a playground holds."""
    home = state.path.parent.parent.name
    counts = {str(kind): len(state.items(kind)) for kind in SourceKind if kind is not SourceKind.ANSWER}
    return PlaygroundSummary(
        id=state.path.parent.name,
        created_at=state.settings()["created_at"],
        benchmark_run_id=None if home == FOLDER else home,
        items={kind: number for kind, number in counts.items() if number},
        checkpoints=state.checkpoints(),
    )
