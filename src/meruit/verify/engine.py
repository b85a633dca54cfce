"""The verification engine: work and criteria in, one verdict out, never an exception."""

import contextvars
import copy
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from meruit.documents.authoring import read_model
from meruit.documents.document import Document, sort_and_limit_problems
from meruit.documents.sanitize import describe, escape_unencodable, sanitize
from meruit.errors import CriteriaError, Problem, Unavailable, VerificationRefusal
from meruit.judge.bulk import Conclusion, Conclusions, NumberlessConclusion, NumberlessConclusions
from meruit.judge.governance import add_answer
from meruit.judge.verdict import conclude_for
from meruit.metrics.custom import CustomExtractor, context_of
from meruit.metrics.support.extractor import MetricExtractor, MetricService, version_of
from meruit.model.canonical import write_and_digest_all
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Evidence, Fault, Provenance
from meruit.model.governance import (
    ALL_CLEAR,
    UNAVAILABLE,
    Action,
    Disposition,
    Flag,
    GovernanceClient,
    GovernanceResult,
    LocalGovernance,
)
from meruit.model.text import escape_control_characters
from meruit.model.verdict import (
    Bounds,
    Reason,
    ReasonCode,
    Verdict,
    VerificationResult,
)
from meruit.model.work import Work, written_output
from meruit.store.lru import LruCache
from meruit.verify.cache import ResultCache
from meruit.verify.catalogue import ENGINE_VERSION, Catalogue, CompiledCriteria
from meruit.verify.custom_code import CustomCode
from meruit.verify.measure import AnyDigests, Digests, fill_in, is_complete, measure, missing_answer

DEFAULT_TTL_S = 300.0
DEFAULT_PATIENCE_S = 60.0
"""How long an extractor or governance may take to answer."""
GRACE_S = 15.0
"""How long custom code may take beyond its own limit, for a worker to become free and start."""
MAX_SERVICE_S = 3_600.0
"""How long a service may take to answer; it has shorter limits of its own, and says which one was reached."""
GOVERNANCE = "governance"
"""Under this name a result's versions hold that of the rules of governance."""
MAX_COMPILED = 256
"""How many sets of criteria an engine remembers compiled."""


utc_now: Callable[[], datetime] = partial(datetime.now, UTC)
"""The time, with its zone."""


T = TypeVar("T")


class BulkConclusions(Generic[T]):
    """Concludes for many works; most need no more than their evidence."""

    def __init__(
        self,
        compiled: CompiledCriteria,
        rules: LocalGovernance | None,
        cache: ResultCache[Any],
        derive: Callable[[VerificationResult], T],
    ) -> None:
        self._compiled, self._rules, self._cache = compiled, rules, cache
        versions = compiled.versions | ({} if rules is None else {GOVERNANCE: rules.version})
        plan = compiled.plan

        def finish(result: VerificationResult) -> VerificationResult:
            return result if rules is None else add_answer(result, ALL_CLEAR)

        self._known = Conclusions(plan, versions, derive, finish)
        self._numberless = NumberlessConclusions(plan, versions, derive, finish)
        self._asks = None if None in compiled.asks or not compiled.in_order else compiled.asks

    def of(self, work: Work, digests: Digests) -> Conclusion[T] | None:
        """What the work gets, but for its id, time and digests; None where it has to be verified for itself."""
        try:
            found = self._known.of(measure(self._compiled, work, digests, self._cache))
            if found is None or self._rules is None or self._rules.is_clear(work, found.result):
                return found
        except Exception:  # noqa: BLE001 - verified for itself, it gets a result that says what went wrong
            return None
        return None

    def without_numbers(
        self, work: Work, digests: tuple[bytes, bytes, bytes]
    ) -> tuple[NumberlessConclusion[T], list[float]] | None:
        """The same, shared by works that differ in their numbers too; and the numbers. The digests are in hex."""
        try:
            # The usual case: nothing is remembered between works, and each criterion asks for itself. Any, for speed:
            # which of them are there was asked once.
            asks: Any = self._asks
            if asks is None:
                known = Digests(*[one.decode() for one in digests])
                found = self._numberless.of(measure(self._compiled, work, known, self._cache))
            else:
                findings = []
                # A comprehension is a call of its own, which saves nothing for a few criteria.
                for ask in asks:
                    findings.append(ask(work))  # noqa: PERF401
                found = self._numberless.of(findings, sanitize)
            if found is None or self._rules is None or self._rules.is_clear(work, found[0].put_numbers(found[1])):
                return found
        except (Exception, SystemExit):  # noqa: BLE001 - verified for itself, it gets a result that says what went wrong
            return None
        return None


