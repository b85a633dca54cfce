"""Votes of model judges: one model's answer to one question about one piece of work, kept as evidence."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from meruit.model.decoding import convert_to
from meruit.model.record import Record

JUDGE = "judge"
"""The metric whose value is voted, and the key of the votes in a criterion's details."""
MIN_LABELS = 50
"""Random labels of people from which on a judge counts as calibrated, where nothing else is asked."""
VoteAnswer = str | int
"""One of the choices, or a whole number on the scale."""


class VoteStatus(StrEnum):
    """How one vote ended. Only a usable vote counts."""

    USABLE = "usable"
    REFUSED = "refused"
    """The model declined to answer."""
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The endpoint did not answer, or answered with an error."""
    UNREADABLE = "unreadable"
    """The answer does not have the asked form, also after one more try."""
    LIMIT = "limit"
    """Not asked, because a limit of tokens or cost is reached."""


ANSWERED = frozenset({VoteStatus.USABLE, VoteStatus.REFUSED, VoteStatus.UNREADABLE})
"""Votes that a model answered; they are kept and not asked again."""


class Vote(Record, frozen=True):
    """One model's answer, with everything that was asked and answered except the work itself."""

    key: str
    """The content address: voter version, prompt and ordinal."""
    voter: str
    """The name of the model in the settings."""
    ordinal: int
    """Its number within the stage, from 1."""
    stage: int
    """0, or the step of a cascade."""
    status: VoteStatus
    answer: VoteAnswer | None
    """As the author wrote the choice; None unless it is usable."""
    reason: str
    """Why, in the model's words."""
    api: str
    model_asked: str
    model: str
    """As the endpoint names it; empty without an answer."""
    parameters: dict[str, Any]
    prompt_digest: str
    order: list[str]
    """The choices in the order in which they were shown; empty for a scale."""
    raw: str
    """The answer as received, cut with a note where it is long."""
    problem: str | None
    input_tokens: int | None
    output_tokens: int | None
    latency_ms: int
    asked_at: datetime
    cached: bool
    """Whether it was answered before and taken from the records."""
    repaired: bool
    """Whether the first answer was unreadable and the model was asked once more."""


class JudgeEvidence(Record, frozen=True):
    """What a judge said about one piece of work: the votes, and the rule that turns them into a value."""

    name: str
    """The judge's name in the settings."""
    version: str
    """Digest of template, question, rubric, answers, models, parameters and the rule of agreement."""
    choices: list[str] | None
    scale: tuple[int, int] | None
    """Lowest and highest number; None where there are choices."""
    agree: int
    """How many votes of one stage must be equal."""
    votes: list[Vote]
    low: VoteAnswer | None = None
    """The lowest usable vote, by number or by the order of the choices; None without one."""
    high: VoteAnswer | None = None

    def has_answer(self, answer: VoteAnswer | None) -> bool:
        """Whether the question can be answered so."""
        if self.choices is not None:
            return isinstance(answer, str) and answer in self.choices
        # True equals 1, and is not a number on a scale.
        is_number = isinstance(answer, int) and not isinstance(answer, bool)
        return self.scale is not None and is_number and self.scale[0] <= int(answer or 0) <= self.scale[1]

    def rank(self, answer: VoteAnswer) -> int:
        """The place of an answer among all, lowest first."""
        return self.choices.index(str(answer)) if self.choices is not None else int(answer)

    def usable(self) -> list[Vote]:
        """The votes that count."""
        return [vote for vote in self.votes if vote.status is VoteStatus.USABLE and self.has_answer(vote.answer)]


def read_judge_evidence(details: Any) -> JudgeEvidence | None:
    """The votes in the details of a criterion's result; None where there are none that can be read."""
    if not isinstance(details, dict) or JUDGE not in details:
        return None
    try:
        return convert_to(details[JUDGE], JudgeEvidence, strict=False)
    except msgspec.ValidationError:
        return None
