"""Votes and tokens in the store: tables and SQL."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, select

from meruit.errors import RecordTampered
from meruit.judges.vote_records import (
    MAX_SENDS,
    CallCost,
    CallLimits,
    JudgeCall,
    Reservation,
    Spent,
    TokenTotal,
    allow,
)
from meruit.log.commitment import SALT_BYTES, commitment, matches
from meruit.log.entries import CalibrationEntry, VoteEntry, read_entry
from meruit.model.decoding import decode_json
from meruit.model.money import JudgeStanding
from meruit.model.record import Record
from meruit.model.time import to_micros
from meruit.model.vote import Vote
from meruit.store import tables
from meruit.store.log_guard import find_forged_leaf
from meruit.store.store import Store
from meruit.store.transaction import MergeRule, WriteTransaction


class StoredVotes:
    """Votes and tokens of all tenants of a store; durable when a call returns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, tenant: str, key: str) -> Vote | None:
        """The vote that was answered before; None where there is none."""
        return await asyncio.to_thread(self._find, tenant, key)

    def _find(self, tenant: str, key: str) -> Vote | None:
        table = tables.judge_votes
        leaves = tables.log_leaves
        query = (
            select(table.c.body, table.c.salt, leaves.c.body.label("leaf"))
            .outerjoin(leaves, leaves.c.seq == table.c.leaf)
            .where(table.c.tenant == tenant, table.c.key == key)
        )
        with self._store.database.reading() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        entry = None if row.leaf is None else read_entry(bytes(row.leaf))
        if (
            not isinstance(entry, VoteEntry)
            or (entry.tenant, entry.key) != (tenant, key)
            or not matches(entry.vote, bytes(row.salt), bytes(row.body))
        ):
            raise RecordTampered(f"the vote {key} of a judge is not what the audit log commits to")
        return decode_json(row.body, Vote)

    async def reserve(self, call: JudgeCall, limits: CallLimits) -> Reservation:
        """Count the most that a call can cost, and write down that it is sent, before it is; or refuse it."""
        return await self._store.recorder.record(_ReserveCall(call, limits))

    async def finish(self, call: JudgeCall, vote: Vote | None, cost: CallCost) -> None:
        """Count what the call has cost, and keep the vote where there is one."""
        await self._store.recorder.record(_FinishCall(call, vote, cost))


@dataclass(frozen=True, slots=True)
class _ReserveCall:
    """Counts the most that a call can cost, and that it is sent: a process that dies has written it down."""

    call: JudgeCall
    limits: CallLimits

    def __call__(self, writing: WriteTransaction) -> Reservation:
        """Reserve, unless a limit does not allow it, or too many processes died while they waited for the answer."""
        call, table = self.call, tables.judge_calls
        query = select(table.c.sends).where(table.c.tenant == call.tenant, table.c.key == call.key)
        sends = sum(int(row[0]) for row in writing.read(query))
        if sends >= MAX_SENDS and not call.fresh:
            return Reservation.POISONED
        account, day = (_read_spent(writing, call, name) for name in call.accounts)
        found = allow(call, account, day, self.limits)
        if found is not Reservation.GRANTED:
            return found
        _add(
            writing,
            call,
            calls=1,
            unknown_calls=1,
            unknown_tokens=call.reserved_tokens,
            unknown_micros=call.reserved_micros or 0,
            unpriced_calls=int(call.reserved_micros is None),
        )
        writing.merge(
            table,
            MergeRule.REPLACED,
            tenant=call.tenant,
            key=call.key,
            output_digest=call.output_digest,
            other_digest=call.other_digest,
            sends=sends + 1,
            sent_at=to_micros(call.began_at),
        )
        return found


@dataclass(frozen=True, slots=True)
class _FinishCall:
    call: JudgeCall
    vote: Vote | None
    cost: CallCost

    def __call__(self, writing: WriteTransaction) -> None:
        """Replace what was reserved by what it was, where that is known; the call has ended."""
        cost = self.cost
        writing.change(_ARRIVED, of_tenant=self.call.tenant, of_key=self.call.key)
        if cost.input_tokens is not None and cost.output_tokens is not None:
            _add(
                writing,
                self.call,
                input_tokens=cost.input_tokens,
                output_tokens=cost.output_tokens,
                unknown_calls=-1,
                unknown_tokens=-self.call.reserved_tokens,
                cost_micros=cost.micros or 0,
                unknown_micros=-(self.call.reserved_micros or 0),
            )
        if self.vote is not None:
            body = self.vote.to_json()
            # An id holds eighty random bits, so the salt cannot be guessed.
            salt = sha256(writing.new_id("salt").encode()).digest()[:SALT_BYTES]
            entry = VoteEntry(writing.now.written, self.call.tenant, self.vote.key, commitment(salt, body))
            writing.merge(
                tables.judge_votes,
                MergeRule.REPLACED,
                tenant=self.call.tenant,
                key=self.vote.key,
                output_digest=self.call.output_digest,
                other_digest=self.call.other_digest,
                asked_at=to_micros(self.vote.asked_at),
                salt=salt,
                leaf=writing.append(entry, self.call.tenant),
                body=body,
            )


_COUNTS = (
    *("calls", "input_tokens", "output_tokens", "unknown_calls", "unknown_tokens"),
    *("cost_micros", "unknown_micros", "unpriced_calls"),
)


