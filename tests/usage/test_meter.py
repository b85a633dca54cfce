"""`metered_run`: every call is accounted for once, whatever becomes of it, and a crash loses little."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.errors import AuthorError, MeteringError, NotFound, StoreError, UnknownName, UsageRunEnded, UsageRunOpen
from meruit.model.metering import AttributionKey, AttributionKind, CallState, MeteredRun
from meruit.model.usage import Tokens, UsageCode, UsageStatus, sum_tokens
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.usage import meter as metering
from meruit.usage.meter import OUTSIDE, RunMeter, StepMeter, end_run, metered_run, parse_attribution_key
from meruit.usage.store import read as usage_reading

START = datetime(2026, 1, 1, tzinfo=UTC)


def block(asked: int, answered: int) -> dict[str, int]:
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def response(asked: int = 10, answered: int = 5, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "gpt-x", "usage": block(asked, answered), **more}


class Ticking:
    """A clock that goes on by a second whenever it is asked."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def metered(**settings: Any) -> RunMeter:
    return metered_run("planner", **{"clock": Ticking(), **settings})


def calls_of(run: RunMeter, step: str = "s") -> list[tuple[str, Tokens | None]]:
    (found,) = (one for one in run.snapshot.steps if one.id == step)
    return [(str(one.state), one.tokens) for one in found.calls]


def raise_in(meter: RunMeter | StepMeter, error: BaseException) -> None:
    """A call is answered, the next one is not."""
    meter.add(response())
    raise error


def fail(error: BaseException) -> None:
    raise error


def fail_in(step: StepMeter, error: BaseException) -> None:
    """A call is refused, and the step's code knows it."""
    step.add_failed_call(error, model="gpt-x")
    raise error


def recorded(store: Store, run_id: str, tenant: str = "default") -> MeteredRun:
    with store.database.reading() as connection:
        return usage_reading.find(connection, tenant, run_id).run


# What is accounted for.

_events = st.lists(
    st.tuples(st.sampled_from(("a", "b", None)), st.sampled_from(("add", "failed", "aborted")), st.integers(1, 999)),
    max_size=12,
)


@settings(max_examples=50)
@given(_events)
def test_each_call_is_accounted_for_once_in_its_step_and_unknown_stays_unknown(
    events: list[tuple[str | None, str, int]],
) -> None:
    with metered() as run:
        for step, what, tokens in events:
            if step is None:
                _do(run, what, tokens)
            else:
                with run.step(step) as open_step:
                    # Inside of a step, the run and the step account alike.
                    _do(run if tokens % 2 else open_step, what, tokens)
    found = run.snapshot
    for name in {step or OUTSIDE for step, _, _ in events}:
        (ended,) = (one for one in found.steps if one.id == name)
        mine = [(what, tokens) for step_name, what, tokens in events if (step_name or OUTSIDE) == name]
        assert [str(one.state) for one in ended.calls] == ["ok" if what == "add" else what for what, _ in mine]
        unknown = any(what == "aborted" for what, _ in mine)
        known = [Tokens(tokens, tokens, 1) for what, tokens in mine if what == "add"]
        assert ended.local == (None if unknown else sum_tokens(known))
    assert len(found.calls) == len(events)


def _do(meter: RunMeter | StepMeter, what: str, tokens: int) -> None:
    if what == "add":
        meter.add(block(tokens, tokens))
    else:
        {"failed": meter.add_failed_call, "aborted": meter.add_aborted_call}[what]()


def test_a_response_has_its_tokens_model_id_and_tier() -> None:
    answer = SimpleNamespace(
        id="resp_7",
        model="gpt-x-2025-01-01",
        service_tier="flex",
        usage=SimpleNamespace(prompt_tokens=10, completion_tokens=5),
    )
    with metered() as run, run.step("s") as step:
        assert step.add(answer) is answer
        step.add(block(1, 2), model="mine", call_id="c", tier="batch")
        step.add({"id": 7, "usage": None})
    first, second, third = run.snapshot.calls
    assert (first.id, first.model, first.tier, first.tokens) == ("resp_7", "gpt-x-2025-01-01", "flex", Tokens(10, 5, 1))
    assert (second.id, second.model, second.tier, second.tokens) == ("c", "mine", "batch", Tokens(1, 2, 1))
    assert (third.id, third.state, third.tokens) == ("", CallState.OK, None)
    assert run.snapshot.steps[0].local is None


