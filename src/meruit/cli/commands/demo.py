"""`meruit demo`: two stories, a marketplace and token usage, with real verdicts and real records."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from meruit.cli.terminal import ExitCode, json_option, note, print_json, say
from meruit.model.decoding import decode_json

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class DemoCase(msgspec.Struct, frozen=True):
    """One agent's work in a story."""

    story: str
    agent: str
    description: str


CASES = (
    DemoCase(
        story="summarisation",
        agent="honest",
        description="nine of ten claims judged correctly: exactly the required 0.90",
    ),
    DemoCase(story="summarisation", agent="hasty", description="fast and confident, but wrong on three claims"),
    DemoCase(story="summarisation", agent="silent", description="did not report its labels: neither a fail nor a pass"),
    DemoCase(story="classification", agent="careful", description="one photograph of twelve labelled wrongly"),
    DemoCase(story="classification", agent="boastful", description="mostly answers heron, with great confidence"),
)


@click.command()
@click.option("--write", "folder", metavar="DIR", help="Also write the files of the demo to this folder.")
@click.option("--serve", "shown", is_flag=True, help="Instead, fill a folder with records and show them in a browser.")
@click.option(
    "--data",
    metavar="DIR",
    help="With --serve: folder for the records, which must be new (default: one that is removed at the end).",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="With --serve: port (default: any free)."
)
@click.option("--open/--no-open", "open_browser", default=True, help="With --serve: open the browser (default: yes).")
@json_option
def demo(*, folder: str | None, shown: bool, data: str | None, port: int, open_browser: bool, as_json: bool) -> int:
    """Run a demo: verdicts, a marketplace and token usage.

    With --json, the list holds the results, then the marketplace and the token usage.

    With --serve, the records of 30 days are made up and shown in a browser: evaluations of two agents, contracts with
    holds and disputes, token usage, agent runs.
    """
    if shown:
        return _show_records(data, port=port, open_browser=open_browser, as_json=as_json)
    # Imported here so that --help is quick.
    from importlib.resources import files

    import msgspec

    from meruit.app import build_engine
    from meruit.cli.demo.marketplace import print_market_day, run_market_day
    from meruit.cli.demo.usage import print_metered_day, run_metered_day
    from meruit.cli.views.verdict import print_verification
    from meruit.config import Settings
    from meruit.documents.authoring import parse_criteria

    stories = files("meruit.cli.demo") / "stories"
    if folder is not None:
        _write(stories, Path(folder))
    engine = build_engine(Settings())
    results = []
    for case in CASES:
        story = stories / case.story
        criteria = parse_criteria(_text(story, "criteria.yaml"), f"{case.story}/criteria.yaml")
        result = engine.verify_sync(
            f"{case.story}-{case.agent}",
            _payload(story, "input.json"),
            _payload(story, f"{case.agent}.json"),
            criteria,
            _payload(story, f"{case.agent}.metadata.json"),
        )
        results.append(result)
        if not as_json:
            say(f"\n== {case.story}, the {case.agent} agent: {case.description}\n")
            print_verification(result)
    day = run_market_day(engine, lambda name: _text(stories / "marketplace", name))
    bill = run_metered_day()
    if as_json:
        print_json(msgspec.json.encode([*results, {"marketplace": day.to_dict()}, {"usage": bill.to_dicts()}]))
    else:
        print_market_day(day)
        print_metered_day(bill)
    if folder is not None:
        example = shlex.quote(f"{folder}/summarisation")
        note(
            f"files written to {folder}; try: meruit verify {example}/criteria.yaml "
            f"--input {example}/input.json --output {example}/silent.json"
        )
        note(f"{folder}/marketplace/README.md explains how to run the marketplace by hand")
    return ExitCode.PASSED


def _show_records(data: str | None, *, port: int, open_browser: bool, as_json: bool) -> int:
    """Fill a new store and show it until Ctrl-C."""
    # Imported here so that --help is quick.
    from contextlib import ExitStack, closing
    from importlib.resources import files
    from tempfile import TemporaryDirectory

    from meruit.cli.demo.fill import fill_store
    from meruit.cli.shared.viewing import view_records
    from meruit.model.access import DEFAULT_TENANT
    from meruit.store.location import FILE, Location
    from meruit.store.store import Store, utc_now

    stories = files("meruit.cli.demo") / "stories"
    with ExitStack() as until_end:
        folder = Path(data if data is not None else until_end.enter_context(TemporaryDirectory(prefix="meruit-demo-")))
        if (folder / FILE).exists():
            raise click.UsageError(f"{folder} holds records; name a new folder, or run `meruit view --data {folder}`")
        note("making records of 30 days …")
        fill_store(Location(folder), lambda story, name: _text(stories / story, name), utc_now())
        store = until_end.enter_context(closing(Store.open(Location(folder))))
        view_records(store, tenant=DEFAULT_TENANT, port=port, open_browser=open_browser, as_json=as_json)
    return ExitCode.PASSED


def _text(story: "Traversable", name: str) -> str:
    return (story / name).read_text(encoding="utf-8")


def _payload(story: "Traversable", name: str) -> dict[str, object]:

    return decode_json(_text(story, name), dict[str, object])


def _write(stories: "Traversable", folder: Path) -> None:
    """Copy the files of the stories out of the package; existing files are not replaced."""
    try:
        for story in stories.iterdir():
            (folder / story.name).mkdir(parents=True, exist_ok=True)
            for file in story.iterdir():
                target = folder / story.name / file.name
                if not target.exists():
                    target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as problem:
        raise click.UsageError(f"cannot write to {folder}: {problem.strerror}; name another folder") from None
