"""The row of a run and the rows of its steps, as one transaction reads, caches and writes them."""

from collections import namedtuple
from collections.abc import Iterable, Sequence, Sized
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from meruit.errors import NotFound
from meruit.gate.run import AgentRun, RunRequest, RunState, SubmissionOutcome
from meruit.gate.state import PriorRejection, VerificationState
from meruit.model.chat import Usage
from meruit.model.decoding import decode_json
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.recorder import PREFETCH
from meruit.store.rows import RowMarks, Rows
from meruit.store.transaction import WriteTransaction

K = TypeVar("K")


class AgentRunRow(msgspec.Struct, frozen=True):
    """The row of a run, with the columns that are not shown."""

    run: AgentRun
    """Its verification has only the submissions that this transaction has added: the others are found by key."""
    submissions: int
    """How many submissions have a row."""
    owner: str | None
    worker: str | None
    cancel: bool

    @property
    def is_hosted(self) -> bool:
        """Whether a host's own loop has the open run: it has an owner that is not a worker."""
        return self.owner is not None and self.worker is None


HISTORY_COLUMNS = ("submission_id", "candidate_hash", "outcome", "attempt", "verifier_version")
"""Of the rows of submissions, what the state of their run says of them."""
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
    held = RUN_ROWS.get(writing, tenant, run_id)
    if held is not None or RUN_ROWS.is_known(writing, tenant, run_id):
        return held
    rows = writing.fetch(_RUN, tenant, run_id)
    if not rows:
        return None
    return _run_row_of(rows[0])


def _run_row_of(values: tuple[Any, ...]) -> AgentRunRow:
    # Any: the fields are the columns of the table, without types.
    row: Any = _Row._make(values)
    return AgentRunRow(
        run=run_of(row), submissions=row.submissions, owner=row.owner, worker=row.worker, cancel=bool(row.cancel)
    )


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
        held.submissions,
        run.usage.input_tokens + run.usage.output_tokens,
        encode_state(run.verification),
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
    values = (run.turn, held.submissions, encode_state(run.verification))
    writing.rewrite(_SAVE_VERIFICATION, *values, tenant, run.id, row=key)
    RUN_ROWS.put(writing, held, tenant, run.id)


# Any: the columns of a SQLAlchemy row are attributes without types.
def run_of(row: Any) -> AgentRun:
    """Build a run from its row, without the submissions of its verification."""
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


def encode_state(state: VerificationState) -> bytes:
    """Encode a state for the row of a run, without the submissions: they have rows of their own."""
    return msgspec.structs.replace(state, submission_ids=(), rejected={}).to_json()


# Any: columns of several types.
def add_submissions(state: VerificationState, rows: Iterable[Sequence[Any]]) -> VerificationState:
    """Return the state with more submissions, given the columns `HISTORY_COLUMNS` of their rows in order."""
    ids, rejected = [*state.submission_ids], {**state.rejected}
    for submission_id, candidate_hash, outcome, attempt, version in rows:
        ids.append(submission_id)
        if outcome == SubmissionOutcome.REJECTED:
            rejected[candidate_hash] = PriorRejection(attempt, submission_id, version)
    return msgspec.structs.replace(state, submission_ids=tuple(ids), rejected=rejected)


def prepend_submissions(earlier: VerificationState, state: VerificationState) -> VerificationState:
    """Return the state with the submissions of an earlier one before its own."""
    return msgspec.structs.replace(
        state,
        submission_ids=(*earlier.submission_ids, *state.submission_ids),
        rejected={**earlier.rejected, **state.rejected},
    )


def with_submissions(writing: WriteTransaction, tenant: str, run: AgentRun, count: int) -> AgentRun:
    """Return a run with all its submissions, of which it has those of this transaction."""
    state = run.verification
    if count == len(state.submission_ids):
        return run
    earlier = add_submissions(VerificationState(), writing.fetch(_HISTORY, tenant, run.id))
    return msgspec.structs.replace(run, verification=prepend_submissions(earlier, state))


def look_up_submission(
    writing: WriteTransaction,
    tenant: str,
    held: AgentRunRow,
    submission_id: str,
    rejected_hash: str | None = None,
    known: VerificationState | None = None,
) -> VerificationState:
    """Return the state of a run with what its rows say of one submission and of one candidate that is rejected.

    The rules of the gate ask for no other submission. A caller that knows all rows that were there before this
    transaction saves reading them: rows are only added, so that the same number of them are the same rows.
    """
    state = held.run.verification
    earlier = held.submissions - len(state.submission_ids)
    if not earlier:
        return state
    if known is None or len(known.submission_ids) != earlier:
        known = _read_earlier(writing, tenant, held, submission_id, rejected_hash)
    before = None if rejected_hash is None else known.rejected.get(rejected_hash)
    return msgspec.structs.replace(
        state,
        submission_ids=(submission_id, *state.submission_ids)
        if submission_id in known.submission_ids
        else state.submission_ids,
        rejected=state.rejected if before is None else {rejected_hash: before, **state.rejected},
    )


def _read_earlier(
    writing: WriteTransaction, tenant: str, held: AgentRunRow, submission_id: str, rejected_hash: str | None
) -> VerificationState:
    """Read what the rows before this transaction say of a submission and of a candidate."""
    state, key, earlier = held.run.verification, (tenant, held.run.id), VerificationState()
    if rejected_hash is not None and rejected_hash not in state.rejected:
        earlier = add_submissions(earlier, writing.fetch(_REJECTION, *key, rejected_hash))
    is_submitted = submission_id not in state.submission_ids and writing.fetch(_IS_SUBMITTED, *key, submission_id)
    return msgspec.structs.replace(earlier, submission_ids=(submission_id,) if is_submitted else ())


def learn_pass(writing: WriteTransaction, tenant: str, run_id: str, result: bytes) -> None:
    """Cache the result of a pass for the end of the run in the same transaction, which cannot read the row yet."""
    _PASS_RESULTS.put(writing, result, tenant, run_id)


def result_of_pass(writing: WriteTransaction, tenant: str, run_id: str) -> bytes | None:
    """Find the return value of the verifier for the submission that passed, as JSON."""
    known = _PASS_RESULTS.get(writing, tenant, run_id)
    if known is not None:
        return known
    rows = writing.fetch(_PASSED, tenant, run_id)
    return None if not rows else bytes(decode_json(rows[0][0], _PassResult).result)


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
_HISTORY_PART = ", ".join(HISTORY_COLUMNS)
_SUBMISSIONS_OF = "FROM submissions WHERE tenant = ? AND run_id = ?"
_HISTORY = f"SELECT {_HISTORY_PART} {_SUBMISSIONS_OF} ORDER BY number"
_IS_SUBMITTED = f"SELECT 1 {_SUBMISSIONS_OF} AND submission_id = ?"
_REJECTION = (
    f"SELECT {_HISTORY_PART} {_SUBMISSIONS_OF} AND candidate_hash = ? AND outcome = 'rejected' "
    "ORDER BY number DESC LIMIT 1"
)
_SAVE = (
    "UPDATE agent_runs SET "
    "status = ?, started_at = ?, ended_at = ?, wake_at = ?, owner = ?, worker = ?, cancel = ?, "
    "turn = ?, retries = ?, takeovers = ?, submissions = ?, tokens = ?, state = ?, usage = ?, result = ?, ending = ?, "
    "error = ?, waiting_for = ?, note = ?"
    " WHERE tenant = ? AND id = ?"
)
_SAVE_VERIFICATION = "UPDATE agent_runs SET turn = ?, submissions = ?, state = ? WHERE tenant = ? AND id = ?"
