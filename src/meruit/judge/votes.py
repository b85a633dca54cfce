"""Votes to a value: the rule of agreement. Pure, so that an auditor computes a judged criterion again."""

from collections import Counter
from typing import Any

import msgspec

from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.vote import JUDGE, JudgeEvidence, VoteAnswer, VoteStatus

MAX_PROBLEM = 300
"""Characters of the first failed vote's problem that the reason quotes."""


def decide_votes(evidence: JudgeEvidence) -> Measured | Missing:
    """The value that enough votes agree on, or why there is none; the votes are its details.

    Stages are taken in order: the first in which exactly one answer has `agree` votes decides.
    """
    evidence = _with_bounds(evidence)
    # Any: plain JSON.
    details: dict[str, Any] = {JUDGE: msgspec.to_builtins(evidence)}
    usable = evidence.usable()
    counts: Counter[VoteAnswer] = Counter()
    for stage in sorted({vote.stage for vote in evidence.votes}):
        counts = Counter(vote.answer for vote in usable if vote.stage == stage and vote.answer is not None)
        agreed = [answer for answer, votes in counts.items() if votes >= evidence.agree]
        if len(agreed) == 1:
            return Measured(agreed[0], details)
    last = max((vote.stage for vote in evidence.votes), default=0)
    asked = [vote for vote in evidence.votes if vote.stage == last]
    if counts.total() >= evidence.agree:
        why = f"the votes of judge {evidence.name!r} disagree: {evidence.agree} of {len(asked)} must be equal"
        return Missing(why, Cause.VOTES_DISAGREE, Fault.NONE, details)
    why = f"judge {evidence.name!r} gave {counts.total()} of {len(asked)} votes; {evidence.agree} are needed"
    if limited := next((vote for vote in asked if vote.status is VoteStatus.LIMIT), None):
        why += f" ({limited.problem or 'a limit is reached'})"
    elif problem := next((vote.problem for vote in asked if vote.problem), None):
        why += f": {problem[:MAX_PROBLEM]}"
    return Missing(why, Cause.VOTES_MISSING, Fault.SYSTEM, details)


def _with_bounds(evidence: JudgeEvidence) -> JudgeEvidence:
    answers = [vote.answer for vote in evidence.usable() if vote.answer is not None]
    low = min(answers, key=evidence.rank, default=None)
    high = max(answers, key=evidence.rank, default=None)
    return msgspec.structs.replace(evidence, low=low, high=high)
