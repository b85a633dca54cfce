"""How few letters have to change to make a text the reference."""

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
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

MAX_EDIT_WORK = 20_000_000_000
"""Characters of text times characters of references: about a second."""
PARAMS = FIELD_PARAM | REFERENCE_PARAM | NORMALIZE_PARAM


@metrics.add(
    "edit_similarity",
    kind=MetricType.PERCENTAGE,
    params=PARAMS,
    costly=True,
    examples=[
        (Work(output={"text": "kitten"}, input={"reference": "kitten"}), 1.0),
        (Work(output={"text": "kitten"}, input={"reference": "sitting"}), 4 / 7),
        (Work(output={"text": ""}, input={"reference": "abc"}), 0.0),
        (Work(output={"text": "gray"}, input={"references": ["grey", "grey cat"]}), 0.75),
        (Work(output={"text": "no reference"}), Missing),
    ],
)
def edit_similarity(ask: Ask) -> Measure:
    """1 less the edit distance (Levenshtein) over the longer length; of several references, the nearest counts."""
    # Loading it takes a moment, which other metrics should not pay.
    from rapidfuzz.distance import Levenshtein

    check_params(ask, "edit_similarity", PARAMS)
    path, normalize = path_of(ask), normalizer(ask, ("strip",))
    references = reference_reader(ask, normalize)

    def measure(work: Work) -> Finding:
        wanted = references(work)
        if isinstance(wanted, Missing):
            return wanted
        text = text_at(work, path)
        if isinstance(text, Missing):
            return text
        text = normalize(text)
        if len(text) * sum(map(len, wanted)) > MAX_EDIT_WORK:
            why = f"a text of {len(text)} characters is too long to be compared with references of these lengths"
            return Missing(why, cause=Cause.TOO_COSTLY, fault=Fault.SYSTEM)
        # Divided once, so that 3 of 4 is 0.75.
        longest = [max(len(text), len(reference)) for reference in wanted]
        same = [length - Levenshtein.distance(text, wanted[i]) for i, length in enumerate(longest)]
        return max(count / length for count, length in zip(same, longest, strict=True))

    return measure
