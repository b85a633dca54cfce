"""What other packages may use of published benchmarks and recorded task runs. Tables and SQL are in store."""

from meruit.benchmarks.store.published import (
    BenchmarkView,
    DeletedBenchmark,
)
from meruit.benchmarks.store.published import (
    page as page_published,
)
from meruit.benchmarks.store.read import (
    TaskRunFilter,
    benchmark_run_page,
    benchmark_runs_sorted,
    find_several,
    page,
    runs_of_benchmark,
)
from meruit.benchmarks.store.transitions import (
    CreateRuns,
)

__all__ = [
    "BenchmarkView",
    "CreateRuns",
    "DeletedBenchmark",
    "TaskRunFilter",
    "benchmark_run_page",
    "benchmark_runs_sorted",
    "find_several",
    "page",
    "page_published",
    "runs_of_benchmark",
]
