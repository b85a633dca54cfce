"""Comparison of evaluations: whether B is better than A, on what, and which cases broke."""

import asyncio
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import msgspec

from meruit.api.listing import table_response
from meruit.console.background import Computing, Progress
from meruit.console.output_excerpts import read_excerpts
from meruit.console.page import OPERATORS, NavEntry, PageRequest, action, page, read_field
from meruit.console.pages.evaluations import decided_by
from meruit.console.query import Choice, Filter, Query
from meruit.console.shape import main_text, plural, text_difference
from meruit.console.summaries import PairedCases, compare, count, count_listed, key_of, pair_cases
from meruit.console.table import Column, Table
from meruit.errors import ApiProblem, MeruitError
from meruit.evaluations.compare import MOST_COMPARED, CaseChange, Difference, EvaluationComparison, describe_change
from meruit.evaluations.evaluation import STATUS_LETTERS, CaseSummary, EvaluationRecord
from meruit.evaluations.pairwise import PairwiseComparison
from meruit.evaluations.reader import CaseDetail, CaseFilter, Evaluations
from meruit.evaluations.service import Evaluator
from meruit.evaluations.summary import EvaluationFigures
from meruit.judges.prefer import DEFAULT_QUESTION, PairQuestion
from meruit.model.decoding import decode_json
from meruit.model.verdict import Status
from meruit.pages.drawing import Box, Drawing, Stroke
from meruit.pages.scale import Axis
from meruit.review.results import CorrectedDifference, ReviewResults
from meruit.web.responses import Response

PAGE_SIZE = 25
MAX_PAIRED = 50_000
"""Cases of an evaluation that are listed side by side; larger ones are only summed up."""
ASKED_CASES = 500
"""Cases that one query asks for by their ids."""
CHOICES = 50
"""Evaluations that can be chosen from: the newest."""
MOST_PAIRS = 200
"""Pairs of outputs that the page of preferences lists."""
ASKED = "asked"
"""The parameter with the question to a judge, and the mark of the session that posted it."""
STEPS = ("0.1", "0.25", "0.5", "0.75")
"""Differences of a score that the list of cases can be narrowed to."""
UNMET = (STATUS_LETTERS[Status.NOT_MET], STATUS_LETTERS[Status.INDETERMINATE])
"""How the index of cases writes criteria that are not met, or could not be measured."""
CHANGES = {"broken": "fail", "fixed": "pass", "both fail": "", "both pass": "", "not judged": "open"}
COLUMNS = (
    Column("case", "Case"),
    Column("first", "A"),
    Column("second", "B"),
    Column("decided", "Not met in B", wide=True),
    Column("tags", "Tags", minor=True),
    Column("difference", "Score B − A", numeric=True, sortable=True),
)
OUTPUTS = Column("outputs", "Outputs", below=True)
FEW_SEGMENTS = 4
"""Outputs are shown unasked where the evaluations have at most so many segments: each takes 3 ms of CPU."""


class ForestRow(msgspec.Struct, frozen=True):
    """One line of a forest plot."""

    kind: str
    """Empty for all cases, `criterion`, or the name of a tag."""
    name: str
    other: str
    difference: Difference
    plot: Drawing
    reading: str
    tone: str


