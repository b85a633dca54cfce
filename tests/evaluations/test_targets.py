"""Targets: a function, a command, an endpoint; what they cannot do is inconclusive, and costs are limited."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from meruit.errors import MeruitError, TargetFailed
from meruit.evaluations import run_target as running
from meruit.evaluations import target_threads
from meruit.evaluations.evaluation import Case, CaseError, EvaluationStatus
from meruit.evaluations.reader import CaseFilter, Evaluations
from meruit.evaluations.run import RunLimits
from meruit.evaluations.run_target import run_target
from meruit.evaluations.service import Evaluator
from meruit.evaluations.targets import (
    MAX_OUTPUT_BYTES,
    CommandTarget,
    FunctionTarget,
    Target,
    TargetOutput,
    UrlTarget,
    load_function,
    to_output,
)
from meruit.verify.catalogue import CompiledCriteria

QUICK = RunLimits(concurrency=4, retries=0, timeout_s=60)


def cases(count: int) -> list[Case]:
    return [Case(f"c{n}", {"n": n, "reference": "yes"}) for n in range(count)]


def made(target: Target, **given: Any) -> TargetOutput:
    async def once() -> TargetOutput:
        try:
            return await target.make(Case("a", given))
        finally:
            await target.close()

    return asyncio.run(once())


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BACKOFF_S", 0.0)


@pytest.fixture
def endpoint() -> Iterator[Callable[[Callable[[Any], tuple[int, bytes]]], str]]:
    """A local endpoint that answers as a test says."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answer: Callable[[Any], tuple[int, bytes]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, content = answer({"body": body, "headers": dict(self.headers)})
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_outputs_are_made_judged_and_recorded(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    async def answer(given: dict[str, Any]) -> dict[str, Any]:
        # References are not for the target's eyes.
        assert "reference" not in given
        return {"output": "yes" if given["n"] % 2 else "no", "metadata": {"m": 1}, "cost": 0.25}

    started = evaluator.start("first", criteria)
    asyncio.run(run_target(evaluator, started, criteria, cases(9), FunctionTarget(answer), QUICK))
    found = reader.find("first")
    summary = reader.summary(found)
    assert (found.status, summary.overall.passed, summary.overall.failed) == (EvaluationStatus.FINISHED, 4, 5)
    assert summary.cost_micros == 9 * 250_000
    assert summary.latency_ms is not None


def test_an_error_of_the_target_is_inconclusive(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, no_pause: None
) -> None:
    tries: list[int] = []

    def answer(given: dict[str, Any]) -> str:
        tries.append(given["n"])
        if given["n"] == 0:
            raise RuntimeError("down")
        # The second fails once.
        if given["n"] == 1 and tries.count(1) == 1:
            raise RuntimeError("flaky")
        return "yes"

    started = evaluator.start("first", criteria)
    limits = RunLimits(concurrency=2, retries=1)
    asyncio.run(run_target(evaluator, started, criteria, cases(3), FunctionTarget(answer), limits))
    found = reader.find("first")
    summary = reader.summary(found)
    assert (summary.overall.passed, summary.overall.failed, summary.overall.open) == (2, 0, 1)
    (failed,) = reader.details(found, CaseFilter(error=True))
    assert (failed.summary.case_id, failed.summary.error) == ("c0", CaseError.TARGET_ERROR)
    assert "down" in failed.error_message
    assert tries.count(0) == 2


def test_further_tries_keep_to_the_rate(evaluator: Evaluator, criteria: CompiledCriteria, no_pause: None) -> None:
    begun: list[float] = []

    async def answer(given: dict[str, Any]) -> str:
        begun.append(asyncio.get_running_loop().time())
        raise ConnectionError("busy")

    started = evaluator.start("first", criteria)
    limits = RunLimits(concurrency=4, retries=3, rate_per_s=20)
    asyncio.run(run_target(evaluator, started, criteria, cases(2), FunctionTarget(answer), limits))
    assert len(begun) == 8
    # Seven pauses of at least 50 ms between the first and the last; clocks are read a little early.
    assert begun[-1] - begun[0] >= 0.3


def test_a_target_that_is_too_slow_is_inconclusive(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    async def answer(given: dict[str, Any]) -> str:
        await asyncio.sleep(3_600 if given["n"] == 0 else 0)
        return "yes"

    started = evaluator.start("first", criteria)
    limits = RunLimits(concurrency=1, retries=0, timeout_s=0.2)
    asyncio.run(run_target(evaluator, started, criteria, cases(1), FunctionTarget(answer), limits))
    assert reader.summary(reader.find("first")).errors == {"target_timeout": 1}


def test_no_output_is_begun_once_the_limit_is_spent(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    begun: list[int] = []

    async def answer(given: dict[str, Any]) -> dict[str, Any]:
        begun.append(given["n"])
        return {"output": "yes", "cost": 1.0}

    def once(limit: int) -> None:
        started = evaluator.start("first", criteria)
        limits = RunLimits(concurrency=2, retries=0, cost_limit_micros=limit)
        asyncio.run(run_target(evaluator, started, criteria, cases(20), FunctionTarget(answer), limits))

    with pytest.raises(MeruitError):
        once(5_000_000)
    # Never more than what was in flight.
    assert 5 <= len(begun) <= 6
    assert reader.find("first").status is EvaluationStatus.RUNNING
    # What was spent before counts.
    with pytest.raises(MeruitError):
        once(5_000_000)
    assert len(begun) <= 6
    once(50_000_000)
    assert reader.find("first").status is EvaluationStatus.FINISHED
    assert len(begun) == len(set(begun)) == 20


def test_each_case_is_tried_as_often_as_asked(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    started = evaluator.start("first", criteria)
    limits = RunLimits(concurrency=4, repeat=3, rate_per_s=10_000)
    asyncio.run(run_target(evaluator, started, criteria, cases(4), FunctionTarget(lambda _: "yes"), limits))
    found = reader.find("first")
    assert found.cases == 12
    assert reader.summary(found).pass_hat_k == {"1": 1.0, "2": 1.0, "3": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"concurrency": 0}, {"repeat": 0}, {"retries": -1}, {"timeout_s": 0}, {"rate_per_s": float("nan")}),
        {"cost_limit_micros": -1},
    ],
)
def test_limits_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MeruitError):
        RunLimits(**wrong)


