"""A verifier that waits for an answer, in a host's own loop: in memory and in a store."""

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel, SecretStr

from meruit.errors import (
    AgentError,
    AgentRunConflict,
    CouldNotVerify,
    NotFound,
    RunCancelled,
    SubmissionConflict,
    VerificationExhausted,
    VerificationRejected,
    VerificationWaiting,
)
from meruit.events.store import outbox
from meruit.gate.gate import Gate
from meruit.gate.run import RunState
from meruit.gate.state import VerificationOutcome
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import CancelRun, ResumeRun, WakeRun
from meruit.gate.tools import Deferred, Pause
from meruit.gate.verdict import Passed, Rejected
from meruit.store.store import Store


class Refund(BaseModel):
    """Up to 10 passes at once; more needs a person, 99 two of them; 66 is asked again after a pause."""

    asked: ClassVar[list[tuple[int, Any]]] = []
    amount: int

    def verify(self, answer: Any = None) -> int | Deferred | Pause:
        Refund.asked.append((self.amount, answer))
        if self.amount == 66 and len(Refund.asked) < 3:
            return Pause(5)
        if self.amount > 10 and answer is None:
            return Deferred(f"may {self.amount} be paid back?", timeout_s=3600)
        if self.amount == 99 and answer == "yes":
            return Deferred("and what does the second one say?")
        if answer == "break":
            raise OSError("down")
        if answer == "no":
            raise VerificationRejected("The operator refused.", code="refused")
        return self.amount


@pytest.fixture(autouse=True)
def _no_one_was_asked() -> None:
    Refund.asked.clear()


async def at_once(_seconds: float) -> None:
    return None


@pytest.fixture(params=["in memory", "kept"])
def gate(request: pytest.FixtureRequest, shared: Store, tenant: str) -> Callable[..., Gate]:
    kept = {} if request.param == "in memory" else {"store": shared, "tenant": tenant}
    return lambda **more: Gate(Refund, **{"sleep": at_once, **kept, **more})


@pytest.fixture
def second(shared: Store) -> Iterator[Store]:
    """The same records, as another process has them."""
    opened = Store.open(shared.database.location)
    yield opened
    opened.close()


def kept_gate(store: Store, tenant: str, **more: Any) -> Gate:
    return Gate(Refund, store=store, tenant=tenant, **{"run_id": "r", "sleep": at_once, **more})


# Any: an answer of the gate.
def submitted(gate: Gate, amount: int, submission_id: str | None = None) -> Any:
    return asyncio.run(gate.submit({"amount": amount}, submission_id=submission_id))


def waiting(gate: Gate, amount: int, submission_id: str | None = None) -> VerificationWaiting:
    with pytest.raises(VerificationWaiting) as waits:
        submitted(gate, amount, submission_id)
    return waits.value


def events_of(store: Store, tenant: str) -> list[str]:
    with store.database.reading() as connection:
        return [str(one.event.event_type) for one in outbox.events_after(connection, 0, tenant=tenant)]


def test_a_deferred_verifier_waits_and_counts_nothing(gate: Callable[..., Gate]) -> None:
    here = gate()
    waits = waiting(here, 40, "a")
    assert (waits.key, waits.note, waits.run_id, waits.gate) == ("verify:1", "may 40 be paid back?", here.run_id, here)
    assert (here.state.attempts_used, here.state.submission_ids, here.state.ended) == (0, (), None)
    # The same again waits on; the verifier is not asked again.
    assert waiting(here, 40, "a").key == waits.key
    assert Refund.asked == [(40, None)]


@pytest.mark.parametrize("answer", ["yes", None, {"by": "ann", "ok": True}, [1, 2.5], ""])
def test_the_answer_lets_the_verifier_pass_it(gate: Callable[..., Gate], answer: Any) -> None:
    here = gate()
    waiting(here, 40)
    if answer is None:
        # None is an answer too; this verifier then asks the next question.
        with pytest.raises(VerificationWaiting):
            asyncio.run(here.resume(answer))
        assert Refund.asked == [(40, None), (40, None)]
        return
    assert asyncio.run(here.resume(answer)) == Passed(40, 1)
    assert Refund.asked == [(40, None), (40, answer)]


