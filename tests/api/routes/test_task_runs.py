"""Task runs and benchmark runs: judged once, told no more than they may tell, and counted as specified."""

import asyncio
import re
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update
from tests.api.conftest import Deploy, Deployment, code_of, new_tenant
from tests.api.running import SEED, Bench, benchmark, planted_task, scoring, task

from meruit.api.idempotency import HEADER, REPLAYED
from meruit.config import Settings
from meruit.errors import DocumentError, MeruitError, Problem, Unreachable
from meruit.model.access import Role, Scope
from meruit.model.task import Reveal
from meruit.outcomes.store.erase import erase
from meruit.registry import checks
from meruit.store import tables
from meruit.store.store import ClockAndEntropy

ISA = (
    "ISA*00*          *00*          *ZZ*PAYER          *ZZ*CLINIC         *260303*1200*^*00501*000000001*0*P*:~"
    "GS*HB*PAYER*CLINIC*20260303*1200*1*X*005010X279A1~ST*271*0001~BHT*0022*11*1*20260303*1200~"
    "SE*3*0001~GE*1*1~IEA*1*000000001~"
)
SIU = "MSH|^~\\&|CLINIC||SCHEDAPP||20260303120000||SIU^S13|1|P|2.5.1\rSCH|10345\rPID|1||483671^^^GHH^MR\r"


WAYS: tuple[dict[str, Any], ...] = (
    *({}, {"json": {}}),
    {"json": {"name": "x", "reason": "y", "benchmark": "b", "task": "t"}},
)
"""What is sent to every route."""


@pytest.fixture
def bench(either: Deployment, tenant: str) -> Bench:
    return Bench.of(either, tenant)


@pytest.fixture
def here(deployment: Deployment, tenant: str) -> Bench:
    return Bench.of(deployment, tenant)


# What completion is answered


def test_the_specifications_example_comes_out(bench: Bench) -> None:
    bench.publish(task(scoring(10, axis="correctness", weight=2), scoring(0, axis="safety", weight=1)))
    told = bench.finished()
    assert told["verdict"] == "partial"
    assert told["axes"] == {"correctness": {"score": 1.0, "weight": 2}, "safety": {"score": 0.0, "weight": 1}}
    assert told["score"] == 2 / 3
    assert told.keys() == {"task_run_id", "status", "verdict", "score", "axes"}


@pytest.mark.parametrize(
    ("tenths", "verdict", "score"),
    [
        ([10], "pass", 1.0),
        ([9], "pass", 0.9),
        ([10, 9, 8], "pass", 0.9),
        ([8], "partial", 0.8),
        ([0, 1], "partial", 0.05),
        ([0], "fail", 0.0),
        ([], "fail", 0.0),
    ],
)
def test_bands_are_exact(here: Bench, tenths: list[int], verdict: str, score: float) -> None:
    here.publish(task(*(scoring(each, weight=0.1) for each in tenths)))
    told = here.finished()
    assert (told["verdict"], told["score"]) == (verdict, score)


def test_criteria_without_an_axis_share_one(here: Bench) -> None:
    here.publish(task(scoring(10), scoring(0, weight=3)))
    assert here.finished()["axes"] == {"__default__": {"score": 0.25, "weight": 4}}


def test_an_unscored_run_shows_its_evidence(bench: Bench) -> None:
    seed = SEED | {
        "fhir": [{"resourceType": "Patient", "id": "p", "active": True}],
        "hl7": [SIU],
        "files": {"out/a.json": '{"n": 1}'},
        "x12": [ISA],
        "call": {"greeting": "this call may be recorded"},
    }
    criteria = {
        "fieldResults": {"assert": "fhir-resource-state", "resource": "Patient", "fields": {"active": True}},
        "field_results": {"assert": "hl7-structural", "fields": {"SCH-1": "10345"}},
        "assertionResults": scoring(10),
        "phraseResults": {"assert": "voice-transcript", "contains": ["member id"]},
        "files": {"assert": "sftp-file-present", "path": "out/*.json", "parse": "json", "fields": {"n": 1}},
        "x12": {"assert": "x12-response", "set": "271", "fields": {"ST.1": "271"}},
    }
    named = [{**one, "label": label} for label, one in criteria.items()]
    bench.publish(task(*named) | {"seed": seed})
    run = bench.started(scored=False)
    access = bench.read(f"task-runs/{run}/access", key=bench.agent)["access"]
    turn = f"{access['endpoints']['call']}/turns"
    said = bench.deployment.ask("POST", turn, key=access["secret"], json={"text": "my member ID is 5"})
    assert said.status_code == 201
    told = bench.complete(run)
    assert (told["verdict"], told["coverage"], told["bounds"]) == ("pass", 1.0, {"low": 1.0, "high": 1.0})
    by_label = {one["label"]: one for one in told["criteria"]}
    fields = {"path", "expected", "actual", "passed"}
    for label, name in (
        *((name, name) for name in ("fieldResults", "field_results", "assertionResults")),
        *(("files", "fieldResults"), ("x12", "fieldResults")),
    ):
        found = by_label[label]["evidence"][name]
        assert found, by_label[label]
        assert all(fields <= one.keys() for one in found)
        assert list(found[0])[:4] == ["path", "expected", "actual", "passed"]
    (phrase,) = by_label["phraseResults"]["evidence"]["phraseResults"]
    assert {"phrase", "found", "turn"} <= phrase.keys()
    assert phrase["found"] is True
    assert "out/a.json" in str(by_label["files"]["evidence"])
    for one in told["criteria"]:
        kept = bench.read(f"criterion-runs/{one['id']}")
        assert {name: kept[name] for name in one} == one


