"""Search: an id leads straight to its page, other words to lists."""

import asyncio
import re
from typing import Any

from litestar import Response

from meruit.console.page import PageRequest, page
from meruit.console.query import Query
from meruit.errors import NotFound
from meruit.evaluations.reader import Evaluations

_PLACES = {
    "out": "/outcomes/{}",
    "ev": "/evaluations/{}",
    "con": "/contracts/{}",
    "run": "/agent-runs/{}",
    "trn": "/task-runs/{}",
    "brn": "/benchmark-runs/{}",
    "whk": "/webhooks/{}",
}
"""Where each kind of id leads."""
_ID = re.compile(r"(?P<kind>[a-z]{2,3})_[0-9a-f]{34}")


@page("/search")
async def search(request: PageRequest) -> Response[Any]:
    """Find what a reader names."""
    asked = Query.of(request).get("q").strip()
    named = _ID.fullmatch(asked)
    if named is not None and named["kind"] in _PLACES:
        return request.go_to(_PLACES[named["kind"]].format(asked))
    if asked:
        evaluations = Evaluations(request.service.store, request.caller.tenant)
        try:
            found = await asyncio.to_thread(evaluations.find, asked)
        except NotFound:
            pass
        else:
            return request.go_to(f"/evaluations/{found.id}")
    return request.show("search.html", asked=asked)