def _add(writing: WriteTransaction, call: JudgeCall, **counts: int) -> None:
    row = dict.fromkeys(_COUNTS, 0) | counts
    for account in call.accounts:
        writing.merge(
            tables.judge_tokens,
            MergeRule.ADDED,
            tenant=call.tenant,
            account=account,
            voter=call.voter,
            model=call.model,
            **row,
        )


def _read_spent(writing: WriteTransaction, call: JudgeCall, account: str) -> Spent:
    """What an account has spent; one row for each of its models."""
    table = tables.judge_tokens
    tokens = (table.c.input_tokens + table.c.output_tokens + table.c.unknown_tokens).label("tokens")
    micros = (table.c.cost_micros + table.c.unknown_micros).label("micros")
    query = select(table.c.voter, tokens, micros).where(table.c.tenant == call.tenant, table.c.account == account)
    rows = writing.read(query)
    return Spent(
        tokens=sum(int(row.tokens) for row in rows),
        micros=sum(int(row.micros) for row in rows),
        voter_micros=sum(int(row.micros) for row in rows if row.voter == call.voter),
    )


def read_totals(connection: Connection, tenant: str, account: str) -> list[TokenTotal]:
    """The tokens of one account, by voter and model."""
    table = tables.judge_tokens
    query = select(table).where(table.c.tenant == tenant, table.c.account == account)
    rows = connection.execute(query.order_by(table.c.voter, table.c.model)).mappings()
    return [TokenTotal(**{name: _plain(value) for name, value in row.items() if name != "tenant"}) for row in rows]


# Any: a column of any type.
def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)


def forget_votes(writing: WriteTransaction, tenant: str, output_digest: str) -> None:
    """Erase what judges said about an output, with the outcome that holds it."""
    for statement in _FORGET:
        writing.change(statement, of_tenant=tenant, of_output=output_digest)


_FORGET = tuple(
    delete(table).where(
        table.c.tenant == bindparam("of_tenant"),
        (table.c.output_digest == bindparam("of_output")) | (table.c.other_digest == bindparam("of_output")),
    )
    for table in (tables.judge_votes, tables.judge_calls)
)
_ARRIVED = delete(tables.judge_calls).where(
    tables.judge_calls.c.tenant == bindparam("of_tenant"), tables.judge_calls.c.key == bindparam("of_key")
)


class CalibratedJudge(Record, frozen=True):
    """One version of a judge, as people's labels know it."""

    judge: str
    version: str
    labels: int
    kappa: float | None


@dataclass(frozen=True, slots=True)
class RecordCalibration:
    """Keeps what labels say of judges, in the log too; payments by terms that ask for it go by the last one."""

    tenant: str
    found: tuple[CalibratedJudge, ...]
    by: str

    def __call__(self, writing: WriteTransaction) -> int:
        """Write those that changed; how many."""
        rows = writing.read(select_calibrations(self.tenant, [one.version for one in self.found]))
        known = {row.version: (row.labels, row.kappa) for row in rows}
        changed = [one for one in self.found if known.get(one.version) != (one.labels, one.kappa)]
        for one in changed:
            kappa = "" if one.kappa is None else repr(one.kappa)
            leaf = writing.append(
                CalibrationEntry(
                    writing.now.written,
                    tenant=self.tenant,
                    judge=one.judge,
                    version=one.version,
                    labels=one.labels,
                    kappa=kappa,
                    by=self.by,
                ),
                self.tenant,
            )
            writing.merge(
                tables.judge_calibrations,
                MergeRule.REPLACED,
                tenant=self.tenant,
                version=one.version,
                judge=one.judge,
                labels=one.labels,
                kappa=one.kappa,
                leaf=leaf,
                at=writing.now.micros,
            )
        return len(changed)


def select_calibrations(tenant: str, versions: Sequence[str]) -> Select[Any]:
    """The last calibration of each of these versions."""
    table = tables.judge_calibrations
    return select(table).where(table.c.tenant == tenant, table.c.version.in_([*versions]))


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def check_calibrations(writing: WriteTransaction, tenant: str, rows: Sequence[Any]) -> None:
    """Raise RecordTampered where the log does not commit to what is recorded of a judge."""
    leaves = tables.log_leaves
    query = select(leaves.c.seq, leaves.c.body).where(leaves.c.seq.in_([row.leaf for row in rows]))
    bodies = {row.seq: bytes(row.body) for row in writing.read(query)}
    forged = find_forged_leaf(writing, [*bodies.items()])
    for row in rows:
        entry = None if row.leaf not in bodies or forged is not None else read_entry(bodies[row.leaf])
        recorded = (tenant, row.version, row.judge, row.labels, "" if row.kappa is None else repr(row.kappa))
        if not isinstance(entry, CalibrationEntry) or recorded != (
            *(entry.tenant, entry.version, entry.judge, entry.labels, entry.kappa),
        ):
            raise RecordTampered(f"the calibration of the judge {row.judge!r} is not what the audit log commits to")


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def standings_of(rows: Iterable[Any], judges: Iterable[tuple[str, str]]) -> tuple[JudgeStanding, ...]:
    """What is known of each judge, named with its version; 0 labels where it was never calibrated."""
    known = {row.version: row for row in rows}
    return tuple(
        JudgeStanding(name, version, known[version].labels, known[version].kappa)
        if version in known
        else JudgeStanding(name, version, 0)
        for name, version in dict.fromkeys(judges)
    )
