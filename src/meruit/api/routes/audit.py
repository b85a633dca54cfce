"""`/v1/audit`: the signed audit log."""

import asyncio
from typing import Annotated, Any

from meruit.api.auth import ANYONE
from meruit.api.request import ApiRequest
from meruit.errors import ApiProblem
from meruit.model.record import Record
from meruit.store import log as audit
from meruit.store.checkpoint import checkpoint, find_witnessed_checkpoint
from meruit.web.parameters import QueryParameter
from meruit.web.routing import get

TEXT = "text/plain"
"""The reply adds the charset UTF-8."""
Witnessed = Annotated[bool, QueryParameter(description="Whether to prefer cosignatures over the newest records.")]
Size = Annotated[int, QueryParameter(ge=0, le=2**53)]


class Consistency(Record, frozen=True):
    """Proof that the log was only appended to between two sizes: RFC 6962 hashes in hexadecimal."""

    old: int
    new: int
    proof: list[str]


class ProvenKey(Record, frozen=True):
    """An entry of the log that admits or retires a key."""

    index: int
    body: str
    """The entry: its UTF-8 bytes are what is hashed."""
    proof: list[str]
    """Its inclusion proof: RFC 6962 hashes in hexadecimal."""


class ProvenKeys(Record, frozen=True):
    """Every entry about keys in a log of some size."""

    size: int
    keys: list[ProvenKey]


@get("/v1/audit/checkpoint", guards=[ANYONE], summary="Read the signed checkpoint", tags=["audit"], media_type=TEXT)
async def read_checkpoint(request: ApiRequest, witnessed: Witnessed = False) -> str:  # noqa: FBT002 - a query parameter
    """Read a C2SP checkpoint that covers all records, with the cosignatures of witnesses that it has so far.

    A new one is signed at most once a second, and witnesses cosign some seconds later. `witnessed=true` reads the
    newest with most cosignatures instead; it may lack the last records.
    """
    store = request.service.store
    return (await asyncio.to_thread(find_witnessed_checkpoint if witnessed else checkpoint, store)).note


@get("/v1/audit/key", guards=[ANYONE], summary="Read the verifier key", tags=["audit"], media_type=TEXT)
async def read_verifier_key(request: ApiRequest) -> str:
    """Read the public key of the log, in the form that `meruit audit verify --key` takes."""
    return request.service.store.signer.vkey


@get("/v1/audit/consistency", guards=[ANYONE], summary="Prove that the log is append-only", tags=["audit"])
async def read_consistency(request: ApiRequest, old: Size, new: Size) -> Consistency:
    """Read the consistency proof between two sizes of the log."""

    def ask(connection: Any) -> Consistency:
        size = audit.log_size(connection)
        if not 0 <= old <= new <= size:
            raise ApiProblem(400, "bad_range", f"the log has {size} entries; ask for old ≤ new ≤ {size}")
        proof = audit.proof_of_consistency(connection, old, new)
        return Consistency(old, new, [one.hex() for one in proof])

    return await request.service.read(ask)


@get("/v1/audit/keys", guards=[ANYONE], summary="Read the chain of signing keys", tags=["audit"])
async def read_keys(request: ApiRequest, size: Size) -> ProvenKeys:
    """Read every entry that admits or retires a key among the first `size` entries, each with its inclusion proof."""

    def ask(connection: Any) -> ProvenKeys:
        known = audit.log_size(connection)
        if size > known:
            raise ApiProblem(400, "bad_range", f"the log has {known} entries; ask for at most that size")
        keys = audit.prove_keys(connection, size)
        return ProvenKeys(
            size, [ProvenKey(one.index, one.body.decode(), [sibling.hex() for sibling in one.proof]) for one in keys]
        )

    return await request.service.read(ask)
