"""Erasing what an outcome holds: its work and its results go, the log keeps what says nothing without them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select, update

from meruit.errors import NotFound
from meruit.judges.records import forget_votes
from meruit.log.entries import GOVERNANCE, PARTS, RESULT, ErasureEntry
from meruit.model.events import EventType
from meruit.outcomes.segment import open_versions, pack, pack_version
from meruit.outcomes.store.segments import fetch_segment, rewrite_segment
from meruit.outcomes.store.versions import find_places
from meruit.outcomes.store.write import ERASED
from meruit.store import tables
from meruit.store.blobs import BlobStore
from meruit.store.idempotency import IdempotentReplay, replace_reply
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction


class ErasureResult(msgspec.Struct, frozen=True):
    """What an erasure came to."""

    outcome_id: str
    parts: tuple[str, ...]
    """What went this time; nothing when all had gone before."""
    addresses: tuple[str, ...]
    """The evidence that the outcome no longer refers to; its file is deleted once no outcome refers to it."""


class Erase(msgspec.Struct, frozen=True):
    """The work and all results of an outcome, to be forgotten."""

    tenant: str
    outcome_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ErasureResult:
        """Erase what is there; raises NotFound. A second time does nothing."""
        row = self._row(writing)
        addresses = {part: getattr(row, f"{part}_address") for part in PARTS}
        parts = tuple(part for part in PARTS if addresses[part] is not None)
        places = find_places(writing, self.tenant, self.outcome_id, row.seq)
        if self._has_results(writing, places):
            parts = (*parts, RESULT)
        if self._has_checks(writing):
            parts = (*parts, GOVERNANCE)
        # A caller of the same group that erased it already has not written yet, so the rows still look untouched.
        if not parts or ERASED.has(writing, self.tenant, self.outcome_id):
            return ErasureResult(outcome_id=self.outcome_id, parts=(), addresses=())
        ERASED.add(writing, self.tenant, self.outcome_id)
        gone = tuple(address for address in addresses.values() if address is not None)
        self._forget(writing, gone)
        replaced = [self._rewrite_segment(writing, *place) for place in places]
        if addresses["output"] is not None:
            forget_votes(writing, self.tenant, addresses["output"])
        if row.idempotency_key is not None:
            replace_reply(writing, self.tenant, row.idempotency_key, _ERASED)
        contract_seq = writing.next_in_contract(self.tenant, row.contract_id)
        writing.append(
            ErasureEntry(
                writing.now.written,
                self.tenant,
                self.outcome_id,
                row.contract_id,
                contract_seq,
                parts,
                self.reason,
            ),
            self.tenant,
            row.contract_id,
            contract_seq,
        )
        writing.emit(
            self.tenant,
            EventType.OUTCOME_ERASED,
            row.contract_id,
            f"{self.outcome_id}:erased:{contract_seq}",
            {
                "outcome_id": self.outcome_id,
                "contract_id": row.contract_id,
                "parts": parts,
                "reason": self.reason,
            },
        )
        return ErasureResult(self.outcome_id, parts, tuple(dict.fromkeys((*gone, *replaced))))

    # Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
    def _row(self, writing: WriteTransaction) -> Any:
        table = tables.outcomes
        rows = writing.read(select(table).where(table.c.tenant == self.tenant, table.c.id == self.outcome_id))
        if not rows:
            raise NotFound(f"no outcome {self.outcome_id!r}")
        return rows[0]

    def _has_results(self, writing: WriteTransaction, places: Sequence[tuple[int, int]]) -> bool:
        table = tables.verdicts
        query = select(table.c.version).where(
            table.c.tenant == self.tenant, table.c.outcome_id == self.outcome_id, table.c.result.is_not(None)
        )
        return bool(writing.read(query.limit(1))) or any(
            open_versions(fetch_segment(writing, self.tenant, leaf).blob).result(place) is not None
            for leaf, place in places
        )

    def _rewrite_segment(self, writing: WriteTransaction, leaf: int, place: int) -> str:
        """Write a segment again without the result of the outcome; returns the address of the old one."""
        before = fetch_segment(writing, self.tenant, leaf)
        contents = open_versions(before.blob).contents()
        contents[place] = contents[place].erase()
        rewrite_segment(writing, self.tenant, before, pack([pack_version(one) for one in contents]).blob)
        release(writing, self.tenant, [before.address])
        return before.address

    def _has_checks(self, writing: WriteTransaction) -> bool:
        table = tables.governance_checks
        query = select(table.c.version).where(
            table.c.tenant == self.tenant, table.c.outcome_id == self.outcome_id, table.c.body.is_not(None)
        )
        return bool(writing.read(query.limit(1)))

    def _forget(self, writing: WriteTransaction, addresses: tuple[str, ...]) -> None:
        writing.change(_FORGET_WORK, of_tenant=self.tenant, of_id=self.outcome_id)
        writing.change(_FORGET_RESULTS, of_tenant=self.tenant, of_id=self.outcome_id)
        writing.change(_FORGET_CHECKS, of_tenant=self.tenant, of_id=self.outcome_id)
        release(writing, self.tenant, addresses)


def release(writing: WriteTransaction, tenant: str, addresses: Sequence[str]) -> None:
    """Remove references to evidence; delete what has none left."""
    # One reference each: two equal parts are kept once and counted twice.
    for address in addresses:
        writing.change(_RELEASE, of_tenant=tenant, of_address=address)
    for address in dict.fromkeys(addresses):
        writing.change(_DROP, of_tenant=tenant, of_address=address)


class Discard(msgspec.Struct, frozen=True):
    """Files of evidence that were let go, to be removed where nothing refers to them."""

    tenant: str
    addresses: tuple[str, ...]
    blobs: BlobStore

    def __call__(self, writing: WriteTransaction) -> None:
        """Remove them while no other record can be written."""
        table = tables.blobs
        query = select(table.c.address).where(table.c.tenant == self.tenant, table.c.address.in_(self.addresses))
        referred = {row.address for row in writing.read(query)}
        for address in self.addresses:
            # A caller of the same group may be about to refer to it.
            if address not in referred and not writing.is_keeping(self.tenant, address):
                self.blobs.discard(self.tenant, address)


def erase(store: Store, tenant: str, outcome_id: str, reason: str) -> ErasureResult:
    """Erase an outcome, with the files that nothing else refers to and what the write-ahead log still holds."""
    erased = store.recorder.write(Erase(tenant=tenant, outcome_id=outcome_id, reason=reason))
    store.recorder.write(Discard(tenant=tenant, addresses=erased.addresses, blobs=store.blobs))
    store.database.truncate_wal()
    return erased


_FORGET_WORK = (
    update(tables.outcomes)
    .where(tables.outcomes.c.tenant == bindparam("of_tenant"), tables.outcomes.c.id == bindparam("of_id"))
    .values(dict.fromkeys([f"{part}_{column}" for part in PARTS for column in ("address", "salt")]))
)
_FORGET_RESULTS = (
    update(tables.verdicts)
    .where(tables.verdicts.c.tenant == bindparam("of_tenant"), tables.verdicts.c.outcome_id == bindparam("of_id"))
    .values(result=None, salt=None)
)
_FORGET_CHECKS = (
    update(tables.governance_checks)
    .where(
        tables.governance_checks.c.tenant == bindparam("of_tenant"),
        tables.governance_checks.c.outcome_id == bindparam("of_id"),
    )
    .values(body=None, salt=None)
)
_ERASED = IdempotentReplay(
    410,
    b'{"type":"urn:meruit:problem:erased","title":"Gone","status":410,'
    b'"detail":"what this request was answered was erased with its outcome"}',
)
_OF_BLOB = (tables.blobs.c.tenant == bindparam("of_tenant")) & (tables.blobs.c.address == bindparam("of_address"))
_RELEASE = update(tables.blobs).where(_OF_BLOB).values(refs=tables.blobs.c.refs - 1)
_DROP = delete(tables.blobs).where(_OF_BLOB, tables.blobs.c.refs <= 0)