@page("/compare", nav=NavEntry("Quality", "Compare", keys="c", order=20))
async def show_comparison(request: PageRequest) -> Response[Any]:
    """Compare two to four evaluations; the first is the baseline."""
    query = Query.of(request)
    chosen = query.all("e")
    evaluations = Evaluations(request.service.store, request.caller.tenant)
    if not 2 <= len(set(chosen)) <= MOST_COMPARED:
        return await _choose(request, query, evaluations)
    if query.get("case"):
        return await _show_pair(request, query, evaluations)

    results = ReviewResults(request.service.store, request.caller.tenant)

    found, labels = await asyncio.to_thread(
        lambda: ([evaluations.find(one) for one in dict.fromkeys(chosen)], results.count_records())
    )
    are_quick = sum(one.segments for one in found) <= FEW_SEGMENTS
    table = Table.of(query, "Cases in both", (*COLUMNS, replace(OUTPUTS, usual=are_quick)), "difference")

    def compute(progress: Progress) -> ComparisonFigures:
        return ComparisonFigures(
            compared=compare(evaluations, found[0], found[1:], progress),
            pairs=pair_cases(evaluations, found[0], found[1])
            if all(one.cases <= MAX_PAIRED for one in found[:2])
            else None,
            counted=[count(evaluations, one) for one in found],
            corrected=[change for one in found[1:] for change in results.corrected_differences(found[0], one)],
            criteria=(evaluations.criteria(found[0]).ids, evaluations.criteria(found[1]).ids),
        )

    key, total = ("compare", *map(key_of, found), labels), sum(found[0].cases + one.cases for one in found[1:])
    ask = request.console.figures.ask if table.file is None else request.console.figures.wait_for
    made = await ask(key, compute, total, changing=any(one.ended_at is None for one in found))
    if isinstance(made, Computing):
        return request.show("compare-computing.html", evaluations=found, computing=made)
    counted, compared, pairs = made.counted, made.compared, made.pairs
    corrected = made.corrected
    changes = {name: 0 if pairs is None else pairs.count(name) for name in CHANGES}
    wanted = query.all("change") or (("broken",) if changes["broken"] else ("fixed",) if changes["fixed"] else ())
    changed: Sequence[CaseChange] = () if pairs is None else pairs.choose(wanted)
    moved, unmet = _moved_by(changed, query.get("by")), query.all("criterion")
    fits = _not_meeting(moved, unmet, made.criteria)
    start = query.number("after") or 0
    listed = fits if table.file is not None else _slice(fits, start, descending=table.descending)
    beside = found[:2] if table.file is not None or not table.has(OUTPUTS.key) else found
    shown = await asyncio.to_thread(_find_sides, evaluations, beside, listed)
    if table.file is not None:
        headings = ("case", "a_verdict", "b_verdict", "change", "score_a", "score_b")
        rows = [
            (
                one.case_id,
                str(one.first.verdict),
                str(one.second.verdict),
                one.change,
                one.first.score,
                one.second.score,
            )
            for one in shown
        ]
        return await table_response(request, table.file, headings, rows)
    excerpts = (
        await asyncio.to_thread(read_excerpts, evaluations, found, [one.sides for one in shown])
        if table.has(OUTPUTS.key)
        else {}
    )
    choices = [Choice(name, name, changes[name], tone) for name, tone in CHANGES.items() if changes[name]]
    effective = (
        query if query.all("change") else Query(query.path, (*query.asked, *(("change", one) for one in wanted)))
    )
    return request.show(
        "compare.html",
        evaluations=found,
        counted=counted,
        compared=compared,
        answer=_answer(compared[0]),
        forest=_forest(compared),
        corrected=corrected,
        preferences=Query("/compare/preferences", tuple(("e", one.id) for one in found)),
        table=table,
        pairs=shown,
        excerpts=excerpts,
        to_case=Query("/outcomes", tuple(("e", one.id) for one in found)),
        paired=pairs is not None,
        matching=len(fits),
        first_place=start + 1,
        changes=changes,
        query=query,
        swap=Query("/compare", tuple(("e", one.id) for one in (found[1], found[0], *found[2:]))),
        filters=[
            Filter("change", "Change", choices, several=True),
            _criteria(moved, unmet, made.criteria),
            _steps(_not_meeting(changed, unmet, made.criteria), query.get("by")),
        ],
        reach=round(100 * _reach(compared)),
        filter_query=effective,
        criteria=made.criteria[1],
        decided_by=decided_by,
        next=query.turn("after", start + PAGE_SIZE) if start + PAGE_SIZE < len(fits) else None,
    )


def _moved_by(changed: Sequence[CaseChange], least: str) -> Sequence[CaseChange]:
    """The cases whose score rose or fell by so much at least; all of them where the reader chose no step."""
    if least not in STEPS:
        return changed
    return [one for one in changed if abs(one.difference) >= float(least)]


