"""One evaluation with a case of every kind."""

from collections.abc import Callable, Iterable

import pytest
from tests.evaluations.conftest import CRITERIA

from meruit.evaluations.evaluation import Case, CaseError
from meruit.evaluations.export import EvaluationExport
from meruit.evaluations.reader import Evaluations, erase_case
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.outcomes.service import Registrar
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine

HOSTILE = 'a "quoted" <b>&amp; \x00\x1b[31m ]]> 你好 \U0001f600 line\nnext'
KINDS = [
    Case("right", {"prompt": "?", "reference": "yes"}, {"text": "yes"}, {"duration_ms": 40}, tags={"lang": "en"}),
    Case("wrong", {"prompt": "?", "reference": "yes"}, {"text": "no"}, claimed="pass", cost_micros=1_500),
    Case("hostile", {"reference": HOSTILE}, {"text": HOSTILE + "!"}, group="g", tags={"k": 'v"<'}),
    Case("broken", error=CaseError.TARGET_ERROR, error_message="boom <&>"),
    Case("unmeasured", {"prompt": "no reference"}, {"text": "yes"}),
    Case("gone", {"reference": "yes"}, {"text": "secret"}),
    Case("again", {"reference": "yes"}, {"text": "yes"}),
    Case("again", {"reference": "yes"}, {"text": "no"}, repeat=1),
]
Export = Callable[[Iterable[Case]], EvaluationExport]


@pytest.fixture
def export_of(shared: Store, tenant: str) -> Export:
    def make(cases: Iterable[Case]) -> EvaluationExport:
        evaluator = Evaluator(Registrar(VerificationEngine(), shared), tenant)
        criteria = evaluator.compile(CRITERIA)
        tags = {"model": "m-1", "deployment_type": "self_deployed", "model_availability": "secret"}
        started = evaluator.start('nightly "<1>"', criteria, tags=tags)
        # Without cases it stays unfinished.
        if kept := [*cases]:
            run_cases(evaluator, started, criteria, kept)
        reader = Evaluations(shared, tenant)
        found = reader.find(started.id)
        for case in [*reader.cases(found)]:
            if case.case_id == "gone":
                erase_case(shared, tenant, case.outcome_id, "asked for")
        return EvaluationExport(reader, found)

    return make


@pytest.fixture
def exported(export_of: Export) -> EvaluationExport:
    return export_of(KINDS)