def test_an_assertion_that_is_known_no_more_fails_alone(deploy: Deploy) -> None:
    bench = Bench.of(deploy(), new_tenant())
    bench.publish(task(scoring(10, label="known"), {**scoring(10), "label": "gone"}))
    run = bench.started(scored=False)
    found = checks.find("portal-state-match")
    assert found is not None
    # Its plugin is not there when the run is judged; what was compiled before is forgotten with the process.
    compiled = bench.deployment.service.benchmarks
    compiled.library._known.clear()
    body = {"benchmark": "b", "version": 1}
    with bench.deployment.store.database.writer.begin() as connection:
        of = tables.benchmarks
        row = connection.execute(select(of.c.body).where(of.c.slug == body["benchmark"])).one()
        head, _, tail = bytes(row.body).rpartition(b'"portal-state-match"')
        connection.execute(of.update().values(body=head + b'"no-such-check"' + tail))
    compiled.library._read.clear()
    told = bench.complete(run)
    by_label = {one["label"]: one for one in told["criteria"]}
    assert (by_label["known"]["status"], by_label["gone"]["status"]) == ("passed", "failed")
    assert "no-such-check" in by_label["gone"]["details"]
    assert (told["verdict"], told["score"]) == ("partial", 0.5)


# Once


def test_a_run_is_completed_once_however_often_it_is_asked(bench: Bench) -> None:
    bench.publish(task(scoring(7)))
    run = bench.started(scored=False)
    path = f"/v1/task-runs/{run}/complete"
    first = bench.deployment.ask("POST", path, key=bench.agent)
    before = bench.deployment.rows()
    for key in (bench.agent, bench.operator):
        ways: tuple[dict[str, Any], ...] = ({}, {"json": {}}, {"content": b" "})
        for options in ways:
            again = bench.deployment.ask("POST", path, key=key, **options)
            assert (again.status_code, again.content) == (200, first.content)
    assert bench.deployment.ask("POST", path.removeprefix("/v1"), key=bench.agent).content == first.content
    assert bench.deployment.rows() == before


def test_fifty_completions_at_once_have_one_outcome_and_equal_answers(bench: Bench) -> None:
    bench.publish(task(scoring(7), scoring(10)))
    run = bench.started(scored=False)
    before = bench.deployment.rows()

    async def all_at_once() -> list[httpx.Response]:
        path = f"/v1/task-runs/{run}/complete"
        keys = [bench.agent, bench.operator] * 25
        return await asyncio.gather(*(bench.deployment.asked("POST", path, key=key) for key in keys))

    replies = bench.deployment.run(all_at_once())
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    after = bench.deployment.rows()
    grown = {name: after[name] - before[name] for name in ("outcomes", "verdicts", "criterion_runs")}
    assert grown == {"outcomes": 1, "verdicts": 1, "criterion_runs": 2}


def test_a_repeated_key_gets_the_first_reply_and_stores_no_evidence(bench: Bench) -> None:
    bench.publish(task(scoring(7)))
    run = bench.started(scored=False)
    path, once = f"/v1/task-runs/{run}/complete", {HEADER: f"once-{bench.tenant}"}
    first = bench.deployment.ask("POST", path, key=bench.agent, headers=once)
    again = bench.deployment.ask("POST", path, key=bench.agent, headers=once)
    assert (again.content, again.headers[REPLAYED]) == (first.content, "true")
    other = bench.started()
    reused = bench.deployment.ask("POST", f"/v1/task-runs/{other}/complete", key=bench.agent, headers=once)
    assert (reused.status_code, code_of(reused)) == (422, "idempotency_key_reused")
    with bench.deployment.store.database.reading() as connection:
        kept = connection.execute(
            select(tables.idempotency.c.reply).where(tables.idempotency.c.tenant == bench.tenant)
        ).all()
    assert [bytes(row.reply) for row in kept] == [b""]


def test_runs_are_created_once_for_a_key(bench: Bench) -> None:
    bench.publish(task(scoring(7)))
    for path, body in (
        ("/v1/benchmark-runs", {"benchmark": "b", "repeats": 2}),
        ("/v1/task-runs", {"benchmark": "b", "task": "t"}),
    ):
        ask: dict[str, Any] = {"key": bench.operator, "json": body, "headers": {HEADER: f"once{path}"}}
        first = bench.deployment.ask("POST", path, **ask)
        assert first.status_code == 201, first.text
        before = bench.deployment.rows()
        again = bench.deployment.ask("POST", path, **ask)
        assert (again.status_code, again.content, again.headers[REPLAYED]) == (201, first.content, "true")
        assert bench.deployment.rows() == before


def test_a_repeated_start_gives_access_and_stores_no_secret(here: Bench) -> None:
    here.publish(task(scoring(7)))
    run, once = here.new(), {HEADER: f"start-{here.tenant}"}
    first, again = (here.done(f"task-runs/{run}/start", key=here.agent, headers=once) for _ in range(2))
    assert first == again == here.read(f"task-runs/{run}/access", key=here.agent)
    with here.deployment.store.database.reading() as connection:
        replies = connection.execute(select(tables.idempotency.c.reply)).all()
    assert all(first["access"]["secret"].encode() not in row.reply for row in replies)


