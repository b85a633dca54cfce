"""The sections of a page, each from one part of a report."""

from collections.abc import Callable, Iterable, Sequence

from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import UsageStatus
from meruit.reports import charts
from meruit.reports.agent_summary import AgentSummary, Measure, Share
from meruit.reports.compare import Comparison, ComparisonScale, RunPopulation, describe_left_out
from meruit.reports.markup import Child, Markup, isolate_bidi, join_markup, tag
from meruit.reports.number_format import (
    UNKNOWN,
    format_difference,
    format_factor,
    format_money,
    format_number,
    format_p,
    format_places,
    format_share,
)
from meruit.reports.population import ExcludedRun, ExclusionCount
from meruit.reports.reconciliation import DiscrepancyCause, KnownSum, LedgerLine, TokenClass, Waterfall
from meruit.reports.report import Report, TaskLine
from meruit.reports.statistics import FEWEST_TASKS, FEWEST_TO_RESAMPLE, MDE_FACTOR

MOST_LISTED = 5_000
"""How many lines of a list the page shows; report.json has all."""
STATUS_WORDS = {
    UsageStatus.VERIFIED: "verified",
    UsageStatus.PENDING: "pending",
    UsageStatus.WARNING: "warning",
    UsageStatus.DATA_NOT_AVAILABLE: "data not available",
}
MEASURE_WORDS = {
    (Measure.SUCCESS, RunPopulation.FINISHED): "Success, all finished runs",
    (Measure.SCORE, RunPopulation.FINISHED): "Score, all finished runs",
    (Measure.SUCCESS, RunPopulation.VERIFIED): "Success, verified runs alone",
    (Measure.COST, RunPopulation.VERIFIED): "Cost, verified runs",
    (Measure.TOKENS, RunPopulation.VERIFIED): "Tokens, verified runs",
}


def leaderboard(report: Report) -> Child:
    """Every agent, the best first."""
    headings = (
        "agent", "place", "success", "verified runs alone", "score", "runs", "verified", "total cost", "typical task",
        "per success", "tokens in / out",
    )  # fmt: skip
    rows = [_leaderboard_row(one, report.currency) for one in report.agents]
    measure = report.measure or "success"
    return [
        tag("p", f"Ordered by {measure} over all finished runs; places are intervals over tasks drawn again."),
        _table("Agents, 95 % intervals in small print", headings, rows, words=(0,)),
    ]


def _leaderboard_row(one: AgentSummary, currency: str) -> Sequence[Child]:
    spend, tokens = one.spend, one.tokens
    at_least = "at least " if spend.unknown and spend.total is not None else ""
    typical = _format_interval(spend.typical.interval, format_number)
    return (
        isolate_bidi(one.agent),
        format_places(one.place),
        _rate(one.success),
        _rate(one.success_verified),
        _rate(one.score),
        f"{one.finished:,} of {one.runs:,}",
        f"{one.verified:,}",
        join_markup(
            f"{at_least}{format_money(spend.total, currency)}",
            tag("small", f"{spend.runs - spend.unknown:,} of {spend.runs:,} known"),
        ),
        join_markup(format_number(spend.typical.mean), tag("small", typical or spend.typical.why_not)),
        join_markup(format_money(spend.per_success, currency), tag("small", spend.why_not) if spend.why_not else None),
        f"{tokens.input:,} / {tokens.output:,}" if tokens.runs else UNKNOWN,
    )


def _rate(one: Share) -> Child:
    if one.rate is None:
        return join_markup(UNKNOWN, tag("small", f"not recorded, n = {one.runs:,}"))
    apart = one.bounds is not None and one.bounds.low != one.bounds.high
    bounds = (
        f"at worst {format_share(one.bounds.low)}, at best {format_share(one.bounds.high)}"
        if one.bounds and apart
        else None
    )
    return join_markup(
        format_share(one.rate),
        tag("small", f"{_format_interval(one.interval, format_share) or 'no interval'}, n = {one.runs:,}"),
        bounds and tag("small", bounds),
    )


def front(report: Report) -> Child:
    """Cost against success or score."""
    if not report.points or report.measure is None:
        return tag("p", "Not drawn: no agent has both a known cost on tasks in common and a recorded outcome.")
    return tag(
        "figure",
        charts.cost_against_value(report.points, report.measure, report.currency),
        charts.legend([("on", "on the front: no agent is as good and cheaper"), ("off", "bettered by another")]),
        tag(
            "figcaption",
            f"Cost: geometric mean over the tasks where every agent is verified. {str(report.measure).capitalize()}: "
            "all finished runs. Lines are 95 % intervals.",
        ),
    )


