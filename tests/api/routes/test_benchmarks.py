"""Benchmarks that are published: for all time, only what can be run, and nothing of it for agents."""

from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import Deploy, Deployment, code_of, new_tenant
from tests.api.running import Bench, benchmark, scoring, task

from meruit.api.idempotency import HEADER, REPLAYED
from meruit.config import Settings
from meruit.model.access import Role

PLAIN = benchmark(task(scoring(10), title="A title"), title="All of it", description="For a test.")


@pytest.fixture
def bench(either: Deployment, tenant: str) -> Bench:
    return Bench.of(either, tenant)


@pytest.fixture
def here(deployment: Deployment, tenant: str) -> Bench:
    return Bench.of(deployment, tenant)


def refused(bench: Bench, body: Any, status: int, code: str) -> Any:
    """What a benchmark is refused with; nothing of it is kept."""
    before = bench.deployment.rows()
    reply = bench.deployment.ask("POST", "/v1/benchmarks", key=bench.operator, json=body)
    assert (reply.status_code, code_of(reply)) == (status, code), reply.text
    assert bench.deployment.rows() == before
    return reply.json()


def test_publishing_the_same_benchmark_again_has_no_effect(bench: Bench) -> None:
    first = bench.deployment.ask("POST", "/v1/benchmarks", key=bench.operator, json=PLAIN)
    assert first.status_code == 201
    assert (first.json()["benchmark"], first.json()["version"], first.json()["tasks"]) == ("b", 1, 1)
    before = bench.deployment.rows()
    again = bench.deployment.ask("POST", "/v1/benchmarks", key=bench.operator, json=PLAIN)
    assert (again.status_code, again.content) == (201, first.content)
    assert bench.deployment.rows() == before


def test_what_is_published_never_changes(bench: Bench) -> None:
    bench.done("benchmarks", PLAIN)
    told = refused(bench, PLAIN | {"title": "another"}, 409, "benchmark_taken")
    assert "b@1" in told["detail"]
    bench.done("benchmarks", PLAIN | {"title": "another", "version": 2})
    assert bench.read("benchmarks/b@1")["title"] == "All of it"
    assert (bench.read("benchmarks/b")["version"], bench.read("benchmarks/b")["title"]) == (2, "another")


def test_a_second_request_of_a_key_is_answered_as_the_first(bench: Bench) -> None:
    ask: dict[str, Any] = {"key": bench.operator, "headers": {HEADER: "once"}}
    first = bench.deployment.ask("POST", "/v1/benchmarks", json=PLAIN, **ask)
    again = bench.deployment.ask("POST", "/v1/benchmarks", json=PLAIN, **ask)
    assert (again.status_code, again.content, again.headers[REPLAYED]) == (201, first.content, "true")
    other = bench.deployment.ask("POST", "/v1/benchmarks", json=PLAIN | {"version": 2}, **ask)
    assert code_of(other) == "idempotency_key_reused"


def test_those_who_may_read_all_of_it(bench: Bench) -> None:
    bench.done("benchmarks", PLAIN)
    auditor = bench.deployment.key(Role.AUDITOR, bench.tenant)
    for key in (bench.operator, auditor):
        found = bench.read("benchmarks/b@1", key=key)["document"]
        assert found["tasks"][0]["seed"] == PLAIN["tasks"][0]["seed"]
        assert found["tasks"][0]["criteria"][0]["assertion"]["fields"] == scoring(10)["fields"]
        one = bench.read("tasks/b/t", key=key)
        assert (one["version"], one["task"]) == (1, found["tasks"][0])
    for path in ("benchmarks", "benchmarks/b", "benchmarks/b@1", "tasks/b/t"):
        assert bench.deployment.ask("GET", f"/v1/{path}", key=bench.agent).status_code == 403


def test_what_was_read_can_be_published_elsewhere_and_is_the_same(here: Bench) -> None:
    first = here.done("benchmarks", PLAIN)
    other = Bench.of(here.deployment, new_tenant())
    assert other.done("benchmarks", here.read("benchmarks/b")["document"])["digest"] == first["digest"]


def test_benchmarks_are_listed_newest_first_by_pages(here: Bench) -> None:
    for version in (1, 2, 3):
        here.done("benchmarks", PLAIN | {"version": version})
    page = here.read("benchmarks", limit=2)
    assert [one["version"] for one in page["benchmarks"]] == [3, 2]
    rest = here.read("benchmarks", limit=2, before=page["next"])
    assert ([one["version"] for one in rest["benchmarks"]], rest["next"]) == ([1], None)


