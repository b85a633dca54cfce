"""Evaluations: begin one, judge its cases, record them in segments, finish it."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, Self

import msgspec

from meruit.errors import AuthorError, InvalidCase, UnknownJudge
from meruit.evaluations.evaluation import (
    MAX_NAME,
    MAX_TAGS,
    STATUS_LETTERS,
    Case,
    CaseSummary,
    EvaluationRecord,
)
from meruit.evaluations.journal import RunJournal, open_journal
from meruit.evaluations.judge_usage import FRAMEWORK, build_judge_runs
from meruit.evaluations.pairwise import MAX_PAIRS_A_REQUEST, PairwiseComparison, compare_pairwise, judging_scope
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.segment import SALTS, CaseContent, entries_of, pack
from meruit.evaluations.store.read import find, find_known_cases, find_spending
from meruit.evaluations.store.write import FinishEvaluation, RecordSegment, StartEvaluation
from meruit.judges.prefer import PairJudge, PairQuestion
from meruit.judges.records import read_totals
from meruit.judges.scope import VERIFICATION, JudgingScope, judging_for
from meruit.judges.service import ModelJudges
from meruit.judges.vote_records import TokenTotal
from meruit.log.commitment import SALT_BYTES
from meruit.log.segment import MAX_CASES
from meruit.model.canonical import payload_bytes
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Fault
from meruit.model.verdict import Bounds, Reason, ReasonCode, Verdict, VerificationResult
from meruit.model.vote import JUDGE
from meruit.model.work import Work
from meruit.outcomes.records import criteria_body
from meruit.outcomes.service import Registrar
from meruit.store.blobs import in_database
from meruit.store.recorder import Write
from meruit.usage.followers import UsageWrite
from meruit.usage.records import RecordRun
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.measure import Digests

SEGMENT_BYTES = 8 * 1024 * 1024
"""A segment is recorded once its cases are this large together, even if there are fewer than 512."""


class JudgedCase(NamedTuple):
    """A case with its verdict, not yet recorded."""

    case: Case
    summary: CaseSummary
    content: CaseContent
    result: VerificationResult
    size: int


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """How judges are asked about the cases of an evaluation."""

    concurrency: int = 8
    """Cases at the same time."""
    max_tokens: int | None = None
    """Tokens of judges for the whole evaluation, where that is stricter than the settings."""


class Evaluator:
    """Judges the cases of evaluations and keeps them."""

    def __init__(self, registrar: Registrar, tenant: str) -> None:
        self._registrar = registrar
        self._store = registrar.store
        self._tenant = tenant

    def compile(self, written: Mapping[str, Any] | SuccessCriteria) -> CompiledCriteria:
        """Criteria for any number of cases; raises CriteriaError with every problem."""
        return self._registrar.compile(written)

    def start(
        self,
        name: str,
        criteria: CompiledCriteria,
        *,
        tags: Mapping[str, str] | None = None,
        dataset_digest: str | None = None,
        planned: int | None = None,
    ) -> EvaluationRecord:
        """Begin an evaluation, or go on with an unfinished one of the same name, criteria, data and tags."""
        return self._store.recorder.write(
            self.draft_start(name, criteria, tags=tags, dataset_digest=dataset_digest, planned=planned)
        )

    def draft_start(
        self,
        name: str,
        criteria: CompiledCriteria,
        *,
        tags: Mapping[str, str] | None = None,
        dataset_digest: str | None = None,
        planned: int | None = None,
    ) -> Write[EvaluationRecord]:
        """The write that begins an evaluation; raises InvalidCase for a name or tags that cannot be kept."""
        check_name(name, "the evaluation")
        check_tags(tags or {}, "the evaluation")
        return StartEvaluation(
            *(self._tenant, name, criteria.body, criteria.digest, dataset_digest, planned),
            tuple(sorted((tags or {}).items())),
        )

    def committed_criteria(self, evaluation: EvaluationRecord) -> CompiledCriteria:
        """The criteria that an evaluation was begun with, compiled; raises Unavailable where they do not run here."""
        with self._store.database.reading() as connection:
            body = criteria_body(connection, self._tenant, evaluation.criteria_digest)
        return self._registrar.load_committed(evaluation.criteria_digest, body)

    def find(self, name_or_id: str) -> EvaluationRecord:
        """The evaluation of that name or id; raises NotFound."""
        with self._store.database.reading() as connection:
            return find(connection, self._tenant, name_or_id)

    def missing(self, evaluation: EvaluationRecord, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases that are not recorded yet; for going on where a process ended."""
        # A new evaluation has none, and needs no question.
        for several in in_groups(cases, MAX_CASES):
            known: set[tuple[str, int]] = set()
            if evaluation.cases:
                known = self._known(evaluation, [case.id for case in several])
            yield from (case for case in several if (case.id, case.repeat) not in known)

    def _known(self, evaluation: EvaluationRecord, ids: Sequence[str]) -> set[tuple[str, int]]:
        with self._store.database.reading() as connection:
            return find_known_cases(connection, self._tenant, evaluation.id, ids)

    def judge_tokens(self, evaluation: EvaluationRecord) -> list[TokenTotal]:
        """The tokens that judges used for it, by model."""
        with self._store.database.reading() as connection:
            return read_totals(connection, self._tenant, evaluation.id)

    def spending(self, evaluation: EvaluationRecord) -> tuple[int, int]:
        """What its recorded cases cost together, and the dearest of them, in millionths."""
        with self._store.database.reading() as connection:
            return find_spending(connection, self._tenant, evaluation.id)

    @contextmanager
    def journal(self, evaluation: EvaluationRecord) -> Iterator[RunJournal]:
        """What is made and not recorded yet; raises EvaluationConflict while another process has it."""
        with open_journal(self._store.database.location.folder, evaluation.id) as journal:
            # A process may have died after it recorded them and before it said so here.
            journal.forget(self._known(evaluation, [case_id for case_id, _ in journal.made]))
            yield journal

    def judge_all(
        self, evaluation: EvaluationRecord, criteria: CompiledCriteria, cases: Iterable[Case], limits: JudgeLimits
    ) -> Iterator[JudgedCase]:
        """Judge cases in their order; several at a time where judges are asked, which take seconds to answer."""
        if not criteria.asked:
            yield from (self.judge(criteria, case) for case in cases)
            return
        waiting: deque[Future[JudgedCase]] = deque()
        with ThreadPoolExecutor(limits.concurrency) as pool:
            try:
                for case in cases:
                    waiting.append(pool.submit(self.judge, criteria, case, evaluation, limits))
                    if len(waiting) > limits.concurrency:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for one in waiting:
                    one.cancel()

    def judge(
        self,
        criteria: CompiledCriteria,
        case: Case,
        evaluation: EvaluationRecord | None = None,
        limits: JudgeLimits = JudgeLimits(),  # noqa: B008 - frozen
    ) -> JudgedCase:
        """Judge one case; one without an output is inconclusive. Judges' tokens count for the evaluation."""
        check_case(case)
        outcome_id = self._store.surroundings.new_id("out")
        written = WrittenWork.write(case)
        if case.output is None or case.error is not None:
            result = _result_without_output(case, outcome_id, criteria, self._store.surroundings.clock(), written)
            return self._to_judged(case, outcome_id, result, written)
        work = Work(output=case.output, input=case.input, metadata=case.metadata)
        engine, digests = self._registrar.engine, written.digests()
        if criteria.asked:
            scope = JudgingScope(self._tenant, VERIFICATION if evaluation is None else evaluation.id, limits.max_tokens)
            with judging_for(scope):
                result = engine.verify_digested(outcome_id, criteria, work, digests)
        else:
            result = engine.verify_digested(outcome_id, criteria, work, digests)
        return self._to_judged(case, outcome_id, result, written)

    def adopt(self, case: Case, result: VerificationResult) -> JudgedCase:
        """A case that another process judged by the same criteria."""
        check_case(case)
        outcome_id = self._store.surroundings.new_id("out")
        result = msgspec.structs.replace(result, contract_id=outcome_id)
        return self._to_judged(case, outcome_id, result, WrittenWork.write(case))

    def _to_judged(self, case: Case, outcome_id: str, result: VerificationResult, written: "WrittenWork") -> JudgedCase:
        result_json = result.to_json()
        content = CaseContent(
            case=case.id,
            repeat=case.repeat,
            outcome=outcome_id,
            version=1,
            input=msgspec.Raw(written.input),
            output=msgspec.Raw(written.output),
            metadata=msgspec.Raw(written.metadata),
            result=msgspec.Raw(result_json),
            salts=self._store.surroundings.entropy(SALTS * SALT_BYTES).hex(),
            verdict=result.verdict.value,
            success=result.success,
            score=result.exact,
            bonus_micros=result.bonus_micros,
            penalty_micros=result.penalty_micros,
            error_message=case.error_message,
        )
        latency = case.metadata.get("duration_ms")
        results = result.criterion_results
        summary = CaseSummary(
            case_id=case.id,
            repeat=case.repeat,
            seq=0,
            outcome_id=outcome_id,
            version=1,
            verdict=result.verdict,
            success=result.success,
            score=result.score,
            statuses="".join([STATUS_LETTERS[one.status] for one in results]),
            group=case.group,
            tags=case.tags,
            claimed=case.claimed,
            error=case.error,
            # Without results of criteria there was no output to judge: nothing that the agent can be blamed for.
            faults=_faults(frozenset([one.fault for one in results])) if results else (Fault.SYSTEM,),
            latency_ms=float(latency) if isinstance(latency, int | float) and not isinstance(latency, bool) else None,
            cost_micros=case.cost_micros,
        )
        return JudgedCase(case, summary, content, result, written.size + len(result_json))

    def record(self, evaluation: EvaluationRecord, judged: Sequence[JudgedCase]) -> int:
        """Record up to 512 cases as one segment; durable when this returns its number."""
        return self._store.recorder.write(self.draft_segment(evaluation, judged))

    def draft_segment(self, evaluation: EvaluationRecord, judged: Sequence[JudgedCase]) -> Write[int]:
        """The write that records a segment; its blob goes with it."""
        content = [one.content for one in judged]
        # Never a file, which a death would leave behind with the work in it and no record of it.
        blob = in_database(pack(content))
        summaries = tuple(one.summary for one in judged)
        return RecordSegment(self._tenant, evaluation.id, summaries, tuple(entries_of(content)), blob)

    def finish(self, evaluation: EvaluationRecord) -> EvaluationRecord:
        """Say that all its cases are recorded; from then on it does not change."""
        done = self._store.recorder.write(self.draft_finish(evaluation))
        self.meter_judges(evaluation)
        return done

    def meter_judges(self, evaluation: EvaluationRecord) -> None:
        """Record what judges used for it as usage runs of the accounts that their settings name."""
        judges = self._registrar.engine.services.get(JUDGE)
        if not isinstance(judges, ModelJudges) or not any(one.account for one in judges.judges.values()):
            return
        now = self._store.surroundings.clock()
        for run in build_judge_runs(evaluation, self.judge_tokens(evaluation), judges.judges, now):
            write = RecordRun(self._tenant, FRAMEWORK, run)
            self._store.recorder.write(UsageWrite(self._tenant, FRAMEWORK, write))

    def prefer(
        self, evaluations: Sequence[EvaluationRecord], question: PairQuestion, max_tokens: int | None = None
    ) -> PairwiseComparison:
        """Ask a judge which outputs of common cases are better, in both orders; answers that are known are not asked.

        Raises UnknownJudge, NotComparable.
        """
        judges = self._registrar.engine.services.get(JUDGE)
        if not isinstance(judges, ModelJudges):
            raise UnknownJudge("this service has no judges; name one under `judges` in its settings")
        try:
            judge = PairJudge(judges, question)
        except AuthorError as refused:
            raise UnknownJudge(str(refused)) from None
        scope = judging_scope(self._tenant, evaluations[0], max_tokens)
        reader = Evaluations(self._store, self._tenant)
        return compare_pairwise(reader, evaluations, judge, scope, MAX_PAIRS_A_REQUEST)

    def draft_finish(self, evaluation: EvaluationRecord) -> Write[EvaluationRecord]:
        """The write that finishes an evaluation."""
        return FinishEvaluation(self._tenant, evaluation.id)


