"""Evidence in, verdict out: pure, exact, the same today and in ten years."""

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
