"""The specification of the outcome verification framework: its printed code and YAML, executed as printed.

The files beside this one hold each block to the letter. Where we decided otherwise, a comment says why.
"""

import asyncio
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Union

import pytest
from pydantic import BaseModel

import meruit
from meruit import (
    ComparisonOperator,
    Cost,
    CriterionResult,
    CustomExtractor,
    Execution,
    MetricType,
    OutcomeRecord,
    RuleGovernance,
    Sandbox,
    SuccessCriteria,
    SuccessCriterion,
    VerificationEngine,
    VerificationResult,
    WorkSubmission,
    build_engine,
    extractor_registry,
    parse_criteria,
    validate_threshold,
)
from meruit.config import Settings
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store

PRINTED = Path(__file__).with_suffix("").with_name("outcome_framework")
TEXT = "In summary, " + "the claims were judged one by one, and " * 4 + "in conclusion nine of ten hold."


def text_of(name: str) -> str:
    return (PRINTED / f"{name}.txt").read_text(encoding="utf-8")


def run(name: str, **around: Any) -> dict[str, Any]:
    """The names that a printed block defines, among those that it takes for granted."""
    names: dict[str, Any] = {"__name__": f"printed.{name}", **around}
    exec(compile(text_of(f"{name}.py"), name, "exec"), names)
    return names


TYPES = run("types")
BASE = run("base_extractor")


# Criteria.


@pytest.mark.parametrize("ours", [MetricType, ComparisonOperator])
def test_every_printed_kind_exists(ours: type[Enum]) -> None:
    printed = TYPES[ours.__name__]
    assert {one.name: one.value for one in printed}.items() <= {one.name: one.value for one in ours}.items()


def test_a_criterion_takes_the_printed_fields_and_defaults() -> None:
    given = {"metric": "accuracy", "metric_type": "accuracy", "comparison": "gte", "threshold": 0.9}
    ours, printed = SuccessCriterion(**given), TYPES["SuccessCriterion"](**given)
    # An unset `required` gates under `all` only: printed as true, it would turn `any` and `weighted` into `all`.
    assert ours.model_dump(include={*printed.model_fields_set, "weight", "bonus", "penalty"}) == printed.model_dump(
        exclude={"required"}
    )
    assert SuccessCriteria(criteria=[ours]).model_dump(include={"aggregation", "minimum_weighted_score"}) == TYPES[
        "SuccessCriteria"
    ](criteria=[printed]).model_dump(exclude={"criteria"})


def both_examples() -> list[SuccessCriteria]:
    """The block holds two documents, each with a comment above it."""
    parts = text_of("examples.yaml").split("# Image Classification Task\n")
    return [parse_criteria(part, "example") for part in parts]


def test_the_printed_criteria_are_read() -> None:
    first, second = both_examples()
    assert [one.metric for one in first.criteria] == ["accuracy", "latency_ms", "output_length", "contains_keywords"]
    assert [one.required for one in first.criteria] == [True, False, True, False]
    assert (first.aggregation, second.aggregation, second.minimum_weighted_score) == ("all", "weighted", 0.75)
    printed = TYPES["SuccessCriteria"](
        **second.model_dump(
            mode="json",
            include={
                "criteria": {"__all__": {"metric", "metric_type", "comparison", "threshold", "weight", "bonus"}},
                "aggregation": True,
                "minimum_weighted_score": True,
            },
        )
    )
    assert [one.weight for one in printed.criteria] == [0.6, 0.4]


LABELS = [{"label": "no"}] * 5 + [{"label": "yes"}] * 5
WORK: dict[str, Any] = {
    "work_input": {"ground_truth": LABELS, "required_keywords": ["summary", "conclusion"]},
    "work_output": {"text": TEXT, "predictions": [*LABELS[:9], {"label": "no"}], "confidence": 0.9},
    "execution_metadata": {"duration_ms": 1200},
}