def _steps(changed: Sequence[CaseChange], chosen: str) -> Filter:
    """The filter by how far scores moved; steps that leave all cases or none are left out, unless one is chosen."""
    counts = {step: len(_moved_by(changed, step)) for step in STEPS}
    steps = [
        Choice(step, f"{step} or more", number)
        for step, number in counts.items()
        if 0 < number < len(changed) or step == chosen
    ]
    return Filter("by", "Score moved by", steps)


CriteriaOfBoth = tuple[Sequence[str], Sequence[str]]


def _unmet(statuses: tuple[str, str], criteria: CriteriaOfBoth) -> frozenset[str]:
    """The criteria that a case does not meet in at least one of two evaluations."""
    return frozenset(
        name
        for names, letters in zip(criteria, statuses, strict=True)
        for name, letter in zip(names, letters, strict=False)
        if letter in UNMET
    )


def _not_meeting(
    changed: Sequence[CaseChange], wanted: Sequence[str], criteria: CriteriaOfBoth
) -> Sequence[CaseChange]:
    """The cases that do not meet one of these criteria in A or B; all of them where none is named."""
    if not wanted:
        return changed
    # Many cases have the same statuses.
    kinds = {kind: not _unmet(kind, criteria).isdisjoint(wanted) for kind in {one.statuses for one in changed}}
    return [one for one in changed if kinds[one.statuses]]


def _criteria(changed: Sequence[CaseChange], chosen: Sequence[str], criteria: CriteriaOfBoth) -> Filter:
    """The filter by criteria that are not met in A or B, the most frequent first, with those that are chosen."""
    counts = Counter(dict.fromkeys(chosen, 0))
    for kind, number in Counter(one.statuses for one in changed).items():
        counts.update(dict.fromkeys(_unmet(kind, criteria), number))
    return Filter.of_counts("criterion", "Not met in A or B", counts, several=True)


def _slice(fits: Sequence[CaseChange], start: int, *, descending: bool) -> Sequence[CaseChange]:
    """The rows of one page; `fits` begins with the largest loss."""
    if not descending:
        return fits[start : start + PAGE_SIZE]
    end = max(0, len(fits) - start)
    return fits[max(0, end - PAGE_SIZE) : end][::-1]


@dataclass(frozen=True, slots=True)
class ComparisonFigures:
    """What the page of a comparison shows."""

    compared: list[EvaluationComparison]
    pairs: PairedCases | None
    """None where an evaluation is too large to be listed beside another."""
    counted: list[EvaluationFigures]
    corrected: list[CorrectedDifference]
    criteria: "CriteriaOfBoth"
    """Of the first and the second evaluation."""


@dataclass(frozen=True, slots=True)
class CasePair:
    """One case in two evaluations, and in the others that are compared."""

    case_id: str
    first: CaseSummary
    second: CaseSummary
    change: str
    difference: float
    others: tuple[CaseSummary | None, ...] = ()
    """In each further evaluation; None where it does not have the case."""

    @property
    def sides(self) -> tuple[CaseSummary | None, ...]:
        """In each evaluation, in their order."""
        return self.first, self.second, *self.others


def _find_sides(
    evaluations: Evaluations, compared: Sequence[EvaluationRecord], chosen: Sequence[CaseChange]
) -> list[CasePair]:
    """These cases as the evaluations judged them."""
    sides: list[dict[str, CaseSummary]] = [{} for _ in compared]
    for start in range(0, len(chosen), ASKED_CASES):
        group = chosen[start : start + ASKED_CASES]
        wanted = CaseFilter(case_ids=tuple(one.case_id for one in group))
        for side, evaluation in zip(sides, compared, strict=True):
            side.update((one.case_id, one) for one in evaluations.cases(evaluation, wanted) if one.repeat == 0)
    first, second, *others = sides
    return [
        CasePair(
            one.case_id,
            first[one.case_id],
            second[one.case_id],
            one.change,
            one.difference,
            tuple(side.get(one.case_id) for side in others),
        )
        for one in chosen
    ]


