"""Types that the requests and replies of every resource share."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.idempotency import HEADER
from meruit.log.entries import OUR_CONTRACT
from meruit.model.outcome import MAX_LABEL
from meruit.model.task import SLUG
from meruit.store.database import MAX_PAGE
from meruit.web.parameters import HeaderParameter, PathParameter, QueryParameter
from meruit.web.responses import Response

JSON = "application/json"


def anchor_pattern(pattern: str) -> str:
    """Make a pattern match the whole text; Python's `$` alone also matches before a final line break."""
    return rf"^{pattern}$(?!\n)"


# Any: input and output are any JSON objects.
Payload = Annotated[dict[str, Any], Meta(description="A JSON object.")]
CriteriaReference = Annotated[
    str,
    Meta(
        pattern=anchor_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[1-9][0-9]{0,8})?"),
        description="Registered criteria: `name` for the latest version, or `name@version`.",
    ),
]
_SLUG = SLUG.strip("^$")
BENCHMARK_SLUG, BENCHMARK_NAME = anchor_pattern(_SLUG), anchor_pattern(rf"{_SLUG}(@[1-9][0-9]{{0,6}})?")

# No control characters: an id goes into logs, file names and terminals.
PRINTABLE = anchor_pattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL, pattern=PRINTABLE)]
Reason = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL, pattern=PRINTABLE, description="Stored permanently.")]
LabelQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=MAX_LABEL, pattern=PRINTABLE, required=False)
]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, required=False, description="Most entries of one page.")]
PageCursor = Annotated[
    int | None,
    QueryParameter(ge=1, le=2**53, required=False, description="Cursor: pass the `next` value of the previous page."),
]
MAX_VERSION = 2**31 - 1
VersionPath = Annotated[int, PathParameter(ge=1, le=MAX_VERSION)]
VersionQuery = Annotated[int | None, QueryParameter(ge=1, le=MAX_VERSION, required=False)]
Key = Annotated[
    str | None,
    HeaderParameter(
        name=HEADER,
        required=False,
        description="Chosen by the client. A second request with the same key has no effect and gets the first reply.",
    ),
]
WORK_ID = anchor_pattern("wrk_[0-9a-f]{34}")
CONTRACT_ID = anchor_pattern(OUR_CONTRACT.pattern)
Amount = Annotated[
    float | int | str,
    Meta(description="At least 0, at most six decimal places; a number, or a decimal string for exactness."),
]
CRITERIA_NAME = anchor_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CriteriaName = Annotated[str, Meta(pattern=CRITERIA_NAME, description="Letters, digits, dot, dash, underscore.")]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request body; unknown fields are refused."""


# Any: OpenAPI reads the annotation of the route; the content is already encoded.
def json_response(content: Any, status_code: int = 200, headers: dict[str, str] | None = None) -> Response[Any]:
    """Build a JSON reply from a value, or from bytes that are JSON already."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, media_type=JSON, status_code=status_code, headers=headers)


# Any: a document of any JSON.
def to_document(data: Body) -> dict[str, Any]:
    """A body as the parsers of files take it. JSON in it is not copied: other threads wait while a large one is."""
    plain = {name: value for name in data.__struct_fields__ if _is_json(value := getattr(data, name))}
    return {**msgspec.to_builtins(msgspec.structs.replace(data, **dict.fromkeys(plain))), **plain}


# Any: the value of a field.
def _is_json(value: Any) -> bool:
    # What is empty may be a default, which is left out.
    return bool(value) and (type(value) is dict or (type(value) is list and all(type(one) is dict for one in value)))
