"""Maria Garcia's lisinopril is renewed, as Dr. Rivera approved it."""

from front_desk.desk import Desk

OLD = "MedicationRequest/rx-garcia-lisinopril"
RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"


def gold(desk: Desk) -> None:
    """A new prescription like the old one, which is completed by it."""
    _renew(desk)
    desk.change(OLD, status="completed")


def wrong_strength(desk: Desk) -> None:
    """20 mg instead of 10."""
    _renew(desk, {"coding": [{"system": RXNORM, "code": "314077"}], "text": "Lisinopril 20 MG Oral Tablet"})
    desk.change(OLD, status="completed")


def old_one_left_active(desk: Desk) -> None:
    """Two prescriptions for the same drug, both active."""
    _renew(desk)


def _renew(desk: Desk, medication: object = None) -> None:
    was = desk.read(OLD)
    kept = ("resourceType", "status", "intent", "subject", "requester", "dosageInstruction")
    desk.create(
        {
            **{name: was[name] for name in kept},
            "medicationCodeableConcept": medication or was["medicationCodeableConcept"],
            "authoredOn": "2026-03-03",
            "priorPrescription": {"reference": OLD},
            "dispenseRequest": {"numberOfRepeatsAllowed": 3, "quantity": {"value": 90, "unit": "tablet"}},
        }
    )