async def _choose(request: PageRequest, query: Query, evaluations: Evaluations) -> Response[Any]:
    """Ask which evaluations to compare."""

    def ask() -> tuple[list[EvaluationRecord], dict[str, EvaluationFigures]]:
        newest = evaluations.page(limit=CHOICES)
        return newest, count_listed(evaluations, newest)

    found, counted = await asyncio.to_thread(ask)
    return request.show(
        "compare-choose.html",
        evaluations=found,
        counted=counted,
        chosen=query.all("e") or _newest_alike(found),
        most=MOST_COMPARED,
    )


def _newest_alike(found: Sequence[EvaluationRecord]) -> tuple[str, ...]:
    """The newest two finished evaluations by the same criteria: what a reader most often compares."""
    finished = [one for one in found if one.ended_at is not None]
    alike = [one.id for one in finished if one.criteria_digest == finished[0].criteria_digest]
    return tuple(alike[:2]) if len(alike) > 1 else ()


async def _show_pair(request: PageRequest, query: Query, evaluations: Evaluations) -> Response[Any]:
    """One case in two evaluations, side by side; its place among those that changed alike may come later."""
    case_id, chosen = query.get("case"), [*dict.fromkeys(query.all("e"))]

    def ask() -> tuple[list[EvaluationRecord], list[CaseDetail]]:
        found = [evaluations.find(one) for one in chosen[:2]]
        return found, [evaluations.case(one, case_id) for one in found]

    found, sides = await asyncio.to_thread(ask)
    (first, second), texts = (one.summary for one in sides), [main_text(one.output) for one in sides]
    change = describe_change(first.verdict, second.verdict, first_success=first.success, second_success=second.success)
    alike = await _find_alike(request, evaluations, found, change)
    place = -1 if isinstance(alike, Computing) else next((at for at, one in enumerate(alike) if one == case_id), -1)
    ids: Sequence[str] = () if isinstance(alike, Computing) or place < 0 else alike
    old, new = (text if text is not None else _output_text(side) for text, side in zip(texts, sides, strict=True))
    return request.show(
        "compare-case.html",
        evaluations=found,
        sides=sides,
        case_id=case_id,
        change=change,
        pieces=text_difference(old, new),
        place=place + 1,
        alike=len(ids),
        computing=alike if isinstance(alike, Computing) else None,
        query=query,
        back=Query("/compare", tuple(("e", one) for one in chosen)),
        previous=query.choose("case", ids[place - 1]) if place > 0 else None,
        following=query.choose("case", ids[place + 1]) if 0 <= place < len(ids) - 1 else None,
    )


async def _find_alike(
    request: PageRequest, evaluations: Evaluations, found: Sequence[EvaluationRecord], change: str
) -> Sequence[str] | Computing:
    """The ids of the cases that changed so, in the order of the list; none of evaluations that are too large."""
    if any(one.cases > MAX_PAIRED for one in found):
        return ()
    made = await request.console.figures.ask(
        ("pairs", *map(key_of, found)),
        lambda _: pair_cases(evaluations, *found),
        changing=any(one.ended_at is None for one in found),
    )
    return made if isinstance(made, Computing) else [one.case_id for one in made.choose((change,))]


@page("/compare/preferences", roles=OPERATORS)
async def show_preferences(request: PageRequest) -> Response[Any]:
    """Ask which judge compares the outputs of several evaluations; show what the judge that was asked prefers."""
    query = Query.of(request)
    several = await _find_several(request, query.all("e"))
    posted = _read_posted(request, several)
    if posted is None:
        return _show_preferences(request, several, PairQuestion("", DEFAULT_QUESTION))
    question, is_own = posted
    if not is_own:
        # Another session asked, and asking costs money: this one has to ask itself.
        return _show_preferences(request, several, question)
    evaluator = Evaluator(request.service.registrar, request.caller.tenant)

    def compute(progress: Progress) -> PairwiseComparison | MeruitError:
        try:
            return evaluator.prefer(several, question, progress.reach)
        except MeruitError as refused:
            # Kept as an answer: a page that fills itself would ask again and again.
            return refused

    found = await request.console.answers.ask(_preference_key(request, several, question), compute)
    if isinstance(found, MeruitError):
        raise found
    return _show_preferences(request, several, question, found)


