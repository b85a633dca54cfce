"""What tests of the engine share."""

import random
from collections.abc import Iterator

import pytest
from tests.faults.gate_crew import Nursery, nursery
from tests.postgres import NewDatabase

from meruit.store.location import Location
from meruit.store.store import Store


@pytest.fixture
def store(store_location: Location) -> Iterator[Store]:
    """On every kind of database."""
    opened = Store.open(store_location)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For what does not depend on the database; each test has tenants of its own."""
    opened = Store.open(Location(tmp_path_factory.mktemp("shared")))
    yield opened
    opened.close()


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return f"t{random.getrandbits(60):x}"


@pytest.fixture(scope="module")
def process() -> Iterator[Nursery]:
    """Where workers come from."""
    with nursery() as made:
        yield made


@pytest.fixture(scope="module")
def database(new_postgres: NewDatabase) -> str:
    """One for all tests of a file: DBOS makes its tables once."""
    return new_postgres()
