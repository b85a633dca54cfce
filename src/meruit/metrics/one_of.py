"""Whether an answer is one of the allowed ones."""

from meruit.metrics.support.keywords import check_params
from meruit.metrics.support.reference import (
    FIELD_PARAM,
    NORMALIZE_PARAM,
    normalize_references,
    normalizer,
    path_of,
    text_at,
)
from meruit.model.evidence import Fault, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

PARAMS = {"choices": "the allowed answers, where the threshold does not list them"} | FIELD_PARAM | NORMALIZE_PARAM


@metrics.add(
    "one_of",
    kind=MetricType.BOOLEAN,
    params=PARAMS,
    examples=[
        (Work(output={"text": "Approved"}), True, Ask({"choices": ["approved", "denied"]})),
        (Work(output={"text": "approved, I think"}), False, Ask({"choices": ["approved", "denied"]})),
        (Work(output={"status": 3}), True, Ask({"choices": [1, 2, 3], "field": "status"})),
        (Work(), Missing, Ask({"choices": ["yes", "no"]})),
    ],
)
def one_of(ask: Ask) -> Measure:
    """Whether the text is one of the allowed answers and nothing else; case and outer white space do not count."""
    check_params(ask, "one_of", PARAMS)
    choices = ask.wanted or ask.params.get("choices")
    path, normalize = path_of(ask), normalizer(ask, ("strip", "case"))
    known = choices if choices is None else frozenset(normalize_references(choices, "choices", normalize))

    def measure(work: Work) -> Finding:
        if known is None:
            return Missing("no answers are allowed; list them as params.choices", fault=Fault.AUTHOR)
        text = text_at(work, path)
        return text if isinstance(text, Missing) else normalize(text) in known

    return measure
