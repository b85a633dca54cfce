"""Where a log can be read from: a service over HTTP, or a store on this machine."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from meruit.audit.follow import unreadable
from meruit.errors import ProofUnavailable, SourceError
from meruit.log.key_chain import KeyProof
from meruit.sources.credentials import SecretToken
from meruit.sources.http import HttpClient, HttpResponse, Params, check_base_url
from meruit.sources.http_replies import OK, HttpReply, check_status, quote_of
from meruit.sources.retry import ReadLimits, ReadPolicy
from meruit.store import log as audit
from meruit.store.checkpoint import checkpoint, find_witnessed_checkpoint
from meruit.store.store import Store

KEY_VARIABLE = "MERUIT_KEY"
"""The environment variable with the API key for a service."""
MAX_REPLY_BYTES = 1024 * 1024


class ServiceLog:
    """The log of a service, read over HTTP."""

    def __init__(self, url: str, environment: Mapping[str, str], http: HttpClient | None = None) -> None:
        """Use the API key of the environment, where there is one; raises InvalidAddress."""
        self._url = check_base_url(url).rstrip("/")
        self._token = SecretToken.from_environment(KEY_VARIABLE, environment) if environment.get(KEY_VARIABLE) else None
        policy = ReadPolicy(limits=ReadLimits(reply_bytes=MAX_REPLY_BYTES))
        self._http = http or HttpClient(token=self._token, policy=policy)

    async def key(self) -> str:
        """The key that signs it now."""
        return (await self._read("key")).decode(errors="replace").strip()

    async def checkpoint(self, *, witnessed: bool) -> str:
        """The newest signed checkpoint, or the newest of those with most cosignatures."""
        params = [("witnessed", "true")] if witnessed else []
        return (await self._read("checkpoint", params)).decode(errors="replace")

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The proof between two sizes."""
        body = await self._read("consistency", [("old", str(old)), ("new", str(new))])
        return read_proof(body, self._url)

    async def keys(self, size: int) -> Sequence[KeyProof]:
        """The entries about keys."""
        return read_keys(await self._read("keys", [("size", str(size))]), self._url)

    async def _read(self, name: str, params: Params = ()) -> bytes:
        async def take(response: HttpResponse) -> HttpReply:
            reply = await response.read()
            check_status(reply, self._token)
            return reply

        try:
            reply = await self._http.request("GET", f"{self._url}/v1/audit/{name}", take, params=params)
        except SourceError as problem:
            raise ProofUnavailable(str(problem)) from None
        if reply.status != OK:
            raise ProofUnavailable(f"{reply.where} answered {reply.status}{quote_of(reply)}")
        return reply.content


class StoreLog:
    """The log of a store on this machine."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def key(self) -> str:
        """The key that signs it now."""
        return self._store.signer.vkey

    async def checkpoint(self, *, witnessed: bool) -> str:
        """The newest signed checkpoint, or the newest of those with most cosignatures."""
        return (await asyncio.to_thread(find_witnessed_checkpoint if witnessed else checkpoint, self._store)).note

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The proof between two sizes."""

        def prove() -> list[bytes]:
            with self._store.database.reading() as connection:
                return audit.proof_of_consistency(connection, old, new)

        return await asyncio.to_thread(prove)

    async def keys(self, size: int) -> Sequence[KeyProof]:
        """The entries about keys."""

        def prove() -> list[KeyProof]:
            with self._store.database.reading() as connection:
                return audit.prove_keys(connection, size)

        return await asyncio.to_thread(prove)


def read_keys(body: bytes, where: str) -> list[KeyProof]:
    """The entries about keys as `/v1/audit/keys` writes them; raises ProofUnavailable."""
    try:
        found = msgspec.json.decode(body)
        return [
            KeyProof(int(one["index"]), str(one["body"]).encode(), [bytes.fromhex(sibling) for sibling in one["proof"]])
            for one in found["keys"]
        ]
    except (msgspec.DecodeError, ValueError, TypeError, KeyError):
        raise unreadable(where, "a list of keys") from None


def read_proof(body: bytes, where: str) -> list[bytes]:
    """The hashes of a consistency proof as `/v1/audit/consistency` writes it; raises ProofUnavailable."""
    try:
        found = msgspec.json.decode(body)
        return [bytes.fromhex(one) for one in found["proof"]]
    except (msgspec.DecodeError, ValueError, TypeError, KeyError):
        raise unreadable(where, "a consistency proof") from None
