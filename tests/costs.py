"""What each test costs: processor seconds of its worker and of the child processes it waited for.

`make test ARGS="-p tests.costs"` prints what costs most, and leaves a line of JSON for each test in .costs. Wall time
depends on what else the machine does; processor time hardly does. A process that outlives its test, such as a server
that several share, is counted where it ends.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(".costs")
SHOWN = 25


def pytest_configure() -> None:
    """Forget what an earlier run has left."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.jsonl"):
        old.unlink()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the costs of folders, files and tests."""
    folders, files, tests = Counter[str](), Counter[str](), Counter[str]()
    for kept in FOLDER.glob("*.jsonl"):
        for line in kept.read_text(encoding="utf-8").splitlines():
            spent = json.loads(line)
            seconds = spent["own"] + spent["children"]
            file, _, name = spent["test"].partition("::")
            folders["/".join(file.split("/")[:2])] += seconds
            files[file] += seconds
            tests[f"{file}::{name.partition('[')[0]}"] += seconds
    terminalreporter.section(f"processor seconds: {folders.total():.0f}")
    for kind in (folders, files, tests):
        for name, seconds in kind.most_common(SHOWN):
            terminalreporter.line(f"{seconds:8.1f} {name}")
        terminalreporter.line("")