def test_another_tenant_finds_none(here: Bench) -> None:
    here.done("benchmarks", PLAIN)
    other = Bench.of(here.deployment, new_tenant())
    assert other.read("benchmarks")["benchmarks"] == []
    for path in ("benchmarks/b", "benchmarks/b@1", "tasks/b/t", "tasks/b@1/t"):
        assert here.deployment.ask("GET", f"/v1/{path}", key=other.operator).status_code == 404
    refused_run = here.deployment.ask("POST", "/v1/task-runs", key=other.operator, json={"benchmark": "b", "task": "t"})
    assert refused_run.status_code == 404


def test_what_there_is_not_is_not_found(here: Bench) -> None:
    here.done("benchmarks", PLAIN)
    for path, status in (
        *(("benchmarks/c", 404), ("benchmarks/b@2", 404), ("tasks/b/u", 404)),
        *(("benchmarks/B", 400), ("benchmarks/b@0", 400), ("benchmarks/b@x", 400), ("tasks/b/T", 400)),
    ):
        assert here.deployment.ask("GET", f"/v1/{path}", key=here.operator).status_code == status, path


@pytest.mark.parametrize(
    ("criterion", "where"),
    [
        ({"assert": "no-such-check"}, "tasks[0].criteria[1].assert"),
        ({"assert": "fhir-resource-state", "resource": "Patient", "feilds": {}}, "tasks[0].criteria[1]"),
        ({"assert": "fhir-resource-state", "resource": "Patient", "fields": {"a": {"nearby": 1}}}, "tasks[0].criteria"),
        ({"assert": "hl7-structural", "fields": {"not a path": 1}}, "tasks[0].criteria[1]"),
    ],
)
def test_an_assertion_that_cannot_be_run_is_refused_by_its_place(here: Bench, criterion: Any, where: str) -> None:
    told = refused(here, benchmark(task(scoring(1), criterion)), 422, "unsupported_criteria")
    assert any(one["where"].startswith(where) for one in told["errors"]), told


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tasks": []}, "tasks"),
        ({"benchmark": "Not a slug"}, "benchmark"),
        ({"version": 0}, "version"),
        ({"prize": 1}, "prize"),
        ({"tasks": [task(scoring(1), colour="red")]}, "colour"),
        ({"tasks": [task(scoring(1)), task(scoring(1))]}, "tasks"),
        ({"tasks": [task({"metric": "rougeL"})]}, "tasks[0].criteria[0]"),
        ({"tasks": [task(scoring(1, weight=0))]}, "weight"),
        ({"tasks": [task(scoring(1, weight=-1))]}, "weight"),
        ({"tasks": [task({**scoring(1), "from": "nowhere"})]}, "nowhere"),
        ({"tasks": [task({"assert": "no-such-check"}, colour="red")]}, "colour"),
        ({"tasks": [task(scoring(1)) | {"seed": 5}]}, "tasks[0].seed"),
        ({"tasks": [task(scoring(1)) | {"seed": [[1]]}]}, "tasks[0].seed"),
        ({"attachments": {"a": {"base64": "!"}}}, "attachments"),
    ],
)
def test_an_invalid_benchmark_is_refused_by_its_field(here: Bench, changed: dict[str, Any], said: str) -> None:
    before = here.deployment.rows()
    reply = here.deployment.ask("POST", "/v1/benchmarks", key=here.operator, json=PLAIN | changed)
    assert (reply.status_code, said in reply.json()["detail"]) == (400, True), reply.text
    assert here.deployment.rows() == before


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:1/fhir", "https://fhir.example/r4", "gs://bucket/x", "/etc", "file:///etc", "config:nothing"],
)
def test_a_benchmark_reaches_no_address_of_its_own(here: Bench, address: str) -> None:
    kind = "fhir" if address.startswith("http") else "files"
    sources = {"portal": "rows", "own": {"kind": kind, "at": address}}
    told = refused(here, benchmark(task(scoring(1), sources=sources)), 422, "unknown_source")
    assert [one["where"] for one in told["errors"]] == ["tasks[0].sources.own"]


