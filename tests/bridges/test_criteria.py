"""Criteria as a verifier: an agent is held to what it is paid by, and is told nothing that is not its business."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.bridges.outputs import at_once

import meruit
from meruit.bridges import Verified, criteria
from meruit.errors import CouldNotVerify, CriteriaError, MeruitError, VerificationExhausted
from meruit.events.store import outbox
from meruit.gate.agent import Agent, RunResult
from meruit.gate.context import AgentContext
from meruit.gate.gate import Gate
from meruit.gate.run import RunRequest, RunState
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.local import InlineEngine
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import QueueRun
from meruit.gate.verdict import Passed, Rejected
from meruit.gate.verifier import verifier_of
from meruit.model.access import Scope
from meruit.model.environment import EnvironmentState
from meruit.model.task import Reveal
from meruit.model.verdict import Verdict
from meruit.outcomes.store import read as outcomes
from meruit.playground.environment import seed_of
from meruit.playground.fhir.resources import store_resource
from meruit.playground.load import load_benchmark
from meruit.playground.seed import apply_seed
from meruit.playground.state import PlaygroundState
from meruit.store import log as audit
from meruit.store.store import Store
from meruit.testing import ScriptedModel, calls, says, submits

EXAMPLES = Path(__file__).parents[2] / "examples"
SUPPORT = EXAMPLES / "support-reply" / "criteria.yaml"
FRONT_DESK = EXAMPLES / "front-desk" / "front-desk.yaml"
VAGUE = {"ticket": "7781", "text": "We are sorry about your order. A refund will follow soon."}
GOOD = {
    "ticket": "T-7781",
    "text": "We are sorry that order 7781 arrived broken. Your refund leaves us on 2026-11-17 without further ado.",
}
CANARY = "canary"
SECRETIVE = {
    "aggregation": "weighted",
    "minimum_weighted_score": 0.731073107,
    "criteria": [
        {
            "id": "says the word",
            "metric": "contains_keywords",
            "metric_type": "contains",
            "comparison": "contains_all",
            "threshold": [f"{CANARY}keyword"],
            "axis": "content",
        },
        {
            "id": "is long enough",
            "metric": "word_count",
            "metric_type": "count",
            "comparison": "gte",
            "threshold": 471147114,
            "axis": "form",
        },
        {
            "id": "is like the reference",
            "metric": "rougeL",
            "metric_type": "rouge_score",
            "comparison": "gte",
            "threshold": 0.737073707,
            "axis": "content",
        },
    ],
}
PRIVATE = (CANARY, "471147114", "731073107", "737073707")


class Reply(BaseModel):
    """As authors write it: a criteria file in the body of a model."""

    ticket: str
    text: str
    # As authors write it; only pydantic's plugin for mypy wants `verify: ClassVar[Any]`.
    verify = criteria(SUPPORT)  # type: ignore[pydantic-field]


def test_the_names_are_functions_however_often_they_are_imported() -> None:
    from meruit import bridges

    for _ in range(2):
        assert callable(bridges.criteria)
        assert callable(bridges.gate)
    with pytest.raises(AttributeError, match="'gait'"):
        _ = bridges.gait


def test_a_criteria_file_is_the_gate_of_an_agent() -> None:
    model = ScriptedModel([submits(**VAGUE), submits(**GOOD)])
    ended = Agent("support", "Answer.", model, output_type=Reply).run_sync("My order 7781 arrived broken.")
    assert ended.attempts_used == 1
    verified = msgspec.convert(ended.output, Verified) if isinstance(ended.output, dict) else ended.output
    assert isinstance(verified, Verified)
    assert (verified.verdict, verified.output) == (Verdict.PASS, GOOD)
    assert verified.criteria_digest == meruit.VerificationEngine().compile(meruit.load_criteria(SUPPORT)).plan.digest
    feedback = model.asked[1][-1]["content"]
    assert feedback.startswith('<verification_rejected code="criteria_not_met" retryable="true">')
    assert "Verdict:" in feedback


class Text(BaseModel):
    text: str


# Any: an output model's class, and whatever the caller says of its criteria.
def held_to(source: Any, **more: Any) -> Any:
    return type("Held", (Text,), {"verify": criteria(source, **more), "__module__": __name__})


@pytest.mark.parametrize("reveal", [*Reveal])
def test_private_references_thresholds_and_evidence_stay_hidden(reveal: Reveal, store: Store) -> None:
    given = {"text": "a question", "reference": f"{CANARY}given in full", "labels": [f"{CANARY}label"]}
    output = held_to(SECRETIVE, reveal=reveal, given=given, metadata={"note": f"{CANARY}metadata"})
    contexts: list[str] = []

    def watch(agent_ctx: AgentContext) -> str:
        """Looks at what the run carries."""
        contexts.append(agent_ctx.model_dump_json())
        return "seen"

    script = [submits(text="short"), says("", calls("watch")), submits(text="longer by a word")]
    model = ScriptedModel([*script, says("I give up.")])
    agent = Agent("a", "", model, [watch], output, verify_max_attempts=2)

    async def main() -> None:
        queue = QueueRun("default", "me", "r", "a", RunRequest("a question"), agent.limits())
        await store.recorder.record(queue)
        await InlineEngine(store, AgentRoster([agent])).serve(asyncio.Event(), until_idle=True)

    asyncio.run(main())
    with store.database.reading() as connection:
        run = agent_reading.find(connection, "default", "r")
        submitted = agent_reading.submissions(connection, "default", "r")
        events = [repr(one) for one in outbox.events_after(connection, 0, tenant=None)]
    assert (run.status, run.ending) == (RunState.FAILED, "attempts")
    assert len(events) >= 5
    told = [json.dumps(model.asked), run.to_json().decode(), *contexts, *events, *map(repr, submitted)]
    for text in told:
        for secret in PRIVATE:
            assert secret not in text
    shown = json.dumps(model.asked[-1])
    assert ("is long enough" in shown) is (reveal is Reveal.CRITERIA)
    assert ("Axes" in shown) is (reveal in (Reveal.AXES, Reveal.CRITERIA))
    assert ("Verdict" in shown) is (reveal is not Reveal.NONE)


def test_the_outcome_is_recorded_with_its_submission_and_in_the_log(store: Store) -> None:
    gate = Gate(Reply, verify=criteria(SUPPORT), store=store, run_id="r")

    async def main() -> tuple[Passed | Rejected, ...]:
        return await gate.submit(VAGUE), await gate.submit(GOOD)

    rejected, passed = asyncio.run(main())
    assert isinstance(rejected, Rejected)
    assert isinstance(passed, Passed)
    with store.database.reading() as connection:
        submitted = agent_reading.submissions(connection, "default", "r")
        found = [outcomes.summary(connection, Scope("default"), one.outcome_id or "") for one in submitted]
        entries = [audit.leaf(connection, at).body for at in range(audit.log_size(connection))]
    assert [one.verdict for one in found] == [Verdict.FAIL, Verdict.PASS]
    kinds = [json.loads(entry)["kind"] for entry in entries]
    # Of each: what was submitted, and in the same transaction the evidence and the verdict.
    assert kinds.count("gate") == kinds.count("evidence") == kinds.count("verdict") == 2
    assert {one.verifier_version for one in submitted} == {passed.result.criteria_digest}


def test_what_the_run_was_asked_is_the_works_input_unless_it_is_given() -> None:
    seen: list[Any] = []
    plain = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}

    def given(context: AgentContext) -> dict[str, Any]:
        seen.append(context.query)
        return {"text": context.query}

    model = ScriptedModel([submits(text="enough")])
    Agent("a", "", model, output_type=held_to(plain, given=given)).run_sync("what?")
    assert seen == ["what?"]


def test_a_value_that_is_not_an_object_is_judged_as_output() -> None:
    rule = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
    gate = Gate(str, verify=criteria({"criteria": [rule]}))
    passed = asyncio.run(gate.submit("two words"))
    assert isinstance(passed, Passed)
    assert passed.result.output == "two words"


def test_work_that_lacks_what_is_measured_is_rejected_not_broken() -> None:
    """An agent that leaves out what a required metric reads has not done the work."""
    rule = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}
    gate = Gate(Done, verify=criteria({"criteria": [rule]}), sleep=at_once)
    answer = asyncio.run(gate.submit(Done(summary="no text")))
    assert isinstance(answer, Rejected)
    assert answer.code == "not_measurable"


def test_criteria_that_cannot_be_measured_are_a_system_error() -> None:
    """Nobody gave a reference: that is the author's doing."""
    rule = {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5}
    gate = Gate(Text, verify=criteria({"criteria": [rule]}), sleep=at_once)
    with pytest.raises(CouldNotVerify, match="1 of 1"):
        asyncio.run(gate.submit(Text(text="words")))