def test_the_answer_may_reject_it_and_is_counted_once(gate: Callable[..., Gate]) -> None:
    here = gate(max_attempts=2)
    waiting(here, 40)
    rejected = asyncio.run(here.resume("no", key="verify:1"))
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.attempts_used, rejected.counted) == ("refused", 1, True)
    again = asyncio.run(here.resume("no", key="verify:1"))
    assert again == msgspec.structs.replace(rejected, replayed=True)
    assert Refund.asked == [(40, None), (40, "no")]
    assert submitted(here, 5) == Passed(5, 2)


def test_the_last_attempt_may_be_rejected_by_an_answer(gate: Callable[..., Gate]) -> None:
    here = gate(max_attempts=1)
    waiting(here, 40)
    with pytest.raises(VerificationExhausted):
        asyncio.run(here.resume("no"))
    assert here.state.deferred is None


def test_another_answer_is_refused(gate: Callable[..., Gate]) -> None:
    here = gate()
    waiting(here, 40)
    assert isinstance(asyncio.run(here.resume("no")), Rejected)
    with pytest.raises(AgentRunConflict):
        asyncio.run(here.resume("yes", key="verify:1"))


@pytest.mark.parametrize("named", [{}, {"key": "verify:1"}, {"key": "verify:9"}])
def test_an_answer_that_nothing_waits_for_is_refused(gate: Callable[..., Gate], named: dict[str, Any]) -> None:
    here = gate()
    with pytest.raises((AgentRunConflict, NotFound)):
        asyncio.run(here.resume("yes", **named))
    submitted(here, 5)
    with pytest.raises(AgentRunConflict):
        asyncio.run(here.resume("yes", **named))


def test_an_answer_that_json_cannot_hold_is_refused(gate: Callable[..., Gate]) -> None:
    here = gate()
    waiting(here, 40)
    with pytest.raises(AgentError):
        asyncio.run(here.resume(object()))


def test_without_an_answer_resuming_waits_on(gate: Callable[..., Gate]) -> None:
    here = gate()
    waiting(here, 40)
    with pytest.raises(VerificationWaiting):
        asyncio.run(here.resume())


def test_a_verifier_may_ask_twice(gate: Callable[..., Gate]) -> None:
    here = gate()
    waiting(here, 99, "a")
    with pytest.raises(VerificationWaiting) as more:
        asyncio.run(here.resume("yes"))
    assert more.value.key == "verify:2"
    assert asyncio.run(here.resume("fine")) == Passed(99, 1)
    assert Refund.asked == [(99, None), (99, "yes"), (99, "fine")]


def test_another_candidate_waits_for_the_answer_to_the_first(gate: Callable[..., Gate]) -> None:
    here = gate()
    waits = waiting(here, 40, "a")
    assert waiting(here, 5, "b").key == waits.key
    with pytest.raises(SubmissionConflict):
        submitted(here, 5, "a")
    # A host that was restarted may call the same candidate by another id.
    assert waiting(here, 40, "c").key == waits.key
    assert Refund.asked == [(40, None)]


def test_an_error_after_the_answer_is_retried_with_it(gate: Callable[..., Gate]) -> None:
    here = gate(system_error_limit=2)
    waiting(here, 40)
    with pytest.raises(CouldNotVerify):
        asyncio.run(here.resume("break"))
    assert Refund.asked == [(40, None), (40, "break"), (40, "break")]
    assert (here.state.attempts_used, here.state.last_outcome) == (0, VerificationOutcome.SYSTEM_ERROR)