def pairs(report: Report) -> Child:
    """Every pair of agents, measure by measure."""
    if not report.comparisons:
        return tag("p", "Nothing to compare: there are no two agents with a task in common.")
    families = [
        (word, [one for one in report.comparisons if (one.measure, one.among) == family])
        for family, word in MEASURE_WORDS.items()
    ]
    return [_family(word, several) for word, several in families if several]


def _family(word: str, several: Sequence[Comparison]) -> Child:
    drawn = any(one.estimate is not None for one in several)
    headings = (
        "pair", "tasks", "runs", "first", "second", "estimate", "p", "p, Holm", "MDE", "Wilcoxon p", "Cliff's δ",
        "won – lost – tied", "totals",
    )  # fmt: skip
    many = len(several) - charts.MOST_PAIRS
    return [
        tag("h3", word),
        tag(
            "figure",
            charts.forest(several, f"Paired differences: {word}"),
            charts.legend(
                [
                    ("on", "holds after Holm (5 %)"),
                    ("off", "does not"),
                    ("band", f"too small to be found: MDE, {MDE_FACTOR:.2f} standard errors"),
                ]
            ),
            tag("figcaption", f"{many:,} more pairs are in the table.") if many > 0 else None,
        )
        if drawn
        else None,
        _table(f"{word}: pairs of agents, task by task", headings, [_comparison(one) for one in several], words=(0,)),
    ]


def _comparison(one: Comparison) -> Sequence[Child]:
    ratio = one.scale is ComparisonScale.RATIO
    shown, value = (format_factor, format_number) if ratio else (format_difference, format_share)
    limits = _format_interval(one.interval, shown)
    return (
        join_markup(isolate_bidi(one.a), " ÷ " if ratio else " − ", isolate_bidi(one.b)),
        join_markup(f"{one.tasks:,}", tag("small", describe_left_out(one)) if one.left_out else None),
        f"{one.runs_a:,} / {one.runs_b:,}",
        value(one.value_a),
        value(one.value_b),
        join_markup(shown(one.estimate), tag("small", limits or one.why_not)),
        format_p(one.p),
        format_p(one.p_holm),
        shown(one.mde),
        UNKNOWN if one.ranks is None else format_p(one.ranks.p),
        UNKNOWN if one.delta is None else f"{one.delta:+.2f}",
        f"{one.won:,} – {one.lost:,} – {one.tied:,}",
        UNKNOWN
        if one.totals is None
        else join_markup(
            format_factor(one.totals.ratio), tag("small", _format_interval(one.totals.interval, format_factor))
        ),
    )


def exclusions(report: Report) -> Child:
    """How many runs of each agent are excluded, by which rule, and whether the shares differ."""
    headings = ("agent", "runs", "verified", "excluded", "share", "by status", "by rule", "p", "p, Holm")
    unequal = [one for one in report.exclusions if one.p_holm is not None and one.p_holm < charts.SIGNIFICANT]
    words = (
        f"Exclusion is unequal ({', '.join(one.agent for one in unequal)}): what is claimed of verified runs alone "
        "compares different kinds of runs. Success over all finished runs is not touched by it."
        if unequal
        else "No agent is excluded so much more or less often than the others that chance could not explain it."
    )
    return [
        tag("p", words if len(report.agents) > 1 else "Only one agent: its exclusions cannot be compared."),
        _table(
            "Runs that are in no claim about tokens and cost",
            headings,
            map(_exclusion_row, report.exclusions),
            words=(0, 5, 6),
        ),
    ]


def _exclusion_row(one: ExclusionCount) -> Sequence[Child]:
    return (
        isolate_bidi(one.agent),
        f"{one.runs:,}",
        f"{one.verified:,}",
        f"{one.excluded:,}",
        format_share(one.share),
        _counts({STATUS_WORDS[UsageStatus(name)]: count for name, count in one.by_status.items()}),
        _counts({name.replace("_", " "): count for name, count in one.by_code.items()}),
        format_p(one.p),
        format_p(one.p_holm),
    )


def tries(report: Report) -> Child:
    """The probabilities of success with several tries."""
    most = max((len(one.pass_at_k) for one in report.agents), default=0)
    if most < 2:
        return tag("p", "Not shown: it needs two finished runs of every task, with recorded success.")
    ks = [str(k) for k in range(1, most + 1)]
    rows = [
        (isolate_bidi(one.agent), word, *(format_share(chances.get(k)) for k in ks))
        for one in report.agents
        for word, chances in (("pass@k", one.pass_at_k), ("pass^k", one.pass_hat_k))
    ]
    return [
        tag(
            "p",
            "pass@k: at least one of k tries succeeds; pass^k: all of them do. Without bias, by task, then averaged.",
        ),
        _table("Chances with k tries, all finished runs", ("agent", "", *(f"k = {k}" for k in ks)), rows, words=(0, 1)),
    ]


