"""Outcomes as files for training and analysis: one JSON document a line, or Parquet with a column a metric."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Connection

from meruit.errors import MeruitError, StoreError
from meruit.model.access import Scope
from meruit.model.decoding import decode_json
from meruit.model.money import Bill
from meruit.model.outcome import OutcomeSummary
from meruit.outcomes.store import batches
from meruit.outcomes.store.read import (
    OutcomeFilter,
    OutcomeWork,
    billing_impact,
    criteria_body,
    criteria_from,
    live_bills,
)
from meruit.store.lru import LruCache
from meruit.store.store import Store

MIXED = b"meruit.mixed_metrics"
"""Under this key a Parquet file lists the metrics that have no column, because their values are of several kinds."""
METRIC = "metric."
"""What the name of a metric's column begins with."""
MAX_METRIC_COLUMNS = 2_000
GROUP_ROWS = 16_384
"""Rows of a row group, unless they are large."""
GROUP_BYTES = 64 * 1024 * 1024
MAX_SETS = 256
"""How many sets of criteria are remembered written."""

Progress = Callable[[int, int], None]
"""Told how many outcomes are written, and of how many."""
_NULL = msgspec.Raw(b"null")


class ResultFigures(msgspec.Struct):
    """What of a result is needed besides its text."""

    metrics: dict[str, Any]
    bonus_micros: int = 0
    penalty_micros: int = 0


class _ExportLine(msgspec.Struct):
    """An OutcomeRecord, its parts as the text they are kept as: no digit is read, so none can be lost."""

    id: str
    contract_id: str
    agent_id: str | None
    consumer_id: str | None
    domain: str | None
    success_criteria: msgspec.Raw
    verification_result: msgspec.Raw
    execution_metadata: msgspec.Raw
    billing_impact: dict[str, str | None]
    created_at: datetime
    version: int
    reason: str
    criteria_digest: str
    work_input: msgspec.Raw
    work_output: msgspec.Raw


class _VersionWithWork(msgspec.Struct, frozen=True):
    """One version of an outcome, with its work."""

    summary: OutcomeSummary
    version: batches.StoredVersion
    criteria: bytes
    work: OutcomeWork
    bill: Bill | None
    """What was paid for it."""


def export_jsonl(
    store: Store,
    scope: Scope,
    narrowed: OutcomeFilter | None,
    file: BinaryIO,
    progress: Progress,
    *,
    every_version: bool = False,
) -> int:
    """Write one OutcomeRecord a line, oldest first; answers how many."""
    lines = 0
    encode = msgspec.json.Encoder().encode
    with store.database.reading() as connection:
        for found, done, total in _versions_with_work(connection, store, scope, narrowed, every_version=every_version):
            file.writelines(encode(_line(one)) + b"\n" for one in found)
            lines += len(found)
            progress(done, total)
    return lines


