"""What labellers are asked where nothing else is said: the judge's own question and choices. Pure."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from meruit.model.criterion import SuccessCriterion
from meruit.model.kinds import ComparisonOperator
from meruit.review.label import CANNOT_TELL_KEY, LabelChoice

JUDGE_METRIC = "judge"
YES_NO = (LabelChoice("yes", "y", meets=True), LabelChoice("no", "n", meets=False))
KEYS = "123456789abcdefghijkl"
# Any: an answer is a text or a number, as the threshold is.
_TESTS: Mapping[ComparisonOperator, Callable[[Any, Any], bool]] = {
    ComparisonOperator.EQ: operator.eq,
    ComparisonOperator.NEQ: operator.ne,
    ComparisonOperator.GTE: operator.ge,
    ComparisonOperator.GT: operator.gt,
    ComparisonOperator.LTE: operator.le,
    ComparisonOperator.LT: operator.lt,
}


def is_judged(criterion: SuccessCriterion) -> bool:
    """Whether a model judges it."""
    return criterion.metric == JUDGE_METRIC


def question_of(criterion: SuccessCriterion | None) -> str:
    """The judge's question, or whether the work meets the criterion or all criteria."""
    if criterion is None:
        return "Is this work acceptable?"
    if is_judged(criterion) and isinstance(criterion.params.get("question"), str):
        return str(criterion.params["question"])
    return f"Does the work meet the criterion {criterion.id or criterion.label!r}?"


def instructions_of(criterion: SuccessCriterion | None) -> str:
    """The judge's rubric; empty where there is none."""
    if criterion is None or not is_judged(criterion):
        return ""
    rubric = criterion.params.get("rubric")
    return rubric if isinstance(rubric, str) else ""


def choices_of(criterion: SuccessCriterion | None) -> tuple[LabelChoice, ...]:
    """The judge's choices or the numbers of its scale, each with what the threshold makes of it; else yes and no."""
    if criterion is None or not is_judged(criterion):
        return YES_NO
    test = None if criterion.comparison is None else _TESTS.get(criterion.comparison)
    answers = _answers(criterion.params)
    if test is None or len(answers) < 2:
        return YES_NO
    try:
        meets = [test(answer, criterion.threshold) for answer in answers]
    except TypeError:
        return YES_NO
    names = [str(answer) for answer in answers]
    return tuple(LabelChoice(name, key, meets=met) for name, key, met in zip(names, _keys(names), meets, strict=True))


def _answers(params: Mapping[str, Any]) -> list[Any]:
    choices, scale = params.get("choices"), params.get("scale")
    if isinstance(choices, list):
        return [one for one in choices if isinstance(one, str)]
    if isinstance(scale, list) and len(scale) == 2 and all(isinstance(end, int) for end in scale):
        return [*range(scale[0], scale[1] + 1)]
    return []


def _keys(names: list[str]) -> list[str]:
    """The first letter of each where they differ, else a number."""
    letters = [name[:1].lower() for name in names]
    plain = all(letter.isalnum() for letter in letters) and CANNOT_TELL_KEY not in letters
    return letters if plain and len({*letters}) == len(letters) else [*KEYS[: len(names)]]
