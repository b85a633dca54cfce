"""The journal of a run: each step once, each answer kept before anything is built on it."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from meruit.gate.accounting import SubmissionResult, account, give_up
from meruit.gate.context import CriteriaJudgement
from meruit.gate.run import AgentRun
from meruit.gate.state import SchemaErrorFound, VerdictGiven
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import JournalWrite, RecordStep
from meruit.gate.store.submissions import GiveUp, Submit
from meruit.gate.verdict import VerifierVerdict
from meruit.log.commitment import SALT_BYTES
from meruit.model.canonical import canonical
from meruit.model.chat import ModelAnswer, Usage
from meruit.outcomes.service import draft_outcome
from meruit.outcomes.store.write import NewOutcome
from meruit.store.store import Store

StepFunction = Callable[[], Awaitable[bytes]]
DescribeStart = Callable[[bytes], dict[str, Any] | None]
"""Of what a step gave, the verification that begins with it; None where none does."""


class AnsweredSubmission(NamedTuple):
    """A submission with what was said of it."""

    event: VerdictGiven | SchemaErrorFound
    turn: int
    candidate: bytes = b"null"
    verifier_version: str | None = None
    problems: str = ""
    judgement: CriteriaJudgement | None = None


class Journal(Protocol):
    """Where the steps of one run are kept."""

    run: AgentRun
    has_new_steps: bool
    """Whether anything was kept that was not before."""

    def find_step(self, key: str) -> bytes | None:
        """What a step gave, where it is kept."""
        ...

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:
        """What the step gave, now or before; it may be done again only where nobody knows what it gave."""
        ...

    async def account(self, key: str, answered: AnsweredSubmission) -> tuple[SubmissionResult, bool]:
        """What becomes of a submission, and whether that was decided just now."""
        ...

    async def give_up(self) -> SubmissionResult:
        """No turn is left."""
        ...

    async def find_verdict(self, submission_id: str) -> VerifierVerdict | None:
        """What the verifier said of an earlier submission."""
        ...


class StoreJournal:
    """The journal in our own tables, whichever engine drives the run."""

    def __init__(self, store: Store, tenant: str, run: AgentRun, owner: str) -> None:
        self.run = run
        self.has_new_steps = False
        self._store, self._tenant, self._owner = store, tenant, owner
        with store.database.reading() as connection:
            self._steps = agent_reading.steps(connection, tenant, run.id)

    def find_step(self, key: str) -> bytes | None:
        """What a step gave, where it is kept."""
        return self._steps.get(key)

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:
        """What the step gave; raises RunFenced where somebody else drives the run by now."""
        known = self._steps.get(key)
        if known is None:
            gave = await work()
            begun = None if started is None else started(gave)
            keep = RecordStep(self._tenant, self.run.id, self._owner, key, gave, begun)
            known = self._steps[key] = await self._store.recorder.record(keep)
            self.has_new_steps = True
        return known

    def run_so_far(self) -> AgentRun:
        """The run with what the answers of its model have cost by now, also where it is left in the middle."""
        answers = [ModelAnswer.from_json(body) for key, body in self._steps.items() if key.startswith("turn:")]
        if not answers:
            return self.run
        usage = sum((one.usage for one in answers), Usage())
        return msgspec.structs.replace(self.run, usage=usage, turn=len(answers))

    async def account(self, key: str, answered: AnsweredSubmission) -> tuple[SubmissionResult, bool]:
        """Submission, budget, feedback, events and outcome in one transaction, once."""
        known = self._steps.get(key)
        if known is not None:
            return SubmissionResult.from_json(known), False
        drawn = None
        if answered.judgement is not None:
            drawn = outcome_of(self._store, self._tenant, answered.judgement)
        submit = Submit(
            *(self._tenant, self.run.id, answered.event, self._store.surroundings.entropy(SALT_BYTES)),
            owner=self._owner,
            turn=answered.turn,
            candidate=answered.candidate,
            verifier_version=answered.verifier_version,
            problems=answered.problems,
            outcome=drawn,
        )
        done = await self._once(key, submit)
        return done, True

    async def give_up(self) -> SubmissionResult:
        """No turn is left."""
        return await self._once("give_up", GiveUp(self._tenant, self.run.id, self._owner))

    async def find_verdict(self, submission_id: str) -> VerifierVerdict | None:
        """What the verifier said of an earlier submission."""
        with self._store.database.reading() as connection:
            return agent_reading.find_verdict(connection, self._tenant, self.run.id, submission_id)

    async def _once(self, key: str, write: Submit | GiveUp) -> SubmissionResult:
        once = JournalWrite(self._tenant, self.run.id, self._owner, key, write, SubmissionResult)
        done = await self._store.recorder.record(once)
        self._steps[key] = done.to_json()
        self.has_new_steps = True
        return done


class MemoryJournal:
    """A journal for a run that need not outlive its process."""

    def __init__(self, run: AgentRun, clock: Callable[[], float]) -> None:
        self.run = run
        self.has_new_steps = False
        self._clock = clock
        self.state = run.verification
        self._steps: dict[str, bytes] = {}
        self._said: dict[str, VerifierVerdict] = {}
        self._done: dict[str, SubmissionResult] = {}

    def find_step(self, key: str) -> bytes | None:
        """What a step gave, where it is kept."""
        return self._steps.get(key)

    def hand_in(self, key: str, value: bytes) -> None:
        """What others hand in."""
        self._steps[key] = value

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:  # noqa: ARG002 - nobody listens
        """What the step gave."""
        if key not in self._steps:
            self._steps[key] = await work()
            self.has_new_steps = True
        return self._steps[key]

    async def account(self, key: str, answered: AnsweredSubmission) -> tuple[SubmissionResult, bool]:
        """The same rules, without the record."""
        known = self._done.get(key)
        if known is not None:
            return known, False
        happening = answered.event
        if isinstance(happening, VerdictGiven):
            happening = happening.with_time(self._clock())
            self._said[happening.submission_id] = happening.said
        self.state, done = account(self.state, happening, problems=answered.problems)
        # A run hands in each submission under a key of its own, so none comes a second time.
        assert done is not None  # noqa: S101
        self._done[key] = done
        self.has_new_steps = True
        return done, True

    async def give_up(self) -> SubmissionResult:
        """No turn is left."""
        self.state, done = give_up(self.state, self._clock())
        return done

    async def find_verdict(self, submission_id: str) -> VerifierVerdict | None:
        """What the verifier said of an earlier submission."""
        return self._said.get(submission_id)


def outcome_of(store: Store, tenant: str, judgement: CriteriaJudgement) -> NewOutcome:
    """An outcome of a gate's criteria, as the recorder takes it."""
    work = (judgement.input, judgement.output, judgement.metadata)
    outcome_id = store.surroundings.new_id("out")
    return draft_outcome(store, tenant, outcome_id, work, judgement.result, canonical(judgement.criteria))
