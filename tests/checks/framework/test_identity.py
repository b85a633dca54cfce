"""Whose an item is decides whether it is the one that was asked for."""

import json
from typing import Any

import pytest
from tests.checks.questions import judged

from meruit.checks.framework.assertion import as_rule
from meruit.checks.framework.identity import fhir_identity, hl7_identity, row_identity, x12_identity
from meruit.checks.matching.matchers import Dialect
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.model.verdict import CriterionResult
from meruit.model.work import Work
from meruit.verify.engine import VerificationEngine

# Any, here and below: an assertion as an author writes it.
CHARTED: dict[str, Any] = {
    "name": "charted",
    "assert": "fhir-resource-state",
    "resource": "Observation",
    "changed": "created",
    "count": 1,
    "fields": {
        "status": "final",
        "code": {"coding": "http://loinc.org|85354-9"},
        "subject": {"ref": "Patient/ann"},
        "effective": {"around": {"value": "2026-03-03T09:00:00-06:00", "by": "5m"}},
        "component.0.value": {"quantity": {"value": 118, "unit": "mmHg"}},
        "component.1.value": {"quantity": {"value": 76, "unit": "mmHg"}},
        "performer": {"ref": "Practitioner/rivera"},
    },
}
UNTOUCHED = {"name": "nothing else", "assert": "state-unchanged"}


# Any: a FHIR resource.
def pressure(**other: Any) -> dict[str, Any]:
    measured = [{"value": {}, "valueQuantity": {"value": value, "unit": "mmHg"}} for value in (118, 76)]
    for one in measured:
        del one["value"]
    return {
        "resourceType": "Observation",
        "id": "bp",
        "status": "final",
        "code": {"coding": [{"system": "http://loinc.org", "code": "85354-9"}]},
        "subject": {"reference": "Patient/ann"},
        "effectiveDateTime": "2026-03-03T09:00:00-06:00",
        "performer": [{"reference": "Practitioner/rivera"}],
        "component": measured,
        **other,
    }


def work(*written: dict[str, Any]) -> Work:
    items = [
        make_item(f"{one['resourceType']}/{one['id']}{number}", json.dumps(one).encode())
        for number, one in enumerate(written)
    ]
    was, now = {"ehr": Snapshot(SourceKind.FHIR)}, {"ehr": Snapshot(SourceKind.FHIR, items)}
    return Work(input=as_work_part(was), output=as_work_part(now))


def results(*written: dict[str, Any], **other: Any) -> list[CriterionResult]:
    return judged([CHARTED | other, UNTOUCHED], work(*written))


def test_another_patients_chart_is_not_the_one_asked_for() -> None:
    charted, untouched = results(pressure(subject={"reference": "Patient/bob"}))
    assert (charted.score, untouched.score) == (0, 0)
    details = charted.details or {}
    assert "Observation/bp0" in details["why"]
    assert "Patient/bob" in details["why"]
    assert [one["path"] for one in details["fields"] if not one["passed"]] == ["subject"]
    assert [one["key"] for one in (untouched.details or {})["collateral"]] == ["Observation/bp0"]


def test_a_wrong_value_in_the_right_chart_is_not_collateral() -> None:
    charted, untouched = results(pressure(status="preliminary"))
    assert charted.score == pytest.approx(6 / 7)
    assert untouched.score == 1


def test_a_second_chart_beside_the_right_one_is_collateral() -> None:
    charted, untouched = results(pressure(), pressure(subject={"reference": "Patient/bob"}))
    assert charted.score == 1
    assert [one["key"] for one in (untouched.details or {})["collateral"]] == ["Observation/bp1"]


def test_with_all_an_item_of_another_fails_and_is_collateral() -> None:
    charted, untouched = results(pressure(), pressure(subject={"reference": "Patient/bob"}), match="all", count=2)
    assert charted.score == pytest.approx(1 / 2)
    assert untouched.score == 0


def test_an_author_may_say_what_identifies() -> None:
    plain = CHARTED["fields"] | {"subject": {"ref": "Patient/ann", "identity": False}}
    charted, untouched = results(pressure(subject={"reference": "Patient/bob"}), fields=plain)
    assert charted.score == pytest.approx(6 / 7)
    assert untouched.score == 1
    marked = CHARTED["fields"] | {"status": {"equals": "final", "identity": True}}
    assert results(pressure(status="preliminary"), fields=marked)[0].score == 0


def test_hidden_evidence_does_not_name_the_other_patient() -> None:
    charted, _ = results(pressure(subject={"reference": "Patient/bob"}), evidence="hash")
    assert "bob" not in json.dumps(charted.details)


