"""Evaluations: the list of them, and one with its failing cases."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from meruit.api.file_stream import stream_table
from meruit.api.listing import ListFormat
from meruit.console.background import Computing, Progress
from meruit.console.live import Live
from meruit.console.page import NavEntry, PageRequest, page
from meruit.console.query import Choice, Filter, Query
from meruit.console.shape import main_text, plural, shorten, show_comparison, show_value, tone, word
from meruit.console.summaries import count, count_listed, key_of
from meruit.console.table import Column, Table
from meruit.documents.csv_table import Cell
from meruit.evaluations.evaluation import STATUS_LETTERS, CaseSummary, EvaluationRecord, EvaluationStatus
from meruit.evaluations.reader import CaseFilter, EvaluationFilter, Evaluations
from meruit.evaluations.summary import EvaluationFigures, Rate
from meruit.model.criterion import SuccessCriterion
from meruit.model.events import EventType
from meruit.model.evidence import Fault
from meruit.model.verdict import Status, Verdict
from meruit.pages.drawing import Box, Drawing, Label, Stroke
from meruit.review.results import ReviewResults
from meruit.review.service import Reviews
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 20
COUNTED_ROWS = 400
"""Evaluations that a list counts: "more than 400" is enough to know."""
WALK_FILTERS = ("show", "verdict", "criterion", "tag", "fault", "reviewer")
"""Filters of a list of cases that also lead from one case to the next."""
COLUMNS = (
    Column("name", "Evaluation", sortable=True),
    Column("bar", "0 to 100 %", minor=True),
    Column("rate", "Pass rate", numeric=True, sortable=True),
    Column("interval", "95 % interval", numeric=True),
    Column("cases", "Cases", numeric=True, sortable=True),
    Column("open", "Open", numeric=True, minor=True, hint="Cases that could not be judged: neither pass nor fail."),
    Column("cost", "Cost", numeric=True, minor=True, sortable=True),
    Column("tags", "Tags", wide=True),
    Column("started", "Started", numeric=True, sortable=True),
    Column("id", "Id", usual=False),
)
CASE_COLUMNS = (
    Column("case", "Case", sortable=True),
    Column("verdict", "Verdict"),
    Column("score", "Score", numeric=True, sortable=True),
    Column("decided", "Decided by", wide=True),
    Column("tags", "Tags", minor=True),
    Column("fault", "Fault", minor=True, hint="Who is responsible for what was not met or not measured."),
    Column("output", "Output", wide=True),
    Column("ms", "ms", numeric=True, minor=True, sortable=True, hint="Milliseconds that the agent took."),
    Column("cost", "Cost", numeric=True, usual=False, sortable=True),
    Column("group", "Group", usual=False),
    Column("outcome", "Outcome", usual=False),
)
LONGEST_DESCRIPTION = 32
"""Characters of what a criterion asks; of a longer one only the metric is named."""
LIVE_EVENTS = (
    EventType.EVALUATION_STARTED,
    EventType.EVALUATION_SEGMENT_RECORDED,
    EventType.EVALUATION_FINISHED,
)
_LETTERS = {letter: status for status, letter in STATUS_LETTERS.items()}


@page("/evaluations", nav=NavEntry("Quality", "Evaluations", keys="e", order=10))
async def list_evaluations(request: PageRequest) -> Response[Any]:
    """List the evaluations, newest first."""
    query = Query.of(request)
    table = Table.of(query, "Evaluations, newest first", COLUMNS)
    evaluations = Evaluations(request.service.store, request.caller.tenant)
    statuses = tuple(EvaluationStatus(one) for one in query.all("status") if one in set(EvaluationStatus))
    wanted = EvaluationFilter(text=query.get("q") or None, statuses=statuses)

    def read(at: Table) -> tuple[list[EvaluationRecord], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = evaluations.page_sorted(wanted, at.order, limit)
            return ordered.entries, at.following(ordered)
        newest = evaluations.page(wanted, before=at.query.get("before") or None, limit=limit)
        return newest, at.query.turn("before", newest[-1].id) if len(newest) == limit else None

    if table.file is not None:
        headings = ("name", "id", "status", "cases", "pass_rate", "low", "high", "started_at")
        listed = table.read_all(read)
        return await stream_table(request, table.file, headings, lambda: _count_rows(evaluations, listed))

    def ask() -> tuple[list[EvaluationRecord], Query | None, list[EvaluationRecord], dict[str, EvaluationFigures]]:
        every, (entries, turned) = evaluations.page(wanted, limit=COUNTED_ROWS + 1), read(table)
        return entries, turned, every, count_listed(evaluations, [*entries, *every[:1]])

    found, following, every, counted = await asyncio.to_thread(ask)
    counted |= await _count_beside(request, evaluations, [one for one in found if one.id not in counted])
    return request.show(
        "evaluations.html",
        live=Live(types=LIVE_EVENTS),
        table=table,
        evaluations=found,
        total=len(every),
        most=COUNTED_ROWS,
        newest=every[0] if every else None,
        counted=counted,
        query=query,
        filters=[Filter("status", "Status", [Choice(str(one), str(one)) for one in EvaluationStatus])],
        next=following,
    )


async def _count_beside(
    request: PageRequest, evaluations: Evaluations, listed: Sequence[EvaluationRecord]
) -> dict[str, EvaluationFigures]:
    """The numbers of large evaluations, as far as they are ready."""
    figures = request.console.figures
    found: dict[str, EvaluationFigures] = {}
    for one in listed:
        compute = partial(_count, evaluations, one)
        made = await figures.ask(("count", key_of(one)), compute, one.cases, changing=one.ended_at is None)
        if isinstance(made, Computing):
            # The others are begun when this one is ready.
            break
        found[one.id] = made
    return found


def _count(evaluations: Evaluations, evaluation: EvaluationRecord, progress: Progress) -> EvaluationFigures:
    return count(evaluations, evaluation, progress)


def _count_rows(evaluations: Evaluations, listed: Iterable[EvaluationRecord]) -> Iterator[tuple[Cell, ...]]:
    """The row of each evaluation in a file, which waits for the numbers of each."""
    for one in listed:
        figures = count_listed(evaluations, [one]).get(one.id) or count(evaluations, one, Progress())
        overall = figures.summary.overall
        interval = (overall.interval.low, overall.interval.high) if overall.interval is not None else (None, None)
        yield one.name, one.id, str(one.status), one.cases, overall.rate, *interval, one.started_at


@page("/evaluations/{evaluation_id:str}")
async def show_evaluation(request: PageRequest, evaluation_id: FromPath[str]) -> Response[Any]:
    """Show how good the agent is, and what breaks."""
    query = Query.of(request)
    table = Table.of(query, "Cases", CASE_COLUMNS)
    evaluations = Evaluations(request.service.store, request.caller.tenant)

    results = ReviewResults(request.service.store, request.caller.tenant)
    reviews = Reviews(request.service.store, request.caller.tenant)

    evaluation = await asyncio.to_thread(evaluations.find, evaluation_id)
    if table.file is not None:
        return await _send_cases(request, table.file, table, evaluations, evaluation)
    counted = await request.console.figures.ask(
        ("count", key_of(evaluation)),
        partial(_count, evaluations, evaluation),
        evaluation.cases,
        changing=evaluation.ended_at is None,
    )
    if isinstance(counted, Computing):
        return request.show("evaluation-computing.html", evaluation=evaluation, computing=counted)

    def ask() -> tuple[Any, ...]:
        judged_by = evaluations.criteria(evaluation)
        criteria = judged_by.ids
        labelled = labelled_cases(reviews, evaluation)
        wanted = case_filter(query, criteria, labelled)
        if table.order is not None:
            ordered = evaluations.cases_sorted(evaluation, wanted, table.order, PAGE_SIZE)
            opened = [*evaluations.open_cases(evaluation, ordered.entries)]
            return judged_by, opened, table.following(ordered), labelled
        found = evaluations.page_details(evaluation, wanted, after=query.number("after") or 0, limit=PAGE_SIZE)
        turned = None if found.next is None else query.turn("after", found.next)
        return judged_by, found.cases, turned, labelled

    judged_by, cases, following, labelled = await asyncio.to_thread(ask)
    reviewers = {name: len(several) for name, several in labelled.items()}
    summary = counted.summary
    labels = await asyncio.to_thread(results.count_records)
    by_people = await request.console.figures.ask(
        ("labels", key_of(evaluation), labels),
        lambda _: (results.corrected_rates(evaluation), results.judge_statuses(evaluation)),
        changing=evaluation.ended_at is None,
    )
    corrected, judges = ([], []) if isinstance(by_people, Computing) else by_people
    return request.show(
        "evaluation.html",
        corrected=corrected,
        correcting=by_people if isinstance(by_people, Computing) else None,
        judges={one.criterion: one for one in judges},
        live=Live(types=LIVE_EVENTS, subject=evaluation.id) if evaluation.ended_at is None else None,
        evaluation=evaluation,
        summary=summary,
        criteria=[*judged_by.ids],
        asked_of=dict(zip(judged_by.ids, map(describe_criterion, judged_by.criteria), strict=True)),
        answer=answer(summary.overall, summary.criteria),
        scores=draw_scores(counted.scores),
        table=table,
        cases=cases,
        query=query,
        filters=[*_filters(counted), Filter.of_counts("reviewer", "Labelled by", reviewers, several=True)],
        next=following,
        decided_by=decided_by,
        main_text=main_text,
        failing=summary.overall.failed + summary.overall.open,
        walked=query.keep(*WALK_FILTERS),
    )


def labelled_cases(reviews: Reviews, evaluation: EvaluationRecord) -> dict[str, list[str]]:
    """The cases that each person labelled, by the person's name."""
    found: dict[str, dict[str, None]] = {}
    for review in reviews.page(evaluation=evaluation):
        cases = {one.number: one.case_id for one in reviews.draws(review)}
        for label in reviews.labels(review):
            found.setdefault(label.labeller, {})[cases[label.number]] = None
    return {name: [*several] for name, several in found.items()}


