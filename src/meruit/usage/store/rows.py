"""The rows of usage: how one transaction reads, remembers and writes runs and the looks at them."""

from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from meruit.errors import NotFound
from meruit.model.metering import MeteredRun, UsageRecord
from meruit.model.prices import PriceQuote, RunCosts
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Acknowledgement, Observation, Tokens, UsageRun, UsageVerdict, sum_tokens
from meruit.store import tables
from meruit.store.recorder import PREFETCH
from meruit.store.rows import RowKey, Rows
from meruit.store.transaction import WriteTransaction

BLOCK = 500
"""Runs that one question asks for."""
K = TypeVar("K")
T = TypeVar("T")


class EncodedRun(NamedTuple):
    """A run as somebody records it, and the bytes that stand for it."""

    run: MeteredRun
    body: bytes
    for_judging: UsageRun
    """The part that decides."""


class EncodedObservation(NamedTuple):
    """A look, and the bytes that stand for it."""

    observation: Observation
    body: bytes


class StoredUsageRun(NamedTuple):
    """A run as its row keeps it, with what is nobody's to read, and the looks at it."""

    record: UsageRecord
    last_count: Tokens | None = None
    """What the provider counted when it was last asked with success."""
    salt: bytes | None = None
    """Of what the audit log says of it; made when it first says something."""
    observations: tuple[EncodedObservation, ...] | None = ()
    """In the order in which they were added; None where they were not read yet."""


RUN_ROWS = Rows[StoredUsageRun]("usage_run")


def load_runs(
    writing: WriteTransaction, tenant: str, run_ids: Iterable[str], *, with_looks: bool = False
) -> dict[str, StoredUsageRun]:
    """These runs as this transaction finds them, by two questions at most; raises NotFound."""
    found: dict[str, StoredUsageRun] = {}
    for block in blocks(dict.fromkeys(run_ids)):
        found |= _load_block(writing, tenant, block)
        if with_looks:
            found |= _with_observations(writing, tenant, [found[one] for one in block])
    return found


def load_run(writing: WriteTransaction, tenant: str, run_id: str, *, with_looks: bool = False) -> StoredUsageRun:
    """The same of one run."""
    return load_runs(writing, tenant, [run_id], with_looks=with_looks)[run_id]


def find_run(writing: WriteTransaction, tenant: str, run_id: str) -> StoredUsageRun | None:
    """A run as this transaction finds it, if it is there."""
    if not RUN_ROWS.is_known(writing, tenant, run_id):
        _prefetch(writing, tenant, [run_id])
    return RUN_ROWS.get(writing, tenant, run_id)


# Any: writes of several kinds, each about one run.
def prefetch_runs(writing: WriteTransaction, several: Sequence[Any]) -> None:
    """Read the runs of a group with one question."""
    by_tenant: dict[str, dict[str, None]] = {}
    for write in several:
        by_tenant.setdefault(write.tenant, {})[write.run_id] = None
    for tenant, run_ids in by_tenant.items():
        _prefetch(writing, tenant, run_ids)


def with_prefetch(kind: type[K]) -> type[K]:
    """Have several such writes of a group read their runs with one question."""
    setattr(kind, PREFETCH, staticmethod(prefetch_runs))
    return kind


def insert_run(writing: WriteTransaction, tenant: str, by: str, told: EncodedRun, held: StoredUsageRun) -> None:
    """Write a run that is new."""
    writing.insert(
        tables.usage_runs,
        tenant=tenant,
        id=told.run.id,
        seq=held.record.seq,
        created_at=writing.now.micros,
        created_by=by,
        **_run_columns(told),
        **_status_columns(held),
        **_price_columns(held.record),
        body=told.body,
    )
    RUN_ROWS.put(writing, held, tenant, told.run.id)


def replace_run(writing: WriteTransaction, tenant: str, told: EncodedRun) -> None:
    """Write what an open run says of itself by now."""
    values = _run_columns(told)
    writing.rewrite(_SAVE_RUN, *(values[name] for name in _RUN_PART), told.body, tenant, told.run.id)


def save(writing: WriteTransaction, tenant: str, held: StoredUsageRun) -> None:
    """Write what is claimed of a run by now."""
    run_id = held.record.run.id
    values = _status_columns(held)
    writing.rewrite(_SAVE, *(values[name] for name in _STATUS_PART), tenant, run_id)
    RUN_ROWS.put(writing, held, tenant, run_id)