def steps(report: Report) -> Child:
    """Tokens per step."""
    drawings = [*charts.tokens_per_step(report.steps)]
    unknown = [f"{one.agent}: {one.unknown:,} steps" for one in report.steps if one.unknown]
    if not drawings:
        return tag("p", "Not drawn: no verified run has tokens by step.")
    return [
        charts.legend([(name, charts.CLASS_WORDS[name]) for name in TokenClass]),
        [tag("figure", one) for one in drawings],
        tag("p", f"Not included, because their own tokens are unknown: {'; '.join(unknown)}.") if unknown else None,
    ]


def observations(report: Report) -> Child:
    """The observations of the provider's count."""
    shown = report.timeline
    present = [status for status in UsageStatus if status in shown.by_status]
    statuses = ", ".join(f"{shown.by_status[status]:,} {STATUS_WORDS[status]}" for status in present)
    summary = f"{shown.attempts:,} observations of {shown.runs:,} runs: {statuses}. Withdrawn: {shown.withdrawn:,}."
    if not shown.rows:
        return tag("p", summary)
    return [
        tag("p", summary),
        charts.legend(
            [
                *((status, STATUS_WORDS[status]) for status in UsageStatus),
                ("look", "an observation with tokens"),
                ("none", "an observation without tokens, or failed"),
            ]
        ),
        tag(
            "figure",
            charts.reconciliation(shown),
            tag(
                "figcaption",
                f"{len(shown.rows):,} runs: withdrawn (✕) first, then not verified, then most observations.",
            ),
        ),
    ]


def waterfall(report: Report) -> Child:
    """Why the provider's count differs from the runs'."""
    several = [one for one in report.waterfalls if one.runs]
    if not several:
        return tag("p", "Not drawn: the provider has counted none of the runs yet.")
    parts = [part for part in DiscrepancyCause if any(part in one.parts for one in several)]
    headings = ("agent", "runs", "not counted yet", "local", *(charts.PART_WORDS[part] for part in parts), "billed")
    return [
        tag(
            "p",
            "All runs that the provider has counted, verified or not: this explains differences only.",
        ),
        tag("figure", charts.local_to_billed(several)),
        _table(
            "Tokens counted by the runs and by the provider",
            headings,
            [_waterfall_row(one, parts) for one in report.waterfalls],
            words=(0,),
        ),
    ]


def _waterfall_row(one: Waterfall, parts: Sequence[DiscrepancyCause]) -> Sequence[Child]:
    changes = (f"{one.parts.get(part, 0):+,}" for part in parts)
    return (isolate_bidi(one.agent), f"{one.runs:,}", f"{one.without:,}", f"{one.local:,}", *changes, f"{one.billed:,}")


def ledger(report: Report) -> Child:
    """The three costs."""
    headings = ("agent", "runs", "of them", "quoted", "billed", "settled")
    return [
        tag(
            "p",
            f"In {report.currency}. Quoted: frozen prices times verified tokens. Billed: the provider's own account. "
            "Settled: what the contract owed. None overwrites another; unknown amounts are left out of sums.",
        ),
        _table(
            "Costs side by side", headings, [_ledger_row(one, report.currency) for one in report.ledger], words=(0, 1)
        ),
    ]


def _ledger_row(one: LedgerLine, currency: str) -> Sequence[Child]:
    def sum_cell(some: KnownSum) -> Child:
        return join_markup(format_money(some.total, currency), tag("small", f"{some.known:,} of {one.runs:,} known"))

    word = "verified" if one.verified else "not verified"
    return (
        isolate_bidi(one.agent),
        word,
        f"{one.runs:,}",
        sum_cell(one.quoted),
        sum_cell(one.billed),
        sum_cell(one.settled),
    )


def tasks(report: Report) -> Child:
    """Every task of every agent."""
    if not report.task_lines:
        return tag("p", "No run names a task.")
    first: dict[tuple[str, str], int] = {}
    for place, one in enumerate(report.excluded[:MOST_LISTED]):
        first.setdefault((one.agent, one.task), place)
    lines = report.task_lines[:MOST_LISTED]
    rows = [row for line in lines for row in _task_rows(line, first, report.currency)]
    headings = ("task", "agent", "runs", "verified", "excluded", "successes", "score", "cost per run")
    return [
        tag("p", "A task is compared by tokens and cost where every agent has a verified run of it."),
        _table("Tasks and agents", headings, rows, words=(0, 1)),
        _more(len(report.task_lines) - len(lines), "tasks"),
    ]


