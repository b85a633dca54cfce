"""Thresholds over measured metrics, judged as columns: what a rescore would change, and files beyond memory.

Needs `pip install 'meruit[bulk]'`. Columns say the same as one by one: what is missing is decided before anything
is compared, and works that meet the same criteria share the outcome that a single work would get.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from meruit.errors import BatchUnsupported, MeruitError
from meruit.judge.batch import VERDICTS, BatchResult, judge_columns
from meruit.judge.plan import CriterionRule, Plan
from meruit.model.criterion import SuccessCriteria
from meruit.model.record import Record
from meruit.model.verdict import GovernanceStatus, Status, Verdict
from meruit.outcomes.export import METRIC, MIXED, atomic_file
from meruit.outcomes.rescore.reuse import OWN_FLAW, EvidenceSources
from meruit.outcomes.rescore.run import (
    OutcomeScan,
    Progress,
    RescoreLine,
    RescoreSummary,
    RescoreTally,
    RescoreTask,
    judge_rows,
)
from meruit.outcomes.store.read import OutcomeFilter
from meruit.outcomes.store.rescored import RescoredVerdict
from meruit.store.lru import LruCache
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

BLOCK_ROWS = 65_536
"""Rows of a file that are held at a time."""
MAX_SETS = 256
"""How many sets of a file's criteria are remembered, compared with the new ones."""
_CRITERIA = ("criteria_digest", "criteria")
"""Columns that only our own exports have."""
_STATES = (Status.NOT_MET, Status.MET, Status.INDETERMINATE)
_BEYOND = {True: (pl.Int64, 2**63 - 1), False: (pl.UInt64, 2**64 - 1)}
"""An integer beyond the exact ones: it stands for a missing one, by whether its type has a sign."""

Numbers = npt.NDArray[Any]


class FileSummary(Record, frozen=True):
    """What judging a file came to."""

    criteria_digest: str
    rows: int
    verdicts: dict[Verdict, int]
    successes: int
    bonus_micros: int
    penalty_micros: int
    criteria: dict[str, dict[Status, int]]
    """For each criterion how often it ended how."""
    seconds: float


def _judge_series(plan: Plan, columns: Sequence[pl.Series]) -> BatchResult:
    """The columns judged, one for each criterion."""
    # A column of its own for each criterion: what a truth value is depends on who asks.
    numbered = msgspec.structs.replace(
        plan, rules=tuple(msgspec.structs.replace(rule, slot=str(rule.position)) for rule in plan.rules)
    )
    values = {str(rule.position): _numbers(rule, column) for rule, column in zip(plan.rules, columns, strict=True)}
    return judge_columns(numbered, values)


def _numbers(rule: CriterionRule, column: pl.Series) -> Numbers:
    """A column as numbers, NaN where there is none."""
    kind = column.dtype
    if kind == pl.Boolean and column.null_count():
        asked = rule.bracket is not None and rule.bracket.yes_or_no
        return column.cast(pl.Float64).to_numpy() if asked else np.full(len(column), np.nan)
    if kind.is_integer() and column.null_count():
        wide, beyond = _BEYOND[kind.is_signed_integer()]
        return column.cast(wide).fill_null(beyond).to_numpy()
    if kind == pl.Null:
        return np.full(len(column), np.nan)
    return column.to_numpy()


def _statuses(rule: CriterionRule) -> tuple[Status, Status, Status]:
    """What each state of a column is called."""
    return (*_STATES[:2], Status.EXCLUDED if rule.excludable else Status.INDETERMINATE)


# What a rescore would change.


def preview_outcomes(
    store: Store,
    engine: VerificationEngine,
    tenant: str,
    criteria: SuccessCriteria,
    *,
    narrowed: OutcomeFilter | None,
    now: datetime,
    progress: Progress,
) -> RescoreSummary:
    """What a rescore would come to, with nothing recorded: as columns where the records allow it, else one by one."""
    started = time.monotonic()
    task = RescoreTask(engine, criteria, now)
    reading = OutcomeScan(store, tenant, task, narrowed)
    for batch in reading.batches():
        columns, single = _split_numeric(task.compiled, batch.lines)
        _tally_columns(task.compiled.plan, columns, reading.tally)
        for line, result in zip(single, judge_rows(task, [line.row for line in single]), strict=True):
            if reading.tally.is_fit(result.verdict):
                reading.tally.add(line.row, RescoredVerdict.of(result))
        progress(batch.examined, reading.total)
    return reading.tally.summary(task, reading.examined, dry_run=True, seconds=time.monotonic() - started)


class _Values(msgspec.Struct, frozen=True):
    """An outcome whose evidence is a number, or nothing, for each criterion."""

    line: RescoreLine
    numbers: list[float | None]


def _split_numeric(compiled: CompiledCriteria, lines: Sequence[RescoreLine]) -> tuple[list[_Values], list[RescoreLine]]:
    """What can be judged as columns, and what cannot."""
    columns: list[_Values] = []
    single: list[RescoreLine] = []
    numeric = bool(compiled.plan.rules) and all(rule.bracket is not None for rule in compiled.plan.rules)
    for line in lines:
        values = _values(line) if numeric else None
        if values is None:
            single.append(line)
        else:
            columns.append(_Values(line, values))
    return columns, single


