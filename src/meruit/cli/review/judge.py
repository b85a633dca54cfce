"""`meruit judge`: how well a judge is known from people's labels, and how many labels are needed."""

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    RECORDED_BY,
    ExitCode,
    json_option,
    note,
    print_json,
    print_table,
    refuse_nan,
    say,
    store_options,
    tenant_option,
)


@click.group()
def judge() -> None:
    """Calibrate judges by people's labels, and plan labels."""


min_labels_option = click.option(
    "--min-labels", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Labels for `calibrated`."
)


@judge.command("calibrate")
@click.argument("name", metavar="NAME")
@click.option("--against", "against", multiple=True, metavar="REVIEW", help="Review with labels (default: all).")
@click.option(
    "--min-kappa",
    type=click.FloatRange(-1, 1),
    callback=refuse_nan,
    metavar="KAPPA",
    help="Exit 1 when kappa is lower.",
)
@click.option("--min-labels", type=click.IntRange(1), metavar="N", help="Exit 1 with fewer random labels.")
@tenant_option
@store_options
@json_option
def calibrate_command(  # noqa: PLR0913 - one an option
    *,
    name: str,
    against: tuple[str, ...],
    min_kappa: float | None,
    min_labels: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Compare a judge with people's labels.

    NAME is a judge, or the id of a criterion that a rule decides, or `verdict` for whole verdicts. Each version of a
    judge is calibrated apart. Only cases that were drawn at random count.
    """
    import msgspec

    from meruit.cli.views.review import print_calibration
    from meruit.errors import NotFound
    from meruit.model.vote import MIN_LABELS
    from meruit.review.results import MOST_REVIEWS, ReviewResults, unmet_requirements
    from meruit.review.service import Reviews
    from meruit.suggestions import nearest

    with open_records(data, database_url) as store:
        reviews, results = Reviews(store, tenant), ReviewResults(store, tenant)
        chosen = [reviews.find(one) for one in against] or reviews.page(limit=MOST_REVIEWS)
        found = results.calibrations(name, chosen, min_labels=min_labels or MIN_LABELS)
        if not found:
            known = results.judge_names(chosen)
            meant = "" if name in known else nearest(name, known)
            raise NotFound(f"no random label is about {name!r}{meant}; `meruit judge list` shows what is labelled")
        results.record(found, by=RECORDED_BY)
    failures = [
        line
        for one in found
        for line in unmet_requirements(
            one.name, one.calibration.labels, one.calibration.kappa, min_kappa=min_kappa, min_labels=min_labels
        )
    ]
    if as_json:
        print_json(msgspec.json.encode({"calibrations": found, "failures": failures}))
    else:
        for place, one in enumerate(found):
            if place:
                say()
            print_calibration(one)
        for line in failures:
            note(line)
    return ExitCode.NOT_PASSED if failures else ExitCode.PASSED


@judge.command("list")
@min_labels_option
@tenant_option
@store_options
@json_option
def list_command(*, min_labels: int, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """List what people labelled, and how well each judge is known."""
    import msgspec

    from meruit.review.results import MOST_REVIEWS, ReviewResults
    from meruit.review.service import Reviews

    with open_records(data, database_url) as store:
        reviews, results = Reviews(store, tenant).page(limit=MOST_REVIEWS), ReviewResults(store, tenant)
        found = [
            one
            for name in results.judge_names(reviews)
            for one in results.calibrations(name, reviews, min_labels=min_labels)
        ]
    if as_json:
        print_json(msgspec.json.encode({"calibrations": found}))
        return ExitCode.PASSED
    if not found:
        note("no random labels yet; `meruit review create` draws cases to label")
        return ExitCode.PASSED
    rows = [
        (
            one.name,
            one.criterion or "whole verdict",
            "–" if one.version is None else one.version[:12],
            str(one.calibration.labels),
            "–" if one.calibration.kappa is None else f"{one.calibration.kappa:.2f}",
            "calibrated" if one.calibrated else "uncalibrated",
        )
        for one in found
    ]
    print_table(("name", "criterion", "version", "labels", "kappa", "state"), rows)
    return ExitCode.PASSED


@judge.command("plan")
@click.argument("half_width", metavar="HALF_WIDTH", type=float)
@click.option("--cases", type=click.IntRange(1), metavar="N", help="Cases (default: those of the pilot).")
@click.option("--pilot", metavar="REVIEW", help="Go by the labels of this review.")
@click.option("--tpr", type=float, metavar="RATE", help="Claimed true positive rate of the judge.")
@click.option("--tnr", type=float, metavar="RATE", help="Claimed true negative rate of the judge.")
@click.option("--rate", type=float, default=0.5, show_default=True, metavar="RATE", help="Expected share of cases met.")
@tenant_option
@store_options
@json_option
def plan_command(  # noqa: PLR0913 - one an option
    *,
    half_width: float,
    cases: int | None,
    pilot: str | None,
    tpr: float | None,
    tnr: float | None,
    rate: float,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Say how many labels an interval of a wanted width needs.

    The interval is plus or minus HALF_WIDTH, a share: 0.05 for five points. Go by a pilot, by the rates that the judge
    is said to have, or by both.
    """
    import msgspec

    from meruit.cli.views.review import print_plan
    from meruit.evaluations.reader import Evaluations
    from meruit.review.plan import plan_from_error, plan_from_pilot
    from meruit.review.results import ReviewResults
    from meruit.review.service import Reviews

    if pilot is None and (tpr is None or tnr is None):
        raise click.UsageError("give --pilot, or --tpr and --tnr")
    plans = []
    if pilot is not None:
        with open_records(data, database_url) as store:
            found = Reviews(store, tenant).find(pilot)
            evaluation = Evaluations(store, tenant).find(found.evaluation_id)
            errors = ReviewResults(store, tenant).label_errors(evaluation, found.criterion)
        cases = found.population if cases is None else cases
        plans.append(plan_from_pilot(errors, half_width=half_width, cases=cases))
    if cases is None:
        raise click.UsageError("give --cases: how many there are")
    if tpr is not None and tnr is not None:
        plans.append(plan_from_error(tpr=tpr, tnr=tnr, rate=rate, half_width=half_width, cases=cases))
    if as_json:
        print_json(msgspec.json.encode({"plans": plans}))
    else:
        print_plan(plans)
    return ExitCode.PASSED
