"""Accounts at providers: who asks them, with which key, and what they answered."""

import zlib
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, func, select, update

from meruit.errors import NotFound, StoreError
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


class AcquireAccountLease(NamedTuple):
    """Somebody wants to ask an account, alone."""

    tenant: str
    account: str
    owner: str
    seconds: float

    def __call__(self, writing: WriteTransaction) -> bool:
        """Have it for so long; False where somebody else has."""
        now, held = writing.now.micros, _load(writing, self.tenant, self.account)
        if held.until > now and held.owner not in ("", self.owner):
            return False
        until = now + int(self.seconds * 1_000_000)
        _save(writing, self.tenant, self.account, held._replace(owner=self.owner, until=until))
        return True


class ReleaseAccountLease(NamedTuple):
    """Whoever asked an account has done with it."""

    tenant: str
    account: str
    owner: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Let others have it; nothing where they have it already."""
        held = _load(writing, self.tenant, self.account)
        if held.owner == self.owner:
            _save(writing, self.tenant, self.account, held._replace(owner="", until=0))


class ChangeCredential(NamedTuple):
    """An account is asked with this key from now on."""

    tenant: str
    account: str
    fingerprint: str
    """Of the key, never the key."""

    def __call__(self, writing: WriteTransaction) -> int:
        """Make those due that wait for another key than they were refused with; how many they were."""
        held = _load(writing, self.tenant, self.account)
        if held.credential == self.fingerprint:
            return 0
        _save(writing, self.tenant, self.account, held._replace(credential=self.fingerprint))
        mine = {"of_tenant": self.tenant, "of_account": self.account}
        waiting = writing.read(_WAITING.params(mine))[0][0]
        writing.change(_DUE_NOW, **mine, now=writing.now.micros)
        return int(waiting)


class StorePages(NamedTuple):
    """What a provider answered, to be kept once by its content."""

    tenant: str
    account: str
    window: Window
    digest: str
    content: bytes
    """All pages, packed."""
    at: datetime

    @classmethod
    def pack(cls, tenant: str, account: str, window: Window, pages: Sequence[bytes], at: datetime) -> "StorePages":
        """Pages as they came; packed by whoever asked, as everybody waits for the one who writes."""
        packed = msgspec.msgpack.encode([*pages])
        return cls(tenant, account, window, pages_digest(pages), zlib.compress(packed), at)

    def __call__(self, writing: WriteTransaction) -> str:
        """Keep it, unless it is; its digest."""
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


class StoredFetch(NamedTuple):
    """What a provider answered."""

    window: Window
    at: datetime
    """When it was first answered so."""
    pages: list[bytes]


def pages_digest(pages: Sequence[bytes]) -> str:
    """One digest for pages in their order; two divisions of the same bytes have two."""
    return sha256(b"".join(sha256(page).digest() for page in pages)).hexdigest()


def find_fetch(connection: Connection, tenant: str, account: str, digest: str) -> StoredFetch:
    """What was answered, by its digest; raises NotFound, and StoreError where it is no longer what it was."""
    of = _fetches
    query = select(of).where(of.c.tenant == tenant, of.c.account == account, of.c.digest == digest)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"no answer {digest} of account {account!r}")
    try:
        pages = msgspec.msgpack.decode(zlib.decompress(row.content), type=list[bytes])
    except (zlib.error, msgspec.MsgspecError):
        pages = None
    if pages is None or pages_digest(pages) != digest:
        raise StoreError(f"the answer {digest} was changed after it was kept; restore it from a copy")
    return StoredFetch(Window(from_micros(row.window_start), from_micros(row.window_end)), from_micros(row.at), pages)


def _load(writing: WriteTransaction, tenant: str, account: str) -> _LeaseRow:
    known = _LEASES.get(writing, tenant, account)
    if known is not None:
        return known
    rows = writing.fetch(_ACCOUNT, tenant, account)
    return _LeaseRow._make(rows[0]) if rows else _LeaseRow()


def _save(writing: WriteTransaction, tenant: str, account: str, held: _LeaseRow) -> None:
    writing.merge(tables.usage_accounts, MergeRule.REPLACED, tenant=tenant, account=account, **held._asdict())
    _LEASES.put(writing, held, tenant, account)


_ACCOUNT = "SELECT owner, until, credential FROM usage_accounts WHERE tenant = ? AND account = ?"
_WAITS = (
    (_runs.c.tenant == bindparam("of_tenant"))
    & (_runs.c.account == bindparam("of_account"))
    & (_runs.c.waiting_for == "credential")
)
_WAITING = select(func.count()).select_from(_runs).where(_WAITS)
_DUE_NOW = update(_runs).where(_WAITS).values(next_observation_at=bindparam("now"), waiting_for="")
