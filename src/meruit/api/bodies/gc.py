"""Garbage collection in a long-running process: do not scan what was loaded at the start."""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

THRESHOLD = 20_000
"""New objects before the collector runs; one group of submissions or requests creates thousands that stay."""

MAX_OFF_S = 30.0
"""How long the collector may be off while pauses overlap."""
LONGEST_OFF_S = 300.0
"""The same while there are many new objects."""
FEW = 200_000
"""New objects that are collected in a few milliseconds."""


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


class GcPause:
    """Keeps the collector off until it is released; several may overlap."""

    _lock: ClassVar = threading.Lock()
    _held: ClassVar[int] = 0
    _was_on: ClassVar[bool] = True
    _off_since: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._is_released = False
        with GcPause._lock:
            if not GcPause._held:
                GcPause._was_on, GcPause._off_since = gc.isenabled(), time.monotonic()
                gc.disable()
            GcPause._held += 1

    def release(self) -> None:
        """Let the collector run again, unless others keep it off; a second call does nothing."""
        with GcPause._lock:
            if self._is_released:
                return
            self._is_released = True
            GcPause._held -= 1
            if not GcPause._held:
                if GcPause._was_on:
                    gc.enable()
            elif time.monotonic() - GcPause._off_since > (MAX_OFF_S if gc.get_count()[0] < FEW else LONGEST_OFF_S):
                # Callers that take turns must not keep it off for ever. While a large document lives, it takes long.
                gc.collect(0)
                GcPause._off_since = time.monotonic()


@contextmanager
def pause_gc() -> Iterator[None]:
    """Do not collect garbage meanwhile."""
    pause = GcPause()
    try:
        yield
    finally:
        pause.release()
