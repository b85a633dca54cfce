"""Tests in forked processes: collected once, then each worker is given the next file of the list until none is left.

Collecting takes half a minute of a processor, and every worker of xdist does it again. Use `--workers 3` in place of
xdist's `-n 3`. A worker that dies fails the test it was running; another one takes over what it had left.

Tests that wait more than they compute come first, with more workers than later (`--more 3`): conftest.py marks them.
"""

import atexit
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

SHARE = 4
"""Towards the end, a worker is given at most this fraction of an equal share of what is left."""
DEATHS_MAX = 20
HEARTBEAT_S = 1.0
WAITS = pytest.StashKey[bool]()
"""Marks tests that wait for processes and servers most of the time; they come first."""
ALONE = pytest.StashKey[bool]()
"""Marks tests that share nothing with the others of their file: they need not run in the same worker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("forking")
    group.addoption("--workers", type=int, default=0, help="run tests in so many forked processes")
    group.addoption("--more", type=int, default=0, help="so many more while tests are left that wait most of the time")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in workers."""
    config = session.config
    if config.option.workers < 1 or config.option.collectonly or not session.items:
        return None
    if session.testsfailed and not config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors while the tests were collected")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--workers and xdist's -n exclude each other")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        raise pytest.UsageError(f"a module that tests import starts threads, which no fork inherits: {others}")
    Run(session).to_the_end()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Worker:
    """A forked process, and the tests it has not ended yet."""

    def __init__(self, number: int, session: pytest.Session) -> None:
        self.number = number
        self.left: deque[int] = deque()
        self.leaves = False
        """Whether it was given nothing more, and ends after what it has left."""
        self.line, its_line = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            self.line.close()
            _work(session, its_line, number)
        its_line.close()

    def receive(self) -> tuple[str, Any]:
        """What it has to say."""
        try:
            said: tuple[str, Any] = self.line.recv()
        except (EOFError, ConnectionError):
            return "broken", ""
        return said

    def is_dead(self) -> bool:
        """Whether it ended without a word: what it forked may hold its line open."""
        state = os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return state is not None and not self.line.poll()

    def end(self) -> str:
        """How it ended."""
        self.line.close()
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """End it now."""
        os.kill(self.process, signal.SIGKILL)
        self.end()


