"""`meruit reconcile`: compare recorded runs with the token counts of their providers."""

import os
from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    config_option,
    escape_control_characters,
    json_option,
    note,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from meruit.model.metering import UsageRecord
    from meruit.store.store import Store
    from meruit.usage.reconcile.reconciler import Reconciler, ReconcileSummary
    from meruit.usage.records import UsageRunFilter

MAX_LISTED = 500
MAX_AGE_DAYS = 3650


def _age_check(most: int) -> "Callable[[click.Context, click.Parameter, float | None], float | None]":
    """Reject an age out of range, NaN included, which click's ranges let through."""

    def check_age(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
        if value is not None and not 0 <= value <= most:
            raise click.BadParameter(f"{value:g} is not between 0 and {most} ({MAX_AGE_DAYS} days)")
        return value

    return check_age


@click.command()
@click.argument("framework", required=False)
@click.argument("run_id", required=False)
@click.option("--list", "listing", is_flag=True, help="List the runs with their status; send no requests.")
@click.option(
    "--verbose", is_flag=True, help="With --list, also show the rule, the observations and when the next one is due."
)
@click.option(
    "--min-age",
    type=float,
    callback=_age_check(MAX_AGE_DAYS * 24 * 60),
    metavar="MINUTES",
    help="Filter: runs that ended at least this long ago.",
)
@click.option(
    "--max-age",
    type=float,
    callback=_age_check(MAX_AGE_DAYS * 24),
    metavar="HOURS",
    help="Filter: runs that ended at most this long ago.",
)
@click.option("--watch", is_flag=True, help="Repeat every few minutes until Ctrl-C or SIGTERM.")
@config_option
@tenant_option
@store_options
@json_option
def reconcile(  # noqa: PLR0913 - one a thing that can be said
    *,
    framework: str | None,
    run_id: str | None,
    listing: bool,
    verbose: bool,
    min_age: float | None,
    max_age: float | None,
    watch: bool,
    config: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Compare recorded runs with the provider's token counts.

    Without FRAMEWORK, every run that is due; with it, the due runs of that framework; with RUN_ID, that run now.
    `usage.accounts` in the settings names the provider accounts and their keys.

    Exit codes: 0 verified, or every account was read, 1 a warning, 3 pending or no data yet, 4 a key was refused.
    """
    from datetime import timedelta

    from meruit.store.store import utc_now
    from meruit.usage.records import UsageRunFilter

    if listing and watch:
        raise click.UsageError("--list and --watch cannot be combined; --list sends no requests")

    def choice() -> UsageRunFilter:
        # Ages count from the start of each round.
        return UsageRunFilter(
            tenant=tenant,
            framework=framework,
            run_id=run_id,
            ended_until=None if min_age is None else utc_now() - timedelta(minutes=min_age),
            ended_since=None if max_age is None else utc_now() - timedelta(hours=max_age),
        )

    place = StoreAddress(data=data, database_url=database_url, tenant=tenant)
    if listing:
        return _list_runs(place, choice(), verbose=verbose, as_json=as_json)
    return _run_reconciler(place, choice, config, watch=watch, as_json=as_json)


def _list_runs(place: StoreAddress, choice: "UsageRunFilter", *, verbose: bool, as_json: bool) -> int:
    import msgspec

    from meruit.cli.shared.open_store import open_records
    from meruit.usage.records import find_runs

    with open_records(place.data, place.database_url) as store, store.database.reading() as connection:
        found = find_runs(connection, choice, MAX_LISTED)
    if as_json:
        print_json(msgspec.json.encode({"runs": [_listing_to_dict(one) for one in found]}))
        return ExitCode.PASSED
    if not found:
        note("no recorded run matches; `meruit usage record FILE` records one")
        return ExitCode.PASSED
    _print_runs(found, verbose=verbose)
    if len(found) == MAX_LISTED:
        note(f"only the newest {MAX_LISTED:,} are shown; name a framework to see fewer")
    return ExitCode.PASSED


def _print_runs(found: "list[UsageRecord]", *, verbose: bool) -> None:
    from meruit.cli.views.usage import count_source, format_due
    from meruit.store.store import utc_now

    headings = ["run", "framework", "status", "counted by", "tokens in", "tokens out", "steps", "message"]
    rows = []
    for one in found:
        tokens = one.verdict.tokens
        rows.append(
            [
                one.run.id,
                one.run.framework,
                str(one.verdict.status),
                count_source(one.verdict),
                "–" if tokens is None else f"{tokens.input:,}",
                "–" if tokens is None else f"{tokens.output:,}",
                f"{one.verdict.steps_with_tokens}/{one.verdict.total_steps}",
                one.verdict.message,
            ]
        )
    print_table(headings, rows, painted=2)
    if not verbose:
        return
    for one in found:
        due = format_due(one.next_observation_at, utc_now())
        say()
        say(
            escape_control_characters(
                f"{one.run.id}: {one.verdict.code}, {one.attempts} observations, assurance {one.verdict.assurance}"
            )
        )
        say(escape_control_characters(f"  {one.verdict.explanation}"))
        say(f"  next observation: {due}; withdrawn {one.verdict.withdrawn} times")


def _listing_to_dict(one: "UsageRecord") -> dict[str, object]:
    """A run with the field names of runs_manifest.json, and what else is known."""
    tokens = one.verdict.tokens
    return {
        "run_id": one.run.id,
        "framework": one.run.framework,
        "verification_status": one.verdict.status,
        "verification_message": one.verdict.message,
        "imported": one.verdict.is_imported,
        "total_tokens_in": None if tokens is None else tokens.input,
        "total_tokens_out": None if tokens is None else tokens.output,
        "steps_with_tokens": one.verdict.steps_with_tokens,
        "total_steps": one.verdict.total_steps,
        "code": one.verdict.code,
        "assurance": one.verdict.assurance,
        "withdrawn": one.verdict.withdrawn,
        "attempts": one.attempts,
        "early": one.verdict.early,
        "next_observation_at": one.next_observation_at,
    }


def _run_reconciler(
    place: StoreAddress, choice: "Callable[[], UsageRunFilter]", config: str | None, *, watch: bool, as_json: bool
) -> int:
    import asyncio

    from meruit.app import build_reconciler
    from meruit.cli.shared.load_agents import stop_on_signals
    from meruit.cli.shared.open_store import open_records
    from meruit.config import Settings

    settings = Settings.load(config)
    with open_records(place.data, place.database_url) as store:
        _check_known(store, choice())

        async def go() -> "ReconcileSummary":
            async with build_reconciler(settings, store, os.environ) as reconciler:
                if not watch:
                    return await _run_round(reconciler, choice, as_json=as_json)
                stopping = asyncio.Event()
                with stop_on_signals(stopping):
                    return await _run_rounds(
                        reconciler, choice, stopping, settings.usage.tick_min * 60, as_json=as_json
                    )

        passed = asyncio.run(go())
        return _exit_code(store, choice(), passed)


def _check_known(store: "Store", choice: "UsageRunFilter") -> None:
    """Raise NotFound if the run is not recorded, or belongs to another framework, or the framework has no runs."""
    from meruit.errors import NotFound
    from meruit.usage.records import UsageRunFilter, find, find_runs

    if choice.framework is None:
        return
    with store.database.reading() as connection:
        if choice.run_id is not None:
            framework = find(connection, choice.tenant or "", choice.run_id).run.framework
            if framework != choice.framework:
                raise NotFound(
                    f"run {choice.run_id!r} belongs to the framework {framework!r}, not {choice.framework!r}"
                )
        elif not find_runs(connection, UsageRunFilter(choice.tenant, choice.framework), 1):
            raise NotFound(
                f"the framework {choice.framework!r} has no recorded runs; `meruit reconcile --list` lists all"
            )


async def _run_round(
    reconciler: "Reconciler", choice: "Callable[[], UsageRunFilter]", *, as_json: bool
) -> "ReconcileSummary":
    import msgspec

    say_change = _progress_printer(as_json=as_json)
    passed = await reconciler.run_once(choice(), watch=say_change)
    if as_json:
        print_json(msgspec.json.encode(passed))
    else:
        _print_summary(passed)
    return passed


async def _run_rounds(
    reconciler: "Reconciler",
    choice: "Callable[[], UsageRunFilter]",
    stopping: "asyncio.Event",
    pause_s: float,
    *,
    as_json: bool,
) -> "ReconcileSummary":
    import asyncio
    import contextlib

    passed = await _run_round(reconciler, choice, as_json=as_json)
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), pause_s)
            break
        passed = await _run_round(reconciler, choice, as_json=as_json)
    return passed


def _progress_printer(*, as_json: bool) -> "Callable[[str, str], None]":
    def show_change(about: str, text: str) -> None:
        if not as_json:
            say(escape_control_characters(f"{about}: {text}"), err=True)

    return show_change


def _print_summary(passed: "ReconcileSummary") -> None:
    if not passed.accounts:
        note("no run is due; `meruit reconcile --list --verbose` shows when each is")
    for one in passed.accounts:
        trouble = f"; {one.trouble}" if one.trouble else ""
        say(
            escape_control_characters(
                f"{one.account}: {one.observed:,} runs observed on {one.pages:,} pages, {one.recorded:,} observations "
                f"recorded, {one.early:,} too early to count, {one.failed:,} failed{trouble}"
            )
        )
    if passed.statuses:
        say(", ".join(f"{count:,} {status}" for status, count in sorted(passed.statuses.items())))


def _exit_code(store: "Store", choice: "UsageRunFilter", passed: "ReconcileSummary") -> int:
    from meruit.errors import FetchError
    from meruit.model.usage import UsageStatus
    from meruit.usage.records import find

    if any(one.error is FetchError.AUTH for one in passed.accounts):
        return ExitCode.CREDENTIALS
    if any(one.error is not None or one.trouble for one in passed.accounts):
        return ExitCode.COULD_NOT_VERIFY
    if choice.run_id is None:
        return ExitCode.PASSED
    with store.database.reading() as connection:
        found = find(connection, choice.tenant or "", choice.run_id)
    match found.verdict.status:
        case UsageStatus.VERIFIED:
            return ExitCode.PASSED
        case UsageStatus.WARNING:
            return ExitCode.NOT_PASSED
        case UsageStatus.PENDING | UsageStatus.DATA_NOT_AVAILABLE:
            return ExitCode.COULD_NOT_VERIFY