def test_the_printed_call_judges_the_printed_criteria() -> None:
    extractors = {
        "latency": meruit.LatencyExtractor(),
        "text_quality": meruit.TextQualityExtractor(),
        "classification": meruit.ClassificationExtractor(),
        "contains": meruit.ContainsExtractor(),
    }
    engine = VerificationEngine(extractors=extractors, governance=RuleGovernance())
    result = asyncio.run(engine.verify(contract_id="c-1", success_criteria=both_examples()[0], **WORK))
    assert (result.success, result.bonus, result.penalty, result.weighted_score) == (True, 0.05, 0, None)
    assert result.metrics == {"accuracy": 0.9, "latency_ms": 1200, "output_length": len(TEXT), "contains_keywords": 1.0}


# Extractors.


PRINTED_BASE: Any = BASE["MetricExtractor"]


class Words(PRINTED_BASE):  # type: ignore[misc]  # a class of the printed module
    """A user's own extractor, on the printed base class: it has no version."""

    def supported_metrics(self) -> list[str]:
        return ["words"]

    async def extract(self, task_input: dict, task_output: dict, metadata: dict) -> dict[str, float]:  # type: ignore[type-arg]
        return {"words": len(task_output["text"].split())}


WORDS = SuccessCriteria.model_validate(
    {"criteria": [{"metric": "words", "metric_type": "count", "comparison": "gte", "threshold": 2}]}
)


def test_an_extractor_on_the_printed_base_class_is_used() -> None:
    engine = VerificationEngine(extractors={"mine": Words()}, governance=RuleGovernance())
    # Twice: the second answer is the cached one.
    for _ in range(2):
        result = engine.verify_sync("c", {}, {"text": "two words"}, WORDS)
        assert (result.verdict, result.metrics, result.versions["words"]) == ("pass", {"words": 2}, "1")


def test_an_extractor_on_the_printed_base_class_is_recorded(tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path))
    try:
        registrar = Registrar(VerificationEngine({"mine": Words()}), store)
        judged = registrar.judge_sync(registrar.compile(WORDS), Submission({}, {"text": "two words"}, {}))
        assert registrar.record_sync("default", judged).version == 1
    finally:
        store.close()


def test_an_extractor_on_the_printed_base_class_is_configured() -> None:
    settings = f"extractors: {{mine: {{class: '{__name__}:Words'}}}}"
    result = build_engine(Settings.parse(settings, "settings")).verify_sync("c", {}, {"text": "two words"}, WORDS)
    assert result.success


def test_the_printed_extractors_run_in_our_engine() -> None:
    names = run("extractors", MetricExtractor=BASE["MetricExtractor"], Sandbox=Sandbox)
    # TextQualityExtractor imports corpus_bleu where its extract does not see it, so it is not among them.
    own = {name: names[f"{name}Extractor"]() for name in ("Latency", "Classification", "Contains")}
    own["Words"] = meruit.TextQualityExtractor()
    result = asyncio.run(
        VerificationEngine(extractors=own, governance=RuleGovernance()).verify(
            contract_id="c-1", success_criteria=both_examples()[0], **WORK
        )
    )
    # A list of keywords is ours to search for: the printed extractor knows those of the input only.
    assert {one.metric: one.met for one in result.criterion_results} == dict.fromkeys(
        ("accuracy", "latency_ms", "output_length", "contains_keywords"), True
    )


CODE = "def metric(input, output, metadata):\n    return {'custom': len(output['text'])}\n"


def test_the_printed_custom_extractor_runs_in_our_sandbox() -> None:
    names = run("extractors", MetricExtractor=BASE["MetricExtractor"], Sandbox=Sandbox)
    extract = names["CustomExtractor"](CODE, Sandbox()).extract({}, {"text": "four"}, {})
    assert asyncio.run(extract) == {"custom": 4}


def test_our_custom_extractor_answers_as_printed() -> None:
    extractor = CustomExtractor(CODE, Sandbox())
    assert extractor.supported_metrics() == ["custom"]
    assert asyncio.run(extractor.extract({}, {"text": "four"}, {})) == {"custom": 4.0}
    # Code that fails gives no metric, as `result.get("metrics", {})` does.
    assert asyncio.run(extractor.extract({}, {}, {})) == {}


# The engine, and what it returns.


