"""Parquet: the columns of the CSV with their types, for data tools."""

from collections.abc import Iterator
from itertools import islice
from tempfile import TemporaryFile

from meruit.evaluations.export import EvaluationExport, flat_row, row_headings
from meruit.registry import exporters

GROUP_ROWS = 4_096
"""Rows that are held at a time."""
CHUNK_BYTES = 1 << 20
NUMBERS = {"repeat": "int64", "score": "float64", "latency_ms": "float64", "cost": "float64", "success": "bool_"}


@exporters.add("parquet", ending=".parquet")
def write_parquet(exported: EvaluationExport) -> Iterator[bytes]:
    """Parquet with the columns of the CSV; needs the extra `bulk`."""
    # A large package that other formats do not need.
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types of its own
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    ids = exported.criteria.ids
    headings = row_headings(ids)
    schema = pa.schema([(name, getattr(pa, NUMBERS.get(name, "string"))()) for name in headings])
    cases = exported.cases()
    with TemporaryFile() as file:
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while rows := [flat_row(case, ids) for case in islice(cases, GROUP_ROWS)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
