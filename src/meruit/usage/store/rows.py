"""The rows of usage: how one transaction reads, remembers and writes runs and the looks at them."""

from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from meruit.model.metering import MeteredRun, UsageRecord
from meruit.model.outcome import from_micros, in_micros
from meruit.model.prices import Ledger, PriceQuote
from meruit.model.usage import Acknowledgement, Attempt, Tokens, UsageRun, UsageVerdict, summed
from meruit.store import tables
from meruit.store.database import NotFound
from meruit.store.recorder import LOOK_AHEAD
from meruit.store.transaction import Writing

BLOCK = 500
"""Runs that one question asks for."""
K = TypeVar("K")
T = TypeVar("T")


class Told(NamedTuple):
    """A run as somebody records it, and the bytes that stand for it."""

    run: MeteredRun
    body: bytes
    judged: UsageRun
    """The part that decides."""


class Kept(NamedTuple):
    """A look, and the bytes that stand for it."""

    attempt: Attempt
    body: bytes


class Held(NamedTuple):
    """A run as its row keeps it, with what is nobody's to read, and the looks at it."""

    record: UsageRecord
    seen: Tokens | None = None
    """What the provider counted when it was last asked with success."""
    salt: bytes | None = None
    """Of what the audit log says of it; made when it first says something."""
    looks: tuple[Kept, ...] | None = ()
    """In the order in which they were added; None where they were not read yet."""


def held_all(writing: Writing, tenant: str, run_ids: Iterable[str], *, with_looks: bool = False) -> dict[str, Held]:
    """These runs as this transaction finds them, by two questions at most; raises NotFound."""
    found: dict[str, Held] = {}
    for block in blocks(dict.fromkeys(run_ids)):
        found |= _held_block(writing, tenant, block)
        if with_looks:
            found |= _with_looks(writing, tenant, [found[one] for one in block])
    return found


def held_one(writing: Writing, tenant: str, run_id: str, *, with_looks: bool = False) -> Held:
    """The same of one run."""
    return held_all(writing, tenant, [run_id], with_looks=with_looks)[run_id]


def find_held(writing: Writing, tenant: str, run_id: str) -> Held | None:
    """A run as this transaction finds it, if it is there."""
    here = run_key(tenant, run_id)
    # Only what this group has taught: another process may have looked since an earlier one.
    known: Held | None = writing.fresh.get(here)
    if known is None and here not in writing.ahead:
        _read_ahead(writing, tenant, [run_id])
    return known or writing.ahead[here]


# Any: writes of several kinds, each about one run.
def look_ahead(writing: Writing, several: Sequence[Any]) -> None:
    """Read the runs of a group with one question."""
    by_tenant: dict[str, dict[str, None]] = {}
    for write in several:
        by_tenant.setdefault(write.tenant, {})[write.run_id] = None
    for tenant, run_ids in by_tenant.items():
        _read_ahead(writing, tenant, run_ids)


def reads_together(kind: type[K]) -> type[K]:
    """Have several such writes of a group read their runs with one question."""
    setattr(kind, LOOK_AHEAD, staticmethod(look_ahead))
    return kind


def run_key(tenant: str, run_id: str) -> tuple[str, ...]:
    """Under which a transaction remembers a run."""
    return ("usage_run", tenant, run_id)


def insert_run(writing: Writing, tenant: str, by: str, told: Told, held: Held) -> None:
    """Write a run that is new."""
    writing.insert(
        *(tables.usage_runs, tenant, told.run.id, held.record.seq),
        *(*_of_run(told), writing.now.micros, by, *_of_looks(held), *_of_prices(held.record), told.body),
    )
    writing.learn(run_key(tenant, told.run.id), held)


def replace_run(writing: Writing, tenant: str, told: Told) -> None:
    """Write what an open run says of itself by now."""
    writing.rewrite(_SAVE_RUN, *_of_run(told), told.body, tenant, told.run.id)


