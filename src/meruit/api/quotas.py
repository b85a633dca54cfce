"""Quotas of what tenants and agents' keys may store: counted at once, recorded some seconds later."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from meruit.api.db_threads import run_in_reader_thread
from meruit.api.logging import log
from meruit.errors import ApiProblem, StoreError
from meruit.events.commit_signal import first_of
from meruit.model.access import Caller, Role
from meruit.store.access.key_use import AddKeyUse, read_key_use
from meruit.store.store import Store

FLUSH_S = 2.0
"""How often what was counted is recorded, and what other processes counted is read."""
MB = 1024 * 1024
_WRITING = frozenset({"POST", "PUT", "PATCH"})


@dataclass(slots=True)
class Quotas:
    """What each tenant and key has sent, with what is not recorded yet."""

    store: Store
    tenant_mb: int | None
    agent_key_mb: int | None
    _recorded: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bytes by tenant and key, as last read; those of the whole tenant under an empty key."""
    _added: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Requests and bytes that are not recorded yet."""

    def admit(self, caller: Caller, size: int) -> None:
        """Refuse a body that does not fit into a quota; raises ApiProblem 413."""
        if self.tenant_mb is not None:
            self._check(self._used(caller.tenant, ""), size, self.tenant_mb, "this tenant", "tenant_stored_mb")
        if self.agent_key_mb is not None and caller.role is Role.AGENT:
            self._check(
                self._used(caller.tenant, caller.key_id),
                size,
                self.agent_key_mb,
                "this agent's key",
                "agent_key_stored_mb",
            )

    def _check(self, used: int, size: int, limit_mb: int, who: str, setting: str) -> None:
        if used + size > limit_mb * MB:
            why = (
                f"{who} has stored {used / MB:,.1f} of {limit_mb:,} MB, and {size:,} bytes more do not fit; the "
                f"operator can raise service.{setting}, or issue another key"
            )
            raise ApiProblem(413, "quota_exceeded", why, headers={"Connection": "close"})

    def _used(self, tenant: str, key_id: str) -> int:
        """Bytes of a key; of all keys of the tenant for an empty id."""
        added = self._added.items()
        new = sum(size for key, (_, size) in added if key[0] == tenant and key_id in ("", key[1]))
        return self._recorded[tenant, key_id] + new

    def count(self, caller: Caller | None, method: str, status: int, size: int) -> None:
        """Count an accepted request that writes."""
        if caller is None or not caller.key_id or method not in _WRITING or not 200 <= status < 300:
            return
        key = (caller.tenant, caller.key_id)
        requests, before = self._added.get(key, (0, 0))
        self._added[key] = (requests + 1, before + size)

    async def refresh(self) -> None:
        """Record what was counted, and read what all processes have recorded."""
        added, self._added = self._added, {}
        try:
            if added:
                await self.store.recorder.record(AddKeyUse(added))
                added = {}
            self._recorded = await run_in_reader_thread(self._read)
        except StoreError as problem:
            log("quota_refresh_failed", level="warning", error=problem)
        finally:
            for key, (requests, size) in added.items():
                now = self._added.get(key, (0, 0))
                self._added[key] = (now[0] + requests, now[1] + size)

    def _read(self) -> Counter[tuple[str, str]]:
        found = Counter[tuple[str, str]]()
        with self.store.database.reading() as connection:
            for one in read_key_use(connection):
                found[one.tenant, one.key_id] += one.bytes
                found[one.tenant, ""] += one.bytes
        return found


async def record_use_in_background(quotas: Quotas, ended: asyncio.Event) -> None:
    """Record what keys send every few seconds, and once more at the end."""
    while not ended.is_set():
        await quotas.refresh()
        await first_of(ended, within_s=FLUSH_S)
    await quotas.refresh()
