"""Systems that an agent can act on: a record of patients, a portal, a clearinghouse, a drop for files, a telephone."""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.playground.billing.server import ADMIN_KEY, ProviderServer
    from meruit.playground.host import Host, Playground
    from meruit.playground.seed import read_seed

__all__ = [
    "ADMIN_KEY",
    "Host",
    "Playground",
    "ProviderServer",
    "read_seed",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "playground.billing.server": (
            "ADMIN_KEY",
            "ProviderServer",
        ),
        "playground.host": (
            "Host",
            "Playground",
        ),
        "playground.seed": ("read_seed",),
    },
)
