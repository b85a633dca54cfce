"""A follow-up for John Smith with Dr. Rivera, on the earliest free time of Thursday."""

from front_desk.desk import Desk
from front_desk.visits import book, patient, take

SMITH, NAMESAKE = "483671", "483672"


def gold(desk: Desk) -> None:
    """The earliest slot that is free, for the right John Smith, marked as taken."""
    free = desk.find("Slot", schedule="Schedule/rivera", status="free", start="2026-03-05")
    slot = min(free, key=lambda one: one["start"])["id"]
    book(desk, slot, patient(desk, SMITH))
    take(desk, slot)


def wrong_day(desk: Desk) -> None:
    """The same time on Friday."""
    book(desk, "rivera-0306-0930", patient(desk, SMITH))
    take(desk, "rivera-0306-0930")


def namesake_booked(desk: Desk) -> None:
    """The right time, for the other John Smith."""
    book(desk, "rivera-0305-0930", patient(desk, NAMESAKE))
    take(desk, "rivera-0305-0930")