def test_the_provider_may_be_named_and_an_unknown_one_is_refused() -> None:
    with metered() as run, run.step("s") as step:
        step.add({"input_tokens": 10, "output_tokens": 5}, provider="anthropic")
        with pytest.raises(UnknownName, match="'nobody'"):
            step.add(block(1, 1), provider="nobody")
    assert calls_of(run) == [("ok", Tokens(10, 5, 1)), ("ok", None)]


@pytest.mark.parametrize("nonsense", ["a text", {"usage": {"prompt_tokens": -1, "completion_tokens": 1}}])
def test_a_call_whose_usage_is_nonsense_was_made_all_the_same(nonsense: Any) -> None:
    with metered() as run, pytest.raises(AuthorError), run.step("s") as step:
        step.add(nonsense)
    assert calls_of(run) == [("ok", None)]
    assert run.snapshot.steps[0].succeeded is False


def test_times_are_those_of_the_clock_and_a_clock_that_is_set_back_loses_nothing() -> None:
    with metered() as run, run.step("s") as step:
        step.add(response())
    found = run.snapshot
    moments = [found.started_at, found.steps[0].started_at, found.calls[0].at, found.steps[0].ended_at, found.ended_at]
    assert moments == sorted(moments, key=lambda one: one or START)
    times = iter([START + timedelta(hours=1)])
    with metered(clock=lambda: next(times, START)) as run:
        pass
    assert run.snapshot.ended_at == run.snapshot.started_at


# Steps.


def test_a_step_that_is_entered_again_goes_on() -> None:
    with metered() as run:
        with pytest.raises(ValueError, match="no"), run.step("s") as step:
            raise_in(step, ValueError("no"))
        assert run.snapshot.steps[0].succeeded is False
        with run.step("s") as step:
            step.add(response())
    (found,) = run.snapshot.steps
    assert (len(found.calls), found.succeeded, found.local) == (2, True, Tokens(20, 10, 2))


def test_a_step_may_say_itself_that_it_did_not_succeed_and_be_declared_to_use_none() -> None:
    with metered() as run:
        with run.step("s") as step:
            step.succeeded = False
        with run.step("t", expects_usage=False):
            pass
    assert [(one.succeeded, one.expects_usage) for one in run.snapshot.steps] == [(False, None), (True, False)]


def test_a_step_inside_of_another_is_refused_and_the_outer_one_goes_on() -> None:
    with metered() as run, run.step("outer") as outer:
        with pytest.raises(MeteringError, match=r"'inner'.*'outer'") as nested, run.step("inner"):
            pytest.fail("it must not begin")
        assert nested.value.code == "nested_step"
        outer.add(response())
        with metered() as other, other.step("inner") as inner:
            inner.add(response())
            run.add(response())
    assert [one.id for one in run.snapshot.steps] == ["outer"]
    # The step around the other run's is still that of the run's calls.
    assert (len(calls_of(run, "outer")), len(calls_of(other, "inner"))) == (2, 1)


def test_a_step_that_is_left_open_ends_with_its_run() -> None:
    with metered() as run:
        run.step("s").__enter__().add(response())
    assert run.snapshot.steps[0].ended_at is not None
    assert calls_of(run) == [("ok", Tokens(10, 5, 1))]


def test_a_meter_used_in_the_wrong_order_is_refused() -> None:
    with metered() as run:
        step = run.step("s")
        assert _refusal_of(lambda: step.add(response())).code == "not_open"
        assert _refusal_of(lambda: step.stream([])).code == "not_open"
        with run.step("s"):
            redeclared = _refusal_of(lambda: run.step("s", expects_usage=False))
            assert (redeclared.code, "expects_usage=None" in str(redeclared)) == ("bad_metering", True)
        assert "not 2" in str(_refusal_of(lambda: setattr(run, "score", 2)))
    assert _refusal_of(lambda: run.add(response())).code == "not_open"
    assert _refusal_of(run.step("t").__enter__).code == "not_open"
    assert _refusal_of(run.__enter__).code == "already_open"
    assert _refusal_of(lambda: setattr(run, "success", True)).code == "ended"


