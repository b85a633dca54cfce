"""`metered_run`: record what an agent uses while it works: the run, its steps, and every call of a model."""

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from meruit.errors import MeruitError, MeteringError
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
from meruit.suggestions import nearest
from meruit.usage.followers import UsageWrite
from meruit.usage.responses import CallOverrides, MeteredStream, call_from_response, call_without_usage, state_of
from meruit.usage.store import read as usage_reading
from meruit.usage.store.record_runs import RecordRun

OUTSIDE = "outside of steps"
"""The step of calls that were made outside of steps."""
BY = "metered_run"
"""The actor in the records."""
SAVE_EACH_STEP_UP_TO = 100
"""Up to this number, each step is saved as it ends; later, each time their number has grown by 1 %."""

C = TypeVar("C")
# Any: the return value is ignored.
SaveRun = Callable[[MeteredRun], Any]
_step_here: ContextVar["StepMeter | None"] = ContextVar("meruit_step", default=None)


def metered_run(  # noqa: PLR0913 - one parameter for each field of a run
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
    """Meter one run of an agent, as a context manager; save it in the store, or pass it to `into`.

    The attribution key says where the provider counts the run's calls: `key:ID`, `project:ID` or `session:ID` with the
    provider's ids; `requests`, by the id of each call; or `window`, by time alone. The run is saved when it begins,
    when a step ends, and when it ends; `end_run` ends one that was left open.
    """
    if store is not None and not isinstance(store, Store):
        raise MeteringError(
            f"the store is of type {type(store).__name__}; open a store: store=meruit.open_records({store!r})"
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
            store.recorder.write(
                UsageWrite(tenant=tenant, by=BY, write=RecordRun(tenant=tenant, by=BY, run=now, begins=begins))
            )
        if into is not None:
            into(now)

    return RunMeter(run, keep, clock)


def end_run(
    store: Store, run_id: str, *, ended_at: datetime | None = None, tenant: str = DEFAULT_TENANT
) -> UsageRecord:
    """End a run whose process died, now or at `ended_at`; a run that has ended is not changed."""
    with store.database.reading() as connection:
        found = usage_reading.find(connection, tenant, run_id)
    if found.run.ended_at is not None and ended_at is None:
        return found
    ended = msgspec.structs.replace(found.run, ended_at=ended_at or store.surroundings.clock())
    record = store.recorder.write(UsageWrite(tenant=tenant, by=BY, write=RecordRun(tenant=tenant, by=BY, run=ended)))
    # Only a write with an idempotency key returns a replay.
    assert isinstance(record, UsageRecord)  # noqa: S101
    return record


def parse_attribution_key(written: AttributionKey | str) -> AttributionKey:
    """Parse `key:key_abc`; raises MeteringError for an invalid key, and for one that looks like a secret."""
    if isinstance(written, AttributionKey):
        attribution_key = written
    else:
        kind, _, value = written.partition(":")
        if kind not in [*AttributionKind]:
            kinds = ", ".join(AttributionKind)
            raise MeteringError(
                f"{kind!r} is not a kind of attribution key{nearest(kind, map(str, AttributionKind))}; "
                f"write one of {kinds}, such as key:ID"
            )
        attribution_key = AttributionKey(AttributionKind(kind), _check_label("attribution_key", value.strip()))
    wrong = attribution_key_problem(attribution_key)
    if wrong:
        raise MeteringError(wrong)
    return attribution_key


class _CallMeter(ABC):
    """What a run and a step have in common: calls are added to them."""

    @abstractmethod
    def open_step(self) -> "StepMeter":
        """The step that calls are added to; raises MeteringError where none can be open."""
        ...

    def add(self, response: C, *, model: str = "", call_id: str = "", tier: str = "", provider: str | None = None) -> C:
        """Add a call by its response, or by the response's usage block. Returns its argument.

        A count that the response does not have is unknown, not zero.
        """
        step = self.open_step()
        step.add_response(
            step.run.clock(), [response], CallOverrides(model=model, call_id=call_id, tier=tier, provider=provider)
        )
        return response

    def add_failed_call(self, error: BaseException | None = None, *, model: str = "", call_id: str = "") -> None:
        """Add a call that was refused before anything was generated: it counts as a call, and used no tokens."""
        step = self.open_step()
        step.add_call(call_without_usage(step.run.clock(), CallState.FAILED, CallOverrides(model, call_id)), error)

    def add_aborted_call(self, error: BaseException | None = None, *, model: str = "", call_id: str = "") -> None:
        """Add a call that was broken off: only the provider knows what it used."""
        step = self.open_step()
        step.add_call(call_without_usage(step.run.clock(), CallState.ABORTED, CallOverrides(model, call_id)), error)

    def stream(
        self, chunks: Iterable[C] | AsyncIterable[C], *, model: str = "", call_id: str = "", provider: str | None = None
    ) -> MeteredStream[C]:
        """Pass chunks through, with `for` or `async for`, and add the call by the last usage in them.

        A stream that is not read to its end is an aborted call.
        """
        return self.open_step().watch(chunks, CallOverrides(model, call_id, provider=provider))


class RunMeter(_CallMeter):
    """One run while it is open; made by `metered_run`. Steps of several threads may be open at once."""

    def __init__(self, run: MeteredRun, keep: SaveRun, clock: Callable[[], datetime]) -> None:
        self.id = run.id
        self.fault: BaseException | None = None
        """The last exception that left a step; the step has recorded it."""
        self._run, self._keep, self.clock = run, keep, clock
        self._made: dict[str, StepMeter] = {}
        self._steps: dict[str, StepMeter] = {}
        """The steps that have begun."""
        self._ended_steps, self._saved_steps = 0, 0
        self._lock, self._keeping = threading.RLock(), threading.Lock()

    @property
    def snapshot(self) -> MeteredRun:
        """The run so far."""
        with self._lock:
            return msgspec.structs.replace(self._run, steps=tuple(one.snapshot for one in self._steps.values()))

    @property
    def success(self) -> bool | None:
        """Whether the run succeeded; set it where you know."""
        return self._run.success

    @success.setter
    def success(self, success: bool | None) -> None:
        # With another value the run could not be saved, and the error would come only at its end.
        if success is not None and not isinstance(success, bool):
            raise MeteringError(f"success must be True, False or None, not {success!r}")
        self._update(success=success)

    @property
    def score(self) -> float | None:
        """How well the run did, between 0 and 1; set it where you know."""
        return self._run.score

    @score.setter
    def score(self, score: float | None) -> None:
        if score is not None and not _is_score(score):
            raise MeteringError(f"score must be a number between 0 and 1, not {score!r}")
        # A float of another type, such as numpy's, cannot be encoded.
        self._update(score=None if score is None else float(score))

    @property
    def outcome_id(self) -> str:
        """The recorded outcome of the run; set it where there is one."""
        return self._run.outcome_id

    @outcome_id.setter
    def outcome_id(self, outcome_id: str) -> None:
        self._update(outcome_id=_check_label("outcome_id", outcome_id))

    # Any: the value of any field.
    def _update(self, **fields: Any) -> None:
        with self._lock:
            if self._run.ended_at is not None:
                raise MeteringError(f"run {self.id} has ended and is saved; set its fields before it ends", "ended")
            self._run = msgspec.structs.replace(self._run, **fields)

    def __enter__(self) -> Self:
        if self._run.started_at is not None:
            raise MeteringError(
                f"run {self.id} has begun already; call metered_run again for another run", "already_open"
            )
        self._run = msgspec.structs.replace(self._run, started_at=self.clock())
        self._keep(self.snapshot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._close_steps(error)
            success = False if error is not None and self._run.success is None else self._run.success
            # The clock may have been set back; a run that ends before it begins would be refused.
            ended_at = max(self.clock(), self._run.started_at or self.clock())
            self._run = msgspec.structs.replace(self._run, success=success, ended_at=ended_at)
        try:
            with self._keeping:
                self._keep(self.snapshot)
        except Exception as fault:
            if error is None:
                raise
            error.add_note(f"the usage of run {self.id} could not be saved: {fault}")

    def _close_steps(self, error: BaseException | None) -> None:
        for step in self._steps.values():
            if step.is_open and step.id != OUTSIDE:
                step.close(error)
        stray = None if error is None or error is self.fault else state_of(error, after_answers=True)
        if stray is not None:
            self.open_step().add_call(call_without_usage(self.clock(), stray), error)
        outside = self._steps.get(OUTSIDE)
        if outside is not None and outside.is_open:
            # Calls outside of steps do not fail with a step.
            outside.close(None)

    def step(self, step_id: str, *, expects_usage: bool | None = None) -> "StepMeter":
        """Meter a step, as a context manager; the name of a step that has ended continues it.

        `expects_usage=False` declares beforehand that the step calls no model. In threads and tasks that you start,
        call `add` of the step, not of the run, which knows only the step of its caller.
        """
        with self._lock:
            step = self._made.setdefault(
                _check_name("step", step_id), StepMeter(self, step_id, expects_usage=expects_usage)
            )
        if step.expects_usage != expects_usage:
            raise MeteringError(
                f"step {step_id!r} was declared with expects_usage={step.expects_usage}; use the same value"
            )
        return step

    def open_step(self) -> "StepMeter":
        """The step that the caller is in, or the step of calls outside of steps."""
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
        """Raise MeteringError where the run has not begun or has ended."""
        if self._run.started_at is None or self._run.ended_at is not None:
            raise MeteringError(f"run {self.id} is not open; use it as `with metered_run(…) as run:`", "not_open")

    def begin(self, step: "StepMeter") -> None:
        """Add a step to the run, or open it again."""
        with self._lock:
            self.check_open()
            if step.is_open:
                raise MeteringError(
                    f"step {step.id!r} is open already; give the second one another name", "already_open"
                )
            if len(self._steps) >= MAX_STEPS and step.id not in self._steps:
                raise MeteringError(f"a run has at most {MAX_STEPS:,} steps; use fewer, larger steps", "limit")
            self._steps[step.id] = step
            step.is_open = True

    def end_step(self) -> None:
        """Save the run so far. If that fails, the next save includes it; only the last save must succeed."""
        with self._keeping:
            with self._lock:
                self._ended_steps += 1
                if self._ended_steps < self._saved_steps + max(1, self._saved_steps // SAVE_EACH_STEP_UP_TO):
                    return
                done, run = self._ended_steps, self.snapshot
            try:
                self._keep(run)
            except Exception:  # noqa: BLE001 - the callback may raise anything, and the agent's work continues
                return
            self._saved_steps = done


class StepMeter(_CallMeter):
    """One step of a run while it is open."""

    def __init__(self, run: RunMeter, step_id: str, *, expects_usage: bool | None) -> None:
        self.run, self.id, self.expects_usage = run, step_id, expects_usage
        self.succeeded: bool | None = None
        """Whether the step succeeded; set it where no exception would show a failure."""
        self.is_open = False
        self._started_at: datetime | None = None
        self._ended_at: datetime | None = None
        self._calls: list[MeteredCall] = []
        # Any: streams of all kinds of chunks.
        self._streams: list[MeteredStream[Any]] = []
        self._accounted: BaseException | None = None
        self.around: StepMeter | None = None
        """The step of another run inside of which this one began."""
        self._lock = threading.RLock()

    @property
    def snapshot(self) -> MeteredStep:
        """The step so far."""
        with self._lock:
            return MeteredStep(
                id=self.id,
                started_at=self._started_at,
                ended_at=self._ended_at,
                succeeded=self.succeeded,
                expects_usage=self.expects_usage,
                calls=tuple(self._calls),
            )

    def __enter__(self) -> Self:
        here = _step_of(self.run)
        if here is not None:
            raise MeteringError(
                f"step {self.id!r} begins inside step {here.id!r}, and tokens belong to one step; end that step first",
                "nested_step",
            )
        self.open()
        self.around = _step_of(None)
        _step_here.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not by a token: the task that ends a step may not be the one that began it.
        _step_here.set(self.around)
        self.close(error)
        self.run.end_step()

    def open(self) -> None:
        """Open the step, for the first time or again."""
        self.run.begin(self)
        with self._lock:
            self._started_at = self._started_at or self.run.clock()
            self._ended_at, self.succeeded = None, None

    def close(self, error: BaseException | None) -> None:
        """End the step, and add a call that was under way."""
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
            # The clock may have been set back; a step does not end before its start.
            self._ended_at = max(self.run.clock(), self._started_at or self.run.clock())
            self.is_open = False
        self.run.fault = error or self.run.fault

    def add_call(self, call: MeteredCall, error: BaseException | None = None) -> None:
        """Add one call, and remember the exception that it ended with."""
        with self._lock:
            self.open_step()
            if len(self._calls) >= MAX_CALLS:
                raise MeteringError(f"step {self.id!r} has more than {MAX_CALLS:,} calls; use more steps", "limit")
            self._calls.append(call)
            self._accounted = error or self._accounted

    def add_response(
        self,
        at: datetime,
        responses: Sequence[object],
        known: CallOverrides,
        state: CallState = CallState.OK,
        stop: BaseException | None = None,
    ) -> None:
        """Add one call by its response; raises AuthorError where the response cannot have usage."""
        try:
            call = call_from_response(at, responses, known, state)
        except MeruitError as fault:
            # The call was made, and what it used is unknown.
            self.add_call(call_without_usage(at, state, known), fault)
            raise
        self.add_call(call, stop)

    def watch(self, chunks: Iterable[C] | AsyncIterable[C], known: CallOverrides) -> MeteredStream[C]:
        """Meter a stream, which ends with the step at the latest."""
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
        """Return the step; raises MeteringError where it is not open."""
        if not self.is_open:
            message = f"step {self.id!r} is not open; use it as `with run.step({self.id!r}) as step:`"
            raise MeteringError(message, "not_open")
        return self


def _step_of(run: RunMeter | None) -> StepMeter | None:
    """The innermost open step of the caller, of this run or of any."""
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
        raise MeteringError(f"{what} must be a text of at most {MAX_NAME} printable characters")
    return text
