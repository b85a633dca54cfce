"""Free a large document in steps: freeing a million lists at once would stop every thread meanwhile."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from meruit.api.bodies.gc import GcPause

GC_PAUSE = "gc_pause"
"""The name of a request's pause of the collector in the state of its ASGI scope."""
_FREEING = ThreadPoolExecutor(1, thread_name_prefix="meruit-freeing")


# Any: documents hold values of any type.
def dismantle_soon(documents: Iterable[Any]) -> None:
    """Dismantle documents in a thread of their own."""
    _FREEING.submit(dismantle, documents)


# Any: an application may put any value into the state of an ASGI scope.
def end_pause(state: dict[str, Any]) -> None:
    """Let the collector run again after the documents of a request that ended are dismantled."""
    pause = state.pop(GC_PAUSE, None)
    if isinstance(pause, GcPause):
        _FREEING.submit(pause.release)


# Any: documents hold values of any type.
def dismantle(documents: Iterable[Any]) -> None:
    """Empty the lists and objects of documents that are not used any more, one container at a time."""
    waiting = [one for one in documents if type(one) is dict or type(one) is list]
    while waiting:
        container = waiting.pop()
        waiting += [
            inner
            for inner in (container.values() if type(container) is dict else container)
            if type(inner) is dict or type(inner) is list
        ]
        container.clear()