def case_filter(query: Query, criteria: Sequence[str], labelled: Mapping[str, Sequence[str]]) -> CaseFilter:
    """The filter that a query of cases asks for; failing cases unless it says `show=all`, a verdict or a person."""
    chosen = [name for name in query.all("reviewer") if name in labelled]
    verdicts = tuple(Verdict(one) for one in query.all("verdict") if one in set(Verdict))
    tags = tuple((name, value) for name, _, value in (one.partition("=") for one in query.all("tag")) if value)
    return CaseFilter(
        verdicts=verdicts,
        failing=query.get("show") != "all" and not verdicts and not chosen,
        case_ids=tuple(dict.fromkeys(case for name in chosen for case in labelled[name])),
        criteria=tuple(criteria.index(one) for one in query.all("criterion") if one in criteria),
        tags=tags,
        faults=tuple(Fault(one) for one in query.all("fault") if one in set(Fault)),
        text=query.get("q") or None,
    )


def decided_by(case: CaseSummary, criteria: Sequence[str]) -> list[tuple[str, str]]:
    """The criteria that a case does not meet, each with its tone."""
    return [
        (tone(_LETTERS[letter]), name)
        for name, letter in zip(criteria, case.statuses, strict=False)
        if _LETTERS[letter] in (Status.NOT_MET, Status.INDETERMINATE)
    ]


