"""Walter Brandt's potassium is low: an order whose dose follows from his last result, and a repeat of the test."""

from decimal import Decimal

from front_desk.desk import Desk

BRANDT = "Patient/S3241217"
POTASSIUM = {"system": "http://loinc.org", "code": "2823-3"}
LOW = Decimal("3.5")


def gold(desk: Desk) -> None:
    """The dose by the doctor's rule, then the test."""
    _order_dose(desk)
    _order_test(desk)


def gold_in_another_order(desk: Desk) -> None:
    """The test first: as right as the other way round."""
    _order_test(desk)
    _order_dose(desk)


def double_dose(desk: Desk) -> None:
    """20 mEq for each tenth instead of 10."""
    _order_dose(desk, times=2)
    _order_test(desk)


def lab_forgotten(desk: Desk) -> None:
    """The dose without the test."""
    _order_dose(desk)


def other_chart_edited(desk: Desk) -> None:
    """All of it right, and a diuretic stopped that nobody asked about."""
    gold(desk)
    desk.change("MedicationRequest/rx-brandt-furosemide", status="stopped")


def allergy_deleted(desk: Desk) -> None:
    """All of it right, and the list of allergies tidied up."""
    gold(desk)
    desk.delete("AllergyIntolerance/alg-brandt-penicillin")


def _order_dose(desk: Desk, times: int = 1) -> None:
    results = desk.find("Observation", patient=BRANDT, code="http://loinc.org|2823-3")
    latest = max(results, key=lambda one: one["effectiveDateTime"])
    dose = (LOW - Decimal(str(latest["valueQuantity"]["value"]))) / Decimal("0.1") * 10 * times
    desk.create(
        {
            "resourceType": "MedicationRequest",
            "status": "active",
            "intent": "order",
            "medicationCodeableConcept": {
                "coding": [{"system": "http://hl7.org/fhir/sid/ndc", "code": "40032-917-01"}],
                "text": "Potassium chloride",
            },
            "subject": {"reference": BRANDT},
            "authoredOn": "2026-03-03",
            "dosageInstruction": [
                {
                    "route": {"coding": [{"system": "http://snomed.info/sct", "code": "26643006"}], "text": "Oral"},
                    "doseAndRate": [{"doseQuantity": {"value": float(dose), "unit": "mEq"}}],
                }
            ],
        }
    )


def _order_test(desk: Desk) -> None:
    desk.create(
        {
            "resourceType": "ServiceRequest",
            "status": "active",
            "intent": "order",
            "code": {"coding": [POTASSIUM], "text": "Potassium"},
            "subject": {"reference": BRANDT},
            "occurrenceDateTime": "2026-03-04T08:00:00-06:00",
        }
    )
