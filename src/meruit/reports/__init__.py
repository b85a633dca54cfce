"""What may be said of agents, and no more: costs of verified runs, success of all of them, and how sure either is."""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.reports.page import render
    from meruit.reports.report import Report, build_report
    from meruit.reports.runs_file import RunsFile, read_runs

__all__ = [
    "Report",
    "RunsFile",
    "build_report",
    "read_runs",
    "render",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "reports.page": ("render",),
        "reports.report": (
            "Report",
            "build_report",
        ),
        "reports.runs_file": (
            "RunsFile",
            "read_runs",
        ),
    },
)
