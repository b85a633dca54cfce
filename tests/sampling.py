"""Samples of what takes too long to run in full: seeded by the commit, so that a failed run can be repeated."""

import os
import subprocess
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

from hypothesis import settings

IN_FULL = "MERUIT_DEATHS" in os.environ
"""`make endurance` runs everything."""
SEED_VARIABLE = "MERUIT_SEED"
THOROUGH = 1_000
"""So many examples has a property in `make thorough`."""
T = TypeVar("T")


@cache
def seed() -> int:
    """The seed of this run's samples: `MERUIT_SEED`, or else one that is made of the commit."""
    given = os.environ.get(SEED_VARIABLE)
    if given is not None:
        return int(given)
    root = Path(__file__).parents[1]
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return int(found.stdout[:7], 16) if found.returncode == 0 else 0


def is_in_full() -> bool:
    """Whether everything is to be run: `make endurance`, and `make thorough` with its many examples."""
    return IN_FULL or settings().max_examples >= THOROUGH


def examples(few: int) -> settings:
    """So many examples of a property that costs much or has many cases; in `make thorough`, as many as any other."""
    return settings(max_examples=THOROUGH if is_in_full() else few)


def sample(cases: Sequence[T], one_in: int, always: Collection[T] = (), name: str = "") -> list[T]:
    """One in so many of the cases, by the seed and a name; those that must not be missed are in every sample."""
    if is_in_full():
        return list(cases)
    missing = set(always) - set(cases)
    assert not missing, f"not among the cases: {missing}"
    chosen = Random(f"{seed()} {name}").sample(range(len(cases)), -(-len(cases) // one_in))
    return [case for place, case in enumerate(cases) if place in chosen or case in always]


def pytest_report_header() -> str:
    """Print how to repeat the samples."""
    return f"samples: {SEED_VARIABLE}={seed()}"