# What targets return.


def test_a_text_or_an_object_is_an_output() -> None:
    assert to_output("a") == TargetOutput({"text": "a"})
    assert to_output({"a": 1}) == TargetOutput({"a": 1})
    assert to_output({"output": {"a": 1}, "cost": 0.5}) == TargetOutput({"a": 1}, {}, 500_000)
    # An object of the user's that happens to have an output is left as it is.
    assert to_output({"output": "a", "b": 1}) == TargetOutput({"output": "a", "b": 1})
    ready = TargetOutput({})
    assert to_output(ready) is ready


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        [],
        {"output": 5},
        {"output": "a", "metadata": 5},
        {"output": "a", "cost": -1},
        {"output": "a", "cost": True},
    ],
)
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(TargetFailed):
        to_output(wrong)


# Functions.


def test_a_function_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "target_of_a_test.py").write_text("def answer(given): return str(given['n'])\nvalue = 5\n")
    assert made(load_function("target_of_a_test:answer"), n=3).output == {"text": "3"}
    for wrong in ("target_of_a_test", ":answer", "target_of_a_test:none", "no_such_module:f", "target_of_a_test:value"):
        with pytest.raises(MeruitError):
            load_function(wrong)


def test_a_function_may_return_what_is_to_be_awaited() -> None:
    async def later() -> str:
        return "a"

    assert made(FunctionTarget(lambda _: later())).output == {"text": "a"}