def test_runs_move_from_the_right_state_only(here: Bench) -> None:
    here.publish(task(scoring(10)))

    def status(run: str, move: str, **options: Any) -> int:
        reply = here.deployment.ask("POST", f"/v1/task-runs/{run}/{move}", key=here.operator, **options)
        return reply.status_code

    pending, running, ended = here.new(), here.started(), here.started()
    here.complete(ended)
    reason = {"json": {"reason": "to see"}}
    for run in (pending, running):
        assert [status(run, "recheck"), status(run, "rejudge", **reason)] == [409, 409]
    assert [status(pending, "complete"), status(running, "start"), status(ended, "start")] == [409, 409, 409]
    assert [status(ended, "recheck"), status(ended, "cancel"), status(ended, "complete")] == [409, 200, 200]
    assert here.read(f"task-runs/{ended}")["status"] == "completed"
    for run, expected in ((pending, 409), (running, 200), (ended, 409)):
        reply = here.deployment.ask("GET", f"/v1/task-runs/{run}/access", key=here.agent)
        assert reply.status_code == expected
    for move in ("start", "complete", "cancel", "recheck"):
        assert status(pending, move, json={"more": 1}) == 400


# The world


def test_an_agent_is_judged_by_changes_in_its_environment(bench: Bench) -> None:
    seed = {"fhir": [{"resourceType": "Patient", "id": "p", "active": True}]}
    changed = {
        "assert": "fhir-resource-state",
        "resource": "Patient",
        "changed": "updated",
        "fields": {"active": False},
    }
    bench.publish(task(changed) | {"seed": seed})
    idle, busy = bench.started(), bench.started()
    let_in = [bench.read(f"task-runs/{run}/access", key=bench.agent) for run in (idle, busy)]
    assert let_in[0]["instruction"] == "do as you are told"
    assert let_in[0]["access"]["id"] != let_in[1]["access"]["id"]
    own = let_in[1]["access"]
    sent = {"resourceType": "Patient", "id": "p", "active": False}
    path = f"{own['endpoints']['fhir']}/Patient/p"
    # Neither another playground's secret nor a key of the service opens it.
    for wrong in (let_in[0]["access"]["secret"], bench.operator, None):
        assert bench.deployment.ask("PUT", path, key=wrong, json=sent).status_code == 401
    assert bench.deployment.ask("PUT", path, key=own["secret"], json=sent).status_code == 200
    assert bench.complete(busy)["verdict"] == "pass"
    assert bench.complete(idle)["verdict"] == "fail"
    # What nobody will read again is gone.
    assert bench.deployment.ask("GET", path, key=own["secret"]).status_code == 401


