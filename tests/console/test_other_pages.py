"""Usage, agent runs, benchmarks, audit, admin and the API reference as pages: answers, acts, roles."""

import base64
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import pytest
from sqlalchemy import bindparam, select, update
from tests.api.conftest import Deployment, new_tenant, unsteady_sources
from tests.api.running import Bench
from tests.api.test_auth import agent_run_ready_for, dead_letter, usage_run_ready_for
from tests.api.test_openapi import known_runs
from tests.console.conftest import Reader, cookie_of, sign_in

from meruit.api.integrity import IntegrityState, StoreIntegrity
from meruit.api.witnessing import Patience
from meruit.audit.check import LogProblem
from meruit.audit.known_witness import KnownWitness
from meruit.config import ServiceSettings, Settings
from meruit.console.app import build_pages
from meruit.console.pages.audit import find_cosigners
from meruit.console.pages.benchmarks import describe_act, time_of_act
from meruit.events.records import list_pending_deliveries, list_recent_deliveries
from meruit.events.store.webhooks import AddWebhook
from meruit.log.cosignature import WitnessKey
from meruit.model.access import Role
from meruit.model.task_run import AgentAct
from meruit.outcomes.records import erase
from meruit.store import tables
from meruit.store.access import keys
from meruit.store.access.key_use import AddKeyUse
from meruit.store.location import Location
from meruit.store.transaction import WriteTransaction
from meruit.verify.engine import VerificationEngine

if TYPE_CHECKING:
    from meruit.model.task_run import TaskRun


class Filled(NamedTuple):
    """A tenant with one of everything."""

    deployment: Deployment
    tenant: str
    admin: Reader
    auditor: Reader
    agent: Reader
    task_runs: dict[str, str]
    benchmark_run: str
    webhook: str
    outcome: str

    def usage(self, move: str = "acknowledge") -> str:
        return usage_run_ready_for(self.deployment, self.tenant, move)

    def agent_run(self, move: str = "resume") -> str:
        return agent_run_ready_for(self.deployment, self.tenant, move)