def export_parquet(
    store: Store,
    scope: Scope,
    narrowed: OutcomeFilter | None,
    file: BinaryIO,
    progress: Progress,
    *,
    every_version: bool = False,
) -> int:
    """Write one row a version: ids, verdict, score, a column a metric, and the rest as JSON; answers how many."""
    arrow, parquet = _arrow()
    rows = 0
    # One state of the database for both passes: the second meets no metric that the first has not seen.
    with store.database.reading() as connection:
        kinds = metric_kinds(connection, scope, narrowed, every_version=every_version)
        # In a column of both, true would be a 1, which a criterion may judge otherwise.
        metrics: dict[str, type] = {
            name: kind for name, some in kinds.items() for kind in (float, bool) if some == {kind}
        }
        mixed = msgspec.json.encode([name for name in kinds if name not in metrics])
        schema = _schema(arrow, metrics).with_metadata({MIXED: mixed})
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            group: dict[str, list[Any]] = {name: [] for name in schema.names}
            size = 0
            for found, done, total in _versions_with_work(
                connection, store, scope, narrowed, every_version=every_version
            ):
                for one in found:
                    size += _add_row(group, one, metrics)
                rows += len(found)
                if len(group["id"]) >= GROUP_ROWS or size >= GROUP_BYTES:
                    writer.write_table(arrow.table(group, schema=schema))
                    group, size = {name: [] for name in schema.names}, 0
                progress(done, total)
            if group["id"]:
                writer.write_table(arrow.table(group, schema=schema))
    return rows


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only once all of it is on disk; a device or a pipe is written to as it is."""
    path = path.resolve()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as problem:
        # An error names the file as the user does.
        if problem.filename in (None, str(unfinished)):
            problem.filename = str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


# What is read.


def _versions_with_work(
    connection: Connection, store: Store, scope: Scope, narrowed: OutcomeFilter | None, *, every_version: bool
) -> Iterator[tuple[list[_VersionWithWork], int, int]]:
    """Versions with their work, a bounded number at a time, and how many outcomes of how many are done with them."""
    written = LruCache[str, bytes](MAX_SETS)
    done = 0
    for page, total in iterate_summaries(connection, scope, narrowed):
        by_id = {one.id: one for one in page}
        rows = batches.versions(connection, scope.tenant, page, every=every_version)
        bills = live_bills(connection, scope.tenant, [one.contract_id for one in page])
        for group in batches.works(connection, scope.tenant, page, store.blobs):
            found = []
            for name, work in group.items():
                if isinstance(work, StoreError):
                    raise work
                for version in rows[name]:
                    criteria = _criteria(connection, scope.tenant, version.criteria_digest, written)
                    bill = bills.get((by_id[name].contract_id, version.version))
                    found.append(
                        _VersionWithWork(summary=by_id[name], version=version, criteria=criteria, work=work, bill=bill)
                    )
            done += len(group)
            yield found, done, total


def iterate_summaries(
    connection: Connection, scope: Scope, narrowed: OutcomeFilter | None
) -> Iterator[tuple[list[OutcomeSummary], int]]:
    """Pages of outcomes, oldest first, each with the number of all."""
    end = batches.end_of(connection, scope, narrowed)
    total = batches.count(connection, scope, narrowed, end)
    after = 0
    while page := batches.next_page(connection, scope, narrowed, after=after, end=end):
        yield page, total
        after = page[-1].seq


def _criteria(connection: Connection, tenant: str, digest: str, written: LruCache[str, bytes]) -> bytes:
    """Criteria as their author may write them; each set is written once."""

    def write() -> bytes:
        criteria = criteria_from(criteria_body(connection, tenant, digest))
        return msgspec.json.encode(criteria.model_dump(mode="json", exclude_defaults=True))

    return written.get_or_make(digest, write)


# Lines.


def _line(found: _VersionWithWork) -> _ExportLine:
    summary, version, work = found.summary, found.version, found.work
    figures = read_figures(version.result)
    return _ExportLine(
        id=summary.id,
        contract_id=summary.contract_id,
        agent_id=summary.agent_id,
        consumer_id=summary.consumer_id,
        domain=summary.domain,
        success_criteria=msgspec.Raw(found.criteria),
        verification_result=_raw(version.result),
        execution_metadata=_raw(work.metadata),
        billing_impact=billing_impact(
            found.bill,
            None if figures is None else figures.bonus_micros,
            None if figures is None else figures.penalty_micros,
        ),
        created_at=summary.created_at,
        version=version.version,
        reason=version.reason,
        criteria_digest=version.criteria_digest,
        work_input=_raw(work.input),
        work_output=_raw(work.output),
    )


def _raw(text: bytes | None) -> msgspec.Raw:
    return _NULL if text is None else msgspec.Raw(text)


def read_figures(result: bytes | None) -> ResultFigures | None:
    """Metrics and money of a stored result; None once it is erased."""
    return None if result is None else decode_json(result, ResultFigures)


# Columns.


# Any: pyarrow's modules.
def _arrow() -> tuple[Any, Any]:
    try:
        # It has no types of its own.
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise MeruitError("Parquet needs pyarrow: pip install 'meruit[bulk]'") from None
    return pa, pq


def metric_kinds(
    connection: Connection, scope: Scope, narrowed: OutcomeFilter | None, *, every_version: bool
) -> dict[str, set[type]]:
    """Every metric that was measured, and of which kinds its values were; all numbers are one kind."""
    seen: dict[str, set[type]] = {}
    for page, _ in iterate_summaries(connection, scope, narrowed):
        rows = batches.versions(connection, scope.tenant, page, every=every_version)
        for version in (one for some in rows.values() for one in some):
            figures = read_figures(version.result)
            for name, value in figures.metrics.items() if figures is not None else ():
                seen.setdefault(name, set()).add(float if type(value) is int else type(value))
        if len(seen) > MAX_METRIC_COLUMNS:
            raise MeruitError(
                f"these outcomes have more than {MAX_METRIC_COLUMNS:,} metrics; export fewer of them, or as .jsonl"
            )
    return dict(sorted(seen.items()))


# Any: a schema of pyarrow's.
def _schema(arrow: Any, metrics: dict[str, type]) -> Any:
    text = arrow.string()
    types: dict[type, Any] = {float: arrow.float64(), bool: arrow.bool_()}
    return arrow.schema(
        [
            *((name, text) for name in ("id", "contract_id", "agent_id", "consumer_id", "domain")),
            ("version", arrow.int64()),
            ("verdict", text),
            ("success", arrow.bool_()),
            ("score", arrow.float64()),
            ("created_at", arrow.timestamp("us", tz="UTC")),
            ("reason", text),
            ("criteria_digest", text),
            *((f"{METRIC}{name}", types[kind]) for name, kind in metrics.items()),
            *((name, arrow.large_string()) for name in ("criteria", "result", "input", "output", "metadata")),
        ]
    )


def _add_row(group: dict[str, list[Any]], found: _VersionWithWork, metrics: dict[str, type]) -> int:
    """Put a row at the end of each column; answers about how many bytes that is."""
    summary, version, work = found.summary, found.version, found.work
    figures = read_figures(version.result)
    texts: Sequence[bytes | None] = (found.criteria, version.result, work.input, work.output, work.metadata)
    values = {} if figures is None else figures.metrics
    row = (
        *(summary.id, summary.contract_id, summary.agent_id, summary.consumer_id, summary.domain, version.version),
        *(version.verdict, version.success, version.score),
        *(summary.created_at, version.reason, version.criteria_digest),
        *(values.get(name) for name in metrics),
        *(None if text is None else text.decode() for text in texts),
    )
    for column, value in zip(group.values(), row, strict=True):
        column.append(value)
    return sum(len(text) for text in texts if text is not None)
