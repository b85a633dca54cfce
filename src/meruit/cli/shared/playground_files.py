"""Playgrounds in a data folder, as whoever has the folder sees them: found, copied and removed without being served."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from meruit.errors import UnknownPlayground
from meruit.model.environment import SourceKind
from meruit.model.record import Record
from meruit.playground.host import FILE, FOLDER, ID, new_id, new_secret, staging_file
from meruit.playground.state import PlaygroundState, utc_now

_FOLDER_PATTERNS = ("", "brn_*/")


class PlaygroundSummary(Record, frozen=True):
    """One playground, as a list shows it."""

    id: str
    created_at: str
    benchmark_run_id: str | None
    """Where it is the world of one of its task runs."""
    items: dict[str, int]
    """How many of each kind it holds."""
    checkpoints: list[str]


class PlaygroundFolder(NamedTuple):
    """The playgrounds of a data folder."""

    folder: Path

    @property
    def directory(self) -> Path:
        """Where they are."""
        return self.folder / FOLDER

    def states(self) -> Iterator[PlaygroundState]:
        """Each of them, oldest first; one that goes meanwhile is left out."""
        found = [path for place in _FOLDER_PATTERNS for path in self.directory.glob(f"{place}pg_*/{FILE}")]
        for path in sorted(found, key=lambda one: one.parent.name):
            if path.is_file():
                with closing(PlaygroundState(path)) as state:
                    yield state

    @contextmanager
    def open_state(self, playground_id: str) -> Iterator[PlaygroundState]:
        """One of them; raises UnknownPlayground."""
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
        """Make another that goes on from where one is, under a secret of its own; answers its id."""
        name = new_id(utc_now, os.urandom)
        with self.open_state(playground_id) as state, staging_file(self.directory, name) as path:
            state.branch(path, secret=new_secret(os.urandom), mllp_port=None, task=None).close()
        return name

    def remove(self, playground_id: str) -> None:
        """Forget all that one held."""
        with self.open_state(playground_id) as state:
            place = state.path.parent
        # A name that nobody serves, so that half of one is never found.
        going = place.with_name(f".{place.name}")
        place.rename(going)
        shutil.rmtree(going)


def summarize_playground(state: PlaygroundState) -> PlaygroundSummary:
    """A playground as a list shows it."""
    home = state.path.parent.parent.name
    counts = {str(kind): len(state.items(kind)) for kind in SourceKind}
    return PlaygroundSummary(
        id=state.path.parent.name,
        created_at=state.settings()["created_at"],
        benchmark_run_id=None if home == FOLDER else home,
        items={kind: number for kind, number in counts.items() if number},
        checkpoints=state.checkpoints(),
    )
