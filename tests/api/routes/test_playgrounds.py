"""Playgrounds over the API: made, remembered, put back, branched and taken down, each of them one tenant's."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import Deploy, Deployment, code_of, new_tenant
from tests.api.running import Bench, scoring, task

from meruit.api.app import build_hosting
from meruit.api.playground_host import PlaygroundHosting
from meruit.config import Settings
from meruit.model.access import Role
from meruit.playground.host import FILE, FOLDER
from meruit.playground.state import PlaygroundState

PATIENT = {"resourceType": "Patient", "id": "p", "active": True}


@pytest.fixture
def here(deployment: Deployment, tenant: str) -> Bench:
    return Bench.of(deployment, tenant)


def patients(bench: Bench, playground: Any) -> list[str]:
    """What a playground's FHIR store says, past all keys of the service."""
    path = f"{playground['endpoints']['fhir']}/Patient"
    reply = bench.deployment.ask("GET", path, key=playground["secret"])
    assert reply.status_code == 200, reply.text
    return [entry["resource"]["id"] for entry in reply.json().get("entry", [])]


def admit(bench: Bench, playground: Any, name: str) -> None:
    path = f"{playground['endpoints']['fhir']}/Patient/{name}"
    sent = {"resourceType": "Patient", "id": name}
    assert bench.deployment.ask("PUT", path, key=playground["secret"], json=sent).status_code == 201


def test_a_playground_is_made_remembered_put_back_and_taken_down(here: Bench) -> None:
    made = here.done("playgrounds", {"seed": {"fhir": [PATIENT]}})
    place = f"playgrounds/{made['id']}"
    assert (patients(here, made), made["checkpoints"], made["task_run_id"]) == (["p"], ["start"], None)
    admit(here, made, "q")
    assert here.done(f"{place}/checkpoint", {"name": "two"})["checkpoints"] == ["start", "two"]
    admit(here, made, "r")
    here.done(f"{place}/reset", {"name": "two"})
    assert patients(here, made) == ["p", "q"]
    here.done(f"{place}/reset", {})
    assert patients(here, made) == ["p"]
    assert here.read(place)["checkpoints"] == ["start", "two"]
    gone = here.deployment.ask("DELETE", f"/v1/{place}", key=here.operator)
    assert (gone.status_code, gone.json()["id"]) == (200, made["id"])
    for method, path in (("GET", place), ("DELETE", place), ("POST", f"{place}/branch"), ("GET", f"{place}/events")):
        assert here.deployment.ask(method, f"/v1/{path}", key=here.operator).status_code == 404
    path = f"{made['endpoints']['fhir']}/Patient"
    assert here.deployment.ask("GET", path, key=made["secret"]).status_code == 401


def test_a_branch_goes_its_own_way(here: Bench) -> None:
    made = here.done("playgrounds", {"seed": {"fhir": [PATIENT]}})
    admit(here, made, "q")
    branch = here.done(f"playgrounds/{made['id']}/branch")
    assert branch["secret"] != made["secret"]
    admit(here, branch, "r")
    assert (patients(here, made), patients(here, branch)) == (["p", "q"], ["p", "q", "r"])
    path = f"{branch['endpoints']['fhir']}/Patient"
    assert here.deployment.ask("GET", path, key=made["secret"]).status_code == 401


def test_what_was_done_in_it_is_listed_by_pages(here: Bench) -> None:
    made = here.done("playgrounds", {"seed": {"fhir": [PATIENT], "facts": {"a": "hidden"}}})
    for name in ("q", "r", "s"):
        admit(here, made, name)
    found, after = list[Any](), 0
    while page := here.read(f"playgrounds/{made['id']}/events", limit=2, after=after)["events"]:
        assert len(page) <= 2
        found, after = found + page, page[-1]["seq"]
    assert [one["key"] for one in found] == ["Patient/q", "Patient/r", "Patient/s"]
    assert {one["type"] for one in found} == {"fhir_create"}


def test_playgrounds_are_listed_by_pages(here: Bench) -> None:
    made = [here.done("playgrounds", {})["id"] for _ in range(3)]
    page = here.read("playgrounds", limit=2)
    rest = here.read("playgrounds", limit=2, after=page["next"])
    assert [one["id"] for one in page["playgrounds"] + rest["playgrounds"]] == made
    assert rest["next"] is None