def test_a_source_that_came_back_is_read_again(deploy: Deploy, tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    settings = Settings.parse(f"benchmarks: {{sources: {{drop: {{kind: files, at: {drop}}}}}}}", "settings")
    bench = Bench.of(deploy(settings=settings), new_tenant())
    held = {"assert": "sftp-file-present", "path": "a.txt", "settle": {"stable": 1, "within": "1s"}}
    sources = {"portal": "rows", "own": {"kind": "files", "at": "config:drop"}}
    bench.publish(task({**held, "from": "own", "label": "held"}, scoring(10), sources=sources))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    run = made["task_runs"][0]["id"]
    bench.done(f"task-runs/{run}/start")
    (drop / "a.txt").write_text("here")
    away = shutil.move(drop, tmp_path / "away")
    told = bench.complete(run)
    assert (told["status"], told["verdict"], told["score"]) == ("completed", "inconclusive", 0.5)
    (held_run, _) = bench.read(f"task-runs/{run}/criterion-runs")["criterion_runs"]
    assert (held_run["status"], held_run["score"], held_run["fault"]) == ("error", None, "system")
    assert bench.read(f"benchmark-runs/{made['id']}")["result"]["verdict"] == "inconclusive"
    shutil.move(away, drop)
    assert bench.done(f"task-runs/{run}/recheck")["verdict"] == "inconclusive"
    assert bench.done(f"task-runs/{run}/recheck?reread=true")["verdict"] == "pass"
    assert bench.complete(run)["verdict"] == "pass"
    assert bench.read(f"benchmark-runs/{made['id']}")["result"]["verdict"] == "pass"
    # Both verdicts are on record, and nothing is left to check; the world is gone.
    assert bench.read(f"criterion-runs/{held_run['id']}")["status"] == "error"
    again = bench.deployment.ask("POST", f"/v1/task-runs/{run}/recheck", key=bench.operator)
    assert again.status_code == 409
    assert bench.read("playgrounds")["playgrounds"] == []


def test_a_run_with_an_unreachable_source_starts_later(deploy: Deploy, tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    settings = Settings.parse(f"benchmarks: {{sources: {{drop: {{kind: files, at: {drop}}}}}}}", "settings")
    bench = Bench.of(deploy(settings=settings), new_tenant())
    held = {"assert": "sftp-file-present", "path": "a.txt", "settle": {"stable": 1, "within": "1s"}}
    sources = {"portal": "rows", "own": {"kind": "files", "at": "config:drop"}}
    bench.publish(task({**held, "from": "own", "label": "held"}, scoring(10), sources=sources))
    run = bench.new()
    for key in (bench.operator, bench.agent):
        refused = bench.deployment.ask("POST", f"/v1/task-runs/{run}/start", key=key)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert code_of(refused).endswith("unreachable")
        # Agents do not see which system it is, or where.
        assert ("own: " in refused.text) == (key == bench.operator)
        assert key == bench.operator or str(drop) not in refused.text
    assert bench.read(f"task-runs/{run}")["status"] == "pending"
    assert bench.read("playgrounds")["playgrounds"] == []
    drop.mkdir()
    assert bench.done(f"task-runs/{run}/start", key=bench.agent)["status"] == "running"


def test_the_verdicts_on_task_runs_are_counted_each_once(deploy: Deploy) -> None:
    bench = Bench.of(deploy(), new_tenant())
    bench.publish(task(scoring(10)))

    def counted() -> tuple[float, float]:
        registry = bench.deployment.service.instruments.registry
        of = {"tenant": bench.tenant}
        verdicts = registry.get_sample_value("meruit_verdicts_total", {"verdict": "pass", **of})
        return verdicts or 0.0, registry.get_sample_value("meruit_recorded_total", of) or 0.0

    run = bench.started()
    assert counted() == (0, 0)
    for _ in range(2):
        assert bench.complete(run)["verdict"] == "pass"
        assert counted() == (1, 1)
    # Another verdict, on what is recorded already.
    bench.done(f"task-runs/{run}/rejudge", {"reason": "to be sure"})
    assert counted() == (2, 1)


def test_a_run_is_rejudged_by_another_version(bench: Bench) -> None:
    bench.publish(task(scoring(10, label="old")))
    bench.publish(task(scoring(5, label="new")), version=2)
    bench.publish(task(scoring(5)), slug="other")
    run = bench.started(benchmark="b@1")
    assert bench.complete(run)["verdict"] == "pass"
    (old,) = bench.read(f"task-runs/{run}/criterion-runs")["criterion_runs"]
    again = bench.done(f"task-runs/{run}/rejudge", {"reason": "a better rubric", "benchmark": "b@2"})
    assert (again["verdict"], again["score"], again["outcome_version"]) == ("partial", 0.5, 2)
    assert bench.complete(run)["score"] == 0.5
    (new,) = bench.read(f"task-runs/{run}/criterion-runs")["criterion_runs"]
    assert (new["label"], bench.read(f"criterion-runs/{old['id']}")["label"]) == ("new", "old")
    assert bench.done(f"task-runs/{run}/rejudge", {"reason": "back to its own"})["score"] == 1.0
    for body, status in (
        ({"reason": "x", "benchmark": "other"}, 422),
        ({"reason": "x", "benchmark": "b@9"}, 404),
        ({"reason": ""}, 400),
        ({}, 400),
    ):
        path = f"/v1/task-runs/{run}/rejudge"
        assert bench.deployment.ask("POST", path, key=bench.operator, json=body).status_code == status, body


def test_a_run_is_not_rejudged_on_the_evidence_of_another(deploy: Deploy) -> None:
    # A service of its own: its records are broken from then on.
    bench = Bench.of(deploy(), new_tenant())
    bench.publish(task(scoring(10)))
    run, other = bench.started(), bench.started()
    for one in (run, other):
        bench.complete(one)
    ids = [bench.read(f"task-runs/{one}")["outcome_id"] for one in (run, other)]
    outcomes, store = tables.outcomes, bench.deployment.service.store
    with store.database.writer.begin() as connection:
        mine, foreign = (connection.execute(select(outcomes).where(outcomes.c.id == one)).one() for one in ids)
        swapped = {"output_address": foreign.output_address, "output_salt": foreign.output_salt}
        connection.execute(update(outcomes).where(outcomes.c.id == mine.id).values(**swapped))
    path, asked = f"/v1/task-runs/{run}/rejudge", {"reason": "to be sure"}
    refused = bench.deployment.ask("POST", path, key=bench.operator, json=asked)
    assert (refused.status_code, code_of(refused)) == (409, "record_tampered")


def test_another_process_answers_elsewhere_and_judges_nothing(deploy: Deploy) -> None:
    first = deploy()
    bench = Bench.of(first, new_tenant())
    bench.publish(task(scoring(10)))
    run, pending = bench.started(), bench.new()
    other = deploy()
    before = other.rows()
    asked = [("GET", f"{run}/access"), ("POST", f"{run}/complete"), ("POST", f"{pending}/start")]
    for method, path in asked:
        reply = other.ask(method, f"/v1/task-runs/{path}", key=bench.agent)
        assert (reply.status_code, code_of(reply)) == (503, "elsewhere"), reply.text
    assert other.rows() == before
    assert bench.complete(run)["verdict"] == "pass"
    assert other.ask("POST", f"/v1/task-runs/{run}/complete", key=bench.agent).json()["verdict"] == "pass"


def test_runs_and_environments_outlive_the_process(deploy: Deploy) -> None:
    first = deploy()
    bench = Bench.of(first, new_tenant())
    bench.publish(task(scoring(10)))
    run = bench.started()
    access = bench.read(f"task-runs/{run}/access", key=bench.agent)["access"]
    first.close()
    second = deploy()
    seen = second.ask("GET", f"/v1/task-runs/{run}/access", key=bench.agent).json()["access"]
    assert (seen["id"], seen["secret"]) == (access["id"], access["secret"])
    listed = second.ask("GET", "/v1/playgrounds", key=bench.operator).json()["playgrounds"]
    assert [(one["id"], one["task_run_id"]) for one in listed] == [(access["id"], run)]
    done = second.ask("POST", f"/v1/task-runs/{run}/complete", key=bench.agent)
    assert done.json()["verdict"] == "pass"


def test_an_environment_of_a_cancelled_run_is_removed(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.api.app.SWEEP_S", 0.02)
    first = deploy()
    bench = Bench.of(first, new_tenant())
    bench.publish(task(scoring(10)))
    run, kept = bench.started(), bench.started()
    other = deploy()
    assert other.ask("POST", f"/v1/task-runs/{run}/cancel", key=bench.operator).json()["status"] == "cancelled"

    async def taken_down() -> list[str]:
        while len(first.service.hosting.list_ids(bench.tenant)) > 1:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        return first.service.hosting.task_runs_by_tenant()[bench.tenant]

    assert first.run(asyncio.wait_for(taken_down(), 30)) == [kept]


# Benchmark runs


def test_a_benchmark_run_comes_to_a_result_only_when_all_have_ended(bench: Bench) -> None:
    bench.publish(task(scoring(10), id="good"), task(scoring(5), id="half"))
    made = bench.done("benchmark-runs", {"benchmark": "b", "repeats": 2, "agent_id": "robot"})
    assert [(one["task"], one["attempt"]) for one in made["task_runs"]] == [
        *(("good", 1), ("half", 1), ("good", 2), ("half", 2)),
    ]
    path = f"benchmark-runs/{made['id']}"
    assert bench.read(path)["counts"] == {"pending": 4}
    for one in made["task_runs"]:
        assert (bench.read(path)["ended"], bench.read(path)["result"]) == (False, None)
        assert "score" not in bench.read(path, key=bench.agent)
        bench.done(f"task-runs/{one['id']}/start", key=bench.agent)
        bench.complete(one["id"])
    result = bench.read(path)["result"]
    assert (result["verdict"], result["score"], result["pass_rate"]) == ("partial", 0.75, 0.5)
    assert (result["worst_task"], result["runs"], result["coverage"]) == ("half", 4, 1.0)
    assert (result["pass_at_k"], result["pass_hat_k"]) == ({"1": 0.5, "2": 0.5}, {"1": 0.5, "2": 0.5})
    to_agent = bench.read(path, key=bench.agent)
    assert (to_agent["verdict"], to_agent["score"], to_agent["counts"]) == ("partial", 0.75, {"completed": 4})
    assert not {"result", "tasks", "worst_task", "coverage", "created_by"} & to_agent.keys()
    listed = bench.read("task-runs", benchmark_run_id=made["id"])["task_runs"]
    assert [one["id"] for one in listed] == [one["id"] for one in reversed(made["task_runs"])]
    assert bench.read("benchmark-runs", benchmark="b")["benchmark_runs"][0]["id"] == made["id"]
    assert bench.read("benchmark-runs", benchmark="c")["benchmark_runs"] == []


def test_what_was_given_up_does_not_count_and_is_listed(bench: Bench) -> None:
    bench.publish(task(scoring(10), id="good"), task(scoring(5), id="half"))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    good, half = (one["id"] for one in made["task_runs"])
    for run in (good, half):
        bench.done(f"task-runs/{run}/start")
    bench.complete(good)
    assert bench.done(f"task-runs/{half}/cancel")["status"] == "cancelled"
    result = bench.read(f"benchmark-runs/{made['id']}")["result"]
    # Nobody wins by giving up: the task that was begun might have gone any way.
    assert (result["score"], result["verdict"], result["cancelled"], result["runs"]) == (1.0, "inconclusive", [half], 1)
    assert bench.complete(half) == {"task_run_id": half, "status": "cancelled"}
    other = bench.done("benchmark-runs", {"benchmark": "b", "tasks": ["half"]})
    whole = bench.done(f"benchmark-runs/{other['id']}/cancel")
    assert (whole["ended"], whole["result"]["verdict"], whole["result"]["score"]) == (True, "inconclusive", 0.0)


def test_a_resumed_run_starts_its_lost_tasks_again(bench: Bench) -> None:
    bench.publish(task(scoring(10), id="good"), task(scoring(10), id="lost"))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    good, lost = (one["id"] for one in made["task_runs"])
    first = {run: bench.done(f"task-runs/{run}/start") for run in (good, lost)}
    bench.complete(good)
    resumed = bench.done(f"benchmark-runs/{made['id']}/resume")
    assert (resumed["counts"], resumed["ended"]) == ({"completed": 1, "pending": 1}, False)
    again = bench.done(f"task-runs/{lost}/start")
    assert again["access"]["id"] != first[lost]["access"]["id"]
    bench.complete(lost)
    result = bench.read(f"benchmark-runs/{made['id']}")["result"]
    assert (result["runs"], result["verdict"]) == (2, "pass")


def test_whose_time_is_over_scores_nothing(deploy: Deploy) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now[0]))
    bench = Bench.of(made, new_tenant())
    bench.publish(task(scoring(10), id="good"), task(scoring(10), id="late", time_limit_s=60))
    run = bench.done("benchmark-runs", {"benchmark": "b", "repeats": 2, "agent_id": "robot"})
    good, late, _, later = (one["id"] for one in run["task_runs"])
    started = [bench.done(f"task-runs/{one['id']}/start", key=bench.agent) for one in run["task_runs"]]
    assert started[1]["deadline"] == "2030-01-01T00:01:00Z"
    now[0] += timedelta(seconds=60)
    assert bench.complete(good)["verdict"] == "pass"
    now[0] += timedelta(seconds=1)
    # Whoever comes late hears it at once; whoever never comes is found.
    assert bench.complete(late) == {"task_run_id": late, "status": "timed_out"}
    assert made.run(made.service.benchmarks.sweep()) == 1
    assert bench.read(f"task-runs/{later}")["status"] == "timed_out"
    assert [one["id"] for one in bench.read("task-runs", status="running")["task_runs"]] == [run["task_runs"][2]["id"]]
    bench.complete(run["task_runs"][2]["id"])
    result = bench.read(f"benchmark-runs/{run['id']}")["result"]
    assert (result["score"], result["verdict"], result["timed_out"]) == (0.5, "partial", 2)
    assert bench.read("playgrounds")["playgrounds"] == []


def test_how_long_we_take_to_look_is_not_the_agents_fault(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now[0]))
    bench = Bench.of(made, new_tenant())
    bench.publish(task(scoring(10), time_limit_s=60))
    run = bench.started()
    reading = made.service.hosting.read

    async def slow(*about: Any) -> Any:
        now[0] += timedelta(minutes=5)
        assert await made.service.benchmarks.sweep() == 0
        return await reading(*about)

    monkeypatch.setattr(made.service.hosting, "read", slow)
    assert bench.complete(run)["verdict"] == "pass"


