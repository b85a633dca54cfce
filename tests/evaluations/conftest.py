"""An evaluator on every kind of store."""

from collections.abc import Iterator
from typing import Any

import pytest

from meruit.evaluations.reader import Evaluations
from meruit.evaluations.service import Evaluator
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

TENANT = "acme"
# Any: as an author writes them.
CRITERIA: dict[str, Any] = {
    "criteria": [
        {"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True},
        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3, "required": False},
    ]
}


@pytest.fixture
def records(store_location: Location) -> Iterator[Store]:
    opened = Store.open(store_location)
    yield opened
    opened.close()


@pytest.fixture
def evaluator(records: Store) -> Evaluator:
    return Evaluator(Registrar(VerificationEngine(), records), TENANT)


@pytest.fixture
def reader(records: Store) -> Evaluations:
    return Evaluations(records, TENANT)


@pytest.fixture
def criteria(evaluator: Evaluator) -> CompiledCriteria:
    return evaluator.compile(CRITERIA)
