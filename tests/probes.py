"""Which lines and branches tests reach, by probes that remove themselves once they were passed.

On Python 3.11 a traced test takes half as long again, one with probes a tenth. SlipCover's own plugin puts them into
all that pytest rewrites, too, which breaks some libraries; this one stays within our source. What the workers of
`tests.forking` reach is put together at the end.
"""

import json
import pickle
from pathlib import Path
from time import process_time

from slipcover import FileMatcher, ImportManager, Slipcover, wrap_spec_from_file_location

MEASURED = Path(".coverage")
"""A folder, with a file of what was reached."""
SOURCE = ["src/meruit"]
# Run only in processes of their own, the last three behind walls where nothing can be written.
OMITTED = [
    *("*/meruit/__main__.py", "*/meruit/sandbox/launch.py", "*/meruit/sandbox/determinism.py"),
    "*/meruit/sandbox/zygote.py",
]

NEVER = 2_000_000_000
"""SlipCover by itself removes probes when one was passed fifty times too often, and searches all functions for it."""

_probes = Slipcover(
    d_miss_threshold=NEVER, branch=True, source=SOURCE, omit=OMITTED, exclude_also=["@overload", r"\.\.\.$"]
)
_ours = FileMatcher(sources=SOURCE, omit=OMITTED)
# Before anything of ours is loaded, and to the end.
ImportManager(_probes, _ours).__enter__()
# So migrations are loaded.
wrap_spec_from_file_location(_probes, _ours)


_removing = [10.0]
"""At how many seconds of this process the probes that were passed are removed next."""


def pytest_collection_finish() -> None:
    """Remove what was passed when modules were loaded, before workers are forked."""
    _probes.deinstrument_seen()


def pytest_runtest_teardown() -> None:
    """Remove probes at 10, 40, 160, ... seconds: most are passed early, and each removal takes a second."""
    if process_time() > _removing[0]:
        _probes.deinstrument_seen()
        _removing[0] = process_time() * 4


def keep_reached(worker: str) -> None:
    """Leave what a worker has reached to the process that forked it."""
    MEASURED.mkdir(exist_ok=True)
    reached = {file: seen | _probes.newly_seen.get(file, set()) for file, seen in _probes.all_seen.items()}
    reached |= {file: seen for file, seen in _probes.newly_seen.items() if file not in reached}
    (MEASURED / f"{worker}.pickle").write_bytes(pickle.dumps(reached))


def pytest_sessionfinish() -> None:
    """Write what all have reached."""
    MEASURED.mkdir(exist_ok=True)
    for kept in MEASURED.glob("*.pickle"):
        for file, seen in pickle.loads(kept.read_bytes()).items():
            _probes.all_seen[file].update(seen)
        kept.unlink()
    (MEASURED / "all.json").write_text(json.dumps(_probes.get_coverage()))
