"""`/v1/outcomes`: recorded outcomes, the versions of their verdicts, and proofs."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from sqlalchemy import Connection

from meruit.api.auth import ANYONE, READERS
from meruit.api.listing import FormatQuery, SinceQuery, UntilQuery, next_page, parse_span, table_response, wants_table
from meruit.api.request import ApiRequest
from meruit.api.wire.common import (
    MAX_VERSION,
    LabelQuery,
    Limit,
    PageCursor,
    VersionQuery,
    anchor_pattern,
    json_response,
)
from meruit.audit.bundle import CaseReceipt, Receipt
from meruit.audit.export import export, receipt
from meruit.contracts.records import scores_to_show
from meruit.documents.csv_table import Cell
from meruit.errors import ApiProblem
from meruit.judge.difference import VerdictDifference, difference
from meruit.log.entries import OUR_CONTRACT
from meruit.model.access import AgentScore, Role
from meruit.model.outcome import AgentOutcome, OutcomeRecord, OutcomeSummary, VerdictVersion
from meruit.model.record import Record
from meruit.model.verdict import Verdict
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import OUTCOME_HEADINGS, OutcomeFilter, outcome_cells
from meruit.store.paging import ListPage
from meruit.web.parameters import FromQuery, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import ResponseSpec, get

OutcomeId = Annotated[str, PathParameter(pattern=anchor_pattern("out_[0-9a-f]{34}"))]
Digest = Annotated[str | None, QueryParameter(pattern=anchor_pattern("[0-9a-f]{64}"), required=False)]
ZIP = "application/zip"
AGENT_HEADINGS = ("outcome_id", "recorded_at", "contract_id", "version", "verdict", "success", "score")
"""The columns that an agent sees of its own outcomes."""


class OutcomePage(Record, frozen=True):
    """Outcomes, newest first."""

    outcomes: list[OutcomeSummary]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


class AgentOutcomePage(Record, frozen=True):
    """An agent's own outcomes, newest first."""

    outcomes: list[AgentOutcome]
    next: int | None


class OutcomeVersions(Record, frozen=True):
    """Every verdict on an outcome, oldest first."""

    versions: list[VerdictVersion]


@get("/v1/outcomes", guards=[ANYONE], summary="List outcomes", tags=["outcomes"])
async def list_outcomes(  # noqa: PLR0913 - one a filter
    request: ApiRequest,
    contract_id: LabelQuery = None,
    agent_id: LabelQuery = None,
    consumer_id: LabelQuery = None,
    domain: LabelQuery = None,
    verdict: FromQuery[Verdict | None] = None,
    criteria_digest: Digest = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
    shown_as: FormatQuery = None,
) -> Response[OutcomePage | AgentOutcomePage]:
    """List the newest outcomes. Several filters must all hold. An agent sees its own."""
    caller, service = request.caller, request.service
    hidden = {"criteria_digest": criteria_digest, "consumer_id": consumer_id}
    asked = next((name for name, value in hidden.items() if value is not None), None)
    if caller.role is Role.AGENT and asked is not None:
        raise ApiProblem(403, "forbidden", f"agent keys may not filter by {asked}")
    begin, end = parse_span(since, until)
    wanted = OutcomeFilter(
        contract_id,
        agent_id,
        consumer_id,
        domain,
        None if verdict is None else str(verdict),
        criteria_digest,
        begin,
        end,
    )

    def ask(connection: Connection) -> ListPage[OutcomeSummary]:
        return outcomes.page(connection, caller.scope, narrowed=wanted, before=before, limit=limit)

    found, following = await service.read(ask)
    if caller.role is Role.AGENT:
        own = await _own_outcomes(request, found)
        if (table := wants_table(request, shown_as)) is not None:
            return await table_response(request, table, AGENT_HEADINGS, map(_agent_cells, own), next_page(following))
        return json_response(AgentOutcomePage(own, following))
    if (table := wants_table(request, shown_as)) is not None:
        return await table_response(request, table, OUTCOME_HEADINGS, map(outcome_cells, found), next_page(following))
    return json_response(OutcomePage(found, following))