class SegmentBuffer:
    """Gathers judged cases until a segment is full."""

    def __init__(self) -> None:
        self._cases: list[JudgedCase] = []
        self._size = 0

    def add(self, judged: JudgedCase) -> list[JudgedCase]:
        """Add a case; a full segment where it fills one, else nothing."""
        self._cases.append(judged)
        self._size += judged.size
        return self.take() if len(self._cases) >= MAX_CASES or self._size >= SEGMENT_BYTES else []

    def take(self) -> list[JudgedCase]:
        """What has gathered so far."""
        taken, self._cases, self._size = self._cases, [], 0
        return taken


def in_groups(cases: Iterable[Case], size: int) -> Iterator[list[Case]]:
    """The cases in lists of a size; the last may be shorter."""
    rest = iter(cases)
    while group := [*islice(rest, size)]:
        yield group


def check_name(name: str, what: str) -> None:
    """Refuse a name that is empty, too long, or has control characters."""
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidCase(f"the name of {what} has 1 to {MAX_NAME} printable characters, not {name[:80]!r}")


def check_tags(tags: Mapping[str, str], what: str) -> None:
    """Refuse too many tags, and names or values that cannot be shown."""
    if not tags:
        return
    if len(tags) > MAX_TAGS:
        raise InvalidCase(f"{what} has {len(tags)} tags; the limit is {MAX_TAGS}")
    for name, value in tags.items():
        check_name(name, f"a tag of {what}")
        check_name(value, f"the tag {name!r} of {what}")


