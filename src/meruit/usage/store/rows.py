"""Rows of usage runs and observations: how a transaction reads, remembers and writes them."""

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from meruit.errors import NotFound
from meruit.model.decoding import json_decoder
from meruit.model.metering import MeteredRun, PriceQuote, RunCosts, UsageRecord
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Acknowledgement, Observation, Tokens, UsageCode, UsageRun, UsageVerdict, sum_tokens
from meruit.store import tables
from meruit.store.recorder import PREFETCH
from meruit.store.rows import RowKey, Rows
from meruit.store.transaction import MergeRule, WriteTransaction
from meruit.usage.progress import UsageProgress

MAX_SORTED_MICROS = 2**63 - 1
"""Costs above it are sorted alike."""
BLOCK = 500
"""How many runs one query reads."""
MAX_TOTAL_TOKENS = 10**12
"""A run adds at most so many tokens to the totals of its account, so that no sum passes the end of the integers."""
K = TypeVar("K")
T = TypeVar("T")


class EncodedRun(msgspec.Struct, frozen=True):
    """A run to be recorded, and its encoded bytes."""

    run: MeteredRun
    body: bytes
    for_judging: UsageRun
    """The part that the verdict depends on."""


class EncodedObservation(msgspec.Struct, frozen=True):
    """An observation, and the stored bytes that the audit log commits to."""

    observation: Observation
    body: bytes


class ObservationKey(NamedTuple):
    """The run and the id of an observation."""

    run_id: str
    id: str


class StoredUsageRun(msgspec.Struct, frozen=True):
    """A run as it is stored, with its observations and the values that are not shown to clients."""

    record: UsageRecord
    last_count: Tokens | None = None
    """The count of the last successful observation."""
    salt: bytes | None = None
    """The salt of its commitments in the audit log; made with the first entry."""
    observations: tuple[EncodedObservation, ...] | None = ()
    """In the order in which they were recorded; None where they have not been read."""
    added: tuple[EncodedObservation, ...] = ()
    """The last of them, which this transaction adds; they are not in the database yet."""
    progress: UsageProgress | None = None
    """What many observations have led to, so that a later one is judged without them."""


RUN_ROWS = Rows[StoredUsageRun]("usage_run")


def load_runs(
    writing: WriteTransaction, tenant: str, run_ids: Iterable[str], *, with_observations: bool = False
) -> dict[str, StoredUsageRun]:
    """Load runs within a transaction, with at most two queries for each block; raises NotFound."""
    found: dict[str, StoredUsageRun] = {}
    for block in blocks(dict.fromkeys(run_ids)):
        found |= _load_block(writing, tenant, block)
    return load_observations(writing, tenant, found) if with_observations else found


def load_observations(
    writing: WriteTransaction, tenant: str, runs: Mapping[str, StoredUsageRun]
) -> dict[str, StoredUsageRun]:
    """Read the observations of these runs where they are missing; return all of the runs."""
    missing = [run_id for run_id, one in runs.items() if one.observations is None]
    observations: dict[str, list[EncodedObservation]] = {one: [] for one in missing}
    for block in blocks(missing):
        for run_id, body in writing.fetch(_OBSERVATIONS.format(placeholders(len(block))), tenant, *block):
            observations[run_id].append(decode_observation(body))
    return dict(runs) | {
        one: msgspec.structs.replace(runs[one], observations=(*observations[one], *runs[one].added)) for one in missing
    }


def find_observations_of(
    writing: WriteTransaction, tenant: str, wanted: Iterable[ObservationKey]
) -> dict[ObservationKey, list[Observation]]:
    """Find the stored observations with these ids; more than one where an id has different contents."""
    found: dict[ObservationKey, list[Observation]] = {}
    for block in blocks(dict.fromkeys(wanted)):
        keys = [part for key in block for part in key]
        rows = writing.fetch(_OBSERVATIONS_BY_ID.format(", ".join(["(?, ?)"] * len(block))), *keys, tenant)
        for run_id, observation_id, body in rows:
            key = ObservationKey(run_id, observation_id)
            found.setdefault(key, []).append(decode_observation(body).observation)
    return found


