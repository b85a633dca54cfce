"""The gate of a loop that somebody else owns: what is counted, what is answered twice, what is for good."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from meruit.errors import (
    AgentError,
    BudgetError,
    CouldNotVerify,
    RunCancelled,
    RunFenced,
    VerificationExhausted,
    VerificationRejected,
)
from meruit.events.store import outbox
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.gate import SCHEMA_ERROR, Gate
from meruit.gate.run import RunRequest
from meruit.gate.state import VerificationOutcome
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import CancelRun, QueueRun
from meruit.gate.verdict import Passed, Rejected
from meruit.store.store import Store


class Final(BaseModel):
    n: int
    attempt: int


class Out(BaseModel):
    """Good from 10 on; 7 can never be mended; below zero the verifier breaks."""

    asked: ClassVar[list[int]] = []
    n: int

    def verify(self, attempt: int, max_attempts: int) -> Final:
        Out.asked.append(self.n)
        if self.n < 0:
            raise ConnectionError(f"no way to judge {self.n}")
        if self.n < 10:
            raise VerificationRejected(
                f"{self.n} is too small ({attempt} of {max_attempts})", retryable=self.n != 7, code="small"
            )
        return Final(n=self.n, attempt=attempt)


@pytest.fixture(autouse=True)
def _nobody_was_asked() -> None:
    Out.asked.clear()


@pytest.fixture(params=["in memory", "kept"])
def gate(request: pytest.FixtureRequest, shared: Store, tenant: str) -> Callable[..., Gate]:
    """Gates of one tenant, with a record and without."""
    kept = {} if request.param == "in memory" else {"store": shared, "tenant": tenant}

    def made(kind: Any = Out, **more: Any) -> Gate:
        return Gate(kind, **{"sleep": at_once, **kept, **more})

    return made


@pytest.fixture
def second(shared: Store) -> Iterator[Store]:
    """The same records, as another process has them."""
    opened = Store.open(shared.database.location)
    yield opened
    opened.close()


async def at_once(_seconds: float) -> None:
    return None


# Any: an answer, or what was raised instead.
async def heard(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except (VerificationExhausted, CouldNotVerify) as over:
        return over


def submitted(gate: Gate, *numbers: Any, named: bool = False) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return [
            await heard(gate.submit({"n": number}, submission_id=str(place) if named else None))
            for place, number in enumerate(numbers)
        ]

    return asyncio.run(all_of_them())


def test_completes_on_verifier_pass(gate: Callable[..., Gate]) -> None:
    here = gate()
    assert submitted(here, 10) == [Passed(Final(n=10, attempt=1), 1)]
    assert here.state.attempts_used == 0
    assert here.state.last_outcome is VerificationOutcome.PASSED


def test_rejects_and_continues_until_pass(gate: Callable[..., Gate]) -> None:
    here = gate()
    first, second_, last = submitted(here, 1, 2, 11)
    assert (first.attempt, first.attempts_used, first.counted, first.code, first.replayed) == (
        1,
        1,
        True,
        "small",
        False,
    )
    assert first.feedback.startswith('<verification_rejected code="small" retryable="true">\nSummary: 1 is too small')
    assert (second_.attempt, second_.attempts_used) == (2, 2)
    assert last == Passed(Final(n=11, attempt=3), 3)
    assert here.state.attempts_used == 2


@pytest.mark.parametrize("budget", [1, 5])
def test_fails_after_verify_max_attempts_rejections(gate: Callable[..., Gate], budget: int) -> None:
    here = gate(max_attempts=budget)
    # Numbers that the verifier rejects and would let a revision mend.
    *before, last, late = submitted(here, *[0, 1, 2, 3, 4, 5][: budget + 1])
    assert [type(one) for one in before] == [Rejected] * (budget - 1)
    assert isinstance(last, VerificationExhausted)
    assert (last.reason, last.attempts_used, last.code) == ("attempts", budget, "small")
    assert isinstance(late, VerificationExhausted)
    assert late.reason == "attempts"
    assert len(Out.asked) == budget


def test_a_candidate_that_passes_on_the_last_attempt_passes(gate: Callable[..., Gate]) -> None:
    assert [type(one) for one in submitted(gate(max_attempts=2), 1, 10)] == [Rejected, Passed]


def test_a_b_a_counts_three(gate: Callable[..., Gate]) -> None:
    answers = submitted(gate(), 1, 2, 1)
    assert [one.attempts_used for one in answers] == [1, 2, 3]
    assert "at attempt 1." in answers[2].feedback


def test_two_hundred_identical_resubmissions_end_as_no_progress(gate: Callable[..., Gate]) -> None:
    answers = submitted(gate(), *[1] * 200)
    assert [one.counted for one in answers[:3]] == [True, False, False]
    assert {one.reason for one in answers[3:]} == {"no_progress"}
    assert {one.attempts_used for one in answers[3:]} == {1}
    # Every new submission is verified: the world may have changed, and the candidate not.
    assert Out.asked == [1] * 4


def test_a_rejection_that_no_revision_can_mend_ends_at_once(gate: Callable[..., Gate]) -> None:
    first, late = submitted(gate(), 7, 10)
    assert (first.reason, first.attempts_used, first.message) == ("rejected_final", 1, "7 is too small (1 of 5)")
    assert isinstance(late, VerificationExhausted)
    assert Out.asked == [7]


def test_does_not_double_count_same_rejected_candidate_on_worker_retry(gate: Callable[..., Gate]) -> None:
    here = gate(max_attempts=2)
    a, again, b, b_again, a_again = asyncio.run(retried_with(here))
    assert again == msgspec.structs.replace(a, replayed=True) == a_again
    assert isinstance(b, VerificationExhausted)
    # A rejection that ended the run ends it again; it never turns into one that lets the model go on.
    assert (b_again.reason, b_again.attempts_used) == (b.reason, b.attempts_used) == ("attempts", 2)
    assert Out.asked == [1, 2]
    assert here.state.attempts_used == 2


async def retried_with(gate: Gate) -> list[Any]:
    names = (("a", 1), ("a", 1), ("b", 2), ("b", 2), ("a", 1))
    return [await heard(gate.submit({"n": n}, submission_id=name)) for name, n in names]


def test_a_pass_is_for_good_whatever_comes_after(gate: Callable[..., Gate]) -> None:
    first, other = submitted(gate(), 10, 1)
    assert other == msgspec.structs.replace(first, replayed=True)
    assert Out.asked == [10]


def test_a_payload_that_fails_the_model_costs_no_attempt(gate: Callable[..., Gate]) -> None:
    here = gate()
    first, second_, judged = submitted(here, "x", None, 1)
    head, problem, *_ = first.feedback.split("\n")
    assert head.startswith("<output_invalid ")
    assert 'tries_left="2"' in head
    assert problem.startswith("n: Input")
    assert (first.counted, second_.attempts_used, judged.attempts_used) == (False, 0, 1)
    over = submitted(gate(), "x", "y", "z")[-1]
    assert (over.reason, over.attempts_used) == ("schema_errors", 0)


@pytest.mark.parametrize("payload", ["\ud800", "\0", object(), None, [1], b"\xff"])
def test_any_wrong_payload_gets_its_problems(gate: Callable[..., Gate], payload: Any) -> None:
    told = asyncio.run(gate().submit(payload))
    assert isinstance(told, Rejected)
    assert told.feedback.startswith("<output_invalid")


def test_a_system_error_is_retried_with_growing_pauses(gate: Callable[..., Gate]) -> None:
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)

    here = gate(sleep=noted)
    broken, late = submitted(here, -1, 10)
    assert isinstance(broken, CouldNotVerify)
    assert str(broken) == "ConnectionError: no way to judge -1"
    assert isinstance(late, CouldNotVerify)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert Out.asked == [-1] * 5
    assert here.state.attempts_used == 0


class Shaky(BaseModel):
    broken: ClassVar[list[Exception]] = []
    n: int = 0

    async def verify(self) -> int:
        if Shaky.broken:
            raise Shaky.broken.pop()
        return self.n


def test_a_verifier_that_recovers_has_cost_nothing(gate: Callable[..., Gate]) -> None:
    Shaky.broken[:] = [OSError(), OSError()]
    here = gate(Shaky)
    assert asyncio.run(here.submit({"n": 3})) == Passed(3, 1)
    assert here.state.system_errors == 0


def test_a_timeout_counts_nothing(gate: Callable[..., Gate]) -> None:
    async def verify(output: Out) -> int:
        await asyncio.sleep(60)
        return 1

    here = gate(verify=verify, timeout_s=0.001, system_error_limit=2)
    (late,) = submitted(here, 1)
    assert isinstance(late, CouldNotVerify)
    assert "0.001 s" in str(late)
    assert here.state.attempts_used == 0


def test_a_timeout_raised_by_the_verifier_is_its_own_error(gate: Callable[..., Gate]) -> None:
    async def verify(output: Out) -> int:
        raise TimeoutError("slow database")

    (late,) = submitted(gate(verify=verify), 1)
    assert str(late) == "TimeoutError: slow database"


def test_a_cancellation_counts_nothing(gate: Callable[..., Gate]) -> None:
    begun = asyncio.Event()

    async def verify(output: Out) -> int:
        if output.n == 1:
            begun.set()
            await asyncio.sleep(60)
        return output.n

    here = gate(verify=verify)

    async def cancelled() -> Passed | Rejected:
        task = asyncio.create_task(here.submit({"n": 1}))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await here.submit({"n": 2})

    assert asyncio.run(cancelled()) == Passed(2, 1)


# Any: whatever a verifier may do.
def _stops(output: Out) -> Any:
    return next(iter([]))


def _exits(output: Out) -> Any:
    raise SystemExit(2)


async def _exits_in_the_loop(output: Out) -> Any:
    raise SystemExit(2)


@pytest.mark.parametrize("verify", [_stops, _exits, _exits_in_the_loop])
def test_a_verifier_that_exits_does_not_end_its_host(gate: Callable[..., Gate], verify: Callable[[Out], Any]) -> None:
    (broken,) = submitted(gate(verify=verify, timeout_s=30, system_error_limit=1), 1)
    assert isinstance(broken, CouldNotVerify)
    assert str(broken).startswith(("RuntimeError: StopIteration", "SystemExit: 2"))


def _nothing(output: Out) -> Any:
    return None


def _nothing_meant(output: Out) -> None:
    return None


def _unwritable(output: Out) -> Any:
    return lambda: 1


def _not_a_number(output: Out) -> Any:
    return float("nan")


@pytest.mark.parametrize(
    ("verify", "why"),
    [
        (_nothing, "-> None"),
        (_unwritable, " function "),
        (_not_a_number, " float "),
    ],
)
def test_none_or_an_unserialisable_result_is_refused_clearly_and_at_once(
    gate: Callable[..., Gate], verify: Callable[[Out], Any], why: str
) -> None:
    here = gate(verify=verify)
    (refused,) = submitted(here, 1)
    assert isinstance(refused, CouldNotVerify)
    assert why in str(refused)
    assert here.state.attempts_used == 0


def test_none_is_a_result_where_the_verifier_says_so(gate: Callable[..., Gate]) -> None:
    assert submitted(gate(verify=_nothing_meant), 1) == [Passed(None, 1)]


@settings(max_examples=15)
@given(
    st.text(max_size=200), st.text(max_size=40), st.dictionaries(st.text(max_size=10), st.text(max_size=30), max_size=3)
)
def test_hostile_messages_cannot_break_out_of_the_feedback_block(
    message: str, code: str, metadata: dict[str, Any]
) -> None:
    async def verify(output: Out) -> int:
        raise VerificationRejected(f"{message}</verification_rejected>", code=f'{code}">', metadata=metadata)

    (told,) = submitted(Gate(Out, verify=verify), 1)
    assert told.feedback.count("<") == told.feedback.count(">") == 2
    assert told.feedback.endswith("\n</verification_rejected>")


def test_what_no_database_keeps_can_still_be_a_rejection(store: Store) -> None:
    async def verify(output: Out) -> int:
        raise VerificationRejected("a\0b\ud800", code="c\0d\ud800", metadata={"e\0": "f\0\ud800"})

    here = Gate(Out, verify=verify, store=store)
    (told,) = submitted(here, 1)
    assert isinstance(told, Rejected)
    with store.database.reading() as connection:
        (kept,) = agent_reading.submissions(connection, "default", here.run_id)
    assert kept.code == told.code == "cd\\ud800"


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800", "a\nb"])
def test_a_submission_may_be_named_as_its_provider_likes(store: Store, name: str) -> None:
    here = Gate(Out, store=store)

    async def twice() -> tuple[Any, Any]:
        return await here.submit({"n": 1}, submission_id=name), await here.submit({"n": 1}, submission_id=name)

    first, again = asyncio.run(twice())
    assert again == msgspec.structs.replace(first, replayed=True)


def test_submissions_at_the_same_time_are_judged_one_after_the_other(gate: Callable[..., Gate]) -> None:
    here = gate(max_attempts=50, no_progress_limit=50)

    async def at_the_same_time() -> list[Passed | Rejected]:
        return await asyncio.gather(*(here.submit({"n": n % 7}) for n in range(20)))

    answers = asyncio.run(at_the_same_time())
    assert [one.attempts_used for one in answers if isinstance(one, Rejected)] == [*range(1, 21)]


def test_equal_candidates_are_recalled_for_a_deterministic_verifier(
    gate: Callable[..., Gate],
) -> None:
    class Sure(Out):
        verify_deterministic: ClassVar[bool] = True

    answers = submitted(gate(Sure), 1, 2, 1)
    assert Out.asked == [1, 2]
    assert [one.attempts_used for one in answers] == [1, 2, 3]
    assert "Summary: 1 is too small (1 of 5)" in answers[2].feedback


def test_a_new_verifier_version_is_called_again_and_counts_on(shared: Store, tenant: str) -> None:
    asked: list[str] = []

    def version(number: str) -> Callable[[Out], int]:
        def verify(output: Out) -> int:
            asked.append(number)
            raise VerificationRejected("no")

        vars(verify).update(verify_version=number, verify_deterministic=True)
        return verify

    def here(number: str) -> Gate:
        return Gate(Out, verify=version(number), store=shared, tenant=tenant, run_id="versions", no_progress_limit=9)

    first = submitted(here("1"), 1, 1)
    later = here("2")
    second = submitted(later, 1, 2)
    assert asked == ["1", "2", "2"]
    assert [one.attempts_used for one in (*first, *second)] == [1, 1, 1, 2]
    assert later.state.verifier_version == "2"


def test_what_a_verifier_wants_of_the_run_it_is_given(gate: Callable[..., Gate]) -> None:
    given: dict[str, Any] = {}

    async def verify(
        output: Out, agent_ctx: AgentContext, where: ExecutionContext, submission_id: str, deps: Any
    ) -> int:
        given.update(ctx=agent_ctx, run=where.run_id, submission=submission_id, deps=deps)
        return 1

    here = gate(verify=verify, deps="mine", run_id=f"given-{id(gate)}")
    own = AgentContext(run_id="x", payload={"a": 1})
    asyncio.run(here.submit(Out(n=1), submission_id="s", agent_ctx=own))
    assert given == {"ctx": own, "run": here.run_id, "submission": f"{here.run_id}:s", "deps": "mine"}


def test_a_gate_without_a_verifier_or_with_a_wrong_budget_is_refused() -> None:
    with pytest.raises(AgentError, match="int"):
        Gate(int)
    with pytest.raises(AgentError, match="'Out'"):
        Gate("Out")
    # A path where a store is wanted, as somebody would write it.
    folder: Any = "./records"
    with pytest.raises(AgentError, match=r"str.*open_records\('./records'\)"):
        Gate(Out, store=folder)
    # Any: settings of several kinds.
    wrong: list[dict[str, Any]] = [
        *({"max_attempts": 0}, {"no_progress_limit": True}, {"schema_error_limit": -1}, {"system_error_limit": 1001}),
    ]
    for settings_ in wrong:
        with pytest.raises(BudgetError, match="1,000"):
            Gate(Out, **settings_)


def test_payloads_of_the_wrong_shape_end_a_run_in_plain_words(gate: Callable[..., Gate]) -> None:
    here = gate(schema_error_limit=1)
    for told in ("n: Input should be a valid integer", SCHEMA_ERROR):
        with pytest.raises(VerificationExhausted) as over:
            asyncio.run(here.submit({"n": "x"}, submission_id="s"))
        assert over.value.message.startswith(told)


# More than one process


def kept_gate(store: Store, tenant: str, **more: Any) -> Gate:
    return Gate(Out, store=store, tenant=tenant, run_id="r", sleep=at_once, **more)


def test_a_restart_with_the_same_run_goes_on_where_it_was(shared: Store, tenant: str) -> None:
    before = submitted(kept_gate(shared, tenant), 1, 2, named=True)
    later = kept_gate(shared, tenant)
    after = submitted(later, 1, 2, 10, named=True)
    assert after[:2] == [msgspec.structs.replace(one, replayed=True) for one in before]
    assert after[2] == Passed(Final(n=10, attempt=3), 3)
    assert Out.asked == [1, 2, 10]
    # The pass was kept before anybody heard of it: it is served, as the type that the verifier returns.
    assert (
        submitted(kept_gate(shared, tenant), 1, 2, 10, 3, named=True)[2:]
        == [msgspec.structs.replace(after[2], replayed=True)] * 2
    )
    assert Out.asked == [1, 2, 10]
    with shared.database.reading() as connection:
        run = agent_reading.find(connection, tenant, "r")
    assert (run.status, run.result, run.verification.attempts_used) == ("completed", {"n": 10, "attempt": 3}, 2)


def test_the_budget_of_a_run_is_the_one_that_it_began_with(shared: Store, tenant: str) -> None:
    submitted(kept_gate(shared, tenant, max_attempts=2), 1)
    (over,) = submitted(kept_gate(shared, tenant, max_attempts=9), 2)
    assert (over.reason, over.attempts_used) == ("attempts", 2)


def test_two_processes_on_one_run_count_together(shared: Store, second: Store, tenant: str) -> None:
    mine, theirs = kept_gate(shared, tenant, max_attempts=4), kept_gate(second, tenant)
    answers = [*submitted(mine, 1), *submitted(theirs, 2), *submitted(mine, 3), *submitted(theirs, 4)]
    assert [one.attempts_used for one in answers] == [1, 2, 3, 4]
    assert answers[3].reason == "attempts"
    (late,) = submitted(mine, 10)
    assert isinstance(late, VerificationExhausted)
    assert (late.reason, mine.state) == ("attempts", theirs.state)


def test_a_candidate_of_another_process_is_never_taken_for_ones_own(shared: Store, second: Store, tenant: str) -> None:
    mine, theirs = kept_gate(shared, tenant), kept_gate(second, tenant)
    submitted(mine, 1)
    submitted(theirs, 2)
    (bad,) = submitted(mine, 3)
    (good,) = submitted(theirs, 10)
    assert (bad.attempts_used, good) == (3, Passed(Final(n=10, attempt=4), 4))
    # The run has its result, and nobody is asked again.
    assert submitted(mine, 4) == [Passed(Final(n=10, attempt=4), 4, replayed=True)]
    assert Out.asked == [1, 2, 3, 10]
    assert mine.state.attempts_used == 3


def test_one_submission_judged_in_two_processes_is_answered_once(shared: Store, second: Store, tenant: str) -> None:
    mine, theirs = kept_gate(shared, tenant), kept_gate(second, tenant)

    async def both() -> list[Any]:
        for gate in (mine, theirs):
            await gate.submit({"n": "misfit"}, submission_id="0")
        first = await mine.submit({"n": 10}, submission_id="1")
        return [first, await theirs.submit({"n": 10}, submission_id="1")]

    first, again = asyncio.run(both())
    assert again == msgspec.structs.replace(first, replayed=True)
    assert Out.asked == [10]
    assert mine.state == theirs.state


def test_what_another_process_submits_meanwhile_is_read(shared: Store, second: Store, tenant: str) -> None:
    entered, released = asyncio.Event(), asyncio.Event()

    async def reject(output: Out) -> int:
        raise VerificationRejected("no")

    async def reject_late(output: Out) -> int:
        entered.set()
        await released.wait()
        raise VerificationRejected("no")

    async def both() -> Any:
        mine = Gate(Out, verify=reject, store=shared, tenant=tenant, run_id="r", max_attempts=9)
        theirs = Gate(Out, verify=reject_late, store=second, tenant=tenant, run_id="r", max_attempts=9)
        await mine.submit({"n": 1})
        late = asyncio.create_task(theirs.submit({"n": 2}))
        await entered.wait()
        # What the other one knows of the run is not all of it any more.
        await mine.submit({"n": 2})
        await mine.submit({"n": 3})
        released.set()
        return await late

    answer = asyncio.run(both())
    assert (answer.counted, answer.attempts_used) == (True, 4)
    assert "The same candidate was rejected at attempt 2." in answer.feedback


def test_a_run_that_was_cancelled_takes_no_more_submissions(shared: Store, tenant: str) -> None:
    here = kept_gate(shared, tenant)
    submitted(here, 1)
    shared.recorder.write(CancelRun(tenant, "r"))
    with pytest.raises(RunCancelled):
        submitted(here, 2)


def test_a_run_of_a_worker_is_not_a_gates(shared: Store, tenant: str) -> None:
    shared.recorder.write(QueueRun(tenant, "me", "r", "a", RunRequest("do it")))
    with pytest.raises(RunFenced, match="run r "):
        submitted(kept_gate(shared, tenant), 1)


def test_emits_expected_verification_events(store: Store) -> None:
    here = Gate(Out, store=store, tenant="told", agent="coder", sleep=at_once)
    submitted(here, 1, "misfit", 1, 10)
    with store.database.reading() as connection:
        events = [one.event for one in outbox.events_after(connection, 0, tenant="told")]
    assert [one.event_type for one in events] == [
        *("agent_run.started", "verification_started", "verification_rejected", "verification_attempt_counted"),
        *("verification_started", "verification_rejected"),
        *("verification_started", "verification_passed", "agent_run.completed"),
    ]
    assert len({one.idempotency_key for one in events}) == len(events)
    started = [one.data for one in events if one.event_type == "verification_started"]
    assert [(one["attempt"], one["max_attempts"]) for one in started] == [(1, 5), (2, 5), (2, 5)]
    assert {one.data["agent"] for one in events} == {"coder"}


@pytest.mark.parametrize("wrong", ["5", 0, -1, float("nan"), float("inf"), True])
def test_a_time_limit_that_is_none_is_refused_where_it_is_written(gate: Callable[..., Gate], wrong: Any) -> None:
    with pytest.raises(BudgetError, match="timeout_s"):
        gate(timeout_s=wrong)


def test_a_payload_that_cannot_even_be_shown_is_a_misfit_all_the_same(gate: Callable[..., Gate]) -> None:
    class Shy:
        def __str__(self) -> str:
            raise ConnectionError

    answer = asyncio.run(gate().submit(Shy()))
    assert isinstance(answer, Rejected)
    assert not answer.counted


def test_a_submission_is_named_by_text(gate: Callable[..., Gate]) -> None:
    with pytest.raises(AgentError, match=r"submission_id.*int"):
        asyncio.run(gate().submit({"n": 1}, submission_id=7))  # type: ignore[arg-type]


def test_a_verifier_that_a_function_made_goes_by_what_that_was_given(gate: Callable[..., Gate]) -> None:
    def made(least: int) -> Any:
        def verify(output: Any) -> Any:
            return output if output.n >= least else None

        return verify

    assert gate(verify=made(1)).verifier.version == gate(verify=made(1)).verifier.version
    assert gate(verify=made(1)).verifier.version != gate(verify=made(2)).verifier.version


# What stays in memory.


class Noted(VerificationRejected):
    """A rejection that can be watched."""

    seen: ClassVar[list[weakref.ref["Noted"]]] = []

    def __init__(self) -> None:
        super().__init__("no")
        Noted.seen.append(weakref.ref(self))


class Refused(BaseModel):
    async def verify(self) -> None:
        raise Noted


def test_nothing_of_a_submission_is_left_to_the_garbage_collector(gate: Callable[..., Gate]) -> None:
    Noted.seen.clear()
    gc.collect()
    gc.disable()
    try:
        made = gate(Refused)
        watched = weakref.ref(made)
        assert isinstance(asyncio.run(made.submit({})), Rejected)
        del made
        assert [one() for one in Noted.seen] == [None]
        assert watched() is None
    finally:
        gc.enable()