def test_a_playground_is_its_tenants_alone(here: Bench) -> None:
    here.publish(task(scoring(10)))
    own = here.done("playgrounds", {})["id"]
    run = here.started()
    of_run = here.read(f"task-runs/{run}")["playground_id"]
    assert {one["id"]: one["task_run_id"] for one in here.read("playgrounds")["playgrounds"]} == {
        own: None,
        of_run: run,
    }
    other = Bench.of(here.deployment, new_tenant())
    assert other.read("playgrounds")["playgrounds"] == []
    for playground in (own, of_run, here.done(f"playgrounds/{own}/branch")["id"]):
        place = f"/v1/playgrounds/{playground}"
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", place, {}),
            ("DELETE", place, {}),
            ("GET", f"{place}/events", {}),
            ("POST", f"{place}/branch", {}),
            ("POST", f"{place}/checkpoint", {"json": {"name": "x"}}),
            ("POST", f"{place}/reset", {"json": {}}),
        ]
        for method, path, options in asked:
            assert here.deployment.ask(method, path, key=other.operator, **options).status_code == 404
            for key in (here.agent, here.deployment.key(Role.AUDITOR, here.tenant)):
                assert here.deployment.ask(method, path, key=key, **options).status_code == 403
    assert len(here.read("playgrounds")["playgrounds"]) == 3


def test_the_playground_of_a_running_run_cannot_be_removed(here: Bench) -> None:
    here.publish(task(scoring(10)))
    run = here.started()
    place = f"playgrounds/{here.read(f'task-runs/{run}')['playground_id']}"
    refused = here.deployment.ask("DELETE", f"/v1/{place}", key=here.operator)
    assert (refused.status_code, code_of(refused)) == (409, "in_use")
    branch = here.done(f"{place}/branch")
    assert branch["task_run_id"] is None
    assert here.complete(run)["verdict"] == "pass"
    assert [one["id"] for one in here.read("playgrounds")["playgrounds"]] == [branch["id"]]
    assert here.deployment.ask("DELETE", f"/v1/playgrounds/{branch['id']}", key=here.operator).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("", {"seed": {"colours": 1}}, 422),
        ("", {"seed": {"fhir": ["/etc/passwd"]}}, 422),
        ("", {"seed": {"files": {"a": {"file": "../../etc/passwd"}}}}, 422),
        ("", {"seed": [1]}, 400),
        ("", {"colour": 1}, 400),
        ("/checkpoint", {}, 400),
        ("/checkpoint", {"name": "../x"}, 400),
        ("/checkpoint", {"name": "x\n"}, 400),
        ("/reset", {"name": "never"}, 404),
        ("/reset", {"name": 5}, 400),
        ("/branch", {"name": "x"}, 400),
    ],
)
def test_what_cannot_be_is_refused(here: Bench, path: str, body: Any, status: int) -> None:
    made = here.done("playgrounds", {})["id"]
    place = f"/v1/playgrounds/{made}{path}" if path else "/v1/playgrounds"
    reply = here.deployment.ask("POST", place, key=here.operator, json=body)
    assert reply.status_code == status, reply.text
    assert "root:" not in reply.text
    assert len(here.read("playgrounds")["playgrounds"]) == 1


def test_the_systems_are_past_the_services_own_rules(here: Bench) -> None:
    made = here.done("playgrounds", {"seed": {"fhir": [PATIENT]}})
    systems, secret = made["endpoints"], made["secret"]
    found = here.deployment.ask("GET", f"{systems['fhir']}/Patient?_id=p&_count=5", key=secret)
    assert found.json()["total"] == 1
    assert found.headers["x-request-id"]
    assert found.headers["content-type"].startswith("application/fhir+json")
    for key in (None, here.operator, "nonsense"):
        for path in (f"{systems['fhir']}/Patient", systems["events"], f"{systems['call']}/turns", systems["x12"]):
            reply = here.deployment.ask("GET", path, key=key, client=("10.3.3.3", 1))
            assert reply.status_code == 401, path
    elsewhere = here.deployment.ask("GET", systems["portal"])
    assert elsewhere.is_redirect
    page = here.deployment.ask("GET", elsewhere.headers["location"])
    assert (page.status_code, "text/html" in page.headers["content-type"]) == (200, True)
    assert "default-src 'none'" not in page.headers["content-security-policy"].split(";")[1:]
    for path in ("/playgrounds/", "/playgrounds/pg_0/fhir/Patient", f"/playgrounds/{made['id']}/nothing"):
        assert here.deployment.ask("GET", path, key=secret).status_code in (401, 404)
    assert here.deployment.ask("GET", "/playgrounds", key=here.operator).status_code == 404


