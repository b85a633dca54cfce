"""Samples of what takes too long to run in full: seeded by the commit, so that a failed run can be repeated."""

import os
import subprocess
from functools import cache
from pathlib import Path

IN_FULL = "MERUIT_DEATHS" in os.environ
"""`make endurance` runs everything."""
SEED_VARIABLE = "MERUIT_SEED"


@cache
def seed() -> int:
    """The seed of this run's samples: `MERUIT_SEED`, or else one that is made of the commit."""
    given = os.environ.get(SEED_VARIABLE)
    if given is not None:
        return int(given)
    root = Path(__file__).parents[1]
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return int(found.stdout[:7], 16) if found.returncode == 0 else 0


def pytest_report_header() -> str:
    """Print how to repeat the samples."""
    return f"samples: {SEED_VARIABLE}={seed()}"
