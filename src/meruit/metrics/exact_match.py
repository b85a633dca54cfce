"""Whether an answer is the reference, word for word."""

from meruit.metrics.support.keywords import check_params
from meruit.metrics.support.reference import (
    FIELD_PARAM,
    NORMALIZE_PARAM,
    REFERENCE_PARAM,
    normalizer,
    path_of,
    reference_reader,
    text_at,
)
from meruit.model.evidence import Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

PARAMS = FIELD_PARAM | REFERENCE_PARAM | NORMALIZE_PARAM


@metrics.add(
    "exact_match",
    kind=MetricType.BOOLEAN,
    params=PARAMS,
    examples=[
        (Work(output={"text": "Paris\n"}, input={"reference": "Paris"}), True),
        (Work(output={"text": "paris"}, input={"reference": "Paris"}), False),
        (
            Work(output={"text": "The Eiffel Tower!"}, input={"reference": "eiffel tower"}),
            True,
            Ask({"normalize": "squad"}),
        ),
        (Work(output={"answer": 42}, input={"references": ["42", "forty-two"]}), True, Ask({"field": "answer"})),
        (Work(output={"text": "Paris"}), Missing),
    ],
)
def exact_match(ask: Ask) -> Measure:
    """Whether the text is one of the references; white space at both ends does not count."""
    check_params(ask, "exact_match", PARAMS)
    path, normalize = path_of(ask), normalizer(ask, ("strip",))
    references = reference_reader(ask, normalize)

    def measure(work: Work) -> Finding:
        right = references(work)
        if isinstance(right, Missing):
            return right
        text = text_at(work, path)
        return text if isinstance(text, Missing) else normalize(text) in right

    return measure
