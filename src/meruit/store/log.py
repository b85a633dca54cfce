"""Reading the audit log: checkpoints, entries, and proofs about them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from meruit.errors import NotFound, TooManyEntries
from meruit.log.key_chain import KeyProof
from meruit.log.merkle import consistency_proof, inclusion_proof
from meruit.store import tables
from meruit.store.log_tiles import Tiles
from meruit.store.paging import ListPage
from meruit.store.transaction import WriteTransaction

MAX_SEARCHED = 50_000
"""Entries that one page of the log looks at, where many tenants share it."""
MAX_COMPARED = 64
"""Checkpoints among which one with cosignatures is looked for; witnesses answer within a minute, or not at all."""
MAX_WINDOW = 2_000
"""Entries of one contract that a bundle carries."""


class SignedCheckpoint(msgspec.Struct, frozen=True):
    """The log at one size, signed."""

    size: int
    note: str


class LogLeaf(msgspec.Struct, frozen=True):
    """One entry, as its bytes stand in the log."""

    position: int
    """Counted from 0."""
    body: bytes

    # Any: an entry has fields of many types.
    def fields(self) -> dict[str, Any]:
        """The fields of the entry, by name."""
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


def log_size(connection: Connection) -> int:
    """How many entries there are."""
    return int(connection.execute(select(tables.log_state.c.size)).scalar_one())


def checkpoint_covering(connection: Connection, size: int) -> SignedCheckpoint | None:
    """The first signed checkpoint of at least that size."""
    table = tables.checkpoints
    row = connection.execute(select(table).where(table.c.size >= size).order_by(table.c.size).limit(1)).first()
    return None if row is None else SignedCheckpoint(row.size, row.note)


def best_witnessed(connection: Connection, size: int) -> SignedCheckpoint | None:
    """Of the newest checkpoints of at least that size, the one with the most cosignatures; of several, the newest."""
    table = tables.checkpoints
    rows = connection.execute(
        select(table).where(table.c.size >= size).order_by(table.c.size.desc()).limit(MAX_COMPARED)
    ).all()
    # A note has one line for each signature, and the log's own are as many on all.
    return max(
        (SignedCheckpoint(row.size, row.note) for row in rows),
        key=lambda one: (one.note.rpartition("\n\n")[2].count("\n"), one.size),
        default=None,
    )


def newest_checkpoints(connection: Connection, limit: int) -> list[SignedCheckpoint]:
    """The checkpoints that were signed last, newest first."""
    table = tables.checkpoints
    rows = connection.execute(select(table).order_by(table.c.size.desc()).limit(limit))
    return [SignedCheckpoint(row.size, row.note) for row in rows]


def page(connection: Connection, tenant: str, *, before: int | None = None, limit: int = 50) -> ListPage[LogLeaf]:
    """The newest entries of a tenant; at most MAX_SEARCHED entries of all tenants are looked at for each page."""
    table = tables.log_leaves
    end = log_size(connection) if before is None else before
    # Not by the index of contracts, which would sort all entries of the tenant: by the order that they are in.
    owner = func.coalesce(table.c.tenant, "")
    query = select(table.c.seq, table.c.body).where(
        owner == tenant, table.c.seq < end, table.c.seq >= end - MAX_SEARCHED
    )
    rows = connection.execute(query.order_by(table.c.seq.desc()).limit(limit))
    found = [LogLeaf(row.seq, row.body) for row in rows]
    reached = found[-1].position if len(found) == limit else end - MAX_SEARCHED
    return ListPage(found, reached if reached > 0 else None)


def checkpoint_age_micros(connection: Connection, now: int) -> int:
    """How long ago the last checkpoint was signed."""
    return now - int(connection.execute(select(tables.log_state.c.checkpoint_at)).scalar_one())


def write_nothing(_writing: WriteTransaction) -> None:
    """Write nothing: what a caller asks for who only wants the log signed as it is."""


def leaf(connection: Connection, index: int) -> LogLeaf:
    """The entry at an index."""
    row = connection.execute(select(tables.log_leaves.c.body).where(tables.log_leaves.c.seq == index)).first()
    if row is None:
        raise NotFound(f"the audit log has no entry {index}")
    return LogLeaf(index, row.body)


def window(connection: Connection, tenant: str, contract_id: str, first: int, last: int) -> Sequence[LogLeaf]:
    """A contract's entries by their numbers; raises StoreError when they are too many for one bundle."""
    if last - first >= MAX_WINDOW:
        raise TooManyEntries(
            f"the contract {contract_id!r} has {last - first + 1:,} entries between this outcome's first and last; "
            f"a bundle carries {MAX_WINDOW:,}. Record outcomes under contracts of their own"
        )
    table = tables.log_leaves
    query = (
        select(table.c.seq, table.c.body)
        .where(
            table.c.tenant == tenant,
            table.c.contract_id == contract_id,
            table.c.contract_seq >= first,
            table.c.contract_seq <= last,
        )
        .order_by(table.c.contract_seq)
    )
    return [LogLeaf(row.seq, row.body) for row in connection.execute(query)]


def last_in_contract(connection: Connection, tenant: str, contract_id: str) -> int:
    """The number of the contract's newest entry."""
    table = tables.log_leaves
    query = (
        select(table.c.contract_seq)
        .where(table.c.tenant == tenant, table.c.contract_id == contract_id)
        .order_by(table.c.contract_seq.desc())
        .limit(1)
    )
    return int(connection.execute(query).scalar() or 0)


def proof_of_consistency(connection: Connection, old: int, new: int) -> list[bytes]:
    """That the log of the new size only adds to the log of the old one."""
    return consistency_proof(old, new, Tiles(connection).subtree)


def prove_keys(connection: Connection, size: int) -> list[KeyProof]:
    """Every entry about keys among the first so many, in order, with its inclusion proof."""
    leaves, keys, tiles = tables.log_leaves, tables.log_keys, Tiles(connection)
    query = select(leaves.c.seq, leaves.c.body).join(keys, keys.c.seq == leaves.c.seq).where(leaves.c.seq < size)
    rows = connection.execute(query.order_by(leaves.c.seq)).all()
    return [KeyProof(row.seq, bytes(row.body), inclusion_proof(row.seq, size, tiles.subtree)) for row in rows]