class Run:
    """The parent's part: it hands out tests and reports what came of them."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.hook = session.config.hook
        self.waiting = deque(range(len(session.items)))
        self.workers: dict[Connection, Worker] = {}
        self.numbers = count()
        self.deaths = 0
        # Results of several files come in turns: no line for each.
        reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False

    def to_the_end(self) -> None:
        """Until every test was run or the session is to stop."""
        # Every worker makes its folders in this one, which is removed at the end.
        self.session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # pytest has no other way
        try:
            for _ in range(min(self._room(), len(self.waiting))):
                self._start()
            while self.workers:
                for line in wait(list(self.workers), HEARTBEAT_S):
                    assert isinstance(line, Connection)
                    self._hear(self.workers[line])
                for worker in [one for one in self.workers.values() if one.is_dead()]:
                    self._bury(worker, "")
        finally:
            for worker in self.workers.values():
                worker.kill()

    def _start(self) -> None:
        worker = Worker(next(self.numbers), self.session)
        self.workers[worker.line] = worker

    def _hear(self, worker: Worker) -> None:
        kind, content = worker.receive()
        match kind:
            case "ask":
                worker.line.send(self._next(worker))
            case "begin":
                item = self.session.items[worker.left[0]]
                self.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            case "report":
                report = self.hook.pytest_report_from_serializable(config=self.session.config, data=content)
                self.hook.pytest_runtest_logreport(report=report)
            case "warning":
                message, when, nodeid, location = content
                self.hook.pytest_warning_recorded.call_historic(
                    kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
                )
            case "end":
                item = self.session.items[worker.left.popleft()]
                self.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case "over":
                del self.workers[worker.line]
                worker.end()
            case _:
                self._bury(worker, content)

    def _room(self) -> int:
        """How many workers there may be now."""
        option = self.session.config.option
        return int(option.workers + (option.more if self._is_next(WAITS) else 0))

    def _is_next(self, mark: pytest.StashKey[bool]) -> bool:
        """Whether the next test is marked so."""
        return bool(self.waiting) and self.session.items[self.waiting[0]].stash.get(mark, False)

    def _next(self, worker: Worker) -> list[int]:
        """The tests of one file that come next, and none when no more are to be run or there are too many workers."""
        if self.session.shouldfail or self.session.shouldstop:
            self.waiting.clear()
        if sum(not one.leaves for one in self.workers.values()) > self._room():
            worker.leaves = True
            return []
        items = self.session.items
        most = max(1, len(self.waiting) // (SHARE * self.session.config.option.workers))
        if self._is_next(ALONE):
            most = 1
        given: list[int] = []
        while self.waiting and len(given) < most:
            if given and items[self.waiting[0]].path != items[given[0]].path:
                break
            given.append(self.waiting.popleft())
        worker.left.extend(given)
        return given

    def _bury(self, worker: Worker, why: str) -> None:
        """Fail the test that a dead worker was running, and have another take over the rest."""
        del self.workers[worker.line]
        ended = worker.end()
        self.deaths += 1
        if worker.left:
            item = self.session.items[worker.left.popleft()]
            said = f"the process that ran {item.nodeid} ended by {ended}\n{why}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
            self.hook.pytest_runtest_logreport(report=report)
        else:
            self.session.shouldfail = f"a worker ended by {ended} between two tests\n{why}"
        self.waiting.extendleft(reversed(worker.left))
        if self.deaths > DEATHS_MAX:
            self.session.shouldstop = f"{self.deaths} worker processes died"
            self.waiting.clear()
        elif self.waiting:
            self._start()


class Forward:
    """A worker's reports go to the parent."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self.config = config
        self.line = line

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.line.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        content = (warning_message, when, nodeid, location)
        try:
            pickle.dumps(content)
        except Exception:  # noqa: BLE001 - a warning may hold anything
            warning_message.message = str(warning_message.message)
            warning_message.category, warning_message.source = UserWarning, None
        self.line.send(("warning", content))


def _work(session: pytest.Session, line: Connection, number: int) -> NoReturn:
    """The life of a worker."""
    code = 1
    try:
        config = session.config
        _settle(session, number)
        config.pluginmanager.register(Forward(config, line))
        following = _given(session.items, line)
        item = next(following, None)
        while item is not None:
            line.send(("begin", None))
            # Asked for before the last of a file is run: which fixtures end with it depends on what follows.
            then = next(following, None)
            config.hook.pytest_runtest_protocol(item=item, nextitem=then)
            line.send(("end", None))
            item = then
        probes = config.pluginmanager.getplugin("tests.probes")
        if probes is not None:
            probes.keep_reached(f"worker-{number}")
        line.send(("over", None))
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001 - the parent reports it
        line.send(("broken", traceback.format_exc()))
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _settle(session: pytest.Session, number: int) -> None:
    """Give a worker streams and folders of its own, and leave reporting to the parent."""
    # The parent does at its end what it has registered for it.
    atexit._clear()
    plugins = session.config.pluginmanager
    # A test needs these two; all others that hear of reports print or write them.
    needed = (session, plugins.getplugin("logging-plugin"))
    for plugin in plugins.get_plugins():
        if plugin not in needed and hasattr(plugin, "pytest_runtest_logreport"):
            plugins.unregister(plugin)
    capture: Any = plugins.getplugin("capturemanager")
    if capture is not None and capture.is_globally_capturing():
        capture.read_global_capture()
        capture.stop_global_capturing()
        capture.start_global_capturing()
    factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]  # as above
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir(mode=0o700)


def _given(items: Sequence[pytest.Item], line: Connection) -> Iterator[pytest.Item]:
    while True:
        line.send(("ask", None))
        numbers = line.recv()
        if not numbers:
            return
        for number in numbers:
            yield items[number]
