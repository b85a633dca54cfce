"""Accounts at providers: the lease of the reconciler, the key that was used, and the stored responses."""

import zlib
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, func, select, update

from meruit.errors import NotFound, StoreError
from meruit.model.decoding import msgpack_decoder
from meruit.model.metering import Window
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import MergeRule, WriteTransaction

_accounts, _fetches, _runs = tables.usage_accounts, tables.usage_fetches, tables.usage_runs


class _LeaseRow(NamedTuple):
    owner: str = ""
    until: int = 0
    credential: str = ""


_LEASES = Rows[_LeaseRow]("usage_account")


class AcquireAccountLease(msgspec.Struct, frozen=True):
    """Acquire or renew the lease on an account."""

    tenant: str
    account: str
    owner: str
    seconds: float

    def __call__(self, writing: WriteTransaction) -> bool:
        """Take the lease; return False where another owner holds it."""
        now, lease = writing.now.micros, _load(writing, self.tenant, self.account)
        if lease.until > now and lease.owner not in ("", self.owner):
            return False
        until = now + int(self.seconds * 1_000_000)
        _save(writing, self.tenant, self.account, lease._replace(owner=self.owner, until=until))
        return True


class ReleaseAccountLease(msgspec.Struct, frozen=True):
    """Release the lease on an account."""

    tenant: str
    account: str
    owner: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Release the lease; do nothing where another owner holds it."""
        lease = _load(writing, self.tenant, self.account)
        if lease.owner == self.owner:
            _save(writing, self.tenant, self.account, lease._replace(owner="", until=0))


class ChangeCredential(msgspec.Struct, frozen=True):
    """Record the key that an account is used with from now on."""

    tenant: str
    account: str
    fingerprint: str
    """Digest of the key, never the key itself."""

    def __call__(self, writing: WriteTransaction) -> int:
        """Make the runs due that wait for a new key; return how many."""
        lease = _load(writing, self.tenant, self.account)
        if lease.credential == self.fingerprint:
            return 0
        _save(writing, self.tenant, self.account, lease._replace(credential=self.fingerprint))
        mine = {"of_tenant": self.tenant, "of_account": self.account}
        waiting = writing.read(_WAITING.params(mine))[0][0]
        writing.change(_DUE_NOW, **mine, now=writing.now.micros)
        return int(waiting)


class StorePages(msgspec.Struct, frozen=True):
    """Store a provider's response once, by its digest."""

    tenant: str
    account: str
    window: Window
    digest: str
    content: bytes
    """All pages, compressed."""
    at: datetime

    @classmethod
    def pack(cls, tenant: str, account: str, window: Window, pages: Sequence[bytes], at: datetime) -> "StorePages":
        """Compress the pages before the write, because other writers wait for the transaction."""
        packed = msgspec.msgpack.encode([*pages])
        return cls(
            tenant=tenant,
            account=account,
            window=window,
            digest=pages_digest(pages),
            content=zlib.compress(packed),
            at=at,
        )

    def __call__(self, writing: WriteTransaction) -> str:
        """Store the response unless it is stored already; return its digest."""
        writing.merge(
            tables.usage_fetches,
            MergeRule.KEPT,
            tenant=self.tenant,
            account=self.account,
            digest=self.digest,
            window_start=to_micros(self.window.start),
            window_end=to_micros(self.window.end),
            at=to_micros(self.at),
            content=self.content,
        )
        return self.digest


class StoredFetch(msgspec.Struct, frozen=True):
    """A provider's stored response."""

    window: Window
    at: datetime
    """When this response was first received."""
    pages: list[bytes]


_PAGES = msgpack_decoder(list[bytes])


def pages_digest(pages: Sequence[bytes]) -> str:
    """Digest pages in their order; the same bytes divided into other pages have another digest."""
    return sha256(b"".join(sha256(page).digest() for page in pages)).hexdigest()


def find_fetch(connection: Connection, tenant: str, account: str, digest: str) -> StoredFetch:
    """Find a response by its digest; raises NotFound, and StoreError where the stored content was changed."""
    of = _fetches
    query = select(of).where(of.c.tenant == tenant, of.c.account == account, of.c.digest == digest)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"account {account!r} has no stored response {digest}")
    try:
        pages = _PAGES.decode(zlib.decompress(row.content))
    except (zlib.error, msgspec.MsgspecError):
        pages = None
    if pages is None or pages_digest(pages) != digest:
        raise StoreError(f"the stored response {digest} was changed; restore it from a backup")
    return StoredFetch(
        window=Window(from_micros(row.window_start), from_micros(row.window_end)), at=from_micros(row.at), pages=pages
    )


def _load(writing: WriteTransaction, tenant: str, account: str) -> _LeaseRow:
    known = _LEASES.get(writing, tenant, account)
    if known is not None:
        return known
    rows = writing.fetch(_ACCOUNT, tenant, account)
    return _LeaseRow._make(rows[0]) if rows else _LeaseRow()


def _save(writing: WriteTransaction, tenant: str, account: str, lease: _LeaseRow) -> None:
    writing.merge(tables.usage_accounts, MergeRule.REPLACED, tenant=tenant, account=account, **lease._asdict())
    _LEASES.put(writing, lease, tenant, account)


_ACCOUNT = "SELECT owner, until, credential FROM usage_accounts WHERE tenant = ? AND account = ?"
_WAITS = (
    (_runs.c.tenant == bindparam("of_tenant"))
    & (_runs.c.account == bindparam("of_account"))
    & (_runs.c.waiting_for == "credential")
)
_WAITING = select(func.count()).select_from(_runs).where(_WAITS)
_DUE_NOW = update(_runs).where(_WAITS).values(next_observation_at=bindparam("now"), waiting_for="")