def check_case(case: Case) -> None:
    """Refuse a case whose id, group or tags cannot be kept."""
    check_name(case.id, "a case")
    check_tags(case.tags, f"the case {case.id!r}")
    if case.group is not None:
        check_name(case.group, f"the group of case {case.id!r}")
    if case.repeat < 0:
        raise InvalidCase(f"the case {case.id!r} has the repeat {case.repeat}; repeats are counted from 0")


@lru_cache(maxsize=64)
def _faults(found: frozenset[Fault]) -> tuple[Fault, ...]:
    """Who is responsible for what was not met or not measured, in alphabetical order."""
    return tuple(sorted(found - {Fault.NONE}))


class WrittenWork(NamedTuple):
    """The work of a case as it is kept: written once, for its digests and for its segment."""

    input: bytes
    output: bytes
    metadata: bytes

    @classmethod
    def write(cls, case: Case) -> Self:
        """Write the work; raises InvalidCase for what is not JSON."""
        return cls(
            *(_payload(case, "input", case.input), _payload(case, "output", case.output or {})),
            _payload(case, "metadata", case.metadata),
        )

    def digests(self) -> Digests:
        """The digests of the parts, as the engine takes them."""
        return Digests(*[_NO_WORK if part == b"{}" else sha256(part).hexdigest() for part in self])

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.input) + len(self.output) + len(self.metadata)