def test_a_plain_function_that_hangs_holds_up_nothing(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    free = threading.Event()
    started = evaluator.start("first", criteria)
    limits = RunLimits(concurrency=40, retries=0, timeout_s=0.2)
    target = FunctionTarget(lambda _: str(free.wait(60)))
    try:
        asyncio.run(run_target(evaluator, started, criteria, cases(40), target, limits))
        assert reader.summary(reader.find("first")).errors == {"target_timeout": 40}
        assert not free.is_set()
    finally:
        free.set()


def test_plain_functions_run_as_many_as_asked_for_at_once() -> None:
    # More than the threads that asyncio has.
    together = threading.Barrier(40)
    target = FunctionTarget(lambda _: str(together.wait(60) >= 0))

    async def at_once() -> list[TargetOutput]:
        return await asyncio.gather(*(target.make(case) for case in cases(40)))

    assert {one.output["text"] for one in asyncio.run(at_once())} == {"True"}


def test_too_many_calls_that_hang_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_threads, "MAX_HUNG", 1)
    free = threading.Event()
    target = FunctionTarget(lambda given: "a" if given["n"] else str(free.wait(60)))

    async def one_after_the_other() -> str:
        hung, more, _ = cases(3)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await target.make(hung)
        with pytest.raises(TargetFailed) as refused:
            await target.make(more)
        assert not refused.value.retry
        free.set()
        for _ in range(3_000):
            try:
                return str((await target.make(more)).output["text"])
            except TargetFailed:
                await asyncio.sleep(0.01)
        return "still refused"

    assert asyncio.run(one_after_the_other()) == "a"


@pytest.mark.parametrize("problem", [SystemExit(3), StopIteration(), RecursionError()])
def test_a_function_cannot_end_the_run(problem: BaseException) -> None:
    def answer(given: dict[str, Any]) -> str:
        raise problem

    async def later(given: dict[str, Any]) -> str:
        raise problem

    for function in (answer, later):
        with pytest.raises(TargetFailed, match=type(problem).__name__):
            made(FunctionTarget(function))


def test_what_a_target_returns_wrongly_is_not_paid_twice() -> None:
    with pytest.raises(TargetFailed) as refused:
        made(FunctionTarget(lambda _: 5))
    assert not refused.value.retry


# Commands.


def script(folder: Path, text: str) -> str:
    file = folder / "target.py"
    file.write_text(text)
    return f"{sys.executable} {file}"


def test_a_command_reads_its_input_and_prints_its_output(tmp_path: Path) -> None:
    echo = script(tmp_path, "import json, sys\nprint(json.load(sys.stdin)['q'])")
    assert made(CommandTarget(echo), q="hé", reference="secret").output == {"text": "hé"}
    as_json = script(tmp_path, 'print(\'{"output": {"a": 1}, "cost": 0.5}\')')
    assert made(CommandTarget(as_json)) == TargetOutput({"a": 1}, {}, 500_000)


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TargetFailed, match="no luck"):
        made(CommandTarget(script(tmp_path, "import sys; sys.exit('no luck')")))
    with pytest.raises(TargetFailed):
        made(CommandTarget("/no/such/command"))
    with pytest.raises(TargetFailed):
        made(CommandTarget(script(tmp_path, f"print('x' * {MAX_OUTPUT_BYTES + 1})")))
    for wrong in ("", "'"):
        with pytest.raises(MeruitError):
            CommandTarget(wrong)


def test_a_command_that_never_stops_printing_is_ended(tmp_path: Path) -> None:
    endless = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with pytest.raises(TargetFailed) as refused:
        made(CommandTarget(script(tmp_path, endless)))
    assert not refused.value.retry


def test_a_command_need_not_read_its_input(tmp_path: Path) -> None:
    assert made(CommandTarget(script(tmp_path, "print('a')")), text="x" * 1_000_000).output == {"text": "a"}