@pytest.mark.parametrize(
    ("resource", "path", "asked", "paths"),
    [
        ("Observation", "subject", {"ref": "Patient/1"}, ["subject"]),
        ("Observation", "subject.reference", "Patient/1", ["subject.reference"]),
        ("Coverage", "beneficiary.identifier.value", "M1", ["beneficiary.identifier.value"]),
        ("Task", "for", {"ref": "Patient/1"}, ["for"]),
        ("Appointment", "participant.actor", {"ref": "Patient/1"}, ["participant.actor"]),
        ("Appointment", "participant.actor.reference", {"set": ["Patient/1", "Practitioner/2"]}, 1),
        ("Appointment", "participant.actor", {"ref": "Practitioner/2"}, []),
        ("Appointment", "participant.0.actor.display", "Dr. Rivera", []),
        ("Observation", "subject", {"not": {"ref": "Patient/1"}}, []),
        ("Observation", "subject", "exists", []),
        ("Patient", "identifier.value", "483671", ["identifier.value"]),
        ("Observation", "identifier.value", "483671", []),
        ("Slot", "id", "s1", ["id"]),
        ("Observation", "status", "final", []),
    ],
)
def test_which_fields_of_a_resource_say_whose_it_is(resource: str, path: str, asked: Any, paths: Any) -> None:
    found = fhir_identity(resource, path, as_rule(asked, Dialect.JSON))
    assert [one for one, _ in found] == ([path] if paths == 1 else paths)


@pytest.mark.parametrize(
    ("derive", "path", "is_whose"),
    [
        (hl7_identity, "PID-3.1", True),
        (hl7_identity, "PID-3[5=MR].1", True),
        (hl7_identity, "PID[1]-18", True),
        (hl7_identity, "MRG-1.1", True),
        (hl7_identity, "PID-30", False),
        (hl7_identity, "PID-5.1", False),
        (hl7_identity, "OBX-3.1", False),
        (x12_identity, "HL[22]/NM1[1=IL].9", True),
        (x12_identity, "NM1[1=QC].9", True),
        (x12_identity, "HL[23]/NM1.9", True),
        (x12_identity, "REF[1=0F].2", True),
        (x12_identity, "CLM.1", True),
        (x12_identity, "NM1[1=PR].9", False),
        (x12_identity, "CLM.2", False),
        (x12_identity, "HL[23]/EB[1=1].1", False),
        (row_identity, "member", True),
        (row_identity, "patient_id", True),
        (row_identity, "patient.mrn", True),
        (row_identity, "member.id", True),
        (row_identity, "id", True),
        (row_identity, "provider.id", False),
        (row_identity, "documents[].patient", False),
        (row_identity, "cpt", False),
    ],
)
def test_which_fields_of_messages_and_rows_say_whose_they_are(derive: Any, path: str, is_whose: bool) -> None:
    assert bool(derive(path, as_rule("1", Dialect.TEXT))) is is_whose
    assert not derive(path, as_rule({"none": "1"}, Dialect.TEXT))


GUARDS = [
    {"assert": "state-unchanged"},
    {"assert": "voice-transcript", "forbidden": ["you have"]},
    {"assert": "fhir-resource-state", "resource": "Appointment", "count": {"max": 1}},
    {"assert": "fhir-resource-state", "resource": "Appointment", "changed": "created", "count": 0},
    {"assert": "fhir-resource-state", "resource": "Appointment", "changed": "none"},
]
ASKING = [
    {"assert": "voice-transcript", "forbidden": ["you have"], "contains": ["hello"]},
    {"assert": "fhir-resource-state", "resource": "Appointment", "count": {"max": 1}, "fields": {"status": "booked"}},
    {"assert": "fhir-resource-state", "resource": "Appointment"},
]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_gates_and_weighs_nothing_unless_written(guard: dict[str, Any]) -> None:
    criteria = {"criteria": [CHARTED, guard, guard | {"weight": 1, "required": False}]}
    prepared = VerificationEngine().compile(criteria).plan.rules
    assert [(one.criterion.weight, one.criterion.required) for one in prepared[1:]] == [(0, True), (1, False)]
    from meruit.model.criterion import SuccessCriteria, criteria_digest

    first = SuccessCriteria.model_validate(criteria)
    again = SuccessCriteria.model_validate(first.model_dump(exclude_defaults=True, by_alias=True))
    assert again == first
    assert criteria_digest(again) == criteria_digest(first)


@pytest.mark.parametrize("asking", ASKING)
def test_what_asks_for_something_weighs_one(asking: dict[str, Any]) -> None:
    (only,) = VerificationEngine().compile({"criteria": [asking]}).plan.rules
    assert (only.criterion.weight, only.criterion.required) == (1, None)


@pytest.mark.parametrize("guard", GUARDS)
def test_guards_alone_have_a_weight(guard: dict[str, Any]) -> None:
    (only,) = VerificationEngine().compile({"criteria": [guard]}).plan.rules
    assert (only.criterion.weight, only.criterion.required) == (1, True)