def test_overdue_runs_are_looked_for_by_themselves(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.api.app.SWEEP_S", 0.02)
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now[0]))
    bench = Bench.of(made, new_tenant())
    bench.publish(task(scoring(10), time_limit_s=60))
    run = bench.started()
    now[0] += timedelta(seconds=61)

    async def ended() -> str:
        while (found := made.service.benchmarks.reader.run(Scope(bench.tenant), run)).status == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found.status

    assert made.run(asyncio.wait_for(ended(), 30)) == "timed_out"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"benchmark": "b", "repeats": 0}, 400),
        ({"benchmark": "b", "repeats": 101}, 400),
        ({"benchmark": "b", "tasks": []}, 400),
        ({"benchmark": "b", "tasks": ["u"]}, 404),
        ({"benchmark": "b@2"}, 404),
        ({"benchmark": "B"}, 400),
        ({"benchmark": "b", "agent": "robot"}, 400),
        ({"benchmark": "b", "scored": "yes"}, 400),
    ],
)
def test_an_invalid_benchmark_run_is_refused(here: Bench, body: Any, status: int) -> None:
    here.publish(task(scoring(10)))
    before = here.deployment.rows()
    reply = here.deployment.ask("POST", "/v1/benchmark-runs", key=here.operator, json=body)
    assert reply.status_code == status, reply.text
    assert here.deployment.rows() == before


