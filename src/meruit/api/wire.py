"""What every resource's requests and replies are made of."""

from typing import Annotated, Any

import msgspec
from litestar import Response
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from msgspec import Meta

from meruit.api.idempotency import HEADER
from meruit.log.entries import OUR_CONTRACT
from meruit.model.outcome import MAX_LABEL
from meruit.store.database import MAX_PAGE

JSON = "application/json"


def anchor_pattern(pattern: str) -> str:
    """The pattern of a text that fits from end to end; Python's `$` alone also fits before a last line break."""
    return rf"^{pattern}$(?!\n)"


# No control characters: an id goes into logs, file names and terminals.
PRINTABLE = anchor_pattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL, pattern=PRINTABLE)]
Reason = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL, pattern=PRINTABLE, description="Recorded for good.")]
LabelQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=MAX_LABEL, pattern=PRINTABLE, required=False)
]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, required=False, description="How many at most.")]
PageCursor = Annotated[int | None, QueryParameter(ge=1, le=2**53, required=False)]
MAX_VERSION = 2**31 - 1
VersionPath = Annotated[int, PathParameter(ge=1, le=MAX_VERSION)]
VersionQuery = Annotated[int | None, QueryParameter(ge=1, le=MAX_VERSION, required=False)]
Key = Annotated[
    str | None,
    HeaderParameter(
        name=HEADER,
        required=False,
        description="Yours to choose: a second request with it has no second effect, and the first one's answer.",
    ),
]
WORK_ID = anchor_pattern("wrk_[0-9a-f]{34}")
CONTRACT_ID = anchor_pattern(OUR_CONTRACT.pattern)
Amount = Annotated[
    float | int | str,
    Meta(description="At least 0, with at most six decimal places; as a number, or exactly as decimal text."),
]
CRITERIA_NAME = anchor_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CriteriaName = Annotated[str, Meta(pattern=CRITERIA_NAME, description="Letters, digits, dot, dash, underscore.")]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request's body; a field that we do not know is a mistake, not something to ignore."""


# Any: OpenAPI reads the route's own annotation; what is sent is already encoded.
def json_response(content: Any, status_code: int = 200, headers: dict[str, str] | None = None) -> Response[Any]:
    """A reply written once, by the fastest encoder."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, media_type=JSON, status_code=status_code, headers=headers)
