"""An evaluation with a judge of known error, and reviews of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from meruit.evaluations.evaluation import Case, CaseError
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.outcomes.service import Registrar
from meruit.review.results import ReviewResults
from meruit.review.service import Reviews
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

TENANT = "acme"
# Any: as an author writes them.
CRITERIA: dict[str, Any] = {
    "criteria": [
        {"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True, "id": "right"},
        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 30, "required": False},
    ]
}
CASES = 200


def truth_of(number: int) -> bool:
    """What people would say: three of four are right."""
    return number % 4 != 0


def case_of(number: int, *, wrong_every: int = 10) -> Case:
    right = truth_of(number) != (number % wrong_every == 3)
    return Case(
        f"c{number}",
        {"reference": "yes"},
        {"text": "yes" if right else "no"},
        {"duration_ms": 5},
        tags={"lang": "de" if number % 5 == 0 else "en"},
        claimed="fail" if number % 50 == 7 else None,
    )


def number_of(case_id: str) -> int:
    return int(case_id[1:])


def evaluate(store: Store, name: str, tenant: str = TENANT, *, wrong_every: int = 10, cases: int = CASES) -> None:
    evaluator = Evaluator(Registrar(VerificationEngine(), store), tenant)
    criteria = evaluator.compile(CRITERIA)
    several = [case_of(number, wrong_every=wrong_every) for number in range(cases)]
    broken = Case("broken", {"reference": "yes"}, None, error=CaseError.TARGET_ERROR)
    run_cases(evaluator, evaluator.start(name, criteria), criteria, [*several, broken])


@pytest.fixture(scope="module")
def judged_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path_factory.mktemp("reviews")))
    evaluate(opened, "first")
    evaluate(opened, "second", wrong_every=7)
    evaluate(opened, "third")
    evaluate(opened, "first", "other", cases=20)
    yield opened
    opened.close()


@pytest.fixture
def reviews(judged_store: Store) -> Reviews:
    return Reviews(judged_store, TENANT)


@pytest.fixture
def results(judged_store: Store) -> ReviewResults:
    return ReviewResults(judged_store, TENANT)


@pytest.fixture
def evaluations(judged_store: Store) -> Evaluations:
    return Evaluations(judged_store, TENANT)
