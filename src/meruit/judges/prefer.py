"""Which of two outputs a judge prefers: both orders are asked, and answers that contradict each other are a tie."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meruit.judges.prompt import ShownWork, show_part
from meruit.judges.scope import JudgingScope
from meruit.judges.service import ModelJudges
from meruit.metrics.support.judge_question import JudgeQuestion, read_question
from meruit.model.canonical import payload_digest
from meruit.model.evidence import Measured
from meruit.model.work import PRIVATE_INPUTS
from meruit.registry import Ask

DEFAULT_QUESTION = "Which of the two outputs is the better answer to the input?"
FIRST, SECOND, SAME = "the first", "the second", "neither"
"""The choices of such a question."""


class Preferred(StrEnum):
    """Which of two outputs is better."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    OPEN = "open"
    """The judge gave no answer to one of the two orders."""


@dataclass(frozen=True, slots=True)
class PairQuestion:
    """A question about two outputs of one case."""

    judge: str
    question: str = DEFAULT_QUESTION
    rubric: str = ""
    votes: int = 1
    max_tokens: int | None = None
    """Ask nothing more once so many tokens were used for the comparison."""
    max_cost: float | None = None
    """Ask nothing that could cost more, in US dollars; the price of the model must be known."""

    def read(self) -> JudgeQuestion:
        """The question as a judge takes it; raises AuthorError."""
        params: dict[str, Any] = {"judge": self.judge, "question": self.question, "votes": self.votes}
        if self.rubric:
            params["rubric"] = self.rubric
        return read_question(Ask({**params, "choices": [FIRST, SECOND, SAME]}))


class PairJudge:
    """Asks one judge about pairs of outputs; votes are kept and counted as those of criteria are."""

    def __init__(self, judges: ModelJudges, question: PairQuestion) -> None:
        """Raises AuthorError for a judge that the settings do not name."""
        self._extractor = judges.open_question(question.read(), question.max_cost)

    @property
    def version(self) -> str:
        """The judge's version."""
        return self._extractor.version

    async def prefer(
        self, given: Mapping[str, Any], first: Mapping[str, Any], second: Mapping[str, Any], scope: JudgingScope
    ) -> Preferred:
        """Which of two outputs of one input is better; equal ones are a tie, and not asked about."""
        if payload_digest(first) == payload_digest(second):
            return Preferred.TIE
        one, other = await asyncio.gather(
            self._ask(given, first, second, scope), self._ask(given, second, first, scope)
        )
        if one is None or other is None:
            return Preferred.OPEN
        match one, other:
            case "the first", "the second":
                return Preferred.FIRST
            case "the second", "the first":
                return Preferred.SECOND
            case _:
                return Preferred.TIE

    async def _ask(
        self, given: Mapping[str, Any], first: Mapping[str, Any], second: Mapping[str, Any], scope: JudgingScope
    ) -> str | None:
        seen = {key: one for key, one in given.items() if key not in PRIVATE_INPUTS}
        parts = {"input": show_part(seen), "first output": show_part(first), "second output": show_part(second)}
        shown = ShownWork(parts, payload_digest(first), payload_digest(second))
        found = await self._extractor.desk.judge(self._extractor.judge, shown, scope)
        return str(found.value) if isinstance(found, Measured) else None
