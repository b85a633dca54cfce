"""`/v1/evaluations/ID/export`: an evaluation as a file of another tool, streamed."""

from typing import Annotated

from meruit.api.auth import READERS
from meruit.api.file_stream import OpenFile, join_pieces, read_first, stream_file
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
    exporter = _find_format(format_name)
    reader = Evaluations(request.service.store, request.caller.tenant)

    def begin() -> OpenFile:
        found = reader.find(evaluation)
        pieces = read_first(join_pieces(exporter.write(EvaluationExport(reader, found))))
        return OpenFile(f"{found.id}{exporter.ending}", FILE, pieces)

    return await stream_file(request, begin)


def _find_format(name: str) -> Exporter:
    try:
        return exporters.get(name)
    except UnknownName as problem:
        raise invalid_field("format", str(problem)) from None