# The front desk: state checks


class Clinic:
    """One world of the shipped benchmark, and an agent's hands in it."""

    def __init__(self, state: PlaygroundState) -> None:
        self.state = state
        benchmark = load_benchmark(FRONT_DESK)
        task = benchmark.task("refuted-allergy")
        assert task is not None
        apply_seed(state, seed_of(benchmark, task))
        self.before = state.snapshots()

    def refute(self, note: str) -> str:
        """Mark the penicillin allergy as refuted."""
        kind = meruit.model.environment.SourceKind.FHIR
        found = self.state.get(kind, PENICILLIN)
        assert found is not None
        system = "http://terminology.hl7.org/CodeSystem/allergyintolerance-"
        resource = json.loads(found.content()) | {
            "clinicalStatus": {"coding": [{"system": f"{system}clinical", "code": "inactive"}]},
            "verificationStatus": {"coding": [{"system": f"{system}verification", "code": "refuted"}]},
            "note": [{"text": note}],
        }
        store_resource(self.state, PENICILLIN, resource)
        return "kept"


PENICILLIN = "AllergyIntolerance/alg-jones-penicillin"


@pytest.fixture
def clinic(tmp_path: Path) -> Iterator[Clinic]:
    with closing(PlaygroundState.create(tmp_path / "world.db")) as state:
        yield Clinic(state)


