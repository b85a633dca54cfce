"""Seeds: what a playground begins with, or everything that is wrong with what somebody wrote."""

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meruit.errors import DocumentError, MeruitError
from meruit.model.environment import SourceKind
from meruit.playground.seed import apply_seed, read_seed
from meruit.playground.state import PlaygroundState

YAML = """\
fhir:
  - chart.json
  - more.ndjson
  - {resourceType: Practitioner, id: rivera, identifier: [{value: "99"}], active: true}
rows:
  prior_auth:
    PA-1: {member: MEM88771, cpt: "72148", units: 2}
files:
  inbound/roster.csv: "a,b\\n1,2\\n"
  inbound/scan.pdf: {base64: JVBERi0=}
  inbound/claim.837: {file: claim.837}
hl7: ["MSH|^~\\\\&|A\\rPID|1"]
x12: [{file: claim.837}]
call:
  greeting: Northwind Health.
  script: [{hears: [approved], says: "Yes, 4471."}]
facts: {patient: Patient/aa, mrn: 483671}
"""


def _bundle(kind: str, *entries: dict[str, Any]) -> bytes:
    return json.dumps({"resourceType": "Bundle", "type": kind, "entry": list(entries)}).encode()


FILES = {
    "seed.yaml": YAML.encode(),
    "chart.json": _bundle(
        "transaction",
        {
            "fullUrl": "urn:uuid:aa",
            "resource": {"resourceType": "Patient", "meta": {"versionId": "8"}},
            "request": {"method": "POST", "url": "Patient"},
        },
        {
            "fullUrl": "urn:uuid:bb",
            "resource": {
                "resourceType": "Encounter",
                "id": "visit",
                "subject": {"reference": "urn:uuid:aa"},
                "participant": [
                    {"individual": {"reference": "Practitioner?identifier=99"}},
                    {"individual": {"reference": "Practitioner?identifier=nobody"}},
                    {"individual": {"reference": "Practitioner?shoe=nobody"}},
                ],
            },
            "request": {"method": "POST", "url": "Encounter"},
        },
    ),
    "more.ndjson": b'{"resourceType":"Observation","id":"k","subject":{"reference":"urn:uuid:aa"},"v":1.50}\n\n'
    b'{"resourceType":"Task","status":"draft"}\n',
    "search.json": _bundle(
        "searchset",
        {"fullUrl": "http://x.example/Patient/7", "resource": {"resourceType": "Patient", "id": "7"}},
        {"resource": {"resourceType": "OperationOutcome"}, "search": {"mode": "outcome"}},
    ),
    "collection.json": _bundle(
        "collection",
        {"resource": {"resourceType": "Task", "id": "t", "for": {"reference": "http://x.example/Patient/7"}}},
    ),
    "claim.837": b"ISA*00*\xff~",
    "bad.json": b'{"resourceType": "Patient",}',
    "bad.ndjson": b'{"resourceType": "Patient"}\nnonsense\n',
    "delete.json": _bundle("batch", {"request": {"method": "DELETE", "url": "Patient/1"}}),
    "entries.json": _bundle("batch", 7),  # type: ignore[arg-type] # on purpose
    "list.json": b"[]",
    "broken.yaml": b"fhir: [",
}


def read(name: str) -> bytes:
    if name not in FILES:
        raise FileNotFoundError(2, "No such file or directory", name)
    return FILES[name]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[PlaygroundState]:
    with closing(PlaygroundState.create(tmp_path / "state.db")) as made:
        yield made


