"""Files that are sent while they are made: lists in full and exports, each by a thread of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from tempfile import TemporaryFile
from threading import Event
from typing import TypeVar

from meruit.api.listing import ListFormat
from meruit.api.request import ApiRequest
from meruit.documents.csv_table import CSV, Cell, write_csv
from meruit.documents.xlsx_table import XLSX, write_xlsx
from meruit.web.responses import Stream

PIECE_BYTES = 1 << 16
"""Files are made line by line; so much goes over the wire at once."""
MAX_OPEN_EXPORTS = 4
"""Most files that one key may have under way: each has a thread and a reader of the database."""
MAX_FILE_ROWS = 1_000_000
"""Most rows of a list in one file. Its last line says so where there are more."""

T = TypeVar("T")
Rows = Iterator[Sequence[Cell]]
Pieces = Generator[bytes, None, None]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is being made."""

    name: str
    media_type: str
    pieces: Pieces
    left: Event = field(default_factory=Event)
    """Set when the client has left, or has everything."""


async def stream_table(
    request: ApiRequest, kind: ListFormat, headings: Sequence[str], rows: Callable[[], Rows]
) -> Stream:
    """Send a list as CSV or XLSX while it is read; what the first row raises is still answered with a problem.

    CSV is sent as it is read. XLSX is written to a temporary file first, because its table of contents comes last.
    """

    def begin() -> OpenFile:
        left = Event()
        limited = _limit_rows(read_first(rows()), len(headings), left)
        name = f"{request.scope['path'].rpartition('/')[2]}.{kind}"
        if kind is ListFormat.CSV:
            return OpenFile(name, CSV, join_pieces(write_csv(headings, limited)), left)
        return OpenFile(name, XLSX, _write_xlsx(headings, limited), left)

    return await stream_file(request, begin)


async def stream_file(request: ApiRequest, begin: Callable[[], OpenFile]) -> Stream:
    """Send a file while it is made; an error on the way breaks the connection off."""
    holder = f"export:{request.caller.key_id}"
    request.service.open_streams.open_stream(holder, MAX_OPEN_EXPORTS, request.scope["state"])
    # One thread for all of it: a connection of SQLite belongs to the thread that opened it.
    thread = ThreadPoolExecutor(1, "meruit-export")
    asked = asyncio.get_running_loop().run_in_executor
    try:
        file = await asked(thread, begin)
    except BaseException:
        thread.shutdown(wait=False)
        raise

    async def send() -> AsyncIterator[bytes]:
        try:
            while piece := await asked(thread, next, file.pieces, b""):
                yield piece
        finally:
            file.left.set()
            thread.submit(file.pieces.close)
            thread.shutdown(wait=False)

    headers = {"Content-Disposition": f'attachment; filename="{file.name}"', "Vary": "Accept"}
    return Stream(send(), media_type=file.media_type, headers=headers)


def read_first(made: Iterator[T]) -> Generator[T, None, None]:
    """The same values, of which the first is made at once: what cannot be made at all is answered with a problem."""
    first = [*islice(made, 1)]

    def resume() -> Generator[T, None, None]:
        yield from first
        yield from made

    return resume()


def join_pieces(chunks: Iterable[str | bytes]) -> Pieces:
    """The chunks of a file, small ones together."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk.encode() if isinstance(chunk, str) else chunk
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def _limit_rows(rows: Iterable[Sequence[Cell]], width: int, left: Event) -> Rows:
    """The rows up to MAX_FILE_ROWS; none more once the client has left."""
    for number, row in enumerate(rows):
        if left.is_set():
            return
        if number == MAX_FILE_ROWS:
            # At the end, where a reader who sums or counts the rows looks; no total follows.
            yield (f"cut: more than {MAX_FILE_ROWS:,} rows, choose fewer by a filter", *("",) * (width - 1))
            return
        yield row


def _write_xlsx(headings: Sequence[str], rows: Rows) -> Pieces:
    with TemporaryFile() as file:
        write_xlsx(file, headings, rows)
        file.seek(0)
        while piece := file.read(PIECE_BYTES):
            yield piece