def save_prices(writing: WriteTransaction, tenant: str, held: StoredUsageRun) -> None:
    """Write what a run costs by now; apart, as others may have moved the rest of its row."""
    run_id = held.record.run.id
    values = _price_columns(held.record)
    writing.rewrite(_SAVE_PRICES, values["quotes"], values["costs"], tenant, run_id)
    RUN_ROWS.put(writing, held, tenant, run_id)


def insert_observation(
    writing: WriteTransaction, tenant: str, run_id: str, number: int, kept: EncodedObservation
) -> None:
    """Add a look to a run's."""
    at = to_micros(kept.observation.at)
    writing.insert(
        tables.usage_observations,
        tenant=tenant,
        run_id=run_id,
        number=number,
        id=kept.observation.id,
        at=at,
        body=kept.body,
    )


# Any: a row has its columns as attributes, which no type says.
def record_of(row: Any) -> UsageRecord:
    """The run of a row."""
    return UsageRecord(
        run=_RUN.decode(row.body),
        seq=row.seq,
        attempts=row.observations,
        verdict=_VERDICT.decode(row.verdict),
        next_observation_at=moment(row.next_observation_at),
        last_observation_at=moment(row.last_observation_at),
        exhausted=bool(row.exhausted),
        acknowledged=() if row.acknowledged is None else _ACKNOWLEDGED.decode(row.acknowledged),
        waits=row.waiting_for,
        quotes=() if row.quotes is None else _QUOTES.decode(row.quotes),
        ledger=_NO_LEDGER if row.costs is None else _LEDGER.decode(row.costs),
    )


def decode_observation(body: bytes) -> EncodedObservation:
    """The look of a row."""
    return EncodedObservation(_OBSERVATION.decode(body), bytes(body))


def last_count_of(looks: Iterable[EncodedObservation]) -> Tokens | None:
    """What the provider counted when it was last asked with success."""
    counted = [one.observation for one in looks if one.observation.error is None and one.observation.total is not None]
    return max(counted, key=lambda one: (one.at, one.id)).total if counted else None


def moment(micros: int | None) -> datetime | None:
    """A moment out of its column."""
    return None if micros is None else from_micros(micros)


def micros_of(at: datetime | None) -> int | None:
    """A moment as its column keeps it."""
    return None if at is None else to_micros(at)


def placeholders(count: int) -> str:
    """Places for so many values."""
    return ", ".join("?" * count)


def blocks(names: Iterable[T]) -> Iterator[list[T]]:
    """As many at a time as one question asks for."""
    left = iter(names)
    while block := [*islice(left, BLOCK)]:
        yield block


def _load_block(writing: WriteTransaction, tenant: str, run_ids: Sequence[str]) -> dict[str, StoredUsageRun]:
    unknown = [one for one in run_ids if not RUN_ROWS.is_known(writing, tenant, one)]
    if unknown:
        _prefetch(writing, tenant, unknown)
    found = {one: find_run(writing, tenant, one) for one in run_ids}
    missing = [one for one, held in found.items() if held is None]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise NotFound(f"no usage run {missing[0]!r}{more}; `meruit reconcile --list` lists all")
    return {one: held for one, held in found.items() if held is not None}


def _prefetch(writing: WriteTransaction, tenant: str, run_ids: Iterable[str]) -> None:
    for block in blocks(run_ids):
        found: dict[RowKey, StoredUsageRun] = {}
        for values in writing.fetch(_RUNS.format(placeholders(len(block))), tenant, *block):
            # Any: its fields are the table's columns, which no type says.
            row: Any = _Row._make(values)
            seen = None if row.last_input is None else Tokens(row.last_input, row.last_output, row.last_requests)
            salt = None if row.salt is None else bytes(row.salt)
            held = StoredUsageRun(record_of(row), seen, salt, None if row.observations else ())
            found[RUN_ROWS.key(tenant, row.id)] = held
        RUN_ROWS.load(writing, found, wanted=(RUN_ROWS.key(tenant, one) for one in block))