def test_a_pause_asks_the_verifier_again_and_counts_nothing(gate: Callable[..., Gate]) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    here = gate(sleep=note)
    waiting(here, 66)
    assert (slept, Refund.asked) == ([5.0, 5.0], [(66, None)] * 3)
    assert asyncio.run(here.resume("yes")) == Passed(66, 1)


def test_a_verifier_that_pauses_for_ever_ends(gate: Callable[..., Gate]) -> None:
    def verify(output: Refund, answer: Any = None) -> int | Pause:
        return Pause(1)

    with pytest.raises(CouldNotVerify, match="1,000 times"):
        submitted(gate(verify=verify), 1)


def test_a_host_may_wait_in_place(gate: Callable[..., Gate]) -> None:
    answered: list[float] = []

    async def answer_later(seconds: float) -> None:
        answered.append(seconds)
        if len(answered) == 3:
            await here._submitter.journal.answer("verify:1", b'"yes"')

    here = gate(wait_s=60, sleep=answer_later)
    assert submitted(here, 40) == Passed(40, 1)
    assert answered == [1.0, 1.0, 1.0]
    hasty = gate(wait_s=2.5, sleep=at_once)
    waiting(hasty, 40)


def test_no_answer_in_time_judges_nothing() -> None:
    class Asks(BaseModel):
        def verify(self, answer: Any = None) -> int | Deferred:
            return Deferred("?", timeout_s=1e-9)

    gate = Gate(Asks)
    with pytest.raises(CouldNotVerify, match="no answer came within 1e-09 s"):
        asyncio.run(gate.submit({}))
    assert (gate.state.attempts_used, gate.state.submission_ids) == (0, ())


def test_the_error_keeps_what_another_process_can_use() -> None:
    waits = pickle.loads(pickle.dumps(VerificationWaiting("r", "verify:1", "may it?", object())))
    assert (waits.run_id, waits.key, waits.note, waits.gate) == ("r", "verify:1", "may it?", None)


def test_a_candidate_that_json_does_not_show_whole_is_submitted_again(gate: Callable[..., Gate]) -> None:
    class Pays(BaseModel):
        pin: SecretStr

        def verify(self, answer: Any = None) -> str | Deferred:
            return Deferred("may it?") if answer is None else self.pin.get_secret_value()

    here = Gate(Pays, **({"store": store} if (store := gate()._submitter.journal.__dict__.get("_store")) else {}))
    with pytest.raises(VerificationWaiting):
        asyncio.run(here.submit({"pin": "1234"}))
    with pytest.raises(AgentRunConflict, match="submit the same candidate again"):
        asyncio.run(here.resume("yes"))
    assert asyncio.run(here.submit({"pin": "1234"})) == Passed("1234", 1)


# In a store.


def test_a_waiting_run_is_shown_as_such_and_emits_events(shared: Store, tenant: str) -> None:
    here = kept_gate(shared, tenant)
    waiting(here, 40, "a")
    with shared.database.reading() as connection:
        run = agent_reading.find(connection, tenant, "r")
    assert (run.status, run.waiting_for, run.note) == (RunState.WAITING, "verify:1", "may 40 be paid back?")
    assert (run.is_hosted, run.wake_at is not None) == (True, True)
    assert asyncio.run(here.resume("yes")) == Passed(40, 1)
    assert events_of(shared, tenant) == [
        *("agent_run.started", "verification_started", "agent_run.waiting", "agent_run.resumed"),
        *("verification_passed", "agent_run.completed"),
    ]


def test_an_answer_from_another_process_is_found_after_a_kill(shared: Store, second: Store, tenant: str) -> None:
    waiting(kept_gate(shared, tenant), 40, "a")
    # The first process is gone. Another one answers, as `meruit agent resume` and HTTP do.
    run = second.recorder.write(ResumeRun(tenant, "r", "verify:1", b'"yes"'))
    assert (run.status, run.waiting_for) == (RunState.RUNNING, None)
    third = kept_gate(second, tenant)
    assert asyncio.run(third.resume()) == Passed(40, 1)
    assert submitted(kept_gate(second, tenant), 40, "a") == Passed(40, 1, replayed=True)
    assert Refund.asked == [(40, None), (40, "yes")]