async def _send_cases(
    request: PageRequest, kind: ListFormat, table: Table, evaluations: Evaluations, evaluation: EvaluationRecord
) -> Response[Any]:
    """Send the cases that fit the filters, in the order that the reader chose, as a file."""
    reviews = Reviews(request.service.store, request.caller.tenant)

    def rows() -> Iterator[tuple[Cell, ...]]:
        criteria = [*evaluations.criteria(evaluation).ids]
        wanted = case_filter(table.query, criteria, labelled_cases(reviews, evaluation))

        def read(at: Table) -> tuple[list[CaseSummary], Query | None]:
            limit = at.limit(PAGE_SIZE)
            if at.order is not None:
                ordered = evaluations.cases_sorted(evaluation, wanted, at.order, limit)
                return ordered.entries, at.following(ordered)
            found = [*evaluations.cases(evaluation, wanted, after=at.query.number("after") or 0, limit=limit)]
            return found, at.query.turn("after", found[-1].seq) if len(found) == limit else None

        return (_case_cells(one, criteria) for one in table.read_all(read))

    headings = ("case", "repeat", "verdict", "score", "decided_by", "tags", "outcome_id")
    return await stream_table(request, kind, headings, rows)


def _case_cells(case: CaseSummary, criteria: Sequence[str]) -> tuple[Any, ...]:
    decided = "; ".join(name for _, name in decided_by(case, criteria))
    tags = "; ".join(f"{name}={value}" for name, value in case.tags.items())
    return (case.case_id, case.repeat, str(case.verdict), case.score, decided, tags, case.outcome_id)


