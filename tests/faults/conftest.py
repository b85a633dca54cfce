"""The hostile tests are one package: its scripts run as processes of their own, from the folder of the repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = "test_hostile.py"

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the long tests evenly: neighbours are given to one worker, and the others would wait for it."""
    long = [item for item in items if item.path.name == LONG]
    others = [item for item in items if item.path.name != LONG]
    stride = max(1, len(items) // max(1, len(long)))
    for number, item in enumerate(long):
        others.insert(number * stride, item)
    items[:] = others
