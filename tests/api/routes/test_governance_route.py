"""Governance for others: what is asked over HTTP, and a deployment that asks another before it pays."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, NamedTuple

import pytest
from tests.api.conftest import Deploy, Deployment
from tests.api.routes.test_contracts import awarded, completed, moved, settled_times, sound, told
from tests.api.test_auth import LONG

from meruit.api.routes.governance import MAX_AT_ONCE
from meruit.api.server import run
from meruit.config import GovernanceSettings, Settings
from meruit.governance.evaluate import govern
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.model.governance import Dossier, GovernanceResult, MetricFact
from meruit.model.kinds import MetricType
from meruit.registry import flags
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine

ROUTE = "/v1/governance/validate_outcome"
PATIENCE_S = 30.0
TOKEN = "MERUIT_TEST_GOVERNANCE_TOKEN"
PLAIN: dict[str, Any] = {"input": {"reference": LONG}, "success_criteria": None, "terms": {"cpc_rate": "0.05"}}


def asked(deployment: Deployment, key: str, context: Any = None, **more: Any) -> Any:
    body = {"contract_id": "c-1", "execution_context": context or {}, **more}
    reply = deployment.ask("POST", ROUTE, key=key, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def dossier(**known: Any) -> dict[str, Any]:
    return {"dossier": Dossier(**known).to_dict()}


def test_a_dossier_is_judged_by_every_rule(deployment: Deployment, admin: str) -> None:
    before = deployment.rows()
    clear = asked(deployment, admin, dossier(contract_id="c-1", canaries=2))
    assert (clear["valid"], clear["disposition"], clear["flags"]) == (True, "clear", [])
    leak = asked(deployment, admin, dossier(canaries=2, leaked=["0" * 64]))
    assert (leak["valid"], leak["disposition"], leak["flags"][0]["rule"]) == (False, "invalid", "canary_leak")
    copied = asked(deployment, admin, dossier(reference_similarity=1.0, output_chars=100))
    assert (copied["valid"], copied["disposition"], copied["flags"][0]["rule"]) == (True, "hold", "reference_copy")
    assert deployment.rows() == before


@pytest.mark.parametrize(
    ("context", "more", "rule"),
    [
        ({}, {"claimed_metrics": {"accuracy": 0.9}}, None),
        ({"measured_metrics": {"accuracy": 101}}, {}, "range_impossible"),
        ({"measured_metrics": {"accuracy": 0.6}, "claimed_metrics": {"accuracy": 0.95}}, {}, "claimed_vs_measured"),
        ({"duration_ms": -5}, {}, "range_impossible"),
        ({"duration_ms": 1000, "output_tokens": 50_000}, {}, "range_impossible"),
        ({"started_at": "2030-01-01T00:00:10Z", "ended_at": "2030-01-01T00:00:00Z"}, {}, "clock_order"),
        ({"started_at": 10, "ended_at": 0}, {}, "clock_order"),
        ({"started_at": "2030-01-01T00:00:10", "ended_at": "soon", "duration_ms": "fast", "agent_id": 5}, {}, None),
        ({"claimed_metrics": [], "measured_metrics": {"a": True, "b": None, "c": 10**399}}, {}, None),
    ],
)
def test_without_a_dossier_the_context_is_used(
    deployment: Deployment, admin: str, context: Any, more: Any, rule: str | None
) -> None:
    found = asked(deployment, admin, context, **more)
    assert [flag["rule"] for flag in found["flags"]] == ([] if rule is None else [rule])


@pytest.mark.parametrize("number", [0, -1, 1e15, -1e15, 5e-324, 10**15])
def test_no_number_is_too_much_for_the_rules(deployment: Deployment, admin: str, number: float) -> None:
    names = ("claimed_ms", "observed_ms", "output_tokens", "started_at", "ended_at", "received_at", "claimed_tokens")
    fact = MetricFact("accuracy", "c", float(number), MetricType.ACCURACY, met=True, margin=float(number))
    known: dict[str, Any] = {name: float(number) for name in names}
    found = asked(deployment, admin, dossier(**known, metrics=[fact], claims={"accuracy": 1.0}, provider_tokens=1.0))
    assert found["disposition"] in ("clear", "hold", "invalid")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "contract_id"),
        ({"contract_id": ""}, "contract_id"),
        ({"contract_id": "c", "claimed_metrics": []}, "claimed_metrics"),
        ({"contract_id": "c", "execution_context": 5}, "execution_context"),
        ({"contract_id": "c", "execution_context": {"dossier": 5}}, "execution_context.dossier"),
        (
            {"contract_id": "c", "execution_context": {"dossier": {"claims": {"a": "b"}}}},
            "execution_context.dossier.claims",
        ),
        ({"contract_id": "c", "execution_context": {"dossier": {"contract_id": "d"}}}, "dossier.contract_id"),
        ({"contract_id": "c", "unknown": 1}, "unknown field `unknown`"),
        ({"contract_id": "c", "execution_context": {"duration_ms": 1e308}}, "execution_context.duration_ms"),
        ({"contract_id": "c", "execution_context": {"agent_id": "a" * 201}}, "execution_context.agent_id"),
        ({"contract_id": "c", "execution_context": {"measured_metrics": {"m": 1e308}}}, "execution_context.metrics[0]"),
    ],
)
def test_an_invalid_question_is_refused_by_its_field(deployment: Deployment, admin: str, body: Any, said: str) -> None:
    reply = deployment.ask("POST", ROUTE, key=admin, json=body)
    assert (reply.status_code, said in reply.json()["detail"]) == (400, True), reply.text


PAST = "execution_context.dossier.history"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"history": {"dealings": {"pair": 10**399, "agent": 10**399}}}, f"{PAST}.dealings.pair"),
        ({"history": {"dealings": {"pair": 10**17, "pair_bonus": 10**17, "agent": 10**17}}}, f"{PAST}.dealings.pair"),
        ({"history": {"dealings": {"pair": -1, "agent": -1}}}, f"{PAST}.dealings.pair"),
        ({"history": {"dealings": {"pair": 20, "agent": -1}}}, f"{PAST}.dealings.agent"),
        ({"history": {"dealings": {"pair": 20, "agent": 19, "consumer": 20}}}, f"{PAST}.dealings.pair"),
        ({"history": {"near_duplicates": 10**399}}, f"{PAST}.near_duplicates"),
        ({"history": {"latency_mismatches": -(10**399)}}, f"{PAST}.latency_mismatches"),
        ({"history": {"margins": [0.1] * 61}}, f"{PAST}.margins"),
        ({"history": {"margins": [10**399]}}, f"{PAST}.margins"),
        ({"history": {"baselines": {"m": {"n": 10**399, "mean": 1, "deviation": 1}}}}, f"{PAST}.baselines"),
        ({"claimed_tokens": 1e308, "provider_tokens": -1e308}, "dossier.claimed_tokens"),
        ({"claimed_tokens": 10**399}, "dossier.claimed_tokens"),
        ({"claims": {f"m{n}": 1 for n in range(1001)}}, "dossier.claims"),
        ({"agent_id": "a" * 201}, "dossier.agent_id"),
        ({"output_chars": -1}, "dossier.output_chars"),
    ],
)
def test_what_no_outcome_has_is_refused_by_its_field(deployment: Deployment, admin: str, known: Any, said: str) -> None:
    body = {"contract_id": "c", "execution_context": {"dossier": {"agent_id": "a", "consumer_id": "c", **known}}}
    reply = deployment.ask("POST", ROUTE, key=admin, json=body)
    fields = [one["where"] for one in reply.json()["errors"]]
    assert (reply.status_code, any(said in one for one in fields)) == (400, True), reply.text


def test_the_number_of_listed_problems_is_limited(deployment: Deployment, admin: str) -> None:
    body = {"contract_id": "c", "execution_context": {"dossier": {"claims": {f"m{n}": 1e300 for n in range(1000)}}}}
    reply = deployment.ask("POST", ROUTE, key=admin, json=body)
    assert (reply.status_code, len(reply.json()["errors"])) == (400, 10)


def test_the_most_that_a_dossier_holds_is_judged_at_once(deployment: Deployment, admin: str) -> None:
    facts = [MetricFact("m", "c", 0.5 + n / 1e6, MetricType.ACCURACY) for n in range(1000)]
    claims = {"m": 0.9, **{f"m{n}": 0.5 for n in range(999)}}
    most = {"dealings": {"pair": 10**9, "agent": 10**9, "consumer": 10**9, "market": 10**9, "pair_bonus": 10**9}}
    most["dealings"] |= {"agent_bonus": 10**9, "consumer_bonus": 10**9, "market_bonus": 10**9}
    known = {**dossier(metrics=facts, claims=claims, agent_id="a", consumer_id="c")["dossier"], "history": most}
    started = time.monotonic()
    found = asked(deployment, admin, {"dossier": known})
    assert found["flags"][0]["rule"] == "claimed_vs_measured"
    assert time.monotonic() - started < 60


def test_governance_checks_have_their_own_threads(
    deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def judging(*args: Any) -> GovernanceResult:
        seen.append(threading.current_thread().name)
        return govern(*args)

    monkeypatch.setattr("meruit.api.routes.governance.govern", judging)
    for _ in range(5):
        asked(deployment, admin, {})
    assert len({*seen}) <= MAX_AT_ONCE
    assert all(name.startswith("governance") for name in seen)


def test_the_policy_is_the_services_own(deploy: Deploy) -> None:
    made = deploy(settings=Settings(governance=GovernanceSettings(off=("canary_leak",))))
    assert asked(made, made.key(Role.OPERATOR), dossier(canaries=2, leaked=["0" * 64]))["flags"] == []


def test_without_governance_the_route_is_refused(deploy: Deploy) -> None:
    made = deploy(settings=Settings.parse("verification: {governance_check: false}", "settings"))
    reply = made.ask("POST", ROUTE, key=made.key(Role.OPERATOR), json={"contract_id": "c"})
    assert told(reply) == (409, "governance_off")


@contextmanager
def served(deployment: Deployment) -> Iterator[str]:
    """A deployment behind a real socket; where it is."""
    ready: Queue[str] = Queue()
    stopping = deployment.service.stopping
    thread = threading.Thread(
        target=run, args=(deployment.app, "127.0.0.1", 0), kwargs={"ready": ready.put, "stopping": stopping}
    )
    thread.start()
    try:
        yield ready.get(timeout=PATIENCE_S)
    finally:
        stopping.begin()
        thread.join(PATIENCE_S)


@contextmanager
def answering(reply: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Somebody else's governance, that answers as it likes; where it is."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            try:
                reply(self)
            except OSError:
                """Whoever asked has left."""

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - what it overrides
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def asking(url: str, timeout_s: float = PATIENCE_S) -> Settings:
    """A deployment that has no rules of its own and asks another."""
    every = tuple(rule.name for rule in flags)
    known: dict[str, Any] = {"networks": ["127.0.0.0/8"], "timeout_s": timeout_s, "token_variable": TOKEN}
    return Settings(governance=GovernanceSettings(off=every, url=f"{url}{ROUTE}", **known))


class Remote(NamedTuple):
    """A deployment that others ask, and where it is."""

    deployment: Deployment
    url: str


@pytest.fixture(scope="module")
def remote(engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """One for all: a server takes a second to start, and governance remembers nothing of what it is asked."""
    made = Deployment(Location(tmp_path_factory.mktemp("remote") / "data"), engine, living=False)
    with served(made) as url:
        yield Remote(made, url)
    made.close()


@pytest.fixture
def pair(deploy: Deploy, remote: Remote, store_location: Location, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment that asks the other one over loopback."""
    monkeypatch.setenv(TOKEN, remote.deployment.key(Role.OPERATOR))
    return deploy(store_location, settings=asking(remote.url))


