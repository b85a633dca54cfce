"""curl, as a person at a terminal uses it, against the systems of a playground."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from meruit.playground.host import Host
from meruit.playground.seed import read_seed

CURL = shutil.which("curl")
SEED = {"fhir": [{"resourceType": "Patient", "id": "ann", "active": True}], "call": {"greeting": "Acme."}}
INACTIVE = '{"resourceType": "Patient", "id": "ann", "active": false}'
ELIGIBILITY = (
    "ISA*00*          *00*          *ZZ*CLINIC         *ZZ*PAYER          *260303*1200*^*00501*000000001*0*P*:~"
    "GS*HS*CLINIC*PAYER*20260303*1200*1*X*005010X279A1~ST*270*0001*005010X279A1~SE*2*0001~GE*1*1~IEA*1*000000001~"
)


@pytest.mark.skipif(CURL is None, reason="needs curl")
def test_curl_reaches_charts_clearinghouse_and_telephone(tmp_path: Path) -> None:
    async def run() -> list[tuple[str, str]]:
        async with Host(tmp_path) as host:
            await host.serve_http()
            made = await host.create(read_seed(SEED, lambda _name: b""))
            ends, bearer = made.endpoints, f"Authorization: Bearer {made.secret}"
            asked = [
                [f"{ends.fhir}/Patient/ann"],
                ["-H", bearer, f"{ends.fhir}/Patient/ann"],
                [
                    "-H",
                    bearer,
                    "-H",
                    "Content-Type: application/fhir+json",
                    "-X",
                    "PUT",
                    "-d",
                    INACTIVE,
                    f"{ends.fhir}/Patient/ann",
                ],
                ["-H", bearer, "--data-binary", ELIGIBILITY, str(ends.x12)],
                ["-H", bearer, "-H", "Content-Type: application/json", "-d", '{"text": "hello"}', f"{ends.call}/turns"],
                ["-H", bearer, str(ends.events)],
            ]
            return [await asyncio.to_thread(curl, one) for one in asked]

    refused, read, changed, answered, said, events = asyncio.run(run())
    assert [one[0] for one in (refused, read, changed, answered, said, events)] == [
        "401",
        "200",
        "200",
        "200",
        "201",
        "200",
    ]
    assert (json.loads(read[1])["active"], json.loads(changed[1])["active"]) == (True, False)
    assert answered[1].startswith("ISA*")
    kinds = [one["type"] for one in json.loads(events[1])["events"]]
    assert "fhir_update" in kinds


def curl(arguments: list[str]) -> tuple[str, str]:
    """The status and the body of a reply."""
    done = subprocess.run(
        [str(CURL), "-sS", "--noproxy", "*", "-w", "\n%{http_code}", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    body, _, status = done.stdout.rpartition("\n")
    return status, body