@action("/compare/preferences")
async def compare_by_preference(request: PageRequest) -> Response[Any]:
    """Have a judge asked which output of each common case is better; the page that this leads to asks."""
    several = await _find_several(request, [str(one) for one in (await request.form()).getlist("e")])
    judge, rubric = await read_field(request, "judge", longest=200), await read_field(request, "rubric")
    question = PairQuestion(judge, await read_field(request, "question") or DEFAULT_QUESTION, rubric)
    # What was refused before is asked again; answers of the judge are recorded and are not.
    request.console.answers.drop(_preference_key(request, several, question))
    asked = urlsafe_b64encode(msgspec.json.encode([judge, question.question, rubric])).decode().rstrip("=")
    address = Query("/compare/preferences", tuple(("e", one.id) for one in several))
    sealed = f"{asked}.{request.seal(str(address.choose(ASKED, asked)))}"
    return request.go_to(str(address.choose(ASKED, sealed)))


def _read_posted(request: PageRequest, several: Sequence[EvaluationRecord]) -> tuple[PairQuestion, bool] | None:
    """The question that was posted, and whether this session posted it; None where none was."""
    asked, _, seal = request.query_params.get(ASKED, "").partition(".")
    try:
        parts = decode_json(urlsafe_b64decode(asked.encode("ascii") + b"=="), tuple[str, str, str])
    except (ValueError, msgspec.DecodeError):
        return None
    address = Query("/compare/preferences", tuple(("e", one.id) for one in several))
    is_own = hmac.compare_digest(
        request.seal(str(address.choose(ASKED, asked))).encode(), seal.encode("utf-8", "replace")
    )
    return PairQuestion(*parts), is_own


def _preference_key(request: PageRequest, several: Sequence[EvaluationRecord], question: PairQuestion) -> Hashable:
    return request.caller.tenant, tuple(one.id for one in several), question


async def _find_several(request: PageRequest, chosen: Sequence[str]) -> list[EvaluationRecord]:
    evaluations = Evaluations(request.service.store, request.caller.tenant)
    unlike = [*dict.fromkeys(chosen)]
    if not 2 <= len(unlike) <= MOST_COMPARED:
        raise ApiProblem(400, "invalid", f"e: choose 2 to {MOST_COMPARED} evaluations")
    return await asyncio.to_thread(lambda: [evaluations.find(one) for one in unlike])


def _show_preferences(
    request: PageRequest,
    several: Sequence[EvaluationRecord],
    question: PairQuestion,
    made: PairwiseComparison | Computing | None = None,
) -> Response[Any]:
    found = None if isinstance(made, Computing) else made
    return request.show(
        "compare-preferences.html",
        evaluations=several,
        judges=[*request.service.configuration.judges],
        question=question,
        computing=made if isinstance(made, Computing) else None,
        found=found,
        answer="" if found is None else _say_preference(found),
        pairs=[] if found is None else found.pairs[:MOST_PAIRS],
        tones={"first": "fail", "second": "pass", "tie": "", "open": "open"},
        back=Query("/compare", tuple(("e", one.id) for one in several)),
    )


def _say_preference(found: PairwiseComparison) -> str:
    """Which evaluation the judge prefers, in one sentence."""
    first, *others = found.model.agents
    best = max(others, key=lambda one: (one.preferred or 0.0, one.wins))
    if best.preferred is None:
        return f"The judge prefers {best.name} {plural(best.wins, 'time')} and not {plural(best.losses, 'time')}."
    sentence = f"The judge prefers {best.name} to {first.name} in {100 * best.preferred:.0f} % of cases"
    if best.interval is None:
        return f"{sentence}."
    low, high = 100 * best.interval.low, 100 * best.interval.high
    clear = "" if low > 50 or high < 50 else ", which chance alone can explain"
    return f"{sentence} (95 % interval {low:.0f} to {high:.0f}){clear}."


