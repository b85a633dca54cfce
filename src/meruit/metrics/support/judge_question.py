"""What a judged criterion asks: its params, read and validated once."""

from dataclasses import dataclass
from typing import Any

from meruit.errors import AuthorError
from meruit.metrics.support.keywords import check_params
from meruit.model.vote import JUDGE
from meruit.registry import Ask

PARTS = ("input", "output", "reference")
"""What of the work a judge may see."""
DEFAULT_PARTS = ("input", "output")
DEFAULT_VOTES = 3
MAX_VOTES = 15
MAX_TEXT = 20_000
"""Characters of a question or a rubric."""
MAX_CHOICES = 20
MAX_CHOICE = 200
MAX_STEPS = 100
"""Numbers on a scale."""

PARAMS = {
    "question": "what the judge is asked about the work",
    "rubric": "how to decide; the agent never sees it",
    "choices": "the possible answers, each a text; or use `scale`",
    "scale": "lowest and highest whole number, as [1, 5]; or use `choices`",
    "sees": "what of the work the judge sees: `input`, `output`, `reference` (input and output when not given)",
    "judge": "the judge's name in the settings",
    "votes": "how often it is asked, 1 to 15 (3 when not given)",
    "agree": "how many votes must be equal, more than half (just more than half when not given)",
}


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """One question to one judge."""

    question: str
    rubric: str
    choices: tuple[str, ...] | None
    scale: tuple[int, int] | None
    sees: tuple[str, ...]
    judge: str
    votes: int
    agree: int


def read_question(ask: Ask) -> JudgeQuestion:
    """Read the params; raises AuthorError naming the one that is wrong."""
    check_params(ask, JUDGE, PARAMS)
    if ask.wanted:
        raise AuthorError("a judge's answer is compared with eq or neq, or with a number; nothing is contained in it")
    choices = _read_choices(ask.params["choices"]) if "choices" in ask.params else None
    scale = _read_scale(ask.params["scale"]) if "scale" in ask.params else None
    if (choices is None) == (scale is None):
        raise AuthorError("a judge needs either choices, as [good, poor], or a scale, as [1, 5]")
    votes = _read_count(ask, "votes", DEFAULT_VOTES, 1, MAX_VOTES)
    return JudgeQuestion(
        question=_read_text(ask, "question"),
        rubric=_read_text(ask, "rubric") if "rubric" in ask.params else "",
        choices=choices,
        scale=scale,
        sees=_read_parts(ask.params.get("sees", DEFAULT_PARTS)),
        judge=_read_text(ask, "judge"),
        votes=votes,
        # More than half, so that two answers can never both be agreed.
        agree=_read_count(ask, "agree", votes // 2 + 1, votes // 2 + 1, votes),
    )


def _read_text(ask: Ask, name: str) -> str:
    if name not in ask.params:
        raise AuthorError(f"a judge needs the param {name}: {PARAMS[name]}")
    value = ask.params[name]
    if not isinstance(value, str) or not value.strip():
        raise AuthorError(f"the param {name} is a text that is not empty, not {value!r:.80}")
    if len(value) > MAX_TEXT:
        raise AuthorError(f"the param {name} has {len(value):,} characters; the limit is {MAX_TEXT:,}")
    return value


# Any: what an author may write.
def _read_choices(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 2 <= len(value) <= MAX_CHOICES:
        raise AuthorError(f"the param choices is a list of 2 to {MAX_CHOICES} texts")
    for one in value:
        if not isinstance(one, str) or not one.strip() or one != one.strip() or not one.isprintable():
            raise AuthorError(f"a choice is a text without line breaks or space around it, not {one!r}; quote it")
        if len(one) > MAX_CHOICE:
            raise AuthorError(f"a choice has at most {MAX_CHOICE} characters")
    if len({one.casefold() for one in value}) < len(value):
        raise AuthorError("two choices are equal, apart from capitals; each must be different")
    return tuple(value)


def _read_scale(value: Any) -> tuple[int, int]:
    match value:
        case [int(low), int(high)] if not isinstance(low, bool) and not isinstance(high, bool):
            if low < high <= low + MAX_STEPS and abs(low) <= MAX_TEXT:
                return low, high
    raise AuthorError(f"the param scale is [lowest, highest], two whole numbers at most {MAX_STEPS} apart, as [1, 5]")


def _read_parts(value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not listed or any(one not in PARTS for one in listed):
        raise AuthorError(f"the param sees lists {', '.join(PARTS)}, at least one of them; not {value!r}")
    return tuple(part for part in PARTS if part in listed)


def _read_count(ask: Ask, name: str, default: int, low: int, high: int) -> int:
    value = ask.params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise AuthorError(f"the param {name} is a whole number from {low} to {high}, not {value!r}")
    return value
