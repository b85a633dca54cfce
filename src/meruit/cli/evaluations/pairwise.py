"""`meruit eval compare --pairwise`: which evaluation's outputs a judge prefers."""

from collections.abc import Sequence

import msgspec

from meruit.app import build_judges
from meruit.cli.terminal import escape_control_characters, print_json, print_table, say
from meruit.config import Settings
from meruit.evaluations.bradley_terry import Preference
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.pairwise import PairwiseComparison, compare_pairwise, judging_scope
from meruit.evaluations.reader import Evaluations
from meruit.judges.prefer import DEFAULT_QUESTION, PairJudge, PairQuestion
from meruit.judges.records import StoredVotes
from meruit.store.store import Store


class PairOptions(msgspec.Struct, frozen=True):
    """What the command was given."""

    judge: str
    question: str | None
    rubric: str | None
    max_tokens: int | None
    max_cost: float | None
    config: str | None
    fresh: bool = False


def print_preferences(
    store: Store, tenant: str, evaluations: Sequence[EvaluationRecord], asked: PairOptions, *, as_json: bool
) -> None:
    """Ask the judge and print the preferences; raises AuthorError for a judge that the settings do not name."""
    settings = Settings.load(asked.config)
    judges = build_judges(settings)
    judges.keep_votes(StoredVotes(store))
    if asked.fresh:
        judges.ask_again()
    question = PairQuestion(
        asked.judge,
        asked.question or DEFAULT_QUESTION,
        asked.rubric or "",
        max_tokens=asked.max_tokens,
        max_cost=asked.max_cost,
    )
    scope = judging_scope(tenant, evaluations[0], question)
    found = compare_pairwise(Evaluations(store, tenant), evaluations, PairJudge(judges, question), scope)
    if as_json:
        print_json(msgspec.json.encode({"pairwise": found}))
    else:
        _print(found)


def _print(found: PairwiseComparison) -> None:
    model = found.model
    first = escape_control_characters(model.agents[0].name)
    open_pairs = f"; {found.open:,} got no answer" if found.open else ""
    say(f"{len(found.pairs):,} pairs of outputs, both orders asked{open_pairs}")
    print_table(
        ("evaluation", f"preferred to {first}", "preferred", "not preferred", "ties"),
        [(one.name, _format(one), f"{one.wins:,}", f"{one.losses:,}", f"{one.ties:,}") for one in model.agents],
    )
    if model.why_not:
        say(model.why_not)


def _format(one: Preference) -> str:
    if one.preferred is None:
        return "–"
    interval = "" if one.interval is None else f" ({one.interval.low * 100:.1f} to {one.interval.high * 100:.1f})"
    return f"{one.preferred:.1%}{interval}"
