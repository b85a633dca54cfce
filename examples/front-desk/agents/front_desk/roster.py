"""Who comes to Dr. Okafor on Friday, as a file for the nurse line."""

from front_desk.desk import Desk

FILE = "outbound/roster_20260306.csv"


def gold(desk: Desk) -> None:
    """Whoever is booked, written under another name and renamed when it is whole."""
    desk.put(f"{FILE}.tmp", _roster(desk, "booked"), rename_to=FILE)


def left_tmp_file(desk: Desk) -> None:
    """The half-sent file of a first try is still there."""
    desk.put(f"{FILE}.tmp", _roster(desk, "booked")[:60])
    desk.put(FILE, _roster(desk, "booked"))


def cancelled_patient_listed(desk: Desk) -> None:
    """Every appointment of the day, whatever its status."""
    desk.put(FILE, _roster(desk, "booked,cancelled"))


def _roster(desk: Desk, status: str) -> bytes:
    lines = ["time,mrn,last_name,first_name"]
    visits = desk.find("Appointment", actor="Practitioner/okafor", date="2026-03-06", status=status)
    for visit in sorted(visits, key=lambda one: str(one["start"])):
        patient = desk.read(visit["participant"][0]["actor"]["reference"])
        name = patient["name"][0]
        lines.append(f"{visit['start'][11:16]},{patient['identifier'][0]['value']},{name['family']},{name['given'][0]}")
    return "".join(f"{line}\n" for line in lines).encode()