def test_a_seed_brings_everything_it_says(state: PlaygroundState) -> None:
    apply_seed(state, read_seed("seed.yaml", read))
    world = state.snapshots()
    found = {one.key: json.loads(one.content()) for one in world["ehr"].items}
    assert len(found) == 5
    assert found["Patient/aa"]["id"] == "aa", "the id of what has none is its name in the bundle"
    assert found["Patient/aa"]["meta"]["versionId"] == "1"
    assert found["Encounter/visit"]["subject"] == {"reference": "Patient/aa"}
    assert [one["individual"]["reference"] for one in found["Encounter/visit"]["participant"]] == [
        "Practitioner/rivera",
        "Practitioner?identifier=nobody",
        "Practitioner?shoe=nobody",
    ]
    assert found["Observation/k"]["subject"] == {"reference": "Patient/aa"}, "files refer to each other"
    observation = state.get(SourceKind.FHIR, "Observation/k")
    assert observation is not None
    assert '"v":1.50' in (observation.body or "")
    assert {one.key: json.loads(one.content()) for one in world["portal"].items} == {
        "prior_auth/PA-1": {"member": "MEM88771", "cpt": "72148", "units": 2}
    }
    assert {one.key: one.content() for one in world["drop"].items} == {
        "inbound/roster.csv": b"a,b\n1,2\n",
        "inbound/scan.pdf": b"%PDF-",
        "inbound/claim.837": FILES["claim.837"],
    }
    assert [one.content() for one in world["outbound"].items] == [b"MSH|^~\\&|A\rPID|1"]
    assert [one.content() for one in world["clearinghouse"].items] == [FILES["claim.837"]]
    settings = state.settings()
    assert settings["facts"] == {"patient": "Patient/aa", "mrn": 483671}
    assert settings["call"]["greeting"] == "Northwind Health."


