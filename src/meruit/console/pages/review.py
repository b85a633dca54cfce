"""Reviews: queues of cases, one case at a time and blind, and what the labels say."""

import asyncio
from typing import Any

from meruit.api.file_stream import stream_table
from meruit.api.routes.reviews import labeller_of
from meruit.console.background import Computing
from meruit.console.page import OPERATORS, NavEntry, PageRequest, action, page, read_field
from meruit.console.query import Query
from meruit.console.shape import JsonNode, json_tree
from meruit.console.summaries import key_of
from meruit.console.table import Column, Table
from meruit.errors import ApiProblem
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.review.label import CANNOT_TELL, Label, ReviewRecord
from meruit.review.results import ReviewResults
from meruit.review.service import MAX_TEXT, BlindCase, Reviews
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 50
LAST_LABELS = 5
"""Labels of one's own that can be changed beside the next case."""
COLUMNS = (
    Column("review", "Review"),
    Column("evaluation", "Evaluation"),
    Column("criterion", "Criterion", minor=True),
    Column("cases", "Cases", numeric=True),
    Column("labels", "Labels", numeric=True),
    Column("created", "Created", numeric=True),
)


def _reviews(request: PageRequest) -> Reviews:
    return Reviews(request.service.store, request.caller.tenant)


@page("/reviews", nav=NavEntry("Quality", "Review", keys="r", order=40))
async def list_reviews(request: PageRequest) -> Response[Any]:
    """List reviews, newest first."""
    query = Query.of(request)
    table = Table.of(query, "Reviews, newest first", COLUMNS)

    def read(at: Table) -> tuple[list[ReviewRecord], Query | None]:
        limit = at.limit(PAGE_SIZE)
        newest = _reviews(request).page(before=at.query.get("before") or None, limit=limit)
        return newest, at.query.turn("before", newest[-1].id) if len(newest) == limit else None

    if table.file is not None:
        headings = ("review", "id", "evaluation", "criterion", "cases", "labels", "created_at")
        rows = (
            (one.name, one.id, one.evaluation, one.criterion, one.cases, one.labels, one.created_at)
            for one in table.read_all(read)
        )
        return await stream_table(request, table.file, headings, lambda: rows)
    found, following = await asyncio.to_thread(read, table)
    return request.show(
        "reviews.html",
        query=query,
        table=table,
        waiting=sum(one.labels < one.cases * one.terms.per_case for one in found),
        reviews=found,
        next=following,
    )


@page("/reviews/{review_id:str}")
async def show_review(request: PageRequest, review_id: FromPath[str]) -> Response[Any]:
    """Show how far a review is, how far people agree, and the rate that their labels correct."""
    store, tenant = request.service.store, request.caller.tenant
    reviews, results = _reviews(request), ReviewResults(store, tenant)

    def ask() -> tuple[ReviewRecord, EvaluationRecord, tuple[int, int]]:
        review = reviews.find(review_id)
        return review, Evaluations(store, tenant).find(review.evaluation_id), results.count_records()

    review, evaluation, labels = await asyncio.to_thread(ask)
    # The rate depends on every case of the evaluation and on every label: it is computed once for each state of them.
    made = await request.console.figures.ask(
        ("review", review.id, key_of(evaluation), labels),
        lambda _: (reviews.progress(review), results.corrected_rate(evaluation, review.criterion)),
        changing=evaluation.ended_at is None,
    )
    if isinstance(made, Computing):
        return request.show("review-computing.html", review=review, evaluation=evaluation, computing=made)
    progress, rate = made
    return request.show("review.html", review=review, evaluation=evaluation, progress=progress, rate=rate)


@page("/reviews/{review_id:str}/label", roles=OPERATORS)
async def show_next_case(request: PageRequest, review_id: FromPath[str]) -> Response[Any]:
    """Show the next case, blind, or one that the labeller wants to change."""
    number, labeller = Query.of(request).number("case"), labeller_of(request.caller)

    def ask() -> tuple[ReviewRecord, BlindCase | None, tuple[int, list[Label]]]:
        reviews = _reviews(request)
        review = reviews.find(review_id)
        case = reviews.next_case(review, labeller) if number is None else reviews.case(review, number)
        return review, case, reviews.last_labels(review, labeller, LAST_LABELS)

    review, case, (done, own) = await asyncio.to_thread(ask)
    shown = [] if case is None else [_part(name, value) for name, value in case.parts.items()]
    return request.show(
        "review-case.html",
        review=review,
        case=case,
        shown=shown,
        own=own,
        done=done,
        words={CANNOT_TELL: "cannot tell"},
        max_note=MAX_TEXT,
        is_change=number is not None,
    )


# Any: a part of the work is JSON.
def _part(name: str, value: Any) -> tuple[str, list[tuple[str, str | None, JsonNode]] | None]:
    """The name of a part, and its fields: name, text where it is one, and tree; None for a part that was erased."""
    if value is None:
        return name, None
    # A labeller sees all of a part: of several fields, none is left out.
    fields = [
        (key, one if isinstance(one, str) else None, json_tree(one, f"{name}.{key}")) for key, one in value.items()
    ]
    # What can be read comes first.
    return name, sorted(fields, key=lambda one: (one[1] is None, -len(one[1] or "")))


@action("/reviews/{review_id:str}/label")
async def label_case(request: PageRequest, review_id: FromPath[str]) -> Response[Any]:
    """Record a label and go on to the next case."""
    number = await read_field(request, "number", longest=10)
    choice = await read_field(request, "choice", longest=200)
    note = await read_field(request, "note", longest=MAX_TEXT)
    if not number.isascii() or not number.isdigit():
        raise ApiProblem(400, "invalid", "number: the case is missing; open the review again")
    who = labeller_of(request.caller)

    def draft() -> Any:
        reviews = _reviews(request)
        return reviews.draft_label(reviews.find(review_id), int(number), labeller=who, choice=choice, note=note, by=who)

    await request.service.store.recorder.record(await asyncio.to_thread(draft))
    return request.go_to(f"/reviews/{review_id}/label")
