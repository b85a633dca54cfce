"""Playgrounds: systems that an agent can act on, each over its own protocol.

Read in this order:

- state.py - the content of one playground: items, versions, events, checkpoints
- host.py - serves many playgrounds; descriptors.py - how many the limit of open files allows
- seed.py - the first content of a playground
- environment.py - playgrounds as the environments of task runs
- fhir/, portal/, x12/ - a FHIR server, a payer's portal, a clearinghouse
- mllp.py, sftp.py, files.py, phone_call.py - HL7 over MLLP, files over SFTP, a telephone
- fax.py, inbox.py, cds.py, events.py - a fax machine, secure messages, decision support, the event log
- http.py, asgi.py - what the HTTP systems share
- billing/ - providers that count tokens
"""

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