async def _own_outcomes(request: ApiRequest, found: Sequence[OutcomeSummary]) -> list[AgentOutcome]:
    """What an agent sees of its own outcomes; the terms of a contract say how much of the score."""
    tenant, usual = request.caller.tenant, request.service.settings.agent_score
    # The reply to a try shows its score; the terms of a contract that was open then may hide it.
    of_tries = AgentScore.EXACT if usual is AgentScore.EXACT else AgentScore.VERDICT
    ids = {one.contract_id for one in found if not one.by_agent and OUR_CONTRACT.fullmatch(one.contract_id)}
    shown = await request.service.read(lambda connection: scores_to_show(connection, tenant, ids)) if ids else {}
    return [outcomes.for_agent(one, of_tries if one.by_agent else shown.get(one.contract_id, usual)) for one in found]


def _agent_cells(one: AgentOutcome) -> tuple[Cell, ...]:
    return (one.id, one.created_at, one.contract_id, one.version, str(one.verdict), one.success, one.score)


@get(
    "/v1/outcomes/{outcome_id:str}",
    guards=[ANYONE],
    summary="Read an outcome",
    tags=["outcomes"],
    responses={
        200: ResponseSpec(
            OutcomeRecord | AgentOutcome,
            description="The whole record; an agent gets only how its work ended.",
        )
    },
)
async def read_outcome(outcome_id: OutcomeId, request: ApiRequest, version: VersionQuery = None) -> Response[Any]:
    """Read an outcome in its latest or a given version. An agent sees only how its own work ended."""
    caller, service = request.caller, request.service
    if caller.role is Role.AGENT:
        found = await service.read(lambda connection: outcomes.summary(connection, caller.scope, outcome_id))
        return json_response((await _own_outcomes(request, [found]))[0])

    def ask(connection: Connection) -> bytes:
        return outcomes.full_record_json(connection, caller.scope, outcome_id, service.store.blobs, version)

    return json_response(await service.read(ask))


@get(
    "/v1/outcomes/{outcome_id:str}/versions",
    guards=[READERS],
    summary="List the verdicts on an outcome",
    tags=["outcomes"],
)
async def list_verdicts(outcome_id: OutcomeId, request: ApiRequest) -> Response[OutcomeVersions]:
    """List every verdict on an outcome, oldest first."""
    scope = request.caller.scope
    found = await request.service.read(lambda connection: outcomes.versions(connection, scope, outcome_id))
    return json_response(OutcomeVersions(found))


@get(
    "/v1/outcomes/{outcome_id:str}/diff",
    guards=[READERS],
    summary="Compare two verdicts on an outcome",
    tags=["outcomes"],
)
async def compare_verdicts(
    outcome_id: OutcomeId,
    request: ApiRequest,
    old: Annotated[int | None, QueryParameter(name="from", ge=1, le=MAX_VERSION, required=False)] = None,
    new: Annotated[int | None, QueryParameter(name="to", ge=1, le=MAX_VERSION, required=False)] = None,
) -> Response[VerdictDifference]:
    """Compare two versions of a verdict by criterion (default: the last two)."""
    scope = request.caller.scope

    def ask(connection: Connection) -> VerdictDifference:
        latest = outcomes.summary(connection, scope, outcome_id).version
        to = latest if new is None else new
        since = max(to - 1, 1) if old is None else old
        pair = [outcomes.version(connection, scope, outcome_id, number).result for number in (since, to)]
        if pair[0] is None or pair[1] is None:
            raise ApiProblem(410, "erased", "the results of this outcome were erased")
        return difference(pair[0], pair[1])

    return json_response(await request.service.read(ask))


@get("/v1/outcomes/{outcome_id:str}/receipt", guards=[READERS], summary="Read the receipt of a verdict", tags=["audit"])
async def read_receipt(
    outcome_id: OutcomeId, request: ApiRequest, version: VersionQuery = None
) -> Response[Receipt | CaseReceipt]:
    """Read the entry of a verdict in the audit log, with the proof that a signed checkpoint covers it."""
    made = await asyncio.to_thread(receipt, request.service.store, request.caller.scope, outcome_id, version)
    return json_response(made)


@get(
    "/v1/outcomes/{outcome_id:str}/bundle",
    guards=[READERS],
    summary="Download the audit bundle of an outcome",
    tags=["audit"],
    media_type=ZIP,
)
async def read_bundle(outcome_id: OutcomeId, request: ApiRequest) -> Response[bytes]:
    """Download a zip file that `meruit audit verify` checks without access to this service."""
    made = await asyncio.to_thread(export, request.service.store, request.caller.scope, outcome_id)
    headers = {"Content-Disposition": f'attachment; filename="{outcome_id}.zip"'}
    return Response(made, media_type=ZIP, headers=headers)
