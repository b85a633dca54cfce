"""What a process that serves does with its memory is undone when it stops, however it stops."""

import gc
from contextlib import suppress

import pytest

from meruit.api.bodies import gc as collecting
from meruit.api.bodies.gc import THRESHOLD, GcPause, freeze_gc


@pytest.mark.parametrize("crash", [None, ZeroDivisionError()])
def test_the_collector_is_left_as_it_was_found(crash: Exception | None) -> None:
    before = gc.get_threshold()
    with suppress(ZeroDivisionError), freeze_gc():
        assert gc.get_threshold()[0] == THRESHOLD
        assert gc.get_freeze_count() > 0
        if crash is not None:
            raise crash
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_pauses_may_overlap() -> None:
    first, second = GcPause(), GcPause()
    first.release()
    first.release()
    assert not gc.isenabled()
    second.release()
    assert gc.isenabled()


def test_pauses_that_overlap_for_long_let_it_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    monkeypatch.setattr(collecting, "MAX_OFF_S", -1.0)
    first, second = GcPause(), GcPause()
    first.release()
    second.release()
    assert (collected, gc.isenabled()) == ([0], True)


def test_many_new_objects_are_collected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    monkeypatch.setattr(collecting, "MAX_OFF_S", -1.0)
    monkeypatch.setattr(collecting, "FEW", -1)
    for longest, expected in ((60.0, []), (-1.0, [0])):
        monkeypatch.setattr(collecting, "LONGEST_OFF_S", longest)
        first, second = GcPause(), GcPause()
        first.release()
        second.release()
        assert collected == expected


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        GcPause().release()
        assert not gc.isenabled()
    finally:
        gc.enable()