def printed_engine() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = run(
            "engine",
            MetricExtractor=meruit.MetricExtractor,
            GovernanceClient=meruit.GovernanceClient,
            SuccessCriteria=SuccessCriteria,
            SuccessCriterion=SuccessCriterion,
            VerificationResult=VerificationResult,
            CriterionResult=CriterionResult,
            ComparisonOperator=ComparisonOperator,
            Union=Union,
            Optional=Optional,
            datetime=datetime,
        )
    extractors = {
        "latency": meruit.LatencyExtractor(),
        "text_quality": meruit.TextQualityExtractor(),
        "classification": meruit.ClassificationExtractor(),
        "contains": meruit.ContainsExtractor(),
    }
    return names["VerificationEngine"](extractors, RuleGovernance())


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.parametrize("example", [0, 1])
def test_the_printed_engine_returns_our_result(example: int) -> None:
    criteria = both_examples()[example]
    printed = asyncio.run(
        printed_engine().verify("c-1", WORK["work_input"], WORK["work_output"], criteria, {"duration_ms": 1200})
    )
    ours = build_engine(Settings()).verify_sync(
        "c-1", WORK["work_input"], WORK["work_output"], criteria, {"duration_ms": 1200}
    )
    assert isinstance(printed, VerificationResult)
    assert (printed.success, printed.bonus, printed.weighted_score) == (ours.success, ours.bonus, ours.weighted_score)
    assert (printed.verdict, printed.score, printed.coverage) == (ours.verdict, ours.score, ours.coverage)
    assert [one.met for one in printed.criterion_results] == [one.met for one in ours.criterion_results]
    assert printed.verified_at.tzinfo is UTC
    assert VerificationResult.from_json(printed.to_json()).bonus_micros == ours.bonus_micros


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_the_printed_engine_asks_our_rules() -> None:
    backwards = {"duration_ms": 1, "started_at": 100, "ended_at": 99}
    ask = printed_engine().verify("c-1", WORK["work_input"], WORK["work_output"], both_examples()[0], backwards)
    result = asyncio.run(ask)
    assert (result.success, [flag.rule for flag in result.governance_flags]) == (False, ["clock_order"])


# The models.

MODELS = run(
    "models",
    BaseModel=BaseModel,
    Optional=Optional,
    Union=Union,
    datetime=datetime,
    ComparisonOperator=ComparisonOperator,
    SuccessCriteria=SuccessCriteria,
)
GIVEN: Mapping[str, dict[str, Any]] = {
    "CriterionResult": {
        "metric": "accuracy",
        "value": 0.95,
        "threshold": 0.9,
        "comparison": ComparisonOperator.GTE,
        "met": True,
    },
    "VerificationResult": {
        "contract_id": "c-1",
        "success": True,
        "metrics": {"accuracy": 0.95},
        "criterion_results": [],
        "weighted_score": None,
        "bonus": 0.03,
        "penalty": 0.0,
        "governance_flags": [],
        "verified_at": datetime(2026, 1, 1, tzinfo=UTC),
    },
    "OutcomeRecord": {
        "id": "o-1",
        "contract_id": "c-1",
        "agent_id": "a",
        "consumer_id": "b",
        "domain": "nlp",
        "success_criteria": WORDS,
        "execution_metadata": {},
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "billing_impact": {"cpc_base": 0.1, "bonus": 0.03, "penalty": 0.0, "total": 0.13},
    },
}


@pytest.mark.parametrize("ours", [CriterionResult, VerificationResult, OutcomeRecord])
def test_a_model_takes_the_printed_fields(ours: Any) -> None:
    given = dict(GIVEN[ours.__name__])
    wanted = dict(given)
    if ours is OutcomeRecord:
        given["verification_result"] = VerificationResult(**GIVEN["VerificationResult"])
        wanted["verification_result"] = MODELS["VerificationResult"](**GIVEN["VerificationResult"])
    made, printed = ours(**given), MODELS[ours.__name__](**wanted)
    for name in printed.__class__.model_fields:
        if name != "verification_result":
            assert getattr(made, name) == getattr(printed, name), name


