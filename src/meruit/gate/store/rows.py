"""The row of a run and the rows of its steps, as one transaction reads, caches and writes them."""

from collections import namedtuple
from collections.abc import Sequence, Sized
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from meruit.errors import NotFound
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.state import VerificationState
from meruit.model.chat import Usage
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.recorder import PREFETCH
from meruit.store.rows import RowMarks, Rows
from meruit.store.transaction import WriteTransaction

K = TypeVar("K")


class AgentRunRow(msgspec.Struct, frozen=True):
    """The row of a run, with the columns that are not shown."""

    run: AgentRun
    owner: str | None
    worker: str | None
    cancel: bool

    @property
    def is_hosted(self) -> bool:
        """Whether a host's own loop has the open run: it has an owner that is not a worker."""
        return self.owner is not None and self.worker is None


RUN_ROWS = Rows[AgentRunRow]("agent_run")
_STEP_BODIES = Rows[bytes]("agent_step")
_SAVED_RUNS = RowMarks("saved_agent_run")
"""Runs of which this transaction writes every column."""
_PASS_RESULTS = Rows[bytes]("passed_submission")


# Any: writes of several kinds, each about one run.
def prefetch_runs(writing: WriteTransaction, several: Sequence[Any]) -> None:
    """Read the runs of a group of writes with one query, and the steps that it records with another."""
    by_tenant: dict[str, tuple[dict[str, None], dict[tuple[str, str], None]]] = {}
    for write in several:
        run_id = getattr(write, "run_id", None) or write.id
        runs, steps = by_tenant.setdefault(write.tenant, ({}, {}))
        runs[run_id] = None
        key = getattr(write, "key", None)
        if key is not None:
            steps[run_id, key] = None
    for tenant, (runs, steps) in by_tenant.items():
        found = map(_run_row_of, writing.fetch(_RUNS.format(_placeholders(runs)), tenant, *runs))
        by_key = {RUN_ROWS.key(tenant, held.run.id): held for held in found}
        RUN_ROWS.load(writing, by_key, wanted=(RUN_ROWS.key(tenant, run_id) for run_id in runs))
        if steps:
            keys = {key: None for _, key in steps}
            rows = writing.fetch(_STEPS.format(_placeholders(runs), _placeholders(keys)), tenant, *runs, *keys)
            bodies = {_STEP_BODIES.key(tenant, run_id, key): bytes(body) for run_id, key, body in rows}
            _STEP_BODIES.load(writing, bodies, wanted=(_STEP_BODIES.key(tenant, *step) for step in steps))


def batch_reads(kind: type[K]) -> type[K]:
    """Let the writes of this kind in a group read their runs with one query."""
    setattr(kind, PREFETCH, staticmethod(prefetch_runs))
    return kind


def find_step(writing: WriteTransaction, tenant: str, run_id: str, key: str) -> bytes | None:
    """Find the recorded result of a step."""
    if _STEP_BODIES.is_known(writing, tenant, run_id, key):
        return _STEP_BODIES.get(writing, tenant, run_id, key)
    rows = writing.fetch(_STEP, tenant, run_id, key)
    return bytes(rows[0][0]) if rows else None


def insert_step(writing: WriteTransaction, tenant: str, run_id: str, key: str, body: bytes) -> None:
    """Record the result of a step."""
    writing.insert(
        tables.agent_steps,
        tenant=tenant,
        run_id=run_id,
        key=key,
        at=writing.now.micros,
        body=body,
    )
    _STEP_BODIES.put(writing, body, tenant, run_id, key)


def find_run_row(writing: WriteTransaction, tenant: str, run_id: str) -> AgentRunRow | None:
    """Find the row of a run, as this transaction sees it."""
    if RUN_ROWS.is_known(writing, tenant, run_id):
        return RUN_ROWS.get(writing, tenant, run_id)
    rows = writing.fetch(_RUN, tenant, run_id)
    if not rows:
        return None
    return _run_row_of(rows[0])


def _run_row_of(values: tuple[Any, ...]) -> AgentRunRow:
    # Any: the fields are the columns of the table, without types.
    row: Any = _Row._make(values)
    return AgentRunRow(run=run_of(row), owner=row.owner, worker=row.worker, cancel=bool(row.cancel))


def _placeholders(values: Sized) -> str:
    return ", ".join("?" * len(values))


def load_run_row(writing: WriteTransaction, tenant: str, run_id: str) -> AgentRunRow:
    """Find the row of a run; raises NotFound."""
    held = find_run_row(writing, tenant, run_id)
    if held is None:
        raise NotFound(f"no agent run {run_id!r}")
    return held


