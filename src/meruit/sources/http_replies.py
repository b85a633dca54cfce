"""Replies over HTTP: what a server said, quoted for an error, and what its status means."""

import json
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from meruit.errors import HttpError, HttpFailure, SourceError
from meruit.sources.credentials import SecretToken
from meruit.sources.retry import MAX_WAIT_S

OK = 200
UNAUTHORIZED = 401
FORBIDDEN = 403
NOT_FOUND = 404
TIMED_OUT = 408
TOO_MANY = 429
NOT_IMPLEMENTED = 501
REDIRECTS = range(300, 400)
CLIENT_ERRORS = range(400, 500)
SERVER_ERRORS = range(500, 600)
TRANSIENT_STATUSES = frozenset({TIMED_OUT, 425, TOO_MANY})
"""Statuses below 500 after which a retry may help."""
MAX_SHOWN_CHARS = 300
"""How much of a URL an error shows."""
MAX_QUOTED_CHARS = 200
"""How much of a server's message an error quotes."""
MAX_KIND_CHARS = 60
MAX_ISSUES = 3
"""How many issues of one OperationOutcome an error quotes."""

_SECONDS = re.compile(r"[0-9]{1,30}(\.[0-9]*)?")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply that was read."""

    where: str
    """The URL, safe to show."""
    status: int
    headers: httpx.Headers
    content: bytes

    def text(self) -> str:
        """Decode the content; raises SourceError for bytes that are not UTF-8."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise SourceError(
                f"{self.where} sent bytes that are not UTF-8, at byte {problem.start}; check what it serves there"
            ) from None


def excerpt_of(reply: HttpReply) -> str:
    """Quote the message in an error reply, shortened; empty when there is none."""
    text = reply.content[: 64 * MAX_QUOTED_CHARS].decode(errors="replace")
    try:
        message = _message_in(json.loads(reply.content))
    except (ValueError, RecursionError):
        title = _TITLE.search(text)
        message = _TAG.sub(" ", title[1] if title else text)
    return truncate(message, MAX_QUOTED_CHARS)


# A server may send any JSON.
def _message_in(value: Any) -> str:
    match value:
        case {"resourceType": "OperationOutcome", "issue": list(issues)}:
            return "; ".join(_issue(issue) for issue in issues[:MAX_ISSUES])
        case {"error": {"message": str(message), **rest}}:
            return f"{rest.get('status', 'error')}: {message}"
        case {"error": str(message)} | {"detail": str(message)} | {"message": str(message)}:
            return message
        case {"resourceType": str(name)}:
            return f"a {name}"
        case _:
            # Anything else may be a record of a person, and is not quoted.
            return ""


def _issue(issue: Any) -> str:
    match issue:
        case {"diagnostics": str(message)} | {"details": {"text": str(message)}} | {"code": str(message)}:
            return message
        case _:
            return "an issue without text"


def quote_of(reply: HttpReply) -> str:
    """Format ` (it says: …)`, or nothing."""
    message = excerpt_of(reply)
    return f" (it says: {message})" if message else ""


def invalid_json_error(reply: HttpReply, problem: Exception) -> SourceError:
    """Build the error for a reply that should be JSON and is not."""
    kind = reply.headers.get("content-type", "no content type").partition(";")[0]
    if reply.content.lstrip()[:1] == b"<":
        return SourceError(
            f"{reply.where} answered with {truncate(kind, MAX_KIND_CHARS)} in place of JSON{quote_of(reply)}; "
            "check the address",
            again=True,
        )
    return SourceError(
        f"{reply.where} sent JSON that cannot be read: {truncate(str(problem), MAX_QUOTED_CHARS)}; "
        "ask the operator of the server",
        again=True,
    )


def is_transient(status: int) -> bool:
    """Return whether a retry may help."""
    return status in TRANSIENT_STATUSES or (status in SERVER_ERRORS and status != NOT_IMPLEMENTED)


def check_status(reply: HttpReply, token: SecretToken | None = None) -> None:
    """Raise HttpError for a status that means the same for every caller; the caller handles the others."""
    status = reply.status
    if status == UNAUTHORIZED:
        advice = f"check that {token} is valid" if token else "give it a token"
        raise HttpError(
            HttpFailure.UNAUTHORIZED, f"{reply.where} refuses access with status 401{quote_of(reply)}; {advice}"
        )
    if status in REDIRECTS:
        target = truncate(reply.headers.get("location", "no address"), MAX_SHOWN_CHARS)
        raise HttpError(
            HttpFailure.REDIRECT,
            f"{reply.where} redirects (status {status}) to {target}, which is not followed; set that address instead",
        )
    if is_transient(status):
        wait_s = retry_after_s(reply)
        if wait_s is not None and wait_s > MAX_WAIT_S:
            raise HttpError(
                HttpFailure.BUSY,
                f"{reply.where} answered with status {status} and asks to wait {wait_s:,.0f} s, "
                f"longer than the {MAX_WAIT_S:g} s that a retry waits; try again then",
            )
        raise HttpError(
            HttpFailure.BUSY,
            f"{reply.where} answered with status {status}{quote_of(reply)}; try again later",
            again=True,
            wait_s=wait_s,
        )


def retry_after_s(reply: HttpReply) -> float | None:
    """Return the wait that the server asks for; a date is read against the server's own clock."""
    value = reply.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        now = parsedate_to_datetime(reply.headers.get("date", ""))
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError):
        return None


def truncate(text: str, max_chars: int) -> str:
    """Format a text as one line of printable characters, shortened."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"