class VerificationEngine:
    """Core engine for verifying task outcomes.

    Without extractors it computes every installed metric; with them, exactly theirs. Criteria may bring code of
    their own, which runs in a sandbox as `custom` says; None runs none. `governance=RuleGovernance()` applies the
    built-in rules; without governance, results say that their plausibility was not checked.
    """

    def __init__(  # noqa: PLR0913 - one a setting
        self,
        extractors: Mapping[str, MetricExtractor] | None = None,
        governance: GovernanceClient | None = None,
        *,
        cache_ttl_s: float = DEFAULT_TTL_S,
        max_criteria_per_task: int | None = None,
        clock: Callable[[], datetime] = utc_now,
        timer: Callable[[], float] = time.monotonic,
        patience_s: float = DEFAULT_PATIENCE_S,
        custom: CustomCode | None = CustomCode(),  # noqa: B008 - a frozen value
        switched_off: Mapping[str, str] | None = None,
        services: Mapping[str, MetricService] | None = None,
    ) -> None:
        self.catalogue = Catalogue(extractors, custom, switched_off, services)
        self.governance = governance
        self._max_criteria = max_criteria_per_task
        self._clock = clock
        self._patience_s = patience_s
        self._cache: ResultCache[Any] = ResultCache(cache_ttl_s, timer)
        self._compiled = LruCache[int, tuple[SuccessCriteria, CompiledCriteria]](MAX_COMPILED)
        self._last: tuple[object, CompiledCriteria] | None = None
        """The criteria that were used last, which need not be looked up again, and what they compile to."""

    @property
    def extractors(self) -> dict[str, MetricExtractor]:
        """The extractors it was given."""
        return self.catalogue.extractors

    @property
    def services(self) -> Mapping[str, MetricService]:
        """What answers metrics that ask another system, by name."""
        return self.catalogue.services

    def without_governance(self) -> Self:
        """The same engine for work that is not claimed to have happened, or whose governance is checked elsewhere."""
        engine = copy.copy(self)
        engine.governance = None
        return engine

    def compile(self, success_criteria: SuccessCriteria | Mapping[str, Any]) -> CompiledCriteria:
        """Criteria made ready once, to be passed to `verify` any number of times.

        Raises `CriteriaError` for invalid criteria and `VerificationRefusal` for more than this engine allows.
        """
        criteria = success_criteria
        if not isinstance(criteria, SuccessCriteria):
            criteria = read_model(
                Document(name="criteria", value=criteria, lines={}), SuccessCriteria, error=CriteriaError
            )
        if self._max_criteria is not None and len(criteria.criteria) > self._max_criteria:
            raise VerificationRefusal(
                ReasonCode.TOO_MANY_CRITERIA,
                f"{len(criteria.criteria)} criteria; verification.max_criteria_per_task allows {self._max_criteria}",
            )
        return self.catalogue.compile(criteria)

    def compile_or_raise(self, criteria: SuccessCriteria, name: str = "criteria") -> CompiledCriteria:
        """Compile the criteria; raise CriteriaError naming each criterion that asks what its metric cannot answer.

        Where the criteria are right, but this installation cannot do what they ask, raise Unavailable.
        """
        compiled = self.compile(criteria)
        problems: dict[Problem, Fault] = {}
        slots = (compiled.slots[number] for number in compiled.slot_of)
        for rule, slot in zip(compiled.plan.rules, slots, strict=True):
            if slot.flaw is not None:
                # Without params, only what the threshold lists can be at fault.
                part = "params" if rule.criterion.params else "threshold"
                # A pattern may hold line breaks, and each criterion gets one line.
                problem = Problem(
                    slot.place or f"criteria[{rule.position}].{part}", escape_control_characters(slot.flaw.why)
                )
                problems[problem] = slot.flaw.fault
        if problems:
            kind = Unavailable if {*problems.values()} == {Fault.SYSTEM} else CriteriaError
            raise kind(name, sort_and_limit_problems(problems))
        return compiled

    async def verify(
        self,
        contract_id: str,
        work_input: Mapping[str, Any],
        work_output: Mapping[str, Any],
        success_criteria: SuccessCriteria | Mapping[str, Any] | CompiledCriteria,
        execution_metadata: Mapping[str, Any] | None = None,
    ) -> VerificationResult:
        """Judge one piece of work. Whatever is wrong with it is in the result; nothing is raised."""
        try:
            compiled = self._compile_once(success_criteria)
            work, digests = _read_work(work_input, work_output, execution_metadata)
            evidence = measure(compiled, work, digests, self._cache)
            if compiled.owners:
                evidence = fill_in(compiled, evidence, await self._answers(compiled, work, digests))
            result = self._conclude(contract_id, compiled, evidence, work, digests)
            client = None if self.governance is None else self._client()
            if client is None:
                return result
            return await self._ask_client(client, compiled.plan.slots, result, work)
        except Exception as crash:  # noqa: BLE001 - the boundary: a caller always gets a result
            return self._error_result(contract_id, crash)

    async def verify_beside_loop(
        self,
        contract_id: str,
        work_input: Mapping[str, Any],
        work_output: Mapping[str, Any],
        compiled: CompiledCriteria,
        execution_metadata: Mapping[str, Any] | None = None,
    ) -> VerificationResult:
        """The same for work that takes long: threads compute, and the event loop waits for others."""
        import asyncio

        if compiled.has_foreign_extractors:
            # They may compute for long before they first wait.
            return await asyncio.to_thread(
                self.verify_sync, contract_id, work_input, work_output, compiled, execution_metadata
            )
        try:
            work, digests = await asyncio.to_thread(_read_work, work_input, work_output, execution_metadata)
            evidence = await asyncio.to_thread(measure, compiled, work, digests, self._cache)
            if compiled.owners:
                evidence = fill_in(compiled, evidence, await self._answers(compiled, work, digests))
            result = await asyncio.to_thread(self._conclude, contract_id, compiled, evidence, work, digests)
            client = self._client()
            return result if client is None else await self._ask_client(client, compiled.plan.slots, result, work)
        except Exception as crash:  # noqa: BLE001 - the boundary: a caller always gets a result
            return self._error_result(contract_id, crash)

    def verify_sync(
        self,
        contract_id: str,
        work_input: Mapping[str, Any],
        work_output: Mapping[str, Any],
        success_criteria: SuccessCriteria | Mapping[str, Any] | CompiledCriteria,
        execution_metadata: Mapping[str, Any] | None = None,
    ) -> VerificationResult:
        """The same for callers without an event loop, or inside one that must not be left."""
        try:
            last = self._last
            compiled = last[1] if last and last[0] is success_criteria else self._compile_once(success_criteria)
            # As `is_immediate` says, without a call.
            if not compiled.owners and (self.governance is None or self._client() is None):
                work, digests = _read_work(work_input, work_output, execution_metadata)
                found = measure(compiled, work, digests, self._cache)
                return self._conclude(contract_id, compiled, found, work, digests)
        except Exception as crash:  # noqa: BLE001 - the boundary: a caller always gets a result
            return self._error_result(contract_id, crash)
        return _run_in_own_loop(lambda: self.verify(contract_id, work_input, work_output, compiled, execution_metadata))

    def is_immediate(self, compiled: CompiledCriteria) -> bool:
        """Whether such work is judged without waiting for code, a service or governance elsewhere."""
        return not compiled.owners and (self.governance is None or self._client() is None)

    def verify_digested(
        self, contract_id: str, compiled: CompiledCriteria, work: Work, digests: Digests
    ) -> VerificationResult:
        """The same for callers that have written the work as JSON themselves, and know its digests."""
        if not self.is_immediate(compiled):
            return self.verify_sync(contract_id, work.input, work.output, compiled, work.metadata)
        try:
            found = measure(compiled, work, digests, self._cache)
            return self._conclude(contract_id, compiled, found, work, digests)
        except Exception as crash:  # noqa: BLE001 - the boundary: a caller always gets a result
            return self._error_result(contract_id, crash)

    def conclusions(
        self, compiled: CompiledCriteria, derive: Callable[[VerificationResult], T]
    ) -> "BulkConclusions[T] | None":
        """Conclusions that works with equal evidence share; None where code or governance has to be awaited."""
        if not self.is_immediate(compiled):
            return None
        rules = self.governance if isinstance(self.governance, LocalGovernance) else None
        return BulkConclusions(compiled, rules, self._cache, derive)

    def now(self) -> datetime:
        """The time that verdicts get."""
        return self._clock()

    def _compile_once(self, criteria: SuccessCriteria | Mapping[str, Any] | CompiledCriteria) -> CompiledCriteria:
        """Compiled criteria; a set that was seen before is not compiled again."""
        last = self._last
        if last is not None and last[0] is criteria:
            return last[1]
        if isinstance(criteria, CompiledCriteria):
            strange = not self.extractors.keys() >= {*criteria.owners} - criteria.custom.keys() - criteria.asked.keys()
            # Another engine may allow other code, and more of it.
            barred = criteria.custom and criteria.sandboxes.policy != self.catalogue.sandboxes.policy
            if strange or barred:
                raise VerificationRefusal(
                    ReasonCode.BAD_INPUT, "these criteria were compiled by another engine; compile them here"
                )
            self._last = (criteria, criteria)
            return criteria
        if not isinstance(criteria, SuccessCriteria):
            return self.compile(criteria)
        known = self._compiled.get(id(criteria))
        # Another object may take over the id once the first is gone; holding the object rules that out.
        if known is None or known[0] is not criteria:
            known = (criteria, self.compile(criteria))
            self._compiled.put(id(criteria), known)
        self._last = known
        return known[1]

    async def _answers(self, compiled: CompiledCriteria, work: Work, digests: AnyDigests) -> dict[str, Any]:
        """What the extractors that must be awaited say, each for itself."""
        # Here and below: what waits for others takes longer to load than most verifications, which wait for nothing.
        import asyncio

        asked = (self._answer(compiled, owner, work, digests) for owner in compiled.owners)
        return dict(zip(compiled.owners, await asyncio.gather(*asked), strict=True))

    async def _answer(self, compiled: CompiledCriteria, owner: str, work: Work, digests: AnyDigests) -> Any:
        if owner in compiled.asked:
            return await self._ask_service(compiled.asked[owner], owner, work)
        extractor = compiled.custom.get(owner) or self.extractors[owner]
        key = None if None in digests else (owner, type(extractor).__qualname__, version_of(extractor), digests)
        cached = None if key is None else self._cache.get(key)
        if cached is not None:
            return cached
        patience_s = self._patience_with(extractor, len(compiled.owners))
        answer = await self._await_within(lambda: _start_extracting(extractor, work), patience_s)
        if isinstance(answer, BaseException):
            return missing_answer(owner, answer)
        if key is not None and is_complete(compiled, owner, answer):
            # A copy: the extractor may go on using its own.
            self._cache.put(key, dict(answer))
        return answer

    async def _ask_service(self, extractor: MetricExtractor, owner: str, work: Work) -> Any:
        """The answer of a service, which keeps its own answers and its own time."""
        answer = await self._await_within(lambda: extractor.extract(*_parts(work)), MAX_SERVICE_S)
        return missing_answer(owner.partition(":")[0], answer) if isinstance(answer, BaseException) else answer

    def _patience_with(self, extractor: MetricExtractor, asked: int) -> float:
        """Never less than what custom code may take, one after another: its own limit says best what went wrong."""
        if isinstance(extractor, CustomExtractor):
            return max(self._patience_s, asked * extractor.timeout_ms / 1000 + GRACE_S)
        return self._patience_s

    async def _await_within(self, ask: Callable[[], Any], patience_s: float) -> Any:
        """The answer of a third-party extractor, or why there is none; one that answers at once is welcome too."""
        import asyncio
        import inspect

        limit = asyncio.timeout(patience_s)
        try:
            async with limit:
                answer = ask()
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError as late:
            return TimeoutError(f"no answer within {patience_s:g} s") if limit.expired() else late
        except asyncio.CancelledError as leaving:
            # Whoever awaits us may cancel us; a stranger that merely says so has failed.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return leaving
        except (Exception, SystemExit, GeneratorExit) as crash:  # noqa: BLE001 - it costs its own criteria only
            return crash

    def _conclude(
        self, contract_id: str, compiled: CompiledCriteria, evidence: list[Evidence], work: Work, digests: AnyDigests
    ) -> VerificationResult:
        """The verdict, and what governance in this process says of it."""
        versions = compiled.versions.copy()
        rules = None
        if self.governance is not None and isinstance(self.governance, LocalGovernance):
            rules = self.governance
            versions[GOVERNANCE] = rules.version
        name = contract_id if contract_id.__class__ is str and contract_id.isascii() else _identifier(contract_id)
        result = conclude_for(compiled.plan, evidence, name, self._clock(), digests, versions)
        if rules is None:
            return result
        try:
            answer = rules.check(work, result)
        except Exception as crash:  # noqa: BLE001 - a check that fails is neither a pass nor a crash
            answer = _no_answer(describe(crash))
        return add_answer(result, answer)

    def _client(self) -> GovernanceClient | None:
        """The governance that has to be awaited."""
        return self.governance.remote if isinstance(self.governance, LocalGovernance) else self.governance

    async def _ask_client(
        self, client: GovernanceClient, slots: tuple[str, ...], result: VerificationResult, work: Work
    ) -> VerificationResult:
        """Ask whether the outcome is plausible; no answer means a person must look, and no success until then."""
        claimed = {
            slot: judged.value
            for slot, judged in zip(slots, result.criterion_results, strict=True)
            if judged.provenance is Provenance.CLAIMED and judged.value is not None
        }
        context = {
            "agent_id": None,
            "work_id": None,
            **work.metadata,
            "claimed_metrics": claimed,
            "measured_metrics": {name: value for name, value in result.metrics.items() if name not in claimed},
        }
        answer = await self._await_within(
            lambda: client.validate_outcome(
                contract_id=result.contract_id, claimed_metrics=dict(result.metrics), execution_context=context
            ),
            self._patience_s,
        )
        return add_answer(result, _read_answer(answer))

    def _error_result(self, contract_id: str, problem: Exception) -> VerificationResult:
        """The result of a request that could not be judged: no pass, no failure, and why."""
        match problem:
            case VerificationRefusal():
                code, message = ReasonCode(problem.code), str(problem)
            case CriteriaError():
                code, message = ReasonCode.BAD_INPUT, "; ".join(map(str, problem.problems))
            case _:
                code, message = ReasonCode.INTERNAL, describe(problem)
        return VerificationResult(
            contract_id=_identifier(contract_id),
            success=False,
            metrics={},
            criterion_results=[],
            weighted_score=None,
            bonus=0.0,
            penalty=0.0,
            governance_flags=[],
            verified_at=self._clock(),
            verdict=Verdict.ERROR,
            score=0.0,
            exact="0",
            axes={},
            bounds=Bounds(0.0, 1.0),
            coverage=0.0,
            reasons=[Reason(code, message)],
            versions={"engine": ENGINE_VERSION},
        )