def _refusal_of(misuse: Callable[[], object]) -> MeteringError:
    with pytest.raises(MeteringError) as refused:
        misuse()
    return refused.value


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"task": "x" * 201}, ("task", "200")),
        ({"run_id": ""}, ("run_id",)),
        ({"source": None}, ("source", "200")),
        ({"attribution_key": "kee:x"}, ("'kee'", "'key'")),
        ({"attribution_key": "key"}, ("key:ID",)),
        ({"attribution_key": "window:x"}, ("window",)),
        ({"attribution_key": "key:sk-proj-123"}, ("secret",)),
        ({"attribution_key": AttributionKey(AttributionKind.PROJECT)}, ("project:ID",)),
        ({"store": "meruit-data"}, ("open_records('meruit-data')",)),
    ],
)
def test_a_run_that_could_not_be_saved_is_refused_before_it_begins(
    settings: dict[str, Any], values: tuple[str, ...]
) -> None:
    with pytest.raises(MeteringError) as refused:
        metered(**settings)
    assert refused.value.code == "bad_metering"
    assert all(value in str(refused.value) for value in values)
    assert "sk-proj" not in str(refused.value)


def test_an_attribution_key_is_written_as_kind_and_id() -> None:
    assert (
        parse_attribution_key("key:key_1")
        == parse_attribution_key(AttributionKey(AttributionKind.KEY, "key_1"))
        == AttributionKey(AttributionKind.KEY, "key_1")
    )
    assert parse_attribution_key("requests") == AttributionKey(AttributionKind.REQUESTS)


def test_limits_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "MAX_STEPS", 1)
    monkeypatch.setattr(metering, "MAX_CALLS", 1)
    with metered() as run, run.step("s") as step:
        step.add(response())
        with pytest.raises(MeteringError, match=r"'s'.* 1 "):
            step.add(response())
    with metered() as run:
        with run.step("s"):
            pass
        with pytest.raises(MeteringError, match=" 1 "), run.step("t"):
            pass
        with run.step("s"):
            pass


# Exceptions.


class Refused(Exception):
    status_code = 429


def broken(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://localhost/")
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Refused(), "failed"),
        (broken(400), "failed"),
        (broken(408), "aborted"),
        (broken(503), "aborted"),
        (httpx.ReadTimeout("slow", request=httpx.Request("GET", "http://localhost/")), "aborted"),
        (TimeoutError(), "aborted"),
        (ConnectionResetError(), "aborted"),
        (asyncio.CancelledError(), "aborted"),
        (KeyboardInterrupt(), "aborted"),
    ],
)
def test_a_call_that_an_exception_stopped_is_accounted_for_and_the_exception_goes_on(
    error: BaseException, state: str
) -> None:
    with pytest.raises(type(error)) as raised, metered() as run, run.step("s") as step:
        raise_in(step, error)
    assert raised.value is error
    assert [one for one, _ in calls_of(run)] == ["ok", state]
    assert (run.snapshot.steps[0].succeeded, run.snapshot.success) == (False, False)
    assert run.snapshot.ended_at is not None


def test_a_fault_of_the_steps_own_code_is_no_call_once_it_had_an_answer() -> None:
    with pytest.raises(ValueError, match="oops"), metered() as run, run.step("s") as step:
        raise_in(step, ValueError("oops"))
    assert calls_of(run) == [("ok", Tokens(10, 5, 1))]
    # Where there was none, nobody knows whether one was under way; nor from an exception that was never sent.
    for error in (ValueError("oops"), httpx.ReadTimeout("slow")):
        with pytest.raises(type(error)), metered() as run, run.step("s"):
            raise error
        assert calls_of(run) == [("aborted", None)]