def _with_observations(
    writing: WriteTransaction, tenant: str, several: Sequence[StoredUsageRun]
) -> dict[str, StoredUsageRun]:
    """These runs with the looks of those whose looks were not read yet."""
    missing = {one.record.run.id: one for one in several if one.observations is None}
    if not missing:
        return {}
    looks: dict[str, list[EncodedObservation]] = {one: [] for one in missing}
    for run_id, body in writing.fetch(_OBSERVATIONS.format(placeholders(len(missing))), tenant, *missing):
        looks[run_id].append(decode_observation(body))
    # Whoever of this group added a look has read the others, and has taught them with it.
    return {one: held._replace(observations=tuple(looks[one])) for one, held in missing.items()}


def _run_columns(told: EncodedRun) -> dict[str, Any]:
    """The columns that follow from the run itself."""
    run = told.run
    local_input, local_output, local_requests = _counts(_local_tokens(told.for_judging))
    return {
        "framework": run.framework,
        "account": run.source,
        "attribution_kind": run.attribution_key.kind.value,
        "attribution_key": run.attribution_key.value,
        "task": run.task,
        "contract_id": run.contract_id or None,
        "started_at": micros_of(run.started_at),
        "ended_at": micros_of(run.ended_at),
        "local_input": local_input,
        "local_output": local_output,
        "local_requests": local_requests,
    }


def _local_tokens(run: UsageRun) -> Tokens | None:
    """What the run says it used; who declares to use no model says zero, so that the sum of its attribution key is known."""
    if run.uses_none:
        return sum_tokens(one.local for one in run.steps if one.local is not None)
    return run.local


def _status_columns(held: StoredUsageRun) -> dict[str, Any]:
    """The columns that follow from its observations, and from what people acknowledge."""
    record = held.record
    last_input, last_output, last_requests = _counts(held.last_count)
    return {
        "status": record.verdict.status.value,
        "code": record.verdict.code.value,
        "next_observation_at": micros_of(record.next_observation_at),
        "last_observation_at": micros_of(record.last_observation_at),
        "observations": record.attempts,
        "exhausted": int(record.exhausted),
        "waiting_for": record.waits,
        "withdrawn": record.verdict.withdrawn,
        "last_input": last_input,
        "last_output": last_output,
        "last_requests": last_requests,
        "salt": held.salt,
        "acknowledged": _ENCODER.encode(record.acknowledged) if record.acknowledged else None,
        "verdict": _ENCODER.encode(record.verdict),
    }


def _price_columns(record: UsageRecord) -> dict[str, Any]:
    return {
        "quotes": _ENCODER.encode(record.quotes) if record.quotes else None,
        "costs": _ENCODER.encode(record.ledger) if record.ledger != _NO_LEDGER else None,
    }


def _counts(tokens: Tokens | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tokens is None else (tokens.input, tokens.output, tokens.requests)


_NO_LEDGER = RunCosts()
_ENCODER = msgspec.json.Encoder(order="deterministic")
_RUN = msgspec.json.Decoder(MeteredRun)
_VERDICT = msgspec.json.Decoder(UsageVerdict)
_OBSERVATION = msgspec.json.Decoder(Observation)
_ACKNOWLEDGED = msgspec.json.Decoder(tuple[Acknowledgement, ...])
_QUOTES = msgspec.json.Decoder(tuple[PriceQuote, ...])
_LEDGER = msgspec.json.Decoder(RunCosts)
# As text: building a query costs more than answering it. Names of our own tables; values are bound.
_COLUMNS = [column.name for column in tables.usage_runs.columns]
_Row = namedtuple("_Row", _COLUMNS)  # type: ignore[misc]  # its fields are the table's
_RUN_PART = _COLUMNS[_COLUMNS.index("framework") : _COLUMNS.index("created_at")]
_STATUS_PART = _COLUMNS[_COLUMNS.index("status") : _COLUMNS.index("quotes")]
_RUNS = f"SELECT {', '.join(_COLUMNS)} FROM usage_runs WHERE tenant = ? AND id IN ({{}})"  # noqa: S608
_OBSERVATIONS = (
    "SELECT run_id, body FROM usage_observations WHERE tenant = ? AND run_id IN ({}) ORDER BY run_id, number"
)
_SAVE = f"UPDATE usage_runs SET {' = ?, '.join(_STATUS_PART)} = ? WHERE tenant = ? AND id = ?"  # noqa: S608
_SAVE_RUN = f"UPDATE usage_runs SET {' = ?, '.join(_RUN_PART)} = ?, body = ? WHERE tenant = ? AND id = ?"  # noqa: S608
_SAVE_PRICES = "UPDATE usage_runs SET quotes = ?, costs = ? WHERE tenant = ? AND id = ?"