def _read_answer(answer: Any) -> GovernanceResult:
    """The answer of a client of any kind; one that is not clear holds the outcome."""
    valid, flags = getattr(answer, "valid", None), getattr(answer, "flags", None)
    if isinstance(flags, str):
        flags = [flags]
    if not isinstance(valid, bool) or not isinstance(flags, list | tuple):
        return _no_answer(
            describe(answer) if isinstance(answer, BaseException) else f"it answered {type(answer).__name__}"
        )
    if isinstance(answer, GovernanceResult):
        return answer
    return GovernanceResult(valid=valid, flags=[escape_unencodable(str(flag)) for flag in flags])


def _no_answer(why: str) -> GovernanceResult:
    flag = Flag(UNAVAILABLE, "1", Action.HOLD, evidence={"why": why})
    return GovernanceResult(valid=True, flags=[flag], disposition=Disposition.HOLD, confidence=0.0)


def _identifier(contract_id: Any) -> str:
    return escape_unencodable(contract_id if isinstance(contract_id, str) else str(contract_id))


def _read_work(work_input: Any, work_output: Any, metadata: Any) -> tuple[Work, AnyDigests]:
    """The work with its output written as JSON, which metrics need; and its digests."""
    output = work_output if work_output.__class__ is dict else _mapping("work_output", work_output)
    given = work_input if work_input.__class__ is dict else _mapping("work_input", work_input)
    facts = metadata if metadata.__class__ is dict else _mapping("execution_metadata", metadata)
    (_, written, _), digests = write_and_digest_all(given, output, facts)
    return Work(output, given, facts, {written_output: written}), digests