def test_the_host_may_submit_the_same_candidate_again_instead(shared: Store, second: Store, tenant: str) -> None:
    waiting(kept_gate(shared, tenant), 40, "a")
    second.recorder.write(ResumeRun(tenant, "r", "verify:1", b'"no"'))
    rejected = submitted(kept_gate(second, tenant), 40, "a")
    assert (rejected.code, rejected.attempts_used) == ("refused", 1)


@pytest.mark.parametrize(("answer", "expected"), [("no", Passed(5, 2)), ("yes", Passed(40, 1, replayed=True))])
def test_an_answered_candidate_that_its_host_has_lost_is_judged_first(
    shared: Store, second: Store, tenant: str, answer: str, expected: Passed
) -> None:
    waiting(kept_gate(shared, tenant), 40, "a")
    second.recorder.write(ResumeRun(tenant, "r", "verify:1", f'"{answer}"'.encode()))
    # The host was killed, and its model proposes something else now.
    assert submitted(kept_gate(second, tenant), 5, "b") == expected
    assert Refund.asked[:2] == [(40, None), (40, answer)]


def test_one_submission_deferred_in_two_processes_waits_once(shared: Store, second: Store, tenant: str) -> None:
    mine, theirs = kept_gate(shared, tenant), kept_gate(second, tenant)

    async def both() -> Any:
        return await asyncio.gather(
            *(one.submit({"amount": 40}, submission_id="a") for one in (mine, theirs)), return_exceptions=True
        )

    found = asyncio.run(both())
    assert [(type(one), one.key) for one in found] == [(VerificationWaiting, "verify:1")] * 2
    assert events_of(shared, tenant).count("agent_run.waiting") == 1


def test_two_candidates_deferred_in_two_processes_are_one_conflict(shared: Store, second: Store, tenant: str) -> None:
    mine, theirs = kept_gate(shared, tenant), kept_gate(second, tenant)

    async def both() -> Any:
        calls = [mine.submit({"amount": 40}, submission_id="a"), theirs.submit({"amount": 50}, submission_id="b")]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert {type(one) for one in asyncio.run(both())} <= {VerificationWaiting, AgentRunConflict}
    assert events_of(shared, tenant).count("agent_run.waiting") == 1


def test_a_cancelled_run_waits_no_more(shared: Store, tenant: str) -> None:
    here = kept_gate(shared, tenant)
    waiting(here, 40, "a")
    assert shared.recorder.write(CancelRun(tenant, "r")).status is RunState.CANCELLED
    with pytest.raises(RunCancelled):
        submitted(here, 40, "a")


def test_a_worker_that_ends_the_wait_judges_nothing(shared: Store, tenant: str) -> None:
    class Asks(BaseModel):
        def verify(self, answer: Any = None) -> int | Deferred:
            return Deferred("?", timeout_s=1e-6)

    here = Gate(Asks, store=shared, tenant=tenant, run_id="r")
    here._submitter.journal.find_answer_to = _nothing_yet  # type: ignore[method-assign, assignment]
    with pytest.raises(VerificationWaiting):
        asyncio.run(here.submit({}, submission_id="a"))
    shared.recorder.write(WakeRun(tenant, "r", "verify:1", b""))
    with pytest.raises(CouldNotVerify):
        asyncio.run(Gate(Asks, store=shared, tenant=tenant, run_id="r").submit({}, submission_id="a"))


async def _nothing_yet(_waiting: Any) -> None:
    return None


# One id, one candidate.


