"""Requests made to break us: each is refused, soon, and leaves nothing behind."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.api.conftest import CRITERIA, ROUGE, WORK, Deploy, Deployment, code_of

from meruit.app import build_engine
from meruit.config import Settings
from meruit.model.access import Role
from meruit.verify.engine import VerificationEngine

JSON = {"Content-Type": "application/json"}
MAX_REPLY_BYTES = 64 * 1024
"""No refusal is longer, however much it is about."""
MAX_S = 30.0
"""How long any of it may take on a machine that is busy."""
MEGABYTE = 1024 * 1024

BODIES: dict[str, dict[str, Any]] = {
    "/v1/verify": {
        **WORK,
        "criteria": CRITERIA,
        "metadata": {"duration_ms": 5},
        "contract_id": "c",
        "agent_id": "a",
        "consumer_id": "b",
        "domain": "d",
        "record": True,
    },
    "/v1/verify/batch": {"criteria": CRITERIA, "items": [WORK], "record": True},
    "/v1/criteria": {"name": "name", "criteria": CRITERIA},
    "/v1/criteria/validate": {"criteria": CRITERIA},
    "/v1/keys": {"name": "key", "role": "agent", "agent_id": "a", "expires_in_days": 3},
    "/v1/webhooks": {"url": "https://127.0.0.1/", "types": ["outcome.recorded"]},
}
"""What each route takes; the webhook's address is never taken."""

VALUES: dict[str, bytes] = {
    "not a number": b"NaN",
    "infinity": b"Infinity",
    "minus infinity": b"-Infinity",
    "beyond doubles": b"1e999",
    "far below": b"-1e999",
    "a long integer": b"9" * 401,
    "a very long integer": b"9" * 100_000,
    "half a pair": b'"\\ud800"',
    "halves in the wrong order": b'"\\udc00\\ud800"',
    "half a pair as bytes": b'"\xed\xa0\x80"',
    "not UTF-8": b'"\xff\xfe"',
    "overlong UTF-8": b'"\xc0\x80"',
    "cut off UTF-8": b'"\xe2\x82"',
    "a key twice": b'{"a": 1, "a": 2}',
    "a key twice in escapes": b'{"a": 1, "\\u0061": 2}',
    "deep lists": b"[" * 65 + b"]" * 65,
    "very deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "never closed": b"[" * 100_000,
    "a line break in a text": b'"a\nb"',
    "a leading zero": b"01",
    "a bare point": b"1.",
    "a plus": b"+1",
    "hexadecimal": b"0x10",
    "single quotes": b"'a'",
    "a trailing comma": b"[1,]",
    "a comment": b"/* 1 */ 1",
    "nothing": b"",
}

WHOLE: dict[str, tuple[bytes, dict[str, str]]] = {
    "empty": (b"", JSON),
    "spaces": (b" \n\t ", JSON),
    "null": (b"null", JSON),
    "a list": (b"[]", JSON),
    "a text": (b'""', JSON),
    "a number": (b"5", JSON),
    "true": (b"true", JSON),
    "no members": (b"{}", JSON),
    "two documents": (b"{}{}", JSON),
    "zeros": (b"\x00" * 1_000, JSON),
    "a byte order mark": (b"\xef\xbb\xbf{}", JSON),
    "UTF-16": ("{}".encode("utf-16"), JSON),
    "UTF-16 without a mark": ("{}".encode("utf-16-le"), JSON),
    "UTF-32": ("{}".encode("utf-32"), JSON),
    "latin-1": ('{"é": "ü"}'.encode("latin-1"), JSON),
    "said to be latin-1": (b"{}", {"Content-Type": "application/json; charset=latin-1"}),
    "said to be text": (b"{}", {"Content-Type": "text/plain"}),
    "a form": (b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}),
    "parts": (b"--x\r\n\r\n--x--", {"Content-Type": "multipart/form-data; boundary=x"}),
    "msgpack": (b"\x80", {"Content-Type": "application/x-msgpack"}),
    "of no type": (b"{}", {"Content-Type": ""}),
    "of odd type": (b"{}", {"Content-Type": "application/json; charset=\x80\xff"}),
    "compressed, as it says": (b"\x1f\x8b\x08\x00", {**JSON, "Content-Encoding": "gzip"}),
}


