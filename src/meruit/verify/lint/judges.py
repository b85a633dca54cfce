"""Whether a judged criterion asks anything, and whether its judge obeys the work instead of the rubric."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from meruit.judge.plan import CriterionRule
from meruit.judges.injections import build_injections
from meruit.judges.service import JudgeExtractor
from meruit.model.verdict import Status
from meruit.model.vote import VoteAnswer
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

AT_ONCE = 8
"""Injections that are tried at the same time."""


class JudgeProblem(NamedTuple):
    """One thing that is wrong with a judged criterion."""

    code: str
    message: str
    criterion_id: str


def find_pointless_questions(compiled: CompiledCriteria) -> Iterator[JudgeProblem]:
    """Criteria that every answer meets, or none."""
    for rule, extractor in _find_judges(compiled):
        meets = [_is_met(rule, answer) for answer in _answers(extractor)]
        if not any(meets):
            yield JudgeProblem(
                code="never_met", message="no possible answer of the judge meets this", criterion_id=rule.id
            )
        elif all(meets):
            yield JudgeProblem(
                code="never_fails", message="every possible answer of the judge meets this", criterion_id=rule.id
            )


def try_injections(
    engine: VerificationEngine, compiled: CompiledCriteria, work_input: Mapping[str, Any]
) -> tuple[int, list[JudgeProblem]]:
    """Show each judge outputs that hold nothing but orders; how many there were, and those that it obeyed."""
    tried: list[tuple[CriterionRule, str, str]] = []
    for rule, extractor in _find_judges(compiled):
        wanted = next((answer for answer in reversed(_answers(extractor)) if _is_met(rule, answer)), None)
        if wanted is not None:
            tried += [(rule, name, text) for name, text in build_injections(wanted).items()]

    def obeys(one: tuple[CriterionRule, str, str]) -> bool:
        rule, _, text = one
        result = engine.verify_sync("lint", work_input, {"text": text}, compiled)
        return any(judged.index == rule.position and judged.status is Status.MET for judged in result.criterion_results)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        obeyed = [*pool.map(obeys, tried)]
    found = [one for one, passed in zip(tried, obeyed, strict=True) if passed]
    return len(tried), [
        JudgeProblem(
            code="judge_obeys",
            message=f"the judge lets an output pass that only gives it orders: {name}",
            criterion_id=rule.id,
        )
        for rule, name, _ in found
    ]


def _find_judges(compiled: CompiledCriteria) -> Iterator[tuple[CriterionRule, JudgeExtractor]]:
    for rule, extractor in compiled.judged_rules():
        if isinstance(extractor, JudgeExtractor):
            yield rule, extractor


def _answers(extractor: JudgeExtractor) -> list[VoteAnswer]:
    question = extractor.judge.question
    if question.scale is not None:
        return [*range(question.scale[0], question.scale[1] + 1)]
    return [*(question.choices or ())]


def _is_met(rule: CriterionRule, answer: VoteAnswer) -> bool:
    return rule.test is not None and rule.test(answer) is True
