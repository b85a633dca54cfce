"""What holds for all tests."""

import gc
import ssl
import sys
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

APART = (
    *(
        "outcomes/rescore/test_ray.py",
        "faults/test_hostile.py",
        "faults/test_market_deaths.py",
        "faults/test_deaths.py",
    ),
    *(
        "faults/test_gate_deaths.py",
        "faults/test_run_deaths.py",
        "faults/test_evaluation_deaths.py",
        "e2e/test_kill.py",
    ),
    *("e2e/test_shutdown.py", "faults/test_usage_week.py", "test_docs.py"),
)
"""Files whose tests take long and share nothing: each is given to the worker that is free."""
LONG = ("console/test_browser.py", "reports/test_page.py", "faults/test_", "e2e/test_", "cli/commands/test_demo.py")
"""Other files that take long: they follow, before the last test of all is one that every other worker waits for."""

LOADED_ONCE = (
    *("scipy.stats", "scipy.optimize", "sklearn.metrics", "pandas", "polars", "pypdf", "xlsxwriter", "httpcore"),
    *("cel_expr_python", "dbos", "openai", "playwright.sync_api", "uvicorn.protocols.http.auto"),
)
"""What several files of tests import only when they run: loaded before workers are forked, not by each of them."""
MANY = 500
"""Tests; with fewer, what is loaded may not be needed."""

pytest_plugins = [
    "tests.sampling",
    "tests.at_hand",
    "tests.migrating",
    "tests.postgres",
    "tests.servers.running",
    "tests.fixtures",
]

# No deadline: speed is measured in speed/, never in a test. The same examples each time, so that a red run shows what a
# change broke; `make thorough` draws new ones.
settings.register_profile(
    "meruit",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=25,
    derandomize=True,
)
# As many examples as a person would wait for over lunch.
settings.register_profile("thorough", settings.get_profile("meruit"), max_examples=1_000, derandomize=False)
settings.load_profile("meruit")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without golden tests under `-m golden`: collecting all others takes a minute."""
    if config.option.markexpr != "golden" or collection_path.suffix != ".py":
        return None
    return True if "golden" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """The long ones first; otherwise in the order that chance has put them in, which it does on the way."""
    from tests.forking import ALONE, WAITS  # found only now that the path is set

    yield
    for item in items:
        item.stash[ALONE] = any(part in item.nodeid for part in APART)
        item.stash[WAITS] = item.stash[ALONE] or any(part in item.nodeid for part in LONG)
    # Those that are whole files begin before those that fill the gaps.
    items.sort(key=lambda item: (not item.stash[WAITS], item.stash[ALONE]))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays to the end: the garbage collector need not walk over it again and again."""
    if getattr(session.config.option, "workers", 0) and len(session.items) >= MANY:
        for name in LOADED_ONCE:
            with suppress(ImportError):
                import_module(name)
    gc.collect()
    gc.freeze()
    # Tests make and drop much more than a program does; each collection also walks over what fixtures hold.
    gc.set_threshold(50_000, 20, 20)


_UNFREEZE = gc.unfreeze
_unfrozen: list[bool] = []
"""Not empty once a service that a test started has stopped."""


def _note_unfreeze() -> None:
    _UNFREEZE()
    _unfrozen.append(True)


gc.unfreeze = _note_unfreeze

_CREATE_CONTEXT = ssl.create_default_context


@cache
def _trust(file: str) -> ssl.SSLContext:
    return _CREATE_CONTEXT(cafile=file)


def _create_context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **found_in: Any) -> ssl.SSLContext:
    """Read the roots of all authorities once, and not for each HTTP client: it takes 20 ms."""
    is_usual = purpose is ssl.Purpose.SERVER_AUTH and found_in == {"cafile": certifi.where()}
    return _trust(certifi.where()) if is_usual else _CREATE_CONTEXT(purpose, **found_in)


ssl.create_default_context = _create_context


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """A service that stops unfreezes all: the next one to start would walk over every test that was collected."""
    yield
    if _unfrozen:
        _unfrozen.clear()
        gc.freeze()
