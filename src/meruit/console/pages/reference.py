"""The API reference, rendered from the service's own OpenAPI document: no script and no other site is needed."""

import asyncio
import json
from typing import Any

from meruit.api.openapi import build_document
from meruit.console.page import ANYONE, NavEntry, PageRequest, page
from meruit.console.reference_operations import ApiOperation, list_operations
from meruit.errors import NotFound
from meruit.web.parameters import FromPath
from meruit.web.responses import Response


@page("/reference", roles=ANYONE, nav=NavEntry("Service", "API reference", keys="p", order=50))
async def show_reference(request: PageRequest) -> Response[Any]:
    """List every operation of the API by subject."""
    operations = await _operations(request)
    by_tag: dict[str, list[ApiOperation]] = {}
    for one in operations:
        by_tag.setdefault(one.tag, []).append(one)
    return request.show("reference.html", by_tag=by_tag, total=len(operations))


@page("/reference/{tag:str}", roles=ANYONE)
async def show_subject(request: PageRequest, tag: FromPath[str]) -> Response[Any]:
    """Show the operations of one subject: parameters, an example to send, replies."""
    operations = [one for one in await _operations(request) if one.tag == tag]
    if not operations:
        raise NotFound(f"the API has no subject {tag!r}")
    return request.show("reference-subject.html", tag=tag, operations=operations, as_json=_as_json)


@page("/openapi.json", roles=ANYONE)
async def read_document(request: PageRequest) -> Response[Any]:
    """Download the OpenAPI document; the API's own address takes a key, which a browser does not send."""
    document = await asyncio.to_thread(build_document, request.app)
    return Response(document, media_type="application/json")


async def _operations(request: PageRequest) -> list[ApiOperation]:
    document = await asyncio.to_thread(build_document, request.app)
    return list_operations(document)


# Any: JSON.
def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
