"""Free a large document in steps: freeing a million lists at once would stop every thread meanwhile."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from meruit.api.bodies.gc import GcPause

GC_PAUSE = "gc_pause"
"""The name of a request's pause of the collector in the state of its ASGI scope."""
AT_ONCE = 4_096
"""Values that are freed in one call."""
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
        some = _take_some(container)
        if container:
            waiting.append(container)
        waiting += [inner for inner in some if type(inner) is dict or type(inner) is list]


# Any: a list or an object of any values.
def _take_some(container: list[Any] | dict[Any, Any]) -> list[Any]:
    """Remove some values: so few that other threads need not wait."""
    if isinstance(container, list):
        some = container[-AT_ONCE:]
        del container[-AT_ONCE:]
        return some
    return [container.popitem()[1] for _ in range(min(AT_ONCE, len(container)))]
