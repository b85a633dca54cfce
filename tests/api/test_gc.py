"""What a process that serves does with its memory is undone when it stops, however it stops."""

import gc
from contextlib import suppress

import pytest

from meruit.api.gc import THRESHOLD, freeze_gc


@pytest.mark.parametrize("crash", [None, ZeroDivisionError()])
def test_the_collector_is_left_as_it_was_found(crash: Exception | None) -> None:
    before = gc.get_threshold()
    with suppress(ZeroDivisionError), freeze_gc():
        assert gc.get_threshold()[0] == THRESHOLD
        assert gc.get_freeze_count() > 0
        if crash is not None:
            raise crash
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
