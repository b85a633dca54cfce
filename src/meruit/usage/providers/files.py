"""Usage in files of a simple form: a row for each call or span of time, in JSON, JSON lines or CSV."""

import csv
import io
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from decimal import Decimal

# Any: a file may hold any value.
from typing import Any

import msgspec

from meruit.errors import FetchError, FetchFailed
from meruit.model.decoding import convert_to, decode_json
from meruit.model.metering import AttributionKind, CostRow, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, Moment, Tokens
from meruit.registry import UsageProvider, usage_sources
from meruit.usage.providers.support.file_reader import UsageText, read_texts
from meruit.usage.providers.support.http_client import MOST_MONEY, UsageSourceContext
from meruit.usage.providers.support.paging import DAY

ENDINGS = (".json", ".jsonl", ".ndjson", ".csv")
_COUNTS = ("input", "output", "requests", "cached", "cache_write", "reasoning")


class _FileRow(Record, frozen=True, forbid_unknown_fields=True):
    """One row of a file."""

    start: Moment
    input: Count
    output: Count
    end: Moment | None = None
    """None for a call."""
    requests: Count | None = None
    cached: Count | None = None
    cache_write: Count | None = None
    reasoning: Count | None = None
    model: str = ""
    key: str = ""
    project: str = ""
    session: str = ""
    request_id: str = ""
    cost: Decimal | None = None


class _FileDocument(Record, frozen=True, forbid_unknown_fields=True):
    """A file with rows and more."""

    rows: tuple[_FileRow, ...] = ()
    costs: tuple[CostRow, ...] = ()
    at: Moment | None = None
    """When the rows were counted."""
    watermark: Moment | None = None
    """The time up to which they were counted."""


class _FileContents(msgspec.Struct, frozen=True):
    """The contents of a file."""

    rows: list[UsageRow]
    costs: Sequence[CostRow] = ()
    at: datetime | None = None
    watermark: datetime | None = None


@usage_sources.add("files", is_file=True)
class UsageFiles:
    """Rows from your own JSON, JSON lines or CSV files."""

    kinds = frozenset(AttributionKind)
    bucket = 0 * DAY
    longest = 3650 * DAY

    def __init__(self, _provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        self._file = account.file or ""
        self._clock = context.clock

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        """Yield the rows that begin in a window, a page for each file; raises FetchFailed."""
        for text, contents in await self._read_all():
            found = tuple(row for row in contents.rows if window.start <= row.start < window.end)
            yield Page(contents.at or self._clock(), found, watermark=contents.watermark, raw=text.content)

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Yield the rows of these calls; raises FetchFailed."""
        wanted = frozenset(ids)
        for text, contents in await self._read_all():
            found = tuple(row for row in contents.rows if row.request_id in wanted)
            yield Page(contents.at or self._clock(), found, watermark=contents.watermark, raw=text.content)

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        """Yield the costs that begin in a window; raises FetchFailed."""
        for text, contents in await self._read_all():
            found = tuple(row for row in contents.costs if window.start <= row.start < window.end)
            yield Page(contents.at or self._clock(), costs=found, watermark=contents.watermark, raw=text.content)

    async def _read_all(self) -> list[tuple[UsageText, _FileContents]]:
        texts = await read_texts(self._file, ENDINGS, self._clock)
        try:
            return [(text, _parse_file(text)) for text in texts]
        except FetchFailed as failure:
            failure.at = self._clock()
            raise


def _parse_file(text: UsageText) -> _FileContents:
    """Parse a file by the ending of its name."""
    if text.name.endswith(".csv"):
        return _FileContents([_to_usage_row(place, row) for place, row in _read_csv(text)])
    if text.name.endswith((".jsonl", ".ndjson")):
        several = [(f"{text.name}, line {number}", line) for number, line in text.lines()]
        return _FileContents([_to_usage_row(place, _decode(place, line, _FileRow)) for place, line in several])
    whole = _decode(text.name, text.content, _FileDocument | tuple[_FileRow, ...])
    if isinstance(whole, tuple):
        whole = _FileDocument(whole)
    for cost in whole.costs:
        _check_amount(text.name, cost.amount)
    rows = [_to_usage_row(f"{text.name}, row {number}", row) for number, row in enumerate(whole.rows, start=1)]
    return _FileContents(rows=rows, costs=whole.costs, at=whole.at, watermark=whole.watermark)


def _decode(place: str, content: bytes, kind: Any) -> Any:
    try:
        return decode_json(content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        kind_of_failure = FetchError.PARTIAL_PAGE if "truncated" in str(problem) else FetchError.MALFORMED
        raise FetchFailed(kind_of_failure, f"{place}: {problem}; {_ADVICE}") from None


def _read_csv(text: UsageText) -> Iterator[tuple[str, _FileRow]]:
    try:
        written = io.StringIO(text.content.decode("utf-8-sig"), newline="")
        table = csv.DictReader(written, strict=True)
        for cells in table:
            place = f"{text.name}, line {table.line_num}"
            yield place, _parse_cells(place, cells)
    except (csv.Error, UnicodeDecodeError) as problem:
        raise FetchFailed(FetchError.MALFORMED, f"{text.name}: not valid CSV in UTF-8: {problem}; {_ADVICE}") from None


def _parse_cells(place: str, cells: dict[Any, Any]) -> _FileRow:
    """Parse a line of a table; an empty cell is a missing value."""
    if None in cells or None in cells.values():
        raise FetchFailed(FetchError.MALFORMED, f"{place}: the cells do not match the header line; {_ADVICE}")
    values = {name.strip(): cell.strip() for name, cell in cells.items() if cell.strip()}
    try:
        # All cells of a table are texts; counts are converted.
        return convert_to({name: _number(name, cell) for name, cell in values.items()}, _FileRow)
    except msgspec.ValidationError as problem:
        raise FetchFailed(FetchError.MALFORMED, f"{place}: {problem}; {_ADVICE}") from None


def _number(name: str, cell: str) -> int | str:
    return int(cell[:20]) if name in _COUNTS and cell.isascii() and cell.isdigit() else cell


def _to_usage_row(place: str, row: _FileRow) -> UsageRow:
    end = row.start if row.end is None else row.end
    if end < row.start:
        raise FetchFailed(FetchError.MALFORMED, f"{place}: the row ends before it starts; {_ADVICE}")
    if row.cost is not None:
        _check_amount(place, row.cost)
    tokens = Tokens(*(getattr(row, name) for name in _COUNTS))
    attribution_key = (row.key, row.project, row.session, row.request_id)
    return UsageRow(row.start, end, tokens, row.model, *attribution_key, row.cost)


def _check_amount(place: str, amount: Decimal) -> None:
    if not amount.is_finite() or abs(amount) > MOST_MONEY:
        raise FetchFailed(FetchError.MALFORMED, f"{place}: the amount {str(amount)[:40]} is out of range")


_ADVICE = (
    "a row has start (with its time zone), input and output, and may have end, requests, cached, cache_write, "
    "reasoning, model, key, project, session, request_id and cost"
)