class Done(BaseModel):
    summary: str


def of_task(clinic: Clinic, world: Callable[[AgentContext], EnvironmentState] | None = None, **more: Any) -> Any:
    read = world or (lambda _context: clinic.state.snapshots())
    return criteria(FRONT_DESK, task="refuted-allergy", before=clinic.before, world=read, **more)


def act(clinic: Clinic, *script: Any, **more: Any) -> tuple[RunResult, ScriptedModel]:
    model = ScriptedModel(script)
    agent = Agent("desk", "", model, [clinic.refute], Done, verify=of_task(clinic, **more))
    return agent.run_sync("Dr. Rivera has ruled out the allergy."), model


def test_an_agent_is_done_when_the_world_is_as_its_task_wants_it(clinic: Clinic) -> None:
    """The same summary twice: what differs is what is true."""
    done = submits(summary="It is refuted.")
    note = "Ruled out by oral challenge on 2 March 2026."
    ended, model = act(clinic, done, says("", calls("refute", note=note)), done, reveal="criteria")
    assert ended.attempts_used == 1
    feedback = model.asked[1][-1]["content"]
    assert "refuted" in feedback
    for private in ("alg-jones", "emma-jones", "oral challenge", "snomed", "inactive", "0.9"):
        assert private not in feedback


def test_a_task_may_read_its_worlds_as_they_come(clinic: Clinic) -> None:
    async def now(_context: AgentContext) -> EnvironmentState:
        return clinic.state.snapshots()

    clinic.refute("Ruled out by oral challenge.")
    verify = criteria(FRONT_DESK, task="refuted-allergy", before=lambda _context: clinic.before, world=now)
    answer = asyncio.run(Gate(Done, verify=verify).submit(Done(summary="done")))
    assert isinstance(answer, Passed)
    assert answer.result.verdict is Verdict.PASS


