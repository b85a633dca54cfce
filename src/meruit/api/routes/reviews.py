"""`/v1/reviews`: queues of cases that people label, blind. Agents may not read them: they hold references."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from meruit.api.auth import OPERATORS, READERS
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.request import ApiRequest
from meruit.api.wire.common import PRINTABLE, Body, Key, Label, Limit, anchor_pattern, json_response
from meruit.evaluations.reader import Evaluations
from meruit.model.access import Caller
from meruit.model.record import Record
from meruit.review.label import Label as RecordedLabel
from meruit.review.label import LabelChoice, ReviewDraw, ReviewRecord
from meruit.review.label_files import GivenLabel
from meruit.review.results import CorrectedRate, ReviewResults
from meruit.review.service import MAX_CHOICES, MAX_DRAWN, MAX_TEXT, BlindCase, ReviewProgress, ReviewRequest, Reviews
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

LOCAL = "local"
"""Who labels where the service has no keys."""
MAX_LABELS = 512
"""Labels of one request."""
ReviewPath = Annotated[
    str, PathParameter(min_length=1, max_length=200, pattern=PRINTABLE, description="The name or id of a review.")
]
ReviewCursor = Annotated[
    str | None,
    QueryParameter(
        pattern=anchor_pattern("rev_[0-9a-f]{34}"),
        required=False,
        description="Cursor: pass the `next` value of the previous page.",
    ),
]
EvaluationQuery = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=200, pattern=PRINTABLE, required=False, description="Only of this one."),
]
LabellerQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=200, pattern=PRINTABLE, required=False, description="Who labels; default: your key."
    ),
]
Count = Annotated[int, Meta(ge=0, le=MAX_DRAWN)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class ChoiceBody(Body, frozen=True):
    """One answer that a labeller may give."""

    name: Label
    key: Annotated[str, Meta(min_length=1, max_length=1)]
    meets: bool
    """Whether a case with this label meets the criterion."""


class ReviewBody(Body, frozen=True):
    """A review to make of an evaluation."""

    name: Label
    evaluation: Label
    criterion: Label | None = None
    """Null for the whole verdict."""
    random: Count = 0
    """Cases drawn at random; only these estimate a rate or a judge's error."""
    disagreement: Count = 0
    """Cases whose judges disagree; for reading."""
    doubt: Count = 0
    """Cases that the judge did not decide; for reading."""
    stratum_tag: Label | None = None
    same_cases_as: Label | None = None
    question: Text = ""
    instructions: Text = ""
    choices: Annotated[list[ChoiceBody], Meta(max_length=MAX_CHOICES)] = msgspec.field(default_factory=list)
    shows: Annotated[list[str], Meta(max_length=3)] = msgspec.field(default_factory=lambda: ["input", "output"])
    labellers: Annotated[list[Label], Meta(max_length=100)] = msgspec.field(default_factory=list)
    per_case: Annotated[int, Meta(ge=1, le=100)] = 1
    seed: Annotated[int, Meta(ge=0, le=2**53)] | None = None

    def to_request(self) -> ReviewRequest:
        """The request, as the service takes it."""
        return ReviewRequest(
            name=self.name,
            evaluation=self.evaluation,
            criterion=self.criterion,
            question=self.question,
            instructions=self.instructions,
            choices=tuple(LabelChoice(one.name, one.key, meets=one.meets) for one in self.choices),
            shows=tuple(self.shows),
            labellers=tuple(self.labellers),
            per_case=self.per_case,
            random=self.random,
            disagreement=self.disagreement,
            doubt=self.doubt,
            stratum_tag=self.stratum_tag,
            seed=self.seed,
            same_cases_as=self.same_cases_as,
        )


class LabelBody(Body, frozen=True):
    """What a person says of one case."""

    number: Annotated[int, Meta(ge=1, le=MAX_DRAWN)]
    """The place of the case in the queue."""
    choice: Label
    note: Text = ""
    labeller: Label | None = None
    """Who labels; default: the key."""


class LabelsBody(Body, frozen=True):
    """Labels that are recorded together, or none of them."""

    labels: Annotated[list[LabelBody], Meta(min_length=1, max_length=MAX_LABELS)]


class ReviewPage(Record, frozen=True):
    """Reviews, newest first."""

    reviews: list[ReviewRecord]
    next: str | None
    """Pass it as `before` to get the next page; null on the last page."""


class ReviewReply(Record, frozen=True):
    """A review, how far it is, and what its labels say."""

    review: ReviewRecord
    progress: ReviewProgress
    corrected: CorrectedRate


