"""CSV for spreadsheets: one case a row; texts that a spreadsheet would compute are made harmless."""

from collections.abc import Iterator

from meruit.documents.csv_table import write_csv
from meruit.evaluations.export import EvaluationExport, flat_row, row_headings
from meruit.registry import exporters


@exporters.add("csv", ending=".csv")
def write_cases_csv(exported: EvaluationExport) -> Iterator[bytes]:
    """CSV, one case a row: verdict, claim, a column for each criterion, the work as JSON."""
    ids = exported.criteria.ids
    return write_csv(row_headings(ids), ([*flat_row(case, ids).values()] for case in exported.cases()))