def test_what_the_other_finds_clear_is_settled(pair: Deployment) -> None:
    key = pair.key(Role.OPERATOR)
    contract = awarded(pair, key, **PLAIN)
    view = completed(pair, key, contract, {"text": "short"})
    assert (view["state"], view["outcome"]["governance"]) == ("settled", "clear")
    sound(pair, DEFAULT_TENANT)


def test_what_the_other_holds_is_held_and_once_released_settled_once(pair: Deployment) -> None:
    key = pair.key(Role.OPERATOR)
    contract = awarded(pair, key, **PLAIN)
    view = completed(pair, key, contract, {"text": LONG})
    assert (view["state"], view["outcome"]["governance_flags"]) == ("verification_pending", ["reference_copy"])
    released_once(pair, key, contract)


def test_what_the_other_rejects_is_not_paid(pair: Deployment) -> None:
    key = pair.key(Role.OPERATOR)
    contract = awarded(pair, key, **PLAIN)
    view = completed(pair, key, contract, {"text": "planted-one"})
    assert (view["state"], view["escrow"], view["outcome"]["governance"]) == (
        *("verification_pending", "held"),
        "invalid",
    )
    assert view["outcome"]["governance_flags"] == ["canary_leak"]
    assert settled_times(pair, contract) == 0
    sound(pair, DEFAULT_TENANT)


