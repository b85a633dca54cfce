"""A report as one HTML file without scripts or external files, for phones, dark mode and paper."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from meruit.model.usage import UsageStatus
from meruit.pages.templating import build_environment
from meruit.reports import charts
from meruit.reports.agent_summary import Measure
from meruit.reports.compare import SIGNIFICANT, ComparisonScale, RunPopulation, describe_left_out, describe_reading
from meruit.reports.population import ExcludedRun
from meruit.reports.reconciliation import DiscrepancyCause, TokenClass, Waterfall
from meruit.reports.report import Report
from meruit.reports.statistics import FEWEST_TASKS, FEWEST_TO_RESAMPLE, MDE_FACTOR

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = {
    "leaderboard": "Agents",
    "front": "Cost against result",
    "pairs": "Agents against each other",
    "exclusions": "Not counted",
    "tries": "Several tries",
    "steps": "Tokens per step",
    "observations": "How runs were verified",
    "waterfall": "From local to billed",
    "ledger": "Costs side by side",
    "tasks": "Task by task",
    "excluded": "Every excluded run",
    "methods": "How it was computed",
    "again": "Make it again",
}
"""The anchor and the heading of each section, in order; its template has the anchor's name."""
MOST_LISTED = 5_000
"""How many lines of a list the page shows; report.json has all."""
STATUS_WORDS = {
    UsageStatus.VERIFIED: "verified",
    UsageStatus.PENDING: "pending",
    UsageStatus.WARNING: "warning",
    UsageStatus.DATA_NOT_AVAILABLE: "data not available",
}
FAMILY_WORDS = {
    (Measure.SUCCESS, RunPopulation.FINISHED): "Success, all finished runs",
    (Measure.SCORE, RunPopulation.FINISHED): "Score, all finished runs",
    (Measure.SUCCESS, RunPopulation.VERIFIED): "Success, verified runs alone",
    (Measure.COST, RunPopulation.VERIFIED): "Cost, verified runs",
    (Measure.TOKENS, RunPopulation.VERIFIED): "Tokens, verified runs",
}
OBSERVATION_LEGEND = [
    *((f"f {charts.STATUS_TONES[status]}", STATUS_WORDS[status]) for status in UsageStatus),
    ("look", "an observation with tokens"),
    ("look imported", "the same, imported"),
    ("look none", "an observation without tokens, or failed"),
]


def render(report: Report) -> bytes:
    """Render the page; the same report gives the same bytes."""
    return _environment().get_template("report.html").render(report=report, most_listed=MOST_LISTED).encode()


@cache
def _environment() -> "Environment":
    made = build_environment("meruit.reports")
    # Any: values of every type that templates name.
    names: dict[str, Any] = {
        "sections": SECTIONS,
        "family_words": FAMILY_WORDS,
        "statuses": tuple(UsageStatus),
        "status_words": STATUS_WORDS,
        "status_tones": charts.STATUS_TONES,
        "cause_words": charts.CAUSE_WORDS,
        "class_legend": [(charts.CLASS_STYLES[one], charts.CLASS_WORDS[one]) for one in TokenClass],
        "observation_legend": OBSERVATION_LEGEND,
        "ratio_scale": ComparisonScale.RATIO,
        "significant": SIGNIFICANT,
        "causes_of": _list_causes,
        "first_excluded": _find_first_excluded,
        "describe_left_out": describe_left_out,
        "describe_reading": describe_reading,
        "draw_front": charts.cost_against_value,
        "draw_forest": charts.forest,
        "draw_steps": charts.tokens_per_step,
        "draw_observations": charts.observations,
        "draw_waterfall": charts.local_to_billed,
        "fewest_tasks": FEWEST_TASKS,
        "fewest_to_resample": FEWEST_TO_RESAMPLE,
        "mde_factor": MDE_FACTOR,
    }
    made.globals.update(names)
    return made


def _list_causes(waterfalls: Sequence[Waterfall]) -> list[DiscrepancyCause]:
    """The causes that any agent has, in order."""
    return [cause for cause in DiscrepancyCause if any(cause in one.parts for one in waterfalls)]


def _find_first_excluded(excluded: Sequence[ExcludedRun]) -> dict[tuple[str, str], int]:
    """The place of the first excluded run of each agent and task, to link to."""
    found: dict[tuple[str, str], int] = {}
    for place, one in enumerate(excluded):
        found.setdefault((one.agent, one.task), place)
    return found
