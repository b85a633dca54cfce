"""Load the settings, the engine and the criteria for commands that judge."""

import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from meruit.app import build_engine
from meruit.config import Settings
from meruit.model.criterion import SuccessCriteria
from meruit.model.vote import JUDGE
from meruit.registry import find_entry_points
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
    _spare_plugin_search()
    settings = Settings.load(config)
    if max_judge_cost is not None:
        settings = settings.model_copy(update={"judging": settings.judging.limit_cost(max_judge_cost)})
    engine = build_engine(settings, allow_python_full=allow_python_full, governed=governed)
    if fresh:
        from meruit.judges.service import ModelJudges

        judges = engine.services.get(JUDGE)
        if isinstance(judges, ModelJudges):
            judges.ask_again()
    wanted = load_criteria(
        criteria,
        known_metrics=engine.catalogue.names(),
        max_criteria=settings.verification.max_criteria_per_task,
        examine=examine_with(engine.catalogue),
    )
    return EngineWithCriteria(settings=settings, engine=engine, criteria=wanted)


def _spare_plugin_search() -> None:
    """Let pydantic look for plugins of its own the way we look for ours: reading a few files of installed packages.

    Its first model otherwise loads Python's own search, which takes longer than a verification. The search sees the
    same packages, and is still used where one of them has a plugin for pydantic.
    """
    name = "importlib.metadata"
    if name in sys.modules or "pydantic.plugin._loader" in sys.modules:
        return
    stand_in = ModuleType(name)
    stand_in.__dict__["entry_points"] = find_entry_points
    sys.modules[name] = stand_in
    try:
        # A later pydantic may search in another way, and then finds the real module.
        with suppress(ImportError):
            import_module("pydantic.plugin._loader")
    finally:
        del sys.modules[name]
