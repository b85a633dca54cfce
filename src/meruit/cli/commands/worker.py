"""`meruit worker`: drive queued agent runs."""

from collections import Counter

import click

from meruit.cli.terminal import ExitCode, escape_control_characters, json_option, note, print_json, say, store_options

DEFAULT_CONCURRENCY = 16
MAX_CONCURRENCY = 10_000


@click.command()
@click.argument("agents", metavar="MODULE:AGENTS", nargs=-1, required=True)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    default=DEFAULT_CONCURRENCY,
    show_default=True,
    metavar="N",
    help="Number of runs driven at the same time.",
)
@click.option("--until-idle", is_flag=True, help="End when no run is due, running or paused.")
@store_options
@json_option
def worker(
    *,
    agents: tuple[str, ...],
    concurrency: int,
    until_idle: bool,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Run a worker that drives queued agent runs.

    MODULE:AGENTS names an Agent, a Team, a list or dict of them, or a whole module. MODULE may be in this folder or be
    a file: agents.py:writer. A SQLite file allows one worker, PostgreSQL any number. On SIGTERM or Ctrl-C the worker
    releases its runs and ends; the next worker continues them.

    Progress goes to stderr; with --json to stdout, one line of JSON each: `subject`, `said`.
    """
    # Imported here so that --help is quick.
    import asyncio

    from meruit.api.bodies.gc import freeze_gc
    from meruit.app import open_store
    from meruit.cli.shared.load_agents import check_no_other_worker, load_roster, stop_on_signals
    from meruit.config import location_of
    from meruit.gate.runner.engine import RELEASED
    from meruit.gate.runner.worker import run_worker

    roster = load_roster(agents)
    location = location_of(data, database_url)
    store = open_store(location, make=True)

    released = Counter[str]()

    def watch(about: str, text: str) -> None:
        released.update([about] if text == RELEASED else [])
        if as_json:
            _print_json(about, text)
        else:
            say(escape_control_characters(f"{about}: {text}"), err=True)

    async def work_until_stopped() -> None:
        stopping = asyncio.Event()
        with stop_on_signals(stopping):
            _print_started(roster.names, location.display_name, as_json=as_json)
            await run_worker(
                store, roster, concurrency=concurrency, until_idle=until_idle, stopping=stopping, watch=watch
            )

    try:
        check_no_other_worker(store)
        with freeze_gc():
            asyncio.run(work_until_stopped())
    finally:
        store.close()
    if released:
        note(f"released {len(released)} run{'s' * (len(released) > 1)}; the next worker continues the queue")
    return ExitCode.PASSED


def _print_json(about: str, text: str) -> None:
    import msgspec

    print_json(msgspec.json.encode({"subject": about, "said": text}))


def _print_started(names: tuple[str, ...], where: str, *, as_json: bool) -> None:
    note(f"records are in {where}")
    if as_json:
        import msgspec

        print_json(msgspec.json.encode({"agents": names}))
    else:
        say(escape_control_characters(f"working for {', '.join(names)}"))