class Attacked:
    """A service, a key of it, and how much was in it before."""

    def __init__(self, deployment: Deployment, tenant: str, role: Role = Role.ADMIN) -> None:
        self.deployment = deployment
        self.key = deployment.key(role, tenant)
        self.before = deployment.rows()

    def post(self, path: str, content: Any, headers: Any = None) -> httpx.Response:
        """What is answered within its time."""
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        begun = time.monotonic()
        reply = self.deployment.ask(
            "POST", path, key=self.key, content=sent, headers=JSON if headers is None else headers
        )
        assert time.monotonic() - begun < MAX_S
        return reply

    def refused(self, reply: httpx.Response) -> None:
        """It was the caller's fault, in few words, and nothing was kept."""
        assert 400 <= reply.status_code < 500, reply.text[:1_000]
        assert reply.headers["content-type"] == "application/problem+json"
        assert len(reply.content) <= MAX_REPLY_BYTES
        self.unharmed()

    def unharmed(self) -> None:
        assert self.deployment.rows() == self.before


@pytest.fixture
def attacked(either: Deployment, tenant: str) -> Attacked:
    return Attacked(either, tenant)


@pytest.fixture
def attacked_alone(deployment: Deployment, tenant: str) -> Attacked:
    """For what is refused before any database is asked: which one that would be makes no difference."""
    return Attacked(deployment, tenant)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_json_that_two_readers_could_read_differently_is_refused(attacked: Attacked, value: bytes) -> None:
    places = {
        "/v1/verify": b'{"criteria": "x", "output": {"x": %s}}',
        "/v1/verify/batch": b'{"criteria": "x", "items": [{"output": {}, "input": {"x": [%s]}}]}',
        "/v1/criteria": b'{"name": "x", "criteria": {"criteria": %s}}',
        "/v1/criteria/validate": b'{"criteria": {"criteria": [], "x": %s}, "y": 1}',
        "/v1/keys": b'{"name": "x", "role": "auditor", "x": %s}',
        "/v1/webhooks": b'{"url": "https://127.0.0.1/", "types": %s}',
    }
    assert places.keys() == BODIES.keys()
    for path, place in places.items():
        attacked.refused(attacked.post(path, place % value))


@pytest.mark.parametrize(("content", "headers"), WHOLE.values(), ids=WHOLE)
def test_a_body_that_is_not_an_object_is_refused(attacked: Attacked, content: bytes, headers: dict[str, str]) -> None:
    for path in BODIES:
        reply = attacked.post(path, content, {name: value.encode("latin-1") for name, value in headers.items()})
        attacked.refused(reply)
        assert reply.status_code in (400, 415)


@pytest.mark.parametrize("path", BODIES)
def test_a_wrong_type_anywhere_is_refused_by_name(attacked: Attacked, path: str) -> None:
    wrong: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "\0", [], [[]], {}, {"": None}, "x" * 100_000]
    whole = BODIES[path]
    refused = 0
    for field in whole:
        for value in wrong:
            before = attacked.deployment.rows()
            reply = attacked.post(path, {**whole, field: value})
            assert reply.status_code < 500, (field, value)
            if reply.status_code >= 400:
                refused += 1
                assert attacked.deployment.rows() == before, (field, value)
                assert len(reply.content) <= MAX_REPLY_BYTES
        without = {name: value for name, value in whole.items() if name != field}
        assert attacked.post(path, without).status_code < 500
    assert refused >= len(whole) * 3


@pytest.mark.parametrize("path", BODIES)
def test_a_body_of_100_megabytes_is_not_read(attacked: Attacked, path: str) -> None:
    announced = {**JSON, "Content-Length": str(100 * MEGABYTE)}
    reply = attacked.post(path, b"{}", announced)
    attacked.refused(reply)
    assert reply.status_code == 413
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b" " * MEGABYTE

    deployment = attacked.deployment
    reply = deployment.ask("POST", path, key=attacked.key, content=endless(), headers=JSON)
    attacked.refused(reply)
    assert reply.status_code == 413
    limit = (
        deployment.service.settings.max_evidence_bytes
        if "verify" in path
        else deployment.service.settings.max_body_bytes
    )
    assert sent <= limit // MEGABYTE + 2


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "", "9" * 30, "\xff"])
def test_an_odd_content_length_is_not_an_internal_error(attacked: Attacked, length: str) -> None:
    reply = attacked.post("/v1/verify", b"{}", {**JSON, "Content-Length": length.encode("latin-1")})
    attacked.refused(reply)


