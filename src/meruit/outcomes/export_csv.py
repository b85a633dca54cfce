"""Outcomes as CSV or XLSX: one line a version with its verdict, what was paid for it, and a column a metric.

The first column says what a line is: an outcome, or a `total` of one currency at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

from sqlalchemy import Connection

from meruit.documents.csv_table import Cell, write_csv
from meruit.documents.xlsx_table import write_xlsx
from meruit.model.access import Scope
from meruit.model.money import TOTAL, Bill, CurrencyTotals
from meruit.model.numbers import in_units
from meruit.model.outcome import OutcomeSummary
from meruit.outcomes.export import METRIC, Progress, iterate_summaries, metric_kinds, read_figures
from meruit.outcomes.store import batches
from meruit.outcomes.store.batches import StoredVersion
from meruit.outcomes.store.read import OutcomeFilter, contract_titles, live_bills
from meruit.store.store import Store

OUTCOME_HEADINGS = (
    *("outcome_id", "recorded_at", "contract_id", "agent_id", "consumer_id", "domain"),
    *("version", "verdict", "success", "score", "criteria_digest"),
)
"""The columns of a list of outcomes."""
EXPORT_HEADINGS = (
    *("record", *OUTCOME_HEADINGS, "reason", "title"),
    *("bonus", "penalty", "currency", "gross", "fee", "net"),
)
"""The columns of an export, without those of metrics. Gross is what was paid, net the agent's part of it."""


def outcome_cells(one: OutcomeSummary) -> tuple[Cell, ...]:
    """The line of an outcome in a list."""
    return (
        *(one.id, one.created_at, one.contract_id, one.agent_id, one.consumer_id, one.domain),
        *(one.version, str(one.verdict), one.success, one.score, one.criteria_digest),
    )


def export_csv(
    store: Store,
    scope: Scope,
    narrowed: OutcomeFilter | None,
    file: BinaryIO,
    progress: Progress,
    *,
    every_version: bool = False,
    bom: bool = False,
) -> int:
    """Write one line a version, oldest first; answers how many."""

    def write(headings: Sequence[str], rows: Iterator[tuple[Cell, ...]]) -> None:
        file.writelines(write_csv(headings, rows, bom=bom))

    return _export(store, scope, narrowed, progress, write, every_version=every_version)


def export_xlsx(
    store: Store,
    scope: Scope,
    narrowed: OutcomeFilter | None,
    file: BinaryIO,
    progress: Progress,
    *,
    every_version: bool = False,
) -> int:
    """Write a workbook with one line a version, oldest first; answers how many."""
    return _export(store, scope, narrowed, progress, partial(write_xlsx, file), every_version=every_version)


def _export(
    store: Store,
    scope: Scope,
    narrowed: OutcomeFilter | None,
    progress: Progress,
    write: Callable[[Sequence[str], Iterator[tuple[Cell, ...]]], None],
    *,
    every_version: bool,
) -> int:
    lines = 0

    def count(rows: Iterator[tuple[Cell, ...]]) -> Iterator[tuple[Cell, ...]]:
        nonlocal lines
        for row in rows:
            lines += row[0] != TOTAL
            yield row

    # One state of the database for both passes: the second meets no metric that the first has not seen.
    with store.database.reading() as connection:
        names = [*metric_kinds(connection, scope, narrowed, every_version=every_version)]
        rows = count(_rows(connection, scope, narrowed, names, progress, every_version=every_version))
        headings = (*EXPORT_HEADINGS, *(f"{METRIC}{name}" for name in names))
        write(headings, rows)
    return lines


def _rows(
    connection: Connection,
    scope: Scope,
    narrowed: OutcomeFilter | None,
    names: list[str],
    progress: Progress,
    *,
    every_version: bool,
) -> Iterator[tuple[Cell, ...]]:
    done, totals = 0, CurrencyTotals()
    for page, total in iterate_summaries(connection, scope, narrowed):
        versions = batches.versions(connection, scope.tenant, page, every=every_version)
        contracts = [one.contract_id for one in page]
        bills = live_bills(connection, scope.tenant, contracts)
        titles = contract_titles(connection, scope.tenant, contracts)
        for one in page:
            for version in versions[one.id]:
                paid = _payment_cells(bills.get((one.contract_id, version.version)), totals)
                yield _row(one, version, titles.get(one.contract_id), paid, names)
        done += len(page)
        progress(done, total)
    before = EXPORT_HEADINGS.index("currency") - 1
    for currency, sums in totals:
        yield (TOTAL, *(None,) * before, currency, *sums, *(None,) * len(names))


def _payment_cells(bill: Bill | None, totals: CurrencyTotals) -> tuple[Cell, ...]:
    """Currency, gross, fee and net of a payment, which the totals count too."""
    if bill is None:
        return (None, None, None, None)
    return bill.currency, *totals.add(bill.currency, bill.total, bill.fee, bill.payout)


def _row(
    one: OutcomeSummary, version: StoredVersion, title: str | None, paid: tuple[Cell, ...], names: list[str]
) -> tuple[Cell, ...]:
    figures = read_figures(version.result)
    values = {} if figures is None else figures.metrics
    earned = (None, None) if figures is None else (in_units(figures.bonus_micros), in_units(figures.penalty_micros))
    return (
        *("outcome", one.id, one.created_at, one.contract_id, one.agent_id, one.consumer_id, one.domain),
        *(version.version, version.verdict, version.success, version.score, version.criteria_digest, version.reason),
        title,
        *earned,
        *paid,
        *(values.get(name) for name in names),
    )
