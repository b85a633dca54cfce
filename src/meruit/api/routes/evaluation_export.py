"""`/v1/evaluations/ID/export`: an evaluation as a file of another tool, streamed."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from meruit.api.auth import READERS
from meruit.api.listing import invalid_field
from meruit.api.request import ApiRequest
from meruit.api.wire.evaluations import EvaluationPath
from meruit.errors import UnknownName
from meruit.evaluations.export import EvaluationExport
from meruit.evaluations.reader import Evaluations
from meruit.registry import Exporter, exporters
from meruit.web.parameters import QueryParameter
from meruit.web.responses import Stream
from meruit.web.routing import ResponseSpec, get

FILE = "application/octet-stream"
PIECE_BYTES = 1 << 16
"""Exporters yield line by line; so much goes over the wire at once."""
MAX_OPEN_EXPORTS = 4
"""Most exports that one key may have under way: each has a thread and a reader of the database."""
FormatQuery = Annotated[
    str,
    QueryParameter(
        name="format",
        pattern="^[a-z0-9][a-z0-9._-]{0,63}$",
        required=False,
        description="`jsonl` (the default), `csv`, `junit` and so on: `meruit eval export --help` lists all.",
    ),
]


@get(
    "/v1/evaluations/{evaluation:str}/export",
    guards=[READERS],
    summary="Export an evaluation",
    tags=["evaluations"],
    media_type=FILE,
    responses={200: ResponseSpec(bytes, media_type=FILE, description="The file, in pieces.")},
)
async def export_evaluation(
    evaluation: EvaluationPath, request: ApiRequest, format_name: FormatQuery = "jsonl"
) -> Stream:
    """Export an evaluation with all its cases as one file. An error on the way breaks the connection off."""
    holder = f"export:{request.caller.key_id}"
    request.service.open_streams.open_stream(holder, MAX_OPEN_EXPORTS, request.scope["state"])
    exporter = _find_format(format_name)
    reader = Evaluations(request.service.store, request.caller.tenant)
    # One thread for all of it: a connection of SQLite belongs to the thread that opened it.
    thread = ThreadPoolExecutor(1, "meruit-export")
    asked = asyncio.get_running_loop().run_in_executor
    try:
        found = await asked(thread, reader.find, evaluation)
        pieces = _in_pieces(exporter.write(EvaluationExport(reader, found)))
        # What cannot be exported at all is still answered with a problem.
        first = await asked(thread, next, pieces, b"")
    except BaseException:
        thread.shutdown(wait=False)
        raise

    async def send() -> AsyncIterator[bytes]:
        try:
            piece = first
            while piece:
                yield piece
                piece = await asked(thread, next, pieces, b"")
        finally:
            thread.submit(pieces.close)
            thread.shutdown(wait=False)

    name = f'attachment; filename="{found.id}{exporter.ending}"'
    return Stream(send(), media_type=FILE, headers={"Content-Disposition": name})


def _find_format(name: str) -> Exporter:
    try:
        return exporters.get(name)
    except UnknownName as problem:
        raise invalid_field("format", str(problem)) from None


def _in_pieces(chunks: Iterable[str | bytes]) -> Generator[bytes, None, None]:
    """The chunks of a file, small ones together."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk.encode() if isinstance(chunk, str) else chunk
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)
