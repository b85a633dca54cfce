"""`meruit agent`: agent runs behind the verification gate."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from meruit.cli.shared.list_options import check_span, span_options
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    json_option,
    note,
    page_options,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)
from meruit.model.decoding import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from meruit.gate.run import AgentRun
    from meruit.model.events import OutboxEvent
    from meruit.store.store import Store

run_argument = click.argument("run_id", metavar="RUN")
STATES = ("queued", "running", "waiting", "completed", "failed", "cancelled")
MAX_SECONDS = 30 * 24 * 3600


def _check_seconds(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Reject a number of seconds out of range, NaN included, which click's ranges let through."""
    if value is not None and not 0 < value <= MAX_SECONDS:
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0 and up to {MAX_SECONDS} (30 days)")
    return value


@contextmanager
def _open_existing_store(data: str | None, database_url: str | None) -> "Iterator[Store]":
    """Open the store for a while; raise StoreError if there is none."""
    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.errors import StoreError
    from meruit.store.location import FILE

    location = location_of(data, database_url)
    if location.url is None and not (location.folder / FILE).exists():
        what = "run `meruit agent run`, or name another folder with --data"
        raise StoreError(f"{location.folder} holds no records yet; {what}")
    store = open_store(location)
    try:
        yield store
    finally:
        store.close()


@click.group()
def agent() -> None:
    """Run agents behind the verification gate and show their runs."""