def save(writing: Writing, tenant: str, held: Held) -> None:
    """Write what is claimed of a run by now."""
    run_id = held.record.run.id
    writing.rewrite(_SAVE, *_of_looks(held), tenant, run_id)
    writing.learn(run_key(tenant, run_id), held)


def save_prices(writing: Writing, tenant: str, held: Held) -> None:
    """Write what a run costs by now; apart, as others may have moved the rest of its row."""
    run_id = held.record.run.id
    writing.rewrite(_SAVE_PRICES, *_of_prices(held.record), tenant, run_id)
    writing.learn(run_key(tenant, run_id), held)


def insert_look(writing: Writing, tenant: str, run_id: str, number: int, kept: Kept) -> None:
    """Add a look to a run's."""
    at = in_micros(kept.attempt.at)
    writing.insert(tables.usage_attempts, tenant, run_id, number, kept.attempt.id, at, kept.body)


# Any: a row has its columns as attributes, which no type says.
def record_of(row: Any) -> UsageRecord:
    """The run of a row."""
    return UsageRecord(
        run=_RUN.decode(row.body),
        seq=row.seq,
        attempts=row.attempts,
        verdict=_VERDICT.decode(row.verdict),
        next_look_at=moment(row.next_look_at),
        last_look_at=moment(row.last_look_at),
        exhausted=bool(row.exhausted),
        acknowledged=() if row.acknowledged is None else _ACKNOWLEDGED.decode(row.acknowledged),
        waits=row.waits,
        quotes=() if row.quotes is None else _QUOTES.decode(row.quotes),
        ledger=_NO_LEDGER if row.ledger is None else _LEDGER.decode(row.ledger),
    )


def kept_of(body: bytes) -> Kept:
    """The look of a row."""
    return Kept(_ATTEMPT.decode(body), bytes(body))


def last_seen(looks: Iterable[Kept]) -> Tokens | None:
    """What the provider counted when it was last asked with success."""
    counted = [one.attempt for one in looks if one.attempt.error is None and one.attempt.total is not None]
    return max(counted, key=lambda one: (one.at, one.id)).total if counted else None


def moment(micros: int | None) -> datetime | None:
    """A moment out of its column."""
    return None if micros is None else from_micros(micros)


def micros_of(at: datetime | None) -> int | None:
    """A moment as its column keeps it."""
    return None if at is None else in_micros(at)


def marks(count: int) -> str:
    """Places for so many values."""
    return ", ".join("?" * count)


def blocks(names: Iterable[T]) -> Iterator[list[T]]:
    """As many at a time as one question asks for."""
    left = iter(names)
    while block := [*islice(left, BLOCK)]:
        yield block


def _held_block(writing: Writing, tenant: str, run_ids: Sequence[str]) -> dict[str, Held]:
    unknown = [one for one in run_ids if not _is_known(writing, run_key(tenant, one))]
    if unknown:
        _read_ahead(writing, tenant, unknown)
    found = {one: find_held(writing, tenant, one) for one in run_ids}
    missing = [one for one, held in found.items() if held is None]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise NotFound(f"no usage run {missing[0]!r}{more}; `meruit reconcile --list` lists all")
    return {one: held for one, held in found.items() if held is not None}


def _is_known(writing: Writing, here: tuple[str, ...]) -> bool:
    return here in writing.ahead or writing.fresh.get(here) is not None


def _read_ahead(writing: Writing, tenant: str, run_ids: Iterable[str]) -> None:
    for block in blocks(run_ids):
        writing.ahead |= {run_key(tenant, one): None for one in block}
        for values in writing.fetch(_RUNS.format(marks(len(block))), tenant, *block):
            # Any: its fields are the table's columns, which no type says.
            row: Any = _Row._make(values)
            seen = None if row.last_input is None else Tokens(row.last_input, row.last_output, row.last_requests)
            salt = None if row.salt is None else bytes(row.salt)
            writing.ahead[run_key(tenant, row.id)] = Held(record_of(row), seen, salt, None if row.attempts else ())


