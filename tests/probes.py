"""Which lines and branches tests reach, by probes that remove themselves once they were passed.

On Python 3.11 a traced test takes half as long again, one with probes a tenth. SlipCover's own plugin puts them into
all that pytest rewrites, too, which breaks some libraries; this one stays within our source. For workers of xdist only.
"""

import json
import os
from pathlib import Path

from slipcover import FileMatcher, ImportManager, Slipcover, wrap_spec_from_file_location

MEASURED = Path(".coverage")
"""A file for each worker."""
SOURCE = ["src/meruit"]
# Run only in processes of their own, the last three behind walls where nothing can be written.
OMITTED = [
    *("*/meruit/__main__.py", "*/meruit/sandbox/launch.py", "*/meruit/sandbox/determinism.py"),
    "*/meruit/sandbox/zygote.py",
]
WORKER = os.environ.get("PYTEST_XDIST_WORKER")

_probes = Slipcover(branch=True, source=SOURCE, omit=OMITTED, exclude_also=["@overload", r"\.\.\.$"])
if WORKER is not None:
    # Before anything of ours is loaded, and to the end.
    _ours = FileMatcher(sources=SOURCE, omit=OMITTED)
    ImportManager(_probes, _ours).__enter__()
    # So migrations are loaded.
    wrap_spec_from_file_location(_probes, _ours)


def pytest_sessionfinish() -> None:
    """Tell what was reached."""
    if WORKER is not None:
        MEASURED.mkdir(exist_ok=True)
        (MEASURED / f"{WORKER}.json").write_text(json.dumps(_probes.get_coverage()))