def test_a_service_without_playgrounds_says_so(deploy: Deploy) -> None:
    settings = Settings()
    made = deploy(hosting=lambda store: build_hosting(store, settings, enabled=False))
    bench = Bench.of(made, new_tenant())
    bench.publish(task(scoring(10)))
    place = f"/v1/playgrounds/pg_{'0' * 24}"
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/playgrounds", {"json": {}}),
        ("GET", "/v1/playgrounds", {}),
        ("GET", place, {}),
        ("DELETE", place, {}),
        ("GET", f"{place}/events", {}),
        ("POST", f"{place}/branch", {}),
        ("POST", f"{place}/checkpoint", {"json": {"name": "x"}}),
        ("POST", f"{place}/reset", {"json": {}}),
        ("POST", f"/v1/task-runs/{bench.new()}/start", {}),
        ("GET", f"/playgrounds/pg_{'0' * 24}/fhir/Patient", {}),
    ]
    for method, path, options in asked:
        reply = made.ask(method, path, key=bench.operator, **options)
        assert (reply.status_code, code_of(reply)) == (503, "playgrounds_off"), path
    assert not (made.store.database.location.folder / "playgrounds").exists()


def test_nothing_listens_before_there_is_a_playground(deploy: Deploy) -> None:
    made = deploy()
    bench = Bench.of(made, new_tenant())
    assert bench.read("playgrounds")["playgrounds"] == []
    assert not (made.store.database.location.folder / "playgrounds").exists()
    assert made.ask("GET", "/playgrounds/pg_0/fhir/Patient").status_code == 404


def test_a_broken_playground_does_not_stop_the_service(deploy: Deploy) -> None:
    first = deploy()
    bench = Bench.of(first, new_tenant())
    made = bench.done("playgrounds", {})
    folder = first.store.database.location.folder / "playgrounds"
    first.close()
    (folder / made["id"] / "state.db").write_bytes(b"not a database")
    second = deploy()
    assert second.ask("GET", "/v1/benchmarks", key=bench.operator).status_code == 200
    reply = second.ask("POST", "/v1/playgrounds", key=bench.operator, json={})
    assert (reply.status_code, code_of(reply)) == (503, "playgrounds_off"), reply.text


def test_no_more_are_made_than_there_may_be(here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = here.done("playgrounds", {})["id"]
    monkeypatch.setattr("meruit.playground.descriptors.MAX_PLAYGROUNDS", 0)
    for path in ("", f"/{made}/branch"):
        reply = here.deployment.ask("POST", f"/v1/playgrounds{path}", key=here.operator, json={})
        assert (reply.status_code, code_of(reply)) == (503, "cannot_be_made"), reply.text
    assert len(here.read("playgrounds")["playgrounds"]) == 1


def test_many_are_made_at_once(here: Bench) -> None:
    async def all_at_once() -> list[str]:
        asked = [here.deployment.asked("POST", "/v1/playgrounds", key=here.operator, json={}) for _ in range(8)]
        return [reply.json()["id"] for reply in await asyncio.gather(*asked)]

    made = here.deployment.run(all_at_once())
    assert sorted(made) == [one["id"] for one in here.read("playgrounds")["playgrounds"]]


def test_environments_without_owner_are_removed_at_start(tmp_path: Path) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def left(number: int, hours: float, **said: Any) -> str:
        """A playground of so many hours ago."""
        name = f"pg_{number:024x}"
        path = tmp_path / FOLDER / name / FILE
        PlaygroundState.create(
            path, clock=lambda: now - timedelta(hours=hours), settings={"secret": "s", **said}
        ).close()
        return name

    left(1, 2, task="b@1/t")
    young = left(2, 0.5, task="b@1/t")
    somebodys = left(3, 2, task="b@1/t", tenant="acme", task_run="trn_1")
    by_hand = left(4, 2)

    async def served() -> list[str]:
        async with PlaygroundHosting(tmp_path, Settings(), clock=lambda: now, entropy=os.urandom) as hosting:
            return [one.id for one in hosting._host.listing()]

    assert asyncio.run(served()) == [young, somebodys, by_hand]


def test_a_playground_that_is_full_takes_no_checkpoint(here: Bench) -> None:
    made = here.done("playgrounds", {"seed": {"fhir": [PATIENT]}})
    state = here.deployment.service.hosting._host.state_of(made["id"])
    assert state is not None
    state.set(quota_bytes=state.used_bytes())
    refused = here.deployment.ask(
        "POST", f"/v1/playgrounds/{made['id']}/checkpoint", key=here.operator, json={"name": "two"}
    )
    assert (refused.status_code, code_of(refused)) == (507, "full")
    assert here.read(f"playgrounds/{made['id']}")["checkpoints"] == ["start"]
