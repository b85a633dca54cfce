"""A newcomer's first quarter of an hour: serve, verify, look at it, prove it, lock the door."""

import json
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from tests.e2e.serving import PATIENCE_S, SETTINGS, Json, check_receipt, environment, request, serving

from meruit.log.note import VerifierKey
from meruit.store.location import Location


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with settings where they are looked for by themselves."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "outcome-verification.yaml").write_text(SETTINGS)
    return tmp_path


def test_from_a_verdict_to_its_proof_and_a_locked_service(home: Path, meruit_at_hand: Path) -> None:
    def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [meruit_at_hand / "meruit", *arguments],
            cwd=home,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    # As without --data: the usual folder, below the one where the command was given.
    with serving(home, Location(Path("meruit-data")), settings=None) as life, life.client() as client:
        reply = client.post("/v1/verify", json=request("me", contract_id="contract-1")).raise_for_status().json()
        assert (reply["recorded"], reply["result"]["verdict"]) == (True, "pass")
        outcome = f"/v1/outcomes/{reply['outcome_id']}"
        assert client.get(outcome).raise_for_status().json()["verification_result"] == reply["result"]
        key = client.get("/v1/audit/key").raise_for_status().text
        check_receipt(client.get(f"{outcome}/receipt").raise_for_status().json(), VerifierKey.parse(key))
        bundle = client.get(f"{outcome}/bundle").raise_for_status()
        assert bundle.headers["content-disposition"] == f'attachment; filename="{reply["outcome_id"]}.zip"'
        (home / "bundle.zip").write_bytes(bundle.content)

        checked = command("audit", "verify", "bundle.zip")
        assert (checked.returncode, checked.stdout.count(" ok ")) == (0, 10), checked.stdout + checked.stderr
        assert checked.stderr.startswith("note: ")
        assert command("audit", "key").stdout.strip() == key

        listed = command("outcome", "list", "--json")
        (one,) = json.loads(listed.stdout)["outcomes"]
        assert (one["id"], one["contract_id"]) == (reply["outcome_id"], "contract-1")

        made = command("keys", "create", "me", "--role", "admin")
        assert made.returncode == 0
        _locked(client, made.stdout.strip())
        assert life.stop() == 0


def _locked(client: httpx.Client, key: str) -> None:
    """With the key as before; without it nothing, soon."""
    until = time.monotonic() + PATIENCE_S
    while (refused := client.post("/v1/verify", json=request("me"))).status_code == httpx.codes.OK:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert refused.status_code == httpx.codes.UNAUTHORIZED
    problem: Json = refused.json()
    assert "Authorization: Bearer" in problem["detail"]
    allowed = client.post("/v1/verify", json=request("me"), headers={"Authorization": f"Bearer {key}"})
    assert allowed.status_code == httpx.codes.OK
