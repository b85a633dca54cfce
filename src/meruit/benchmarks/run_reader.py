"""Read task runs and benchmark runs with their results, for callers that change nothing."""

from fractions import Fraction

import msgspec

from meruit.benchmarks.evidence import completion, criterion_run
from meruit.benchmarks.score import TaskRunOutcome, benchmark_score
from meruit.benchmarks.store import read as runs
from meruit.benchmarks.store.read import TaskRunRow
from meruit.errors import NotFound
from meruit.model.access import Scope
from meruit.model.task_run import BenchmarkRun, Completion, CriterionRun, TaskRun
from meruit.model.verdict import VerificationResult
from meruit.outcomes import records as outcomes
from meruit.store.store import Store


class RunReader:
    """Reads runs from the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self, scope: Scope, run_id: str) -> TaskRun:
        """Return one task run; raises NotFound."""
        return self.row(scope, run_id).run

    def row(self, scope: Scope, run_id: str) -> TaskRunRow:
        """Return one task run with the fields that no caller sees; raises NotFound."""
        with self.store.database.reading() as connection:
            return runs.find(connection, scope, run_id)

    def result(self, tenant: str, run: TaskRun) -> VerificationResult | None:
        """Return the verdict on a run with all the evidence; None if it has none, or it was erased."""
        if run.outcome_id is None or run.outcome_version is None:
            return None
        with self.store.database.reading() as connection:
            return outcomes.version(connection, Scope(tenant), run.outcome_id, run.outcome_version).result

    def completion(self, tenant: str, run: TaskRun) -> Completion:
        """Return what the caller who completed a run may see of it."""
        result = self.result(tenant, run)
        return completion(run, result, self._criteria_of(tenant, run, result))

    def criterion_runs(self, tenant: str, run: TaskRun) -> list[CriterionRun]:
        """Return every criterion of a run with its evidence; empty before the run is completed."""
        return self._criteria_of(tenant, run, self.result(tenant, run))

    def _criteria_of(self, tenant: str, run: TaskRun, result: VerificationResult | None) -> list[CriterionRun]:
        if result is None:
            return []
        with self.store.database.reading() as connection:
            found = runs.criterion_runs(connection, tenant, run)
        return [criterion_run(one, result.criterion_results[one.position]) for one in found]

    def criterion_run(self, tenant: str, run_id: str) -> CriterionRun:
        """Return one criterion run with its evidence; raises NotFound."""
        with self.store.database.reading() as connection:
            found = runs.criterion_run(connection, tenant, run_id)
            result = outcomes.version(connection, Scope(tenant), found.outcome_id, found.version).result
        if result is None:
            raise NotFound(f"the evidence of {run_id!r} was erased")
        return criterion_run(found, result.criterion_results[found.position])

    def benchmark_run(self, scope: Scope, run_id: str) -> BenchmarkRun:
        """Return a benchmark run, with its result once every task run has ended; raises NotFound."""
        with self.store.database.reading() as connection:
            found = runs.benchmark_run(connection, scope, run_id)
            several = runs.of_benchmark_run(connection, scope.tenant, run_id) if found.ended else []
        if not found.ended:
            return found
        tasks = list(dict.fromkeys(run.task for run in several))
        return msgspec.structs.replace(found, result=benchmark_score(list(map(to_task_run_outcome, several)), tasks))

    def task_runs(self, scope: Scope, benchmark_run_id: str) -> list[TaskRun]:
        """Return all task runs of a benchmark run; raises NotFound."""
        with self.store.database.reading() as connection:
            runs.benchmark_run(connection, scope, benchmark_run_id)
            return runs.of_benchmark_run(connection, scope.tenant, benchmark_run_id)


def to_task_run_outcome(run: TaskRun) -> TaskRunOutcome:
    """Convert a run to the form that the benchmark score uses."""
    if run.exact is None or run.exact_high is None:
        return TaskRunOutcome(id=run.id, task=run.task, status=run.status, begun=run.started_at is not None)
    low, high = Fraction(run.exact), Fraction(run.exact_high)
    return TaskRunOutcome(
        id=run.id,
        task=run.task,
        status=run.status,
        verdict=run.verdict,
        low=low,
        high=high,
        coverage=run.coverage or 0.0,
    )