def load_run(writing: WriteTransaction, tenant: str, run_id: str, *, with_observations: bool = False) -> StoredUsageRun:
    """Load one run; raises NotFound."""
    return load_runs(writing, tenant, [run_id], with_observations=with_observations)[run_id]


def find_run(writing: WriteTransaction, tenant: str, run_id: str) -> StoredUsageRun | None:
    """Find a run within a transaction; None where it does not exist."""
    if not RUN_ROWS.is_known(writing, tenant, run_id):
        _prefetch(writing, tenant, [run_id])
    return RUN_ROWS.get(writing, tenant, run_id)


# Any: writes of several kinds, each about one run.
def prefetch_runs(writing: WriteTransaction, several: Sequence[Any]) -> None:
    """Read the runs of a group of writes with one query."""
    by_tenant: dict[str, dict[str, None]] = {}
    for write in several:
        by_tenant.setdefault(write.tenant, {})[write.run_id] = None
    for tenant, run_ids in by_tenant.items():
        _prefetch(writing, tenant, run_ids)


def with_prefetch(kind: type[K]) -> type[K]:
    """Make a class of writes read the runs of a whole group with one query."""
    setattr(kind, PREFETCH, staticmethod(prefetch_runs))
    return kind


def insert_run(writing: WriteTransaction, tenant: str, by: str, encoded: EncodedRun, stored: StoredUsageRun) -> None:
    """Insert a new run."""
    writing.insert(
        tables.usage_runs,
        tenant=tenant,
        id=encoded.run.id,
        seq=stored.record.seq,
        created_at=writing.now.micros,
        created_by=by,
        **_run_columns(encoded),
        **_status_columns(stored),
        **_price_columns(stored.record),
        body=encoded.body,
    )
    _add_to_totals(writing, tenant, stored, 1)
    RUN_ROWS.put(writing, stored, tenant, encoded.run.id)


def replace_run(writing: WriteTransaction, tenant: str, encoded: EncodedRun) -> None:
    """Update the columns of an open run that was recorded again."""
    values = _run_columns(encoded)
    writing.rewrite(_SAVE_RUN, *(values[name] for name in _RUN_PART), encoded.body, tenant, encoded.run.id)


def save(writing: WriteTransaction, tenant: str, stored: StoredUsageRun) -> None:
    """Update the status columns of a run."""
    run_id = stored.record.run.id
    values = _status_columns(stored)
    writing.rewrite(_SAVE, *(values[name] for name in _STATUS_PART), tenant, run_id)
    before = RUN_ROWS.get(writing, tenant, run_id)
    # A run is loaded before it is changed.
    assert before is not None  # noqa: S101
    if _account_part(before) != _account_part(stored):
        _add_to_totals(writing, tenant, before, -1)
        _add_to_totals(writing, tenant, stored, 1)
    RUN_ROWS.put(writing, stored, tenant, run_id)


class _AccountPart(NamedTuple):
    """What a run adds to the totals of its account."""

    account: str
    status: str
    tokens: int
    is_unattributed: bool


def _account_part(stored: StoredUsageRun) -> _AccountPart:
    record, counted = stored.record, stored.last_count
    return _AccountPart(
        account=record.run.source,
        status=record.verdict.status.value,
        tokens=0 if counted is None else min(counted.total, MAX_TOTAL_TOKENS),
        is_unattributed=record.verdict.code is UsageCode.UNATTRIBUTED,
    )


def _add_to_totals(writing: WriteTransaction, tenant: str, stored: StoredUsageRun, sign: int) -> None:
    part = _account_part(stored)
    writing.merge(
        tables.usage_account_totals,
        MergeRule.ADDED,
        tenant=tenant,
        account=part.account,
        status=part.status,
        runs=sign,
        tokens=sign * part.tokens,
        unattributed=sign * part.is_unattributed,
    )


