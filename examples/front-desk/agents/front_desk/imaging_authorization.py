"""The payer is asked on its portal to authorize Maria Garcia's MRI, with the referral attached."""

from front_desk.desk import Desk

FOLDER = "inbound/referrals"
ASKED = {
    "member": "MEM88772",
    "npi": "1841293847",
    "cpt": "72148",
    "diagnosis": "M54.16",
    "urgency": "standard",
    "notes": "Radiating pain for eight weeks, no relief from therapy.",
}


def gold(desk: Desk) -> None:
    """With her own referral."""
    _ask(desk, "garcia_mri_referral.pdf")


def forgot_attachment(desk: Desk) -> None:
    """The form alone."""
    with desk.portal() as portal:
        portal.submit("requests/new", "requests/new", ASKED)


def attached_another_patients_referral(desk: Desk) -> None:
    """The file next to hers."""
    _ask(desk, "novak_ct_referral.pdf")


def _ask(desk: Desk, name: str) -> None:
    referral = desk.fetch(f"{FOLDER}/{name}")
    with desk.portal() as portal:
        portal.submit("requests/new", "requests/new", ASKED, attachments=(name, referral))