def _mapping(name: str, part: Any) -> Mapping[str, Any]:
    if part is None:
        return {}
    if isinstance(part, dict):
        return part
    if isinstance(part, Mapping):
        return dict(part)
    raise VerificationRefusal(ReasonCode.BAD_INPUT, f"{name} is {type(part).__name__}; it must be a mapping")


# Any: extractors of third parties answer what they like.
def _start_extracting(extractor: MetricExtractor, work: Work) -> Any:
    # A subclass may have an extract of its own.
    if not isinstance(extractor, CustomExtractor) or type(extractor).extract is not CustomExtractor.extract:
        return extractor.extract(*_copies(work))
    if type(extractor) is not CustomExtractor:
        return extractor.measure(*_copies(work))
    # Work crosses into our sandbox as JSON, without a copy; it is written once for all code.
    return extractor.measure_in(work.derive(context_of))


def _copies(work: Work) -> tuple[Any, Any, Any]:
    """The work for a stranger, who may do with it as he likes."""
    try:
        return copy.deepcopy(_parts(work))
    except Exception:  # noqa: BLE001 - what cannot be copied is handed over as it is
        return _parts(work)


def _parts(work: Work) -> tuple[Any, Any, Any]:
    return work.input, work.output, work.metadata


def _run_in_own_loop(start: Callable[[], Any]) -> VerificationResult:
    """Run a coroutine to its end on a loop of its own, whether or not this thread already runs one."""
    import asyncio
    from concurrent.futures import Future

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return cast("VerificationResult", asyncio.run(start()))
    outcome: Future[VerificationResult] = Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(start()))
        except BaseException as leaving:  # noqa: BLE001 - raised again where it belongs, in the caller's thread
            outcome.set_exception(leaving)

    # A daemon: a caller who is interrupted does not wait for a slow extractor. It sees the caller's context variables.
    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    return outcome.result()
