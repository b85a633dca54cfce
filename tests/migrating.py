"""New stores in no time: the migrations run once in each process, and the file they made is there again the next time.

Only where there is no database yet: one that is older is upgraded as ever, and so is each that another process makes.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meruit.store import migrate as opening
from meruit.store.location import FILE, KEY_FILE, Location

UPGRADE = opening.upgrade
"""As it is."""


Upgrade = Callable[[Location], opening.UpgradeResult]


def upgrade_from_copy(folder: Path) -> Upgrade:
    """An `upgrade` that puts a copy where no database is; the first one is made in the folder, now."""
    made = Location(folder / "migrated")
    UPGRADE(made)
    new_file = (made.folder / FILE).read_bytes()

    def upgrade(location: Location) -> opening.UpgradeResult:
        if location.url is not None or any((location.folder / name).exists() for name in (FILE, KEY_FILE)):
            return UPGRADE(location)
        opening._make_folder(location.folder)
        try:
            _put(location.folder / FILE, new_file)
        except FileExistsError:
            # Another process was quicker.
            return UPGRADE(location)
        return opening.UpgradeResult(None, opening.HEAD, None)

    return upgrade


_made: list[Upgrade] = []
"""None or one; workers that are forked later inherit it."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Run the migrations before workers are forked."""
    if getattr(session.config.option, "workers", 0) and not session.config.option.collectonly:
        with tempfile.TemporaryDirectory() as folder:
            _made.append(upgrade_from_copy(Path(folder)))


@pytest.fixture(scope="session", autouse=True)
def migrations_run_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Alembic takes most of the time that a test of a new store has."""

    def upgrade(location: Location) -> opening.UpgradeResult:
        if not _made:
            _made.append(upgrade_from_copy(tmp_path_factory.mktemp("migrated")))
        return _made[0](location)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "upgrade", upgrade)
        yield


def _put(file: Path, content: bytes) -> None:
    """As `opening` makes one: nobody else may read it; and there at once, whoever looks meanwhile."""
    descriptor, whole = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    try:
        file.hardlink_to(whole)
    finally:
        Path(whole).unlink()
