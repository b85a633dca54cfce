"""What the commands that judge read first: the settings, the engine they describe, and the criteria."""

from typing import NamedTuple

from meruit.app import build_engine
from meruit.cli.output import visible
from meruit.config import Settings, load_criteria
from meruit.documents.document import told
from meruit.engine.catalogue import Prepared
from meruit.engine.verify import VerificationEngine
from meruit.model.criterion import SuccessCriteria
from meruit.model.errors import CriteriaError, Problem


class Loaded(NamedTuple):
    """Settings, the engine that they describe, and criteria that it can read."""

    settings: Settings
    engine: VerificationEngine
    criteria: SuccessCriteria


def load(criteria: str, config: str | None) -> Loaded:
    """Read the settings and the criteria; raises with every problem of the file that is wrong."""
    settings = Settings.load(config)
    engine = build_engine(settings)
    wanted = load_criteria(
        criteria,
        known_metrics=engine.catalogue.names(),
        max_criteria=settings.verification.max_criteria_per_task,
    )
    return Loaded(settings, engine, wanted)


def prepare(engine: VerificationEngine, criteria: SuccessCriteria, file: str) -> Prepared:
    """Compile the criteria; raises CriteriaError naming each that asks what its metric cannot answer."""
    prepared = engine.compile(criteria)
    problems = []
    for rule, slot in zip(prepared.plan.rules, prepared.slot_of, strict=True):
        flaw = prepared.slots[slot].flaw
        if flaw is not None:
            # Without params, only what the threshold lists can be at fault.
            part = "params" if rule.criterion.params else "threshold"
            # A pattern may hold line breaks, and each criterion gets one line.
            problems.append(Problem(f"criteria[{rule.position}].{part}", visible(flaw.why)))
    if problems:
        raise CriteriaError("standard input" if file == "-" else file, told(problems))
    return prepared
