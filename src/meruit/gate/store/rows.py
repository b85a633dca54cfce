"""The row of a run and the rows of its steps: how one transaction reads, remembers and writes them."""

from collections import namedtuple
from collections.abc import Sequence, Sized
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from meruit.errors import NotFound
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.state import VerificationState
from meruit.model.chat import Usage
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.recorder import PREFETCH
from meruit.store.transaction import WriteTransaction

K = TypeVar("K")


class AgentRunRow(NamedTuple):
    """A run as its row keeps it, with what is nobody's to read."""

    run: AgentRun
    owner: str | None
    worker: str | None
    cancel: bool


# Any: writes of several kinds, each about one run.
def prefetch_runs(writing: WriteTransaction, several: Sequence[Any]) -> None:
    """Read the runs of a group with one question, and the steps that it means to keep with another."""
    by_tenant: dict[str, tuple[dict[str, None], dict[tuple[str, str], None]]] = {}
    for write in several:
        run_id = getattr(write, "run_id", None) or write.id
        runs, steps = by_tenant.setdefault(write.tenant, ({}, {}))
        runs[run_id] = None
        if hasattr(write, "key"):
            steps[run_id, write.key] = None
    for tenant, (runs, steps) in by_tenant.items():
        writing.prefetch_results |= {run_key(tenant, run_id): None for run_id in runs}
        for values in writing.fetch(_RUNS.format(_placeholders(runs)), tenant, *runs):
            held = _run_row_of(values)
            writing.prefetch_results[run_key(tenant, held.run.id)] = held
        if steps:
            writing.prefetch_results |= {_step_key(tenant, *step): None for step in steps}
            keys = {key: None for _, key in steps}
            found = writing.fetch(_STEPS.format(_placeholders(runs), _placeholders(keys)), tenant, *runs, *keys)
            writing.prefetch_results |= {_step_key(tenant, run_id, key): bytes(body) for run_id, key, body in found}


def batch_reads(kind: type[K]) -> type[K]:
    """Have several such writes of a group read their runs with one question."""
    setattr(kind, PREFETCH, staticmethod(prefetch_runs))
    return kind


def find_step(writing: WriteTransaction, tenant: str, run_id: str, key: str) -> bytes | None:
    """What a step gave, where it is kept."""
    here = _step_key(tenant, run_id, key)
    known: bytes | None = writing.fresh.get(here)
    if known is not None:
        return known
    if here in writing.prefetch_results:
        found: bytes | None = writing.prefetch_results[here]
        return found
    rows = writing.fetch(_STEP, tenant, run_id, key)
    return bytes(rows[0][0]) if rows else None


def insert_step(writing: WriteTransaction, tenant: str, run_id: str, key: str, body: bytes) -> None:
    """Keep what a step gave."""
    writing.insert(tables.agent_steps, tenant, run_id, key, writing.now.micros, body)
    writing.remember(_step_key(tenant, run_id, key), body)


def run_key(tenant: str, run_id: str) -> tuple[str, ...]:
    """Under which a transaction remembers a run."""
    return ("agent_run", tenant, run_id)


def find_run_row(writing: WriteTransaction, tenant: str, run_id: str) -> AgentRunRow | None:
    """A run as this transaction finds it."""
    # Only what this group has taught: another process may have moved the run since an earlier one.
    known: AgentRunRow | None = writing.fresh.get(run_key(tenant, run_id))
    if known is not None:
        return known
    if run_key(tenant, run_id) in writing.prefetch_results:
        found: AgentRunRow | None = writing.prefetch_results[run_key(tenant, run_id)]
        return found
    rows = writing.fetch(_RUN, tenant, run_id)
    if not rows:
        return None
    return _run_row_of(rows[0])


def _run_row_of(values: tuple[Any, ...]) -> AgentRunRow:
    # Any: its fields are the table's columns, which no type says.
    row: Any = _Row._make(values)
    return AgentRunRow(run_of(row), row.owner, row.worker, bool(row.cancel))


def _placeholders(values: Sized) -> str:
    return ", ".join("?" * len(values))


def _step_key(tenant: str, run_id: str, key: str) -> tuple[str, ...]:
    return ("agent_step", tenant, run_id, key)


def load_run_row(writing: WriteTransaction, tenant: str, run_id: str) -> AgentRunRow:
    """The same; raises NotFound."""
    held = find_run_row(writing, tenant, run_id)
    if held is None:
        raise NotFound(f"no agent run {run_id!r}")
    return held


def save(writing: WriteTransaction, tenant: str, held: AgentRunRow, result: bytes | None = None) -> None:
    """Write a run as it is now."""
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
        row=run_key(tenant, run.id),
    )
    writing.remember(run_key(tenant, run.id), held)
    writing.remember(_save_marker_key(tenant, run.id), True)  # noqa: FBT003 - that it was


def save_verification(writing: WriteTransaction, tenant: str, held: AgentRunRow) -> None:
    """The same where only its verification has moved: nothing that the tables' indexes look at."""
    run = held.run
    if writing.fresh.get(_save_marker_key(tenant, run.id)):
        # What else has changed must be written with it: of one row, a transaction writes the last word only.
        save(writing, tenant, held)
        return
    key = run_key(tenant, run.id)
    writing.rewrite(_SAVE_VERIFICATION, run.turn, run.verification.to_json(), tenant, run.id, row=key)
    writing.remember(key, held)


def _save_marker_key(tenant: str, run_id: str) -> tuple[str, ...]:
    return ("agent_run_saved", tenant, run_id)


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def run_of(row: Any) -> AgentRun:
    """The run of a row."""
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
    )


def learn_pass(writing: WriteTransaction, tenant: str, run_id: str, result: bytes) -> None:
    """Whoever ends the run in the same transaction cannot read the submission yet."""
    writing.remember(_pass_key(tenant, run_id), result)


def _pass_key(tenant: str, run_id: str) -> tuple[str, ...]:
    return ("passed", tenant, run_id)


def result_of_pass(writing: WriteTransaction, tenant: str, run_id: str) -> bytes | None:
    """What the verifier returned for the submission that passed, as JSON."""
    known: bytes | None = writing.fresh.get(_pass_key(tenant, run_id))
    if known is not None:
        return known
    rows = writing.fetch(_PASSED, tenant, run_id)
    return None if not rows else bytes(msgspec.json.decode(rows[0][0], type=_PassResult).result)


class _PassResult(msgspec.Struct):
    """Of what a verifier said, its result as it is written."""

    result: msgspec.Raw = msgspec.Raw(b"null")


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def micros_of(moment: datetime | None) -> int | None:
    """A moment as its column keeps it."""
    return None if moment is None else to_micros(moment)


# As text: they are part of every submission, and building a query costs more than answering it.
_STEP = "SELECT body FROM agent_steps WHERE tenant = ? AND run_id = ? AND key = ?"
_COLUMNS = [column.name for column in tables.agent_runs.columns]
_Row = namedtuple("_Row", _COLUMNS)  # type: ignore[misc]  # its fields are the table's
# Names of our own table; values are bound.
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