def test_no_more_runs_are_made_than_there_may_be(here: Bench) -> None:
    here.publish(*(task(id=f"t{number}") for number in range(101)))
    body = {"benchmark": "b", "repeats": 100}
    reply = here.deployment.ask("POST", "/v1/benchmark-runs", key=here.operator, json=body)
    assert (reply.status_code, "10,000" in reply.json()["detail"]) == (422, True)


def test_lists_come_by_pages_and_take_one_filter(here: Bench) -> None:
    here.publish(task(scoring(10)))
    made = [here.new() for _ in range(3)]
    page = here.read("task-runs", limit=2)
    assert [one["id"] for one in page["task_runs"]] == made[:0:-1]
    rest = here.read("task-runs", limit=2, before=page["next"])
    assert ([one["id"] for one in rest["task_runs"]], rest["next"]) == ([made[0]], None)
    runs = [here.done("benchmark-runs", {"benchmark": "b"})["id"] for _ in range(3)]
    page = here.read("benchmark-runs", limit=2)
    rest = here.read("benchmark-runs", limit=2, before=page["next"])
    assert [one["id"] for one in page["benchmark_runs"] + rest["benchmark_runs"]] == runs[::-1]
    assert here.read("task-runs", agent_id="x", status="running", since="2020-01-01T00:00:00Z")["task_runs"] == []
    for params in ({"since": "today"}, {"status": "nothing"}, {"agent": "x"}):
        reply = here.deployment.ask("GET", "/v1/task-runs", key=here.operator, params=params)
        assert reply.status_code == 400, params


# Who may


def test_an_agent_neither_sees_nor_moves_what_is_not_its_own(bench: Bench) -> None:
    bench.publish(task(scoring(10)))
    other = bench.deployment.key(Role.AGENT, bench.tenant, agent_id="other")
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    nobodys = str(bench.done("task-runs", {"benchmark": "b", "task": "t"})["id"])
    running = bench.started()
    before = bench.deployment.rows()
    for run, key in ((made["task_runs"][0]["id"], other), (running, other), (nobodys, other), (nobodys, bench.agent)):
        for method, path in (("GET", ""), ("GET", "/access"), ("POST", "/start"), ("POST", "/complete")):
            reply = bench.deployment.ask(method, f"/v1/task-runs/{run}{path}", key=key)
            assert reply.status_code == 404, (path, reply.text)
    assert bench.deployment.ask("GET", f"/v1/benchmark-runs/{made['id']}", key=other).status_code == 404
    for path in ("task-runs", "benchmark-runs"):
        assert bench.read(path, key=other)[path.replace("-", "_")] == []
    assert bench.read("task-runs", key=other, agent_id="robot")["task_runs"] == []
    assert {one["id"] for one in bench.read("task-runs", key=bench.agent)["task_runs"]} == {
        *(running, made["task_runs"][0]["id"]),
    }
    assert bench.deployment.rows() == before


