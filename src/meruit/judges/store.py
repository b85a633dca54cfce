"""Votes and tokens in the store: tables and SQL."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, select

from meruit.judges.vote_records import JudgeCall, TokenLimits, TokenTotal, is_beyond
from meruit.log.entries import CalibrationEntry
from meruit.model.money import JudgeStanding
from meruit.model.record import Record
from meruit.model.time import to_micros
from meruit.model.vote import Vote
from meruit.store import tables
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
        query = select(table.c.body).where(table.c.tenant == tenant, table.c.key == key)
        with self._store.database.reading() as connection:
            body = connection.execute(query).scalar()
        return None if body is None else msgspec.json.decode(body, type=Vote)

    async def reserve(self, call: JudgeCall, limits: TokenLimits) -> bool:
        """Count the most that a call can cost; False where a limit does not allow it."""
        return await self._store.recorder.record(_ReserveTokens(call, limits))

    async def finish(
        self, call: JudgeCall, vote: Vote | None, input_tokens: int | None, output_tokens: int | None
    ) -> None:
        """Count what the call has cost, and keep the vote where there is one."""
        await self._store.recorder.record(_FinishCall(call, vote, input_tokens, output_tokens))


@dataclass(frozen=True, slots=True)
class _ReserveTokens:
    """Counts the most that a call can cost, before it is sent: a process that dies has counted it."""

    call: JudgeCall
    limits: TokenLimits

    def __call__(self, writing: WriteTransaction) -> bool:
        """Reserve; False where a limit does not allow it."""
        spent, today = (_read_spent(writing, self.call.tenant, account) for account in self.call.accounts)
        if is_beyond(spent, today, self.call.reserved_tokens, self.limits):
            return False
        _add(writing, self.call, calls=1, unknown_calls=1, unknown_tokens=self.call.reserved_tokens)
        return True


@dataclass(frozen=True, slots=True)
class _FinishCall:
    call: JudgeCall
    vote: Vote | None
    input_tokens: int | None
    output_tokens: int | None

    def __call__(self, writing: WriteTransaction) -> None:
        """Replace what was reserved by what it was, where that is known."""
        if self.input_tokens is not None and self.output_tokens is not None:
            _add(
                writing,
                self.call,
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                unknown_calls=-1,
                unknown_tokens=-self.call.reserved_tokens,
            )
        if self.vote is not None:
            writing.merge(
                tables.judge_votes,
                MergeRule.REPLACED,
                tenant=self.call.tenant,
                key=self.vote.key,
                output_digest=self.call.output_digest,
                other_digest=self.call.other_digest,
                asked_at=to_micros(self.vote.asked_at),
                body=self.vote.to_json(),
            )


_COUNTS = ("calls", "input_tokens", "output_tokens", "unknown_calls", "unknown_tokens")


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


def _read_spent(writing: WriteTransaction, tenant: str, account: str) -> int:
    """What an account has spent; one row for each of its models."""
    table = tables.judge_tokens
    spent = table.c.input_tokens + table.c.output_tokens + table.c.unknown_tokens
    query = select(spent).where(table.c.tenant == tenant, table.c.account == account)
    return sum(int(row[0]) for row in writing.read(query))


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
    writing.change(_FORGET, of_tenant=tenant, of_output=output_digest)


_FORGET = delete(tables.judge_votes).where(
    tables.judge_votes.c.tenant == bindparam("of_tenant"),
    (tables.judge_votes.c.output_digest == bindparam("of_output"))
    | (tables.judge_votes.c.other_digest == bindparam("of_output")),
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
def standings_of(rows: Iterable[Any], judges: Iterable[tuple[str, str]]) -> tuple[JudgeStanding, ...]:
    """What is known of each judge, named with its version; 0 labels where it was never calibrated."""
    known = {row.version: row for row in rows}
    return tuple(
        JudgeStanding(name, version, known[version].labels, known[version].kappa)
        if version in known
        else JudgeStanding(name, version, 0)
        for name, version in dict.fromkeys(judges)
    )