def describe_criterion(one: SuccessCriterion) -> str:
    """What a criterion asks, in a few words: `word_count between 15 and 60`; empty where its name says it."""
    if one.assertion is not None:
        return one.assertion.check
    parts = [one.metric or one.expr or "", show_comparison(one.comparison)]
    if one.threshold is not None:
        parts.append(shorten(show_value(one.threshold)))
    words = " ".join(filter(None, parts))
    return words if len(words) <= LONGEST_DESCRIPTION else one.metric or ""


def answer(overall: Rate, criteria: dict[str, Rate] | Any) -> tuple[str, str]:
    """The answer in one sentence, and what causes most failures in another."""
    if overall.rate is None:
        return f"None of {plural(overall.cases, 'case')} could be judged.", "Open a case to see what is missing."
    judged = overall.passed + overall.failed
    sentence = f"{overall.passed:,} of {judged:,} judged cases pass: {100 * overall.rate:.1f} %"
    if overall.interval is not None:
        low, high = 100 * overall.interval.low, 100 * overall.interval.high
        sentence += f", and between {low:.1f} and {high:.1f} % for cases like these"
    worst = max(criteria.items(), key=lambda one: one[1].failed, default=None)
    if worst is None or not worst[1].failed:
        return (
            f"{sentence}.",
            "No criterion failed." if not overall.open else f"{plural(overall.open, 'case')} could not be judged.",
        )
    more = f"Most failures come from “{worst[0]}”: {plural(worst[1].failed, 'case does', 'cases do')} not meet it."
    return f"{sentence}.", more


def draw_scores(scores: Sequence[int]) -> Drawing:
    """How the scores are spread, in ten steps."""
    most = max(scores, default=0)
    shapes: list[Any] = []
    for place, number in enumerate(scores):
        # The square root, so that a few cases beside hundreds are seen.
        height = 74 * (number / most) ** 0.5 if most else 0.0
        style = "f pass" if place == len(scores) - 1 else "f fail" if place == 0 else "f partial"
        span = f"{place / 10:.1f} to {(place + 1) / 10:.1f}"
        shapes.append(Box(place * 10 + 0.4, 94 - height, 9.2, height, style, f"score {span}: {plural(number, 'case')}"))
        if number:
            shapes.append(Label(place * 10 + 5, 90 - height, f"{number:,}", "middle"))
    shapes += [Stroke(0, 94.5, 100, 94.5, "axis"), Label(0, 110, "0"), Label(50, 110, "0.5", "middle")]
    shapes.append(Label(100, 110, "1", "end"))
    top = scores[-1] if scores else 0
    return Drawing("Scores in ten steps", f"{top} of {sum(scores)} cases score 0.9 or more", 114, tuple(shapes))


def _filters(counted: EvaluationFigures) -> list[Filter]:
    summary = counted.summary
    verdicts = [Choice(name, word(name), number, tone(name)) for name, number in summary.verdicts.items() if number]
    unmet = {name: rate.failed + rate.open for name, rate in summary.criteria.items() if rate.failed + rate.open}
    made = [
        Filter("show", "Show", [Choice("all", "passing ones too", summary.overall.cases)]),
        Filter("verdict", "Verdict", verdicts, several=True),
        Filter.of_counts("criterion", "Not met", unmet, several=True),
    ]
    for name, values in summary.tags.items():
        failing = {value: rate.failed + rate.open for value, rate in values.items() if rate.failed + rate.open}
        ordered = sorted(failing.items(), key=lambda one: -one[1])[:12]
        made.append(
            Filter("tag", name, [Choice(f"{name}={value}", value, number) for value, number in ordered], several=True)
        )
    faults = {name: number for name, number in counted.faults.items() if name != "none"}
    made.append(Filter.of_counts("fault", "Fault", faults, several=True))
    return made
