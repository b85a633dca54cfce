"""Stylesheet and scripts, with the digest of their content in their address, so that a browser keeps them for good."""

import gzip
from functools import cache
from hashlib import sha256
from importlib.resources import files

import msgspec

from meruit.api.auth import PUBLIC
from meruit.api.query_params import ANY_PARAMETERS
from meruit.console.page import PageRequest
from meruit.console.session import OPEN_TO_ALL
from meruit.errors import ApiProblem
from meruit.web.parameters import FromPath
from meruit.web.responses import Response
from meruit.web.routing import get

_FILES = {
    "meruit.css": ("meruit.pages", "static/meruit.css", "text/css"),
    "console.js": ("meruit.console", "static/console.js", "text/javascript"),
    "audit.js": ("meruit.console", "static/audit.js", "text/javascript"),
    "htmx.js": ("meruit.console", "static/htmx-2.0.11.min.js", "text/javascript"),
    "icon.svg": ("meruit.console", "static/icon.svg", "image/svg+xml"),
}
FOREVER = "public, max-age=31536000, immutable"


class StaticFile(msgspec.Struct, frozen=True):
    """A file that pages load."""

    content: bytes
    packed: bytes
    digest: str
    media_type: str


@cache
def load(name: str) -> StaticFile:
    """A file by its name; raises KeyError."""
    package, path, media_type = _FILES[name]
    content = files(package).joinpath(*path.split("/")).read_bytes()
    return StaticFile(
        content=content,
        packed=gzip.compress(content, mtime=0),
        digest=sha256(content).hexdigest()[:16],
        media_type=media_type,
    )


def static_path(name: str) -> str:
    """The address of a file."""
    return f"/static/{load(name).digest}/{name}"


@get(
    "/static/{digest:str}/{name:str}",
    opt={PUBLIC: True, ANY_PARAMETERS: True, OPEN_TO_ALL: True},
    include_in_schema=False,
)
async def read_static(request: PageRequest, digest: FromPath[str], name: FromPath[str]) -> Response[bytes]:
    """Send a file; an address of another version of it is not found."""
    if name not in _FILES or load(name).digest != digest:
        raise ApiProblem(404, "not_found", "this version does not have this file; reload the page")
    file = load(name)
    headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
    content = file.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = file.packed, "gzip"
    return Response(content, headers=headers, media_type=file.media_type)