def test_a_benchmark_reads_configured_sources_only(deploy: Deploy, tmp_path: Path) -> None:
    settings = Settings.parse(f"benchmarks: {{sources: {{drop: {{kind: files, at: {tmp_path}}}}}}}", "settings")
    bench = Bench.of(deploy(settings=settings), new_tenant())

    def reading(**source: Any) -> dict[str, Any]:
        return benchmark(task(scoring(1), sources={"portal": "rows", "own": {"at": "config:drop", **source}}))

    refused(bench, reading(kind="rows"), 422, "unknown_source")
    refused(bench, reading(kind="files", token_env="HOME"), 422, "unknown_source")
    refused(bench, reading(kind="files", token_command=["id"]), 422, "unknown_source")
    bench.done("benchmarks", reading(kind="files"))


@pytest.mark.parametrize(
    "seed",
    [
        "nothing.yaml",
        {"colours": {}},
        {"fhir": ["missing.json"]},
        {"fhir": [{"resourceType": "Pateint"}]},
        {"files": {"../up": "x"}},
        ["base.yaml", {"rows": 1}],
    ],
)
def test_an_invalid_seed_is_refused(here: Bench, seed: Any) -> None:
    body = benchmark(task(scoring(1)), task(scoring(1), id="u") | {"seed": seed}, attachments={"base.yaml": "rows: {}"})
    told = refused(here, body, 422, "bad_seed")
    assert all(one["where"].startswith("tasks[1].seed") for one in told["errors"])


def test_seeds_are_made_of_what_is_attached(here: Bench) -> None:
    attached = {
        "base.yaml": "rows: {claim: {'1': {f0: 0}}}\nfiles: {a.bin: {file: a.bin}}",
        "a.bin": {"base64": "AAH/"},
    }
    one = {**scoring(1), "fields": {"f0": 0}}
    held = {"assert": "sftp-file-present", "path": "a.bin", "size": 3}
    here.publish(task(one, held) | {"seed": "base.yaml"}, attachments=attached)
    assert here.finished()["score"] == 1.0


def test_a_benchmark_may_be_as_large_as_evidence_and_no_larger(here: Bench) -> None:
    large = PLAIN | {"attachments": {"a": "x" * 2_000_000}}
    assert here.done("benchmarks", large)["tasks"] == 1
    too_large = PLAIN | {"version": 2, "attachments": {"a": "x" * 20_000_000}}
    reply = here.deployment.ask("POST", "/v1/benchmarks", key=here.operator, json=too_large)
    assert reply.status_code == 413


# Edits


def edited(bench: Bench, method: str, body: Any, *, name: str = "b", **more: Any) -> Any:
    """The answer to an edit that succeeds."""
    reply = bench.deployment.ask(method, f"/v1/benchmarks/{name}", key=bench.operator, json=body, **more)
    assert reply.status_code == 200, reply.text
    return reply.json()


def not_edited(bench: Bench, method: str, body: Any, status: int, code: str, *, name: str = "b") -> Any:
    """What an edit is refused with; nothing of it is kept."""
    before = bench.deployment.rows()
    options = {} if body is None else {"json": body}
    reply = bench.deployment.ask(method, f"/v1/benchmarks/{name}", key=bench.operator, **options)
    assert (reply.status_code, code_of(reply)) == (status, code), reply.text
    assert bench.deployment.rows() == before
    return reply.json()


def deleted(bench: Bench, name: str = "b", **more: Any) -> Any:
    reply = bench.deployment.ask("DELETE", f"/v1/benchmarks/{name}", key=bench.operator, **more)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_an_edit_makes_a_new_version_and_leaves_the_old_one(bench: Bench) -> None:
    bench.done("benchmarks", PLAIN)
    old = bench.read("benchmarks/b@1")
    run = bench.new()
    made = edited(bench, "PUT", {"title": "Anew", "tasks": [task(scoring(5)), task(scoring(1), id="u")]})
    assert (made["version"], made["tasks"], made["title"]) == (2, 2, "Anew")
    changes = {"tasks": [task(scoring(3), id="v")], "remove_tasks": ["u"], "description": "With v."}
    again = edited(bench, "PATCH", changes)
    assert (again["version"], again["title"]) == (3, "Anew")
    newest = bench.read("benchmarks/b")["document"]
    assert [one["id"] for one in newest["tasks"]] == ["t", "v"]
    assert (newest["title"], newest["description"], newest["version"]) == ("Anew", "With v.", 3)
    assert bench.read("benchmarks/b@1") == old
    assert bench.read(f"task-runs/{run}")["version"] == 1
    assert bench.read(f"task-runs/{bench.new('v')}")["version"] == 3