def test_an_exception_that_was_accounted_for_is_not_counted_twice() -> None:
    error = Refused()
    with pytest.raises(Refused), metered() as run, run.step("s") as step:
        fail_in(step, error)
    assert calls_of(run) == [("failed", None)]
    assert run.snapshot.calls[0].model == "gpt-x"
    assert [one.id for one in run.snapshot.steps] == ["s"]


def test_a_call_in_no_step_that_an_exception_stopped_is_accounted_for() -> None:
    with pytest.raises(Refused), metered() as run:
        raise_in(run, Refused())
    assert calls_of(run, OUTSIDE) == [("ok", Tokens(10, 5, 1)), ("failed", None)]
    with pytest.raises(ValueError, match="mine"), metered() as run:
        raise ValueError("mine")
    assert run.snapshot.steps == ()


# Streams.


def openai_chunks() -> list[Any]:
    text: dict[str, Any] = {"id": "chat_1", "model": "gpt-x", "choices": [{}], "usage": None}
    return [text, text, {**text, "choices": [], "usage": block(10, 5)}]


def anthropic_chunks() -> list[Any]:
    message = {"id": "msg_1", "model": "claude-x", "usage": {"input_tokens": 10, "cache_read_input_tokens": 90}}
    deltas = [{"type": "message_delta", "usage": {"output_tokens": output}} for output in (1, 7, 20)]
    return [{"type": "message_start", "message": message}, {"type": "ping"}, *deltas]


@pytest.mark.parametrize(
    ("chunks", "tokens", "call_id"),
    [
        (openai_chunks(), Tokens(10, 5, 1), "chat_1"),
        (anthropic_chunks(), Tokens(100, 20, 1, 90), "msg_1"),
        ([response(1, 1), response(2, 3), response(2, 9)], Tokens(2, 9, 1), "resp_1"),
        (["text", "only"], None, ""),
        ([], None, ""),
    ],
)
def test_the_last_sum_of_a_stream_counts_and_every_chunk_passes(
    chunks: list[Any], tokens: Tokens | None, call_id: str
) -> None:
    with metered() as run, run.step("s") as step:
        assert list(step.stream(chunks)) == chunks
    assert calls_of(run) == [("ok", tokens)]
    assert run.snapshot.calls[0].id == call_id


def test_an_asynchronous_stream_counts_alike() -> None:
    async def chunks() -> AsyncIterator[Any]:
        for one in openai_chunks():
            await asyncio.sleep(0)
            yield one

    async def read(step: StepMeter) -> None:
        assert [one async for one in step.stream(chunks())] == openai_chunks()
        with pytest.raises(TypeError, match="`async for`"):
            next(iter(step.stream(chunks())))
        with pytest.raises(TypeError, match="`for`"):
            await anext(aiter(step.stream([1])))

    with metered() as run, run.step("s") as step:
        asyncio.run(read(step))
    assert calls_of(run)[0] == ("ok", Tokens(10, 5, 1))


def test_an_asynchronous_stream_that_is_cancelled_was_broken_off() -> None:
    async def endless() -> AsyncIterator[Any]:
        yield openai_chunks()[0]
        await asyncio.Event().wait()

    async def read(step: StepMeter) -> None:
        async for _ in step.stream(endless()):
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]

    with pytest.raises(asyncio.CancelledError), metered() as run, run.step("s") as step:
        asyncio.run(read(step))
    assert calls_of(run) == [("aborted", None)]


def test_a_stream_that_is_not_read_to_its_end_was_broken_off() -> None:
    with metered() as run, run.step("s") as step:
        stream = step.stream(openai_chunks(), model="gpt-x", call_id="c")
        next(iter(stream))
        step.stream(openai_chunks())
        assert calls_of(run) == []
    assert calls_of(run) == [("aborted", None), ("aborted", None)]
    assert run.snapshot.calls[0].id == "c"
    # Who reads on reads what is there, and changes nothing.
    assert len(list(stream)) == 2
    assert calls_of(run) == [("aborted", None), ("aborted", None)]


