"""What a model judge answers to a question about the work."""

from meruit.metrics.support.judge_question import PARAMS, read_question
from meruit.model.evidence import Cause, Fault, Missing, Provenance
from meruit.model.kinds import MetricType
from meruit.model.vote import JUDGE
from meruit.model.work import Work
from meruit.registry import Ask, Measure, metrics

_ASK = Ask({"question": "Is the reply polite?", "choices": ["yes", "no"], "judge": "polite"})


@metrics.add(
    "judge",
    kind=MetricType.CUSTOM,
    params=PARAMS,
    provenance=Provenance.JUDGED,
    service=JUDGE,
    examples=[(Work(output={"text": "With pleasure!"}), Missing, _ASK)],
)
def judge(ask: Ask) -> Measure:
    """The answer that enough votes of a judge agree on: one of the choices, or a number on the scale."""
    if not ask.params:
        return lambda _work: Missing("a judge needs a question", Cause.AUTHOR_ERROR, Fault.AUTHOR)
    name = read_question(ask).judge
    why = f"no judge {name!r}: this engine has no judges; name them under `judges` in the settings"
    return lambda _work: Missing(why, Cause.METRIC_DISABLED, Fault.SYSTEM)
