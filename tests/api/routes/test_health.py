"""Whether the service lives, and its numbers as Prometheus reads them."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, update
from tests.api.conftest import CRITERIA, PATIENCE_S, WORK, Deploy, Deployment, code_of

from meruit import __version__
from meruit.api import app as build
from meruit.api import integrity
from meruit.api.app import build_service
from meruit.api.integrity import IntegrityState, StoreIntegrity
from meruit.api.routes.health import PROMETHEUS
from meruit.api.server import ShutdownSignal
from meruit.api.telemetry import Instruments
from meruit.audit.check import StoreCheck
from meruit.config import Settings
from meruit.errors import LogCheckStopped, SandboxInsecure, StoreError, StoreUnavailable
from meruit.log.key_chain import ROOT, admit_key
from meruit.log.note import SigningKey
from meruit.model.access import Role
from meruit.model.kinds import Tier
from meruit.sandbox.selftest import Examination
from meruit.store import tables
from meruit.store.key_admission import insert_key
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction


def numbers(deployment: Deployment, key: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    reply = deployment.ask("GET", "/metrics", key=key)
    assert reply.headers["content-type"] == f"{PROMETHEUS}; charset=utf-8"
    families = list(text_string_to_metric_families(reply.text))
    assert all(family.documentation for family in families)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_by_the_template_of_their_route(deploy: Deploy) -> None:
    made = deploy()
    key = made.key(Role.OPERATOR)
    outcome = made.ask("POST", "/v1/verify", key=key, json={**WORK, "criteria": CRITERIA}).json()["outcome_id"]
    for _ in range(3):
        made.ask("GET", f"/v1/outcomes/{outcome}", key=key)
    made.ask("GET", f"/v1/outcomes/out_{'0' * 34}", key=key)
    made.ask("GET", "/nothing/at/all", key=key)
    found = numbers(made, key)
    until = time.monotonic() + PATIENCE_S
    # The recorder notes when a key was used after the request is answered.
    while found["meruit_recorder_queue",] and time.monotonic() < until:
        found = numbers(made, key)
    template = "/v1/outcomes/{outcome_id}"
    assert found["meruit_requests_total", "GET", template, "200", "default"] == 3
    assert found["meruit_requests_total", "GET", template, "404", "default"] == 1
    assert found["meruit_requests_total", "GET", "-", "404", ""] == 1
    assert found["meruit_request_seconds_count", template, "default"] == 4
    assert found["meruit_verdicts_total", "default", "pass"] == 1
    assert found["meruit_recorded_total", "default"] == 1
    assert found["meruit_group_size_count",] >= 2
    assert found["meruit_recorder_queue",] == 0
    assert not any(outcome in part for name in found for part in name)


def test_only_the_operators_tenant_reads_the_metrics_of_all(deployment: Deployment) -> None:
    for role in (Role.OPERATOR, Role.ADMIN, Role.AUDITOR):
        reply = deployment.ask("GET", "/metrics", key=deployment.key(role, "another-tenant"))
        assert (reply.status_code, code_of(reply)) == (403, "forbidden")
        assert "meruit_requests" not in reply.text


def test_a_service_that_can_read_its_records_is_well(deployment: Deployment) -> None:
    reply = deployment.ask("GET", "/health", client=("192.0.2.1", 1))
    assert reply.status_code == 200
    said = reply.json()
    assert said.pop("audit") in {"unchecked", "checking", "sound"}
    assert said.pop("signing") == "ok"
    assert said == {"status": "ok", "version": __version__, "database": "ok", "witnesses": "off", "root": "none"}


def test_a_service_whose_key_was_retired_is_degraded(deploy: Deploy, tmp_path: Path) -> None:
    made = deploy(Location(tmp_path))
    store, operator = made.service.store, made.key(Role.OPERATOR)
    other = Store(store.database, store.signer, store.surroundings)
    root = SigningKey.generate("meruit-root", bytes([1] * 32))
    new = SigningKey.generate(store.signer.name, bytes([2] * 32))

    def rotate(writing: WriteTransaction) -> None:
        at, name = writing.now.written, store.signer.name
        insert_key(writing, admit_key(store.signer, at, name, root.vkey, role=ROOT))
        insert_key(writing, admit_key(store.signer, at, name, new.vkey, retires=store.signer.vkey))

    other.recorder.write(rotate)
    other.recorder.close()
    # It is noticed before the service writes anything.
    found = made.ask("GET", "/health").json()
    assert (found["status"], found["signing"]) == ("degraded", "key_not_admitted")
    assert found["root"] in {"founding", "late"}
    refused = made.ask("POST", "/v1/verify", key=operator, json={**WORK, "criteria": CRITERIA})
    assert (refused.status_code, code_of(refused)) == (503, "key_not_admitted")


def test_a_service_whose_database_is_gone_says_so(deploy: Deploy, store_location: Location) -> None:
    made = deploy(store_location)
    key = made.key()
    made.ask("GET", "/v1/outcomes", key=key)
    with made.store.database.writer.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE log_state RENAME TO gone")
    reply = made.ask("GET", "/health")
    assert (reply.status_code, reply.json()["status"]) == (503, "unavailable")
    refused = made.ask("GET", "/v1/audit/checkpoint", key=key)
    assert (refused.status_code, code_of(refused)) == (503, "unavailable")
    with made.store.database.writer.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO log_state")
    assert made.ask("GET", "/health").status_code == 200


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(Location(tmp_path / "data"))


NO_CODE = Settings.parse("extractors: {custom: {class: CustomExtractor, enabled: false}}", "settings")


def test_a_service_that_runs_no_code_needs_no_sandbox(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "examine", None)
    made = build_service(NO_CODE, store, ShutdownSignal())
    assert made.record_by_default
    store.close()


@pytest.mark.parametrize("ready", [True, False])
def test_a_service_whose_sandbox_does_not_hold_is_not_built(
    store: Store, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    asked = list[Tier]()

    def examined(tier: Tier) -> Examination:
        asked.append(tier)
        held = ready or tier is not Tier.PYTHON
        return Examination(tier, "engine", held, "" if held else "reads files", [])

    monkeypatch.setattr(build, "examine", examined)
    if ready:
        build_service(Settings(), store, ShutdownSignal(), allow_python_full=True)
        assert set(asked) == set(Tier)
    else:
        with pytest.raises(SandboxInsecure, match="python: reads files"):
            build_service(Settings(), store, ShutdownSignal())
    store.close()


def examined(store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[StoreIntegrity, Instruments]:
    """What the check in the background finds."""
    monkeypatch.setattr(integrity, "PAUSE_S", 0.0)
    found, instruments = StoreIntegrity(), Instruments()

    asyncio.run(integrity._check_once(store, found, instruments, asyncio.Event()))
    return found, instruments


def test_a_store_that_was_changed_turns_health_red(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    made = deploy()
    made.ask("POST", "/v1/verify", key=made.key(Role.OPERATOR), json={**WORK, "criteria": CRITERIA})
    store = made.service.store
    found, instruments = examined(store, monkeypatch)
    assert (found.state, found.problems) == (IntegrityState.SOUND, [])
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.verdicts).values(verdict="fail"))
    found, instruments = examined(store, monkeypatch)
    assert found.state is IntegrityState.BROKEN
    # The version, and the outcome whose latest it is.
    assert b"meruit_audit_problems 2.0" in instruments.exposition()
    made.service.integrity.state = found.state
    reply = made.ask("GET", "/health")
    assert (reply.status_code, reply.json()["status"], reply.json()["audit"]) == (200, "degraded", "broken")


def test_a_check_ends_with_the_service(deploy: Deploy) -> None:
    store, found = deploy().service.store, StoreIntegrity()

    async def stop_early() -> None:
        ended = asyncio.Event()
        ended.set()
        await integrity.check_in_background(store, found, Instruments(), ended)
        with pytest.raises(LogCheckStopped):
            integrity._check_slices(store, StoreCheck(store.blobs), found, Instruments(), ended)

    asyncio.run(stop_early())
    assert found.state is IntegrityState.UNCHECKED


def test_a_check_begins_again_until_the_service_ends(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = deploy().service.store, list[int]()
    for name in ("DELAY_S", "REPEAT_S"):
        monkeypatch.setattr(integrity, name, 0.0)

    async def check() -> None:
        ended = asyncio.Event()

        async def look(*_: object) -> None:
            seen.append(1)
            if len(seen) == 3:
                ended.set()

        monkeypatch.setattr(integrity, "_check_once", look)
        await integrity.check_in_background(store, StoreIntegrity(), Instruments(), ended)

    asyncio.run(check())
    assert len(seen) == 3


class BrokenCheck(StoreCheck):
    """Its slices fail in turn."""

    _failures: list[StoreError]

    @classmethod
    def of(cls, store: Store, problems: list[StoreError]) -> "BrokenCheck":
        made = cls(store.blobs)
        made._failures = problems
        return made

    def check_slice(self, connection: Connection) -> bool:
        if self._failures:
            raise self._failures.pop()
        return super().check_slice(connection)


def test_a_check_that_fails_says_so(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    store = deploy().service.store
    monkeypatch.setattr(integrity, "begin_check", partial(BrokenCheck.of, problems=[StoreError("it is gone")]))
    found, instruments = StoreIntegrity(), Instruments()
    monkeypatch.setattr(integrity, "PAUSE_S", 0.0)
    asyncio.run(integrity._check_once(store, found, instruments, asyncio.Event()))
    assert found.state is IntegrityState.UNCHECKED


def test_a_slice_that_could_not_be_read_is_read_again(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    store = deploy().service.store
    problems: list[StoreError] = [StoreUnavailable("busy"), StoreUnavailable("busy")]
    monkeypatch.setattr(integrity, "begin_check", partial(BrokenCheck.of, problems=problems))
    monkeypatch.setattr(integrity, "RETRY_S", 0.0)
    found, _ = examined(store, monkeypatch)
    assert (found.state, problems) == (IntegrityState.SOUND, [])