def test_a_reused_id_with_another_candidate_is_a_conflict(gate: Callable[..., Gate]) -> None:
    here = gate(verify=_at_least_five)
    first = submitted(here, 1, "a")
    with pytest.raises(SubmissionConflict) as conflict:
        submitted(here, 9, "a")
    assert (conflict.value.code, conflict.value.status, conflict.value.submission_id) == (
        "submission_conflict",
        409,
        "a",
    )
    assert submitted(here, 1, "a") == msgspec.structs.replace(first, replayed=True)
    assert here.state.attempts_used == 1
    assert submitted(here, 9, "b") == Passed(9, 2)
    with pytest.raises(SubmissionConflict):
        submitted(here, 1, "b")


def test_a_reused_id_with_another_payload_is_a_conflict(gate: Callable[..., Gate]) -> None:
    here = gate(verify=_at_least_five)

    async def submit(payload: Any) -> Any:
        return await here.submit(payload, submission_id="a")

    first = asyncio.run(submit({"amount": "x"}))
    assert asyncio.run(submit({"amount": "x"})) == msgspec.structs.replace(first, replayed=True)
    for other in ({"amount": "y"}, {"amount": 9}):
        with pytest.raises(SubmissionConflict):
            asyncio.run(submit(other))


def test_two_processes_that_use_an_id_for_two_candidates_conflict(shared: Store, second: Store, tenant: str) -> None:
    stale = kept_gate(second, tenant, verify=_at_least_five)
    assert submitted(kept_gate(shared, tenant, verify=_at_least_five), 1, "a").counted
    # It has looked before the other one submitted.
    stale._submitter.journal.is_shared = False  # type: ignore[attr-defined]
    with pytest.raises(SubmissionConflict):
        submitted(stale, 9, "a")
    with shared.database.reading() as connection:
        assert len(agent_reading.submissions(connection, tenant, "r")) == 1


def test_a_conflict_keeps_its_id_when_pickled() -> None:
    assert pickle.loads(pickle.dumps(SubmissionConflict("a"))).submission_id == "a"


def _at_least_five(output: Refund) -> int:
    if output.amount < 5:
        raise VerificationRejected("too little")
    return output.amount


# What another process does meanwhile.


def stale_gate(store: Store, tenant: str, **more: Any) -> Gate:
    """A gate that has read the state before others changed it."""
    made = kept_gate(store, tenant, **more)
    made._submitter.journal.is_shared = False  # type: ignore[attr-defined]
    return made


def test_a_verdict_that_another_process_has_recorded_is_replayed(shared: Store, second: Store, tenant: str) -> None:
    first = submitted(kept_gate(shared, tenant, verify=_at_least_five), 9, "a")
    assert submitted(stale_gate(second, tenant, verify=_at_least_five), 9, "a") == msgspec.structs.replace(
        first, replayed=True
    )


def test_a_question_about_a_run_that_is_over_is_a_conflict(shared: Store, second: Store, tenant: str) -> None:
    assert submitted(kept_gate(shared, tenant), 5, "a") == Passed(5, 1)
    with pytest.raises(AgentRunConflict):
        submitted(stale_gate(second, tenant), 40, "b")


def test_an_unknown_question_is_a_conflict(gate: Callable[..., Gate]) -> None:
    here = gate()
    waiting(here, 40)
    with pytest.raises(AgentRunConflict):
        asyncio.run(here.resume(key="verify:9"))


def test_no_answer_in_time_is_found_without_a_worker(shared: Store, tenant: str) -> None:
    class Asks(BaseModel):
        def verify(self, answer: Any = None) -> int | Deferred:
            return Deferred("?", timeout_s=1e-6)

    here = Gate(Asks, store=shared, tenant=tenant, run_id="r")
    with pytest.raises(CouldNotVerify):
        asyncio.run(here.submit({}))
    with shared.database.reading() as connection:
        run = agent_reading.find(connection, tenant, "r")
    assert (run.status, run.ending, run.waiting_for) == (RunState.FAILED, "system_error", None)
