"""What was decided, found again, compared, and proved to a stranger."""

import csv
import io
from base64 import b64decode
from typing import Any

import pytest
from openpyxl import load_workbook
from tests.api.conftest import CRITERIA, ROUGE, WORK, Deployment, code_of
from tests.api.test_auth import rescored

from meruit.audit.findings import AuditStepState
from meruit.audit.verify import outcome as recheck
from meruit.documents.xlsx_table import XLSX
from meruit.errors import AuditStep
from meruit.log.entries import VerdictEntry, read_entry
from meruit.log.merkle import is_included, leaf_hash
from meruit.log.note import VerifierKey, open_checkpoint
from meruit.model.access import Role
from meruit.outcomes.store import erase as erasing
from meruit.store import log as audit_log

BAD = {"input": {"reference": "the cat sat"}, "output": {"text": "dogs run"}}


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def judged(deployment: Deployment, key: str, **more: Any) -> str:
    """A new outcome's id."""
    reply = deployment.ask("POST", "/v1/verify", key=key, json={**WORK, "criteria": CRITERIA, **more})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["outcome_id"])


def listed(deployment: Deployment, key: str, **params: Any) -> list[str]:
    reply = deployment.ask("GET", "/v1/outcomes", key=key, params=params)
    assert reply.status_code == 200, reply.text
    return [one["id"] for one in reply.json()["outcomes"]]


def test_outcomes_are_narrowed_by_several_things_at_once(either: Deployment, key: str) -> None:
    good = judged(either, key, contract_id="c-1", agent_id="a-1")
    bad = judged(either, key, contract_id="c-1", agent_id="a-2", **BAD)
    other = judged(either, key, criteria={"criteria": [{**ROUGE, "threshold": 0.25}]})
    assert listed(either, key) == [other, bad, good]
    assert listed(either, key, contract_id="c-1") == [bad, good]
    assert listed(either, key, agent_id="a-1") == [good]
    assert listed(either, key, verdict="fail") == [bad]
    assert listed(either, key, contract_id="nothing") == []
    digest = either.ask("GET", f"/v1/outcomes/{other}", key=key).json()["criteria_digest"]
    assert listed(either, key, criteria_digest=digest) == [other]
    assert listed(either, key, contract_id="c-1", verdict="fail") == [bad]
    assert listed(either, key, agent_id="a-1", verdict="fail") == []
    assert listed(either, key, contract_id="c-1", since="2020-01-01T00:00:00Z") == [bad, good]
    assert listed(either, key, contract_id="c-1", until="2020-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("verdict", "passed", "pass, partial, fail, inconclusive, error"),
        ("format", "ods", "json, csv, xlsx"),
        ("since", "yesterday", "2026-01-31T00:00:00Z"),
    ],
)
def test_unknown_values_are_refused_with_what_is_allowed(
    either: Deployment, key: str, name: str, value: str, allowed: str
) -> None:
    reply = either.ask("GET", "/v1/outcomes", key=key, params={name: value})
    assert (reply.status_code, allowed in reply.text) == (400, True), reply.text