def _task_rows(line: TaskLine, first: dict[tuple[str, str], int], currency: str) -> Iterable[Sequence[Child]]:
    for cell in line.cells:
        place, out = first.get((cell.agent, line.task)), cell.runs - cell.verified
        yield (
            join_markup(isolate_bidi(line.task), None if line.compared else tag("small", "not compared by cost")),
            isolate_bidi(cell.agent),
            f"{cell.runs:,}",
            f"{cell.verified:,}",
            f"{out:,}" if place is None else tag("a", f"{out:,}", href=f"#x{place}"),
            f"{cell.successes:,} of {cell.finished:,}",
            format_share(cell.score),
            format_money(cell.cost, currency),
        )


def exclusion_list(report: Report) -> Child:
    """Every excluded run, with its reason."""
    if not report.excluded:
        return tag("p", "None: every run is verified.")
    shown = report.excluded[:MOST_LISTED]
    headings = ("run", "agent", "task", "status", "rule", "succeeded", "message")
    return [
        _table(
            "Runs that are in no claim about tokens and cost",
            headings,
            map(_exclusion_list_row, shown),
            words=range(7),
            anchor="x",
        ),
        _more(len(report.excluded) - len(shown), "runs"),
    ]


def _exclusion_list_row(one: ExcludedRun) -> Sequence[Child]:
    succeeded = {True: "yes", False: "no", None: UNKNOWN}[one.success]
    return (
        isolate_bidi(one.run),
        isolate_bidi(one.agent),
        isolate_bidi(one.task),
        tag("span", STATUS_WORDS[one.status], class_=f"tag {one.status}"),
        str(one.code).replace("_", " "),
        succeeded if one.finished else "not finished",
        isolate_bidi(one.message),
    )


def methods(report: Report) -> Child:
    """How it was computed."""
    return bullet_list(
        line.format(few=FEWEST_TASKS, many=FEWEST_TO_RESAMPLE, mde=MDE_FACTOR, draws=report.resamples, seed=report.seed)
        for line in _METHODS
    )


_METHODS = (
    "Tokens and cost: verified runs alone, compared on tasks where every agent has one.",
    "Success and score: all finished runs (intention to treat); verified runs alone forget those that failed half-way.",
    "A result that was not recorded counts as no success; the bounds show the best case.",
    "An unknown cost does not count as zero: it is left out of sums, and its task out of comparisons.",
    "A difference is the mean over tasks of the difference of repeat means, with Student's t of tasks − 1 degrees.",
    "Fewer than {few} tasks have no such interval.",
    "Cost and tokens are compared by logarithms: a ratio of geometric means.",
    "A task with an amount of zero has no logarithm: it is left out of that ratio, and counted.",
    "Ratios of totals, from {many} tasks on, and ranks: the middle 95 % of {draws:,} bootstrap samples (seed {seed}).",
    "Probabilities are adjusted by Holm over all pairs of one measure.",
    "Wilcoxon's signed-rank test and Cliff's δ show whether a few tasks cause the difference.",
    "MDE is {mde:.2f} standard errors: the difference that so many tasks detect in 80 % of cases.",
    "A share has Wilson's interval; where tasks were repeated, for as many runs as the repeats are worth.",
    "Cost per success: all that verified runs cost, failures included, for each verified success.",
)


# Shared parts.


def _table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    words: Iterable[int],
    anchor: str = "",
) -> Markup:
    """Build a table that scrolls by itself; words are aligned left, numbers right."""
    left = set(words)
    head = [tag("th", one, scope="col", class_=None if place in left else "num") for place, one in enumerate(headings)]
    body = [
        tag(
            "tr",
            [_cell(one, place, place in left, place == len(headings) - 1) for place, one in enumerate(row)],
            id=f"{anchor}{line}" if anchor else None,
        )
        for line, row in enumerate(rows)
    ]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body))
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _cell(content: Child, place: int, is_words: bool, is_last: bool) -> Markup:  # noqa: FBT001 - one call, above
    if place == 0:
        return tag("th", content, scope="row")
    return tag("td", content, class_="num" if not is_words else "long" if is_last else "name")


def _format_interval(interval: ConfidenceInterval | None, form: Callable[[float], str]) -> str:
    return "" if interval is None else f"{form(interval.low)} to {form(interval.high)}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"


def bullet_list(lines: Iterable[str]) -> Markup:
    """Lines as a list."""
    return tag("ul", [tag("li", one) for one in lines])


def _more(number_left: int, what: str) -> Child:
    return tag("p", f"And {number_left:,} more {what}: report.json has all of them.") if number_left > 0 else None
