"""Appointments and the slots that they take."""

from front_desk.desk import Desk, Json


def patient(desk: Desk, number: str) -> str:
    """The patient with a medical record number, as a reference."""
    (found,) = desk.find("Patient", identifier=f"urn:maple-street:mrn|{number}")
    return f"Patient/{found['id']}"


def book(desk: Desk, slot: str, patient: str) -> Json:
    """Book a patient into a slot; the slot itself is left as it is."""
    time = desk.read(f"Slot/{slot}")
    who = [patient, f"Practitioner/{slot.partition('-')[0]}"]
    return desk.create(
        {
            "resourceType": "Appointment",
            "status": "booked",
            "slot": [{"reference": f"Slot/{slot}"}],
            "start": time["start"],
            "end": time["end"],
            "participant": [{"actor": {"reference": one}, "status": "accepted"} for one in who],
        }
    )


def take(desk: Desk, slot: str) -> None:
    """Mark a slot as taken."""
    desk.change(f"Slot/{slot}", status="busy")
