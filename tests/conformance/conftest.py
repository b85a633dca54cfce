"""Stores of each kind: one that a test has for itself, one that properties share, each example in its own tenants."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from meruit.store.location import Location
from meruit.store.store import Store

_NUMBERS = count()


@pytest.fixture
def store(store_location: Location) -> Iterator[Store]:
    """A new store of this test alone."""
    opened = Store.open(store_location)
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store for many examples."""
    folder = tmp_path_factory.mktemp("shared")
    if request.param == "postgresql":
        opened = Store.open(Location(folder, request.getfixturevalue("new_postgres")()))
    else:
        opened = Store.open(Location(folder))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def new_tenant() -> Callable[[], str]:
    """A tenant that nobody else has used."""
    return lambda: f"tenant-{next(_NUMBERS)}"