def test_a_changed_task_keeps_its_place(here: Bench) -> None:
    here.done("benchmarks", benchmark(task(scoring(1)), task(scoring(1), id="u")))
    edited(here, "PATCH", {"tasks": [task(scoring(2), title="Changed")]})
    assert [(one["id"], one.get("title")) for one in here.read("benchmarks/b")["document"]["tasks"]] == [
        ("t", "Changed"),
        ("u", None),
    ]


def test_an_edit_that_changes_nothing_publishes_nothing(bench: Bench) -> None:
    first = bench.done("benchmarks", PLAIN)
    before = bench.deployment.rows()
    content = {name: one for name, one in PLAIN.items() if name != "benchmark"}
    assert edited(bench, "PUT", content) == first
    assert edited(bench, "PATCH", {"title": PLAIN["title"]}) == first
    assert bench.deployment.rows() == before


def test_a_name_without_a_version_is_not_edited(here: Bench) -> None:
    not_edited(here, "PUT", {"tasks": [task(scoring(1))]}, 404, "not_found", name="new")
    not_edited(here, "PATCH", {"title": "x"}, 404, "not_found", name="new")


def test_an_editor_who_names_a_base_is_not_overtaken(here: Bench) -> None:
    here.done("benchmarks", PLAIN)
    edited(here, "PATCH", {"title": "second", "base_version": 1})
    not_edited(here, "PATCH", {"title": "third", "base_version": 1}, 409, "benchmark_changed")
    not_edited(here, "PUT", {"tasks": PLAIN["tasks"], "base_version": 0}, 409, "benchmark_changed")
    assert edited(here, "PUT", {"tasks": PLAIN["tasks"], "base_version": 2})["version"] == 3


@pytest.mark.parametrize(
    ("method", "body", "status", "code"),
    [
        ("PATCH", {}, 400, "bad_benchmark"),
        ("PATCH", {"base_version": 1}, 400, "bad_benchmark"),
        ("PATCH", {"remove_tasks": ["none"]}, 404, "not_found"),
        ("PATCH", {"remove_attachments": ["none"]}, 404, "not_found"),
        ("PATCH", {"remove_tasks": ["t"]}, 400, "bad_benchmark"),
        ("PATCH", {"remove_tasks": ["t"], "tasks": [task(scoring(1))]}, 400, "bad_benchmark"),
        ("PATCH", {"tasks": [task(scoring(1), id="u"), task(scoring(2), id="u")]}, 400, "bad_benchmark"),
        ("PATCH", {"tasks": [{"instruction": "x"}]}, 400, "bad_benchmark"),
        ("PATCH", {"tasks": [task(scoring(1), benchmark="another")]}, 400, "bad_benchmark"),
        ("PATCH", {"tasks": [task({"assert": "no-such-check"})]}, 422, "unsupported_criteria"),
        ("PATCH", {"tasks": [task(scoring(1)) | {"seed": "lost.yaml"}]}, 422, "bad_seed"),
        ("PATCH", {"title": 5}, 400, "bad_body"),
        ("PATCH", {"version": 7}, 400, "bad_body"),
        ("PUT", {"tasks": []}, 400, "bad_body"),
        ("PUT", {"tasks": [task({"assert": "no-such-check"})]}, 422, "unsupported_criteria"),
        ("PATCH", {"tasks": [{"id": ["x"], "instruction": "x", "criteria": []}]}, 400, "bad_benchmark"),
        ("PUT", {"benchmark": "c", "tasks": [task(scoring(1))]}, 400, "bad_body"),
    ],
)
def test_a_bad_edit_is_refused_and_keeps_nothing(here: Bench, method: str, body: Any, status: int, code: str) -> None:
    here.done("benchmarks", PLAIN)
    not_edited(here, method, body, status, code)


def test_a_name_of_practice_is_not_published(here: Bench) -> None:
    name = "b.practice-0123456789ab"
    refused(here, PLAIN | {"benchmark": name}, 400, "bad_benchmark")
    not_edited(here, "PUT", {"tasks": PLAIN["tasks"]}, 404, "not_found", name=name)


