"""A path that no resource of its type can have is refused, with the nearest name."""

from typing import Any

import pytest

from meruit.checks.fhir_types.r4_elements import path_error
from meruit.model.criterion import Assertion
from meruit.registry import faults_of


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("Patient", "birthDate"),
        ("Patient", "deceased"),
        ("Patient", "deceasedBoolean"),
        ("Patient", "name.0.given"),
        ("Patient", "telecom[system=phone].value"),
        ("Patient", "id"),
        ("Patient", "meta.versionId"),
        ("Patient", "extension.value.anything"),
        ("Observation", "value.value"),
        ("Observation", "component.value.unit"),
        ("Appointment", "participant.actor.reference"),
        ("MedicationRequest", "dosageInstruction.doseAndRate.dose"),
        ("MedicationRequest", "medication.coding.code"),
        ("Unlisted", "anything"),
    ],
)
def test_paths_of_r4_are_accepted(resource: str, path: str) -> None:
    assert path_error(resource, path) is None


@pytest.mark.parametrize(
    ("resource", "path", "nearest"),
    [
        ("Patient", "decesed", "deceased"),
        ("Patient", "birthdate", "birthDate"),
        ("Patient", "name.givn", "given"),
        ("Observation", "componnent.value", "component"),
        ("Appointment", "participant.acter", "actor"),
        ("Patient", "birthDate.year", ""),
    ],
)
def test_misspelled_paths_are_refused_with_the_nearest_name(resource: str, path: str, nearest: str) -> None:
    why = path_error(resource, path)
    assert why is not None
    assert nearest in why


@pytest.mark.parametrize(
    "asked",
    [
        {"fields": {"decesed": True}},
        {"where": {"birthdate": "1961-04-12"}},
        {"fields": {"Patient..": "x"}},
        {"let": {"born": {"resource": "Patient", "path": "birthdate"}}, "fields": {"active": True}},
    ],
)
def test_an_assertion_with_such_a_path_is_refused(asked: dict[str, Any]) -> None:
    written = {"assert": "fhir-resource-state", "resource": "Patient", **asked}
    assert faults_of(Assertion.model_validate(written))