@agent.command()
@click.argument("named", metavar="MODULE:AGENT")
@click.option("--query", metavar="TEXT", help="Query for the agent. Give this or --input.")
@click.option("--input", "file", metavar="FILE", help="File that holds the query; - is stdin.")
@click.option(
    "--payload", metavar="JSON", default="{}", show_default=True, help="Initial context of the agent, a JSON object."
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Number of rejections that end the run (default: the agent's budget).",
)
@click.option(
    "--max-seconds",
    type=float,
    callback=_check_seconds,
    metavar="SECONDS",
    help="Time limit for the run (default: none).",
)
@click.option(
    "--wait/--no-wait", " /--detach", default=True, help="Run it here until it ends (default), or only queue it."
)
@tenant_option
@store_options
@json_option
def run(  # noqa: PLR0913 - one an option
    *,
    named: str,
    query: str | None,
    file: str | None,
    payload: str,
    max_attempts: int | None,
    max_seconds: float | None,
    wait: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Run an agent or a team and print the result.

    Progress and rejections go to stderr. Exit codes: 0 completed, 1 failed or exhausted, 3 the agent, its model or its
    verifier had an error. If you interrupt the command, the run stays queued and `meruit worker` continues it.
    """
    # Imported here so that --help is quick.
    import asyncio
    import shlex

    from meruit.app import open_store
    from meruit.cli.shared.agent_run import AgentRunWatch, drive_to_end, exit_code_of, print_end, run_to_json
    from meruit.cli.shared.contracts import command_line_actor
    from meruit.cli.shared.load_agents import load_agents, split_agents
    from meruit.config import location_of
    from meruit.errors import AgentError
    from meruit.gate.records import QueueRun
    from meruit.gate.run import RunRequest
    from meruit.gate.runner.engine import AgentRoster

    actor = command_line_actor(tenant)
    request = RunRequest(_query(query, file), _payload(payload), max_attempts, max_seconds)
    found = load_agents(named)
    if len(found) != 1:
        place, _ = split_agents(named)
        names = ", ".join(shlex.quote(f"{place}:{one.name}") for one in found)
        raise AgentError(f"{named} holds {len(found)} agents; name one of them: {names}")
    roster = AgentRoster(found)
    store = open_store(location_of(data, database_url), make=True)
    try:
        elsewhere = wait and _is_driven_elsewhere(store, found[0].name)
        run_id = store.surroundings.new_id("run")
        request_run = QueueRun(
            tenant=actor.tenant,
            by=actor.by,
            id=run_id,
            agent=found[0].name,
            request=request,
            limits=found[0].limits(max_attempts),
        )
        store.recorder.write(request_run)
        watched = AgentRunWatch(store=store, tenant=tenant, run_id=run_id)
        if not wait:
            _print_status(watched.run(), as_json=as_json)
            return ExitCode.PASSED
        note(f"run {run_id}" + ("; another process runs it" if elsewhere else ""))
        if not asyncio.run(drive_to_end(watched, None if elsewhere else roster)):
            note(f"{run_id} is queued again; `meruit worker {named}` continues it")
            return ExitCode.INTERRUPTED
        ended = watched.run()
        if as_json:
            print_json(run_to_json(watched, ended))
        else:
            print_end(ended)
        return exit_code_of(ended)
    finally:
        store.close()


def _query(query: str | None, file: str | None) -> str:
    from meruit.files import read_bytes

    if (query is None) == (file is None):
        raise click.UsageError("give exactly one of --query and --input")
    try:
        asked = query if file is None else read_bytes(file).decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{file} is not UTF-8 text") from None
    if not asked or not asked.strip():
        raise click.UsageError("the query is empty; give some text")
    return asked


def _payload(text: str) -> "dict[str, object]":
    import msgspec

    try:
        return decode_json(text, dict[str, object])
    except msgspec.DecodeError as problem:
        raise click.UsageError(f"--payload must be a JSON object: {problem}") from None


def _is_driven_elsewhere(store: "Store", name: str) -> bool:
    """Whether a worker elsewhere serves this agent; raises WorkerRefused if it has the store, but not the agent."""
    from meruit.cli.shared.agent_run import has_worker
    from meruit.cli.shared.load_agents import check_no_other_worker
    from meruit.errors import WorkerRefused

    try:
        check_no_other_worker(store)
    except WorkerRefused:
        if has_worker(store, name):
            return True
        raise
    return False


@agent.command(name="list")
@click.option("--status", type=click.Choice(STATES), help="Filter by status.")
@click.option("--agent", "name", metavar="NAME", help="Filter by agent.")
@click.option("--parent", metavar="RUN", help="Filter by team run: list its members.")
@page_options
@tenant_option
@store_options
@json_option
def list_runs(  # noqa: PLR0913 - one an option
    *,
    status: str | None,
    name: str | None,
    parent: str | None,
    limit: int,
    before: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List runs, newest first."""
    import msgspec

    from meruit.cli.shared.agent_run import agents_lacking_worker, attempts_of, describe_state
    from meruit.gate import records as agent_reading
    from meruit.gate.run import RunState

    wanted = None if status is None else RunState(status)
    with _open_existing_store(data, database_url) as store, store.database.reading() as connection:
        found = agent_reading.page(
            connection, tenant, status=wanted, agent=name, parent_id=parent, before=before, limit=limit
        )
        left = agents_lacking_worker(store, found)
    following = found[-1].seq if len(found) == limit else None
    if as_json:
        print_json(msgspec.json.encode({"agent_runs": found, "next": following, "agents_without_worker": left}))
        return ExitCode.PASSED
    rows = [
        (
            one.id,
            one.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            one.agent,
            str(one.status),
            attempts_of(one),
            describe_state(one, has_worker=one.agent not in left),
        )
        for one in found
    ]
    print_table(("run", "queued (UTC)", "agent", "status", "attempts", "why"), rows, painted=3)
    if following is not None:
        note(f"next page: --before {following}")
    return ExitCode.PASSED


@agent.command()
@run_argument
@tenant_option
@store_options
@json_option
def show(*, run_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show a run with its turns, submissions, rejections and result."""
    from meruit.cli.shared.agent_run import AgentRunWatch, print_run, run_to_json

    with _open_existing_store(data, database_url) as store:
        watched = AgentRunWatch(store=store, tenant=tenant, run_id=run_id)
        found = watched.run()
        if as_json:
            print_json(run_to_json(watched, found))
        else:
            print_run(watched, found)
    return ExitCode.PASSED


@agent.command()
@run_argument
@click.option("--follow", is_flag=True, help="Continue until the run ends.")
@tenant_option
@store_options
@json_option
def events(*, run_id: str, follow: bool, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Print the events of a run and its members, oldest first.

    With --json, each event is one line of JSON.
    """
    import asyncio

    from meruit.cli.shared.agent_run import AgentRunWatch, print_event

    def show_event(one: "OutboxEvent") -> None:
        if as_json:
            print_json(one.to_json())
        else:
            print_event(one)

    with _open_existing_store(data, database_url) as store:
        watched = AgentRunWatch(store=store, tenant=tenant, run_id=run_id)
        if follow:
            asyncio.run(watched.follow(show_event))
        else:
            for one in watched.all_events():
                show_event(one)
    return ExitCode.PASSED


@agent.command()
@run_argument
@tenant_option
@store_options
@json_option
def cancel(*, run_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Cancel a run and its members.

    A run that a worker drives ends when the worker sees the request.
    """
    from meruit.cli.shared.agent_run import AgentRunWatch
    from meruit.gate.records import CancelRun
    from meruit.gate.run import FINAL_STATES, RunState

    with _open_existing_store(data, database_url) as store:
        if AgentRunWatch(store=store, tenant=tenant, run_id=run_id).run().status in FINAL_STATES:
            note("the run has already ended; nothing was cancelled")
        found = store.recorder.write(CancelRun(tenant, run_id))
    if found.status is RunState.RUNNING:
        note("the worker that drives the run will end it")
    _print_status(found, as_json=as_json)
    return ExitCode.PASSED


@agent.command()
@run_argument
@click.argument("value")
@click.option("--key", metavar="KEY", help="The `waiting_for` key to answer (default: the run's current one).")
@tenant_option
@store_options
@json_option
def resume(
    *, run_id: str, value: str, key: str | None, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Give a waiting run its value, as JSON or plain text.

    With --key the command can be retried: the same value again changes nothing, and another value is refused.
    """
    import msgspec

    from meruit.cli.shared.agent_run import AgentRunWatch
    from meruit.gate.records import ResumeRun

    try:
        given = msgspec.json.decode(value)
    except msgspec.DecodeError:
        given = value
    with _open_existing_store(data, database_url) as store:
        # For a run that does not wait, ResumeRun raises the error.
        asked = (
            key if key is not None else AgentRunWatch(store=store, tenant=tenant, run_id=run_id).run().waiting_for or ""
        )
        found = store.recorder.write(ResumeRun(tenant, run_id, asked, msgspec.json.encode(given)))
    _print_status(found, as_json=as_json)
    return ExitCode.PASSED


def _print_status(found: "AgentRun", *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
    else:
        say(f"{found.id}  {found.status}")


@agent.command()
@click.argument("name", metavar="AGENT_ID")
@span_options()
@tenant_option
@store_options
@json_option
def trust(
    *,
    name: str,
    since: "datetime | None",
    until: "datetime | None",
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Show how far an agent can be trusted to deliver.

    The score is the share of its decided work that it delivered: contracts, and outcomes that were recorded for it.
    Work that is open, held, disputed, inconclusive or cancelled does not count. --since and --until choose the work by
    the time of its outcome. docs/outcomes.md has the whole rule.
    """
    from meruit.cli.shared.open_store import open_records
    from meruit.cli.views.trust import print_trust
    from meruit.contracts.records import find_similar_agent, load_trust

    check_span(since, until)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = load_trust(connection, tenant, name, since, until)
        known = bool(found.inputs.total or sum(found.inputs.left_out.values()))
        if not known:
            note(
                escape_control_characters(
                    f"nothing is recorded of {name}{find_similar_agent(connection, tenant, name)}"
                )
            )
    if as_json:
        print_json(found.to_json())
    else:
        print_trust(found)
    return ExitCode.PASSED
