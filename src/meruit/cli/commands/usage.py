"""`meruit usage`: token usage of runs, and whether it is verified."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import (
    ExitCode,
    check_stdin_used_once,
    config_option,
    json_option,
    note,
    page_options,
    print_json,
    print_table,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meruit.cli.views.usage import UsageFileVerdict
    from meruit.config import Settings
    from meruit.model.metering import MeteredRun, UsageRecord
    from meruit.model.usage import UsagePolicy

MAX_INTERVAL_MIN = 30 * 24 * 60
ANCHORS = ("last_pair", "span")
MOST_NAMED = 5
STATUSES = ("pending", "warning", "verified", "data_not_available")

_run_argument = click.argument("run_id", metavar="RUN")
_framework_option = click.option("--framework", metavar="NAME", help="Filter by framework or agent.")


@click.group()
def usage() -> None:
    """Judge, record, list, explain and export token usage."""


def _check_minutes(_context: click.Context, _option: click.Parameter, value: float) -> float:
    """Reject minutes out of range, NaN included, which click's ranges let through."""
    if not 0 <= value <= MAX_INTERVAL_MIN:
        raise click.BadParameter(f"{value:g} is not between 0 and {MAX_INTERVAL_MIN} (30 days)")
    return value


def _settings(config: str | None) -> "Settings":
    from meruit.config import Settings

    return Settings.load(config)


def _policy(config: str | None) -> "UsagePolicy":
    return _settings(config).usage.policy.policy


@usage.command()
@click.argument("file", metavar="METRICS.json")
@click.option(
    "--interval",
    type=float,
    default=60,
    show_default=True,
    callback=_check_minutes,
    metavar="MIN",
    help="Minutes between two equal observations; the verdict mentions an interval below 60.",
)
@click.option(
    "--anchor",
    type=click.Choice(ANCHORS),
    default=ANCHORS[0],
    show_default=True,
    help="Count the minutes between the last two observations, or from the first equal one.",
)
@click.option("--manifest", metavar="FILE", help="With --write: runs_manifest.json that gets the verdict too.")
@click.option("--write", "wants_write", is_flag=True, help="Write the verdict into the file; other fields stay.")
@json_option
def decide(*, file: str, interval: float, anchor: str, manifest: str | None, wants_write: bool, as_json: bool) -> int:
    """Judge the observations in a metrics.json; - is stdin.

    Sends no requests. METRICS.json may also be a runs_manifest.json: each run that it names is judged. If a file does
    not say when its run ended, all observations count as made after the end.

    Exit codes: 0 verified, 1 warning, 3 pending or no data, 2 bad input.
    """
    # Imported here so that --help is quick.
    from meruit.cli.shared.usage_files import judge_files, load_manifest, write_verdicts
    from meruit.cli.views.usage import exit_code_of, print_file_verdicts, print_verdict, verdicts_to_json
    from meruit.model.usage import Anchor, UsagePolicy

    if manifest is not None and not wants_write:
        raise click.UsageError("--manifest needs --write")
    if wants_write and "-" in (file, manifest):
        raise click.UsageError("--write cannot write to stdin; name a file")
    judged, listing = judge_files(file, UsagePolicy(interval_min=interval, anchor=Anchor(anchor)))
    several = listing is not None
    if manifest is not None:
        if several:
            raise click.UsageError(f"{file} is itself a manifest; leave --manifest out")
        if judged[0].run_id is None:
            raise click.UsageError(f"{file} has no run_id, so no manifest can name it")
        listing = load_manifest(manifest)
    if wants_write:
        write_verdicts(judged, listing)
        note(f"written to {', '.join([*(one.path for one in judged), *([] if listing is None else [listing.path])])}")
    _warn_of_future_observations(judged)
    if as_json:
        print_json(verdicts_to_json(judged, several=several))
    elif several:
        print_file_verdicts(judged)
    else:
        print_verdict(judged[0].verdict)
    if not judged:
        note(f"{file} names no runs, so nothing is verified")
        return ExitCode.COULD_NOT_VERIFY
    return exit_code_of(one.verdict.status for one in judged)


