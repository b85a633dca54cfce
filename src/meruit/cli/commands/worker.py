"""`meruit worker`: drives queued runs of agents."""

from collections import Counter

import click

from meruit.cli.terminal import ExitCode, escape_control_characters, json_option, note, print_json, say, store_options

DEFAULT_CONCURRENCY = 16
MAX_CONCURRENCY = 10_000
LET_GO = "let go"
"""What is said of a run that this worker leaves to the next."""


@click.command()
@click.argument("agents", metavar="MODULE:AGENTS", nargs=-1, required=True)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    default=DEFAULT_CONCURRENCY,
    show_default=True,
    help="Runs that are driven at the same time.",
)
@click.option("--until-idle", is_flag=True, help="End once nothing is due, running or pausing.")
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
    """Drive queued runs of the agents named: an Agent, a Team, a list or dict of them, or a whole module.

    MODULE is looked for in this folder too, and may be a file: agents.py:writer. A SQLite file has one worker, Postgres
    any number. Ends on SIGTERM or Ctrl-C and lets go of what it drives: the next worker goes on where it was.

    What becomes of the runs is told on stderr; with --json on stdout, a line of JSON each: `subject`, `said`.
    """
    # Loading pydantic, the store and the author's own code takes a moment that --help should not pay.
    import asyncio

    from meruit.api.gc import freeze_gc
    from meruit.app import open_store
    from meruit.cli.shared.load_agents import check_no_other_worker, load_roster, stop_on_signals
    from meruit.config import location_of
    from meruit.gate.runner.worker import work

    crew = load_roster(agents)
    location = location_of(data, database_url)
    store = open_store(location, make=True)

    let_go = Counter[str]()

    def watch(about: str, text: str) -> None:
        let_go.update([about] if text == LET_GO else [])
        if as_json:
            _print_json(about, text)
        else:
            say(escape_control_characters(f"{about}: {text}"), err=True)

    async def work_until_stopped() -> None:
        stopping = asyncio.Event()
        with stop_on_signals(stopping):
            _print_started(crew.names, location.display_name, as_json=as_json)
            await work(*(store, crew), concurrency=concurrency, until_idle=until_idle, stopping=stopping, watch=watch)

    try:
        check_no_other_worker(store)
        with freeze_gc():
            asyncio.run(work_until_stopped())
    finally:
        store.close()
    if let_go:
        note(f"let go of {len(let_go)} run{'s' * (len(let_go) > 1)}; the next worker goes on with what is queued")
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
