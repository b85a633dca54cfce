"""`/v1/evaluations`: named sets of cases, judged by the same criteria, and compared case by case."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from meruit.api.auth import ANYONE, OPERATORS, READERS
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.listing import SinceQuery, UntilQuery, invalid_field, parse_span
from meruit.api.request import ApiRequest
from meruit.api.routes.verify import load_criteria
from meruit.api.wire.common import Key, Limit, json_response
from meruit.api.wire.evaluations import (
    AGENT_TAG,
    AgentCaseList,
    AgentEvaluationPage,
    AgentEvaluationReply,
    CaseCursor,
    CaseIdQuery,
    CaseList,
    CasePath,
    CasesReply,
    CasesRequest,
    ComparisonReply,
    CriterionQuery,
    EvaluationCursor,
    EvaluationPage,
    EvaluationPath,
    EvaluationReply,
    FaultQuery,
    GroupQuery,
    PreferenceRequest,
    RepeatQuery,
    StartRequest,
    StatusQuery,
    TagQuery,
    TextQuery,
    VerdictQuery,
    WithQuery,
    case_verdict,
    for_agent,
)
from meruit.errors import ApiProblem, NotFound, UnknownName
from meruit.evaluations.case_judge import JudgedCase, JudgeLimits
from meruit.evaluations.evaluation import Case, EvaluationRecord, EvaluationStatus
from meruit.evaluations.pairwise import PairwiseComparison
from meruit.evaluations.reader import CaseDetail, CaseFilter, CasePage, EvaluationFilter, Evaluations
from meruit.evaluations.service import Evaluator
from meruit.judges.prefer import PairQuestion
from meruit.model.access import Role
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.web.parameters import FromQuery, JSONBody, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import ResponseSpec, get, post

DigestQuery = Annotated[str | None, QueryParameter(pattern="^[0-9a-f]{64}$", required=False)]


def _reader(request: ApiRequest) -> Evaluations:
    return Evaluations(request.service.store, request.caller.tenant)


def _evaluator(request: ApiRequest) -> Evaluator:
    return Evaluator(request.service.registrar, request.caller.tenant)


def _find(request: ApiRequest, name_or_id: str) -> EvaluationRecord:
    """The evaluation; an agent finds those that are tagged with its id, and no other."""
    found = _reader(request).find(name_or_id)
    caller = request.caller
    if caller.role is Role.AGENT and (caller.agent_id is None or found.tags.get(AGENT_TAG) != caller.agent_id):
        raise NotFound(f"no evaluation is named {name_or_id!r}")
    return found


def _parse_tags(tags: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for one in tags or ():
        name, separator, value = one.partition("=")
        if not separator or not name or not value:
            raise invalid_field("tag", "expected NAME=VALUE")
        pairs.append((name, value))
    return (*pairs,)


@post("/v1/evaluations", status_code=201, guards=[OPERATORS], summary="Begin an evaluation", tags=["evaluations"])
async def start_evaluation(
    data: JSONBody[StartRequest], request: ApiRequest, key: Key = None
) -> Response[EvaluationRecord]:
    """Begin an evaluation, or go on with an unfinished one of the same name, criteria, data and tags."""
    size = len(await request.body())

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        criteria = await load_criteria(request.caller, data.criteria, request.service, size)
        write = _evaluator(request).draft_start(
            data.name, criteria, tags=data.tags, dataset_digest=data.dataset_digest, planned=data.planned
        )
        return await request.write_once(once, write, msgspec.json.encode)

    return await request.answer_once(key, 201, act)


@post(
    "/v1/evaluations/{evaluation:str}/cases",
    status_code=200,
    guards=[OPERATORS],
    summary="Judge and record cases",
    tags=["evaluations"],
)
async def record_cases(
    evaluation: EvaluationPath, data: JSONBody[CasesRequest], request: ApiRequest, key: Key = None
) -> Response[CasesReply]:
    """Judge up to 512 cases and record them together, or none. Cases that are recorded already are passed over."""
    found = await run_in_reader_thread(_find, request, evaluation)
    cases = [one.to_case() for one in data.cases]
    if len({(case.id, case.repeat) for case in cases}) < len(cases):
        raise invalid_field("cases", "two cases have the same id and repeat")

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        evaluator = _evaluator(request)
        judged = await asyncio.to_thread(_judge, evaluator, found, cases)
        known = sorted({case.id for case in cases} - {one.summary.case_id for one in judged})
        shown = [case_verdict(one.summary) for one in judged]
        if not judged:
            return await request.store_reply(once, msgspec.json.encode(CasesReply(None, shown, known)))
        for one in judged:
            request.service.instruments.verdicts_total.labels(one.summary.verdict.value, request.caller.tenant).inc()
        write = await asyncio.to_thread(evaluator.draft_segment, found, judged)
        answer = await request.write_once(
            once, write, lambda number: msgspec.json.encode(CasesReply(number, shown, known))
        )
        if not isinstance(answer, IdempotentReplay):
            request.service.instruments.recorded_total.labels(request.caller.tenant).inc(len(judged))
        return answer

    try:
        return await request.answer_once(key, 200, act)
    finally:
        await request.free_payloads(data.cases)


def _judge(evaluator: Evaluator, found: EvaluationRecord, cases: Sequence[Case]) -> list[JudgedCase]:
    criteria = evaluator.criteria_committed_to(found)
    return [*evaluator.judge_all(found, criteria, evaluator.missing(found, cases), JudgeLimits())]


@post(
    "/v1/evaluations/{evaluation:str}/finish",
    status_code=200,
    guards=[OPERATORS],
    summary="Finish an evaluation",
    tags=["evaluations"],
)
async def finish_evaluation(
    evaluation: EvaluationPath, request: ApiRequest, key: Key = None
) -> Response[EvaluationRecord]:
    """Say that all cases are recorded. From then on the evaluation does not change; a second time has no effect."""
    await request.require_no_body()
    found = await run_in_reader_thread(_find, request, evaluation)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        evaluator = _evaluator(request)
        draft = await asyncio.to_thread(evaluator.draft_finish, found)
        answer = await request.write_once(once, draft, msgspec.json.encode)
        if found.status is EvaluationStatus.RUNNING and not isinstance(answer, IdempotentReplay):
            await asyncio.to_thread(evaluator.meter_judges, found)
        return answer

    return await request.answer_once(key, 200, act)


@get("/v1/evaluations", guards=[ANYONE], summary="List evaluations", tags=["evaluations"])
async def list_evaluations(  # noqa: PLR0913 - one a filter
    request: ApiRequest,
    text: TextQuery = None,
    statuses: StatusQuery = None,
    tagged: TagQuery = None,
    criteria_digest: DigestQuery = None,
    dataset_digest: DigestQuery = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    before: EvaluationCursor = None,
    limit: Limit = 50,
) -> Response[EvaluationPage | AgentEvaluationPage]:
    """List the newest evaluations. Filters can be combined. An agent sees those that are tagged with its `agent_id`."""
    caller = request.caller
    begin, end = parse_span(since, until)
    wanted = EvaluationFilter(
        text, tuple(statuses or ()), _parse_tags(tagged), criteria_digest, dataset_digest, begin, end
    )
    if caller.role is Role.AGENT:
        _refuse_for_agents(tag=tagged, criteria_digest=criteria_digest, dataset_digest=dataset_digest)
        # An agent key without a name has none; no tag is empty.
        wanted = msgspec.structs.replace(wanted, tags=((AGENT_TAG, caller.agent_id or ""),))
    found = await run_in_reader_thread(lambda: _reader(request).page(wanted, before=before, limit=limit))
    following = found[-1].id if len(found) == limit else None
    if caller.role is Role.AGENT:
        return json_response(AgentEvaluationPage([*map(for_agent, found)], following))
    return json_response(EvaluationPage(found, following))


# Any: a filter of any type.
def _refuse_for_agents(**filters: Any) -> None:
    """Refuse a filter that would reveal to an agent what its work is judged by."""
    asked = next((name for name, value in filters.items() if value), None)
    if asked is not None:
        raise ApiProblem(403, "forbidden", f"agent keys may not filter by {asked}")


@get(
    "/v1/evaluations/{evaluation:str}",
    guards=[ANYONE],
    summary="Read an evaluation",
    tags=["evaluations"],
    responses={
        200: ResponseSpec(
            EvaluationReply | AgentEvaluationReply,
            description="All its numbers; an agent gets only its pass rate.",
        )
    },
)
async def read_evaluation(evaluation: EvaluationPath, request: ApiRequest) -> Response[Any]:
    """Read an evaluation with its numbers. An agent sees only the pass rate."""

    def ask() -> bytes:
        reader, found = _reader(request), _find(request, evaluation)
        summary = reader.summary(found)
        if request.caller.role is Role.AGENT:
            return msgspec.json.encode(AgentEvaluationReply(for_agent(found), summary.overall))
        return msgspec.json.encode(EvaluationReply(found, summary, reader.judge_tokens(found)))

    # Adding up a large evaluation takes longer than other reads may wait.
    return json_response(await asyncio.to_thread(ask))


@get("/v1/evaluations/{evaluation:str}/cases", guards=[ANYONE], summary="List cases", tags=["evaluations"])
async def list_cases(  # noqa: PLR0913 - one a filter
    evaluation: EvaluationPath,
    request: ApiRequest,
    criteria: CriterionQuery = None,
    verdicts: VerdictQuery = None,
    tagged: TagQuery = None,
    faults: FaultQuery = None,
    groups: GroupQuery = None,
    case_ids: CaseIdQuery = None,
    text: TextQuery = None,
    failing: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    errors: FromQuery[bool] = False,  # noqa: FBT002
    disputed: FromQuery[bool] = False,  # noqa: FBT002
    detail: FromQuery[bool] = False,  # noqa: FBT002
    after: CaseCursor = 0,
    limit: Limit = 50,
) -> Response[CaseList | CasePage | AgentCaseList]:
    """List cases. Filters can be combined; `detail=true` adds the work and all evidence.

    A search for a text examines a bounded number of cases for one page: go on while `next` is not null.
    """
    agent, shown = request.caller.role is Role.AGENT, request.service.settings.agent_score
    if agent:
        _refuse_for_agents(
            criterion=criteria, tag=tagged, fault=faults, group=groups, text=text, disputed=disputed, detail=detail
        )

    def ask() -> bytes:
        reader, found = _reader(request), _find(request, evaluation)
        wanted = CaseFilter(
            verdicts=tuple(verdicts or ()),
            failing=failing,
            criteria=_criterion_positions(reader, found, criteria or ()),
            tags=_parse_tags(tagged),
            groups=tuple(groups or ()),
            case_ids=tuple(case_ids or ()),
            faults=tuple(faults or ()),
            error=True if errors else None,
            disputed=disputed,
            text=text,
        )
        if detail or text is not None:
            page = reader.page_details(found, wanted, after=after, limit=limit)
            return msgspec.json.encode(page if detail else CaseList([one.summary for one in page.cases], page.next))
        cases = [*reader.cases(found, wanted, after=after, limit=limit)]
        following = cases[-1].seq if len(cases) == limit else None
        if agent:
            return msgspec.json.encode(AgentCaseList([case_verdict(one, shown) for one in cases], following))
        return msgspec.json.encode(CaseList(cases, following))

    return json_response(await asyncio.to_thread(ask))


def _criterion_positions(reader: Evaluations, found: EvaluationRecord, criteria: Sequence[str]) -> tuple[int, ...]:
    try:
        return reader.criterion_positions(found, criteria)
    except UnknownName as problem:
        raise invalid_field("criterion", str(problem)) from None


@get(
    "/v1/evaluations/{evaluation:str}/cases/{case_id:path}",
    guards=[READERS],
    summary="Read a case",
    tags=["evaluations"],
)
async def read_case(
    evaluation: EvaluationPath, case_id: CasePath, request: ApiRequest, repeat: RepeatQuery = 0
) -> Response[CaseDetail]:
    """Read one case with its work and all evidence."""
    # Such a path begins with a slash.
    wanted = case_id.removeprefix("/")

    def ask() -> bytes:
        return msgspec.json.encode(_reader(request).case(_find(request, evaluation), wanted, repeat))

    return json_response(await run_in_reader_thread(ask))


@get(
    "/v1/evaluations/{evaluation:str}/compare",
    guards=[READERS],
    summary="Compare evaluations",
    tags=["evaluations"],
)
async def compare_evaluations(
    evaluation: EvaluationPath, request: ApiRequest, others: WithQuery
) -> Response[ComparisonReply]:
    """Compare one to three other evaluations with this one, paired by the ids of their cases."""

    def ask() -> bytes:
        compared = _reader(request).compare_several(
            _find(request, evaluation), [_find(request, other) for other in others]
        )
        return msgspec.json.encode(ComparisonReply(compared))

    return json_response(await asyncio.to_thread(ask))


@post(
    "/v1/evaluations/{evaluation:str}/preferences",
    status_code=200,
    guards=[OPERATORS],
    summary="Ask a judge which outputs are better",
    tags=["evaluations"],
)
async def compare_by_preference(
    evaluation: EvaluationPath, data: JSONBody[PreferenceRequest], request: ApiRequest
) -> Response[PairwiseComparison]:
    """Show a judge both outputs of each common case, in both orders, and count which it prefers.

    At most 1,000 pairs. Answers are recorded: the same question about the same outputs is not asked again.
    """
    question = PairQuestion(
        data.judge,
        data.question,
        data.rubric,
        max_tokens=data.max_judge_tokens,
        max_cost=data.max_judge_cost,
    )

    def ask() -> bytes:
        several = [_find(request, one) for one in (evaluation, *data.others)]
        return msgspec.json.encode(_evaluator(request).prefer(several, question))

    return json_response(await asyncio.to_thread(ask))
