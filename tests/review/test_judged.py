"""A model judge, checked by people: asked alike, calibrated by version, marked where it is not."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import count

import pytest
from click.testing import CliRunner
from tests.judges.asking import criteria, engine_of, judges_of, model
from tests.judges.endpoint import Asked, Endpoint, Say, endpoint

from meruit.cli import meruit
from meruit.evaluations.evaluation import Case
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.outcomes.service import Registrar
from meruit.review.label import DrawKind
from meruit.review.results import ReviewResults, unmet_requirements
from meruit.review.service import ReviewRequest, Reviews
from meruit.store.location import Location
from meruit.store.store import Store

TENANT = "default"
CASES = 40


def is_polite(number: int) -> bool:
    return number % 3 != 0


def case_of(number: int) -> Case:
    """Every tenth reply is polite without a thank you, which the judge does not see; two divide its votes."""
    words = "Unsure" if number in (5, 7) else "Thank you" if is_polite(number) and number % 10 != 4 else "No"
    return Case(f"c{number}", {"text": "Please help"}, {"text": f"{words} {number}"}, tags={"lang": "en"})


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    # Of each case: votes on two of them may come in turns.
    turns = defaultdict[str, Iterator[int]](count)

    def answer(asked: Asked) -> Say:
        text = asked.part("output")
        return Say("yes" if "Thank you" in text or ("Unsure" in text and next(turns[text]) % 2) else "no")

    with endpoint(answer) as made:
        yield made


@pytest.fixture(scope="module")
def judged(server: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Two evaluations by one version of a judge, and one by another."""
    store = Store.open(Location(tmp_path_factory.mktemp("judged")))
    for name, settings in (("old", {}), ("new", {}), ("other", {"model": "m-2"})):
        judges = judges_of({"polite": model(server.url, **settings)}, {"concurrency": 1})
        evaluator = Evaluator(Registrar(engine_of(judges), store), TENANT)
        compiled = evaluator.compile(criteria(votes=2, agree=2))
        run_cases(evaluator, evaluator.start(name, compiled), compiled, [case_of(n) for n in range(CASES)])
    reviews = Reviews(store, TENANT)
    made = reviews.create(ReviewRequest("labels", "old", "judge", random=30, disagreement=5, seed=3), by="test")
    for draw in reviews.draws(made):
        choice = "yes" if is_polite(int(draw.case_id[1:])) else "no"
        reviews.label(made, draw.number, labeller="ann", choice=choice, by="test")
    yield store
    store.close()


def test_people_are_asked_what_the_judge_was_asked(judged: Store) -> None:
    reviews = Reviews(judged, TENANT)
    review = reviews.find("labels")
    assert review.terms.question == "Is the reply polite?"
    assert [(one.name, one.meets) for one in review.terms.choices] == [("yes", True), ("no", False)]
    drawn = {draw.case_id: draw.kind for draw in reviews.draws(review)}
    # Cases whose votes differ are added, unless chance has drawn them.
    assert {"c5", "c7"} <= drawn.keys()
    assert {*drawn.values()} <= {DrawKind.RANDOM, DrawKind.DISAGREEMENT}
    doubtful = reviews.create(ReviewRequest("doubt", "old", "judge", doubt=5, seed=1), by="test")
    assert {draw.case_id for draw in reviews.draws(doubtful)} == {"c5", "c7"}


def test_labels_of_one_evaluation_calibrate_the_same_version_elsewhere(judged: Store) -> None:
    reader, results = Evaluations(judged, TENANT), ReviewResults(judged, TENANT)
    (known,) = results.judge_statuses(reader.find("new"), min_labels=20)
    assert (known.judge, known.criterion, known.calibrated) == ("polite", "judge", True)
    assert known.kappa is not None
    (another,) = results.judge_statuses(reader.find("other"), min_labels=20)
    assert (another.labels, another.kappa, another.calibrated) == (0, None, False)
    assert another.version != known.version
    (found,) = results.calibrations("polite", [Reviews(judged, TENANT).find("labels")])
    assert found.version == known.version
    assert found.calibration.matrix.false_positive == 0
    assert found.calibration.matrix.false_negative > 0
    assert results.judge_names([Reviews(judged, TENANT).find("labels")]) == ["polite"]


def test_the_judge_is_marked_wherever_its_figures_are(judged: Store) -> None:
    folder = str(judged.database.location.folder)
    shown = CliRunner().invoke(meruit, ["eval", "show", "new", "--data", folder], standalone_mode=False)
    assert "uncalibrated" in shown.output
    as_json = CliRunner().invoke(meruit, ["eval", "show", "old", "--json", "--data", folder], standalone_mode=False)
    found = json.loads(as_json.stdout)
    assert found["judges"][0]["judge"] == "polite"
    assert found["corrected"][0]["judged"] is True
    assert found["corrected"][0]["these"]["interval"] is not None


def test_a_pipeline_lists_what_a_judge_lacks() -> None:
    assert unmet_requirements("tone", 60, 0.7, min_kappa=0.6, min_labels=50) == []
    assert len(unmet_requirements("tone", 10, 0.5, min_kappa=0.6, min_labels=50)) == 2
    assert len(unmet_requirements("tone", 60, None, min_kappa=0.6, min_labels=None)) == 1
    assert unmet_requirements("tone", 0, None, min_kappa=None, min_labels=None) == []
