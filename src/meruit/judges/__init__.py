"""Model judges: criteria that ask a model a question about the work, with every vote kept as evidence.

Read in this order:
    settings.py      judges as an operator names them: a model, a panel, a cascade
    prices.py        what their calls cost
    service.py       ModelJudges: answers the metric `judge` for an engine
    voter.py         which model casts which vote, and the versions of judges
    desk.py          VotingDesk: each question once, within limits, several at a time
    prompt.py        the prompt: our words and the author's question outside of the fence, the work inside
    fence.py         the fence: work as data, without invisible characters, behind a nonce
    api.py           the two chat APIs
    client.py        one question over HTTP
    answer.py        reads a model's answer
    prefer.py        which of two outputs a judge prefers
    injections.py    outputs that try to talk a judge round
    scope.py         for which tenant and evaluation judges are asked
    vote_records.py  where votes and tokens are kept: the interface, and one in memory
    store.py         the same in the store: tables and SQL
    records.py       what other packages read of it

`judge/votes.py` turns votes into a value. It is pure, and an auditor runs it again.
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.judges.records import JudgedCriterion, judged_criteria
    from meruit.judges.scope import JudgingScope, judging_for
    from meruit.judges.service import ModelJudges
    from meruit.judges.settings import JudgeSettings, JudgingSettings
    from meruit.judges.vote_records import TokenTotal
    from meruit.model.vote import JudgeEvidence, Vote, VoteStatus

__all__ = [
    "JudgeEvidence",
    "JudgeSettings",
    "JudgedCriterion",
    "JudgingScope",
    "JudgingSettings",
    "ModelJudges",
    "TokenTotal",
    "Vote",
    "VoteStatus",
    "judged_criteria",
    "judging_for",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "judges.records": ("JudgedCriterion", "judged_criteria"),
        "judges.scope": ("JudgingScope", "judging_for"),
        "judges.service": ("ModelJudges",),
        "judges.settings": ("JudgeSettings", "JudgingSettings"),
        "judges.vote_records": ("TokenTotal",),
        "model.vote": ("JudgeEvidence", "Vote", "VoteStatus"),
    },
)
