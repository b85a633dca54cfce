"""Whether criteria can be judged by here at all, told before anyone is judged by them."""

from meruit.documents.document import told
from meruit.errors import CriteriaError, Problem, Unavailable
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Fault
from meruit.model.text import visible
from meruit.verify.catalogue import Prepared
from meruit.verify.engine import VerificationEngine


def prepare(engine: VerificationEngine, criteria: SuccessCriteria, name: str = "criteria") -> Prepared:
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
        raise kind(name, told(problems))
    return prepared