def test_a_result_without_a_value_is_indeterminate() -> None:
    made = CriterionResult(
        metric="accuracy",
        value=None,
        threshold=0.9,
        comparison=ComparisonOperator.GTE,
        met=False,
        error="Metric not found",
    )
    assert (made.weight, made.status, made.criterion_id, made.exact) == (1.0, "indeterminate", "accuracy", "0")


# Intake and settlement.


class HTTPException(Exception):
    """As web frameworks have it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)


def intake(published: list[tuple[str, Any]]) -> Any:
    """The printed route, with a router, a database and a queue that only remember."""

    async def create_work(work: Any) -> Any:
        return SimpleNamespace(id="w-1", work=work)

    async def publish(topic: str, event: Any) -> None:
        published.append((topic, event))

    return run(
        "intake",
        router=SimpleNamespace(post=lambda _path: lambda route: route),
        HTTPException=HTTPException,
        WorkSubmission=WorkSubmission,
        firestore=SimpleNamespace(create_work=create_work),
        pubsub=SimpleNamespace(publish=publish),
        extractor_registry=extractor_registry,
        validate_threshold=validate_threshold,
    )["submit_work"]


def test_the_printed_intake_accepts_the_printed_criteria() -> None:
    published: list[tuple[str, Any]] = []
    for criteria in both_examples():
        asyncio.run(intake(published)(WorkSubmission(title="t", success_criteria=criteria)))
    # Our own service says has_cpa only where some criterion has a bonus or a penalty.
    assert published == [("work.submitted", {"work_id": "w-1", "has_cpa": True})] * 2


@pytest.mark.parametrize(
    ("changed", "status"), [({"metric": "acuracy"}, "Unknown metric"), ({"threshold": "high"}, "Invalid threshold")]
)
def test_the_printed_intake_refuses(changed: dict[str, Any], status: str) -> None:
    good = both_examples()[0].criteria[0]
    wrong = WorkSubmission(title="t").model_copy(
        update={"success_criteria": SimpleNamespace(criteria=[good.model_copy(update=changed)])}
    )
    with pytest.raises(HTTPException) as refused:
        asyncio.run(intake([])(wrong))
    assert refused.value.args[0] == 400
    assert refused.value.args[1].startswith(status)


@pytest.mark.parametrize(
    ("bonus", "penalty", "most", "total"), [(0.05, 0.0, None, 0.15), (0.05, 0.0, 0.02, 0.12), (0.0, 0.5, None, 0.0)]
)
def test_the_printed_settlement_takes_our_result(bonus: float, penalty: float, most: Any, total: float) -> None:
    verification = VerificationResult(**{**GIVEN["VerificationResult"], "bonus": bonus, "penalty": penalty})
    execution = Execution.model_validate(
        {"agent": {"pricing": {"cpc_rate": 0.1}}, "task": {"budget": {"max_cpa_total": most}}}
    )
    calculate = run("settlement", Execution=Execution, VerificationResult=VerificationResult, Cost=Cost)
    printed = asyncio.run(calculate["calculate_cost"](execution, verification))
    # Ours is exact and clamps the penalty too, so that the parts add up to the total.
    ours = meruit.calculate_cost(execution, verification)
    assert float(printed.total) == pytest.approx(total)
    assert float(ours.total) == pytest.approx(total)
    assert set(printed.breakdown) == set(ours.breakdown)


# Settings.


def test_the_printed_settings_are_honoured() -> None:
    settings = Settings.parse(text_of("settings.yaml"), "config/outcome-verification.yaml")
    assert [*settings.extractors] == ["latency", "text_quality", "classification", "contains", "custom"]
    verification = settings.verification
    assert (verification.governance_check, verification.store_outcomes) == (True, True)
    assert verification.max_criteria_per_task == 10
    assert settings.caching.extractor_results_ttl == 300
    assert settings.sandbox is not None
    assert (settings.sandbox.timeout_ms, settings.sandbox.memory_limit_mb) == (5000, 256)
    engine = build_engine(settings)
    assert engine.verify_sync("c-1", success_criteria=both_examples()[0], **WORK).governance == "clear"
