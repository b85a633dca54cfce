"""What tests of judges share: criteria, settings and an engine that asks a local endpoint."""

from collections.abc import Mapping
from typing import Any

from tests.judges.endpoint import KEY, KEY_VARIABLE

from meruit.judges.client import JudgeClient
from meruit.judges.service import ModelJudges
from meruit.judges.settings import JudgeSettings, JudgingSettings
from meruit.metrics.support.judge_question import read_question
from meruit.model.verdict import CriterionResult
from meruit.model.vote import JUDGE, JudgeEvidence, read_judge_evidence
from meruit.registry import Ask
from meruit.verify.engine import VerificationEngine

ENVIRONMENT = {KEY_VARIABLE: KEY}
PARAMS: dict[str, Any] = {"question": "Is the reply polite?", "choices": ["yes", "no"], "judge": "polite"}


async def no_sleep(_seconds: float) -> None:
    """Do not wait between retries."""


def model(url: str, **changes: Any) -> dict[str, Any]:
    """The settings of a model behind the endpoint."""
    path = "" if changes.get("api") == "anthropic" else "/v1"
    return {"base_url": url + path, "model": "m-1", "key_variable": KEY_VARIABLE, **changes}


def judges_of(
    judges: Mapping[str, Mapping[str, Any]],
    judging: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ModelJudges:
    return ModelJudges(
        {name: JudgeSettings.model_validate(one) for name, one in judges.items()},
        JudgingSettings.model_validate(judging or {}),
        client=JudgeClient(ENVIRONMENT if environment is None else environment, sleep=no_sleep),
    )


def engine_of(judges: ModelJudges) -> VerificationEngine:
    return VerificationEngine(services={JUDGE: judges})


def criteria(threshold: Any = "yes", comparison: str = "eq", **params: Any) -> dict[str, Any]:
    kind = "custom" if isinstance(threshold, str) else "numeric"
    asked = {name: value for name, value in (PARAMS | params).items() if value is not None}
    one = {"metric": JUDGE, "metric_type": kind, "comparison": comparison, "threshold": threshold, "params": asked}
    return {"criteria": [one]}


def judge_text(
    judges: ModelJudges, text: str = "With pleasure!", wanted: Mapping[str, Any] | None = None
) -> CriterionResult:
    """The result of the one judged criterion about an output."""
    result = engine_of(judges).verify_sync("c", {"text": "Please help"}, {"text": text}, wanted or criteria())
    (only,) = result.criterion_results
    return only


def votes_of(result: CriterionResult) -> JudgeEvidence:
    found = read_judge_evidence(result.details)
    assert found is not None
    return found


def question(**params: Any) -> Any:
    asked = {name: value for name, value in (PARAMS | params).items() if value is not None}
    return read_question(Ask(asked))
