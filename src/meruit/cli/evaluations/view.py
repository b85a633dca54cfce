"""Evaluations as text: summaries, cases and comparisons."""

import shlex
from collections.abc import Iterator, Sequence

from meruit.cli.terminal import escape_control_characters, format_cell, note, print_table, say
from meruit.cli.views.verdict import format_value
from meruit.evaluations.compare import Difference, EvaluationComparison
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.reader import CaseDetail
from meruit.evaluations.run import EvaluationProgress
from meruit.evaluations.summary import EvaluationSummary, Rate
from meruit.judges.vote_records import TokenTotal
from meruit.model.verdict import ReasonCode, Status

LONGEST_TEXT = 60
"""Characters of an input, an output or a reason in a table."""


def format_rate(rate: Rate) -> str:
    """A pass rate with its interval: `72.0% (65.1 to 78.0)`."""
    if rate.rate is None:
        return "–"
    interval = "" if rate.interval is None else f" ({rate.interval.low * 100:.1f} to {rate.interval.high * 100:.1f})"
    return f"{rate.rate:.1%}{interval}"


def format_progress(progress: EvaluationProgress) -> str:
    """One line: how far, how good, how fast, how long still, how much."""
    total = f" of {progress.planned:,}" if progress.planned is not None else ""
    parts = [f"{progress.done:,}{total}", f"pass {format_rate(progress.rate)}", f"{progress.per_s:,.0f} cases/s"]
    if progress.rate.open:
        parts.append(f"{progress.rate.open:,} not judged")
    if progress.remaining_s is not None:
        parts.append(f"{_duration(progress.remaining_s)} left")
    if progress.spent_micros:
        parts.append(f"${progress.spent_micros / 1e6:,.2f}")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3_600 else f"{whole // 3_600} h {whole % 3_600 // 60} min"


def print_evaluations(found: Sequence[EvaluationRecord], following: str | None, *, filtered: bool) -> None:
    """Print a list of evaluations."""
    if not found:
        note("no evaluation fits" if filtered else "no evaluations yet; `meruit eval run` makes one")
        return
    rows = [
        (
            one.name,
            str(one.status),
            f"{one.cases:,}",
            f"{one.started_at:%Y-%m-%d %H:%M}",
            ", ".join(f"{name}={value}" for name, value in one.tags.items()) or "–",
            one.id,
        )
        for one in found
    ]
    print_table(("name", "status", "cases", "started", "tags", "id"), rows)
    if following is not None:
        note(f"more with --before {following}")


def print_summary(
    evaluation: EvaluationRecord, summary: EvaluationSummary, judge_tokens: Sequence[TokenTotal] = ()
) -> None:
    """Print the numbers of an evaluation."""
    overall = summary.overall
    say(f"{escape_control_characters(evaluation.name)} ({evaluation.status}, {evaluation.id})")
    say(f"pass rate {format_rate(overall)}: {overall.passed:,} of {overall.passed + overall.failed:,} judged cases")
    if overall.open and overall.bounds is not None:
        low, high = overall.bounds.low * 100, overall.bounds.high * 100
        errors = ", ".join(f"{count:,} {name}" for name, count in summary.errors.items())
        reasons = f" ({errors})" if errors else ""
        say(
            f"{overall.open:,} cases could not be judged{reasons}; with them it lies between {low:.1f}% and {high:.1f}%"
        )
    for line in (*_extras(summary), *map(_format_tokens, judge_tokens)):
        say(line)
    say()
    print_table(
        ("criterion", "pass rate", "met", "not met", "not measured"),
        [(name, format_rate(rate), *_counts(rate)) for name, rate in summary.criteria.items()],
    )
    for tag, values in summary.tags.items():
        say()
        print_table(
            (tag, "pass rate", "passed", "failed", "not judged"),
            [(value, format_rate(rate), *_counts(rate)) for value, rate in sorted(values.items())],
        )


def _format_tokens(total: TokenTotal) -> str:
    unknown = f"; {total.unknown_calls:,} not counted, at most {total.unknown_tokens:,}" if total.unknown_calls else ""
    used = f"{total.input_tokens:,} tokens in and {total.output_tokens:,} out, {total.calls:,} calls{unknown}"
    if total.unpriced_calls < total.calls:
        most = f" to ${(total.cost_micros + total.unknown_micros) / 1e6:,.4f}" if total.unknown_micros else ""
        unpriced = f", {total.unpriced_calls:,} calls without a known price" if total.unpriced_calls else ""
        used += f"; ${total.cost_micros / 1e6:,.4f}{most}{unpriced}"
    return escape_control_characters(f"judge {total.voter} ({total.model}): {used}")


def _counts(rate: Rate) -> tuple[str, str, str]:
    return f"{rate.passed:,}", f"{rate.failed:,}", f"{rate.open:,}"