def test_another_tenant_finds_nothing(bench: Bench) -> None:
    bench.publish(task(scoring(10)))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    run = bench.started()
    done = bench.started()
    bench.complete(done)
    (criterion,) = bench.read(f"task-runs/{done}/criterion-runs")["criterion_runs"]
    other = Bench.of(bench.deployment, new_tenant())
    before = bench.deployment.rows()
    reason = {"json": {"reason": "x"}}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        *(("GET", f"task-runs/{one}{path}", {}) for one in (run, done) for path in ("", "/access", "/criterion-runs")),
        *(("POST", f"task-runs/{run}/{move}", {}) for move in ("start", "complete", "cancel", "recheck")),
        ("POST", f"task-runs/{done}/rejudge", reason),
        ("GET", f"benchmark-runs/{made['id']}", {}),
        *(("POST", f"benchmark-runs/{made['id']}/{move}", {}) for move in ("cancel", "resume")),
        ("GET", f"criterion-runs/{criterion['id']}", {}),
    ]
    for method, path, options in asked:
        reply = bench.deployment.ask(method, f"/v1/{path}", key=other.operator, **options)
        assert reply.status_code == 404, (path, reply.text)
    for kind in ("task-runs", "benchmark-runs"):
        assert other.read(kind)[kind.replace("-", "_")] == []
    assert bench.deployment.rows() == before


# What is hidden


def values_of(bench: Bench, run_id: str) -> dict[str, str]:
    """What stands in the paths of routes that are about a run."""
    run = bench.read(f"task-runs/{run_id}")
    criteria = bench.read(f"task-runs/{run_id}/criterion-runs")["criterion_runs"]
    return {
        "task_run_id": run_id,
        "criterion_run_id": criteria[0]["id"] if criteria else f"crn_{'0' * 34}",
        "playground_id": run["playground_id"],
        "task": run["task"],
        "outcome_id": run["outcome_id"] or f"out_{'0' * 34}",
    }


def path_of(template: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+):\w+\}", lambda name: values.get(name[1], "nothing"), template)


def everything_an_agent_reads(bench: Bench, runs: list[Any], benchmark_run: str) -> Iterator[str]:
    """Every route of the service but those that move a run; what is about one of the runs, about each."""
    told = [values_of(bench, run["id"]) | {"benchmark_run_id": benchmark_run, "benchmark": "b"} for run in runs]
    routes = [(path, route.method) for route in bench.deployment.app._app.service.routes for path in route.paths]
    for template, method in routes:
        if template.endswith(("/start", "/complete", "/cancel", "/v1/events")):
            continue
        # What is about no run is asked once.
        for path in dict.fromkeys(path_of(template, one) for one in told):
            for options in WAYS if method == "POST" else WAYS[:1]:
                reply = bench.deployment.ask(method, path, key=bench.agent, **options)
                assert reply.status_code < 500, reply.text
                yield reply.text


def everything_in_a_playground(bench: Bench, access: dict[str, Any]) -> Iterator[str]:
    """What every system of it says to whoever holds its secret."""
    systems, secret = access["endpoints"], access["secret"]
    for address in (
        *(f"{systems['fhir']}/{path}" for path in ("Patient", "Patient?name=a", "metadata", "Patient/_history")),
        *(f"{systems['call']}/turns", systems["x12"], systems["portal"], f"{systems['portal']}/login"),
    ):
        yield bench.deployment.ask("GET", address, key=secret).text
    yield bench.deployment.ask("POST", f"{systems['call']}/turns", key=secret, json={"text": "hello"}).text
    events = bench.deployment.ask("GET", systems["events"], key=secret)
    assert events.json()["events"], "it looks for what there is"
    yield events.text


@pytest.mark.parametrize("scored", [True, False])
def test_nothing_that_an_agent_reads_holds_what_it_is_judged_by(either: Deployment, scored: bool) -> None:
    bench = Bench.of(either, new_tenant())
    canaries = set[str]()

    def canary(what: str) -> str:
        made = f"canary{what.replace('-', '')}{secrets.token_hex(6)}"
        canaries.add(made)
        return made

    tasks = [planted_task(canary, reveal, counts=scored) for reveal in Reveal]
    bench.publish(*tasks, title=canary("title"), description=canary("description"))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot", "scored": scored})
    runs = made["task_runs"]
    seen = [str(made)]
    for one in runs:
        started = bench.done(f"task-runs/{one['id']}/start", key=bench.agent)
        seen += [str(started), *everything_in_a_playground(bench, started["access"])]
    seen += everything_an_agent_reads(bench, runs, made["id"])
    for one in runs:
        told = bench.complete(one["id"])
        assert bench.complete(one["id"], key=bench.operator) == told
        if scored:
            assert_level(told, one["task"].removesuffix("-task"))
            seen.append(str(told))
        # It looks for what there is.
        every = str(bench.read(f"task-runs/{one['id']}/criterion-runs"))
        assert any(found in every for found in canaries)
    seen += everything_an_agent_reads(bench, runs, made["id"])
    for text in seen:
        assert not [found for found in canaries if found in text], text[:1_000]
    shown = bench.read(f"benchmark-runs/{made['id']}", key=bench.agent)
    # One of them tells nothing, and from the mean it could be worked out.
    assert ("score" in shown) is not scored


