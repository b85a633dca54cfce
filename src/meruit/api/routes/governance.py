"""`/v1/governance`: check the plausibility of an outcome for other systems."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.auth import OPERATORS
from meruit.api.request import ApiRequest
from meruit.api.wire.common import Body, Label, json_response
from meruit.errors import ApiProblem, BodyError, Problem
from meruit.governance.dossier import dossier_from_context
from meruit.governance.evaluate import find_excesses, govern
from meruit.model.decoding import convert_to
from meruit.model.governance import Dossier, GovernanceResult, Policy
from meruit.web.parameters import JSONBody
from meruit.web.responses import Response
from meruit.web.routing import post
from meruit.web.validation import field_problem

CONTEXT = "execution_context"
DOSSIER = f"{CONTEXT}.dossier"
MAX_AT_ONCE = 2
MAX_PROBLEMS = 10
"""Most problems of a dossier that a reply lists."""
_executor = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="governance")
"""Its own threads, so that many checks do not delay completions and settlements."""

CONTEXT_NAMES = {"claimed_ms": "duration_ms", "claimed_tokens": "total_tokens"}
"""Fields of a dossier that have another name in an execution context."""

# Any: metrics and context are any JSON.
MetricValues = Annotated[dict[str, Any], Meta(description="Metric values by name.")]
Context = Annotated[
    dict[str, Any],
    Meta(
        description="What is known about the run: a `dossier`, or `agent_id`, `work_id`, `claimed_metrics`, "
        "`measured_metrics`, `duration_ms`, `started_at` and so on."
    ),
]


class OutcomeQuestion(Body, frozen=True):
    """An outcome to check."""

    contract_id: Label
    claimed_metrics: MetricValues = msgspec.field(default_factory=dict)
    execution_context: Context = msgspec.field(default_factory=dict)


@post(
    "/v1/governance/validate_outcome",
    status_code=200,
    guards=[OPERATORS],
    summary="Check the plausibility of an outcome",
    tags=["governance"],
)
async def validate_outcome(data: JSONBody[OutcomeQuestion], request: ApiRequest) -> Response[GovernanceResult]:
    """Apply every governance rule of this service to an outcome. Nothing is stored, and no stored history is used."""
    policy = request.service.marketplace.policy
    if policy is None:
        why = "governance is off in this service; set verification.governance_check in its configuration"
        raise ApiProblem(409, "governance_off", why)
    return json_response(await asyncio.get_running_loop().run_in_executor(_executor, _evaluate, data, policy))


def _evaluate(data: OutcomeQuestion, policy: Policy) -> GovernanceResult:
    return govern(_dossier(data), policy)


def _dossier(data: OutcomeQuestion) -> Dossier:
    """The dossier of the request, or one built from its context."""
    context = data.execution_context
    gathered = context.get("dossier")
    if gathered is None:
        return _check_bounds(dossier_from_context(data.contract_id, data.claimed_metrics, context), CONTEXT)
    try:
        dossier = convert_to(gathered, Dossier)
    except msgspec.ValidationError as refused:
        problem = field_problem(str(refused))
        raise _body_error([problem._replace(where=f"{DOSSIER}.{problem.where}".rstrip("."))]) from None
    if dossier.contract_id not in ("", data.contract_id):
        raise _body_error([Problem(f"{DOSSIER}.contract_id", "must equal contract_id")])
    return _check_bounds(dossier, DOSSIER)


def _check_bounds(dossier: Dossier, where: str) -> Dossier:
    """Return the dossier; raises BodyError when a part is too large."""
    names = CONTEXT_NAMES if where == CONTEXT else {}
    problems = [*islice(find_excesses(dossier), MAX_PROBLEMS)]
    if problems:
        raise _body_error(one._replace(where=f"{where}.{names.get(one.where, one.where)}") for one in problems)
    return dossier


def _body_error(problems: Iterable[Problem]) -> BodyError:
    several = [*problems]
    return BodyError("; ".join(map(str, several)), several)
