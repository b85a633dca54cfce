"""John Smith's therapy was denied for want of a record that exists: an appeal with that record."""

from front_desk.desk import Desk

DENIED, ANOTHER = "PA-000007", "PA-000009"
NOTES = "smith_therapy_notes.pdf"
REASON = "The attached notes document six weeks of conservative treatment before the request."


def gold(desk: Desk) -> None:
    """The notes, then the appeal, both to the request that was denied."""
    _appeal(desk, DENIED)


def appealed_another_request(desk: Desk) -> None:
    """The one for his MRI, denied as well."""
    _appeal(desk, ANOTHER)


def asked_anew_instead(desk: Desk) -> None:
    """A new request for the same, so that the denial stands."""
    notes = desk.fetch(f"inbound/notes/{NOTES}")
    with desk.portal() as portal:
        typed = {
            "member": "MEM88771",
            "npi": "1528074632",
            "cpt": "97110",
            "diagnosis": "M17.11",
            "urgency": "standard",
        }
        portal.submit("requests/new", "requests/new", typed | {"notes": REASON}, attachments=(NOTES, notes))


def _appeal(desk: Desk, request: str) -> None:
    notes, page = desk.fetch(f"inbound/notes/{NOTES}"), f"requests/{request}"
    with desk.portal() as portal:
        portal.submit(page, f"{page}/documents", {}, documents=(NOTES, notes))
        portal.submit(page, f"{page}/appeal", {"reason": REASON})
