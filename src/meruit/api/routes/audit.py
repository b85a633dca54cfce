"""`/v1/audit`: the audit log as it stands, signed."""

import asyncio
from typing import Annotated, Any

from litestar import get
from litestar.params import QueryParameter

from meruit.api.auth import ANYONE
from meruit.api.request import ApiRequest
from meruit.errors import ApiProblem
from meruit.model.record import Record
from meruit.store import log as audit
from meruit.store.checkpoint import checkpoint

TEXT = "text/plain"
"""In UTF-8, as Litestar adds by itself."""
Size = Annotated[int, QueryParameter(ge=0, le=2**53)]


class Consistency(Record, frozen=True):
    """That the log only grew from one size to the other: RFC 6962 hashes, as hexadecimal text."""

    old: int
    new: int
    proof: list[str]


@get("/v1/audit/checkpoint", guards=[ANYONE], summary="The log, signed", tags=["audit"], media_type=TEXT)
async def read_checkpoint(request: ApiRequest) -> str:
    """A C2SP checkpoint that covers all that is recorded; a newer one is signed each second at most."""
    return (await asyncio.to_thread(checkpoint, request.service.store)).note


@get("/v1/audit/key", guards=[ANYONE], summary="The key that signs", tags=["audit"], media_type=TEXT)
async def read_verifier_key(request: ApiRequest) -> str:
    """The verifier key, as `meruit audit verify --key` takes it."""
    return request.service.store.signer.vkey


@get("/v1/audit/consistency", guards=[ANYONE], summary="Prove that the log only grew", tags=["audit"])
async def read_consistency(request: ApiRequest, old: Size, new: Size) -> Consistency:
    """The proof between two sizes of the log."""

    def ask(connection: Any) -> Consistency:
        size = audit.log_size(connection)
        if not 0 <= old <= new <= size:
            raise ApiProblem(400, "bad_range", f"the log has {size} entries; ask for old ≤ new ≤ {size}")
        proof = audit.proof_of_consistency(connection, old, new)
        return Consistency(old, new, [one.hex() for one in proof])

    return await request.service.read(ask)
