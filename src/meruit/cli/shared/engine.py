"""Load the settings, the engine and the criteria for commands that judge."""

from typing import NamedTuple

from meruit.app import build_engine
from meruit.config import Settings
from meruit.judges.service import ModelJudges
from meruit.model.criterion import SuccessCriteria
from meruit.model.vote import JUDGE
from meruit.verify.engine import VerificationEngine
from meruit.verify.faults import examine_with
from meruit.verify.load import load_criteria


class EngineWithCriteria(NamedTuple):
    """Settings, the engine that they configure, and criteria."""

    settings: Settings
    engine: VerificationEngine
    criteria: SuccessCriteria


def load_engine(
    criteria: str,
    config: str | None,
    *,
    allow_python_full: bool = False,
    governed: bool = False,
    fresh: bool = False,
    max_judge_cost: float | None = None,
) -> EngineWithCriteria:
    """Read the settings and the criteria; raises DocumentError with every problem of a bad file.

    With `fresh`, judges are asked again what they answered before. `max_judge_cost` is the most, in dollars, that they
    may cost for one evaluation, where the settings are not stricter.
    """
    settings = Settings.load(config)
    if max_judge_cost is not None:
        settings = settings.model_copy(update={"judging": settings.judging.limit_cost(max_judge_cost)})
    engine = build_engine(settings, allow_python_full=allow_python_full, governed=governed)
    judges = engine.services.get(JUDGE)
    if fresh and isinstance(judges, ModelJudges):
        judges.ask_again()
    wanted = load_criteria(
        criteria,
        known_metrics=engine.catalogue.names(),
        max_criteria=settings.verification.max_criteria_per_task,
        examine=examine_with(engine.catalogue),
    )
    return EngineWithCriteria(settings, engine, wanted)
