"""Whether a text says what the reference says, among other things."""

import re

from meruit.metrics.support.keywords import check_params, flag
from meruit.metrics.support.reference import (
    FIELD_PARAM,
    NORMALIZE_PARAM,
    REFERENCE_PARAM,
    normalizer,
    path_of,
    reference_reader,
    text_at,
)
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

MAX_SEARCH_WORK = 1_000_000_000
"""Characters of text times references to be searched for in it."""
PARAMS = {"whole_word": "false: `cat` is found in `concatenate`"} | FIELD_PARAM | REFERENCE_PARAM | NORMALIZE_PARAM


@metrics.add(
    "contains_reference",
    kind=MetricType.BOOLEAN,
    params=PARAMS,
    examples=[
        (Work(output={"text": "It is Paris, of course."}, input={"reference": "Paris"}), True),
        (Work(output={"text": "142 of them"}, input={"reference": "42"}), False),
        (Work(output={"text": "142 of them"}, input={"reference": "42"}), True, Ask({"whole_word": False})),
        (Work(output={"text": "Oui"}, input={"references": ["yes", "oui"]}), True),
        (Work(output={"text": "yes"}), Missing),
    ],
)
def contains_reference(ask: Ask) -> Measure:
    """Whether the text contains one of the references as whole words; case and width of white space do not count."""
    check_params(ask, "contains_reference", PARAMS)
    whole = flag(ask, "whole_word") if "whole_word" in ask.params else True
    path, normalize = path_of(ask), normalizer(ask, ("case", "whitespace"))
    references = reference_reader(ask, normalize)

    def measure(work: Work) -> Finding:
        wanted = references(work)
        if isinstance(wanted, Missing):
            return wanted
        text = text_at(work, path)
        if isinstance(text, Missing):
            return text
        text = normalize(text)
        if len(text) * len(wanted) > MAX_SEARCH_WORK:
            why = f"{len(wanted)} references are too many for a text of {len(text)} characters"
            return Missing(why, cause=Cause.TOO_COSTLY, fault=Fault.AUTHOR)
        found = next((reference for reference in wanted if _contains(text, reference, whole=whole)), None)
        return False if found is None else Measured(value=True, details={"found": found})

    return measure


def _contains(text: str, reference: str, *, whole: bool) -> bool:
    if not whole:
        return reference in text
    # A script without spaces has no word ends: there only letters and digits of ASCII and the like need an end.
    before = r"(?<!\w)" if _ends_word(reference[0]) else ""
    after = r"(?!\w)" if _ends_word(reference[-1]) else ""
    return reference in text and re.search(before + re.escape(reference) + after, text) is not None


def _ends_word(char: str) -> bool:
    """Whether a letter or digit next to this character would make it part of a longer word."""
    return char.isalnum() and not _is_written_without_spaces(char)


def _is_written_without_spaces(char: str) -> bool:
    """Whether words of this script follow each other without a space: Thai to Khmer, Chinese, Japanese."""
    code = ord(char)
    return 0x0E00 <= code <= 0x0EFF or 0x1000 <= code <= 0x109F or 0x1780 <= code <= 0x17FF or code >= 0x3040