def test_a_stream_that_breaks_is_one_call_and_the_exception_goes_on() -> None:
    def breaking() -> Iterator[Any]:
        yield openai_chunks()[0]
        raise ConnectionResetError

    def refused() -> Iterator[Any]:
        yield from map(fail, [Refused()])

    with pytest.raises(ConnectionResetError), metered() as run, run.step("s") as step:
        list(step.stream(breaking()))
    assert calls_of(run) == [("aborted", None)]
    with pytest.raises(Refused), metered() as run, run.step("s") as step:
        list(step.stream(refused()))
    assert calls_of(run) == [("failed", None)]


def test_a_stream_in_no_step_is_accounted_for_at_the_latest_when_the_run_ends() -> None:
    with metered() as run:
        next(iter(run.stream(openai_chunks())))
    assert calls_of(run, OUTSIDE) == [("aborted", None)]


# Threads and tasks.


def test_steps_of_many_threads_lose_no_call() -> None:
    kept: list[MeteredRun] = []
    with metered(into=kept.append, clock=lambda: START) as run:
        gate = threading.Barrier(8)

        def work(number: int) -> None:
            gate.wait(60)
            with run.step(f"s{number}") as step:
                for _ in range(50):
                    step.add(block(1, 1))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    assert len(run.snapshot.calls) == 400
    assert run.snapshot.local == Tokens(400, 400, 400)
    # Whatever is kept later knows at least as much.
    sizes = [len(one.calls) for one in kept]
    assert sizes == sorted(sizes)
    assert kept[-1] == run.snapshot


def test_tasks_have_steps_of_their_own() -> None:
    async def work(run: RunMeter, name: str) -> None:
        with run.step(name):
            await asyncio.sleep(0)
            run.add(block(1, 1))
            await asyncio.sleep(0)

    async def all_of_it(run: RunMeter) -> None:
        await asyncio.gather(*(work(run, f"s{number}") for number in range(5)))

    with metered() as run:
        asyncio.run(all_of_it(run))
        run.add(block(2, 2))
    assert [len(one.calls) for one in run.snapshot.steps] == [1] * 6
    assert run.snapshot.steps[-1].id == OUTSIDE


def test_one_step_cannot_be_open_twice() -> None:
    with metered() as run, run.step("s"):

        def again() -> None:
            with pytest.raises(MeteringError, match="open already"), run.step("s"):
                pass

        thread = threading.Thread(target=again)
        thread.start()
        thread.join(60)
    assert len(run.snapshot.steps) == 1


def test_a_task_that_outlives_its_step_may_begin_another() -> None:
    async def late(go: asyncio.Event, run: RunMeter) -> None:
        await go.wait()
        with run.step("late"):
            run.add(block(1, 1))

    async def main() -> RunMeter:
        go = asyncio.Event()
        with metered() as run:
            with run.step("s"):
                task = asyncio.create_task(late(go, run))
                await asyncio.sleep(0)
            go.set()
            await task
        return run

    assert calls_of(asyncio.run(main()), "late") == [("ok", Tokens(1, 1, 1))]


# What is kept, and when.


def test_a_run_is_saved_at_its_start_each_step_and_its_end(shared: Store) -> None:
    store = shared
    meter = metered_run(
        "planner", store=store, task="todo", source="main", attribution_key="key:key_1", contract_id="con_1"
    )
    with pytest.raises(NotFound):
        recorded(store, meter.id)
    with meter as run:
        assert recorded(store, run.id).ended_at is None
        with run.step("plan") as step:
            step.add(response())
        assert len(recorded(store, run.id).calls) == 1
        run.success, run.score, run.outcome_id = True, 0.5, "out_1"
    found = recorded(store, run.id)
    assert found == run.snapshot
    assert (run.success, run.score, run.outcome_id) == (True, 0.5, "out_1")
    assert (found.success, found.score, found.outcome_id, found.task) == (True, 0.5, "out_1", "todo")
    assert (found.source, found.attribution_key, found.contract_id) == (
        "main",
        AttributionKey(AttributionKind.KEY, "key_1"),
        "con_1",
    )
    with store.database.reading() as connection:
        standing = usage_reading.find(connection, "default", run.id)
    assert (standing.verdict.status, standing.verdict.code) == (UsageStatus.PENDING, UsageCode.NOT_STARTED)
    assert standing.next_observation_at is not None


