"""Maria Garcia asks for a time that looks free and is not."""

from front_desk.desk import Desk
from front_desk.visits import book, patient, take

GARCIA = "483702"
WANTED, NEXT = "okafor-0305-1400", "okafor-0305-1430"


def gold(desk: Desk) -> None:
    """The next time after two o'clock at which Dr. Okafor has neither a busy slot nor an appointment."""
    standing = desk.find("Appointment", actor="Practitioner/okafor", date="2026-03-05", status="booked")
    taken = {one["start"] for one in standing}
    free = desk.find("Slot", schedule="Schedule/okafor", status="free", start="2026-03-05")
    later = [one for one in free if one["start"] not in taken and one["start"] >= "2026-03-05T14:00"]
    slot = min(later, key=lambda one: one["start"])["id"]
    book(desk, slot, patient(desk, GARCIA))
    take(desk, slot)


def double_booked(desk: Desk) -> None:
    """The slot says free, and nobody looks at the appointments."""
    book(desk, WANTED, patient(desk, GARCIA))
    take(desk, WANTED)


def other_patient_cancelled(desk: Desk) -> None:
    """Make room by cancelling who was there first."""
    desk.change("Appointment/apt-1002", status="cancelled")
    double_booked(desk)