def test_without_a_governance_key_the_payment_is_held(
    deploy: Deploy, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, remote.deployment.key(Role.AGENT))
    held(deploy(settings=asking(remote.url)), "status 403")


def held(made: Deployment, why: str) -> None:
    """A completion is held because nobody answered, and settled once a person released it."""
    key = made.key(Role.OPERATOR)
    contract = awarded(made, key, **PLAIN)
    view = completed(made, key, contract, {"text": "short"})
    assert (view["state"], view["escrow"]) == ("verification_pending", "held")
    assert view["hold_reason"] == "governance review: governance_unavailable"
    assert (settled_times(made, contract), view["settlement"]) == (0, None)
    assert told(moved(made, key, contract, "settle")) == (409, "on_hold")
    kept = made.ask("GET", "/v1/holds", key=key).json()["contracts"]
    assert [one["id"] for one in kept] == [contract]
    with made.store.database.reading() as connection:
        (body,) = [row.body for row in connection.exec_driver_sql("select body from governance_checks")]
    assert why in bytes(body).decode()
    released_once(made, key, contract)


def released_once(made: Deployment, key: str, contract: str) -> None:
    for _ in range(3):
        reply = moved(made, key, contract, "release", {"reason": "looked at it"})
        assert (reply.status_code, reply.json()["state"]) == (200, "settled")
    assert settled_times(made, contract) == 1
    sound(made, DEFAULT_TENANT)


