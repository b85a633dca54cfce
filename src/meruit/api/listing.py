"""What all lists share over HTTP: a span of time, and CSV or XLSX instead of JSON."""

import asyncio
import io
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode

from meruit.api.request import ApiRequest
from meruit.documents.csv_table import CSV, Cell, write_csv
from meruit.documents.xlsx_table import XLSX, write_xlsx
from meruit.errors import ApiProblem, Problem
from meruit.model.time import to_rfc3339
from meruit.web.parameters import QueryParameter
from meruit.web.responses import Response

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)


class ListFormat(StrEnum):
    """The format of a list."""

    JSON = "json"
    CSV = "csv"
    XLSX = "xlsx"


SPREADSHEETS = {"text/csv": ListFormat.CSV, XLSX: ListFormat.XLSX}
"""Formats of lists by media type, beside JSON."""
# A string, because msgspec would accept times without a zone, which are ambiguous.
SinceQuery = Annotated[
    str | None, QueryParameter(name="since", max_length=40, required=False, description="Start, RFC 3339, inclusive.")
]
UntilQuery = Annotated[
    str | None, QueryParameter(name="until", max_length=40, required=False, description="End, RFC 3339, exclusive.")
]
FormatQuery = Annotated[
    ListFormat | None,
    QueryParameter(
        name="format",
        required=False,
        description="`csv` or `xlsx` for a spreadsheet, as the header `Accept` with the media type also asks for "
        "(default: `json`).",
    ),
]


def parse_moment(field: str, text: str | None) -> datetime | None:
    """Parse a time with its zone; raises ApiProblem that names the field."""
    if text is None:
        return None
    try:
        # `fromisoformat` alone accepts weeks, days without a time and times without a zone.
        if _MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text.upper())
            to_rfc3339(moment)
            return moment
    except (ValueError, OverflowError):
        pass
    raise invalid_field(field, "expected a time with a zone, such as 2026-01-31T00:00:00Z; write a plus sign as %2B")


def parse_span(
    since: str | None, until: str | None, names: tuple[str, str] = ("since", "until")
) -> tuple[datetime | None, datetime | None]:
    """Parse a span of time; raises ApiProblem for one that ends before it begins."""
    begin, end = parse_moment(names[0], since), parse_moment(names[1], until)
    if begin is not None and end is not None and begin > end:
        raise invalid_field(names[0], f"must not be after `{names[1]}`")
    return begin, end


def invalid_field(field: str, message: str) -> ApiProblem:
    """The problem of one query parameter."""
    problem = Problem(field, message)
    return ApiProblem(400, "invalid", str(problem), errors=[problem])


def wants_table(request: ApiRequest, asked: ListFormat | None) -> ListFormat | None:
    """The format of the table that the caller asks for, by the parameter or else by the header; None for JSON."""
    if asked is not None:
        return None if asked is ListFormat.JSON else asked
    accepted = (part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(","))
    return next((SPREADSHEETS[one] for one in accepted if one in SPREADSHEETS), None)


def next_page(before: int | None) -> tuple[str, str] | None:
    """The parameter that leads to the next page of a list."""
    return None if before is None else ("before", str(before))


# Any: OpenAPI reads the annotation of the route; the content is already encoded.
async def table_response(
    request: ApiRequest,
    kind: ListFormat,
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    following: tuple[str, str] | None = None,
) -> Response[Any]:
    """Build a CSV or XLSX reply; `following` is the parameter and the value that lead to the next page."""
    headers = {"Vary": "Accept"}
    if following is not None:
        query = [(name, value) for name, value in request.query_params.multi_items() if name != following[0]]
        headers["Link"] = f'<{request.scope["path"]}?{urlencode([*query, following])}>; rel="next"'
    # In a thread: a long list takes a second to write.
    if kind is ListFormat.CSV:
        written = await asyncio.to_thread(lambda: b"".join(write_csv(headings, rows)))
        return Response(written, media_type=CSV, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{request.scope["path"].rpartition("/")[2]}.xlsx"'
    return Response(await asyncio.to_thread(_encode_xlsx, headings, rows), media_type=XLSX, headers=headers)


def _encode_xlsx(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    file = io.BytesIO()
    write_xlsx(file, headings, rows)
    return file.getvalue()