class NextCaseReply(Record, frozen=True):
    """The next case for a labeller; null where nothing is left."""

    case: BlindCase | None


class LabelsReply(Record, frozen=True):
    """The labels as they are recorded."""

    labels: list[RecordedLabel]


class ReviewLabels(Record, frozen=True):
    """All cases of a queue, and what each person said last of them."""

    draws: list[ReviewDraw]
    labels: list[RecordedLabel]


def _reviews(request: ApiRequest) -> Reviews:
    return Reviews(request.service.store, request.caller.tenant)


def labeller_of(caller: Caller) -> str:
    """Who labels where no name is given: the key."""
    return caller.key_id or LOCAL


@post("/v1/reviews", status_code=201, guards=[OPERATORS], summary="Make a review", tags=["reviews"])
async def create_review(data: JSONBody[ReviewBody], request: ApiRequest, key: Key = None) -> Response[ReviewRecord]:
    """Draw cases of an evaluation for people to label."""

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        write = await asyncio.to_thread(
            lambda: _reviews(request).draft_create(data.to_request(), by=labeller_of(request.caller))
        )
        return await request.write_once(once, write, msgspec.json.encode)

    return await request.answer_once(key, 201, act)


@get("/v1/reviews", guards=[READERS], summary="List reviews", tags=["reviews"])
async def list_reviews(
    request: ApiRequest, evaluation: EvaluationQuery = None, before: ReviewCursor = None, limit: Limit = 50
) -> Response[ReviewPage]:
    """List the newest reviews."""

    def ask() -> list[ReviewRecord]:
        tenant = request.caller.tenant
        about = None if evaluation is None else Evaluations(request.service.store, tenant).find(evaluation)
        return _reviews(request).page(evaluation=about, before=before, limit=limit)

    found = await run_in_reader_thread(ask)
    return json_response(ReviewPage(found, found[-1].id if len(found) == limit else None))


@get("/v1/reviews/{review:str}", guards=[READERS], summary="Read a review", tags=["reviews"])
async def read_review(review: ReviewPath, request: ApiRequest) -> Response[ReviewReply]:
    """Read how far a review is, how far people agree, and the rate that their labels correct."""

    def ask() -> bytes:
        store, tenant = request.service.store, request.caller.tenant
        reviews = _reviews(request)
        found = reviews.find(review)
        evaluation = Evaluations(store, tenant).find(found.evaluation_id)
        rate = ReviewResults(store, tenant).corrected_rate(evaluation, found.criterion)
        return msgspec.json.encode(ReviewReply(found, reviews.progress(found), rate))

    # Adding up a large evaluation takes longer than other reads may wait.
    return json_response(await asyncio.to_thread(ask))


@get("/v1/reviews/{review:str}/next", guards=[OPERATORS], summary="Get the next case", tags=["reviews"])
async def read_next_case(
    review: ReviewPath, request: ApiRequest, labeller: LabellerQuery = None
) -> Response[NextCaseReply]:
    """Get the next case for a labeller, blind: the work, and no verdict, vote or label."""

    def ask() -> bytes:
        reviews = _reviews(request)
        case = reviews.next_case(reviews.find(review), labeller or labeller_of(request.caller))
        return msgspec.json.encode(NextCaseReply(case))

    return json_response(await run_in_reader_thread(ask))


@post("/v1/reviews/{review:str}/labels", status_code=200, guards=[OPERATORS], summary="Record labels", tags=["reviews"])
async def record_labels(
    review: ReviewPath, data: JSONBody[LabelsBody], request: ApiRequest, key: Key = None
) -> Response[LabelsReply]:
    """Record labels together, or none where one does not fit. A further label of a person supersedes the earlier."""
    reviews, who = _reviews(request), labeller_of(request.caller)
    found = await run_in_reader_thread(reviews.find, review)
    given = [GivenLabel(one.number, one.labeller or who, one.choice, one.note) for one in data.labels]

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        write = reviews.draft_import(found, given, by=who)
        return await request.write_once(once, write, lambda recorded: msgspec.json.encode(LabelsReply(recorded)))

    return await request.answer_once(key, 200, act)


@get("/v1/reviews/{review:str}/labels", guards=[READERS], summary="List labels", tags=["reviews"])
async def list_labels(review: ReviewPath, request: ApiRequest) -> Response[ReviewLabels]:
    """List the cases of a review with how each was drawn, and what each person said last of them."""

    def ask() -> bytes:
        reviews = _reviews(request)
        found = reviews.find(review)
        return msgspec.json.encode(ReviewLabels(reviews.draws(found), reviews.labels(found)))

    return json_response(await run_in_reader_thread(ask))