@pytest.fixture(scope="module")
def filled(engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("filled") / "data"
    made = Deployment(Location(folder), engine, Settings(benchmarks=unsteady_sources()), pages=build_pages)
    tenant = new_tenant()
    keys = {role: made.key(role, tenant) for role in Role}
    readers = {role: Reader(made, cookie_of(sign_in(made, key))) for role, key in keys.items()}
    runs, _ = known_runs(Bench(made, tenant, keys[Role.ADMIN], keys[Role.AGENT]))
    asked = {"benchmark": "b", "agent_id": "robot", "repeats": 2}
    benchmark_run = made.ask("POST", "/v1/benchmark-runs", key=keys[Role.ADMIN], json=asked).json()
    for one in benchmark_run["task_runs"][:1]:
        for act in ("start", "complete"):
            made.ask("POST", f"/v1/task-runs/{one['id']}/{act}", key=keys[Role.ADMIN])
    wish = AddWebhook(tenant, "http://127.0.0.1:9/", frozenset({"outcome.erased"}), made.store.surroundings.entropy)
    webhook = made.store.recorder.write(wish).webhook.id
    listed = made.ask("GET", "/v1/outcomes", key=keys[Role.ADMIN]).json()["outcomes"]
    yield Filled(
        made,
        tenant,
        readers[Role.ADMIN],
        readers[Role.AUDITOR],
        readers[Role.AGENT],
        runs,
        benchmark_run["id"],
        webhook,
        listed[0]["id"],
    )
    made.close()


def main_of(text: str) -> str:
    return text.partition("<main")[2]


# Usage.


def test_usage_says_how_many_runs_differ_and_filters(filled: Filled) -> None:
    run = filled.usage()
    page = filled.auditor.get("/usage").text
    assert run in page
    assert "not match" in page
    assert run in filled.auditor.get("/usage?status=warning&code=decreased").text
    assert run not in filled.auditor.get("/usage?status=verified").text
    assert filled.agent.get("/usage").status_code == 403
    assert run in filled.auditor.get("/usage?format=csv").text


def test_a_run_shows_both_counts_the_rule_and_what_would_change_it(filled: Filled) -> None:
    run = filled.usage()
    page = main_of(filled.auditor.get(f"/usage/{run}").text)
    for part in ("decreased", "Provider counts", "Run counts", "What would change it", 'role="img"'):
        assert part in page, part
    assert "/acknowledge" not in page
    assert filled.auditor.get("/usage/no-such-run").status_code == 404


def test_a_lower_count_is_accepted_with_a_reason(filled: Filled) -> None:
    run = filled.usage()
    assert 'name="reason"' in filled.admin.get(f"/usage/{run}/acknowledge").text
    assert filled.admin.post(f"/usage/{run}/acknowledge", reason="").status_code == 400
    assert filled.auditor.post(f"/usage/{run}/acknowledge", reason="ok").status_code == 403
    assert filled.admin.post(f"/usage/{run}/acknowledge", reason="double count corrected").status_code == 303
    assert "double count corrected" in filled.admin.get(f"/usage/{run}").text


def test_the_provider_is_asked_now_only_about_ended_runs(filled: Filled) -> None:
    assert filled.admin.post(f"/usage/{filled.usage()}/observe").status_code == 303
    assert filled.admin.post(f"/usage/{filled.usage('steps')}/observe").status_code == 409


def test_accounts_say_what_belongs_to_no_step(filled: Filled) -> None:
    run = filled.usage()
    page = main_of(filled.auditor.get("/usage/accounts").text)
    account = re.search(r'href="/usage\?account=([^"&]+)"', page)
    assert account is not None
    assert run in filled.auditor.get(f"/usage?account={account[1]}").text
    lines = filled.auditor.get("/usage/accounts?format=csv").text.splitlines()
    assert lines[0] == "account,pending,warning,verified,data_not_available,tokens,unattributed_runs,asked_at"
    assert filled.agent.get("/usage/accounts").status_code == 403


# Agent runs.


def test_a_run_shows_what_was_handed_in_and_why_it_was_refused(filled: Filled) -> None:
    run = filled.agent_run()
    page = main_of(filled.auditor.get(f"/agent-runs/{run}").text)
    for part in ("waiting", "plain query", "plain reason", "short", "submission 1"):
        assert part in page, part
    assert run in filled.auditor.get("/agent-runs?status=waiting").text
    assert "/cancel" not in page


def test_a_run_is_answered_or_cancelled_by_an_operator(filled: Filled) -> None:
    run, other = filled.agent_run(), filled.agent_run("cancel")
    assert 'name="value"' in filled.admin.get(f"/agent-runs/{run}/resume").text
    assert filled.admin.get(f"/agent-runs/{other}/resume").status_code == 409
    assert filled.admin.post(f"/agent-runs/{run}/resume", value="", key="2.0").status_code == 400
    assert filled.admin.post(f"/agent-runs/{run}/resume", value="{", key="2.0", **{"as": "json"}).status_code == 400
    assert filled.auditor.post(f"/agent-runs/{run}/resume", value="yes", key="2.0").status_code == 403
    assert filled.admin.post(f"/agent-runs/{run}/resume", value="yes", key="2.0").status_code == 303
    assert "yes" in filled.auditor.get(f"/agent-runs/{run}").text
    assert "Cancel the run" in filled.admin.get(f"/agent-runs/{other}/cancel").text
    assert filled.admin.post(f"/agent-runs/{other}/cancel").status_code == 303


def test_an_agent_sees_of_its_run_what_its_model_saw(filled: Filled) -> None:
    planted = agent_run_ready_for(filled.deployment, filled.tenant, "cancel", lambda name: f"planted-{name}")
    own = main_of(filled.agent.get(f"/agent-runs/{planted}").text)
    assert "plain query" in own
    assert "planted-" not in own
    key = filled.deployment.key(Role.AGENT, filled.tenant, agent_id="other")
    other = Reader(filled.deployment, cookie_of(sign_in(filled.deployment, key)))
    assert other.get(f"/agent-runs/{planted}").status_code == 404
    assert planted not in other.get("/agent-runs").text


# Benchmarks.


def test_a_benchmark_run_is_a_matrix_of_tasks_and_attempts(filled: Filled) -> None:
    assert f"/benchmark-runs/{filled.benchmark_run}" in filled.auditor.get("/benchmarks").text
    page = main_of(filled.auditor.get(f"/benchmark-runs/{filled.benchmark_run}").text)
    assert page.count("/task-runs/") == 4
    assert "Attempt 2" in page
    assert filled.auditor.get("/benchmarks/b").status_code == 200
    assert filled.auditor.get("/benchmarks/no-such").status_code == 404
    assert filled.agent.get("/benchmarks").status_code == 403


def test_a_leaderboard_ranks_ended_runs_with_intervals(filled: Filled) -> None:
    ask = filled.deployment.ask
    key = filled.deployment.key(Role.ADMIN, filled.tenant)
    asked = {"benchmark": "b", "agent_id": "swift", "tasks": ["t"]}
    made = ask("POST", "/v1/benchmark-runs", key=key, json=asked).json()
    for one in made["task_runs"]:
        for act in ("start", "complete"):
            assert ask("POST", f"/v1/task-runs/{one['id']}/{act}", key=key).is_success
    page = main_of(filled.auditor.get("/benchmarks/b").text)
    assert "swift" in page
    assert "95" in page
    assert "no interval" in page


def test_a_task_run_shows_changes_criteria_and_what_the_agent_sees(filled: Filled) -> None:
    page = main_of(filled.admin.get(f"/task-runs/{filled.task_runs['rejudge']}").text)
    for part in ("What changed", "The agent changed nothing", "Criteria", "What the agent may see", "portal"):
        assert part in page, part
    assert filled.admin.get(f"/task-runs/{filled.task_runs['access']}").status_code == 200
    trouble = main_of(filled.admin.get(f"/task-runs/{filled.task_runs['recheck']}").text)
    assert "Not read completely" in trouble
    own = main_of(filled.agent.get(f"/task-runs/{filled.task_runs['rejudge']}").text)
    assert "portal-state-match" not in own
    assert "What the agent did" not in own


def test_a_task_run_shows_what_the_agent_did_after_its_playground_is_gone(filled: Filled) -> None:
    made = filled.deployment
    key = made.key(Role.ADMIN, filled.tenant)
    bench = Bench(made, filled.tenant, key, key)
    run = bench.started(scored=False)
    playground = bench.read(f"task-runs/{run}")["playground_id"]
    state = made.service.hosting.state_of(filled.tenant, playground)
    state.log("portal_login", {"request": "POST <b>login", "user": "clerk", "of": ["no", "text"]})
    live = {one: main_of(one.get(f"/task-runs/{run}").text) for one in (filled.admin, filled.auditor)}
    assert ["&lt;b&gt;login" in page for page in live.values()] == [True, False]
    bench.complete(run)
    for one in (filled.admin, filled.auditor):
        page = main_of(one.get(f"/task-runs/{run}").text)
        assert "<code>POST</code> <bdi>&lt;b&gt;login</bdi>" in page
        assert "user clerk" in page
        assert "recorded with the outcome" in page
    outcome = re.findall(r"/outcomes/(out_\w+)", main_of(filled.admin.get(f"/task-runs/{run}").text))[0]
    erase(made.store, filled.tenant, outcome, "gone")
    assert "login" not in main_of(filled.admin.get(f"/task-runs/{run}").text)


@pytest.mark.parametrize(
    ("at", "ended", "shown"),
    [
        ("2026-01-01T00:00:01.5Z", None, "1.50 s"),
        ("2026-01-01T00:05:09Z", None, "5 min 9 s"),
        # The clock of the playground is another one.
        ("2025-12-31T23:59:59Z", None, "23:59:59"),
        ("2026-01-01T00:05:09Z", 60, "00:05:09"),
    ],
)
def test_an_act_has_the_time_since_the_start_of_its_run(at: str, ended: int | None, shown: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    run = SimpleNamespace(started_at=start, ended_at=None if ended is None else start + timedelta(seconds=ended))
    assert time_of_act(AgentAct(at, "row"), cast("TaskRun", run)) == shown


def test_an_act_is_named_by_its_request_or_its_type() -> None:
    asked = AgentAct("", "fhir_update", "fhir", "Patient/1", {"request": "PUT Patient/1", "version": "2"})
    assert describe_act(asked) == ("PUT", "Patient/1", "fhir, version 2")
    assert describe_act(AgentAct("", "hl7_outbound", "hl7", "3", {"version": "0" * 64})) == ("hl7 outbound", "3", "hl7")


# Audit.


def test_the_log_is_checked_and_listed(filled: Filled) -> None:
    page = main_of(filled.auditor.get("/audit").text)
    for part in ("The log is sound", "data-audit", "Checkpoints", "verdict"):
        assert part in page, part
    assert filled.agent.get("/audit").status_code == 403


def test_witnesses_and_the_check_of_records_are_shown(filled: Filled) -> None:
    service = filled.deployment.service
    assert "No witness is configured" in filled.auditor.get("/audit").text
    witness = KnownWitness("elsewhere", "https://witness.test", WitnessKey("w.test", bytes(32)))
    service.witnessing.witnesses, service.witnessing.quorum = [witness], 1
    # Of its own: the service checks its records meanwhile.
    checked, broken = service.integrity, StoreIntegrity(IntegrityState.BROKEN, [LogProblem("row", "secret-row", "x")])
    msgspec.structs.force_setattr(service, "integrity", broken)
    page = ""
    try:
        for code, said in (("", "not asked yet"), ("cosigned", "cosigned"), ("witness_saw_fork", "another history")):
            service.witnessing.asked["elsewhere"] = Patience(size=7, code=code)
            page = main_of(filled.auditor.get("/audit").text)
            assert "elsewhere" in page
            assert said in page, code
        # It may be another tenant's record: only the operator of the deployment sees which it is.
        assert "1 record differs" in page
        assert "secret-row" not in page
        operators = service.settings.operator_tenant
        key = filled.deployment.key(Role.AUDITOR, operators)
        assert "secret-row" in Reader(filled.deployment, cookie_of(sign_in(filled.deployment, key))).get("/audit").text
        assert "another history" in filled.auditor.get("/service").text
    finally:
        service.witnessing.witnesses, service.witnessing.asked = [], {}
        msgspec.structs.force_setattr(service, "integrity", checked)


def test_cosigners_are_read_from_a_note() -> None:
    note = "log\n3\nroot\n\n— log AAAA\n— w.test BBBB\n— broken\n"
    assert find_cosigners(note, "log") == ["w.test"]


def test_a_bundle_is_checked_by_the_service_step_by_step(filled: Filled) -> None:
    key = filled.deployment.key(Role.AUDITOR, filled.tenant)
    bundle = filled.deployment.ask("GET", f"/v1/outcomes/{filled.outcome}/bundle", key=key).content

    def check(content: bytes) -> Any:
        headers = {"cookie": filled.auditor.cookie, "sec-fetch-site": "same-origin"}
        return filled.deployment.ask(
            "POST",
            "/audit/check",
            headers=headers,
            data={"csrf": filled.auditor.token()},
            files={"bundle": ("bundle.zip", content, "application/zip")},
        )

    sound = check(bundle)
    assert (sound.status_code, "Every step holds" in sound.text) == (200, True)
    damaged = check(bundle[:100] + bytes([bundle[100] ^ 1]) + bundle[101:])
    assert "does not hold" in damaged.text
    assert check(b"").status_code == 400
    assert filled.auditor.post("/audit/check").status_code == 400


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser")
def test_a_browser_checks_bundles_and_receipts_without_sending_them(filled: Filled) -> None:
    from playwright.sync_api import Route, expect, sync_playwright

    key = filled.deployment.key(Role.AUDITOR, filled.tenant)
    kept = {
        part: filled.deployment.ask("GET", f"/v1/outcomes/{filled.outcome}/{part}", key=key).content
        for part in ("bundle", "receipt")
    }
    asked: list[str] = []

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix("http://127.0.0.1")
        asked.append(f"{route.request.method} {path}")
        reply = filled.auditor.get(path) if "/live" not in path else None
        if reply is None:
            route.abort()
            return
        headers = {name: value for name, value in reply.headers.items() if name != "content-encoding"}
        route.fulfill(status=reply.status_code, headers=headers, body=reply.content)

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.route("**/*", answer)
        page.goto("http://127.0.0.1/audit")

        def check(name: str, content: bytes) -> tuple[str, str]:
            page.set_input_files("input[name=bundle]", {"name": name, "mimeType": "x/y", "buffer": content})
            # Not wait_for_function: from its second look on, the page's policy forbids what it evaluates.
            expect(page.locator("#audit-verdict")).not_to_have_text(re.compile("^(Checking…)?$"), timeout=60_000)
            return str(page.text_content("#audit-verdict")), str(page.text_content("#audit-steps"))

        verdict, steps = check("bundle.zip", kept["bundle"])
        assert filled.outcome in verdict, steps
        for step in ("signature", "inclusion", "consistency", "hashes", "this service's"):
            assert step in steps
        assert filled.outcome in check("receipt.json", kept["receipt"])[0]
        receipt = json.loads(kept["receipt"])
        forged = {**receipt, "entry": base64.b64encode(base64.b64decode(receipt["entry"]) + b" ").decode()}
        assert "does not hold" in check("receipt.json", json.dumps(forged).encode())[0]
        resigned = {**receipt, "checkpoint": receipt["checkpoint"].replace("\n", "1\n", 1)}
        assert "does not hold" in check("receipt.json", json.dumps(resigned).encode())[0]
        assert "does not hold" in check("bundle.zip", kept["bundle"][: len(kept["bundle"]) // 2])[0]
        assert "does not hold" in check("bundle.zip", _with_other_output(kept["bundle"]))[0]
        assert [one for one in asked if not one.startswith("GET ")] == []
        browser.close()


def _with_other_output(bundle: bytes) -> bytes:
    """The bundle with another output in it."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle)) as before, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            after.writestr(name, b'{"text":"another"}' if name == "work/output.json" else before.read(name))
    return made.getvalue()


# Admin.


def test_a_key_is_made_shown_once_used_and_revoked(filled: Filled) -> None:
    assert 'name="role"' in filled.admin.get("/keys/new").text
    made = filled.admin.post("/keys/new", name="night shift", role="auditor", days="30")
    secret = re.search(r"mk_[0-9a-f]{12}\.[\w-]+", made.text)
    assert secret is not None
    assert made.headers["cache-control"] == "no-store"
    listed = filled.admin.get("/keys").text
    assert "night shift" in listed
    assert secret[0] not in listed
    key_id = secret[0].split(".")[0]
    other = Reader(filled.deployment, cookie_of(sign_in(filled.deployment, secret[0])))
    assert other.get("/contracts").status_code == 200
    assert key_id in filled.admin.get(f"/keys/{key_id}/revoke").text
    assert filled.admin.post(f"/keys/{key_id}/revoke").status_code == 303
    assert other.get("/contracts").status_code != 200


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "", "role": "auditor"},
        {"name": "a", "role": "king"},
        {"name": "a", "role": "agent"},
        {"name": "a", "role": "admin", "agent_id": "robot"},
        {"name": "a", "role": "admin", "days": "0"},
        {"name": "a\nb", "role": "admin"},
    ],
)
def test_a_key_that_makes_no_sense_is_refused(filled: Filled, fields: dict[str, str]) -> None:
    assert filled.admin.post("/keys/new", **fields).status_code == 400


def test_only_admins_see_keys_and_settings(filled: Filled) -> None:
    for path in ("/keys", "/keys/new", "/settings"):
        assert filled.auditor.get(path).status_code == 403
    assert filled.auditor.post("/keys/new", name="x", role="admin").status_code == 403
    assert "usage.policy.interval_min" in filled.admin.get("/settings").text


def test_a_dead_letter_is_replayed(filled: Filled) -> None:
    seq = dead_letter(filled.deployment, filled.webhook, "connection refused")
    path = f"/webhooks/{filled.webhook}"
    assert "connection refused" in filled.admin.get(path).text
    assert "could not be delivered" in filled.admin.get("/webhooks").text
    assert filled.auditor.post(f"{path}/dead/{seq}/replay").status_code == 403
    assert filled.admin.post(f"{path}/dead/{seq}/replay").status_code == 303
    assert filled.admin.post(f"{path}/dead/{seq}/replay").status_code == 404


@pytest.fixture
def idle(engine: VerificationEngine, tmp_path: Path) -> Iterator[Deployment]:
    """A service that delivers nothing by itself."""
    made = Deployment(Location(tmp_path / "data"), engine, living=False, pages=build_pages)
    yield made
    made.close()


def test_deliveries_of_a_webhook_are_listed_and_sent_again(idle: Deployment) -> None:
    """What has no row of its own up to the webhook's cursor was delivered."""
    made, tenant = idle, new_tenant()
    admin, auditor = (
        Reader(made, cookie_of(sign_in(made, made.key(role, tenant)))) for role in (Role.ADMIN, Role.AUDITOR)
    )
    wish = AddWebhook(tenant, "http://127.0.0.1:9/", frozenset({"key.created"}), made.store.surroundings.entropy)
    webhook = made.store.recorder.write(wish).webhook.id
    for _ in range(3):
        made.key(Role.AUDITOR, tenant)

    def deliver(writing: WriteTransaction) -> list[int]:
        of, hooks = tables.events.c, tables.webhooks.c
        begun = writing.read(select(hooks.created_at).where(hooks.id == webhook))[0][0]
        query = select(of.seq).where(of.tenant == tenant, of.type == "key.created", of.at > begun).order_by(of.seq)
        seqs = [row[0] for row in writing.read(query)]
        # The third is not reached, and the second waits for a retry.
        writing.change(update(tables.webhooks).where(hooks.id == bindparam("h")).values(seq=seqs[1]), h=webhook)
        writing.insert(
            tables.deliveries,
            webhook_id=webhook,
            seq=seqs[1],
            subject="s",
            attempts=1,
            next_at=0,
            error="late",
            dead_at=None,
        )
        return seqs

    first, second, third = made.store.recorder.write(deliver)
    with made.store.database.reading() as connection:
        found = list_recent_deliveries(connection, tenant, webhook, before=None, limit=9)
        older = list_recent_deliveries(connection, tenant, webhook, before=second, limit=9)
    assert [(one.seq, str(one.state), one.error) for one in found] == [
        (second, "retried", "late"),
        (first, "delivered", ""),
    ]
    assert [one.seq for one in older] == [first]
    path = f"/webhooks/{webhook}"
    assert f"{path}/events/{first}/replay" in admin.get(path).text
    assert f"{path}/events/{second}/replay" not in admin.get(path).text
    assert auditor.post(f"{path}/events/{first}/replay").status_code == 403
    statuses = [admin.post(f"{path}/events/{seq}/replay").status_code for seq in (first, first, second, third)]
    assert statuses == [303, 404, 404, 404]
    assert admin.post(f"/webhooks/whk_none/events/{first}/replay").status_code == 404
    with made.store.database.reading() as connection:
        assert [one.seq for one in list_pending_deliveries(connection, tenant, webhook, limit=9)] == [first, second]


def test_quotas_are_shown_for_each_key_and_tenant(engine: VerificationEngine, tmp_path: Path) -> None:
    settings = Settings(service=ServiceSettings(tenant_stored_mb=5, agent_key_stored_mb=2))
    made = Deployment(Location(tmp_path / "data"), engine, settings, living=False, pages=build_pages)
    try:
        tenant = settings.service.operator_tenant
        made.key(Role.AGENT, tenant)
        admin = Reader(made, cookie_of(sign_in(made, made.key(Role.ADMIN, tenant))))
        with made.store.database.reading() as connection:
            (first, *_) = keys.page(connection, tenant=tenant)
        made.store.recorder.write(AddKeyUse({(tenant, first.id): (7, 3_500_000), ("other", "mk_x"): (1, 1)}))
        page, tenants = admin.get("/keys").text, admin.get("/tenants").text
        # The tenant has one bar, and so has each key of an agent.
        assert (page.count("<meter"), "of 5.0 MB" in page, "of 2.0 MB" in page) == (2, True, True)
        assert page.count("3.3 MB") >= 2
        assert ("3.3 MB" in tenants, "of 5.0 MB" in tenants) == (True, True)
        (row,) = [line for line in admin.get("/keys?format=csv").text.splitlines() if first.id in line]
        assert row.endswith(",7,3500000")
        assert f"{tenant},2,7,3500000," in admin.get("/tenants?format=csv").text
    finally:
        made.close()


def test_a_webhook_is_made_and_deleted(filled: Filled) -> None:
    assert 'name="url"' in filled.admin.get("/webhooks/new").text
    assert filled.admin.post("/webhooks/new", url="http://127.0.0.1/x").status_code == 400
    assert filled.admin.post("/webhooks/new", url="https://example.com/x", types="no.such").status_code == 400
    made = filled.admin.post("/webhooks/new", url="https://example.com/x", types="key.created")
    assert (made.status_code, "whsec_" in made.text) == (200, True)
    path = re.search(r"/webhooks/whk_[0-9a-f]+", made.text)
    assert path is not None
    assert "This cannot be undone" in filled.admin.get(f"{path[0]}/delete").text
    assert filled.admin.post(f"{path[0]}/delete").status_code == 303
    assert filled.admin.get(path[0]).status_code == 404


def test_health_shows_the_log_and_the_workers(filled: Filled) -> None:
    page = main_of(filled.auditor.get("/service").text)
    assert "No worker runs" in page
    assert "The service answers" in page


# The API reference.


def test_the_reference_has_every_operation_with_an_example(filled: Filled) -> None:
    key = filled.deployment.key(Role.ADMIN, filled.tenant)
    document = filled.deployment.ask("GET", "/schema/openapi.json", key=key).json()
    names = {one["operationId"]: one["tags"][0] for path in document["paths"].values() for one in path.values()}
    index = filled.agent.get("/reference").text
    pages = {tag: filled.agent.get(f"/reference/{tag}").text for tag in set(names.values())}
    for name, tag in names.items():
        assert f'href="/reference/{tag}#{name}"' in index
        assert f'id="{name}"' in pages[tag]
    assert "curl -X POST" in pages["contracts"]
    assert all("<script>" not in page for page in pages.values())
    assert filled.agent.get("/reference/no-such").status_code == 404
    assert filled.agent.get("/openapi.json").json()["openapi"].startswith("3.")


def test_no_page_has_inline_style_or_script(filled: Filled) -> None:
    paths = ["/usage", "/agent-runs", "/benchmarks", "/audit", "/keys", "/webhooks", "/settings", "/service"]
    for path in (*paths, "/reference", f"/usage/{filled.usage()}", f"/agent-runs/{filled.agent_run()}"):
        assert not re.search(r"<style|\sstyle=|<script(?! src)|\son\w+=", filled.admin.get(path).text), path


def test_another_tenant_sees_none_of_it(filled: Filled) -> None:
    key = filled.deployment.key(Role.ADMIN, new_tenant())
    stranger = Reader(filled.deployment, cookie_of(sign_in(filled.deployment, key)))
    for path in (
        *(f"/usage/{filled.usage()}", f"/agent-runs/{filled.agent_run()}", f"/webhooks/{filled.webhook}"),
        *(f"/benchmark-runs/{filled.benchmark_run}", f"/task-runs/{filled.task_runs['rejudge']}"),
    ):
        assert stranger.get(path).status_code == 404, path


def test_every_list_can_be_taken_as_a_file_and_sorted(filled: Filled) -> None:
    filled.usage()
    filled.agent_run()
    for path, heading, column in (
        *(("/usage", "run_id", "cost"), ("/agent-runs", "run_id", "tokens"), ("/audit", "entry", "")),
        *(("/benchmarks", "benchmark_run_id", "agent"), ("/keys", "name", "created"), ("/webhooks", "url", "")),
        *(
            ("/evaluations", "name", "rate"),
            ("/outcomes", "outcome_id", "score"),
            ("/contracts", "contract_id", "paid"),
        ),
        *(("/holds", "contract_id", "since"), ("/ledger", "account", "balance"), ("/reviews", "review", "")),
    ):
        lines = filled.admin.get(f"{path}?format=csv").text.splitlines()
        assert heading in lines[0], path
        assert filled.admin.get(f"{path}?format=xlsx").content[:2] == b"PK", path
        page = filled.admin.get(f"{path}?sort=-{column}" if column else path)
        assert page.status_code == 200, path


def test_only_the_operator_of_the_deployment_sees_its_tenants(filled: Filled) -> None:
    made, operators = filled.deployment, filled.deployment.service.settings.operator_tenant
    for tenant, status in ((operators, 200), (filled.tenant, 403)):
        one = Reader(made, cookie_of(sign_in(made, made.key(Role.ADMIN, tenant))))
        page = one.get("/tenants")
        assert page.status_code == status
        assert ('href="/tenants"' in one.get("/keys").text) == (status == 200)
        assert (filled.tenant in main_of(page.text)) == (status == 200)
    auditor = Reader(made, cookie_of(sign_in(made, made.key(Role.AUDITOR, operators))))
    assert auditor.get("/tenants").status_code == 403
    first = Reader(made, cookie_of(sign_in(made, made.key(Role.ADMIN, operators))))
    assert first.get("/tenants?format=csv").text.splitlines()[0] == "tenant,valid_keys,requests,bytes,last_outcome_at"


def test_times_are_in_the_zone_of_the_browser(filled: Filled) -> None:
    path = f"/usage/{filled.usage()}"
    cookie = f"{filled.auditor.cookie}; meruit_zone=Asia/Tokyo"
    assert "JST" in filled.auditor.get(path, headers={"cookie": cookie}).text
    assert "Times in UTC" in filled.auditor.get(path).text
    hostile = f"{filled.auditor.cookie}; meruit_zone=../../etc/passwd"
    assert "Times in UTC" in filled.auditor.get(path, headers={"cookie": hostile}).text
