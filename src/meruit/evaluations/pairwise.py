"""Evaluations compared by preference: a judge sees two outputs of each case, in both orders."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, count
from typing import Any

from meruit.errors import NotComparable
from meruit.evaluations.bradley_terry import Comparison, PreferenceModel, fit_preferences
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.judges.prefer import PairJudge, PairQuestion, Preferred
from meruit.judges.scope import JudgingScope
from meruit.model.record import Record

MAX_PAIRS = 20_000
"""Pairs of outputs that one comparison asks about."""
MAX_PAIRS_A_REQUEST = 1_000
"""Pairs that one request to the service asks about; `meruit eval compare --pairwise` takes more."""
ACCOUNT = "pairwise"
"""Before the id of the first evaluation: the account that the judge's tokens count for."""
AT_ONCE = 8


class PairResult(Record, frozen=True):
    """What the judge said of one case of two evaluations."""

    case_id: str
    repeat: int
    first: str
    second: str
    """The names of the evaluations."""
    preferred: Preferred


class PairwiseComparison(Record, frozen=True):
    """Evaluations compared by preference."""

    judge_version: str
    model: PreferenceModel
    pairs: list[PairResult]
    open: int
    """Pairs about which the judge gave no answer; they are left out of the model."""


_Key = tuple[str, int]
_Work = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Input and output."""


Watch = Callable[[int, int], None]
"""Hears how many pairs are answered, and of how many."""


def ignore(_done: int, _total: int) -> None:
    """Watch nothing."""


def compare_pairwise(
    reader: Evaluations,
    evaluations: Sequence[EvaluationRecord],
    judge: PairJudge,
    scope: JudgingScope,
    most: int = MAX_PAIRS,
    watch: Watch = ignore,
) -> PairwiseComparison:
    """Ask about each pair of outputs of the cases that two evaluations share; `watch` hears of each answer.

    Raises NotComparable where no case has two outputs, and where there are more than `most` pairs.
    """
    works = [_outputs(reader, one) for one in evaluations]
    pairs = [
        (key, one, other)
        for one, other in combinations(range(len(works)), 2)
        for key in works[one]
        if key in works[other]
    ]
    if not pairs:
        raise NotComparable("the evaluations have no case with two outputs in common; nothing can be compared")
    if len(pairs) > most:
        raise NotComparable(f"there are {len(pairs):,} pairs of outputs; the limit is {most:,}")
    found = asyncio.run(_ask_all(judge, works, pairs, scope, watch))
    cases: dict[_Key, list[Comparison]] = {}
    for (key, one, other), preferred in zip(pairs, found, strict=True):
        if preferred is not Preferred.OPEN:
            winner = {Preferred.FIRST: one, Preferred.SECOND: other}.get(preferred)
            cases.setdefault(key, []).append((one, other, winner))
    names = [one.name for one in evaluations]
    results = [
        PairResult(*key, names[one], names[other], preferred)
        for (key, one, other), preferred in zip(pairs, found, strict=True)
    ]
    model = fit_preferences(names, [*cases.values()])
    return PairwiseComparison(judge.version, model, results, sum(one is Preferred.OPEN for one in found))


def judging_scope(tenant: str, first: EvaluationRecord, question: PairQuestion) -> JudgingScope:
    """The account that the judge's tokens count for: one for each baseline."""
    account = f"{ACCOUNT}:{first.id}"
    return JudgingScope(tenant=tenant, account=account, max_tokens=question.max_tokens, max_cost=question.max_cost)


def _outputs(reader: Evaluations, evaluation: EvaluationRecord) -> dict[_Key, _Work]:
    """The input and output of each case that has both; those that were erased or failed have none."""
    return {
        (one.summary.case_id, one.summary.repeat): (one.input, one.output)
        for one in reader.details(evaluation)
        if one.input is not None and one.output is not None and one.summary.error is None
    }


async def _ask_all(
    judge: PairJudge,
    works: Sequence[Mapping[_Key, _Work]],
    pairs: Sequence[tuple[_Key, int, int]],
    scope: JudgingScope,
    watch: Watch,
) -> list[Preferred]:
    slots, answered = asyncio.Semaphore(AT_ONCE), count(1)

    async def ask(key: _Key, one: int, other: int) -> Preferred:
        given, first = works[one][key]
        async with slots:
            preferred = await judge.prefer(given, first, works[other][key][1], scope)
        watch(next(answered), len(pairs))
        return preferred

    return await asyncio.gather(*(ask(*pair) for pair in pairs))