def _warn_of_future_observations(judged: "list[UsageFileVerdict]") -> None:
    from meruit.cli.shared.usage_files import future_observations

    for one in judged:
        for one_ahead in future_observations(one.file):
            note(f"{one.path}: attempt {one_ahead.id!r} has a timestamp in the future ({one_ahead.at.isoformat()})")


@usage.command()
@click.argument("files", metavar="FILE.json...", nargs=-1, required=True)
@config_option
@tenant_option
@store_options
@json_option
def record(
    *,
    files: tuple[str, ...],
    config: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Record runs with their steps and observations.

    FILE is a metrics.json, a runs_manifest.json beside its runs, or one run as JSON of the HTTP API. All files are
    recorded, or none. Recording a run again changes nothing. The run's `source` names the provider account, one of
    usage.accounts in the settings (default: default).
    """
    import msgspec

    from meruit.app import open_store
    from meruit.cli.shared.contracts import command_line_actor
    from meruit.cli.shared.usage_files import new_observations, read_recordable
    from meruit.cli.views.usage import print_runs
    from meruit.config import location_of
    from meruit.usage.followers import UsageWrite
    from meruit.usage.records import RecordObservations, RecordRuns, RunObservation, find_observations

    check_stdin_used_once(*files, config)
    actor, settings = command_line_actor(tenant), _settings(config)
    policy = settings.usage.policy.policy
    found = read_recordable(files)
    sharing = {one.run.source: settings.usage.sharers(tenant, one.run.source) for one in found}
    runs = RecordRuns(tenant, actor.by, [one.run for one in found], policy, sharing=sharing)
    store = open_store(location_of(data, database_url), make=True)
    try:
        with store.database.reading() as connection:
            news = [
                (one.run.id, new_observations(one, find_observations(connection, tenant, one.run.id))) for one in found
            ]
        observations = RecordObservations(
            tenant, [RunObservation(run_id, attempt) for run_id, several in news for attempt in several], policy
        )
        # Contracts that pay for tokens are updated in the same transaction.
        both = UsageWrite(tenant=tenant, by=actor.by, write=lambda writing: [*runs(writing), *observations(writing)])
        recorded = {one.run.id: one for one in store.recorder.write(both)}
    finally:
        store.close()
    for name in sorted({one.run.source for one in found} - settings.usage.accounts.keys()):
        note(f"no account {name!r} is configured, so its runs are not reconciled; add it to usage.accounts")
    if as_json:
        print_json(msgspec.json.encode({"usage_runs": [*recorded.values()]}))
    else:
        print_runs([*recorded.values()])
    return ExitCode.PASSED


@usage.command()
@_run_argument
@click.option("--at", metavar="TIME", help="When the run ended, with a time zone (default: now).")
@tenant_option
@store_options
@json_option
def end(*, run_id: str, at: str | None, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """End a run whose process died, so that it can be reconciled."""
    from meruit.cli.shared.open_store import open_records
    from meruit.cli.views.usage import print_runs
    from meruit.documents.document_reader import read_moment
    from meruit.usage.meter import end_run

    try:
        ended_at = None if at is None else read_moment(at)
    except ValueError as fault:
        raise click.UsageError(f"--at: {fault}") from None
    with open_records(data, database_url) as store:
        found = end_run(store, run_id, ended_at=ended_at, tenant=tenant)
    if as_json:
        print_json(found.to_json())
    else:
        print_runs([found])
    return ExitCode.PASSED


@usage.command(name="list")
@_framework_option
@click.option("--status", type=click.Choice(STATUSES), help="Filter by status.")
@click.option("--task", metavar="TASK", help="Filter by task.")
@click.option("--source", "account", metavar="NAME", help="Filter by provider account.")
@page_options
@tenant_option
@store_options
@json_option
def list_runs(  # noqa: PLR0913 - one an option
    *,
    framework: str | None,
    status: str | None,
    task: str | None,
    account: str | None,
    limit: int,
    before: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List recorded runs, newest first."""
    import msgspec

    from meruit.cli.shared.open_store import open_records
    from meruit.cli.views.usage import print_runs
    from meruit.model.usage import UsageStatus
    from meruit.usage.records import page

    wanted = None if status is None else UsageStatus(status)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = page(
            connection,
            tenant,
            framework=framework,
            status=wanted,
            account=account,
            task=task,
            before=before,
            limit=limit,
        )
    following = found[-1].seq if len(found) == limit else None
    if as_json:
        print_json(msgspec.json.encode({"usage_runs": found, "next": following}))
        return ExitCode.PASSED
    print_runs(found)
    if following is not None:
        note(f"next page: --before {following}")
    return ExitCode.PASSED


@usage.command()
@_run_argument
@tenant_option
@store_options
@json_option
def show(*, run_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show a run with its steps, own counts and observations."""
    import msgspec

    from meruit.cli.shared.open_store import open_records
    from meruit.cli.views.usage import print_run
    from meruit.usage.cost import quote_cost
    from meruit.usage.records import find, find_observations

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found, observations = find(connection, tenant, run_id), find_observations(connection, tenant, run_id)
    if as_json:
        cost = quote_cost(found.run, found.verdict, found.quotes)
        details = {"observations": observations, "cost_unknown": None if found.ledger.quoted is not None else cost.code}
        print_json(msgspec.json.encode(found.to_dict() | details))
    else:
        print_run(found, observations)
    return ExitCode.PASSED


@usage.command()
@_run_argument
@config_option
@tenant_option
@store_options
@json_option
def explain(
    *, run_id: str, config: str | None, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Explain the status of a run.

    Shows the rule that decided, the observations that it compared, what would change the status, and when.

    Exit codes: 0 verified, 1 warning, 3 pending or no data.
    """
    import msgspec

    from meruit.cli.shared.open_store import open_records
    from meruit.cli.views.usage import UsageExplanation, exit_code_of, print_explanation, verdict_to_dict
    from meruit.usage.records import find, find_observations
    from meruit.usage.schedule import next_observation

    policy = _policy(config)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        found, observations = find(connection, tenant, run_id), find_observations(connection, tenant, run_id)
        beside, now = _open_runs_beside(connection, tenant, found), store.surroundings.clock()
    ended_at = found.run.ended_at
    since = sorted((one for one in observations if ended_at is not None and one.at >= ended_at), key=lambda one: one.at)
    # The stored time counts: an operator may have asked for an observation since, or a request may have failed.
    upcoming = msgspec.structs.replace(
        next_observation(ended_at, found.verdict, since, policy), at=found.next_observation_at, waits=found.waits
    )
    compared = [one for one in observations if one.id in found.verdict.compared]
    if as_json:
        is_due = upcoming.at is not None and upcoming.at <= now
        next_look = msgspec.structs.asdict(upcoming) | {"is_due": is_due}
        details = {"compared": compared, "next_look": next_look, "open_beside": beside}
        print_json(msgspec.json.encode(verdict_to_dict(run_id, found.verdict) | details))
    else:
        print_explanation(
            UsageExplanation(record=found, compared=compared, next_observation=upcoming, now=now, open_beside=beside)
        )
    return exit_code_of([found.verdict.status])


def _open_runs_beside(connection: "Connection", tenant: str, record: "UsageRecord") -> list[str]:
    """A few open runs of the tenant that share an attribution key with this one until they end."""
    from meruit.model.metering import AttributionKind
    from meruit.model.usage import UsageStatus
    from meruit.usage.records import page

    mine, found, place = record.run, list[str](), None
    if record.verdict.status is UsageStatus.VERIFIED or mine.attribution_key.kind is AttributionKind.REQUESTS:
        return found
    while len(found) < MOST_NAMED and (
        several := page(connection, tenant, account=mine.source, status=UsageStatus.PENDING, before=place, limit=500)
    ):
        place = several[-1].seq
        left_open = [one.run for one in several if one.run.ended_at is None]
        found += [one.id for one in left_open if one.id == mine.id or _may_share_usage(mine, one)]
    return found[:MOST_NAMED]


def _may_share_usage(mine: "MeteredRun", other: "MeteredRun") -> bool:
    """Whether the provider may count usage of the open run for this one."""
    # A run without an attribution key of its own is counted with every key.
    shares = mine.attribution_key == other.attribution_key or "window" in (
        mine.attribution_key.kind,
        other.attribution_key.kind,
    )
    return shares and (mine.ended_at is None or other.started_at is None or other.started_at < mine.ended_at)


@usage.command()
@_run_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why the lower count is right, one line; it is recorded.")
@config_option
@tenant_option
@store_options
@json_option
def acknowledge(
    *,
    run_id: str,
    reason: str,
    config: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Accept a provider count that fell, so that it counts.

    Exit codes are those of `meruit usage explain`.
    """
    from meruit.cli.shared.contracts import check_line, command_line_actor
    from meruit.cli.shared.open_store import open_records
    from meruit.cli.views.usage import exit_code_of, print_verdict
    from meruit.model.usage import Acknowledgement
    from meruit.usage.followers import UsageWrite
    from meruit.usage.records import Acknowledge

    actor, policy, why = command_line_actor(tenant), _policy(config), check_line("--reason", reason)
    with open_records(data, database_url) as store:
        ack = Acknowledgement(store.surroundings.clock(), actor.by, why)
        found = store.recorder.write(
            UsageWrite(tenant=tenant, by=actor.by, write=Acknowledge(tenant, run_id, ack, policy))
        )
    if as_json:
        print_json(found.to_json())
    else:
        print_verdict(found.verdict)
    return exit_code_of([found.verdict.status])


@usage.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--manifest", "as_manifest", is_flag=True, help="Export all runs as a runs_manifest.json.")
@_framework_option
@click.option("-o", "--output", "target", metavar="FILE", default="-", help="File to write (default: stdout).")
@tenant_option
@store_options
@json_option
def export(  # noqa: PLR0913 - one an option
    *,
    run_id: str | None,
    as_manifest: bool,
    framework: str | None,
    target: str,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Export one run as metrics.json, all as runs_manifest.json.

    The file appears when it is complete.
    """
    from pathlib import Path

    import msgspec

    from meruit.cli.shared.open_store import open_records
    from meruit.outcomes.export import atomic_file
    from meruit.usage.files import write_manifest, write_metrics
    from meruit.usage.records import find, find_observations, iterate_all

    if as_manifest != (run_id is None) or (framework is not None and not as_manifest):
        raise click.UsageError("give either RUN or --manifest; --framework needs --manifest")
    with open_records(data, database_url) as store, store.database.reading() as connection:
        if run_id is None:
            content = write_manifest(iterate_all(connection, tenant, framework))
        else:
            content = write_metrics(find(connection, tenant, run_id), find_observations(connection, tenant, run_id))
    if target == "-":
        print_json(content.rstrip())
        return ExitCode.PASSED
    with atomic_file(Path(target)) as file:
        file.write(content)
    if as_json:
        print_json(msgspec.json.encode({"file": target}))
    else:
        note(f"written to {target}")
    return ExitCode.PASSED


@usage.command()
@json_option
def sources(*, as_json: bool) -> int:
    """List the kinds of usage sources.

    `usage.accounts` in the settings configures accounts of these kinds.
    """
    import msgspec

    from meruit.registry import usage_sources

    found = [*usage_sources]
    if as_json:
        listed = [{key: one for key, one in msgspec.structs.asdict(each).items() if key != "open"} for each in found]
        print_json(msgspec.json.encode(listed))
        return ExitCode.PASSED
    rows = [
        (one.name, one.key_variable or "–", one.base_url or ("a file" if one.is_file else "–"), one.summary)
        for one in found
    ]
    print_table(("source", "key in", "address", "what it reports"), rows)
    return ExitCode.PASSED
