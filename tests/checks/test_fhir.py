"""Resources of a FHIR store: which there must be, and what they must say."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from meruit.checks.fhir_types.cardinality import cardinality_error
from meruit.model.criterion import Assertion
from meruit.model.environment import Read, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import checks, faults_of

ORDER = {
    "resourceType": "MedicationRequest",
    "id": "m",
    "status": "active",
    "intent": "order",
    "subject": {"reference": "Patient/ann"},
    "medicationCodeableConcept": {"coding": [{"system": "urn:s", "code": "k"}]},
    "dosageInstruction": [{"doseAndRate": [{"doseQuantity": {"value": 40, "unit": "mEq"}}]}],
}
ASKED = {
    "resource": "MedicationRequest",
    "changed": "created",
    "count": 1,
    "fields": {
        "status": "active",
        "medication": {"coding": "urn:s|k"},
        "dosageInstruction.doseAndRate.dose": {"quantity": {"value": 40, "unit": "mEq"}},
    },
}


def found(resource: Mapping[str, Any], reads: Sequence[Read] = (), /, **asked: Any) -> Checked:
    name = "fhir-resource-state"
    run = checks.get(name).prepare(Assertion.model_validate({"assert": name, **ASKED, **asked}))
    key = f"{resource['resourceType']}/{resource['id']}"
    after = Snapshot(SourceKind.FHIR, [make_item(key, json.dumps(resource).encode(), version="1")], list(reads))
    finding = run(Work(input=as_work_part({"ehr": Snapshot(SourceKind.FHIR)}), output=as_work_part({"ehr": after})))
    assert isinstance(finding, Checked), finding
    return finding


def test_what_is_asked_is_found() -> None:
    assert found(ORDER).score == "1"
    assert found(ORDER, fields={"status": "active", "intent": "plan"}).score == "1/2"


@pytest.mark.parametrize(
    "hedged",
    [
        {"status": ["draft", "active", "stopped"]},
        {"subject": [{"reference": "Patient/ann"}, {"reference": "Patient/bob"}]},
        {"medicationReference": {"reference": "Medication/x"}},
        {"medicationCodeableConcept": [ORDER["medicationCodeableConcept"]]},
        {"dosageInstruction": [{"doseAndRate": [{"doseQuantity": {"value": 40}, "doseRange": {}}]}]},
    ],
)
def test_several_answers_where_there_is_one_place_are_none(hedged: dict[str, Any]) -> None:
    finding = found({**ORDER, **hedged})
    assert (finding.score, finding.fault) == ("0", Fault.AGENT)
    assert (finding.details or {})["unreadable"][0]["key"] == "MedicationRequest/m"


def test_lists_where_there_are_lists_are_fine() -> None:
    assert cardinality_error(ORDER) is None
    assert cardinality_error({"resourceType": "Account", "subject": [{}], "name": "x"}) is None
    assert cardinality_error({"resourceType": "Contract", "subject": [{}, {}]}) is None
    assert (
        cardinality_error({"resourceType": "Patient", "name": [{"given": ["Ann"]}], "deceasedBoolean": False}) is None
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Consent", "status"),
        ("CoverageEligibilityRequest", "status"),
        ("Invoice", "subject"),
        ("Account", "encounter"),
    ],
)
def test_where_r4_has_one_value_a_list_is_none(kind: str, name: str) -> None:
    said = str(cardinality_error({"resourceType": kind, name: ["a", "b"]}))
    assert said.startswith(f"{name} ")
    assert "list" in said


READ = [Read("https://ours.example/fhir/MedicationRequest?_count=200", 200)]


@pytest.mark.parametrize(
    ("reference", "reads", "score"),
    [
        ("Patient/ann", [], "1"),
        ("https://ours.example/fhir/Patient/ann", READ, "1"),
        ("https://ours.example/fhir/Patient/ann/_history/2", READ, "1"),
        ("https://ours.example/fhir/Patient/ann", [], "0"),
        ("http://elsewhere.example/Patient/ann", READ, "0"),
        ("https://ours.example/fhir/evil/Patient/ann", READ, "0"),
    ],
)
def test_a_reference_is_to_ours_where_it_is_relative_or_has_our_address(
    reference: str, reads: list[Read], score: str
) -> None:
    order = {**ORDER, "subject": {"reference": reference}}
    for asked in (
        {"fields": {"subject": {"ref": "Patient/ann"}}},
        {"fields": {}, "search": {"subject": "Patient/ann"}},
        {"fields": {}, "search": {"patient": "ann"}},
        {"fields": {}, "where": {"subject": {"ref": "Patient/ann"}}},
    ):
        finding = found(order, reads, **asked)
        assert finding.score == score
        # As it is written, whatever it means.
        assert not asked["fields"] or (finding.details or {})["fields"][0]["actual"] == {"reference": reference}
    before = Snapshot(
        SourceKind.FHIR, [make_item("MedicationRequest/m", json.dumps(order).encode(), version="1")], reads
    )
    name = "fhir-resource-state"
    let = {"s": {"resource": "MedicationRequest", "search": {"patient": "ann"}, "path": "status"}}
    reading = {"assert": name, "resource": "MedicationRequest", "let": let, "fields": {"status": "${s}"}}
    run = checks.get(name).prepare(Assertion.model_validate(reading))
    said = run(Work(input=as_work_part({"ehr": before}), output=as_work_part({"ehr": before})))
    assert isinstance(said, Checked if score == "1" else Missing)


def test_a_quantity_written_as_text_is_none() -> None:
    dose = [{"doseAndRate": [{"doseQuantity": {"value": "40", "unit": "mEq"}}]}]
    assert found({**ORDER, "dosageInstruction": dose}).score == "2/3"


def test_expressions_and_validity_are_asked_of_libraries() -> None:
    more = {"fhirpath": {"status = 'active'": True, "MedicationRequest.intent": "order"}, "valid": "r4"}
    assert found(ORDER, fields={}, **more).score == "1"
    assert found({**ORDER, "intent": "plan"}, fields={}, **more).score == "2/3"
    wrong = found({**ORDER, "intent": 5}, fields={}, valid="r4")
    assert (wrong.score, (wrong.details or {})["fields"][0]["path"]) == ("0", "valid")
    odd = found(ORDER, fields={}, fhirpath={"dosageInstruction.doseAndRate.dose.value + status": 1})
    assert (odd.details or {})["fields"][0]["why"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"resource": "Apointment"}, "'Appointment'"),
        ({"resource": "Patient", "search": {"nmae": "x"}}, "name"),
        ({"resource": "Patient", "fhirpath": {"status =": 1}}, "FHIRPath expression"),
        ({"resource": "Patient", "fhirpath": {" ": 1}}, "characters"),
        ({"resource": "Patient", "fields": {"a[": 1}}, "a["),
        ({"resource": "Patient", "valid": "r5"}, "r4"),
    ],
)
def test_an_invalid_assertion_is_refused_at_its_path(asked: dict[str, Any], words: str) -> None:
    faults = faults_of(Assertion.model_validate({"assert": "fhir-resource-state", **asked}))
    assert words in " ".join(f"{place} {why}" for place, why in faults)


def test_scalars_of_yaml_are_text_in_a_search() -> None:
    patient = {"resourceType": "Patient", "id": "1", "active": True}
    assert found(patient, resource="Patient", fields={}, search={"active": True, "_id": 1}).score == "1"
    assert found(patient, resource="Patient", fields={}, search={"_id": ["1"]}).score == "1"


WRONG_LETS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("fhir-resource-state", {"resource": "Patient"}, {"resource": "Nobody"}, "Nobody"),
    ("fhir-resource-state", {"resource": "Patient"}, {"resorce": "Patient"}, "resource"),
    ("fhir-resource-state", {"resource": "Patient"}, {}, "say which resource type"),
    ("fhir-resource-state", {"resource": "Patient"}, {"resource": "Patient", "search": {"nmae": "x"}}, "name"),
    ("fhir-resource-state", {"resource": "Patient"}, {"resource": "Patient", "where": {"a[": 1}}, "a["),
    ("fhir-resource-state", {"resource": "Patient"}, {"resource": "Patient", "where": {"a": {"eqals": 1}}}, "equals"),
    ("fhir-resource-state", {"resource": "Patient"}, {"resource": "Patient", "path": "a..b"}, "a..b"),
    ("fhir-resource-state", {"resource": "Patient"}, {"resource": "Patient", "pick": "latest a[", "path": "id"}, "a["),
    ("hl7-structural", {}, {"corelate_by": {"MSH-9.1": "ADT"}}, "correlate_by"),
    ("hl7-structural", {}, {"correlate_by": {"MSH-": "ADT"}}, "MSH-"),
    ("hl7-structural", {}, {"path": "PID--3"}, "PID--3"),
    ("x12-response", {}, {"set": "2710"}, "set"),
    ("x12-response", {}, {"set": "271", "where": {"ST.1": "271"}}, "twice"),
    ("x12-response", {}, {"path": "HL[/"}, "HL[/"),
    ("portal-state-match", {"correlate_by": {"resource": "r"}}, {"rows": "r"}, "correlate_by"),
    ("portal-state-match", {"correlate_by": {"resource": "r"}}, {"where": {"a[": 1}}, "a["),
    ("portal-state-match", {"correlate_by": {"resource": "r"}}, {"path": "a["}, "a["),
    ("sftp-file-present", {"path": "a"}, {"fiel": "a.json"}, "file"),
    ("sftp-file-present", {"path": "a"}, {"file": "a.json", "path": "a["}, "a["),
    ("sftp-file-present", {"path": "a"}, {"file": "a.*", "path": "["}, "as json"),
    ("sftp-file-present", {"path": "a"}, {"file": "../a.json"}, "'../a.json'"),
    ("voice-transcript", {}, {"speeker": "payer"}, "speaker"),
    ("voice-transcript", {}, {"path": "a["}, "a["),
    ("state-unchanged", {}, {"from": "ehr", "nothing": "like it"}, "no kind of source"),
    ("hl7-structural", {"from": "out"}, {"from": "ehr", "nothing": "like it"}, "no kind of source"),
]


@pytest.mark.parametrize(("check", "asked", "let", "words"), WRONG_LETS, ids=str)
def test_an_invalid_let_is_refused_at_its_path(
    check: str, asked: dict[str, Any], let: dict[str, Any], words: str
) -> None:
    ((place, why),) = faults_of(
        Assertion.model_validate(
            {"assert": check, **asked, "let": {"x": {"path": "id" if check[0] in "fp" else "PID-3", **let}}}
        )
    )
    assert place == ("let", "x")
    assert words in why


@pytest.mark.parametrize(
    ("check", "asked", "let"),
    [
        ("fhir-resource-state", {"resource": "Patient"}, {"resource": "${kind}", "path": "id"}),
        (
            "fhir-resource-state",
            {"resource": "Patient"},
            {"resource": "Patient", "search": {"birthdate": "${d}"}, "path": "id"},
        ),
        (
            "fhir-resource-state",
            {"resource": "Patient"},
            {"resource": "Patient", "where": {"id": "${d}"}, "path": "id"},
        ),
        ("fhir-resource-state", {"from": "ehr", "resource": "Patient"}, {"from": "out", "path": "PID-3.1"}),
        ("fhir-resource-state", {"resource": "Patient"}, {"from": "drop", "file": "a.*", "path": "CLM.1"}),
        ("hl7-structural", {}, {"correlate_by": {"MSH-9.1": "ADT"}, "pick": "latest MSH-7", "path": "PID-3[5=MR].1"}),
        ("x12-response", {}, {"set": "271", "path": "HL[22]/NM1[1=IL].9"}),
        ("sftp-file-present", {"path": "a"}, {"file": "in/a.json", "path": "members[].id"}),
        ("voice-transcript", {}, {"speaker": "payer", "path": "text"}),
        ("state-unchanged", {}, {"from": "ehr", "resource": "Patient", "path": "id"}),
    ],
    ids=str,
)
def test_a_let_that_may_be_meant_is_taken(check: str, asked: dict[str, Any], let: dict[str, Any]) -> None:
    assert not faults_of(Assertion.model_validate({"assert": check, **asked, "let": {"x": let}}))


def test_a_list_is_not_a_resource() -> None:
    finding = found(ORDER)
    assert finding.score == "1"
    name = "fhir-resource-state"
    run = checks.get(name).prepare(Assertion.model_validate({"assert": name, "resource": "Patient"}))
    after = Snapshot(SourceKind.FHIR, [make_item("Patient/1", b"[]", version="1")])
    said = run(Work(input=as_work_part({"ehr": Snapshot(SourceKind.FHIR)}), output=as_work_part({"ehr": after})))
    assert isinstance(said, Checked)
    assert "JSON object" in (said.details or {})["unreadable"][0]["why"]
