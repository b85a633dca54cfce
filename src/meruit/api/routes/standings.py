"""Leaderboards of benchmarks, and two benchmark runs compared. An agent sees its own runs only."""

from meruit.api.auth import ANYONE
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.request import ApiRequest
from meruit.api.routes.benchmarks import BenchmarkPath
from meruit.api.routes.task_runs import BenchmarkRunId
from meruit.api.wire.common import json_response
from meruit.errors import ApiProblem, MeruitError, NotFound, TaskRunStateError
from meruit.reports.standings import BenchmarkStandings, Leaderboard, RunComparison
from meruit.web.responses import Response
from meruit.web.routing import get


@get(
    "/v1/benchmarks/{benchmark:str}/leaderboard",
    guards=[ANYONE],
    summary="Read a benchmark's leaderboard",
    tags=["benchmarks"],
)
async def read_leaderboard(benchmark: BenchmarkPath, request: ApiRequest) -> Response[Leaderboard]:
    """Rank the agents of a benchmark version by their verified runs, with intervals and ties."""
    scope = request.caller.scope
    found = await run_in_reader_thread(lambda: _standings(request).leaderboard(scope, benchmark))
    return json_response(found)


@get(
    "/v1/benchmark-runs/{benchmark_run_id:str}/compare/{other_id:str}",
    guards=[ANYONE],
    summary="Compare two benchmark runs",
    tags=["runs"],
)
async def compare_benchmark_runs(
    benchmark_run_id: BenchmarkRunId, other_id: BenchmarkRunId, request: ApiRequest
) -> Response[RunComparison]:
    """Compare two ended runs of one benchmark, task by task; differences are the other run minus this one."""
    scope = request.caller.scope
    try:
        found = await run_in_reader_thread(lambda: _standings(request).compare(scope, benchmark_run_id, other_id))
    except (NotFound, TaskRunStateError):
        raise
    except MeruitError as problem:
        raise ApiProblem(422, "not_comparable", str(problem)) from None
    return json_response(found)


def _standings(request: ApiRequest) -> BenchmarkStandings:
    benchmarks = request.service.benchmarks
    return BenchmarkStandings(benchmarks.library, benchmarks.reader)
