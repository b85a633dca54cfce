"""Journals: the same run whichever keeps it, and whoever dies at whichever step of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from tests.events.emitting import Clock
from tests.outcomes.making import CRITERIA, ENGINE, body_of

from meruit.errors import MeruitError, RunFenced, VerificationRejected
from meruit.events.store import outbox
from meruit.gate.accounting import AccountedSubmission, AnsweredSubmission, PriorAnswer, SubmissionResult
from meruit.gate.agent import Agent
from meruit.gate.ask_verifier import ask_verifier
from meruit.gate.context import AgentContext, CriteriaJudgement, ExecutionContext
from meruit.gate.definition import OUTPUT_TOOL, Candidate, OutputType
from meruit.gate.journal import (
    DescribeStart,
    Journal,
    MemoryJournal,
    NewDeferral,
    StepFunction,
    StoreJournal,
    outcome_of,
)
from meruit.gate.loop import DriveResult, RunDone, RunFailed, RunSuspended, drive
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.state import OpenDeferral, SchemaErrorFound, VerificationState
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import WAIT, ClaimRun, EndRun, ParkRun, QueueRun, ResumeRun, RunFailure
from meruit.gate.store.submissions import DeferredCandidate
from meruit.gate.tools import Deferred, tool
from meruit.gate.verdict import Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.model.chat import ToolCall
from meruit.model.time import from_micros
from meruit.store.store import Store
from meruit.testing import ScriptedModel, ScriptLine, calls, says, submits

GIVEN = b'"approved"'
_NUMBERS = count()
T = TypeVar("T")


class Out(BaseModel):
    n: int


class Basket(AgentContext):
    seen: list[int] = Field(default_factory=list)


class Scene(Agent):
    """An agent whose contexts, calls and verifications can be looked at afterwards."""

    def __init__(self, script: Sequence[ScriptLine]) -> None:
        self.asked = ScriptedModel(script)
        self.contexts: list[AgentContext] = []
        self.verified: list[int] = []
        self.broke: set[int] = set()
        self.called: list[str] = []

        def look(basket: Basket, at: int) -> int:
            """Looks at something."""
            self.called.append("look")
            basket.seen.append(at)
            return len(basket.seen)

        def ask() -> Any:
            """Asks somebody."""
            self.called.append("ask")
            return Deferred("approval")

        def verify(output: Out, basket: Basket, attempt: int) -> Any:
            self.verified.append(output.n)
            if output.n < 0 and output.n not in self.broke:
                self.broke.add(output.n)
                raise OSError("once")
            if output.n < 10:
                raise VerificationRejected(f"{output.n} at attempt {attempt}", retryable=output.n != 7)
            return {"n": output.n, "seen": basket.seen, "attempt": attempt, "messages": len(basket.messages)}

        super().__init__(
            "scene",
            "go",
            self.asked,
            [look, ask],
            Out,
            verify_max_attempts=4,
            verify=verify,
            no_progress_limit=2,
            schema_error_limit=2,
            max_turns=len(script),
            context_type=Basket,
        )

    def done(self) -> int:
        """How often anything was asked or called."""
        return len(self.asked.asked) + len(self.called) + len(self.verified)

    def context(self, run: AgentRun) -> AgentContext:
        made = super().context(run)
        self.contexts.append(made)
        return made


class Seen(NamedTuple):
    """All that can be seen of a run once it is over."""

    end: RunDone | RunFailed
    messages: list[dict[str, Any]]
    state: VerificationState
    basket: list[int]


def seen(scene: Scene, end: RunDone | RunFailed) -> Seen:
    last = scene.contexts[-1]
    assert isinstance(last, Basket)
    # When it was is nobody's business here.
    state = msgspec.structs.replace(last.verification, last_attempt_at=None)
    if isinstance(end, RunDone):
        end = msgspec.structs.replace(end, returned=None)
    return Seen(end, last.messages, state, last.seen)


async def in_memory(scene: Scene) -> Seen:
    state = VerificationState(limits=scene.limits())
    run = AgentRun("r", 0, "scene", RunState.RUNNING, RunRequest("q"), from_micros(0), "", verification=state)
    journal = MemoryJournal(lambda: 0.0)

    async def given() -> bytes:
        return GIVEN

    while True:
        end = await drive(scene, run, journal, ExecutionContext())
        if not isinstance(end, RunSuspended):
            return seen(scene, end)
        if end.waiting_for is not None:
            await journal.step(f"{WAIT}{end.waiting_for}", given)


class Died(Exception):
    """A worker, at the step where a test wants it."""


class Dying:
    """A journal whose worker dies at some step: when it is kept, or just before."""

    def __init__(self, journal: StoreJournal, steps: int, *, kept: bool) -> None:
        self._journal, self._left, self._kept = journal, steps, kept

    async def load_state(self) -> VerificationState | None:
        return await self._journal.load_state()

    def find_step(self, key: str) -> bytes | None:
        return self._journal.find_step(key)

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:
        if self.find_step(key) is None and self._dies() and not self._kept:
            await work()
            raise Died
        gave = await self._journal.step(key, work, started)
        return self._lives(gave)

    async def submit(
        self, state: VerificationState, submission: AnsweredSubmission, key: str | None = None
    ) -> AccountedSubmission:
        if self.find_step(key or "") is None and self._dies() and not self._kept:
            raise Died
        return self._lives(await self._journal.submit(state, submission, key))

    async def give_up(self, state: VerificationState) -> SubmissionResult:
        return await self._journal.give_up(state)

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        return await self._journal.find_answer(submission_id)

    async def defer(self, state: VerificationState, deferred: NewDeferral) -> VerificationState:
        return await self._journal.defer(state, deferred)

    async def answer(self, key: str, value: bytes) -> None:
        await self._journal.answer(key, value)

    async def find_answer_to(self, waiting: OpenDeferral) -> bytes | None:
        return await self._journal.find_answer_to(waiting)

    async def find_deferred_candidate(self, key: str) -> DeferredCandidate | None:
        return await self._journal.find_deferred_candidate(key)

    def new_submission_id(self, state: VerificationState) -> str:
        return self._journal.new_submission_id(state)

    def _dies(self) -> bool:
        self._left -= 1
        return self._left < 0

    def _lives(self, gave: T) -> T:
        if self._left < 0:
            raise Died
        return gave


class Kept(NamedTuple):
    """A run in a store, driven by worker after worker."""

    store: Store
    tenant: str
    scene: Scene

    def begin(self) -> None:
        self.store.recorder.write(QueueRun(self.tenant, "me", "r", "scene", RunRequest("q"), self.scene.limits()))

    def journal(self) -> tuple[AgentRun, StoreJournal, str]:
        owner = f"own{next(_NUMBERS)}"
        run = self.store.recorder.write(ClaimRun(self.tenant, "r", owner, "w", takeover=True, most_takeovers=1000))
        return run, StoreJournal.for_worker(self.store, self.tenant, "r", owner), owner

    async def whole(self, dies: Callable[[StoreJournal], Journal] = lambda journal: journal) -> Seen:
        """Drive it to its end; the first worker is as the test wants it."""
        while True:
            run, journal, owner = self.journal()
            try:
                end = await drive(self.scene, run, dies(journal), ExecutionContext())
            except Died:
                dies = _lives
                continue
            if isinstance(end, RunSuspended):
                self._rest(end, owner)
                continue
            self._end(end, owner)
            return seen(self.scene, end)

    def _rest(self, end: RunSuspended, owner: str) -> None:
        write = self.store.recorder.write
        write(ParkRun(self.tenant, "r", owner, 0, end.waiting_for, usage=end.usage, turn=end.turn))
        if end.waiting_for is not None:
            write(ResumeRun(self.tenant, "r", end.waiting_for, GIVEN))

    def _end(self, end: DriveResult, owner: str) -> None:
        done = isinstance(end, RunDone)
        failure = RunFailure(end.ending, end.error) if isinstance(end, RunFailed) else None
        status = RunState.COMPLETED if done else RunState.FAILED
        self.store.recorder.write(EndRun(self.tenant, "r", owner, status, None, failure, end.usage, end.turn))

    def state(self) -> VerificationState:
        with self.store.database.reading() as connection:
            found = agent_reading.find(connection, self.tenant, "r").verification
        return msgspec.structs.replace(found, last_attempt_at=None)

    def steps(self) -> set[str]:
        with self.store.database.reading() as connection:
            return set(agent_reading.steps(connection, self.tenant, "r"))

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        """Every verification event, as its run tells it."""
        with self.store.database.reading() as connection:
            found = [one.event for one in outbox.events_after(connection, 0, tenant=self.tenant)]
        assert len({one.idempotency_key for one in found}) == len(found)
        return [(one.event_type, one.data) for one in found if one.event_type.startswith("verification_")]


def _lives(journal: StoreJournal) -> Journal:
    return journal


def kept(store: Store, script: Sequence[ScriptLine]) -> Kept:
    made = Kept(store, f"journal-{next(_NUMBERS)}", Scene(script))
    made.begin()
    return made


LOOK, ASK = calls("look", "l", at=1), calls("ask", "a")
LINES = st.sampled_from(
    [
        *(submits(n=n) for n in (1, 1, 2, 3, 7, -1, -2, 10)),
        submits(n="x"),
        says("hm"),
        says("", LOOK),
        says("", ASK, LOOK),
        says("and", LOOK, calls("agent_output", "o", n=4), calls("agent_output", "p", n=10)),
    ]
)
STORY: list[ScriptLine] = [
    says("", LOOK),
    submits("x", n=1),
    submits("x", n=1),
    says("", ASK, LOOK),
    submits("x", n="misfit"),
    submits("x", n=-1),
    says("", LOOK, calls("agent_output", "o", n=2)),
    says("hm"),
    submits("x", n=10),
]
"""Everything that can happen to a run that passes."""


@settings(max_examples=12)
@given(st.lists(LINES, min_size=1, max_size=7))
def test_a_run_is_the_same_whichever_journal_keeps_it(shared: Store, script: list[ScriptLine]) -> None:
    here = kept(shared, script)
    mine, other = asyncio.run(here.whole()), asyncio.run(in_memory(Scene(script)))
    assert mine == other
    # The row is where all these steps have led; that no turn is left, only the row knows.
    assert msgspec.structs.replace(here.state(), ended=mine.state.ended) == mine.state


@pytest.fixture(scope="module")
def uninterrupted(shared: Store) -> tuple[Kept, Seen]:
    here = kept(shared, STORY)
    return here, asyncio.run(here.whole())


LEAST_STEPS = 20
"""The story would be no story with fewer."""


@pytest.mark.parametrize("when", ["kept", "not kept"])
def test_a_run_is_the_same_whichever_step_its_worker_dies_at(
    shared: Store, uninterrupted: tuple[Kept, Seen], when: str
) -> None:
    """The journal of the next worker holds the first k steps, for every k."""
    whole, truth = uninterrupted
    # What others hand in is no step of a worker's.
    steps = sum(not key.startswith(WAIT) for key in whole.steps())
    assert steps >= LEAST_STEPS
    for step in range(steps):
        here = kept(shared, STORY)

        def dies(journal: StoreJournal, step: int = step) -> Journal:
            return Dying(journal, step, kept=when == "kept")

        assert asyncio.run(here.whole(dies)) == truth, step
        assert (here.state(), here.told(), here.steps()) == (whole.state(), whole.told(), whole.steps()), step
        # What was kept is not done again; what was not may be, and only that.
        assert 0 <= here.scene.done() - whole.scene.done() <= (when == "not kept"), step


@settings(max_examples=10)
@given(st.lists(LINES, min_size=1, max_size=6), st.integers(0, 12), st.booleans())
def test_any_run_is_the_same_after_a_death(shared: Store, script: list[ScriptLine], step: int, was_kept: bool) -> None:
    whole, here = kept(shared, script), kept(shared, script)
    truth = asyncio.run(whole.whole())
    assert asyncio.run(here.whole(lambda journal: Dying(journal, step, kept=was_kept))) == truth
    assert (here.state(), here.told()) == (whole.state(), whole.told())


@pytest.mark.parametrize("where", ["in memory", "kept"])
def test_equal_candidates_are_recalled_for_a_deterministic_verifier(shared: Store, where: str) -> None:
    asked: list[int] = []

    def verify(output: Out) -> int:
        asked.append(output.n)
        if output.n < 10:
            raise VerificationRejected(f"{output.n} as judgement number {len(asked)}")
        return output.n

    vars(verify).update(verify_deterministic=True)
    model = ScriptedModel([submits(n=n) for n in (1, 2, 1, 10)])
    agent = Agent("scene", "", model, output_type=Out, verify=verify)
    if where == "kept":
        run, journal, _ = kept(shared, [says()]).journal()
        assert isinstance(asyncio.run(drive(agent, run, journal, ExecutionContext())), RunDone)
    else:
        assert agent.run_sync("q").attempts_used == 3
    assert asked == [1, 2, 10]
    assert "Summary: 1 as judgement number 1\nAttempt 3 was rejected" in model.asked[-1][-1]["content"]


def test_a_pass_that_is_kept_is_never_verified_again(shared: Store) -> None:
    here = kept(shared, [submits(n=10)])
    asyncio.run(here.whole(lambda journal: Dying(journal, 2, kept=True)))
    assert here.scene.verified == [10]
    with shared.database.reading() as connection:
        done = agent_reading.find(connection, here.tenant, "r")
    assert done.result == {"n": 10, "seen": [], "attempt": 1, "messages": 3}


def test_a_worker_that_was_taken_over_from_keeps_nothing(shared: Store) -> None:
    here = kept(shared, [submits(n=1), submits(n=10)])
    run, late, _ = here.journal()
    asyncio.run(here.whole())
    before = here.steps(), here.state(), here.told()

    async def work() -> bytes:
        return b"{}"

    with pytest.raises(RunFenced):
        asyncio.run(late.step("turn:9", work))
    with pytest.raises(RunFenced):
        asyncio.run(late.submit(run.verification, AnsweredSubmission(SchemaErrorFound("9:x"), 9), "account:9:0"))
    with pytest.raises(RunFenced):
        asyncio.run(late.give_up(run.verification))
    # Not even what is kept already is done again.
    with pytest.raises(RunFenced):
        asyncio.run(late.step("turn:1", work))
    assert (here.steps(), here.state(), here.told()) == before


def test_what_criteria_said_becomes_an_outcome_in_the_same_breath(shared: Store) -> None:
    works = {"reference": "a"}, {"text": "a"}, {"duration_ms": 1}
    result = ENGINE.verify_sync("c", *works[:2], CRITERIA, works[2])
    judgement = CriteriaJudgement(msgspec.json.decode(body_of(CRITERIA)), *works, result=result)
    here = kept(shared, [submits(n=10)])

    def verify(output: Out, execution_ctx: ExecutionContext) -> int:
        execution_ctx.record(judgement)
        return 1

    agent = Agent("scene", "", here.scene.asked, output_type=Out, verify=verify)
    run, journal, _ = here.journal()
    asyncio.run(drive(agent, run, journal, ExecutionContext()))
    with shared.database.reading() as connection:
        (submission,) = agent_reading.submissions(connection, here.tenant, "r")
    assert (submission.outcome_id or "").startswith("out_")
    unwritable = msgspec.structs.replace(judgement, output={"text": float("nan")})
    with pytest.raises(MeruitError, match="plain JSON"):
        outcome_of(shared, here.tenant, unwritable)


def test_a_journal_accounts_for_a_step_once(shared: Store) -> None:
    here = kept(shared, [says()])
    run, stored, owner = here.journal()

    async def twice(journal: Journal, again: Journal) -> list[AccountedSubmission]:
        answered = AnsweredSubmission(SchemaErrorFound("1:x"), 1, problems="no")
        return [await one.submit(run.verification, answered, "account:1") for one in (journal, journal, again)]

    memory = MemoryJournal(Clock().now.timestamp)
    # A journal that was opened before the step was recorded finds it in the store.
    for journal, again in ((memory, memory), (stored, StoreJournal.for_worker(shared, here.tenant, "r", owner))):
        first, second, third = asyncio.run(twice(journal, again))
        assert first.result == second.result == third.result
        assert first.state == second.state == third.state
        assert (first.is_new, second.is_new, third.is_new) == (True, False, False)
    assert stored.has_new_steps


def test_a_step_is_made_once(shared: Store) -> None:
    here = kept(shared, [says()])
    _, stored, owner = here.journal()
    made: list[bytes] = []

    async def work() -> bytes:
        made.append(b"%d" % len(made))
        return made[-1]

    async def all_of(*journals: Journal) -> list[bytes]:
        return [await one.step("mine", work) for one in journals]

    assert asyncio.run(all_of(stored, stored)) == [b"0"] * 2
    assert asyncio.run(all_of(StoreJournal.for_worker(shared, here.tenant, "r", owner))) == [b"0"]
    memory = MemoryJournal()
    assert asyncio.run(all_of(memory, memory)) == [b"1"] * 2
    assert made == [b"0", b"1"]


def test_a_worker_gives_up_once(shared: Store) -> None:
    here = kept(shared, [says()])
    run, journal, owner = here.journal()
    again = StoreJournal.for_worker(shared, here.tenant, "r", owner)
    first, second = (asyncio.run(one.give_up(run.verification)) for one in (journal, again))
    assert first == second
    assert [kind for kind, _ in here.told()] == ["verification_exhausted"]


def test_a_tool_keeps_the_context_only_where_it_has_changed() -> None:
    class Bag(AgentContext):
        seen: list[int] = Field(default_factory=list)
        large: str = "x" * 1000

    def look(bag: Bag, at: int) -> str:
        """Look."""
        if at:
            bag.seen.append(at)
        return "done"

    class Seeing(MemoryJournal):
        def tools(self) -> list[bytes]:
            return [body for key, body in self._steps.items() if key.startswith("tool:")]

    script = [*(says("", calls("look", at=at)) for at in (0, 1, 0, 0, 2)), says("done")]
    agent = Agent("a", "", ScriptedModel(script), [look], context_type=Bag)
    run = AgentRun("r", 0, "a", RunState.RUNNING, RunRequest("go"), from_micros(0), "")
    journal = Seeing(lambda: 0.0)
    assert isinstance(asyncio.run(drive(agent, run, journal, ExecutionContext("r"))), RunDone)
    assert [b"xxx" in body for body in journal.tools()] == [False, True, False, False, True]
    # Replayed, the context is the same.
    contexts: list[Any] = []

    class Seen(Agent):
        def context(self, run: AgentRun) -> AgentContext:
            made = super().context(run)
            contexts.append(made)
            return made

    again = Seen("a", "", ScriptedModel([]), [look], context_type=Bag)
    asyncio.run(drive(again, run, journal, ExecutionContext("r")))
    assert contexts[0].seen == [1, 2]


def test_an_answer_with_very_many_calls_is_gone_through_in_their_time() -> None:
    agent = Agent("a", "", ScriptedModel([says("", *[calls(OUTPUT_TOOL, n=1)] * 20_000)]), [], Out)
    run = AgentRun("r", 0, "a", RunState.RUNNING, RunRequest("go"), from_micros(0), "")
    before = time.process_time()
    assert isinstance(asyncio.run(drive(agent, run, MemoryJournal(), ExecutionContext("r"))), RunDone)
    # Compared each with each, it takes half a minute.
    assert time.process_time() - before < 5


def test_the_first_problems_of_wrong_arguments_are_shown() -> None:
    def add(numbers: list[int]) -> int:
        """Add them."""
        return sum(numbers)

    call = calls("add", numbers=["x"] * 5_000)
    told = asyncio.run(tool(add).run(call, {}))
    assert isinstance(told, str)
    assert told.count("numbers.") == 10
    assert told.endswith("; and 4990 more")
    long = ToolCall("1", "add", msgspec.json.encode({"y" * 50_000: 1}).decode())
    assert len(str(asyncio.run(tool(add).run(long, {})))) < 1_000


class Bare(VerificationRejected):
    """Says nothing to the class that it is made of."""

    def __init__(self) -> None:
        self.args = ("too short",)


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError


# Any: what no type checker would let pass.
def unsayable() -> Any:
    return Unsayable()


ODD, NO = "a value of type Unsayable", VerificationRejected("no")
FINAL = ExceptionGroup("inner", [VerificationRejected("never", retryable=False)])


@pytest.mark.parametrize(
    ("rejected", "said"),
    [
        (Bare(), Rejection("too short")),
        (VerificationRejected("no", metadata={unsayable(): 1}), Rejection("no", metadata={ODD: 1})),
        (VerificationRejected(*[unsayable()] * 3), Rejection(ODD, ODD)),
        (ExceptionGroup("group", [VerificationRejected("no", code="c")]), Rejection("no", "c")),
        (ExceptionGroup("group", [NO, FINAL]), Rejection("no\nnever", retryable=False)),
        (
            ExceptionGroup("group", [NO, ValueError("x")]),
            SystemErrorVerdict("ExceptionGroup: group (2 sub-exceptions)"),
        ),
    ],
)
def test_a_rejection_is_one_however_it_is_raised(rejected: Exception, said: VerifierVerdict) -> None:
    async def verify(_output: Out) -> Out:
        raise rejected

    output = OutputType(Out, verify)
    assert output.verifier is not None
    read = output.candidate({"n": 1})
    assert isinstance(read, Candidate)
    assert asyncio.run(ask_verifier(read, output.verifier, {})).verdict.said == said
