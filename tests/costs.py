"""What each test costs: processor seconds of its worker and of the child processes it waited for.

`make test ARGS="-p tests.costs"` prints the folders and files that cost most. `MERUIT_COSTS=FILE` also keeps one line of
JSON for each test. Wall time depends on what else the machine does; processor time hardly does.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

KEPT = "MERUIT_COSTS"
SHOWN = 40
FOLDER = Path(".costs")


def pytest_configure() -> None:
    """Forget what an earlier run has left."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.jsonl"):
        old.unlink()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test with the fixtures that begin and end with it."""
    before, began = os.times(), time.monotonic()
    result = yield
    after = os.times()
    spent = {
        "test": item.nodeid,
        "own": round(after.user + after.system - before.user - before.system, 3),
        "children": round(
            after.children_user + after.children_system - before.children_user - before.children_system, 3
        ),
        "wall": round(time.monotonic() - began, 3),
    }
    with (FOLDER / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as kept:
        kept.write(json.dumps(spent) + "\n")
    return result
