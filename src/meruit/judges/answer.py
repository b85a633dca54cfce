"""Reads a model's answer: one JSON object with a reason and an answer, or why it cannot be used."""

import json
import re
from typing import Any

import msgspec

from meruit.errors import UnreadableAnswer
from meruit.metrics.support.judge_question import JudgeQuestion
from meruit.model.vote import VoteAnswer

MAX_REASON = 4_000
_WHOLE = re.compile(r"[+-]?[0-9]{1,6}")
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


class ParsedAnswer(msgspec.Struct, frozen=True):
    """What a model answered, mapped back to what the author wrote."""

    answer: VoteAnswer
    reason: str


# Any: a model may answer with any JSON.
def read_answer(reply: Any, question: JudgeQuestion) -> ParsedAnswer:
    """The answer in a JSON object or its text; raises UnreadableAnswer."""
    found = _parse_object(reply) if isinstance(reply, str) else reply
    if not isinstance(found, dict):
        raise UnreadableAnswer("the answer is not a JSON object")
    if "answer" not in found:
        raise UnreadableAnswer("the answer has no `answer`")
    reason = found.get("reason", "")
    return ParsedAnswer(_map_back(found["answer"], question), reason[:MAX_REASON] if isinstance(reason, str) else "")


def _parse_object(text: str) -> Any:
    """The one object of a text; models like to put words or a code fence around it."""
    for candidate in (text, *(found[0] for found in [_OBJECT.search(text)] if found)):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    raise UnreadableAnswer("the answer is not JSON")


def _map_back(answer: Any, question: JudgeQuestion) -> VoteAnswer:
    if question.scale is not None:
        return _read_number(answer, question.scale)
    if isinstance(answer, str):
        wanted = answer.strip().casefold()
        for choice in question.choices or ():
            if choice.casefold() == wanted:
                return choice
    raise UnreadableAnswer("the answer is not one of the choices")


def _read_number(answer: Any, scale: tuple[int, int]) -> int:
    if isinstance(answer, str) and _WHOLE.fullmatch(answer.strip()):
        answer = int(answer)
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not scale[0] <= answer <= scale[1]:
        raise UnreadableAnswer(f"the answer is not a whole number from {scale[0]} to {scale[1]}")
    return answer
