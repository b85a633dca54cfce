"""What tests of the bridges share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from meruit.store.location import Location
from meruit.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path / "data"))
    yield opened
    opened.close()
