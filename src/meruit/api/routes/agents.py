"""`/v1/trust`: how far an agent can be trusted, from its recorded work."""

from sqlalchemy import Connection

from meruit.api.auth import ANYONE
from meruit.api.listing import SinceQuery, UntilQuery, invalid_field, parse_span
from meruit.api.request import ApiRequest
from meruit.api.wire.common import LabelQuery, json_response
from meruit.contracts import records
from meruit.contracts.trust import TrustScore
from meruit.errors import ApiProblem
from meruit.model.access import Role
from meruit.web.responses import Response
from meruit.web.routing import get


@get("/v1/trust", guards=[ANYONE], summary="Read the trust score of an agent", tags=["agents"])
async def read_trust(
    request: ApiRequest, agent_id: LabelQuery = None, since: SinceQuery = None, until: UntilQuery = None
) -> Response[TrustScore]:
    """Compute the share of decided work that an agent delivered, with its interval. An agent sees its own."""
    caller = request.caller
    if caller.role is Role.AGENT:
        if caller.agent_id is None or agent_id not in (None, caller.agent_id):
            raise ApiProblem(403, "forbidden", "an agent may read only its own trust score; leave agent_id out")
        agent_id = caller.agent_id
    if agent_id is None:
        raise invalid_field("agent_id", "is required")
    named, (begin, end) = agent_id, parse_span(since, until)

    def ask(connection: Connection) -> TrustScore:
        return records.load_trust(connection, caller.tenant, named, begin, end)

    return json_response(await request.service.read(ask))
