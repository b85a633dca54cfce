"""What tests of stores share."""

from collections.abc import Iterator

import pytest
from tests.events.emitting import ME, Clock

from meruit.events.store.outbox import TakeLease
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_location: Location, clock: Clock) -> Iterator[Store]:
    """On every kind of database; ME is the one who delivers."""
    opened = Store.open(store_location, ClockAndEntropy(clock=clock))
    opened.recorder.write(TakeLease(ME, 3600))
    yield opened
    opened.close()
