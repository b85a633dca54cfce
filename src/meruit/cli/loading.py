"""What the commands that judge read first: the settings, the engine they describe, and the criteria."""

from typing import NamedTuple

from meruit.app import build_engine
from meruit.cli.output import visible
from meruit.config import Settings, load_criteria
from meruit.documents.document import told
from meruit.engine.catalogue import Prepared
from meruit.engine.verify import VerificationEngine
from meruit.model.criterion import SuccessCriteria
from meruit.model.errors import CriteriaError, Problem, Unavailable
from meruit.model.evidence import Fault


class Loaded(NamedTuple):
    """Settings, the engine that they describe, and criteria that it can read."""

    settings: Settings
    engine: VerificationEngine
    criteria: SuccessCriteria


def load(criteria: str, config: str | None, *, allow_python_full: bool = False) -> Loaded:
    """Read the settings and the criteria; raises with every problem of the file that is wrong."""
    settings = Settings.load(config)
    engine = build_engine(settings, allow_python_full=allow_python_full)
    wanted = load_criteria(
        criteria,
        known_metrics=engine.catalogue.names(),
        max_criteria=settings.verification.max_criteria_per_task,
    )
    return Loaded(settings, engine, wanted)


def prepare(engine: VerificationEngine, criteria: SuccessCriteria, file: str) -> Prepared:
    """Compile the criteria; raises CriteriaError naming each that asks what its metric cannot answer.

    Where nothing is wrong with the criteria, but this installation does not do what they ask, it is Unavailable.
    """
    prepared = engine.compile(criteria)
    problems: dict[Problem, Fault] = {}
    for rule, slot in zip(prepared.plan.rules, (prepared.slots[number] for number in prepared.slot_of), strict=True):
        if slot.flaw is not None:
            # Without params, only what the threshold lists can be at fault.
            part = "params" if rule.criterion.params else "threshold"
            # A pattern may hold line breaks, and each criterion gets one line.
            problem = Problem(slot.place or f"criteria[{rule.position}].{part}", visible(slot.flaw.why))
            problems[problem] = slot.flaw.fault
    if problems:
        kind = Unavailable if {*problems.values()} == {Fault.SYSTEM} else CriteriaError
        raise kind("standard input" if file == "-" else file, told(problems))
    return prepared