def _output_text(side: CaseDetail) -> str:
    return side.error_message or json.dumps(side.output, ensure_ascii=False, indent=2)


def _answer(found: EvaluationComparison) -> tuple[str, str]:
    """The answer with A and B, and what changed most."""
    one = found.overall
    if one.difference is None:
        return "A and B cannot be compared.", found.sentence
    flips = f"It fixed {plural(len(found.fixed), 'case')} and broke {len(found.broken):,}."
    points = 100 * one.difference
    if one.is_significant and one.interval is not None:
        verb = "better" if points > 0 else "worse"
        span = f"95 % interval {100 * one.interval.low:+.1f} to {100 * one.interval.high:+.1f}"
        sentence = f"B is {verb} than A by {abs(points):.1f} points ({span}). {flips}"
    else:
        sentence = f"No clear difference: B − A is {points:+.1f} points, and chance alone explains that. {flips}"
    clear = {name: change for name, change in found.criteria.items() if change.is_significant and change.difference}
    gains = [name for name, change in clear.items() if (change.difference or 0) > 0]
    losses = [name for name, change in clear.items() if (change.difference or 0) < 0]
    more = [f"Better on {', '.join(f'“{name}”' for name in gains)}." if gains else ""]
    more.append(f"Worse on {', '.join(f'“{name}”' for name in losses)}." if losses else "")
    return sentence, " ".join(filter(None, more)) or "No single criterion differs clearly."


def _forest(compared: Sequence[EvaluationComparison]) -> list[ForestRow]:
    """The lines of the plot: all cases, then criteria and tags, for each evaluation that is compared with A."""
    lines, reach = _differences(compared), _reach(compared)
    axis = Axis(-reach, reach, 0, 100)
    return [ForestRow(kind, name, other, one, _plot(one, axis), *_reading(one)) for kind, name, other, one in lines]


def _differences(compared: Sequence[EvaluationComparison]) -> list[tuple[str, str, str, Difference]]:
    """Kind, name, other evaluation and difference of each line of the plot."""
    lines: list[tuple[str, str, str, Difference]] = []
    for one in compared:
        other = one.second if len(compared) > 1 else ""
        lines.append(("", "All cases", other, one.overall))
        lines += [("criterion", name, other, change) for name, change in one.criteria.items()]
        lines += [(name, value, other, change) for name, values in one.tags.items() for value, change in values.items()]
    return lines


def _reach(compared: Sequence[EvaluationComparison]) -> float:
    """How far the axis reaches to both sides: to the widest interval, in whole tens of points."""
    widest = max((abs(edge) for *_, one in _differences(compared) for edge in _edges(one)), default=0.0)
    # Rounded, because 0.9 may be kept as a little more.
    return max(0.1, ceil(round(widest * 10, 6)) / 10)


def _edges(one: Difference) -> list[float]:
    if one.interval is not None:
        return [one.interval.low, one.interval.high]
    return [] if one.difference is None else [one.difference]


def _plot(one: Difference, axis: Axis) -> Drawing:
    shapes: list[Any] = [Stroke(axis.at(0), 0, axis.at(0), 32, "zero")]
    if one.interval is not None:
        shapes.append(Stroke(axis.at(one.interval.low), 16, axis.at(one.interval.high), 16, "b"))
    if one.difference is not None:
        shapes.append(Box(axis.at(one.difference) - 0.9, 11.5, 1.8, 9, ""))
    return Drawing("", "", 32, tuple(shapes), tone=_reading(one)[1])


def _reading(one: Difference) -> tuple[str, str]:
    """What a difference means in a word, and its tone."""
    if one.difference is None:
        return "not compared", "open"
    if not one.is_significant:
        return "no clear difference", ""
    return ("better", "pass") if one.difference > 0 else ("worse", "fail")
