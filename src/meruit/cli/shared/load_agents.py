"""Load the agents that a command names, and run a worker for them in this process."""

import asyncio
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from meruit.documents.sanitize import describe
from meruit.errors import AgentError, MeruitError
from meruit.gate.definition import AgentDefinition
from meruit.gate.runner.engine import AgentRoster, find_agents
from meruit.gate.runner.local import hold_worker_lock
from meruit.gate.runner.worker import CONCURRENCY, run_worker
from meruit.gate.team import Team
from meruit.store.store import Store
from meruit.suggestions import nearest

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NAMED = re.compile(r"(.*?\.py|[\w.]+)(?::(.*))?", re.DOTALL)
"""A file or a module, and perhaps a name in it."""
WANTED = "an Agent, a Team, or a list or dict of them"

Agents = list[AgentDefinition | Team]


def load_roster(several: Iterable[str]) -> AgentRoster:
    """Load all named agents; raises AgentError."""
    return AgentRoster(agent for named in several for agent in load_agents(named))


def load_agents(named: str) -> Agents:
    """Load the agents of `module:name`, `file.py:name` or a whole module; raises AgentError.

    The name is that of a variable of the module, or of an agent in it.
    """
    place, name = split_agents(named)
    if not place:
        raise AgentError(f"{named!r} does not name a module; write MODULE:NAME or FILE.py:NAME")
    module = _import_agents_module(place)
    if not name:
        found = find_agents({str(id(one)): one for one in vars(module).values()})
        if not found:
            raise AgentError(f"{place} holds no agent; name {WANTED}, as {place}:NAME")
        return found
    if hasattr(module, name):
        return _agents_in(named, getattr(module, name))
    variables = _agents_by_variable(module)
    by_name = {id(one): one for several in variables.values() for one in several if one.name == name}
    if len(by_name) > 1:
        raise AgentError(f"{place} holds {len(by_name)} agents named {name!r}; rename one")
    if not by_name:
        known = dict.fromkeys([*variables, *(one.name for several in variables.values() for one in several)])
        raise AgentError(f"{place} has no {name!r}{nearest(name, known)}")
    return [*by_name.values()]


def split_agents(named: str) -> tuple[str, str]:
    """Split MODULE:NAME; the name of an agent may have a colon too."""
    if match := _NAMED.fullmatch(named):
        return match[1], match[2] or ""
    place, _, name = named.rpartition(":") if ":" in named else (named, "", "")
    return place, name


def _agents_by_variable(module: ModuleType) -> dict[str, Agents]:
    """The agents of a module by the variable that holds them; other variables are left out."""
    found: dict[str, Agents] = {}
    for variable, thing in vars(module).items():
        held: list[Any] = [thing]
        if isinstance(thing, Mapping):
            held = [*thing.values()]
        elif isinstance(thing, list | tuple | set):
            held = [*thing]
        if held and all(isinstance(one, AgentDefinition | Team) for one in held):
            found[variable] = held
    return found


# Any: the author's module may hold any value under that name.
def _agents_in(named: str, thing: Any) -> Agents:
    match thing:
        case AgentDefinition() | Team():
            return [thing]
        case Mapping():
            found = [*thing.values()]
        case list() | tuple() | set():
            found = [*thing]
        case _:
            raise AgentError(f"{named} is a {type(thing).__name__}; name {WANTED}")
    wrong = [one for one in found if not isinstance(one, AgentDefinition | Team)]
    if wrong:
        raise AgentError(f"{named} holds a {type(wrong[0]).__name__}; name {WANTED}")
    return found


def _import_agents_module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    # Python remembers the files of a folder, and a module may be newer than that.
    invalidate_caches()
    try:
        return _from_file(Path(place)) if place.endswith(".py") or os.sep in place else import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{place}.".startswith(f"{missing.name}."):
            raise AgentError(f"{place} cannot be imported: {describe(missing)}{_author_frame(missing)}") from None
        files = [file.stem for file in Path.cwd().glob("*.py")]
        raise AgentError(f"no module is named {place!r}, here or installed{nearest(place, files)}") from None
    except MeruitError as refused:
        raise AgentError(f"{place}: {refused}{_author_frame(refused)}") from None
    except SystemExit as leaving:
        raise AgentError(
            f"{place} cannot be imported: it calls sys.exit({leaving.code!r}){_author_frame(leaving)}; "
            "guard the call with `if __name__ == '__main__'`"
        ) from None
    except Exception as crash:  # noqa: BLE001 - whatever an author's module raises is theirs to read
        raise AgentError(f"{place} cannot be imported: {describe(crash)}{_author_frame(crash)}") from None


def _from_file(file: Path) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise AgentError("the file does not exist")
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    # Its folder is on the import path, as if the file were run; a module name that is in use is not replaced.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = file.stem if known is None else f"{file.stem} of {file.parent}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise AgentError("not a Python file")
    module = module_from_spec(spec)
    # Text annotations are resolved in sys.modules.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _author_frame(crash: BaseException) -> str:
    """The last frame of the traceback in the author's code."""
    if isinstance(crash, SyntaxError):
        return ""
    ours = str(Path(__file__).parents[2])
    frames = [one for one in traceback.extract_tb(crash.__traceback__) if not one.filename.startswith((ours, "<"))]
    last = next((one for one in reversed(frames) if "importlib" not in one.filename), None)
    return "" if last is None else f" ({last.filename}, line {last.lineno})"


@contextmanager
def stop_on_signals(stopping: asyncio.Event) -> Iterator[None]:
    """Let the first SIGTERM or Ctrl-C end the work in order, and the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def remove_handlers() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    def stop() -> None:
        remove_handlers()
        stopping.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        remove_handlers()


def check_no_other_worker(store: Store) -> None:
    """Raise WorkerRefused if another worker has the SQLite file."""
    if store.database.location.url is None:
        with hold_worker_lock(store.database.location.folder):
            pass


class WorkerThread:
    """A worker beside a server, in its own thread and event loop, so that a blocking agent delays no request."""

    def __init__(
        self, store: Store, roster: AgentRoster, *, failed: Callable[[], None], concurrency: int = CONCURRENCY
    ) -> None:
        self._store, self._roster, self._failed, self._concurrency = store, roster, failed, concurrency
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meruit-worker", daemon=True)
        self._problem: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Release the runs and stop; raises the error that ended the worker."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as problem:  # noqa: BLE001 - `stop` raises it
            self._problem = problem
            self._failed()

    async def _work(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await run_worker(self._store, self._roster, concurrency=self._concurrency, stopping=self._stopping)