def test_many_steps_are_saved_each_time_they_grow_by_a_hundredth() -> None:
    kept: list[MeteredRun] = []
    with metered(into=kept.append) as run:
        for number in range(1000):
            with run.step(f"s{number}"):
                pass
    lost = [len(later.steps) - len(earlier.steps) for earlier, later in pairwise(kept)]
    assert len(kept) < 500
    assert max(lost) <= 10


def test_a_failed_save_is_made_up_by_the_next_one() -> None:
    kept: list[MeteredRun] = []
    fails: Callable[[], bool] = lambda: len(kept) == 1  # noqa: E731 - changed below

    def into(run: MeteredRun) -> None:
        if fails():
            raise OSError("the disk is full")
        kept.append(run)

    with pytest.raises(OSError, match="full"), metered(into=into) as run, run.step("a"):
        pass
    assert len(kept) == 1
    kept.clear()
    attempts = iter([False, True, False, False])
    fails = lambda: next(attempts)  # noqa: E731 - as above
    with metered(into=into) as run:
        for name in "ab":
            with run.step(name):
                pass
    assert [len(one.steps) for one in kept] == [0, 2, 2]


def test_an_exception_of_the_agent_is_not_hidden_by_one_of_the_meter() -> None:
    def into(run: MeteredRun) -> None:
        if run.ended_at is not None:
            raise OSError("disk full")

    with pytest.raises(ValueError, match="mine") as raised, metered(into=into):
        raise ValueError("mine")
    assert raised.value.__notes__[0].endswith(": disk full")


def test_a_run_that_cannot_be_saved_does_not_begin(tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path))
    store.close()
    with pytest.raises(StoreError), metered_run("planner", store=store):
        pytest.fail("it must not begin")


# After a crash.


def test_a_run_that_dies_loses_no_step_that_ended_and_can_be_ended(shared: Store, tenant: str) -> None:
    # Nothing of the meter's is left behind: whoever dies does not reach the end of its block.
    dies = metered_run("planner", run_id="died", store=shared, tenant=tenant).__enter__()
    with dies.step("one") as step:
        step.add(response())
    dies.step("two").__enter__().add(response())
    left = recorded(shared, "died", tenant)
    assert (left.ended_at, [one.id for one in left.steps], left.local) == (None, ["one"], Tokens(10, 5, 1))
    ended = end_run(shared, "died", tenant=tenant)
    assert ended.run.ended_at is not None
    assert ended.verdict.code is UsageCode.NOT_STARTED
    assert end_run(shared, "died", tenant=tenant) == ended
    with pytest.raises(UsageRunEnded):
        end_run(shared, "died", ended_at=START + timedelta(days=3650), tenant=tenant)
    with pytest.raises(NotFound):
        end_run(shared, "nobody", tenant=tenant)


def test_a_run_that_died_is_not_overwritten(shared: Store, tenant: str) -> None:
    dies = metered_run("planner", run_id="died", attribution_key="key:k", store=shared, tenant=tenant).__enter__()
    with dies.step("a") as step:
        step.add(response())
    before = recorded(shared, "died", tenant)
    with (
        pytest.raises(UsageRunOpen, match="end died`"),
        metered_run("other", run_id="died", store=shared, tenant=tenant),
    ):
        pytest.fail("it has begun")
    assert recorded(shared, "died", tenant) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [("success", 1), ("success", "no"), ("score", "0.5"), ("score", True), ("score", SimpleNamespace())],
)
def test_a_value_that_could_not_be_saved_is_refused_when_set(field: str, value: Any) -> None:
    with metered() as run, pytest.raises(MeteringError, match=field):
        setattr(run, field, value)
    assert getattr(run.snapshot, field) is None
