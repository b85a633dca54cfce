"""Reports that compare agents: the cost of their verified runs, the success of all runs, and how certain both are.

Read in this order:

- runs_file.py - recorded runs in a JSON file
- population.py - which runs are counted, and which are excluded by which rule
- statistics.py - intervals and tests
- agent_summary.py - one agent
- compare.py - agents against each other
- reconciliation.py - observations, and local against billed tokens
- answer.py - the sentence that answers the report's question
- report.py - the report as data
- standings.py - leaderboards of benchmarks, and two benchmark runs compared
- charts.py, page.py, templates/ - the report as an HTML page, from the parts that all pages share (meruit.pages)
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.reports.page import render
    from meruit.reports.report import Report, build_report
    from meruit.reports.runs_file import RunsFile, read_runs
    from meruit.reports.standings import BenchmarkStandings, Leaderboard, RunComparison, Standing

__all__ = [
    "BenchmarkStandings",
    "Leaderboard",
    "Report",
    "RunComparison",
    "RunsFile",
    "Standing",
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
        "reports.standings": ("BenchmarkStandings", "Leaderboard", "RunComparison", "Standing"),
    },
)
