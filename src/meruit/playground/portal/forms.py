"""What a browser sends to the portal: fields and documents, and what is wrong with them."""

import hashlib
import re
from pathlib import PurePosixPath, PureWindowsPath

import msgspec
from starlette.datastructures import UploadFile

from meruit.errors import PlaygroundRefusal
from meruit.playground.http import PlaygroundRequest
from meruit.playground.portal import payer
from meruit.playground.portal.pages import ERROR_MESSAGES, USER
from meruit.playground.portal.payer import PriorAuthDocument, PriorAuthRequest
from meruit.playground.state import PlaygroundState

MAX_UPLOAD_BYTES = 5 * 1024 * 1024
"""Of one document."""
MAX_UPLOADS = 10
"""Documents sent at once."""
MAX_NAME = 120
MAX_NOTES = 4_000
"""Characters of a free text."""
MAX_FIELD = 200
"""Characters of every other field."""
TYPES = {
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".txt": "text/plain",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
"""The types that may be uploaded, by file ending."""
UPLOAD_HINT = f"PDF, PNG, JPEG, TIFF, Word or text, up to {MAX_UPLOAD_BYTES // 1024**2} MB each, {MAX_UPLOADS} at most"
URGENCIES = {"standard": "Standard", "urgent": "Urgent: waiting could harm the patient"}
_CODE = re.compile(r"[0-9A-Z][0-9]{3}[0-9A-Z]")
_DIAGNOSIS = re.compile(r"[A-Z][0-9][0-9A-Z](\.?[0-9A-Z]{1,4})?")
_NPI = re.compile(r"[0-9]{10}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

Errors = dict[str, str]
"""What is wrong, by field."""


class Form(msgspec.Struct, frozen=True):
    """What a browser sent."""

    typed: dict[str, str]
    documents: list[PriorAuthDocument]
    errors: Errors
    """What is wrong with the uploads."""

    @property
    def token(self) -> str:
        """The token that shows that it comes from our own page."""
        return self.typed.get("csrf", "")


async def read_form(request: PlaygroundRequest, uploads: str | None = None) -> Form:
    """Read the fields of a form, and the documents of one of them."""
    try:
        sent = await request.form()
    except (ValueError, UnicodeError):
        raise PlaygroundRefusal(400, ERROR_MESSAGES[400]) from None
    typed: dict[str, str] = {}
    documents: list[PriorAuthDocument] = []
    errors: Errors = {}
    for name, value in sent.multi_items():
        if not isinstance(value, UploadFile):
            typed[name] = _UNPRINTABLE.sub(_keep_breaks, str(value)).strip()
        elif name == uploads and value.filename:
            content = await value.read()
            wrong = _upload_trouble(value.filename, len(content))
            if wrong:
                errors[name] = wrong
            else:
                documents.append(_document(value.filename, content))
    if uploads is not None and len(documents) > MAX_UPLOADS:
        errors[uploads] = f"Send {MAX_UPLOADS} documents at once at most."
    return Form(typed=typed, documents=documents, errors=errors)


def _keep_breaks(found: re.Match[str]) -> str:
    return {"\n": "\n", "\t": " "}.get(found[0], "")


def _plain_name(filename: str) -> str:
    """Return a document's name without the folders that some browsers send."""
    return _UNPRINTABLE.sub("", PureWindowsPath(PurePosixPath(filename).name).name).strip()


def _upload_trouble(filename: str, size: int) -> str | None:
    name = _plain_name(filename)
    if not name or len(name) > MAX_NAME:
        return f"Give the document a name of at most {MAX_NAME} characters."
    if PurePosixPath(name.lower()).suffix not in TYPES:
        return f"“{name}” is of a kind that cannot be taken. {UPLOAD_HINT}."
    if size == 0:
        return f"“{name}” is empty. Choose another document."
    return f"“{name}” is too large. {UPLOAD_HINT}." if size > MAX_UPLOAD_BYTES else None


def _document(filename: str, content: bytes) -> PriorAuthDocument:
    name = _plain_name(filename)
    kind = TYPES[PurePosixPath(name.lower()).suffix]
    return PriorAuthDocument(name, len(content), hashlib.sha256(content).hexdigest(), kind)


def read_prior_auth(state: PlaygroundState, form: Form) -> tuple[PriorAuthRequest, Errors]:
    """Read the request of a form, and what is wrong with it."""
    typed = form.typed
    member, npi = typed.get("member", ""), typed.get("npi", "")
    cpt, diagnosis = typed.get("cpt", "").upper(), typed.get("diagnosis", "").upper()
    errors = {
        "member": _member_trouble(state, member),
        "npi": None if _NPI.fullmatch(npi) else "Enter the provider’s NPI: 10 digits.",
        "cpt": None if _CODE.fullmatch(cpt) else "Enter a CPT or HCPCS code of 5 characters.",
        "diagnosis": None if _DIAGNOSIS.fullmatch(diagnosis) else "Enter an ICD-10 code, for example M54.16.",
        "urgency": None if typed.get("urgency") in URGENCIES else "Choose how urgent it is.",
        "notes": too_long(typed.get("notes", "")),
        "attachments": form.errors.get("attachments"),
    }
    asked = PriorAuthRequest(
        member=member,
        cpt=cpt,
        diagnosis=diagnosis,
        urgency=typed.get("urgency", ""),
        npi=npi,
        notes=typed.get("notes", ""),
        documents=form.documents,
        by=USER,
        more={"channel": "portal"},
    )
    return asked, {name: wrong for name, wrong in errors.items() if wrong}


def _member_trouble(state: PlaygroundState, member: str) -> str | None:
    if not member:
        return "Enter the member’s ID."
    found = payer.row(state, payer.MEMBER, member) if len(member) <= MAX_FIELD else None
    if found is None:
        return "No member has this ID. Look it up under Members."
    return None if payer.is_active(found) else "This member’s coverage is not active."


def too_long(written: str) -> str | None:
    """Return what is wrong with a text that is too long."""
    return f"Write {MAX_NOTES:,} characters at most." if len(written) > MAX_NOTES else None
