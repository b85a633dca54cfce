"""Garbage collection in a long-running process: do not scan what was loaded at the start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 20_000
"""New objects before the collector runs; one group of submissions or requests creates thousands that stay."""


@contextmanager
def freeze_gc() -> Iterator[None]:
    """Exclude the objects that exist now, and collect less often. This saves 10 to 20 % of the work."""
    earlier = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*earlier)
        gc.unfreeze()


@contextmanager
def pause_gc() -> Iterator[None]:
    """Do not collect garbage meanwhile; for one thread at a time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
