"""Home: who needs you, how the last 30 days went, what runs now."""

from typing import Any

from litestar import Response

from meruit.console.live import Live
from meruit.console.page import NavEntry, PageRequest, page


@page("/", nav=NavEntry("Home", "Home", keys="h", order=0))
async def show_home(request: PageRequest) -> Response[Any]:
    """Show what needs attention."""
    return request.show("home.html", live=Live())