def save_prices(writing: WriteTransaction, tenant: str, stored: StoredUsageRun) -> None:
    """Update the price columns of a run; only these, because other writers may have changed the rest."""
    run_id = stored.record.run.id
    values = _price_columns(stored.record)
    writing.rewrite(_SAVE_PRICES, values["quotes"], values["costs"], values["quoted_micros"], tenant, run_id)
    RUN_ROWS.put(writing, stored, tenant, run_id)


def insert_observation(
    writing: WriteTransaction, tenant: str, run_id: str, number: int, encoded: EncodedObservation
) -> None:
    """Insert an observation of a run."""
    at = to_micros(encoded.observation.at)
    writing.insert(
        tables.usage_observations,
        tenant=tenant,
        run_id=run_id,
        number=number,
        id=encoded.observation.id,
        at=at,
        body=encoded.body,
    )


# Any: a row has its columns as attributes, which no type says.
def record_of(row: Any) -> UsageRecord:
    """Decode the run of a row."""
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
    """Decode the observation of a row."""
    return EncodedObservation(_OBSERVATION.decode(body), bytes(body))


def last_count_of(observations: Iterable[EncodedObservation]) -> Tokens | None:
    """The count of the last successful observation; None where there is none."""
    counted = [
        one.observation for one in observations if one.observation.error is None and one.observation.total is not None
    ]
    return max(counted, key=lambda one: (one.at, one.id)).total if counted else None


def moment(micros: int | None) -> datetime | None:
    """Convert a column to a time."""
    return None if micros is None else from_micros(micros)


def micros_of(at: datetime | None) -> int | None:
    """Convert a time to a column."""
    return None if at is None else to_micros(at)


def placeholders(count: int) -> str:
    """Format the placeholders of so many values."""
    return ", ".join("?" * count)


def blocks(names: Iterable[T]) -> Iterator[list[T]]:
    """Split names into blocks of the size that one query reads."""
    left = iter(names)
    while block := [*islice(left, BLOCK)]:
        yield block


def _load_block(writing: WriteTransaction, tenant: str, run_ids: Sequence[str]) -> dict[str, StoredUsageRun]:
    unknown = [one for one in run_ids if not RUN_ROWS.is_known(writing, tenant, one)]
    if unknown:
        _prefetch(writing, tenant, unknown)
    found = {one: find_run(writing, tenant, one) for one in run_ids}
    missing = [one for one, stored in found.items() if stored is None]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise NotFound(f"no usage run {missing[0]!r}{more}; `meruit reconcile --list` lists all")
    return {one: stored for one, stored in found.items() if stored is not None}


def _prefetch(writing: WriteTransaction, tenant: str, run_ids: Iterable[str]) -> None:
    for block in blocks(run_ids):
        found: dict[RowKey, StoredUsageRun] = {}
        for values in writing.fetch(_RUNS.format(placeholders(len(block))), tenant, *block):
            # Any: its fields are the table's columns, which no type says.
            row: Any = _Row._make(values)
            seen = None if row.last_input is None else Tokens(row.last_input, row.last_output, row.last_requests)
            salt = None if row.salt is None else bytes(row.salt)
            stored = StoredUsageRun(
                record=record_of(row),
                last_count=seen,
                salt=salt,
                observations=None if row.observations else (),
                progress=_progress_of(row),
            )
            found[RUN_ROWS.key(tenant, row.id)] = stored
        RUN_ROWS.load(writing, found, wanted=(RUN_ROWS.key(tenant, one) for one in block))


# Any: a row has its columns as attributes, which no type says.
def _progress_of(row: Any) -> UsageProgress | None:
    """The progress of a row; None where it is not that of the row's observations, which are then read."""
    if row.progress is None:
        return None
    try:
        found = _PROGRESS.decode(row.progress)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if found.count == row.observations else None