def _values(line: RescoreLine) -> list[float | None] | None:
    """The numbers that answer the criteria; None where one of them is not a number, or does not apply."""
    found: list[float | None] = []
    for source in line.row.sources or ():
        judged = None if source == OWN_FLAW else line.row.verdict_before.criterion_results[source]
        if judged is None or judged.cause is not None:
            found.append(None)
        elif type(value := line.row.value_of(source)) in (int, float):
            found.append(value)
        else:
            return None
    return found if line.row.sources is not None else None


def _tally_columns(plan: Plan, rows: Sequence[_Values], tally: RescoreTally) -> None:
    if not rows:
        return
    series = [
        pl.Series(column, dtype=pl.Float64, strict=False) for column in zip(*(row.numbers for row in rows), strict=True)
    ]
    judged = _judge_series(plan, series)
    old = [row.line.row.verdict_before for row in rows]
    believed = [one.governance in (GovernanceStatus.NOT_CHECKED, GovernanceStatus.CLEAR) for one in old]
    success = judged.success & np.array(believed)
    frame = pl.DataFrame(
        {
            "before": [str(one.verdict) for one in old],
            "after": np.array([str(verdict) for verdict in VERDICTS])[judged.verdict],
            "succeeded": [one.success for one in old],
            "succeeds": success,
        }
    )
    for before, after, times in frame.group_by("before", "after").len().iter_rows():
        tally.count_verdict(Verdict(before), Verdict(after), from_evidence=True, times=times)
    turned = frame.filter(pl.col("succeeded") != pl.col("succeeds"))
    for succeeds, times in turned.group_by("succeeds").len().iter_rows():
        tally.count_success_change(succeeds, times)
    ended = [{one.criterion_id: one.status for one in result.criterion_results} for result in old]
    for rule, states in zip(plan.rules, judged.states, strict=True):
        names = _statuses(rule)
        now = [names[state] for state in states]
        times = sum(before.get(rule.id, status) is not status for before, status in zip(ended, now, strict=True))
        if times:
            tally.count_criterion_change(rule.id, times)


# Files.


def judge_file(
    source: Path, engine: VerificationEngine, compiled: CompiledCriteria, target: Path | None, progress: Progress
) -> FileSummary:
    """Judge a Parquet file of metrics, a block at a time; the verdicts go to another, if one is named.

    In a file that `meruit outcome export` wrote, a criterion is answered only by a column that was asked the same;
    in any other, by the column of its metric's name.
    """
    if target is not None and target.exists() and target.samefile(source):
        raise MeruitError(f"{source} is what is read; write the verdicts to another file")
    started = time.monotonic()
    plan = compiled.plan
    total = _Total(plan)
    try:
        with _open_parquet(source) as file, nullcontext() if target is None else atomic_file(target) as opened:
            columns = _Columns(file.schema_arrow, engine, compiled)
            shape = _shape(plan, with_id="id" in columns.needed)
            with nullcontext() if opened is None else _write_parquet(opened, shape) as writer:
                for block in file.iter_batches(BLOCK_ROWS, columns=columns.needed):
                    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([block])))
                    judged = columns.judge(frame)
                    total.add(judged)
                    if writer is not None:
                        ids = frame["id"] if "id" in frame.columns else None
                        writer.write_table(_to_table(plan, judged, ids, shape))
                    progress(total.rows, file.metadata.num_rows)
    except (pa.ArrowException, OSError) as problem:
        raise MeruitError(f"{source} cannot be read as Parquet: {problem}") from None
    return total.summary(time.monotonic() - started)


# Any: what pyarrow has is of no type that says more.
def _write_parquet(opened: Any, shape: Any) -> Any:
    """A file of verdicts; the smallest and largest of a few texts would take longer to find than the rest."""
    return pq.ParquetWriter(opened, shape, compression="zstd", write_statistics=["score", "score_high"])


def _open_parquet(source: Path) -> Any:
    """The file; texts that repeat in every row are read once."""
    names = {*pq.read_schema(source).names}
    return pq.ParquetFile(source, read_dictionary=[name for name in _CRITERIA if name in names])


# A few texts that repeat in every row: written as numbers, and read back as texts by every reader.
_TEXT = pa.dictionary(pa.int8(), pa.string())


def _shape(plan: Plan, *, with_id: bool) -> Any:
    """The columns of a file of verdicts."""
    return pa.schema(
        [
            *([("id", pa.large_string())] if with_id else []),
            ("verdict", _TEXT),
            ("success", pa.bool_()),
            *((name, pa.float64()) for name in ("score", "score_high")),
            *((name, pa.int64()) for name in ("bonus_micros", "penalty_micros")),
            *((f"status.{rule.id}", _TEXT) for rule in plan.rules),
        ]
    )


