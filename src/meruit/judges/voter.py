"""Judges made ready: which model casts which vote, and the versions of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meruit.errors import AuthorError
from meruit.judges.prompt import TEMPLATE
from meruit.judges.settings import JudgeSettings
from meruit.metrics.support.judge_question import JudgeQuestion
from meruit.model.canonical import digest
from meruit.suggestions import nearest


@dataclass(frozen=True, slots=True)
class Voter:
    """One model that votes on one question."""

    name: str
    settings: JudgeSettings
    version: str
    """Digest of template, question and answers, model and parameters; neither name nor address."""

    # Any: JSON.
    def parameters(self, ordinal: int) -> dict[str, Any]:
        """What is sent beside the prompt for one vote."""
        return {
            "temperature": self.settings.temperature,
            "seed": self.seed(ordinal),
            "max_tokens": self.settings.max_tokens,
            "answer": "tool" if self.settings.api == "anthropic" else self.settings.answer,
        }

    def seed(self, ordinal: int) -> int | None:
        """The seed of one vote: equal seeds would give equal votes, which say nothing more."""
        if self.settings.seed is None or self.settings.api == "anthropic":
            return None
        return self.settings.seed + ordinal - 1


@dataclass(frozen=True, slots=True)
class ReadyJudge:
    """A judge for one question: the voters of each stage, and its version."""

    name: str
    question: JudgeQuestion
    stages: tuple[tuple[Voter, ...], ...]
    version: str

    def voter(self, stage: int, ordinal: int) -> Voter:
        """Who casts a vote: the members of a panel in turn."""
        members = self.stages[stage]
        return members[(ordinal - 1) % len(members)]


def find_judge(judges: Mapping[str, JudgeSettings], question: JudgeQuestion) -> ReadyJudge:
    """The judge that a question names; raises AuthorError naming those that there are."""
    found = judges.get(question.judge)
    if found is None:
        known = f"; there are {', '.join(sorted(judges))}" if judges else "; the settings have no `judges`"
        raise AuthorError(f"no judge is named {question.judge!r}{nearest(question.judge, judges)}{known}")
    names = found.cascade or (question.judge,)
    stages = tuple(_members(judges, name, question) for name in names)
    too_few = next((len(stage) for stage in stages if len(stage) > question.votes), None)
    if too_few is not None:
        raise AuthorError(
            f"the panel of judge {question.judge!r} has {too_few} models and votes is {question.votes}; "
            "ask for at least one vote of each"
        )
    version = digest([[[one.version for one in stage] for stage in stages], question.votes, question.agree])
    return ReadyJudge(question.judge, question, stages, version)


def _members(judges: Mapping[str, JudgeSettings], name: str, question: JudgeQuestion) -> tuple[Voter, ...]:
    return tuple(_voter(member, judges[member], question) for member in judges[name].panel or (name,))


def _voter(name: str, settings: JudgeSettings, question: JudgeQuestion) -> Voter:
    asked = [question.question, question.rubric, question.choices, question.scale, question.sees]
    how = [settings.api, settings.model, settings.temperature, settings.seed, settings.max_tokens, settings.answer]
    return Voter(name, settings, digest([TEMPLATE, asked, how]))
