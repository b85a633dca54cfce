"""The audit log as anyone with a key sees it."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import CRITERIA, WORK, Deploy, Deployment, code_of

from meruit.api.routes.audit import TEXT
from meruit.api.witness_app import WitnessApp
from meruit.audit.cosigning import WitnessClient, request_cosignatures
from meruit.audit.follow import follow
from meruit.audit.known_witness import KnownWitness
from meruit.audit.log_sources import ServiceLog
from meruit.audit.verify.signatures import WitnessQuorum
from meruit.audit.witness import TrustedLog, Witness, open_witness_key
from meruit.errors import ProofUnavailable
from meruit.log.cosignature import cosignatures
from meruit.log.merkle import is_consistent
from meruit.log.note import VerifierKey, open_checkpoint
from meruit.model.access import Role
from meruit.sources.credentials import SecretToken
from meruit.sources.http import HttpClient


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


def test_a_checkpoint_is_read_with_its_cosignatures(deploy: Deploy, tmp_path: Path) -> None:
    """A reader follows a service over HTTP, and a witness has cosigned what it shows."""
    made = deploy()
    key = made.key(Role.AUDITOR)
    signer = open_witness_key(tmp_path / "w", None, lambda count: bytes([5] * count))
    witness = Witness(tmp_path / "w", signer, [TrustedLog.parse(made.store.signer.vkey)], lambda: 1_800_000_000)
    witness_app: Any = WitnessApp(witness)
    client = WitnessClient(HttpClient(transport=httpx.ASGITransport(app=witness_app)))
    known = KnownWitness("partner", "http://witness.example", witness.key)
    made.run(request_cosignatures(made.store, client, [known]))
    for path in ("/v1/audit/checkpoint", "/v1/audit/checkpoint?witnessed=true"):
        note = made.ask("GET", path, key=key).text
        assert len(cosignatures(note, [witness.key])) == 1
    http = HttpClient(transport=httpx.ASGITransport(app=made.app), token=SecretToken.from_value(key))
    source = ServiceLog("http://127.0.0.1", {}, http)
    quorum = WitnessQuorum((witness.key,), 1)
    look = partial(follow, source, tmp_path / "kept", "2026-01-01T00:00:00Z", quorum=quorum)
    assert made.run(look()).state == "first"
    made.ask("POST", "/v1/verify", key=made.key(Role.OPERATOR), json={**WORK, "criteria": CRITERIA})
    found = made.run(look())
    assert (found.state, found.witnessed < found.size) == ("extended", True)
    keyless = ServiceLog("http://127.0.0.1", {}, HttpClient(transport=httpx.ASGITransport(app=made.app)))
    with pytest.raises(ProofUnavailable):
        made.run(follow(keyless, tmp_path / "kept", "2026-01-01T00:00:00Z"))
    witness.close()