def test_governance_that_is_down_holds(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "whatever")
    # Nobody listens on the port of a server that has ended.
    with answering(lambda _: None) as url:
        pass
    held(deploy(settings=asking(url)), "")


def test_governance_that_is_slow_holds(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "whatever")

    def late(asked: BaseHTTPRequestHandler) -> None:
        time.sleep(1)
        said(b'{"valid": true, "flags": []}')(asked)

    with answering(late) as url:
        held(deploy(settings=asking(url, timeout_s=0.2)), "")


def said(body: bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def reply(asked: BaseHTTPRequestHandler) -> None:
        asked.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            asked.send_header(name, value)
        asked.end_headers()
        asked.wfile.write(body)

    return reply


GARBAGE: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "no JSON": said(b"all is well"),
    "empty": said(b""),
    "another type": said(b'{"valid": "yes", "flags": []}'),
    "no answer in it": said(b"{}"),
    "a list": said(b"[true]"),
    "failed": said(b'{"valid": true, "flags": []}', 500),
    "elsewhere": said(b"", 302, Location="http://127.0.0.1:9/"),
    "endless": said(b'{"valid": true, "flags": ["' + b"x" * 100_000 + b'"]}'),
    "unknown disposition": said(b'{"valid": true, "flags": [], "disposition": "fine"}'),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_an_answer_that_cannot_be_read_holds(deploy: Deploy, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv(TOKEN, "whatever")
    with answering(GARBAGE[what]) as url:
        held(deploy(settings=asking(url)), "governance")


def test_an_answer_as_the_specification_has_it_is_enough(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "whatever")
    with answering(said(b'{"valid": false, "flags": ["too_good"]}')) as url:
        made = deploy(settings=asking(url))
        key = made.key(Role.OPERATOR)
        view = completed(made, key, awarded(made, key, **PLAIN), {"text": "short"})
    assert (view["outcome"]["governance"], view["outcome"]["governance_flags"]) == ("invalid", ["too_good"])


@pytest.mark.parametrize("disposition", [b"null", b'"clear"'])
def test_a_flag_that_holds_is_not_talked_away(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, disposition: bytes
) -> None:
    monkeypatch.setenv(TOKEN, "whatever")
    flags_said = b'[{"rule": "odd\\u202e", "version": "1", "action": "hold"}]'
    with answering(said(b'{"valid": true, "disposition": %s, "flags": %s}' % (disposition, flags_said))) as url:
        made = deploy(settings=asking(url))
        key = made.key(Role.OPERATOR)
        view = completed(made, key, awarded(made, key, **PLAIN), {"text": "short"})
    assert (view["state"], view["outcome"]["governance_flags"]) == ("verification_pending", ["odd\\u202e"])