def _to_table(plan: Plan, judged: BatchResult, ids: pl.Series | None, shape: Any) -> Any:
    """A block of verdicts as it is written."""
    return pa.Table.from_arrays(
        [
            *([] if ids is None else [ids.to_arrow().cast(pa.large_string())]),
            _named(judged.verdict, VERDICTS),
            *map(pa.array, (judged.success, judged.low, judged.high, judged.bonus_micros, judged.penalty_micros)),
            *(_named(states, _statuses(rule)) for rule, states in zip(plan.rules, judged.states, strict=True)),
        ],
        schema=shape,
    )


def _named(codes: Numbers, names: Sequence[Verdict | Status]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array([str(name) for name in names]))


class _Columns:
    """Which column of a file answers which criterion."""

    def __init__(self, schema: Any, engine: VerificationEngine, compiled: CompiledCriteria) -> None:
        self._names = {*schema.names}
        self._mixed = {*msgspec.json.decode((schema.metadata or {}).get(MIXED, b"[]"))}
        self._engine, self._compiled = engine, compiled
        self._exported = {*_CRITERIA} <= self._names
        self._known = LruCache[str, tuple[str | None, ...]](MAX_SETS)
        if self._exported:
            self.needed = [*_CRITERIA, *(name for name in schema.names if name.startswith(METRIC))]
        else:
            self._plain = tuple(self._column(rule.slot) for rule in compiled.plan.rules)
            self.needed = sorted({*self._plain})
        if "id" in self._names:
            self.needed.append("id")

    def _column(self, slot: str) -> str:
        name = next((name for name in (f"{METRIC}{slot}", slot) if name in self._names), None)
        if name is None:
            raise MeruitError(f"the file has no column {METRIC}{slot} or {slot}, which a criterion asks for")
        return name

    def judge(self, frame: pl.DataFrame) -> BatchResult:
        """Each row of the frame judged by the columns that answer the criteria for it."""
        if not self._exported:
            return _judge_series(self._compiled.plan, [frame[name] for name in self._plain])
        parts = frame.with_row_index("place").partition_by("criteria_digest", maintain_order=True)
        found = [self._judge_partition(part) for part in parts]
        if len(found) == 1:
            return found[0]
        order = np.argsort(np.concatenate([part["place"].to_numpy() for part in parts]))
        arrays = [np.concatenate([result[number] for result in found], axis=-1) for number in range(len(found[0]))]
        return BatchResult(*(array[..., order] for array in arrays))

    def _judge_partition(self, part: pl.DataFrame) -> BatchResult:
        """Rows that were judged by the same criteria, so that each column was asked the same in all."""
        digest = str(part["criteria_digest"][0])
        labels = self._known.get_or_make(digest, lambda: self._labels(str(part["criteria"][0])))
        names = [None if label is None else f"{METRIC}{label}" for label in labels]
        empty = pl.Series(dtype=pl.Null).extend_constant(None, len(part))
        return _judge_series(
            self._compiled.plan,
            [part[name] if name is not None and name in self._names else empty for name in names],
        )

    def _labels(self, written: str) -> tuple[str | None, ...]:
        old = self._engine.catalogue.compile(SuccessCriteria.model_validate_json(written))
        labels = EvidenceSources(self._compiled, old).labels
        mixed = next((label for label in labels if label in self._mixed), None)
        if mixed is not None:
            raise BatchUnsupported(
                f"{mixed!r} has values of several kinds, which no column holds; rescore the records themselves"
            )
        return labels


class _Total:
    """Counts what judging a file comes to."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.rows = self._successes = self._bonus = self._penalty = 0
        self._verdicts: Counter[Verdict] = Counter()
        self._ended: list[Counter[Status]] = [Counter() for _ in plan.rules]

    def add(self, judged: BatchResult) -> None:
        """Count a block."""
        self.rows += len(judged.success)
        self._successes += int(judged.success.sum())
        self._bonus += int(judged.bonus_micros.sum())
        self._penalty += int(judged.penalty_micros.sum())
        for verdict, times in zip(VERDICTS, _times(judged.verdict, len(VERDICTS)), strict=True):
            self._verdicts[verdict] += times
        for rule, states, ended in zip(self._plan.rules, judged.states, self._ended, strict=True):
            for status, times in zip(_statuses(rule), _times(states, len(_STATES)), strict=True):
                ended[status] += times

    def summary(self, seconds: float) -> FileSummary:
        """All of it."""
        return FileSummary(
            criteria_digest=self._plan.digest,
            rows=self.rows,
            verdicts={verdict: times for verdict, times in self._verdicts.items() if times},
            successes=self._successes,
            bonus_micros=self._bonus,
            penalty_micros=self._penalty,
            criteria={
                rule.id: {status: times for status, times in ended.items() if times}
                for rule, ended in zip(self._plan.rules, self._ended, strict=True)
            },
            seconds=seconds,
        )


def _times(codes: Numbers, kinds: int) -> Iterator[int]:
    """How often each code occurs."""
    return iter(np.bincount(codes, minlength=kinds).tolist())