def test_an_unreadable_environment_is_a_system_error_without_details(clinic: Clinic, store: Store) -> None:
    def dark(_context: AgentContext) -> EnvironmentState:
        world = clinic.state.snapshots()
        return {**world, "ehr": msgspec.structs.replace(world["ehr"], trouble=f"{CANARY} is down")}

    gate = Gate(Done, verify=of_task(clinic, dark), store=store, run_id="r", sleep=at_once, system_error_limit=2)
    with pytest.raises(CouldNotVerify, match=r"3 of 3.*check_error") as broken:
        asyncio.run(gate.submit(Done(summary="done")))
    assert CANARY not in str(broken.value)
    with store.database.reading() as connection:
        run = agent_reading.find(connection, "default", "r")
        events = [repr(one) for one in outbox.events_after(connection, 0, tenant=None)]
        assert agent_reading.submissions(connection, "default", "r") == []
    assert run.verification.attempts_used == 0
    assert not [one for one in events if CANARY in one or "attempt_counted" in one]


def test_a_failing_environment_reader_is_a_system_error(clinic: Clinic) -> None:
    down = True

    def flaky(_context: AgentContext) -> EnvironmentState:
        nonlocal down
        if down:
            down = False
            raise ConnectionError("no route")
        return clinic.state.snapshots()

    clinic.refute("Ruled out by oral challenge.")
    gate = Gate(Done, verify=of_task(clinic, flaky), sleep=at_once, max_attempts=1)
    answer = asyncio.run(gate.submit(Done(summary="done")))
    assert isinstance(answer, Passed)
    assert answer.attempt == 1


def test_half_of_a_task_is_not_enough_where_it_must_be_passed(clinic: Clinic) -> None:
    clinic.refute("No reason given.")
    with pytest.raises(VerificationExhausted):
        asyncio.run(Gate(Done, verify=of_task(clinic), max_attempts=1).submit(Done(summary="done")))


def test_wrong_settings_are_refused_at_the_definition(clinic: Clinic) -> None:
    with pytest.raises(MeruitError, match=r"'refuted-allergy'.*world="):
        criteria(FRONT_DESK, task="refuted-allergy")
    with pytest.raises(MeruitError, match=r"'refuted-alergy'.*'refuted-allergy'"):
        criteria(FRONT_DESK, task="refuted-alergy", world=lambda _context: clinic.before)
    with pytest.raises(MeruitError, match="benchmark"):
        criteria(SECRETIVE, task="refuted-allergy", world=lambda _context: clinic.before)
    with pytest.raises(MeruitError, match=r"'all'.*none, verdict, axes, criteria"):
        criteria(SUPPORT, reveal="all")
    with pytest.raises(MeruitError):
        criteria("no-such-file.yaml")
    assert callable(criteria(meruit.load_criteria(SUPPORT)))


def test_an_unknown_metric_is_refused_at_the_definition(tmp_path: Path) -> None:
    file = tmp_path / "criteria.yaml"
    file.write_text(
        "criteria: [{metric: acuracy, metric_type: percentage, comparison: gte, threshold: 0.9}]", encoding="utf-8"
    )
    with pytest.raises(CriteriaError, match="'accuracy'"):
        criteria(file)


def test_other_criteria_in_the_body_of_a_model_are_another_verifier() -> None:
    def versions() -> Iterator[str]:
        for most in (10, 20):
            rule = {"metric": "output_length", "metric_type": "count", "comparison": "lte", "threshold": most}
            model = type(
                "Reply", (BaseModel,), {"__annotations__": {"text": str}, "verify": criteria({"criteria": [rule]})}
            )
            found = verifier_of(model)
            assert found is not None
            yield found.version

    assert len({*versions()}) == 2
