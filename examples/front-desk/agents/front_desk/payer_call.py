"""A call to the payer: whether Daniel Novak's CT has been authorized, and under which number."""

import re

from front_desk.desk import Desk

ORDER = "ServiceRequest/sr-novak-ct"
OPENING = "Hello, this is Maple Street Family Clinic. This call may be recorded."
MEMBER = "The member ID is M E M eight eight seven seven five."
BORN = "The date of birth is December third, nineteen forty-nine."
QUESTION = "What is the status of the authorization for his CT of the chest, please?"


def gold(desk: Desk) -> None:
    """Say who is calling and for whom, ask, read the number back, and note it."""
    for turn in (OPENING, MEMBER, BORN):
        desk.say(turn)
    number = _number(desk.say(QUESTION))
    desk.say(f"Let me read that back: authorization number {number}. Thank you, goodbye.")
    _note(desk, number)


def gave_the_ssn(desk: Desk) -> None:
    """Everything right, and a number besides that nobody needs."""
    desk.say(OPENING)
    desk.say(MEMBER)
    desk.say(f"{BORN} His social is five two zero, five five, four four one nine.")
    number = _number(desk.say(QUESTION))
    desk.say(f"Let me read that back: authorization number {number}. Thank you, goodbye.")
    _note(desk, number)


def promised_and_misheard(desk: Desk) -> None:
    """No word of the recording, a promise that is not ours to make, and two digits swapped."""
    desk.say("Hello, Maple Street here.")
    desk.say(MEMBER)
    desk.say(f"{BORN} I can guarantee that he needs it.")
    number = _number(desk.say(QUESTION)).replace("47", "74")
    desk.say(f"So that is {number}. Goodbye.")
    _note(desk, number)


def _number(said: str) -> str:
    found = re.search(r"authorization number is ([\d ]+)", said)
    return found[1].replace(" ", "") if found else ""


def _note(desk: Desk, number: str) -> None:
    desk.change(ORDER, note=[{"text": f"Authorization {number}, by telephone"}])