def assert_level(told: dict[str, Any], reveal: str) -> None:
    about = {"task_run_id", "status"}
    levels = {
        "none": about,
        "verdict": about | {"verdict", "score"},
        "axes": about | {"verdict", "score", "axes"},
        "criteria": about | {"verdict", "score", "axes", "passed"},
    }
    assert told.keys() == levels[reveal]
    if reveal == "criteria":
        labels = [f"criteria {name}" for name in ("rows", "resources", "call", "files", "messages", "answers")]
        assert told["passed"] == dict.fromkeys(labels, False)


def test_a_run_that_reveals_nothing_is_among_no_agents_outcomes(bench: Bench) -> None:
    bench.publish(task(scoring(7), reveal="none", id="none"), task(scoring(7), reveal="verdict", id="verdict"))
    hidden, shown = (bench.finished(name)["task_run_id"] for name in ("none", "verdict"))
    outcomes = bench.read("outcomes", key=bench.agent)["outcomes"]
    assert [one["contract_id"] for one in outcomes] == [shown]
    found = bench.read(f"task-runs/{hidden}")
    assert (found["verdict"], found["agent_id"]) == ("partial", "robot")
    reply = bench.deployment.ask("GET", f"/v1/outcomes/{found['outcome_id']}", key=bench.agent)
    assert reply.status_code == 404
    assert not {"verdict", "score", "axes"} & bench.read(f"task-runs/{hidden}", key=bench.agent).keys()


def test_only_operators_see_why_a_task_cannot_run(here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    here.publish(task(scoring(7)))
    document = DocumentError("seed", [Problem("claim.canary", "cannot be read")])
    for problem, status in ((MeruitError("canary"), 422), (document, 422), (Unreachable("canary"), 503)):

        async def refuse(*_: Any, problem: MeruitError = problem) -> Any:
            raise problem

        monkeypatch.setattr(here.deployment.service.hosting, "prepare", refuse)
        run = here.new()
        for key, told in ((here.agent, False), (here.operator, True)):
            reply = here.deployment.ask("POST", f"/v1/task-runs/{run}/start", key=key)
            assert (reply.status_code, "canary" in reply.text) == (status, told), reply.text


def test_erased_evidence_is_gone(bench: Bench) -> None:
    bench.publish(task(scoring(7)))
    run = bench.started(scored=False)
    told = bench.complete(run)
    store = bench.deployment.store
    erase(store, bench.tenant, bench.read(f"task-runs/{run}")["outcome_id"], "asked for")
    after = bench.complete(run)
    assert (after["verdict"], after["criteria"]) == ("partial", [])
    path = f"/v1/criterion-runs/{told['criteria'][0]['id']}"
    assert bench.deployment.ask("GET", path, key=bench.operator).status_code == 404
    body = {"reason": "once more"}
    again = bench.deployment.ask("POST", f"/v1/task-runs/{run}/rejudge", key=bench.operator, json=body)
    assert (again.status_code, code_of(again)) == (410, "erased"), again.text


def test_events_of_runs_reveal_no_criteria(bench: Bench) -> None:
    bench.done("benchmarks", benchmark(task(scoring(7, label="canary-label"))))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    run = made["task_runs"][0]["id"]
    bench.done(f"task-runs/{run}/start")
    bench.complete(run)

    def all_of_it(body: bytes) -> bool:
        return b"benchmark_run.ended" in body

    told = bench.deployment.follow("/v1/events?after=0", all_of_it, key=bench.operator).text
    for kind in ("benchmark.published", "benchmark_run.created", "task_run.created", "task_run.started"):
        assert f"event: {kind}" in told
    assert "event: task_run.completed" in told
    assert "canary-label" not in told


# Progress


def test_progress_has_the_state_the_seconds_and_the_last_event(here: Bench) -> None:
    here.publish(task(scoring(10)))
    run = here.new()
    waiting = here.read(f"task-runs/{run}/progress")
    assert (waiting["state"], waiting["seconds"], waiting["seconds_left"]) == ("pending", None, None)
    access = here.done(f"task-runs/{run}/start", key=here.agent)["access"]
    begun = here.read(f"task-runs/{run}/progress")
    assert (begun["state"], begun["last_event"]) == ("running", None)
    assert begun["seconds"] >= 0
    assert 0 < begun["seconds_left"] <= 900
    fhir = f"{access['endpoints']['fhir']}/Patient"
    made = here.deployment.ask("POST", fhir, key=access["secret"], json={"resourceType": "Patient"})
    assert made.status_code == 201, made.text
    seen = here.read(f"task-runs/{run}/progress")
    assert f"Patient/{made.json()['id']}" in seen["last_event"]
    assert here.read(f"task-runs/{run}/progress", key=here.agent)["last_event"] is None
    here.complete(run)
    ended = here.read(f"task-runs/{run}/progress")
    assert (ended["state"], ended["seconds_left"], ended["last_event"]) == ("completed", None, None)
    assert ended["seconds"] == here.read(f"task-runs/{run}/progress")["seconds"]
    other = Bench.of(here.deployment, new_tenant())
    assert here.deployment.ask("GET", f"/v1/task-runs/{run}/progress", key=other.operator).status_code == 404
