"""The one way to write: callers that come at the same time share a transaction, and are answered when it is durable."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from meruit.errors import (
    BalanceTooLarge,
    KeptCheckpointDamaged,
    KeyNotAdmitted,
    LogRewritten,
    MeruitError,
    StoreError,
    StoreUnavailable,
)
from meruit.log.note import SigningKey
from meruit.model.time import to_micros, to_rfc3339
from meruit.store import tables
from meruit.store.checkpoint_file import CheckpointFile
from meruit.store.database import Database
from meruit.store.key_admission import read_key_chain
from meruit.store.log_guard import AdmittedKeys, LogGuard, read_proven_keys
from meruit.store.lru import LruCache
from meruit.store.rows import RowKey
from meruit.store.sequences import SequenceMemory
from meruit.store.transaction import LogProcess, WriteMoment, WriteTransaction, read_state, sign_frontier

# Loaded when they are first needed: a command that records one outcome needs neither.
if TYPE_CHECKING:
    import asyncio

    from sqlalchemy import Connection

    from meruit.store.driver import DriverConnection

MAX_GROUP = 256
"""Callers that share one transaction."""
MAX_WAITING = 10_000
QUIET_TURNS = 2
"""Turns of an event loop without a new caller, after which its callers are written."""
LINGER_S = 0.05
"""How long callers wait for others of their event loop at most; a loop may be busy."""
IDLE_S = 1.0
"""How soon callers are noticed whose event loop has stopped."""
MAX_REMEMBERED = 10_000
CLOSING_S = 30.0
PREFETCH = "look_ahead"
"""The attribute under which a kind of write says how several of it read together."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Write(Protocol[T_co]):
    """What a caller wants written; it may be called again, in another group."""

    def __call__(self, writing: WriteTransaction, /) -> T_co:
        """Gather rows, and return the caller's answer."""
        ...


class CommitNotice(msgspec.Struct, frozen=True):
    """What a listener is given for each durable transaction."""

    callers: int
    events: int
    """The number of the newest event."""
    # Any: rows of the outbox, in the order of its columns.
    emitted: Sequence[tuple[Any, ...]] = ()
    """The events of the transaction, as they were written."""


class _QueuedWrite(msgspec.Struct, frozen=True):
    write: Write[Any]
    # Any: each caller waits for an answer of its own kind.
    answer: "_Answer | asyncio.Future[Any]"
    loop: "asyncio.AbstractEventLoop | None"
    sign_now: bool