def test_a_command_gets_integers_of_any_length(tmp_path: Path) -> None:
    echo = script(tmp_path, "import json, sys\nprint(json.load(sys.stdin)['n'])")
    assert made(CommandTarget(echo), n=10**30).output == {"text": str(10**30)}


def test_a_command_ends_with_its_time(tmp_path: Path, evaluator: Evaluator, criteria: CompiledCriteria) -> None:
    slow = script(tmp_path, "import time; time.sleep(3600)")
    started = evaluator.start("first", criteria)
    limits = RunLimits(concurrency=1, retries=0, timeout_s=0.2)
    done = asyncio.run(run_target(evaluator, started, criteria, cases(1), CommandTarget(slow), limits))
    assert done.status is EvaluationStatus.FINISHED


# Endpoints.


def test_an_endpoint_is_asked_with_a_template(endpoint: Any) -> None:
    asked: list[Any] = []

    def answer(request: Any) -> tuple[int, bytes]:
        asked.append(request)
        return 200, b'{"choices": [{"message": {"content": "42"}}]}'

    template = '{"model": "m", "messages": [{"content": "Q: {{q}} {{n}}"}], "all": "{{input}}", "n": "{{n}}", "x": 1}'
    target = UrlTarget(endpoint(answer), template, {"X-Key": "k"}, "choices.0.message.content")
    assert made(target, q="why?", n=5, reference="secret").output == {"text": "42"}
    body = asked[0]["body"]
    assert body["messages"] == [{"content": "Q: why? 5"}]
    assert (body["n"], body["x"], body["all"]) == (5, 1, {"q": "why?", "n": 5})
    assert asked[0]["headers"]["X-Key"] == "k"


def test_an_input_in_braces_is_not_a_template(endpoint: Any) -> None:
    url = endpoint(lambda request: (200, json.dumps({"got": request["body"]}).encode()))
    target = UrlTarget(url, '{"a": "{{ q }} and {{n}}", "b": "{{ n }}", "c": "{{input}}!"}')
    got = made(target, q="{{n}}", n=5).output["got"]
    assert got == {"a": "{{n}} and 5", "b": 5, "c": '{"q":"{{n}}","n":5}!'}


def test_a_body_names_only_parts_of_the_input(endpoint: Any) -> None:
    target = UrlTarget(endpoint(lambda _: (200, b"a")), '{"a": "{{qestion}}"}')
    with pytest.raises(TargetFailed, match="question") as refused:
        made(target, question="?")
    assert not refused.value.retry


def test_an_endpoint_without_a_template_gets_the_input(endpoint: Any) -> None:
    target = UrlTarget(endpoint(lambda request: (200, json.dumps({"got": request["body"]}).encode())))
    assert made(target, q=1).output == {"got": {"q": 1}}


@pytest.mark.parametrize(("status", "retry"), [(500, True), (429, True), (400, False)])
def test_an_answer_that_is_no_success_is_an_error(endpoint: Any, status: int, retry: bool) -> None:
    with pytest.raises(TargetFailed) as failed:
        made(UrlTarget(endpoint(lambda _: (status, b"no"))))
    assert failed.value.retry is retry


def test_what_an_endpoint_cannot_do_is_said(endpoint: Any) -> None:
    url = endpoint(lambda _: (200, b'{"a": [1]}'))
    for path in ("b", "a.1", "a.x"):
        with pytest.raises(TargetFailed):
            made(UrlTarget(url, answer=path))
    with pytest.raises(TargetFailed):
        made(UrlTarget(endpoint(lambda _: (200, b"x" * (MAX_OUTPUT_BYTES + 1)))))
    with pytest.raises(TargetFailed):
        made(UrlTarget("http://127.0.0.1:1/"))
    for wrong in ("ftp://a", "no url", "http://", ""):
        with pytest.raises(MeruitError):
            UrlTarget(wrong)
    with pytest.raises(MeruitError):
        UrlTarget(url, "{no json")
