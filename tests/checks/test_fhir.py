"""Resources of a FHIR store: which there must be, and what they must say."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from meruit.checks.fhir_shape import misshapen
from meruit.model.criterion import Assertion
from meruit.model.errors import AuthorError
from meruit.model.evidence import Checked, Fault
from meruit.model.work import Work
from meruit.model.world import Snapshot, SourceKind, in_work, item
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


def found(resource: Mapping[str, Any], /, **asked: Any) -> Checked:
    name = "fhir-resource-state"
    run = checks.get(name).prepare(Assertion.model_validate({"assert": name, **ASKED, **asked}))
    key = f"{resource['resourceType']}/{resource['id']}"
    after = Snapshot(SourceKind.FHIR, [item(key, json.dumps(resource).encode(), version="1")])
    finding = run(Work(input=in_work({"ehr": Snapshot(SourceKind.FHIR)}), output=in_work({"ehr": after})))
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
    assert misshapen(ORDER) is None
    assert misshapen({"resourceType": "Account", "subject": [{}], "name": "x"}) is None
    assert misshapen({"resourceType": "Patient", "name": [{"given": ["Ann"]}], "deceasedBoolean": False}) is None


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
        ({"resource": "Apointment"}, "did you mean 'Appointment'?"),
        ({"resource": "Patient", "search": {"nmae": "x"}}, "name"),
        ({"resource": "Patient", "fhirpath": {"status =": 1}}, "no FHIRPath expression"),
        ({"resource": "Patient", "fhirpath": {" ": 1}}, "characters"),
        ({"resource": "Patient", "fields": {"a[": 1}}, "a["),
        ({"resource": "Patient", "valid": "r5"}, "r4"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(asked: dict[str, Any], words: str) -> None:
    faults = faults_of(Assertion.model_validate({"assert": "fhir-resource-state", **asked}))
    assert words in " ".join(f"{place} {why}" for place, why in faults)


def test_scalars_of_yaml_are_text_in_a_search() -> None:
    patient = {"resourceType": "Patient", "id": "1", "active": True}
    assert found(patient, resource="Patient", fields={}, search={"active": True, "_id": 1}).score == "1"
    assert found(patient, resource="Patient", fields={}, search={"_id": ["1"]}).score == "1"


@pytest.mark.parametrize("selector", [{"resource": "Nobody"}, {"resorce": "Patient"}, {}])
def test_a_let_that_finds_nothing_by_its_selector_is_the_authors(selector: dict[str, Any]) -> None:
    reader = checks.get("fhir-resource-state").reader
    with pytest.raises(AuthorError):
        reader.narrow(selector)


def test_a_list_is_no_resource() -> None:
    finding = found(ORDER)
    assert finding.score == "1"
    name = "fhir-resource-state"
    run = checks.get(name).prepare(Assertion.model_validate({"assert": name, "resource": "Patient"}))
    after = Snapshot(SourceKind.FHIR, [item("Patient/1", b"[]", version="1")])
    said = run(Work(input=in_work({"ehr": Snapshot(SourceKind.FHIR)}), output=in_work({"ehr": after})))
    assert isinstance(said, Checked)
    assert "no resource" in (said.details or {})["unreadable"][0]["why"]
