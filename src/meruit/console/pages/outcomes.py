"""Cases and outcomes: the list of what was judged alone, and one with its evidence."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
from sqlalchemy import Connection

from meruit.api.bodies.dismantle import dismantle_soon
from meruit.api.file_stream import stream_table
from meruit.audit.export import export, receipt
from meruit.console.background import Computing
from meruit.console.daily import count_days, rate_of
from meruit.console.evidence_paths import list_paths
from meruit.console.live import Live
from meruit.console.page import ANYONE, NavEntry, PageRequest, page
from meruit.console.pages.evaluations import WALK_FILTERS, case_filter, labelled_cases
from meruit.console.query import Choice, Filter, Query
from meruit.console.shape import TextPiece, json_tree, main_text, plural, shorten, text_difference, tone
from meruit.console.sorting import read_beside
from meruit.console.summaries import CaseNeighbours, find_neighbours
from meruit.console.table import Column, Table, read_once
from meruit.errors import NotFound
from meruit.evaluations.compare import MOST_COMPARED
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord
from meruit.evaluations.reader import CaseFilter, Evaluations, find_case
from meruit.model.access import Role
from meruit.model.events import EventType
from meruit.model.outcome import AgentOutcome, OutcomeSummary, VerdictVersion
from meruit.model.verdict import CriterionResult, Status, Verdict, VerificationResult
from meruit.model.vote import read_judge_evidence
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import OUTCOME_HEADINGS, OutcomeFilter, outcome_cells
from meruit.review.label import Label as RecordedLabel
from meruit.review.label import ReviewRecord
from meruit.review.service import Reviews
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 50
REFERENCE = "reference"
COLUMNS = (
    Column("outcome", "Outcome"),
    Column("verdict", "Verdict"),
    Column("score", "Score", numeric=True, sortable=True),
    Column("agent", "Agent", sortable=True),
    Column("domain", "Domain", minor=True),
    Column("contract", "Part of", minor=True, hint="The contract, task run or agent run that it was judged for"),
    Column("consumer", "Consumer", usual=False),
    Column("version", "Version", numeric=True, usual=False),
    Column("recorded", "Recorded", numeric=True, sortable=True),
)
# An agent sees rounded scores; their order would tell more.
AGENT_COLUMNS = tuple(
    replace(one, sortable=one.key == "recorded") for one in COLUMNS if one.key not in ("agent", "domain", "consumer")
)
NEWEST_EVALUATIONS = 50
"""Evaluations that a case looks among for others of the same dataset."""
MOST_SAME = 6
"""Other evaluations that a case leads to."""
COUNTED_ROWS = 400
"""Outcomes that a list counts: "more than 400" is enough to know."""


@page("/outcomes", roles=ANYONE, nav=NavEntry("Quality", "Cases", keys="o", order=30))
async def list_outcomes(request: PageRequest) -> Response[Any]:
    """List outcomes that were judged one by one, newest first; an agent sees its own."""
    query, caller = Query.of(request), request.caller
    is_agent = caller.role is Role.AGENT
    table = Table.of(query, "Outcomes, newest first", AGENT_COLUMNS if is_agent else COLUMNS)
    verdict = query.get("verdict")
    wanted = OutcomeFilter(
        contract_id=query.get("contract") or None,
        agent_id=query.get("agent") or None,
        domain=query.get("domain") or None,
        verdict=verdict if verdict in set(Verdict) else None,
    )

    def read(connection: Connection, at: Table) -> tuple[list[OutcomeSummary], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = outcomes.page_sorted(connection, caller.scope, at.order, narrowed=wanted, limit=limit)
            return ordered.entries, at.following(ordered)
        before = at.query.number("before")
        newest = outcomes.page(connection, caller.scope, narrowed=wanted, before=before, limit=limit)
        return newest.entries, at.before(newest.next)

    if table.file is not None and not is_agent:
        every = table.read_all(partial(read_once, request.service.store, read))
        return await stream_table(request, table.file, OUTCOME_HEADINGS, lambda: map(outcome_cells, every))
    made = await read_beside(request, table, read)
    if isinstance(made, Computing):
        return request.show("sorting.html", computing=made, title="Cases and outcomes")
    found, following = made
    shown: list[OutcomeSummary] | list[AgentOutcome] = [outcomes.for_agent(one) for one in found] if is_agent else found
    chips = [Choice(str(one), str(one), tone=tone(one)) for one in Verdict]
    is_narrowed = wanted != OutcomeFilter()
    total, rate = await request.service.read(
        lambda connection: (
            outcomes.count_up_to(connection, caller.scope, wanted, COUNTED_ROWS + 1),
            # An agent has other counts than its tenant, and does not ask how good it is.
            None if is_agent or is_narrowed else rate_of(count_days(connection, request, request.now)),
        )
    )
    return request.show(
        "outcomes.html",
        live=None if is_agent else Live(types=(EventType.OUTCOME_RECORDED, EventType.OUTCOMES_RECORDED)),
        table=table,
        outcomes=shown,
        total=total,
        most=COUNTED_ROWS,
        newest=shown[0] if shown else None,
        rate=rate,
        is_narrowed=is_narrowed,
        is_agent=is_agent,
        query=query,
        filters=[Filter("verdict", "Verdict", chips), *_active_filters(query)],
        next=following,
    )


def _active_filters(query: Query) -> list[Filter]:
    """Filters without a list of values, once they are chosen."""
    names = {"agent": "Agent", "domain": "Domain", "contract": "Contract"}
    return [
        Filter(name, label, [Choice(query.get(name), query.get(name))])
        for name, label in names.items()
        if query.get(name)
    ]


@dataclass(frozen=True, slots=True)
class JudgedView:
    """One piece of work with its verdict, wherever it is recorded."""

    # Any: work is JSON.
    outcome_id: str
    input: Any
    output: Any
    metadata: Any
    result: VerificationResult | None
    error_message: str = ""
    case: CaseSummary | None = None
    evaluation: EvaluationRecord | None = None
    versions: tuple[VerdictVersion, ...] = ()
    record: Any = None
    walk: CaseNeighbours | None = None
    """Where it stands among the cases that the reader walks through: those of the list, or the failing ones."""
    same: tuple[tuple[EvaluationRecord, CaseSummary], ...] = ()
    """The same case in other evaluations, the newest first."""
    labels: tuple[tuple[ReviewRecord, RecordedLabel], ...] = ()
    """What people said of it, each with its review."""


@page("/outcomes/{outcome_id:str}", roles=ANYONE)
async def show_outcome(request: PageRequest, outcome_id: FromPath[str]) -> Response[Any]:
    """Show why one piece of work got its verdict."""
    caller, query = request.caller, Query.of(request)
    if caller.role is Role.AGENT:
        own = await request.service.read(lambda connection: outcomes.summary(connection, caller.scope, outcome_id))
        return request.show("outcome-agent.html", outcome=outcomes.for_agent(own))
    view = await asyncio.to_thread(_find, request, outcome_id, query)
    result = view.result
    work = await asyncio.to_thread(_describe_work, view)
    # The page shows the beginning; a large rest is freed in steps.
    dismantle_soon([view.input, view.output, view.metadata])
    return request.show(
        "outcome.html",
        # A case belongs to its evaluation, and the menu says so.
        here=None if view.evaluation is None else f"/evaluations/{view.evaluation.id}",
        view=view,
        result=result,
        answer=_answer(view),
        ordered=_in_order(result),
        paths=evidence_paths,
        votes=lambda one: read_judge_evidence(one.details),
        changes=find_changes(view.versions),
        walked=query.keep(*WALK_FILTERS),
        **work,
    )


# Any: a template takes any values.
def _describe_work(view: JudgedView) -> dict[str, Any]:
    """What the page shows of the work."""
    given, reference = view.input, None
    if isinstance(given, Mapping) and REFERENCE in given:
        reference = given[REFERENCE]
        given = {name: value for name, value in given.items() if name != REFERENCE}
    text, expected = main_text(view.output), main_text(reference)
    pieces: list[TextPiece] = text_difference(text, expected) if text is not None and expected is not None else []
    return {
        "given_text": _text_to_show(given),
        "output_text": _text_to_show(view.output),
        "reference_tree": None if reference is None else json_tree(reference, "reference"),
        "reference_text": _text_to_show(reference),
        "pieces": pieces,
        "output_tree": None if view.output is None else json_tree(dict(view.output), "output", _marks(view.result)),
        "input_tree": None if given is None else json_tree(given, "input"),
        "metadata_tree": json_tree(dict(view.metadata or {}), "metadata"),
    }


# Any: JSON.
def _text_to_show(value: Any) -> str | None:
    text = main_text(value)
    return None if text is None else shorten(text)


def _labels(
    reviews: Reviews, evaluation: EvaluationRecord, case: CaseSummary
) -> tuple[tuple[ReviewRecord, RecordedLabel], ...]:
    return tuple(
        (review, label)
        for review in reviews.page(evaluation=evaluation)
        for label in reviews.labels_of_case(review, case.case_id, case.repeat)
    )


def _walked(query: Query, evaluations: Evaluations, evaluation: EvaluationRecord, reviews: Reviews) -> CaseFilter:
    """The cases that the reader walks through, as the list was filtered; a text is not searched for."""
    asked = query.keep(*WALK_FILTERS)
    if not asked.asked:
        return CaseFilter(failing=True)
    labelled = labelled_cases(reviews, evaluation) if asked.get("reviewer") else {}
    return case_filter(asked, evaluations.criteria(evaluation).ids, labelled)


def _find_same(
    evaluations: Evaluations, evaluation: EvaluationRecord, case: CaseSummary, compared: Sequence[str]
) -> tuple[tuple[EvaluationRecord, CaseSummary], ...]:
    """The case in the evaluations that it was compared with, and in the newest ones of the same dataset."""
    others = dict[str, EvaluationRecord]()
    for name in compared[:MOST_COMPARED]:
        # The address may be older than the evaluation is gone.
        with suppress(NotFound):
            one = evaluations.find(name)
            others[one.id] = one
    if evaluation.dataset_digest is not None:
        newest = evaluations.page(limit=NEWEST_EVALUATIONS)
        others |= {one.id: one for one in newest if one.dataset_digest == evaluation.dataset_digest}
    others.pop(evaluation.id, None)
    ordered = sorted(others.values(), key=lambda one: one.id, reverse=True)
    return tuple(evaluations.same_case(ordered, case.case_id, case.repeat)[:MOST_SAME]) if ordered else ()


def _find(request: PageRequest, outcome_id: str, query: Query) -> JudgedView:
    store, caller = request.service.store, request.caller
    with store.database.reading() as connection:
        found = find_case(connection, caller.tenant, outcome_id)
        if found is None:
            version = query.number("version")
            record = outcomes.full_record(connection, caller.scope, outcome_id, store.blobs, version)
            versions = tuple(outcomes.versions(connection, caller.scope, outcome_id))
            return JudgedView(
                outcome_id,
                record.work_input,
                record.work_output,
                record.execution_metadata,
                record.verification_result,
                "",
                versions=versions,
                record=record,
            )
    evaluations = Evaluations(store, caller.tenant)
    evaluation_id, case = found
    evaluation = evaluations.find(evaluation_id)
    detail = evaluations.case(evaluation, case.case_id, case.repeat)
    reviews = Reviews(store, caller.tenant)
    return JudgedView(
        outcome_id,
        detail.input,
        detail.output,
        detail.metadata,
        detail.result,
        detail.error_message,
        case,
        evaluation,
        labels=_labels(reviews, evaluation, case),
        same=_find_same(evaluations, evaluation, case, query.all("e")),
        walk=find_neighbours(evaluations, evaluation, _walked(query, evaluations, evaluation, reviews), case.seq),
    )


def _in_order(result: VerificationResult | None) -> list[CriterionResult]:
    """Criteria with what decided the verdict first."""
    order = {Status.NOT_MET: 0, Status.INDETERMINATE: 1, Status.MET: 2, Status.EXCLUDED: 3}
    found = [] if result is None else result.criterion_results
    return sorted(found, key=lambda one: (order[one.status], not one.required, one.index))


def _answer(view: JudgedView) -> tuple[str, str]:
    """Why, in one sentence; what else, in another."""
    result = view.result
    if result is None:
        return "The work was erased, and its verdict with it.", "What is left is its entry in the log."
    if view.error_message:
        return f"Nothing to judge: {view.error_message}.", "It counts neither as a pass nor as a failure."
    unmet = [one for one in result.criterion_results if one.status is Status.NOT_MET]
    opened = [one for one in result.criterion_results if one.status is Status.INDETERMINATE]
    met = sum(one.status is Status.MET for one in result.criterion_results)
    rest = f"{met} of {plural(len(result.criterion_results), 'criterion', 'criteria')} met"
    rest += f"; {len(opened)} could not be measured." if opened else "."
    decisive = [one for one in unmet if one.required] or unmet
    if decisive:
        names = ", ".join(f"“{one.criterion_id}”" for one in decisive[:3])
        which = "required" if decisive[0].required else "optional"
        return f"It does not meet {names}, which {'is' if len(decisive) == 1 else 'are'} {which}.", rest
    if opened:
        return f"Open: “{opened[0].criterion_id}” could not be measured.", rest
    return "It meets every criterion." if result.verdict is Verdict.PASS else _first_reason(result), rest


def find_changes(versions: Sequence[VerdictVersion]) -> dict[int, list[tuple[str, str, str]]]:
    """The criteria that each version judges otherwise than the one before: name, status before, status after."""
    found: dict[int, list[tuple[str, str, str]]] = {}
    for before, after in pairwise(versions):
        old, new = (
            {} if one.result is None else {each.criterion_id: str(each.status) for each in one.result.criterion_results}
            for one in (before, after)
        )
        names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
        found[after.version] = [(name, old.get(name, ""), new.get(name, "")) for name in names]
    return found


def _first_reason(result: VerificationResult) -> str:
    return next((one.message[:1].upper() + one.message[1:] for one in result.reasons), "No reason is recorded.")


def evidence_paths(one: CriterionResult) -> list[tuple[str, str, str]]:
    """Path, expected and found of each place that a criterion names."""
    return list_paths(one.details or {})


def _marks(result: VerificationResult | None) -> dict[str, list[tuple[str, str]]]:
    """The values of the output that decided a criterion, by their path."""
    marks: dict[str, list[tuple[str, str]]] = {}
    for one in () if result is None else result.criterion_results:
        if one.status not in (Status.NOT_MET, Status.INDETERMINATE):
            continue
        for path, _, _ in evidence_paths(one):
            named = path if path.startswith("output") else f"output.{path.removeprefix('$.')}"
            marks.setdefault(named, []).append((tone(one.status), one.criterion_id))
    return marks


@page("/outcomes/{outcome_id:str}/receipt")
async def read_receipt(request: PageRequest, outcome_id: FromPath[str]) -> Response[Any]:
    """Download the entry in the log, with its proof."""
    made = await asyncio.to_thread(receipt, request.service.store, request.caller.scope, outcome_id, None)
    return _file(msgspec.json.format(msgspec.json.encode(made)), "application/json", f"{outcome_id}.receipt.json")


@page("/outcomes/{outcome_id:str}/bundle")
async def read_bundle(request: PageRequest, outcome_id: FromPath[str]) -> Response[Any]:
    """Download what a third party needs to check the verdict."""
    made = await asyncio.to_thread(export, request.service.store, request.caller.scope, outcome_id)
    return _file(made, "application/zip", f"{outcome_id}.zip")


@page("/outcomes/{outcome_id:str}/work")
async def read_work(request: PageRequest, outcome_id: FromPath[str]) -> Response[Any]:
    """Download input, output and metadata, whole."""
    view = await asyncio.to_thread(_find, request, outcome_id, Query("/outcomes"))
    whole = {"input": view.input, "output": view.output, "metadata": view.metadata}
    return _file(msgspec.json.format(msgspec.json.encode(whole)), "application/json", f"{outcome_id}.json")


def _file(content: bytes, media_type: str, name: str) -> Response[Any]:
    safe = "".join(one for one in name if one.isalnum() or one in "._-")
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{safe}"'})
