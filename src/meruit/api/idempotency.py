"""Requests that may come twice: one effect, one answer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from sqlalchemy import Connection, select

from meruit.errors import ApiProblem
from meruit.model.access import Caller, Role
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest
from meruit.store import tables

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class KeysInFlight:
    """The keys whose first request is still being served by this process."""

    def __init__(self) -> None:
        self._running: set[tuple[str, str]] = set()

    @contextmanager
    def hold_key(self, tenant: str, key: str | None) -> Iterator[None]:
        """Hold the key; raises ApiProblem 409 while another request holds it."""
        if key is None:
            yield
            return
        name = (tenant, key)
        if name in self._running:
            raise ApiProblem(
                *(409, "still_running", f"a request with this {HEADER} is being served; ask again in a moment"),
                headers={"Retry-After": "1"},
            )
        self._running.add(name)
        try:
            yield
        finally:
            self._running.discard(name)


def validate_key(key: str | None) -> str | None:
    """The key a caller chose; raises ApiProblem for what cannot be one."""
    if key is not None and not _KEY.fullmatch(key):
        raise ApiProblem(400, "bad_idempotency_key", f"{HEADER} must be 1 to 200 visible ASCII characters")
    return key


def storage_key(caller: Caller, key: str) -> str:
    """The key as it is kept: operators of a tenant share theirs, and no agent's reaches into another's or theirs.

    A key holds no space, so that neither can be written as the other.
    """
    return f"agent/{caller.agent_id or ''} {key}" if caller.role is Role.AGENT else key


def fingerprint(caller: Caller, path: str, body: bytes) -> str:
    """What makes two requests the same."""
    return sha256(b"\0".join([caller.role.encode(), (caller.agent_id or "").encode(), path.encode(), body])).hexdigest()


def find_replay(connection: Connection, tenant: str, once: IdempotentRequest) -> IdempotentReplay | None:
    """The answer that this key was given before; raises ApiProblem 422 when it was for another request."""
    table = tables.idempotency
    row = connection.execute(select(table).where(table.c.tenant == tenant, table.c.key == once.key)).first()
    if row is None:
        return None
    if row.fingerprint != once.fingerprint:
        raise key_reuse_problem()
    return IdempotentReplay(row.status, row.reply)


def key_reuse_problem() -> ApiProblem:
    """What a caller hears who used one key for two different requests."""
    return ApiProblem(
        422, "idempotency_key_reused", f"this {HEADER} was used for another request; use a new one for a new request"
    )