class _Answer:
    """What a thread waits for that has no event loop."""

    def __init__(self) -> None:
        self.given = threading.Event()
        self.result: Any = None

    def give(self, result: Any) -> None:
        """Wake the thread."""
        self.result = result
        self.given.set()

    def wait(self) -> Any:
        """The result; raises it where it is an exception."""
        self.given.wait()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class Recorder:
    """A thread that owns the writing connection."""

    def __init__(
        self,
        database: Database,
        signer: SigningKey,
        *,
        clock: Callable[[], datetime],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._database = database
        self._signer = signer
        self._clock = clock
        self._entropy = entropy
        self._waiting: deque[_QueuedWrite] = deque()
        # The condition's own methods are in Python; callers need its lock only.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._closing = False
        self._is_ready = False
        """Whether those who wait need not wait for others."""
        self._gathering: asyncio.AbstractEventLoop | None = None
        """The event loop that watches for more callers. One that stopped watches no more."""
        self._refusal: MeruitError | None = None
        self._lasting = LruCache[RowKey, Any](MAX_REMEMBERED)
        self._listeners: list[Callable[[CommitNotice], None]] = []
        self.sequences = SequenceMemory()
        self._file = CheckpointFile(database.location)
        self._is_end_kept = True
        self._guard = LogGuard(signer, self.sequences, self._file, self._check_own_key)
        self._blocked: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="meruit-recorder", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """How many callers wait."""
        return len(self._waiting)

    def listen(self, listener: Callable[[CommitNotice], None]) -> None:
        """Call the listener after each transaction, from the recorder's thread; must be quick and not fail."""
        self._listeners.append(listener)

    def refuse_writes(self, refusal: MeruitError | None) -> None:
        """Raise this for every write from now on; None ends that."""
        self._refusal = refusal

    def proven_keys(self) -> AdmittedKeys | None:
        """The keys that the log provably admits, as far as this process has followed it."""
        return self._guard.proven_keys

    @property
    def blocked_by(self) -> MeruitError | None:
        """Why nothing is written or signed; None while it is."""
        return self._refusal or self._blocked

    def _check_own_key(self, connection: "Connection | DriverConnection") -> None:
        """Refuse to sign once another process has retired the key of this one; raises KeyNotAdmitted."""
        chain = read_key_chain(connection, self._signer.name)
        if not chain.is_in_force(self._signer.vkey) and chain.was_in_force(self._signer.vkey):
            self._refusal = KeyNotAdmitted(
                f"the signing key of this process, {self._signer.vkey}, was retired: nothing is written or signed with "
                "it. Restart the service with the key that replaced it"
            )
            raise self._refusal

    def write(self, write: Write[T], *, sign_now: bool = False) -> T:
        """Write, and wait until it is durable."""
        answer = _Answer()
        self._put(_QueuedWrite(write=write, answer=answer, loop=None, sign_now=sign_now))
        given: T = answer.wait()
        return given

    async def record(self, write: Write[T], *, sign_now: bool = False) -> T:
        """Write, and wait without holding up the event loop."""
        loop = self._get_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._put(_QueuedWrite(write=write, answer=answer, loop=loop, sign_now=sign_now))
        if self._gathering is not loop:
            self._gathering = loop
            loop.call_soon(self._gather, loop, 0, 0)
        return await answer

    @cached_property
    def _get_loop(self) -> "Callable[[], asyncio.AbstractEventLoop]":
        """Returns the running loop."""
        from asyncio import get_running_loop

        return get_running_loop

    def _gather(self, loop: "asyncio.AbstractEventLoop", seen: int, quiet: int) -> None:
        """Let the callers of an event loop come together: they are written once no more of them come."""
        waiting = len(self._waiting)
        quiet = quiet + 1 if waiting == seen else 0
        if quiet < QUIET_TURNS and waiting < MAX_GROUP:
            loop.call_soon(self._gather, loop, waiting, quiet)
            return
        self._gathering = None
        if waiting:
            with self._work:
                self._is_ready = True
                self._work.notify()

    def close(self) -> None:
        """Write what waits, then stop."""
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join(CLOSING_S)

    def _put(self, waiting: _QueuedWrite) -> None:
        with self._lock:
            if self._closing:
                raise StoreUnavailable("the store is being closed")
            if self._refusal is not None:
                raise self._refusal
            if len(self._waiting) >= MAX_WAITING:
                raise StoreUnavailable(f"{MAX_WAITING:,} callers wait for the database already; try again in a second")
            self._waiting.append(waiting)
            if waiting.loop is None:
                self._is_ready = True
                self._work.notify()

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._waiting and not self._closing:
                    self._work.wait(IDLE_S)
                if not self._waiting:
                    break
                if not self._is_ready and not self._closing:
                    self._work.wait(LINGER_S)
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
                self._is_ready = len(self._waiting) > 0
            self._answer_callers(group, self._write_group(group))
        self._keep_end()

    def _write_group(self, group: Sequence[_QueuedWrite]) -> list[Any]:
        """An answer, or an exception, for each of the group."""
        try:
            return self._commit_group(group)
        except (StoreUnavailable, LogRewritten, KeptCheckpointDamaged, KeyNotAdmitted) as problem:
            self._blocked = problem if isinstance(problem, LogRewritten | KeptCheckpointDamaged) else None
            return [problem] * len(group)
        except Exception as problem:  # noqa: BLE001 - each caller must hear of any error
            if len(group) > 1:
                # One of them is at fault; alone, the others succeed.
                return [answer for one in group for answer in self._write_group([one])]
            return [_refusal(problem)]

    def _commit_group(self, group: Sequence[_QueuedWrite]) -> list[Any]:
        now = self._clock()
        with self._database.writing() as connection:
            state = read_state(connection)
            self._guard.follow(connection, state)
            moment = WriteMoment(to_micros(now), to_rfc3339(now))
            process = LogProcess(self._signer, self.sequences, self._guard.is_shared)
            writing = WriteTransaction(connection, state, moment, self._entropy, self._lasting, process)
            _prefetch(group, writing)
            answers = [_run_write(one.write, writing) for one in group]
            frontier = writing.flush(sign_now=any(one.sign_now for one in group))
            keys = read_proven_keys(connection, self._signer.name, frontier) if writing.has_key_entry else None
        self._guard.advance(frontier, keys, is_shared=writing.is_shared)
        # Only what is durable: else a crash would look like a log that was cut off.
        if writing.note is not None:
            self._file.keep(frontier.size, writing.note)
        self._is_end_kept = writing.note is not None or (self._is_end_kept and frontier.size == state.frontier.size)
        writing.remember_sequences()
        self._blocked = None
        for key, value in writing.row_cache.lasting_values():
            self._lasting.put(key, value)
        done = CommitNotice(len(group), writing.events, writing.emitted())
        for listener in self._listeners:
            listener(done)
        return answers

    def _keep_end(self) -> None:
        """Let the folder know the entries that came after the last checkpoint too."""
        known = self._guard.known
        if known is None or self._is_end_kept or self.blocked_by is not None:
            return
        # Where a copy was restored meanwhile, the folder must not learn again what it was made to forget.
        with suppress(StoreError), self._database.asking() as connection:
            ((size,),) = connection.fetch("SELECT size FROM log_state WHERE id = 1")
            if size >= known.size:
                self._file.keep(known.size, sign_frontier(self._signer, known), synced=True)

    def _answer_callers(self, group: Sequence[_QueuedWrite], answers: Sequence[Any]) -> None:
        """Answer each caller; those of one event loop are woken together."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Any]]] = {}
        for one, answer in zip(group, answers, strict=True):
            if isinstance(one.answer, _Answer):
                one.answer.give(answer)
            elif one.loop is not None:
                by_loop.setdefault(one.loop, []).append((one.answer, answer))
        for loop, several in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle_all, several)
            except RuntimeError:
                # The loop is closed: no caller waits any more, and the records are durable.
                continue


def _refusal(problem: Exception) -> Exception:
    """The error for the caller whose part cannot be written."""
    if isinstance(problem, UnicodeError) or _is_database_error(problem, "DataError"):
        return StoreError("it holds text that no database keeps: a null character, or half a surrogate pair")
    if not _is_database_error(problem, "IntegrityError"):
        return problem
    broken = str(getattr(problem, "orig", problem))
    if tables.EXACT_BALANCES in broken:
        return BalanceTooLarge("a balance would pass 2^62 millionths; settle what is owed, or use another account")
    return StoreError(f"it contradicts what is recorded already: {broken}")


def _is_database_error(problem: Exception, kind: str = "DBAPIError") -> bool:
    """Whether it is an error of SQLAlchemy's of that kind: there is none where SQLAlchemy is not loaded."""
    errors = sys.modules.get("sqlalchemy.exc")
    return errors is not None and isinstance(problem, getattr(errors, kind))


def _prefetch(group: Sequence[_QueuedWrite], writing: WriteTransaction) -> None:
    """Let callers of one kind read together what each needs: one question for all costs as much as one for each."""
    kinds: dict[Any, list[Write[Any]]] = {}
    for one in group:
        ahead = getattr(type(one.write), PREFETCH, None)
        if ahead is not None:
            kinds.setdefault(ahead, []).append(one.write)
    for ahead, several in kinds.items():
        if len(several) > 1:
            ahead(writing, several)


def _run_write(write: Write[Any], writing: WriteTransaction) -> Any:
    """The caller's answer; a refusal costs that caller only."""
    mark = writing.mark()
    try:
        return write(writing)
    except Exception as refusal:
        # A mistake in one caller's part must not cost the others theirs; a broken transaction does.
        if _is_database_error(refusal):
            raise
        writing.roll_back_to(mark)
        return refusal


def _settle_all(several: Sequence[tuple[Any, Any]]) -> None:
    for future, answer in several:
        _settle(future, answer)


def _settle(future: "asyncio.Future[Any]", answer: Any) -> None:
    if future.cancelled():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
