"""Reviews, calibrations and corrected rates as text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meruit.cli.terminal import escape_control_characters, note, print_table, say
from meruit.model.task_run import ConfidenceInterval
from meruit.review.agreement import Agreement, Coefficient
from meruit.review.calibration import Calibration, JudgeRate
from meruit.review.corrected import CorrectedMean
from meruit.review.label import ReviewRecord
from meruit.review.plan import LabelPlan
from meruit.review.results import CorrectedDifference, CorrectedRate, JudgeCalibration, JudgeStatus
from meruit.review.service import BlindCase, ReviewProgress

MOST_DISAGREEMENTS = 20
"""Cases that a calibration lists."""
WHOLE = "whole verdict"


def print_reviews(found: Sequence[ReviewRecord], following: str | None) -> None:
    """Print a list of reviews."""
    if not found:
        note("no reviews yet; `meruit review create` makes one")
        return
    rows = [
        (one.name, one.evaluation, one.criterion or WHOLE, f"{one.cases:,}", f"{one.labels:,}", one.id) for one in found
    ]
    print_table(("name", "evaluation", "criterion", "cases", "labels", "id"), rows)
    if following is not None:
        note(f"more with --before {following}")


def print_review(review: ReviewRecord, progress: ReviewProgress, rate: CorrectedRate) -> None:
    """Print how far a review is, how far people agree, and what their labels say."""
    say(escape_control_characters(f"{review.name}: {review.terms.question}"))
    say(escape_control_characters(f"{review.evaluation}, {review.criterion or WHOLE}"))
    people = f" by {', '.join(progress.labellers)}" if progress.labellers else ""
    say(f"{progress.labelled:,} of {progress.cases:,} cases labelled{escape_control_characters(people)}")
    if progress.cannot_tell:
        say(f"{progress.cannot_tell:,} labels say cannot tell")
    for line in _agreement(progress.agreement):
        say(line)
    say()
    print_corrected_rates([rate])


def _agreement(found: Agreement) -> Iterator[str]:
    if not found.cases or found.agreed is None:
        yield "agreement: no case has two labels"
        return
    yield f"agreement over {found.cases:,} cases with several labels: {found.agreed:.1%} of pairs are equal"
    for name, one in (
        ("Cohen's kappa", found.cohen),
        ("Fleiss' kappa", found.fleiss),
        ("Krippendorff's alpha", found.krippendorff),
        ("Gwet's AC1", found.gwet),
    ):
        yield f"  {name} {_coefficient(one)}"


def _coefficient(one: Coefficient) -> str:
    if one.value is None:
        return f"– ({one.why_not})"
    return f"{one.value:.2f}{_between(one.interval)}" + (f" ({one.why_not})" if one.why_not else "")


def _between(interval: ConfidenceInterval | None) -> str:
    return "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"


def _share(one: JudgeRate) -> str:
    if one.value is None:
        return "–"
    interval = "" if one.interval is None else f" ({one.interval.low * 100:.1f} to {one.interval.high * 100:.1f})"
    return f"{one.value:.1%}{interval}"


def format_mean(one: CorrectedMean) -> str:
    """A corrected rate with its interval, or why there is none."""
    if one.estimate is None:
        return f"– ({one.why_not})"
    if one.interval is None:
        return f"{one.estimate:.1%} ({one.why_not})"
    return f"{one.estimate:.1%} ({one.interval.low * 100:.1f} to {one.interval.high * 100:.1f})"


def print_corrected_rates(rates: Sequence[CorrectedRate]) -> None:
    """Print raw and corrected rates side by side."""
    rows = [
        (
            rate.criterion or WHOLE,
            "–" if rate.these.raw is None else f"{rate.these.raw:.1%}",
            format_mean(rate.these),
            format_mean(rate.like_these),
            f"{rate.these.labels:,}",
            "calibrated"
            if rate.calibrated
            else f"uncalibrated ({rate.calibration.labels} of {rate.min_labels} labels)",
        )
        for rate in rates
    ]
    print_table(("criterion", "raw", "corrected, these cases", "corrected, cases like these", "labels", "judge"), rows)
    for rate in rates:
        if rate.bounds is not None:
            say(
                f"{escape_control_characters(rate.criterion or WHOLE)}: people cannot tell of "
                f"{rate.calibration.cannot_tell:,} cases; with them the rate lies between {rate.bounds.low:.1%} and "
                f"{rate.bounds.high:.1%}"
            )


def print_judge_statuses(statuses: Sequence[JudgeStatus]) -> None:
    """Print which judged criteria are calibrated, and which are not."""
    for one in statuses:
        kappa = "" if one.kappa is None else f", kappa {one.kappa:.2f}"
        mark = "calibrated" if one.calibrated else f"uncalibrated: {one.labels} of {one.min_labels} random labels"
        known = f"{one.labels} random labels{kappa}" if one.calibrated else mark
        say(escape_control_characters(f"judge {one.judge or '–'} of {one.criterion}: {known}"))


def print_corrected_differences(found: Sequence[CorrectedDifference]) -> None:
    """Print the differences that labels correct."""
    rows = [
        (
            one.criterion or WHOLE,
            "–" if one.these.raw is None else f"{one.these.raw * 100:+.1f}",
            _points(one.these),
            _points(one.like_these),
            "–" if one.like_these.p is None else f"{one.like_these.p:.3f}",
            f"{one.these.labels:,}",
        )
        for one in found
    ]
    print_table(("criterion", "raw", "corrected, these cases", "corrected, cases like these", "p", "labels"), rows)


def _points(one: CorrectedMean) -> str:
    if one.estimate is None or one.interval is None:
        return f"– ({one.why_not})"
    return f"{one.estimate * 100:+.1f} ({one.interval.low * 100:+.1f} to {one.interval.high * 100:+.1f})"


def print_calibration(found: JudgeCalibration) -> None:
    """Print what labels say of a judge."""
    one = found.calibration
    version = "" if found.version is None else f", version {found.version[:12]}"
    mark = "" if found.calibrated else f"; uncalibrated: fewer than {found.min_labels} random labels"
    say(escape_control_characters(f"{found.name} on {found.criterion or WHOLE}{version}: {one.labels} labels{mark}"))
    say(escape_control_characters(f"evaluations: {', '.join(found.evaluations)}"))
    say(f"true positive rate {_share(one.tpr)}, true negative rate {_share(one.tnr)}")
    kappa = "–" if one.kappa is None else f"{one.kappa:.2f}{_between(one.kappa_interval)}"
    ac1 = "–" if one.ac1 is None else f"{one.ac1:.2f}{_between(one.ac1_interval)}"
    say(f"kappa {kappa}, AC1 {ac1}, agreement {_share(one.accuracy)}")
    if one.undecided or one.cannot_tell:
        say(f"left out: {one.undecided} that the judge did not decide, {one.cannot_tell} of which people cannot tell")
    say()
    matrix = one.matrix
    print_table(
        ("", "people: met", "people: not met"),
        [
            ("judge: met", str(matrix.true_positive), str(matrix.false_positive)),
            ("judge: not met", str(matrix.false_negative), str(matrix.true_negative)),
        ],
    )
    _print_tags(found.tags)
    _print_drift(found)
    if found.disagreements:
        listed = [case.case_id for case in found.disagreements[:MOST_DISAGREEMENTS]]
        more = (
            f", and {len(found.disagreements) - len(listed):,} more" if len(found.disagreements) > len(listed) else ""
        )
        say(escape_control_characters(f"disagreements, newest first: {', '.join(listed)}{more}"))


def _print_tags(tags: Mapping[str, Mapping[str, Calibration]]) -> None:
    for tag, values in tags.items():
        rows = [
            (value, str(one.labels), _share(one.tpr), _share(one.tnr), "–" if one.kappa is None else f"{one.kappa:.2f}")
            for value, one in sorted(values.items())
        ]
        say()
        print_table((tag, "labels", "true positive rate", "true negative rate", "kappa"), rows)


def _print_drift(found: JudgeCalibration) -> None:
    drifted = [place for place, window in enumerate(found.drift, 1) if window.drifted]
    if drifted:
        say(f"drift: part {', '.join(map(str, drifted))} of {len(found.drift)} differs from the others")
    elif found.drift:
        say(f"drift: none seen over {len(found.drift)} parts in the order of the judge's work")


def print_plan(plans: Sequence[LabelPlan]) -> None:
    """Print how many labels are needed, by each basis."""
    print_table(
        ("basis", "half-width", "labels", "with labels alone"),
        [(one.basis, f"{one.half_width:g}", f"{one.labels:,}", f"{one.without_judge:,}") for one in plans],
    )


def print_case(case: BlindCase, done: int, total: int, *, err: bool = False) -> None:
    """Print a case as a labeller sees it."""
    say(err=err)
    say(f"case {done + 1} of {total}", err=err)
    for name, part in case.parts.items():
        say(f"--- {name}", err=err)
        for line in _lines(part):
            say(escape_control_characters(line), err=err)
    say("---", err=err)
    say(escape_control_characters(case.question), err=err)
    keys = "  ".join(f"[{choice.key}] {choice.name}" for choice in case.choices)
    say(escape_control_characters(f"{keys}  [<] back  [+] note  [.] stop"), err=err)


# Any: work is plain JSON of any shape.
def _lines(part: Any) -> Iterator[str]:
    if part is None:
        yield "(erased)"
        return
    for name, value in part.items():
        text = value if isinstance(value, str) else _json(value)
        yield from f"{name}: {text}".splitlines() or [f"{name}:"]


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=2)