_NO_WORK = sha256(b"{}").hexdigest()


def _payload(case: Case, name: str, part: Mapping[str, Any]) -> bytes:
    if not part:
        return b"{}"
    written = payload_bytes(part)
    if written is None:
        raise InvalidCase(f"the {name} of case {case.id!r} is not plain JSON (NaN, a date, or nested too deeply)")
    return written


def _result_without_output(
    case: Case, outcome_id: str, criteria: CompiledCriteria, now: datetime, written: WrittenWork
) -> VerificationResult:
    """The inconclusive result of a case that has no output."""
    digests = written.digests()
    why = case.error_message or "the case has no output to judge"
    return VerificationResult(
        contract_id=outcome_id,
        success=False,
        metrics={},
        criterion_results=[],
        weighted_score=None,
        bonus=0.0,
        penalty=0.0,
        governance_flags=[],
        verified_at=now,
        verdict=Verdict.INCONCLUSIVE,
        score=0.0,
        exact="0",
        axes={},
        bounds=Bounds(0.0, 1.0),
        coverage=0.0,
        reasons=[Reason(ReasonCode.NO_OUTPUT, why)],
        criteria_digest=criteria.digest,
        input_digest=digests.input,
        output_digest=digests.output,
        metadata_digest=digests.metadata,
    )
