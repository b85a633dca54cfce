"""Turns evidence into a verdict: pure and exact, so that a verdict can be computed again years later.

Read in this order:
    plan.py        criteria, compiled once
    compare.py     one value compared with one threshold
    verdict.py     `conclude`: each criterion judged on its evidence, and the verdict
    aggregate.py   weights and required criteria added up
    batch.py       many works judged column by column, with the same results
    difference.py  what changed between two verdicts on one work
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.judge.batch import VERDICTS, judge_columns
    from meruit.judge.verdict import rejudge

__all__ = [
    "VERDICTS",
    "judge_columns",
    "rejudge",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "judge.batch": (
            "VERDICTS",
            "judge_columns",
        ),
        "judge.verdict": ("rejudge",),
    },
)
