"""What a pipeline asks of an evaluation: whether it is good enough, a summary in Markdown, and annotations. Pure."""

from collections.abc import Iterable, Iterator

from meruit.evaluations.compare import EvaluationComparison
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.summary import EvaluationSummary, Rate
from meruit.model.record import Record

SLACK_POINTS = 1e-9
"""What floats may add to a drop that equals its limit."""
MAX_FLIPS = 20
"""Cases that a summary lists of each kind."""
_ESCAPED = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_ESCAPED_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


class GateDecision(Record, frozen=True):
    """Whether an evaluation is good enough for its pipeline, and why not."""

    failures: tuple[str, ...]
    notes: tuple[str, ...]
    """What is worth knowing, whether or not it fails."""

    @property
    def passed(self) -> bool:
        """Whether nothing that was asked for is missed."""
        return not self.failures


def decide(
    overall: Rate,
    *,
    fail_under: float | None = None,
    strict: bool = False,
    compared: EvaluationComparison | None = None,
    max_drop: float = 0.0,
) -> GateDecision:
    """Go by a lowest rate, and by a baseline that the rate may fall behind by `max_drop` points."""
    failures: list[str] = []
    notes: list[str] = []
    if fail_under is not None:
        failures += _below(overall, fail_under, strict=strict)
    if compared is not None:
        notes.append(compared.sentence)
        difference = compared.overall.difference
        if difference is None:
            failures.append(f"there is nothing to compare with {compared.first}: {compared.overall.why_not}")
        elif -difference * 100 > max_drop + SLACK_POINTS:
            chance = (
                "chance alone does not explain it"
                if compared.overall.is_significant
                else "with so few cases, chance alone may explain it"
            )
            failures.append(
                f"the pass rate fell by {-difference * 100:.1f} points against {compared.first}, more than "
                f"{max_drop:g}; {chance}"
            )
    return GateDecision(tuple(failures), tuple(notes))


def _below(overall: Rate, fail_under: float, *, strict: bool) -> Iterator[str]:
    if overall.rate is None:
        return
    if strict and overall.interval is None:
        yield "the pass rate has no interval, because there are too few groups; collect more, or leave --strict out"
        return
    reached = overall.interval.low if strict and overall.interval is not None else overall.rate
    if reached < fail_under:
        what = "the lower end of the interval of the pass rate" if strict else "the pass rate"
        yield f"{what} is {reached:.1%}, under {fail_under:.1%}"


def write_markdown(
    evaluation: EvaluationRecord,
    summary: EvaluationSummary,
    decision: GateDecision,
    compared: EvaluationComparison | None = None,
) -> str:
    """The summary of a pipeline's page."""
    overall = summary.overall
    lines = [f"### {_cell(evaluation.name)}: pass rate {_rate(overall)}", ""]
    lines += [f"- ❌ {_cell(one)}" for one in decision.failures]
    lines += [f"- {_cell(one)}" for one in decision.notes]
    if overall.open:
        lines.append(f"- {overall.open:,} of {overall.cases:,} cases could not be judged")
    lines += ["", "| criterion | pass rate | met | not met | not measured |", "|---|---|---|---|---|"]
    lines += [
        f"| {_cell(name)} | {_rate(rate)} | {rate.passed:,} | {rate.failed:,} | {rate.open:,} |"
        for name, rate in summary.criteria.items()
    ]
    if compared is not None:
        for title, cases in (("Fixed", compared.fixed), ("Broken", compared.broken)):
            if cases:
                more = f", and {len(cases) - MAX_FLIPS:,} more" if len(cases) > MAX_FLIPS else ""
                lines += ["", f"{title} ({len(cases):,}): {', '.join(map(_cell, cases[:MAX_FLIPS]))}{more}"]
    return "\n".join([*lines, ""])


def _rate(rate: Rate) -> str:
    if rate.rate is None:
        return "–"
    interval = "" if rate.interval is None else f" ({rate.interval.low * 100:.1f} to {rate.interval.high * 100:.1f})"
    return f"{rate.rate:.1%}{interval}"


def _cell(text: str) -> str:
    """A text that Markdown shows as it is."""
    line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|#" else letter for letter in line)


def annotations(criteria_file: str, decision: GateDecision) -> Iterable[str]:
    """Commands that make GitHub show each failure beside the criteria."""
    name = criteria_file.translate(_ESCAPED_PROPERTY)
    return [f"::error file={name},title=Evaluation::{one.translate(_ESCAPED)}" for one in decision.failures]
