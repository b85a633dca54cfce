"""`metered_run`: what an agent uses, by its own account, kept as it goes: run, steps, and every call of a model."""

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from meruit.errors import MeruitError, MeteringError, nearest
from meruit.model.access import DEFAULT_TENANT
from meruit.model.metering import (
    MAX_CALLS,
    MAX_NAME,
    MAX_STEPS,
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    UsageRecord,
    attribution_key_problem,
)
from meruit.store.store import ClockAndEntropy, Store, utc_now
from meruit.usage.followers import UsageWrite
from meruit.usage.responses import CallOverrides, MeteredStream, call_from_response, call_without_usage, state_of
from meruit.usage.store import read as usage_reading
from meruit.usage.store.write import RecordRun

OUTSIDE = "outside of steps"
"""The step of calls that were made in none."""
BY = "metered_run"
"""Who recorded it, in the records."""
SAVE_EACH_STEP_UP_TO = 100
"""Steps up to which each is kept as it ends; later, whenever there is a hundredth more of them."""

C = TypeVar("C")
# Any: what whoever keeps it answers is of no interest.
SaveRun = Callable[[MeteredRun], Any]
_step_here: ContextVar["StepMeter | None"] = ContextVar("meruit_step", default=None)


def metered_run(  # noqa: PLR0913 - one a thing that is known of a run
    framework: str,
    *,
    task: str = "",
    source: str = "default",
    attribution_key: AttributionKey | str = "window",
    run_id: str | None = None,
    contract_id: str = "",
    declares_no_usage: bool = False,
    store: Store | None = None,
    tenant: str = DEFAULT_TENANT,
    into: SaveRun | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> "RunMeter":
    """A meter for one run of an agent, a context manager; what it finds is kept in the store, or handed to `into`.

    The attribution key says where the provider counts the run's calls: `key:ID`, `project:ID` or `session:ID`, in the provider's
    own ids; `requests`, by the id of each call; or `window`, by time alone. The run is kept when it begins, when a step
    ends, and when it ends; `end_run` ends one that was left open.
    """
    if store is not None and not isinstance(store, Store):
        raise MeteringError(
            f"the store is of type {type(store).__name__}; open one: store=meruit.open_records({store!r})"
        )
    run = MeteredRun(
        id=_check_name("run_id", ClockAndEntropy(clock).new_id("run") if run_id is None else run_id),
        framework=_check_name("framework", framework),
        source=_check_name("source", source),
        attribution_key=parse_attribution_key(attribution_key),
        declares_no_usage=declares_no_usage,
        task=_check_label("task", task),
        contract_id=_check_label("contract_id", contract_id),
    )

    def keep(now: MeteredRun) -> None:
        if store is not None:
            begins = now.ended_at is None and not now.steps
            store.recorder.write(UsageWrite(tenant, BY, RecordRun(tenant, BY, now, begins=begins)))
        if into is not None:
            into(now)

    return RunMeter(run, keep, clock)


def end_run(
    store: Store, run_id: str, *, ended_at: datetime | None = None, tenant: str = DEFAULT_TENANT
) -> UsageRecord:
    """End a run whose process died; now, unless another time is told. One that has ended stays as it is."""
    with store.database.reading() as connection:
        found = usage_reading.find(connection, tenant, run_id)
    if found.run.ended_at is not None and ended_at is None:
        return found
    ended = msgspec.structs.replace(found.run, ended_at=ended_at or store.surroundings.clock())
    record = store.recorder.write(UsageWrite(tenant, BY, RecordRun(tenant, BY, ended)))
    # Only a request with a key of its own is answered from what was answered before.
    assert isinstance(record, UsageRecord)  # noqa: S101
    return record


def parse_attribution_key(written: AttributionKey | str) -> AttributionKey:
    """`key:key_abc` as an attribution key; raises MeteringError for what is none, and for what looks like the secret itself."""
    if isinstance(written, AttributionKey):
        attribution_key = written
    else:
        kind, _, value = written.partition(":")
        if kind not in [*AttributionKind]:
            kinds = ", ".join(AttributionKind)
            raise MeteringError(
                f"no attribution key is a {kind!r}{nearest(kind, map(str, AttributionKind))}; write one of {kinds}, as key:ID"
            )
        attribution_key = AttributionKey(AttributionKind(kind), _check_label("attribution_key", value.strip()))
    wrong = attribution_key_problem(attribution_key)
    if wrong:
        raise MeteringError(wrong)
    return attribution_key


class _CallMeter(ABC):
    """What a run and a step have in common: calls are accounted for in them."""

    @abstractmethod
    def open_step(self) -> "StepMeter":
        """The step that calls belong to; raises MeteringError where none can be open."""
        ...

    def add(self, response: C, *, model: str = "", call_id: str = "", tier: str = "", provider: str | None = None) -> C:
        """Account for a call: its response, or the response's usage block. Gives back what it was given.

        What a response does not say it used is unknown, and not nothing.
        """
        step = self.open_step()
        step.add_response(step.run.clock(), [response], CallOverrides(model, call_id, tier, provider))
        return response

    def add_failed_call(self, error: BaseException | None = None, *, model: str = "", call_id: str = "") -> None:
        """Account for a call that was refused before anything was generated: it counts, and used nothing."""
        step = self.open_step()
        step.add_call(call_without_usage(step.run.clock(), CallState.FAILED, CallOverrides(model, call_id)), error)

    def add_aborted_call(self, error: BaseException | None = None, *, model: str = "", call_id: str = "") -> None:
        """Account for a call that was broken off: what it used, only the provider knows."""
        step = self.open_step()
        step.add_call(call_without_usage(step.run.clock(), CallState.ABORTED, CallOverrides(model, call_id)), error)

    def stream(
        self, chunks: Iterable[C] | AsyncIterable[C], *, model: str = "", call_id: str = "", provider: str | None = None
    ) -> MeteredStream[C]:
        """The chunks, passed through, with `for` or `async for`; the last sum that they tell is what the call used.

        A stream that is not read to its end is a call that was broken off.
        """
        return self.open_step().watch(chunks, CallOverrides(model, call_id, provider=provider))


class RunMeter(_CallMeter):
    """One run while it goes on; made by `metered_run`. Steps of several threads may be open at once."""

    def __init__(self, run: MeteredRun, keep: SaveRun, clock: Callable[[], datetime]) -> None:
        self.id = run.id
        self.fault: BaseException | None = None
        """The last exception that left a step, and is accounted for there."""
        self._run, self._keep, self.clock = run, keep, clock
        self._made: dict[str, StepMeter] = {}
        self._steps: dict[str, StepMeter] = {}
        """Those that have begun."""
        self._ended_steps, self._saved_steps = 0, 0
        self._lock, self._keeping = threading.RLock(), threading.Lock()

    @property
    def snapshot(self) -> MeteredRun:
        """The run as it stands."""
        with self._lock:
            return msgspec.structs.replace(self._run, steps=tuple(one.snapshot for one in self._steps.values()))

    @property
    def success(self) -> bool | None:
        """Whether the run did what it was to do, to be set by whoever knows."""
        return self._run.success

    @success.setter
    def success(self, success: bool | None) -> None:
        # Nothing of the run could be kept with it, and that would be told at its end only.
        if success is not None and not isinstance(success, bool):
            raise MeteringError(f"success is True, False or None, not {success!r}")
        self._update(success=success)

    @property
    def score(self) -> float | None:
        """How well, between 0 and 1; to be set as well."""
        return self._run.score

    @score.setter
    def score(self, score: float | None) -> None:
        if score is not None and not _is_score(score):
            raise MeteringError(f"a score is a number between 0 and 1, not {score!r}")
        # A float of another make, such as numpy's, is not written as one.
        self._update(score=None if score is None else float(score))

    @property
    def outcome_id(self) -> str:
        """The recorded outcome that judged its work, to be set where there is one."""
        return self._run.outcome_id

    @outcome_id.setter
    def outcome_id(self, outcome_id: str) -> None:
        self._update(outcome_id=_check_label("outcome_id", outcome_id))

    # Any: the value of any field.
    def _update(self, **fields: Any) -> None:
        with self._lock:
            if self._run.ended_at is not None:
                raise MeteringError(f"run {self.id} has ended and is kept; say what came of it before")
            self._run = msgspec.structs.replace(self._run, **fields)

    def __enter__(self) -> Self:
        if self._run.started_at is not None:
            raise MeteringError(f"run {self.id} has begun before; each run needs a meter of its own")
        self._run = msgspec.structs.replace(self._run, started_at=self.clock())
        self._keep(self.snapshot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._close_steps(error)
            success = False if error is not None and self._run.success is None else self._run.success
            # A clock may be set back meanwhile; a run that ends before it begins would not be kept at all.
            ended_at = max(self.clock(), self._run.started_at or self.clock())
            self._run = msgspec.structs.replace(self._run, success=success, ended_at=ended_at)
        try:
            with self._keeping:
                self._keep(self.snapshot)
        except Exception as fault:
            if error is None:
                raise
            error.add_note(f"the usage of run {self.id} could not be kept: {fault}")

    def _close_steps(self, error: BaseException | None) -> None:
        for step in self._steps.values():
            if step.is_open and step.id != OUTSIDE:
                step.close(error)
        stray = None if error is None or error is self.fault else state_of(error, after_answers=True)
        if stray is not None:
            self.open_step().add_call(call_without_usage(self.clock(), stray), error)
        outside = self._steps.get(OUTSIDE)
        if outside is not None and outside.is_open:
            # Calls in no step are part of none that could fail.
            outside.close(None)

    def step(self, step_id: str, *, expects_usage: bool | None = None) -> "StepMeter":
        """A step, a context manager; the name of one that has ended goes on with it.

        `expects_usage=False` declares beforehand that it calls no model. In threads and tasks of its own, call `add` of
        the step and not of the run, which knows only the step of its caller.
        """
        with self._lock:
            step = self._made.setdefault(
                _check_name("step", step_id), StepMeter(self, step_id, expects_usage=expects_usage)
            )
        if step.expects_usage != expects_usage:
            raise MeteringError(f"step {step_id!r} was declared with expects_usage={step.expects_usage} before")
        return step

    def open_step(self) -> "StepMeter":
        """The step that the caller is in, or that of calls in none."""
        here = _step_of(self)
        if here is not None:
            return here
        with self._lock:
            self.check_open()
            outside = self.step(OUTSIDE)
            if not outside.is_open:
                outside.open()
            return outside

    def check_open(self) -> None:
        """Raises MeteringError where the run has not begun, or is over."""
        if self._run.started_at is None or self._run.ended_at is not None:
            raise MeteringError(f"run {self.id} is not open; use it as `with metered_run(…) as run:`")

    def begin(self, step: "StepMeter") -> None:
        """A step is part of the run from now on."""
        with self._lock:
            self.check_open()
            if step.is_open:
                raise MeteringError(f"step {step.id!r} is open already; give the second one a name of its own")
            if len(self._steps) >= MAX_STEPS and step.id not in self._steps:
                raise MeteringError(f"more than {MAX_STEPS:,} steps; make them larger")
            self._steps[step.id] = step
            step.is_open = True

    def end_step(self) -> None:
        """Keep what is known by now. What cannot be kept is kept with the next; only the last must be."""
        with self._keeping:
            with self._lock:
                self._ended_steps += 1
                if self._ended_steps < self._saved_steps + max(1, self._saved_steps // SAVE_EACH_STEP_UP_TO):
                    return
                done, run = self._ended_steps, self.snapshot
            try:
                self._keep(run)
            except Exception:  # noqa: BLE001 - whoever keeps it may raise anything, and the agent's work goes on
                return
            self._saved_steps = done


class StepMeter(_CallMeter):
    """One step of a run while it goes on."""

    def __init__(self, run: RunMeter, step_id: str, *, expects_usage: bool | None) -> None:
        self.run, self.id, self.expects_usage = run, step_id, expects_usage
        self.succeeded: bool | None = None
        """Whether it did what it was to do; to be set where an exception would not tell."""
        self.is_open = False
        self._started_at: datetime | None = None
        self._ended_at: datetime | None = None
        self._calls: list[MeteredCall] = []
        # Any: streams of all kinds of chunks.
        self._streams: list[MeteredStream[Any]] = []
        self._accounted: BaseException | None = None
        self.around: StepMeter | None = None
        """The step of another run in which it began."""
        self._lock = threading.RLock()

    @property
    def snapshot(self) -> MeteredStep:
        """The step as it stands."""
        with self._lock:
            return MeteredStep(
                self.id, self._started_at, self._ended_at, self.succeeded, self.expects_usage, tuple(self._calls)
            )

    def __enter__(self) -> Self:
        here = _step_of(self.run)
        if here is not None:
            raise MeteringError(
                f"step {self.id!r} begins inside of step {here.id!r}: tokens belong to one step; end that one first"
            )
        self.open()
        self.around = _step_of(None)
        _step_here.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not by a token: whoever ends a step may be another task than who began it.
        _step_here.set(self.around)
        self.close(error)
        self.run.end_step()

    def open(self) -> None:
        """It begins, or goes on."""
        self.run.begin(self)
        with self._lock:
            self._started_at = self._started_at or self.run.clock()
            self._ended_at, self.succeeded = None, None

    def close(self, error: BaseException | None) -> None:
        """It ends; a call that was under way is accounted for."""
        with self._lock:
            unread = [one for one in self._streams if not one.is_over]
            for one in unread:
                one.end()
            if error is not None and error is not self._accounted and not unread:
                state = state_of(error, after_answers=bool(self._calls))
                if state is not None:
                    self._calls.append(call_without_usage(self.run.clock(), state))
            self._streams.clear()
            if self.succeeded is None or error is not None:
                self.succeeded = error is None
            # A clock that was set back makes no step end before its start.
            self._ended_at = max(self.run.clock(), self._started_at or self.run.clock())
            self.is_open = False
        self.run.fault = error or self.run.fault

    def add_call(self, call: MeteredCall, error: BaseException | None = None) -> None:
        """Account for one call, and for the exception that told of it."""
        with self._lock:
            self.open_step()
            if len(self._calls) >= MAX_CALLS:
                raise MeteringError(f"more than {MAX_CALLS:,} calls in step {self.id!r}; make more steps")
            self._calls.append(call)
            self._accounted = error or self._accounted

    def add_response(
        self,
        at: datetime,
        said: Sequence[object],
        known: CallOverrides,
        state: CallState = CallState.OK,
        stop: BaseException | None = None,
    ) -> None:
        """Account for one call by what it said; AuthorError where that is no usage of anything."""
        try:
            call = call_from_response(at, said, known, state)
        except MeruitError as fault:
            # It was made all the same, and what it used is not known.
            self.add_call(call_without_usage(at, state, known), fault)
            raise
        self.add_call(call, stop)

    def watch(self, chunks: Iterable[C] | AsyncIterable[C], known: CallOverrides) -> MeteredStream[C]:
        """A stream that must have ended when the step does."""
        at = self.run.clock()

        def on_end(stream: MeteredStream[C], stop: BaseException | None) -> None:
            state = CallState.OK if stream.is_complete else CallState.ABORTED
            if stop is not None:
                state = state_of(stop, after_answers=False) or state
            self.add_response(at, stream.usage_chunks, known, state, stop)

        with self._lock:
            self.open_step()
            stream = MeteredStream(chunks, on_end)
            self._streams.append(stream)
        return stream

    def open_step(self) -> "StepMeter":
        """The step itself; raises MeteringError where it is not open."""
        if not self.is_open:
            raise MeteringError(f"step {self.id!r} is not open; use it as `with run.step({self.id!r}) as step:`")
        return self


def _step_of(run: RunMeter | None) -> StepMeter | None:
    """The innermost step here that is open, of that run or of any."""
    step = _step_here.get()
    while step is not None and not (step.is_open and run in (None, step.run)):
        step = step.around
    return step


def _is_score(score: object) -> bool:
    return isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1


def _check_name(what: str, text: object) -> str:
    if text == "":
        raise MeteringError(f"{what} is empty; give it a name")
    return _check_label(what, text)


def _check_label(what: str, text: object) -> str:
    if not isinstance(text, str) or len(text) > MAX_NAME or not text.isprintable():
        raise MeteringError(f"{what} is a text of at most {MAX_NAME} printable characters")
    return text