def test_the_same_seed_gives_the_same_content(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        with closing(PlaygroundState.create(tmp_path / name / "state.db")) as state:
            apply_seed(state, read_seed("seed.yaml", read))
            keys.append([item.key for snapshot in state.snapshots().values() for item in snapshot.items])
    assert keys[0] == keys[1]


def test_bundles_of_other_kinds_are_read_too(state: PlaygroundState) -> None:
    apply_seed(state, read_seed({"fhir": ["search.json", "collection.json"]}, read))
    found = {one.key: json.loads(one.content()) for one in state.items(SourceKind.FHIR)}
    assert found.keys() == {"Patient/7", "Task/t"}
    assert found["Task/t"]["for"] == {"reference": "Patient/7"}


def test_an_empty_seed_is_an_empty_playground(state: PlaygroundState) -> None:
    apply_seed(state, read_seed({"fhir": None}, read))
    assert state.events() == []


WRONG: list[tuple[Any, str, str]] = [
    ({"fhri": []}, "fhri", "'fhir'"),
    ({"fhir": {}}, "fhir", "list"),
    ({"fhir": ["none.json"]}, "fhir[0]", "none.json"),
    ({"fhir": ["bad.json"]}, "fhir[0]", "bad.json"),
    ({"fhir": ["bad.ndjson"]}, "fhir[0]", "bad.ndjson, line 2"),
    ({"fhir": ["delete.json"]}, "fhir[0]", "DELETE"),
    ({"fhir": ["entries.json"]}, "fhir[0]", "entries.json, entry 0"),
    ({"fhir": ["list.json"]}, "fhir[0]", "list.json"),
    ({"fhir": [7]}, "fhir[0]", "expected"),
    ({"fhir": [{"resourceType": "Patiens"}]}, "fhir[0]", "'Patient'"),
    ({"fhir": [{"resourceType": ["Patient"]}]}, "fhir[0]", "resourceType ['Patient']"),
    ({"fhir": [{"resourceType": "Patient", "id": "a_b"}]}, "fhir[0]", "id 'a_b'"),
    ({"fhir": [{"resourceType": "Patient", "meta": 7}]}, "fhir[0]", "meta"),
    ({"fhir": [{"resourceType": "Patient", "id": "1"}] * 2}, "fhir[1]", "Patient/1"),
    ({"rows": {"a/b": {"1": {}}}}, "rows.a/b.1", "/"),
    ({"rows": {"a": {"1": 7}}}, "rows.a.1", "mapping"),
    ({"files": {"../x": "y"}}, "files.../x", "'../x'"),
    ({"files": {"/x": "y"}}, "files./x", "'/x'"),
    ({"files": {"x": 7}}, "files.x", "base64"),
    ({"files": {"x": {"base64": "é"}}}, "files.x", "base64"),
    ({"hl7": ["MSH", {"file": "none.hl7"}]}, "hl7[1]", "none.hl7"),
    ({"fhir": [{"id": "1"}]}, "fhir[0]", "resourceType"),
    ({"fhir": [{"resourceType": "Bundle", "entry": [{}]}]}, "fhir[0]", "entry 0"),
    (
        {"rows": {"auth_rule": {"1": {"decision": "certifed"}}}},
        "rows.auth_rule.1.decision",
        "'certified'",
    ),
    ({"rows": {"auth_rule": {"1": {"decision": ["certified"]}}}}, "rows.auth_rule.1.decision", "certified"),
    ({"call": {"scrip": []}}, "call.scrip", "'script'"),
    ({"facts": []}, "facts", "mapping"),
]


@pytest.mark.parametrize(("written", "where", "value"), WRONG)
def test_each_problem_of_a_seed_has_its_path(written: Any, where: str, value: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_seed(written, read)
    (problem,) = caught.value.problems
    assert problem.where == where
    assert value in problem.message


def test_a_file_s_problems_have_lines_and_come_all_at_once() -> None:
    text = b"facts: 1\nrows:\n  a:\n    b: 7\nfiles:\n  x: [1]\n"
    with pytest.raises(DocumentError) as caught:
        read_seed("s.yaml", {"s.yaml": text}.__getitem__)
    assert [problem.line for problem in caught.value.problems] == [1, 4, 6]
    with pytest.raises(DocumentError, match=r"none\.yaml"):
        read_seed("none.yaml", read)
    with pytest.raises(DocumentError, match=r"broken.yaml"):
        read_seed("broken.yaml", read)
    with pytest.raises(DocumentError, match=r"list\.json"):
        read_seed("list.json", read)


def test_a_typo_in_a_script_has_its_line() -> None:
    text = b"call:\n  script:\n    - says: Yes.\n      heard: [approved]\n"
    with pytest.raises(DocumentError) as caught:
        read_seed("s.yaml", {"s.yaml": text}.__getitem__)
    (problem,) = caught.value.problems
    assert (problem.where, problem.line) == ("call.script[0].heard", 4)
    assert "'hears'" in problem.message


def test_rules_may_lack_a_decision_and_other_rows_are_free(state: PlaygroundState) -> None:
    rows = {"auth_rule": {"1": {"cpt": "1"}, "2": {"decision": None}}, "verdict": {"1": {"decision": "maybe"}}}
    apply_seed(state, read_seed({"rows": rows}, read))
    assert len(state.items(SourceKind.ROWS)) == 3


def test_a_file_that_is_not_there_is_named_once() -> None:
    def refuse(name: str) -> bytes:
        raise MeruitError(f"{name!r} cannot be read: there is no such file")

    with pytest.raises(DocumentError) as caught:
        read_seed({"fhir": ["none.ndjson"]}, refuse)
    (problem,) = caught.value.problems
    assert problem.message.startswith("'none.ndjson' ")
    assert problem.message.count("none.ndjson") == 1


def test_a_file_that_may_not_be_read_is_reported() -> None:
    def refuse(name: str) -> bytes:
        raise MeruitError("it leads out of the folder")

    with pytest.raises(DocumentError, match="leads out of the folder"):
        read_seed({"files": {"x": {"file": "../secret"}}}, refuse)


def test_a_file_of_resources_may_not_be_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.playground.seed.MAX_FHIR_FILE_BYTES", 10)
    with pytest.raises(DocumentError, match="at most 10 are read"):
        read_seed({"fhir": ["chart.json"]}, read)


def test_bytes_that_are_no_text_survive(state: PlaygroundState) -> None:
    content = bytes(range(256))
    apply_seed(state, read_seed({"files": {"x": {"base64": base64.b64encode(content).decode()}}}, read))
    assert state.items(SourceKind.FILES)[0].content() == content