def schema_criteria(schema: Any) -> dict[str, Any]:
    one = {"metric": "matches_schema", "metric_type": "matches_schema", "comparison": "eq", "threshold": 1}
    return {"criteria": [{**one, "params": {"schema": schema}}]}


def pattern_criteria(pattern: str) -> dict[str, Any]:
    one = {"metric": "matches_pattern", "metric_type": "contains", "comparison": "contains_all"}
    return {"criteria": [{**one, "threshold": [pattern]}]}


MANY = 10_000
REFUSED_CRITERIA: dict[str, Any] = {
    "a reference to the web": schema_criteria({"$ref": "http://127.0.0.1:9/schema.json"}),
    "a reference to a file": schema_criteria({"$ref": "file:///etc/passwd"}),
    "a reference to a relative file": schema_criteria({"$id": "file:///etc/", "$ref": "passwd"}),
    "a dialect on the web": schema_criteria({"$schema": "http://127.0.0.1:9/dialect"}),
    "10,000 references": schema_criteria({"anyOf": [{"$ref": "#/$defs/a"}] * MANY, "$defs": {"a": {"type": "object"}}}),
    "a chain of 10,000 references": schema_criteria(
        {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{(n + 1) % MANY}"} for n in range(MANY)}}
    ),
    "references that double": schema_criteria(
        {
            "$ref": "#/$defs/0",
            "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)} | {"60": {}},
        }
    ),
    "a pattern that repeats repeats": pattern_criteria("((a{100}){100}){100}"),
    "a pattern that looks back": pattern_criteria(r"(a)\1"),
    "a pattern of 100,000 characters": pattern_criteria("(" * 50_000 + ")" * 50_000),
    "a pattern that is none": pattern_criteria("("),
    "a schema's pattern that repeats repeats": schema_criteria({"pattern": "((a{1000}){1000}){1000}"}),
    "no criteria": {"criteria": []},
    "10,000 criteria": {"criteria": [ROUGE] * MANY},
    "10,000 keywords are too many criteria's worth": {"criteria": [{"metric": "x" * 1_000}] * 1_000},
    "an unknown metric of a megabyte": {"criteria": [{**ROUGE, "metric": "x" * 900_000}]},
    "an unknown field of a megabyte": {"criteria": [{**ROUGE, "x" * 900_000: 1}]},
    "a threshold that is infinite": {"criteria": [{**ROUGE, "threshold": "Infinity"}]},
    "a threshold of many digits": {"criteria": [{**ROUGE, "threshold": "1e999999999"}]},
    "a weight of many digits": {"criteria": [{**ROUGE, "weight": "1e-999999999"}]},
    "an expression without end": {"criteria": [{**ROUGE, "metric": None, "expr": "1 + " * 5_000 + "1"}]},
    "code that is none": {
        "criteria": [{**ROUGE, "metric": "odd"}],
        "custom_metrics": [{"metrics": ["odd"], "code": ""}],
    },
    "code in a file": {
        "criteria": [{**ROUGE, "metric": "odd"}],
        "custom_metrics": [{"metrics": ["odd"], "code_file": "/etc/passwd"}],
    },
    "two ids alike": {"criteria": [{**ROUGE, "id": "same"}, {**ROUGE, "id": "same"}]},
}


@pytest.mark.parametrize("criteria", REFUSED_CRITERIA.values(), ids=REFUSED_CRITERIA)
def test_criteria_made_to_cost_much_are_refused(attacked_alone: Attacked, criteria: Any) -> None:
    attacked_alone.refused(attacked_alone.post("/v1/criteria", {"name": "hostile", "criteria": criteria}))
    attacked_alone.refused(attacked_alone.post("/v1/verify", {**WORK, "criteria": criteria}))
    attacked_alone.refused(attacked_alone.post("/v1/verify/batch", {"items": [WORK], "criteria": criteria}))
    reply = attacked_alone.post("/v1/criteria/validate", {"criteria": criteria})
    if reply.status_code == 200:
        assert not reply.json()["valid"]
        assert reply.json()["problems"]
        assert len(reply.content) <= MAX_REPLY_BYTES
    else:
        attacked_alone.refused(reply)
    attacked_alone.unharmed()


@pytest.mark.parametrize(
    "expr", ["import os", "(" * 2_000 + "1" + ")" * 2_000, "[1].map(x, y)"], ids=["code", "deep", "unknown"]
)
def test_an_expression_that_cannot_run_is_refused(attacked: Attacked, expr: str) -> None:
    criteria = {"criteria": [{**ROUGE, "metric": "odd", "expr": expr}]}
    attacked.refused(attacked.post("/v1/criteria", {"name": "hostile", "criteria": criteria}))
    reply = attacked.post("/v1/verify", {**WORK, "criteria": criteria, "record": False})
    attacked.refused(reply)
    attacked.unharmed()


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_of_a_megabyte_is_refused(attacked_alone: Attacked, path: str) -> None:
    reply = attacked_alone.post(path, {**BODIES[path], "x" * 1_000_000: 1})
    assert 400 <= reply.status_code < 500
    attacked_alone.unharmed()


@pytest.mark.parametrize(
    "criteria",
    [
        pattern_criteria("(a+)+$"),
        pattern_criteria("(a|aa)+$"),
        pattern_criteria("(.*a){12}$"),
        schema_criteria({"properties": {"text": {"pattern": "^(a+)+$"}}}),
        schema_criteria({"properties": {"text": {"pattern": "^(a|a?)+$"}}}),
    ],
)
def test_a_pattern_that_takes_others_for_ever_is_soon_done(attacked: Attacked, criteria: Any) -> None:
    work = {"output": {"text": "a" * 50_000 + "!"}, "criteria": criteria, "record": False}
    reply = attacked.post("/v1/verify", work)
    assert reply.status_code in (200, 400)
    attacked.unharmed()


BOMBS = {
    "loops": "while True: pass",
    "forks": "import os\n    while True: os.fork()",
    "allocates": "x = [0]\n    while True: x = x + x",
    "recurses": "return metric(input, output, metadata)",
    "a large power": "return {'bomb': 10 ** 10 ** 10}",
    "a long text": "return {'bomb': len('a' * 10 ** 12)}",
    "opens a file": "return {'bomb': len(open('/etc/passwd').read())}",
    "exits": "raise SystemExit(0)",
    "answers a text": "return 'bomb'",
    "answers no number": "return {'bomb': float('nan')}",
}


@pytest.fixture(scope="module")
def impatient() -> tuple[VerificationEngine, Settings]:
    limits = "{timeout_ms: 300, memory_limit_mb: 64}"
    settings = Settings.parse(f"extractors: {{custom: {{class: CustomExtractor, sandbox: {limits}}}}}", "impatient")
    return build_engine(settings), settings


def test_code_made_to_break_out_ends_within_its_limits(
    deploy: Deploy, impatient: tuple[VerificationEngine, Settings]
) -> None:
    made = deploy(using=impatient[0], settings=impatient[1])
    attacked = Attacked(made, "tenant")
    for name, line in BOMBS.items():
        code = f"def metric(input, output, metadata):\n    {line}\n"
        one = {"metric": "bomb", "metric_type": "numeric", "comparison": "gte", "threshold": 0}
        criteria = {"criteria": [one], "custom_metrics": [{"metrics": ["bomb"], "code": code}]}
        checked = attacked.post("/v1/criteria/validate", {"criteria": criteria})
        assert checked.status_code == 200, name
        judged = attacked.post("/v1/verify", {"output": {}, "criteria": criteria, "record": False})
        if judged.status_code == 200:
            assert judged.json()["result"]["success"] is False, name
            assert judged.json()["result"]["criterion_results"][0]["status"] == "indeterminate", name
        else:
            attacked.refused(judged)
        attacked.unharmed()
    work = {**WORK, "criteria": {"criteria": [{**ROUGE, "metric": "x", "expr": "1.0"}]}, "record": False}
    assert attacked.post("/v1/verify", work).json()["result"]["success"] is True


LABELS = {
    "/v1/verify": ("contract_id", "agent_id", "consumer_id", "domain"),
    "/v1/criteria": ("name",),
    "/v1/keys": ("name", "agent_id"),
    "/v1/webhooks": ("url",),
}
ODD_LABELS = ["\0", "a\0b", "a\nb", "a\n", "\x7f", "\x85", "\u2028", "", "x" * 201, "x" * MEGABYTE]


@pytest.mark.parametrize("label", ODD_LABELS, ids=lambda label: repr(label[:5]))
def test_labels_that_could_not_be_shown_are_refused(attacked: Attacked, label: str) -> None:
    for path, fields in LABELS.items():
        for field in fields:
            attacked.refused(attacked.post(path, {**BODIES[path], field: label}))
    for field in LABELS["/v1/verify"]:
        item = {**WORK, field: label}
        attacked.refused(attacked.post("/v1/verify/batch", {"criteria": CRITERIA, "items": [WORK, item]}))


@pytest.mark.parametrize(
    "label", ["é", "日本", "😀", "a b", "../../etc/passwd", "a'; drop table outcomes; --", "%00", "\\u0000"]
)
def test_labels_in_any_script_are_kept_as_they_are(attacked: Attacked, label: str) -> None:
    reply = attacked.post("/v1/verify", {**BODIES["/v1/verify"], "contract_id": label, "agent_id": label})
    found = attacked.deployment.ask("GET", "/v1/outcomes", key=attacked.key, params={"contract_id": label}).json()
    (one,) = found["outcomes"]
    assert (one["id"], one["contract_id"], one["agent_id"]) == (reply.json()["outcome_id"], label, label)
    receipt = attacked.deployment.ask("GET", f"/v1/outcomes/{one['id']}/receipt", key=attacked.key)
    assert receipt.status_code == 200


def test_any_text_may_stand_inside_the_work(attacked: Attacked) -> None:
    odd = {
        "\0": "\0",
        "a\0b": ["\0", "\x1f\x7f\u2028\ufffe\U0010ffff"],
        "": "",
        "\\u0000": 10**300,
        "k" * MEGABYTE: 0.1,
    }
    work = {"input": odd, "output": {**odd, "text": "\0"}, "metadata": odd}
    named = [{**ROUGE, "id": "i\0d", "name": "n\0", "axis": "x\0"}]
    reply = attacked.post("/v1/verify", {**work, "criteria": {"criteria": named}})
    assert reply.status_code == 200
    path = f"/v1/outcomes/{reply.json()['outcome_id']}"
    found = attacked.deployment.ask("GET", path, key=attacked.key).json()
    assert [found[part] for part in ("work_input", "work_output", "execution_metadata")] == list(work.values())
    assert found["success_criteria"]["criteria"][0]["id"] == "i\0d"
    assert attacked.deployment.ask("GET", f"{path}/bundle", key=attacked.key).status_code == 200
    assert attacked.deployment.ask("GET", f"{path}/versions", key=attacked.key).status_code == 200


QUERIES = [
    ("/v1/outcomes", "limit=0"),
    ("/v1/outcomes", "limit=501"),
    ("/v1/outcomes", "limit=99999999999999999999"),
    ("/v1/outcomes", "limit=1.5"),
    ("/v1/outcomes", "limit=%00"),
    ("/v1/outcomes", "before=0"),
    ("/v1/outcomes", f"before={2**53 + 1}"),
    ("/v1/outcomes", "contract_id=%00"),
    ("/v1/outcomes", "contract_id=a%00b"),
    ("/v1/outcomes", "agent_id="),
    ("/v1/outcomes", f"agent_id={'x' * 60_000}"),
    ("/v1/outcomes", "verdict=perfect"),
    ("/v1/outcomes", "criteria_digest=%00"),
    ("/v1/outcomes/out_%00", ""),
    ("/v1/outcomes/..%2f..%2fetc%2fpasswd", ""),
    (f"/v1/outcomes/out_{'0' * 34}", "version=0"),
    (f"/v1/outcomes/out_{'0' * 34}", f"version={2**31}"),
    (f"/v1/outcomes/out_{'0' * 34}", ""),
    (f"/v1/outcomes/out_{'0' * 34}/diff", "from=99999999999&to=x"),
    (f"/v1/outcomes/out_{'0' * 34}/diff", "from=1&to=2"),
    (f"/v1/outcomes/out_{'0' * 34}/bundle", ""),
    (f"/v1/outcomes/out_{'0' * 34}/receipt", ""),
    (f"/v1/outcomes/out_{'0' * 34}/versions", ""),
    ("/v1/criteria", "after=%00"),
    ("/v1/criteria", "after=a%0a"),
    ("/v1/outcomes", "contract_id=a%0a"),
    ("/v1/outcomes", f"criteria_digest={'0' * 64}%0a"),
    ("/v1/criteria/a%0a", ""),
    ("/v1/criteria", "after=.."),
    ("/v1/criteria/a%00", ""),
    ("/v1/criteria/%ff", ""),
    (f"/v1/criteria/{'x' * 101}", ""),
    ("/v1/criteria/nothing", ""),
    ("/v1/criteria/nothing/versions", ""),
    ("/v1/criteria/nothing/versions/0", ""),
    ("/v1/criteria/nothing/versions/1", ""),
    ("/v1/criteria/nothing/versions/99999999999999999999", ""),
    ("/v1/criteria/nothing/versions/-1", ""),
    ("/v1/keys", "after=mk_%00"),
    ("/v1/keys", "limit=x"),
    ("/v1/webhooks", "after=%00"),
    ("/v1/webhooks/whk_0/dead", ""),
    (f"/v1/webhooks/whk_{'0' * 34}/dead", ""),
    (f"/v1/webhooks/whk_{'0' * 34}/dead", f"after={2**64}"),
    ("/v1/audit/consistency", ""),
    ("/v1/audit/consistency", "old=-1&new=1"),
    ("/v1/audit/consistency", "old=2&new=1"),
    ("/v1/audit/consistency", f"old=0&new={2**53}"),
    ("/v1/audit/consistency", "old=%00&new=1"),
    ("/v1/events", "types=nothing"),
    ("/v1/events", "types=%00"),
    ("/v1/events", f"types={'x,' * 1_000}"),
    ("/v1/events", f"after={2**64}"),
    ("/v1/events", "after=-1"),
    ("/nothing", ""),
    ("/v1/outcomes/" + "a/" * 1_000, ""),
]


@pytest.mark.parametrize(("path", "query"), QUERIES)
def test_odd_paths_and_queries_are_refused(attacked: Attacked, path: str, query: str) -> None:
    url = f"http://127.0.0.1{path}?{query}"
    attacked.refused(attacked.deployment.ask("GET", url, key=attacked.key))


@pytest.mark.parametrize(
    "key", [b"", b" ", b"a b", b"\xff", b"a\tb", "schlüssel".encode(), b"x" * 201, b"\x7f", b"\x00"]
)
@pytest.mark.parametrize("path", ["/v1/verify", "/v1/verify/batch", "/v1/criteria"])
def test_an_odd_idempotency_key_is_refused(attacked: Attacked, path: str, key: bytes) -> None:
    reply = attacked.post(path, BODIES[path], {**JSON, "Idempotency-Key": key})
    attacked.refused(reply)
    assert code_of(reply) == "bad_idempotency_key"


ODD_HEADERS: list[dict[str, bytes]] = [
    {"X-Request-Id": b"\xff\x00\n"},
    {"X-Request-Id": b"x" * 10_000},
    {"Accept": b"\xff"},
    {"Accept-Language": b"\x80" * 1_000},
    {"Cookie": b"\xff=\xfe; ;;;=;a"},
    {"Host": b"\xff\xff"},
    {"Content-Type": b"application/json;;;=\xff"},
    {"Range": b"bytes=-1"},
    {"If-None-Match": b"*"},
    {"Transfer-Encoding": b"gzip"},
    {"X-Forwarded-For": b"127.0.0.1"},
    {"Expect": b"100-continue"},
    {"Last-Event-ID": b"\xff"},
]


@pytest.mark.parametrize("odd", ODD_HEADERS, ids=str)
def test_odd_headers_are_no_failure_of_ours(attacked: Attacked, odd: dict[str, bytes]) -> None:
    for method, path in (("GET", "/v1/outcomes"), ("GET", "/health"), ("POST", "/v1/verify")):
        reply = attacked.deployment.ask(method, path, key=attacked.key, headers=odd)
        assert reply.status_code < 500
    attacked.unharmed()
    assert (
        attacked.deployment.ask("GET", "/v1/events", key=attacked.key, headers={"Last-Event-ID": "-1"}).status_code
        == 400
    )
