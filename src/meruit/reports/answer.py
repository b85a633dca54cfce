"""The sentence at the top of a report: who does the work, how surely, at what cost, and whose counts say so."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meruit.model.task_run import ConfidenceInterval
from meruit.pages.number_format import format_interval, format_money, format_share
from meruit.reports.agent_summary import AgentSummary, Measure, Share
from meruit.reports.compare import Comparison, ComparisonScale, RunPopulation, is_clear

LONGEST_NAME = 40
MOST_NAMES = 3
"""How many agents the sentence names beside the first."""


@dataclass(frozen=True, slots=True)
class PopulationCounts:
    """How many runs there are, and whose counts verify them."""

    runs: int
    by_provider: int
    by_file: int
    """Verified by observations in a file only."""
    include_imported: bool


@dataclass(frozen=True, slots=True)
class _Lead:
    """The first agent compared with another: a difference, or a ratio of costs."""

    other: str
    estimate: float
    interval: ConfidenceInterval | None
    clear: bool
    tested: bool


def answer_question(
    agents: Sequence[AgentSummary], comparisons: Sequence[Comparison], measure: Measure | None, currency: str
) -> str:
    """Answer in one sentence which agent does the work, how surely, and at what cost."""
    known = [one for one in agents if measure is not None and _result(one, measure).rate is not None]
    if measure is None or not known:
        return "Unknown: no finished run has a recorded success or score."
    best = known[0]
    if len(agents) == 1:
        return f"{_name(best.agent)} {_describe_result(best, measure)}{_describe_cost_alone(best, currency)}."
    level = [one.agent for one in known if _result(one, measure).rate == _result(best, measure).rate]
    if len(level) > 1:
        share = f"share the highest {measure}, {format_share(_result(best, measure).rate)}"
        return f"No agent is clearly best: {_list_names(level)} {share}; {_describe_cheapest(level, comparisons)}."
    others = [one.agent for one in agents if one is not best]
    leads = {one.other: one for one in _leads(best.agent, comparisons, measure, RunPopulation.FINISHED)}
    return f"{_describe_lead(best, others, leads, measure)}; {_describe_cost(best, others, comparisons)}."


def describe_basis(counts: PopulationCounts) -> str:
    """Describe whose counts the answer rests on, and how many runs are not counted."""
    rest = counts.runs - counts.by_provider - counts.by_file
    parts = [f"Tokens and cost: counted by the provider for {counts.by_provider:,} of {counts.runs:,} runs"]
    if counts.by_file and counts.include_imported:
        parts.append(
            f"imported from files for {counts.by_file:,} (--include-imported), where the provider was not asked"
        )
    elif counts.by_file:
        parts.append(
            f"{counts.by_file:,} were imported from files and are not counted (--include-imported counts them)"
        )
    if rest:
        parts.append(f"{rest:,} {'is' if rest == 1 else 'are'} not verified and not counted")
    return f"{'; '.join(parts)}."


def _describe_lead(best: AgentSummary, others: Sequence[str], leads: dict[str, _Lead], measure: Measure) -> str:
    name, result = _name(best.agent), _describe_result(best, measure)
    ahead = [one for one in leads.values() if one.clear and one.estimate > 0]
    close = [one for one in others if one not in {lead.other for lead in ahead}]
    if not close:
        nearest = min(ahead, key=lambda one: one.estimate)
        points = f"{100 * nearest.estimate:.1f} points more than {_name(nearest.other)}"
        return f"{name} does the work best: it {result}, {points}"
    untested = [one for one in close if one not in leads or not leads[one].tested]
    start = f"{name} leads: it {result}" if ahead else f"No agent is clearly best: {name} {result}"
    if len(untested) == len(close):
        return f"{start}, but too few tasks are shared to compare it with {_list_names(close)}"
    return f"{start}, but its lead over {_list_names(close)} may be chance"


def _describe_cost(best: AgentSummary, others: Sequence[str], comparisons: Sequence[Comparison]) -> str:
    if not best.verified:
        return "its cost is unknown, because none of its runs is counted"
    ratios = [*_leads(best.agent, comparisons, Measure.COST, RunPopulation.VERIFIED)]
    if not any(one.tested for one in ratios):
        return "its cost cannot be compared: too few tasks have a verified, known cost of every agent"
    dearer = [one for one in ratios if one.clear and one.estimate > 1]
    cheaper = [one for one in ratios if one.clear and one.estimate < 1]
    if dearer:
        most = max(dearer, key=lambda one: one.estimate)
        return f"a task costs {_times(most)} what {_name(most.other)} costs"
    if len(cheaper) == len(others):
        nearest = max(cheaper, key=lambda one: one.estimate)
        return f"it is also the cheapest, at {_times(nearest)} what {_name(nearest.other)} costs"
    return "what it costs does not clearly differ from the others"


def _describe_cheapest(level: Sequence[str], comparisons: Sequence[Comparison]) -> str:
    """Describe which of equally good agents costs least."""
    for name in level:
        ratios = [one for one in _leads(name, comparisons, Measure.COST, RunPopulation.VERIFIED) if one.other in level]
        if len(ratios) == len(level) - 1 and all(one.clear and one.estimate < 1 for one in ratios):
            nearest = max(ratios, key=lambda one: one.estimate)
            return f"{_name(name)} is the cheapest of them, at {_times(nearest)} what {_name(nearest.other)} costs"
    return "none of them is clearly the cheapest"


def _describe_cost_alone(best: AgentSummary, currency: str) -> str:
    if best.spend.per_success is None:
        return f", at an unknown cost: {best.spend.why_not}"
    return f", at {format_money(best.spend.per_success, currency)} per success"


def _describe_result(one: AgentSummary, measure: Measure) -> str:
    share = _result(one, measure)
    word = "scores" if measure is Measure.SCORE else "succeeds in"
    of_runs = f" on average over {share.runs:,} runs" if measure is Measure.SCORE else f" of {share.runs:,} runs"
    interval = f"95 % interval {format_interval(share.interval, 'share')}" if share.interval else "no interval"
    return f"{word} {format_share(share.rate)}{of_runs} ({interval})"


def _leads(best: str, comparisons: Sequence[Comparison], measure: Measure, among: RunPopulation) -> Iterator[_Lead]:
    """The comparisons of one agent, each seen from its side."""
    for one in comparisons:
        if (one.measure, one.among) != (measure, among) or one.estimate is None or best not in (one.a, one.b):
            continue
        other, estimate, interval = one.b, one.estimate, one.interval
        if one.b == best:
            ratio = one.scale is ComparisonScale.RATIO
            other, estimate = one.a, 1 / estimate if ratio else -estimate
            if interval is not None:
                low, high = (1 / interval.high, 1 / interval.low) if ratio else (-interval.high, -interval.low)
                interval = ConfidenceInterval(low, high)
        yield _Lead(other, estimate, interval, clear=is_clear(one), tested=one.p_holm is not None)


def _result(one: AgentSummary, measure: Measure) -> Share:
    return one.score if measure is Measure.SCORE else one.success


def _times(lead: _Lead) -> str:
    interval = f" ({lead.interval.low:.3g} to {lead.interval.high:.3g})" if lead.interval else ""
    return f"{lead.estimate:.3g} times{interval}"


def _list_names(names: Sequence[str]) -> str:
    shown = [_name(one) for one in names[:MOST_NAMES]]
    more = len(names) - len(shown)
    return (
        f"{', '.join(shown)} and {more:,} more"
        if more
        else " and ".join([*filter(None, [", ".join(shown[:-1])]), shown[-1]])
    )


def _name(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