def test_a_task_may_name_the_set_that_it_belongs_to(here: Bench) -> None:
    first = here.done("benchmarks", PLAIN)
    assert edited(here, "PATCH", {"tasks": [PLAIN["tasks"][0] | {"benchmark": "b"}]}) == first
    assert here.read("tasks/b/t")["benchmark"] == "b"


def test_an_edit_happens_once_per_idempotency_key(bench: Bench) -> None:
    bench.done("benchmarks", PLAIN)
    once: dict[str, Any] = {"key": bench.operator, "headers": {HEADER: "edit-once"}}
    body = {"tasks": [task(scoring(2), id="u")]}
    first = bench.deployment.ask("PATCH", "/v1/benchmarks/b", json=body, **once)
    edited(bench, "PATCH", {"title": "meanwhile"})
    again = bench.deployment.ask("PATCH", "/v1/benchmarks/b", json=body, **once)
    assert (again.status_code, again.content, again.headers[REPLAYED]) == (200, first.content, "true")
    other = bench.deployment.ask("PUT", "/v1/benchmarks/b", json=body, **once)
    assert code_of(other) == "idempotency_key_reused"
    assert bench.read("benchmarks/b")["version"] == 3


def test_a_deleted_version_is_hidden_and_its_runs_keep_it(bench: Bench) -> None:
    bench.done("benchmarks", PLAIN)
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    run = made["task_runs"][0]["id"]
    bench.done(f"task-runs/{run}/start")
    bench.complete(run)
    edited(bench, "PATCH", {"title": "second"})
    assert deleted(bench, "b@1") == {"benchmark": "b", "versions": [1], "benchmark_runs": 1}
    before = bench.deployment.rows()
    assert deleted(bench, "b@1")["benchmark_runs"] == 1
    assert bench.deployment.rows() == before
    assert [one["version"] for one in bench.read("benchmarks")["benchmarks"]] == [2]
    assert bench.read("benchmarks/b@1")["deleted_at"] is not None
    assert bench.read("benchmarks/b")["deleted_at"] is None
    for path, body in (("benchmark-runs", {"benchmark": "b@1"}), ("task-runs", {"benchmark": "b@1", "task": "t"})):
        reply = bench.deployment.ask("POST", f"/v1/{path}", key=bench.operator, json=body)
        assert (reply.status_code, code_of(reply)) == (404, "not_found")
    assert bench.read(f"benchmark-runs/{made['id']}")["version"] == 1
    assert bench.done(f"task-runs/{run}/rejudge", {"reason": "again"})["version"] == 1
    assert bench.read("benchmarks/b@1/leaderboard")["tasks"] == 1


def test_a_deleted_version_is_not_given_out_again(here: Bench) -> None:
    here.done("benchmarks", PLAIN)
    assert deleted(here)["versions"] == [1]
    assert here.read("benchmarks")["benchmarks"] == []
    assert here.deployment.ask("GET", "/v1/benchmarks/b", key=here.operator).status_code == 404
    refused(here, PLAIN, 409, "benchmark_taken")
    not_edited(here, "PATCH", {"title": "x"}, 404, "not_found")
    not_edited(here, "DELETE", None, 404, "not_found")
    not_edited(here, "DELETE", None, 404, "not_found", name="b@7")
    assert edited(here, "PUT", {"tasks": PLAIN["tasks"]})["version"] == 2


def test_a_benchmark_with_runs_under_way_is_not_deleted(here: Bench) -> None:
    here.done("benchmarks", PLAIN)
    run = here.new()
    not_edited(here, "DELETE", None, 409, "benchmark_in_use")
    not_edited(here, "DELETE", None, 409, "benchmark_in_use", name="b@1")
    here.done(f"task-runs/{run}/cancel")
    assert deleted(here)["versions"] == [1]


def test_a_tenant_edits_and_deletes_its_own_only(here: Bench) -> None:
    here.done("benchmarks", PLAIN)
    other = Bench.of(here.deployment, new_tenant())
    not_edited(other, "PATCH", {"title": "x"}, 404, "not_found")
    not_edited(other, "DELETE", None, 404, "not_found")
    not_edited(other, "PUT", {"tasks": [task(scoring(1))]}, 404, "not_found")
    assert here.read("benchmarks/b")["version"] == 1
