"""Evaluations: begin one, judge its cases, record them in segments, finish it."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

from meruit.errors import AuthorError, NotFound, UnknownJudge
from meruit.evaluations.bulk_judge import BulkJudge
from meruit.evaluations.case_judge import (
    CaseJudge,
    FinishedSegment,
    JudgedCase,
    JudgeLimits,
    check_name,
    check_tags,
    finish_segment,
)
from meruit.evaluations.evaluation import Case, EvaluationRecord, EvaluationStatus
from meruit.evaluations.journal import RunJournal, has_journal, open_journal
from meruit.evaluations.judge_usage import FRAMEWORK, build_judge_runs
from meruit.evaluations.pairwise import (
    MAX_PAIRS_A_REQUEST,
    PairwiseComparison,
    Watch,
    compare_pairwise,
    ignore,
    judging_scope,
)
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.store.read import find, find_known_cases, find_spending
from meruit.evaluations.store.write import (
    DropEmptyEvaluation,
    FinishEvaluation,
    RecordSegment,
    RecordSegments,
    StartEvaluation,
)
from meruit.judges.prefer import PairJudge, PairQuestion
from meruit.judges.records import read_totals
from meruit.judges.service import ModelJudges
from meruit.judges.vote_records import TokenTotal
from meruit.log.segment import MAX_CASES
from meruit.model.criterion import SuccessCriteria
from meruit.model.verdict import VerificationResult
from meruit.model.vote import JUDGE
from meruit.outcomes.records import criteria_body
from meruit.outcomes.service import Registrar
from meruit.store.blobs import in_database
from meruit.store.recorder import Write
from meruit.usage.followers import UsageWrite
from meruit.usage.records import RecordRun
from meruit.verify.catalogue import CompiledCriteria


class Evaluator:
    """Judges the cases of evaluations and keeps them."""

    def __init__(self, registrar: Registrar, tenant: str) -> None:
        self._registrar = registrar
        self._store = registrar.store
        self._tenant = tenant
        self._judge = CaseJudge(registrar.engine, tenant, registrar.store.surroundings)

    @property
    def reader(self) -> Evaluations:
        """What reads evaluations of the tenant."""
        return Evaluations(self._store, self._tenant)

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
        replaces_empty: bool = False,
    ) -> EvaluationRecord:
        """Begin an evaluation, or go on with an unfinished one of the same name, criteria, data and tags.

        With `replaces_empty`, an unfinished one of other data, criteria or tags frees its name where it has no case: as
        a rule, its file had a fault.
        """
        start = self.draft_start(name, criteria, tags=tags, dataset_digest=dataset_digest, planned=planned)
        if replaces_empty:
            self._drop_empty(start)
        return self._store.recorder.write(start)

    def _drop_empty(self, start: StartEvaluation) -> None:
        try:
            found = self.find(start.name)
        except NotFound:
            return
        # A target may have made outputs that are paid for.
        if not found.cases and not has_journal(self._store.database.location.folder, found.id):
            self._store.recorder.write(DropEmptyEvaluation(self._tenant, start))

    def draft_start(
        self,
        name: str,
        criteria: CompiledCriteria,
        *,
        tags: Mapping[str, str] | None = None,
        dataset_digest: str | None = None,
        planned: int | None = None,
    ) -> StartEvaluation:
        """The write that begins an evaluation; raises InvalidCase for a name or tags that cannot be kept."""
        check_name(name, "the evaluation")
        check_tags(tags or {}, "the evaluation")
        return StartEvaluation(
            self._tenant,
            name,
            criteria.body,
            criteria.digest,
            dataset_digest,
            planned,
            tuple(sorted((tags or {}).items())),
        )

    def criteria_committed_to(self, evaluation: EvaluationRecord) -> CompiledCriteria:
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
        if not evaluation.cases:
            # A new evaluation has none. Each is judged as it is read, while the processor still has it at hand.
            yield from cases
            return
        for several in in_groups(cases, MAX_CASES):
            known = self.find_known(evaluation, [case.id for case in several])
            yield from (case for case in several if (case.id, case.repeat) not in known)

    def find_known(self, evaluation: EvaluationRecord, ids: Sequence[str]) -> set[tuple[str, int]]:
        """Which of these cases are recorded already, as id and repeat."""
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
            journal.forget(self.find_known(evaluation, [case_id for case_id, _ in journal.made]))
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
        return self._judge.judge(criteria, case, None if evaluation is None else evaluation.id, limits)

    def bulk_judge(self, criteria: CompiledCriteria) -> BulkJudge:
        """What judges many stored outputs into finished segments."""
        return BulkJudge(self._judge, criteria)

    def adopt(self, case: Case, result: VerificationResult) -> JudgedCase:
        """A case that another process judged by the same criteria."""
        return self._judge.adopt(case, result)

    def record(self, evaluation: EvaluationRecord, judged: Sequence[JudgedCase], recorded: int | None = None) -> int:
        """Record up to 512 cases as one segment; durable when this returns its number.

        `recorded` is how many cases the caller knows to be recorded, none of which is among these.
        """
        return self.record_all(evaluation, [finish_segment(judged)], recorded)

    def record_all(
        self, evaluation: EvaluationRecord, segments: Sequence[FinishedSegment], recorded: int | None = None
    ) -> int:
        """The same for several finished segments, which become durable together; the number of the last."""
        writes = []
        for segment in segments:
            writes.append(self._draft_finished(evaluation, segment, recorded))
            recorded = None if recorded is None else recorded + len(segment.summaries)
        return self._store.recorder.write(RecordSegments(tuple(writes)))

    def draft_segment(self, evaluation: EvaluationRecord, judged: Sequence[JudgedCase]) -> Write[int]:
        """The write that records a segment; its blob goes with it."""
        return self._draft_finished(evaluation, finish_segment(judged))

    def _draft_finished(
        self, evaluation: EvaluationRecord, segment: FinishedSegment, recorded: int | None = None
    ) -> RecordSegment:
        # Never a file, which a death would leave behind with the work in it and no record of it.
        blob = in_database(segment.blob)
        return RecordSegment(
            tenant=self._tenant,
            evaluation_id=evaluation.id,
            cases=segment.summaries,
            root=segment.root,
            blob=blob,
            recorded=recorded,
        )

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
            self._store.recorder.write(UsageWrite(tenant=self._tenant, by=FRAMEWORK, write=write))

    def prefer(
        self, evaluations: Sequence[EvaluationRecord], question: PairQuestion, watch: Watch = ignore
    ) -> PairwiseComparison:
        """Ask a judge which outputs of common cases are better, in both orders; answers that are known are not asked.

        `watch` hears how many pairs are answered. Raises UnknownJudge, NotComparable.
        """
        judges = self._registrar.engine.services.get(JUDGE)
        if not isinstance(judges, ModelJudges):
            raise UnknownJudge("this service has no judges; name one under `judges` in its settings")
        try:
            judge = PairJudge(judges, question)
        except AuthorError as refused:
            raise UnknownJudge(str(refused)) from None
        scope = judging_scope(self._tenant, evaluations[0], question)
        return compare_pairwise(self.reader, evaluations, judge, scope, MAX_PAIRS_A_REQUEST, watch)

    def draft_finish(self, evaluation: EvaluationRecord) -> Write[EvaluationRecord]:
        """The write that finishes an evaluation; its cases are counted first."""
        figures = None
        if evaluation.status is EvaluationStatus.RUNNING:
            figures = self.reader.draft_figures(evaluation)
        return FinishEvaluation(self._tenant, evaluation.id, figures)


def in_groups(cases: Iterable[Case], size: int) -> Iterator[list[Case]]:
    """The cases in lists of a size; the last may be shorter."""
    rest = iter(cases)
    while group := [*islice(rest, size)]:
        yield group
