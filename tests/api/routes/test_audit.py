"""The audit log as anyone with a key sees it."""

import pytest
from tests.api.conftest import CRITERIA, WORK, Deployment, code_of

from meruit.api.routes.audit import TEXT
from meruit.log.merkle import is_consistent
from meruit.log.note import VerifierKey, open_checkpoint
from meruit.model.access import Role


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def test_the_log_is_signed_and_only_grows(either: Deployment, key: str) -> None:
    signer = either.ask("GET", "/v1/audit/key", key=key)
    verifier = VerifierKey.parse(signer.text)
    body = {**WORK, "criteria": CRITERIA}
    either.ask("POST", "/v1/verify", key=key, json=body)
    reply = either.ask("GET", "/v1/audit/checkpoint", key=key)
    assert {signer.headers["content-type"], reply.headers["content-type"]} == {f"{TEXT}; charset=utf-8"}
    old = open_checkpoint(reply.text, verifier)
    either.ask("POST", "/v1/verify", key=key, json=body)
    new = open_checkpoint(either.ask("GET", "/v1/audit/checkpoint", key=key).text, verifier)
    assert new.size > old.size
    found = either.ask("GET", "/v1/audit/consistency", key=key, params={"old": old.size, "new": new.size}).json()
    proof = [bytes.fromhex(part) for part in found["proof"]]
    assert (found["old"], found["new"]) == (old.size, new.size)
    assert is_consistent(old.size, new.size, proof, old.root, new.root)
    assert not is_consistent(old.size, new.size, proof, new.root, old.root)


def test_an_agent_may_watch_the_log(either: Deployment, tenant: str) -> None:
    agent = either.key(Role.AGENT, tenant)
    for path in ("/v1/audit/key", "/v1/audit/checkpoint", "/v1/audit/consistency?old=0&new=1"):
        assert either.ask("GET", path, key=agent).status_code == 200


@pytest.mark.parametrize(("old", "new"), [(2, 1), (0, 10**9), (10**9, 10**9)])
def test_an_invalid_range_has_no_proof(either: Deployment, key: str, old: int, new: int) -> None:
    reply = either.ask("GET", "/v1/audit/consistency", key=key, params={"old": old, "new": new})
    assert (reply.status_code, code_of(reply)) == (400, "bad_range")
