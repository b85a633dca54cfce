"""A criteria file, or a task of a benchmark, as the verifier of an output model."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from meruit.app import build_engine, build_task_engine
from meruit.config import Settings
from meruit.documents.authoring import parse_criteria
from meruit.errors import AuthorError, MeruitError, Unreachable, VerificationRejected
from meruit.gate.candidate import to_json_value
from meruit.gate.context import AgentContext, CriteriaJudgement, ExecutionContext
from meruit.gate.interpret import NOT_MEASURABLE, NOT_MET, NOT_PLAUSIBLE, find_unmeasured, is_doubted
from meruit.gate.verifier import VERSION
from meruit.model.criterion import SuccessCriteria
from meruit.model.environment import FACTS_KEY, EnvironmentState, as_work_part, compact_state
from meruit.model.kinds import DEFAULT_AXIS
from meruit.model.record import Record
from meruit.model.task import Reveal, Task
from meruit.model.verdict import AxisScore, Status, Verdict, VerificationResult
from meruit.playground.load import load_benchmark
from meruit.suggestions import nearest
from meruit.verify.engine import VerificationEngine
from meruit.verify.faults import examine_with, refuse_faults
from meruit.verify.load import load_criteria

Given = Mapping[str, Any] | Callable[[AgentContext], Mapping[str, Any]]
EnvironmentReader = Callable[[AgentContext], EnvironmentState | Awaitable[EnvironmentState]]


class Verified(Record, frozen=True):
    """The final result of an agent whose verifier is a set of criteria."""

    # Any: the agent's output as plain JSON.
    output: Any
    verdict: Verdict
    score: float
    axes: dict[str, AxisScore]
    criteria_digest: str | None
    """Identifies the criteria, as in contracts and the audit log."""

    @property
    def success(self) -> bool:
        """Whether the criteria were met: always, because anything else is a rejection."""
        return True


def criteria(  # noqa: PLR0913 - one for each setting of an author
    source: str | Path | SuccessCriteria | Mapping[str, Any],
    *,
    task: str | None = None,
    before: EnvironmentState | EnvironmentReader | None = None,
    world: EnvironmentReader | None = None,
    given: Given | None = None,
    metadata: Given | None = None,
    reveal: Reveal | str = Reveal.AXES,
    settings: Settings | None = None,
) -> Any:
    """A `verify` for an output model, from a criteria file or from a task of a benchmark file.

    `given` is the input of the work, with private references; by default the run's query and payload. For a task,
    `world` reads the environment after the agent acted, and `before` is its state at the start. `reveal` sets how
    much of a rejection the model sees: never a threshold, an expected value or evidence.
    """
    chosen = settings or Settings()
    revealed = _parse_reveal(reveal)
    plan: _CriteriaWorkBuilder | _TaskWorkBuilder
    if task is None:
        engine = build_engine(chosen)
        rules = _Rules(criteria=_read_criteria(source, engine), engine=engine, reveal=revealed)
        plan = _CriteriaWorkBuilder(given, metadata)
    else:
        if world is None:
            raise MeruitError(
                f"task {task!r} is judged by the state of its environment; pass a function that reads it: world=…"
            )
        found, facts = _load_task(source, task)
        rules = _Rules(criteria=found.success_criteria, engine=build_task_engine(chosen), reveal=revealed)
        plan = _TaskWorkBuilder(before=before, world=world, facts=facts)
    prepared = rules.engine.compile(rules.criteria)

    # A plain function: in the body of a model, pydantic ignores only those.
    async def verify(self: Any, agent_ctx: AgentContext, execution_ctx: ExecutionContext) -> Verified:
        output = to_json_value(self)
        handed_in, left, facts = await plan.work(agent_ctx, output)
        result = await rules.engine.verify(agent_ctx.run_id or "gate", handed_in, left, prepared, facts)
        _raise_if_unmeasured(result)
        execution_ctx.record(
            CriteriaJudgement(
                criteria=rules.document, input=dict(handed_in), output=dict(left), metadata=dict(facts), result=result
            )
        )
        if not _is_pass(result, of_task=task is not None):
            raise _rejection(result, rules.reveal)
        return Verified(
            output=output,
            verdict=result.verdict,
            score=result.score,
            axes=result.axes,
            criteria_digest=result.criteria_digest,
        )

    setattr(verify, VERSION, prepared.plan.digest)
    return verify


class _Rules(msgspec.Struct, frozen=True):
    criteria: SuccessCriteria
    engine: VerificationEngine
    reveal: Reveal

    @property
    def document(self) -> dict[str, Any]:
        return self.criteria.model_dump(exclude_defaults=True)


class _CriteriaWorkBuilder(msgspec.Struct, frozen=True):
    given: Given | None
    metadata: Given | None

    async def work(self, context: AgentContext, output: Any) -> tuple[Mapping[str, Any], ...]:
        given = (
            _resolve_given(self.given, context)
            if self.given is not None
            else {"query": context.query, **context.payload}
        )
        return given, _to_object(output), _resolve_given(self.metadata or {}, context)


class _TaskWorkBuilder(msgspec.Struct, frozen=True):
    before: EnvironmentState | EnvironmentReader | None
    world: EnvironmentReader
    facts: Mapping[str, Any]

    async def work(self, context: AgentContext, output: Any) -> tuple[Mapping[str, Any], ...]:
        before = await _read_environment(self.before, context) if callable(self.before) else self.before or {}
        after = await _read_environment(self.world, context)
        left = {**as_work_part(compact_state(before, after)), "output": output}
        return {FACTS_KEY: dict(self.facts), **as_work_part(before)}, left, {}


def _parse_reveal(level: str) -> Reveal:
    if level not in [*Reveal]:
        raise MeruitError(f"reveal={level!r} is not a valid level; use one of {', '.join(Reveal)}")
    return Reveal(level)


async def _read_environment(read_environment: EnvironmentReader, context: AgentContext) -> EnvironmentState:
    read = read_environment(context)
    return await read if inspect.isawaitable(read) else read


def _resolve_given(given: Given, context: AgentContext) -> Mapping[str, Any]:
    return given(context) if callable(given) else given


def _to_object(output: Any) -> dict[str, Any]:
    if isinstance(output, dict):
        return output
    return {"text" if isinstance(output, str) else "output": output}


def _read_criteria(
    source: str | Path | SuccessCriteria | Mapping[str, Any], engine: VerificationEngine
) -> SuccessCriteria:
    if isinstance(source, SuccessCriteria):
        refuse_faults(engine.catalogue, source)
        return source
    known, examine = engine.catalogue.names(), examine_with(engine.catalogue)
    if isinstance(source, Mapping):
        return parse_criteria(source, known_metrics=known, examine=examine)
    return load_criteria(source, known_metrics=known, examine=examine)


def _load_task(source: Any, wanted: str) -> tuple[Task, dict[str, Any]]:
    """Load the task, and the facts that its criteria may use."""
    if not isinstance(source, str | Path):
        raise MeruitError("a task is read from a benchmark file; pass its path")
    # Only for tasks: it imports the playground.
    from meruit.playground.environment import seed_of

    benchmark = load_benchmark(source)
    found = benchmark.task(wanted)
    if found is None:
        raise MeruitError(f"{source} has no task {wanted!r}{nearest(wanted, [one.id for one in benchmark.tasks])}")
    return found, {**seed_of(benchmark, found).facts, **found.facts}


def _is_pass(result: VerificationResult, *, of_task: bool) -> bool:
    return result.verdict is Verdict.PASS and not is_doubted(result) if of_task else result.success


def _raise_if_unmeasured(result: VerificationResult) -> None:
    """Raise a system error where criteria or plausibility could not be checked for a reason that is not the agent's."""
    ours = find_unmeasured(result)
    if ours is not None:
        # A retry cannot help after a mistake of the author.
        raise (AuthorError if ours.is_authors_mistake else Unreachable)(ours.message)


def _rejection(result: VerificationResult, reveal: Reveal) -> VerificationRejected:
    """Build the rejection with as much as `reveal` allows."""
    code = NOT_MEASURABLE if result.verdict is Verdict.INCONCLUSIVE else NOT_MET
    shown: dict[str, Any] = {}
    if reveal is not Reveal.NONE:
        shown["verdict"] = str(result.verdict)
    if reveal in (Reveal.AXES, Reveal.CRITERIA):
        shown["score"] = round(result.score, 4)
        named = {name: round(axis.score, 4) for name, axis in result.axes.items() if name != DEFAULT_AXIS}
        shown |= {"axes": named} if named else {}
    message = "The criteria are not met."
    if result.verdict is not Verdict.INCONCLUSIVE and is_doubted(result):
        # Which rule objects, and to what, would teach an agent how not to be noticed.
        return VerificationRejected("The output is not plausible.", code=NOT_PLAUSIBLE, metadata=shown)
    if reveal is Reveal.CRITERIA:
        missed = [one.criterion_id for one in result.criterion_results if one.status is not Status.MET]
        message = f"{len(missed)} of {len(result.criterion_results)} criteria are not met."
        shown["not_met"] = missed
    return VerificationRejected(message, code=code, metadata=shown)