def _run_columns(encoded: EncodedRun) -> dict[str, Any]:
    """The columns that depend on the run itself."""
    run = encoded.run
    local_input, local_output, local_requests = _counts(_local_tokens(encoded.for_judging))
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
    """The run's own count; zero where it declares no usage, so that the sum of its attribution key is known."""
    if run.uses_none:
        return sum_tokens(one.local for one in run.steps if one.local is not None)
    return run.local


def _status_columns(stored: StoredUsageRun) -> dict[str, Any]:
    """The columns that follow from its observations, and from what people acknowledge."""
    record = stored.record
    last_input, last_output, last_requests = _counts(stored.last_count)
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
        "salt": stored.salt,
        "acknowledged": _ENCODER.encode(record.acknowledged) if record.acknowledged else None,
        "verdict": _ENCODER.encode(record.verdict),
        "progress": None if stored.progress is None else _ENCODER.encode(stored.progress),
    }


def _price_columns(record: UsageRecord) -> dict[str, Any]:
    quoted = record.ledger.quoted
    return {
        # Rounded: it orders lists, and nothing is computed from it.
        "quoted_micros": None if quoted is None else min(round(quoted * 1_000_000), MAX_SORTED_MICROS),
        "quotes": _ENCODER.encode(record.quotes) if record.quotes else None,
        "costs": _ENCODER.encode(record.ledger) if record.ledger != _NO_LEDGER else None,
    }


def _counts(tokens: Tokens | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tokens is None else (tokens.input, tokens.output, tokens.requests)


_NO_LEDGER = RunCosts()
_ENCODER = msgspec.json.Encoder(order="deterministic")
_RUN = json_decoder(MeteredRun)
_VERDICT = json_decoder(UsageVerdict)
_OBSERVATION = json_decoder(Observation)
_PROGRESS = json_decoder(UsageProgress)
_ACKNOWLEDGED = json_decoder(tuple[Acknowledgement, ...])
_QUOTES = json_decoder(tuple[PriceQuote, ...])
_LEDGER = json_decoder(RunCosts)
# As text: building a query costs more than answering it. Names of our own tables; values are bound.
_COLUMNS = [column.name for column in tables.usage_runs.columns]
_Row = namedtuple("_Row", _COLUMNS)  # type: ignore[misc]  # its fields are the table's
_RUN_PART = _COLUMNS[_COLUMNS.index("framework") : _COLUMNS.index("created_at")]
_STATUS_PART = _COLUMNS[_COLUMNS.index("status") : _COLUMNS.index("quotes")]
_RUNS = f"SELECT {', '.join(_COLUMNS)} FROM usage_runs WHERE tenant = ? AND id IN ({{}})"  # noqa: S608
_OBSERVATIONS = (
    "SELECT run_id, body FROM usage_observations WHERE tenant = ? AND run_id IN ({}) ORDER BY run_id, number"
)
# A join, because a list of pairs is not looked up in the index one by one.
_OBSERVATIONS_BY_ID = (
    "WITH wanted (run_id, id) AS (VALUES {}) SELECT found.run_id, found.id, found.body FROM wanted "
    "JOIN usage_observations AS found ON found.tenant = ? AND found.run_id = wanted.run_id AND found.id = wanted.id"
)
_SAVE = f"UPDATE usage_runs SET {' = ?, '.join(_STATUS_PART)} = ? WHERE tenant = ? AND id = ?"  # noqa: S608
_SAVE_RUN = f"UPDATE usage_runs SET {' = ?, '.join(_RUN_PART)} = ?, body = ? WHERE tenant = ? AND id = ?"  # noqa: S608
_SAVE_PRICES = "UPDATE usage_runs SET quotes = ?, costs = ?, quoted_micros = ? WHERE tenant = ? AND id = ?"