def save(writing: WriteTransaction, tenant: str, held: AgentRunRow, result: bytes | None = None) -> None:
    """Write all columns of a run that change."""
    run = held.run
    writing.rewrite(
        _SAVE,
        run.status.value,
        micros_of(run.started_at),
        micros_of(run.ended_at),
        micros_of(run.wake_at),
        held.owner,
        held.worker,
        int(held.cancel),
        run.turn,
        run.retries,
        run.takeovers,
        run.verification.to_json(),
        run.usage.to_json(),
        result,
        run.ending,
        run.error,
        run.waiting_for,
        run.note,
        tenant,
        run.id,
        row=RUN_ROWS.key(tenant, run.id),
    )
    RUN_ROWS.put(writing, held, tenant, run.id)
    _SAVED_RUNS.add(writing, tenant, run.id)


def save_verification(writing: WriteTransaction, tenant: str, held: AgentRunRow) -> None:
    """Write only the verification of a run: no column of an index changes."""
    run = held.run
    if _SAVED_RUNS.has(writing, tenant, run.id):
        # A transaction writes only the last statement for a row, so the other changes must be in it.
        save(writing, tenant, held)
        return
    key = RUN_ROWS.key(tenant, run.id)
    writing.rewrite(_SAVE_VERIFICATION, run.turn, run.verification.to_json(), tenant, run.id, row=key)
    RUN_ROWS.put(writing, held, tenant, run.id)


# Any: the columns of a SQLAlchemy row are attributes without types.
def run_of(row: Any) -> AgentRun:
    """Build a run from its row."""
    return AgentRun(
        id=row.id,
        seq=row.seq,
        agent=row.agent,
        status=RunState(row.status),
        request=RunRequest.from_json(row.request),
        created_at=from_micros(row.created_at),
        created_by=row.created_by,
        parent_id=row.parent_id,
        item=row.item,
        started_at=_moment(row.started_at),
        ended_at=_moment(row.ended_at),
        wake_at=_moment(row.wake_at),
        turn=row.turn,
        retries=row.retries,
        takeovers=row.takeovers,
        verification=VerificationState.from_json(row.state),
        usage=Usage.from_json(row.usage),
        result=None if row.result is None else msgspec.json.decode(row.result),
        ending=row.ending,
        error=row.error,
        waiting_for=row.waiting_for,
        note=row.note,
        is_hosted=row.owner is not None and row.worker is None,
    )


def learn_pass(writing: WriteTransaction, tenant: str, run_id: str, result: bytes) -> None:
    """Cache the result of a pass for the end of the run in the same transaction, which cannot read the row yet."""
    _PASS_RESULTS.put(writing, result, tenant, run_id)


def result_of_pass(writing: WriteTransaction, tenant: str, run_id: str) -> bytes | None:
    """Find the return value of the verifier for the submission that passed, as JSON."""
    known = _PASS_RESULTS.get(writing, tenant, run_id)
    if known is not None:
        return known
    rows = writing.fetch(_PASSED, tenant, run_id)
    return None if not rows else bytes(msgspec.json.decode(rows[0][0], type=_PassResult).result)


class _PassResult(msgspec.Struct):
    """The result of a stored verdict, as raw JSON."""

    result: msgspec.Raw = msgspec.Raw(b"null")


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def micros_of(moment: datetime | None) -> int | None:
    """Convert a time to its column."""
    return None if moment is None else to_micros(moment)


# As text: every submission uses them, and building a query costs more than running it.
_STEP = "SELECT body FROM agent_steps WHERE tenant = ? AND run_id = ? AND key = ?"
_COLUMNS = [column.name for column in tables.agent_runs.columns]
_Row = namedtuple("_Row", _COLUMNS)  # type: ignore[misc]  # its fields are the table's
# Only names of our own table are formatted in; values are bound.
_RUN = f"SELECT {', '.join(_COLUMNS)} FROM agent_runs WHERE tenant = ? AND id = ?"  # noqa: S608
_RUNS = f"SELECT {', '.join(_COLUMNS)} FROM agent_runs WHERE tenant = ? AND id IN ({{}})"  # noqa: S608
_STEPS = "SELECT run_id, key, body FROM agent_steps WHERE tenant = ? AND run_id IN ({}) AND key IN ({})"
_PASSED = "SELECT said FROM submissions WHERE tenant = ? AND run_id = ? AND outcome = 'passed'"
_SAVE = (
    "UPDATE agent_runs SET "
    "status = ?, started_at = ?, ended_at = ?, wake_at = ?, owner = ?, worker = ?, cancel = ?, "
    "turn = ?, retries = ?, takeovers = ?, state = ?, usage = ?, result = ?, ending = ?, "
    "error = ?, waiting_for = ?, note = ?"
    " WHERE tenant = ? AND id = ?"
)
_SAVE_VERIFICATION = "UPDATE agent_runs SET turn = ?, state = ? WHERE tenant = ? AND id = ?"
