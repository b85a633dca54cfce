"""`meruit demo`: two stories of the specification, a marketplace and a bill, with real verdicts and real records."""

import shlex
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import click

from meruit.cli.terminal import ExitCode, json_option, note, print_json, say


class DemoCase(NamedTuple):
    """One agent's work in a story."""

    story: str
    agent: str
    description: str


CASES = (
    DemoCase("summarisation", "honest", "nine of ten claims judged rightly: exactly the 0.90 that was asked"),
    DemoCase("summarisation", "hasty", "fast and sure of itself, and wrong on three claims"),
    DemoCase("summarisation", "silent", "never said what it made of the claims: that is no failure, and no pass"),
    DemoCase("classification", "careful", "one photograph of twelve mistaken"),
    DemoCase("classification", "boastful", "mostly says heron, with great confidence"),
)


@click.command()
@click.option("--write", "folder", metavar="DIR", help="Also write the stories' files there, to play with.")
@json_option
def demo(*, folder: str | None, as_json: bool) -> int:
    """Tell four stories end to end: agents' work, criteria, verdicts, what is owed and paid, and what it used.

    With --json, the last two of the list are the marketplace and the bill, the others are results.
    """
    # Loading pydantic and the metrics takes a moment that --help should not pay.
    import msgspec

    from meruit.cli.demo.marketplace import print_market_day, run_market_day
    from meruit.cli.demo.usage import print_metered_day, run_metered_day
    from meruit.cli.views.verdict import print_verification
    from meruit.documents.authoring import parse_criteria
    from meruit.verify.engine import VerificationEngine

    stories = files("meruit.cli.demo") / "stories"
    if folder is not None:
        _write(stories, Path(folder))
    engine = VerificationEngine()
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
        told = shlex.quote(f"{folder}/summarisation")
        note(
            f"wrote the stories to {folder}; try: meruit verify {told}/criteria.yaml "
            f"--input {told}/input.json --output {told}/silent.json"
        )
        note(f"the marketplace is played by hand as {folder}/marketplace/README.md says")
    return ExitCode.PASSED


def _text(story: Traversable, name: str) -> str:
    return (story / name).read_text(encoding="utf-8")


def _payload(story: Traversable, name: str) -> dict[str, object]:
    import msgspec

    return msgspec.json.decode(_text(story, name), type=dict[str, object])


def _write(stories: Traversable, folder: Path) -> None:
    """Copy the stories' files out of the package; what stands there already is left alone."""
    try:
        for story in stories.iterdir():
            (folder / story.name).mkdir(parents=True, exist_ok=True)
            for file in story.iterdir():
                target = folder / story.name / file.name
                if not target.exists():
                    target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as problem:
        raise click.UsageError(f"cannot write to {folder}: {problem.strerror}; name another folder") from None
