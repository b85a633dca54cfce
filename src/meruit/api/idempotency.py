"""The header Idempotency-Key: which keys are valid, whose they are, and which are in use now."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from meruit.errors import ApiProblem
from meruit.model.access import Caller, Role

if TYPE_CHECKING:
    # Not on Windows, which has no locks on bytes of a file.
    from meruit.api.processes.limits import SharedLimits

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class KeysInFlight:
    """The keys whose first request is still being served, by this process or another worker of the service."""

    def __init__(self, shared: "SharedLimits | None" = None) -> None:
        self._running: set[tuple[str, str]] = set()
        self._shared = shared

    @contextmanager
    def hold_key(self, tenant: str, key: str) -> Iterator[None]:
        """Reserve the key while a request is served; raises ApiProblem 409 when another request has it."""
        name = (tenant, key)
        # A tenant's name has no line end.
        shared_name = f"key:{tenant}\n{key}"
        if name in self._running or (self._shared is not None and self._shared.acquire(shared_name) is None):
            raise ApiProblem(
                409,
                "still_running",
                f"a request with this {HEADER} is being served; retry in a moment",
                headers={"Retry-After": "1"},
            )
        self._running.add(name)
        try:
            yield
        finally:
            self._running.discard(name)
            if self._shared is not None:
                self._shared.release(shared_name, 0)


def validate_key(key: str) -> str:
    """Check the key of a client; raises ApiProblem when it is not valid."""
    if not _KEY.fullmatch(key):
        raise ApiProblem(400, "bad_idempotency_key", f"{HEADER} must be 1 to 200 visible ASCII characters")
    return key


def storage_key(caller: Caller, key: str) -> str:
    """The key as it is stored: the operators of a tenant share their keys, each agent has its own.

    A key has no space, so the two forms cannot be confused.
    """
    return f"agent/{caller.agent_id or ''} {key}" if caller.role is Role.AGENT else key


def fingerprint(caller: Caller, path: str, body: bytes) -> str:
    """A hash that is equal for two equal requests of one caller."""
    return sha256(b"\0".join([caller.role.encode(), (caller.agent_id or "").encode(), path.encode(), body])).hexdigest()