def _with_looks(writing: Writing, tenant: str, several: Sequence[Held]) -> dict[str, Held]:
    """These runs with the looks of those whose looks were not read yet."""
    missing = {one.record.run.id: one for one in several if one.looks is None}
    if not missing:
        return {}
    looks: dict[str, list[Kept]] = {one: [] for one in missing}
    for run_id, body in writing.fetch(_LOOKS.format(marks(len(missing))), tenant, *missing):
        looks[run_id].append(kept_of(body))
    # Whoever of this group added a look has read the others, and has taught them with it.
    return {one: held._replace(looks=tuple(looks[one])) for one, held in missing.items()}


def _of_run(told: Told) -> tuple[Any, ...]:
    """The columns that follow from the run itself."""
    run = told.run
    return (
        *(run.framework, run.source, run.lane.kind.value, run.lane.value, run.task, run.contract_id or None),
        *(micros_of(run.started_at), micros_of(run.ended_at), *_counts(_said(told.judged))),
    )


def _said(run: UsageRun) -> Tokens | None:
    """What the run says it used; who declares to use no model says zero, so that the sum of its lane is known."""
    if run.uses_none:
        return summed(one.local for one in run.steps if one.local is not None)
    return run.local


def _of_looks(held: Held) -> tuple[Any, ...]:
    """The columns that follow from the looks at it, and from what people say."""
    record = held.record
    return (
        *(record.verdict.status.value, record.verdict.code.value),
        *(micros_of(record.next_look_at), micros_of(record.last_look_at)),
        *(record.attempts, int(record.exhausted), record.waits, record.verdict.withdrawn),
        *_counts(held.seen),
        held.salt,
        _MANY.encode(record.acknowledged) if record.acknowledged else None,
        _MANY.encode(record.verdict),
    )


def _of_prices(record: UsageRecord) -> tuple[Any, ...]:
    return (
        _MANY.encode(record.quotes) if record.quotes else None,
        _MANY.encode(record.ledger) if record.ledger != _NO_LEDGER else None,
    )


def _counts(tokens: Tokens | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tokens is None else (tokens.input, tokens.output, tokens.requests)


_NO_LEDGER = Ledger()
_MANY = msgspec.json.Encoder(order="deterministic")
_RUN = msgspec.json.Decoder(MeteredRun)
_VERDICT = msgspec.json.Decoder(UsageVerdict)
_ATTEMPT = msgspec.json.Decoder(Attempt)
_ACKNOWLEDGED = msgspec.json.Decoder(tuple[Acknowledgement, ...])
_QUOTES = msgspec.json.Decoder(tuple[PriceQuote, ...])
_LEDGER = msgspec.json.Decoder(Ledger)
# As text: building a query costs more than answering it. Names of our own tables; values are bound.
_COLUMNS = [column.name for column in tables.usage_runs.columns]
_Row = namedtuple("_Row", _COLUMNS)  # type: ignore[misc]  # its fields are the table's
_RUN_PART = _COLUMNS[_COLUMNS.index("framework") : _COLUMNS.index("created_at")]
_LOOKS_PART = _COLUMNS[_COLUMNS.index("status") : _COLUMNS.index("quotes")]
_RUNS = f"SELECT {', '.join(_COLUMNS)} FROM usage_runs WHERE tenant = ? AND id IN ({{}})"  # noqa: S608
_LOOKS = "SELECT run_id, body FROM usage_attempts WHERE tenant = ? AND run_id IN ({}) ORDER BY run_id, number"
_SAVE = f"UPDATE usage_runs SET {' = ?, '.join(_LOOKS_PART)} = ? WHERE tenant = ? AND id = ?"  # noqa: S608
_SAVE_RUN = f"UPDATE usage_runs SET {' = ?, '.join(_RUN_PART)} = ?, body = ? WHERE tenant = ? AND id = ?"  # noqa: S608
_SAVE_PRICES = "UPDATE usage_runs SET quotes = ?, ledger = ? WHERE tenant = ? AND id = ?"