def test_a_span_may_not_end_before_it_begins(either: Deployment, key: str) -> None:
    span = {"since": "2026-02-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
    reply = either.ask("GET", "/v1/outcomes", key=key, params=span)
    assert (reply.status_code, code_of(reply), reply.json()["errors"][0]["where"]) == (400, "invalid", "since")


@pytest.mark.parametrize("by", ["parameter", "header"])
def test_a_spreadsheet_gets_a_list_as_csv(either: Deployment, key: str, by: str) -> None:
    made = [judged(either, key, agent_id="=1+1") for _ in range(3)]
    asked: dict[str, Any] = {"params": {"limit": 2}, "headers": {"Accept": "text/csv, */*;q=0.1"}}
    if by == "parameter":
        asked = {"params": {"limit": 2, "format": "csv"}}
    reply = either.ask("GET", "/v1/outcomes", key=key, **asked)
    assert reply.headers["content-type"].startswith("text/csv; charset=utf-8")
    rows = [*csv.DictReader(io.StringIO(reply.text, newline=""))]
    assert [row["outcome_id"] for row in rows] == made[:0:-1]
    assert {row["agent_id"] for row in rows} == {"'=1+1"}
    path = reply.headers["link"].partition(">")[0].removeprefix("<")
    rest = either.ask("GET", path, key=key, headers=asked.get("headers"))
    assert [row["outcome_id"] for row in csv.DictReader(io.StringIO(rest.text, newline=""))] == made[:1]
    assert "link" not in rest.headers


@pytest.mark.parametrize("by", ["parameter", "header"])
def test_a_spreadsheet_gets_a_list_as_xlsx(either: Deployment, key: str, by: str) -> None:
    made = [judged(either, key, agent_id="=1+1") for _ in range(3)]
    asked: dict[str, Any] = {"params": {"limit": 2}, "headers": {"Accept": f"{XLSX}, text/csv;q=0.1"}}
    if by == "parameter":
        asked = {"params": {"limit": 2, "format": "xlsx"}}
    reply = either.ask("GET", "/v1/outcomes", key=key, **asked)
    assert (reply.headers["content-type"], reply.headers["vary"]) == (XLSX, "Accept")
    assert reply.headers["content-disposition"] == 'attachment; filename="outcomes.xlsx"'
    headings, *rows = load_workbook(io.BytesIO(reply.content)).worksheets[0].iter_rows()
    agents = [cell.value for cell in headings].index("agent_id")
    assert [row[0].value for row in rows] == made[:0:-1]
    assert [(row[agents].data_type, row[agents].value) for row in rows] == [("s", "=1+1")] * 2
    assert "link" in reply.headers


@pytest.mark.parametrize("count", [0, 4, 5])
def test_pages_hold_every_outcome_once(either: Deployment, key: str, count: int) -> None:
    made = [judged(either, key, agent_id="robot") for _ in range(count)]
    found, place = list[str](), dict[str, Any]()
    for _ in range(count + 1):
        page = either.ask("GET", "/v1/outcomes", key=key, params={"limit": 2, **place}).json()
        found += [one["id"] for one in page["outcomes"]]
        if page["next"] is None:
            break
        place = {"before": page["next"]}
    assert found == made[::-1]


def test_an_agent_pages_through_its_own(either: Deployment, tenant: str, key: str) -> None:
    own = [judged(either, key, agent_id=agent) for agent in ("robot", "other", "robot")][::2]
    agent = either.key(Role.AGENT, tenant)
    page = either.ask("GET", "/v1/outcomes", key=agent, params={"limit": 1}).json()
    assert [one["id"] for one in page["outcomes"]] == own[1:]
    page = either.ask("GET", "/v1/outcomes", key=agent, params={"limit": 1, "before": page["next"]}).json()
    assert [one["id"] for one in page["outcomes"]] == own[:1]


def test_every_version_stays_and_the_latest_is_shown(either: Deployment, tenant: str, key: str) -> None:
    outcome = judged(either, key, criteria={"criteria": [{**ROUGE, "threshold": 0.9, "id": "strict"}]}, **BAD)
    rescored(either, tenant, outcome, "a mistake of ours")
    path = f"/v1/outcomes/{outcome}"
    latest = either.ask("GET", path, key=key).json()
    assert (latest["version"], latest["reason"]) == (2, "a mistake of ours")
    first = either.ask("GET", path, key=key, params={"version": 1}).json()
    assert (first["version"], first["verification_result"]["verdict"]) == (1, "fail")
    assert first["success_criteria"]["criteria"][0]["id"] == "strict"
    assert either.ask("GET", path, key=key, params={"version": 3}).status_code == 404
    versions = either.ask("GET", f"{path}/versions", key=key).json()["versions"]
    assert [(one["version"], one["verdict"]) for one in versions] == [(1, "fail"), (2, "pass")]
    assert versions[0]["result"] == first["verification_result"]
    found = either.ask("GET", f"{path}/diff", key=key).json()
    assert (found["before"]["verdict"], found["after"]["verdict"]) == ("fail", "pass")
    assert {one["criterion_id"]: one["kind"] for one in found["criteria"]} == {"strict": "removed", "rougeL": "added"}
    turned = either.ask("GET", f"{path}/diff", key=key, params={"from": 2, "to": 1}).json()
    assert (turned["before"], turned["after"]) == (found["after"], found["before"])
    same = either.ask("GET", f"{path}/diff", key=key, params={"to": 1}).json()
    assert (same["changes"], same["criteria"]) == ([], [])
    assert either.ask("GET", f"{path}/diff", key=key, params={"from": 1, "to": 9}).status_code == 404


def test_what_was_erased_is_gone_and_said_to_be(either: Deployment, tenant: str, key: str) -> None:
    outcome = judged(either, key)
    erasing.erase(either.store, tenant, outcome, "the person asked")
    path = f"/v1/outcomes/{outcome}"
    found = either.ask("GET", path, key=key).json()
    assert (found["work_input"], found["work_output"], found["verification_result"]) == (None, None, None)
    assert found["billing_impact"]["bonus"] is None
    difference = either.ask("GET", f"{path}/diff", key=key)
    assert (difference.status_code, code_of(difference)) == (410, "erased")
    assert either.ask("GET", f"{path}/versions", key=key).json()["versions"][0]["result"] is None
    bundle = either.ask("GET", f"{path}/bundle", key=key)
    assert recheck.verify_bundle(bundle.content).failed is None


def test_a_receipt_proves_the_verdict(either: Deployment, tenant: str, key: str) -> None:
    outcome = judged(either, key, contract_id="c-1")
    rescored(either, tenant, outcome, "again")
    vkey = either.ask("GET", "/v1/audit/key", key=key).text
    for version, params in ((1, {"version": 1}), (2, {"version": 2}), (2, {})):
        receipt = either.ask("GET", f"/v1/outcomes/{outcome}/receipt", key=key, params=params).json()
        assert (receipt["outcome"], receipt["version"], receipt["vkey"]) == (outcome, version, vkey)
        signed = open_checkpoint(receipt["checkpoint"], VerifierKey.parse(vkey))
        body = b64decode(receipt["entry"])
        proof = [b64decode(part) for part in receipt["proof"]]
        assert is_included(leaf_hash(body), receipt["index"], signed.size, proof, signed.root)
        assert not is_included(leaf_hash(body + b" "), receipt["index"], signed.size, proof, signed.root)
        entry = read_entry(body)
        assert isinstance(entry, VerdictEntry)
        assert (entry.outcome, entry.version, entry.contract) == (outcome, version, "c-1")
    assert either.ask("GET", f"/v1/outcomes/{outcome}/receipt", key=key, params={"version": 3}).status_code == 404


def test_a_bundle_verifies(either: Deployment, tenant: str, key: str) -> None:
    outcome = judged(either, key)
    reply = either.ask("GET", f"/v1/outcomes/{outcome}/bundle", key=key)
    assert reply.headers["content-type"] == "application/zip"
    assert reply.headers["content-disposition"] == f'attachment; filename="{outcome}.zip"'
    signer = VerifierKey.parse(either.ask("GET", "/v1/audit/key", key=key).text)
    found = recheck.verify_bundle(reply.content, key=signer)
    assert (found.outcome, found.failed) == (outcome, None)
    # No witness was asked for, and it had no contract, so nothing was paid.
    skipped = [step.step for step in found.steps if step.state is AuditStepState.SKIPPED]
    assert skipped == [AuditStep.WITNESSES, AuditStep.SETTLEMENT]
    assert {step.state for step in found.steps} == {AuditStepState.OK, AuditStepState.SKIPPED}
    broken = recheck.verify_bundle(reply.content[:-40] + bytes(40), key=signer)
    assert broken.failed is not None


def test_too_many_entries_for_a_bundle_are_refused(
    either: Deployment, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_WINDOW", 4)
    asked = {**WORK, "criteria": CRITERIA, "contract_id": "deal-7"}
    ids = [either.ask("POST", "/v1/verify", key=key, json=asked).json()["outcome_id"] for _ in range(3)]
    reply = either.ask("GET", f"/v1/outcomes/{ids[0]}/bundle", key=key)
    assert (reply.status_code, code_of(reply)) == (409, "too_many_entries")
