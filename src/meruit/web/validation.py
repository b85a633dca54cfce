"""What msgspec says of a wrong value, as a field and a message without the value."""

import re

from meruit.errors import Problem

MAX_COMPLAINT = 300
"""Most characters of a field's path, and of its problem, in a reply."""
NOT_ALLOWED = "Not one of the allowed values"
"""The message about a value of an enum; the original one would quote it."""
NOT_VALID = "is not valid"

# msgspec ends a message with the path, and quotes the value only where it expects an enum or a tag.
_COMPLAINT = re.compile(r"(?P<message>.*?)(?: - at `(?:key in )?\$\.?(?P<where>.*)`)?", re.DOTALL)
_QUOTES_A_VALUE = re.compile(r"Invalid (?:enum )?value .*", re.DOTALL)
_SAFE_MESSAGE = re.compile(rf"(?:Expected `|Object missing |Object contains |{NOT_ALLOWED}).*", re.DOTALL)


def field_problem(complaint: str) -> Problem:
    """Convert a message of msgspec to a field and a message without values."""
    found = _COMPLAINT.fullmatch(complaint)
    # All parts of the pattern are optional, so it matches every text.
    assert found is not None  # noqa: S101
    message = _QUOTES_A_VALUE.sub(NOT_ALLOWED, found["message"])
    # Both may hold a key that the client chose, of any length.
    return Problem(_truncate(found["where"] or ""), _truncate(message))


def safe_message(complaint: str) -> str:
    """The message about a parameter; one of an unknown form may quote the value, and is replaced."""
    message = field_problem(complaint).message
    return message if _SAFE_MESSAGE.fullmatch(message) else NOT_VALID


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_COMPLAINT else f"{text[:MAX_COMPLAINT]}…"
