"""Search: an id leads straight to its page, other words to what has them in its name."""

import asyncio
import re
from typing import Any
from urllib.parse import quote

from meruit.benchmarks import records as benchmarks
from meruit.console.page import PageRequest, page
from meruit.console.query import Query
from meruit.contracts import records as contracts
from meruit.contracts.records import ContractFilter
from meruit.errors import NotFound
from meruit.evaluations.reader import EvaluationFilter, Evaluations
from meruit.gate import records as agent_runs
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import OutcomeFilter
from meruit.review.service import Reviews
from meruit.usage import records as usage
from meruit.web.responses import Response

_PLACES = {
    "out": "/outcomes/{}",
    "ev": "/evaluations/{}",
    "con": "/contracts/{}",
    "run": "/agent-runs/{}",
    "trn": "/task-runs/{}",
    "brn": "/benchmark-runs/{}",
    "rev": "/reviews/{}",
    "whk": "/webhooks/{}",
}
"""Where each kind of id leads."""
_ID = re.compile(r"(?P<kind>[a-z]{2,3})_[0-9a-f]{34}")
MOST = 10
"""Results of each kind."""
NEWEST = 200
"""Reviews and benchmarks whose names are looked at: the newest."""

Found = list[tuple[str, str, str]]
"""Kind, address and name of each result."""


@page("/search")
async def search(request: PageRequest) -> Response[Any]:
    """Find what a reader names."""
    asked = Query.of(request).get("q").strip()
    named = _ID.fullmatch(asked)
    if named is not None and named["kind"] in _PLACES:
        return request.go_to(_PLACES[named["kind"]].format(asked))
    found = await asyncio.to_thread(_find_names, request, asked) if asked else []
    exact = [address for _, address, name in found if name == asked]
    if len(exact) == 1 or len(found) == 1:
        return request.go_to(exact[0] if exact else found[0][1])
    return request.show("search.html", asked=asked, found=found)


def _find_names(request: PageRequest, asked: str) -> Found:
    """What has this text in its name, and the lists of an agent or consumer of exactly this name."""
    store, tenant = request.service.store, request.caller.tenant
    text = asked.casefold()
    named = Evaluations(store, tenant).page(EvaluationFilter(text=asked), limit=MOST)
    found: Found = [("Evaluation", f"/evaluations/{one.id}", one.name) for one in named]
    reviews = [one for one in Reviews(store, tenant).page(limit=NEWEST) if text in one.name.casefold()]
    found += [("Review", f"/reviews/{quote(one.id)}", one.name) for one in reviews[:MOST]]
    with store.database.reading() as connection:
        published = benchmarks.page_published(connection, tenant, limit=NEWEST)
        slugs = dict.fromkeys(one.benchmark for one in published if text in f"{one.benchmark} {one.title}".casefold())
        found += [("Benchmark", f"/benchmarks/{quote(slug)}", slug) for slug in [*slugs][:MOST]]
        try:
            run = usage.find(connection, tenant, asked)
            found.append(("Usage run", f"/usage/{quote(run.run.id, safe='')}", run.run.id))
        except NotFound:
            pass
        scope, name = request.caller.scope, quote(asked, safe="")
        if outcomes.count_up_to(connection, scope, OutcomeFilter(agent_id=asked), 1):
            found.append(("Agent", f"/outcomes?agent={name}", f"outcomes of {asked}"))
        if contracts.page(connection, scope, wanted=ContractFilter(agent_id=asked), limit=1).entries:
            found.append(("Agent", f"/contracts?agent_id={name}", f"contracts of {asked}"))
        if contracts.page(connection, scope, wanted=ContractFilter(consumer_id=asked), limit=1).entries:
            found.append(("Consumer", f"/contracts?consumer_id={name}", f"contracts for {asked}"))
        if agent_runs.page(connection, tenant, agent=asked, limit=1):
            found.append(("Agent", f"/agent-runs?agent={name}", f"agent runs of {asked}"))
    return found