def _extras(summary: EvaluationSummary) -> Iterator[str]:
    if summary.mean_score is not None:
        yield f"mean score {summary.mean_score:.3f}"
    if summary.groups not in (0, summary.overall.passed + summary.overall.failed):
        yield f"{summary.groups:,} independent groups; the interval allows for what their cases share"
    if summary.pass_at_k and len(summary.pass_at_k) > 1:
        yield "pass@k " + ", ".join(f"{k}: {value:.1%}" for k, value in summary.pass_at_k.items())
        yield "pass^k " + ", ".join(f"{k}: {value:.1%}" for k, value in summary.pass_hat_k.items())
    if summary.latency_ms is not None:
        spread = summary.latency_ms
        yield f"latency {spread.p50:,.0f} ms in the middle, {spread.p95:,.0f} ms at the 95th percentile"
    if summary.cost_micros is not None:
        yield f"cost ${summary.cost_micros / 1e6:,.4f}"
    if summary.claimed:
        yield f"{summary.disputed:,} of {summary.claimed:,} verdicts differ from those that their origin claimed"


def print_cases(details: Sequence[CaseDetail], following: int | None) -> None:
    """Print cases with what they do not meet."""
    if not details:
        note("no case fits")
        return
    # Beside our verdict, what the tool that a case was imported from claims.
    is_imported = any(one.summary.claimed is not None for one in details)
    rows = [
        (
            one.summary.case_id + (f" #{one.summary.repeat}" if one.summary.repeat else ""),
            str(one.summary.verdict),
            *((one.summary.claimed or "–",) if is_imported else ()),
            format_cell(one.summary.score),
            _shorten(_text(one.output)),
            _shorten(_text({"text": one.input.get("reference")}) if one.input else "–"),
            _shorten("; ".join(_reasons(one)), 3 * LONGEST_TEXT),
        )
        for one in details
    ]
    claimed = ("claimed",) if is_imported else ()
    print_table(("case", "verdict", *claimed, "score", "output", "reference", "not met"), rows, painted=1)
    if following is not None:
        note(f"more with --after {following}")


def print_why_open(name: str, example: CaseDetail) -> None:
    """Print why a case could not be judged, and how to list the others."""
    reasons = _shorten("; ".join(_reasons(example)), 3 * LONGEST_TEXT)
    note(escape_control_characters(f"not judged, for example case {example.summary.case_id}: {reasons}"))
    note(escape_control_characters(f"list all: meruit eval show {shlex.quote(name)} --verdict inconclusive"))


def _reasons(one: CaseDetail) -> Iterator[str]:
    if one.error_message:
        yield one.error_message
    if one.result is None:
        yield "erased"
        return
    if one.summary.error is None and any(reason.code is ReasonCode.NO_OUTPUT for reason in one.result.reasons):
        yield "it has no output; --map output.text=COLUMN says which column it is in"
    for judged in one.result.criterion_results:
        if judged.status in (Status.NOT_MET, Status.INDETERMINATE):
            why = judged.error or format_value(judged)
            yield f"{judged.criterion_id} ({why})"


def _text(part: object) -> str:
    if not isinstance(part, dict):
        return "–"
    text = part.get("text")
    if text is None and part.keys() == {"text"}:
        return "–"
    return format_cell(text) if text is not None else format_cell(str(part))


def _shorten(text: str, longest: int = LONGEST_TEXT) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def print_comparison(compared: EvaluationComparison, limit: int) -> None:
    """Print the sentence, the differences, and the cases that flipped."""
    say(escape_control_characters(compared.sentence))
    aside = []
    if compared.open:
        aside.append(f"{compared.open:,} common cases were not judged by both")
    for name, count in ((compared.first, compared.only_first), (compared.second, compared.only_second)):
        if count:
            aside.append(f"{count:,} cases are only in {name}")
    if aside:
        say(escape_control_characters("; ".join(aside)))
    if not compared.overall.cases:
        if compared.only_first and compared.only_second and not compared.open:
            say("cases are paired by their id: give equal cases equal ids, or map the column that holds them to id")
        return
    say()
    rows = [("all", *_difference(compared.overall))]
    rows += [(name, *_difference(one)) for name, one in compared.criteria.items()]
    rows += [
        (f"{name} = {value}", *_difference(one))
        for name, tagged in compared.tags.items()
        for value, one in tagged.items()
    ]
    what = "criterion or tag" if compared.tags else "criterion"
    print_table((what, compared.first, compared.second, "difference", "95% interval", "p", "detectable"), rows)
    tested = [*compared.criteria.values(), *(one for tagged in compared.tags.values() for one in tagged.values())]
    if any(one.p_holm != one.p for one in tested):
        say("difference and detectable are in points; p of criteria and tags allows for their number, intervals do not")
    for title, cases in (("fixed", compared.fixed), ("broken", compared.broken)):
        if not cases:
            continue
        say()
        more = f", and {len(cases) - limit:,} more" if len(cases) > limit else ""
        listed = escape_control_characters(", ".join(cases[:limit]))
        say(f"{title} ({len(cases):,}): {listed}{more}")


def _difference(one: Difference) -> tuple[str, str, str, str, str, str]:
    if one.first is None or one.second is None or one.difference is None:
        return "–", "–", "–", "–", "–", "–"
    interval = "–" if one.interval is None else f"{one.interval.low * 100:+.1f} to {one.interval.high * 100:+.1f}"
    p = one.p if one.p_holm is None else one.p_holm
    return (
        f"{one.first:.1%}",
        f"{one.second:.1%}",
        f"{one.difference * 100:+.1f}",
        interval,
        "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}",
        "–" if one.detectable is None else f"{one.detectable * 100:.1f}",
    )
