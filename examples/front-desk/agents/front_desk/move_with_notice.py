"""Emma Jones comes on Friday instead of Thursday, and the regional scheduling system is told."""

from front_desk.desk import Desk
from front_desk.visits import book, take
from front_desk.writing import hl7, segment

OLD, NEW = "rivera-0305-1000", "rivera-0306-1000"
START, END = "20260306100000-0600", "20260306103000-0600"


def gold(desk: Desk) -> None:
    """Move the appointment and its slots, then send one notice."""
    _move(desk)
    assert desk.send(_notice("MS000982")) == "AA"  # noqa: S101 - an agent that is not understood has failed


def notice_sent_twice(desk: Desk) -> None:
    """As if the first acknowledgement had been lost."""
    _move(desk)
    desk.send(_notice("MS000982"))
    desk.send(_notice("MS000983"))


def second_appointment_made(desk: Desk) -> None:
    """Book anew, and leave the old appointment standing."""
    book(desk, NEW, "Patient/emma-jones")
    take(desk, NEW)
    desk.send(_notice("MS000982"))


def _move(desk: Desk) -> None:
    time = desk.read(f"Slot/{NEW}")
    moved = {"slot": [{"reference": f"Slot/{NEW}"}], "start": time["start"], "end": time["end"]}
    desk.change("Appointment/apt-1001", **moved)
    desk.change(f"Slot/{OLD}", status="free")
    take(desk, NEW)


def _notice(control: str) -> str:
    return hl7(
        "SIU^S13^SIU_S12",
        "SCHEDAPP",
        control,
        segment(
            "SCH", {1: "1001", 2: "1001", 7: "RESCHEDULED", 9: "30", 10: "min", 11: f"^^^{START}^{END}", 25: "Booked"}
        ),
        segment("PID", {1: "1", 3: "483655^^^MAPLE^MR", 5: "Jones^Emma", 7: "19900618", 8: "F"}),
        segment("RGS", {1: "1", 2: "U"}),
        segment("AIS", {1: "1", 2: "U", 3: "FOLLOWUP", 4: START}),
    )
