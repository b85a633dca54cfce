"""Feedback for the model: short, deterministic, escaped, without secrets and invisible characters."""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from types import NoneType
from typing import Any

import msgspec

from meruit.gate.state import RequestRevision
from meruit.gate.verdict import MAX_CODE, Rejection
from meruit.model.canonical import LARGEST_INTEGER

MAX_MESSAGE, MAX_ITEM, MAX_BLOCK = 2000, 200, 4000
"""Characters of the message, of one item of the metadata, and of the whole block."""
MAX_ITEMS, MAX_DEPTH = 10, 4
"""Items of a list or mapping, and lists or mappings inside each other."""
MAX_METADATA_BYTES = 8192
"""Bytes of a rejection's metadata that are stored with events and runs."""
REDACTED = "[hidden]"
MAX_REMEMBERED = 1024
"""Names and codes in the caches: a verifier uses few of them, again and again."""

_PLACE_IN_MEMORY = re.compile(r"\bat 0x[0-9a-fA-F]+")
_NO_NAME = re.compile(r"[^\w ()/-]|_")
_MORE = {"…": "more than is shown"}
_HALF_ESCAPE = re.compile(r"&[a-z]*$")
_LAST_WORD = re.compile(r"\S*$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?i)(?:password|passwd|passphrase|passcode|(?<![a-z])pwd|secret|(?:api|access|private)[_ -]?key|authorization"
    r"|credential)s?(?![a-z])"
)
_SECRET_TEXT_NAME = re.compile(r"(?i)(?:(?<![a-z])pass|tokens?(?:[_ -]?(?:value|string|text))?)$")
"""Names of secrets if the value is text: a number of tokens is not a secret."""
_SECRET = re.compile(
    r"(?:\bsk-[A-Za-z0-9_-]{16,}|\b[sr]k_(?:live|test)_[A-Za-z0-9]{8,}|\bA(?:KIA|SIA)[0-9A-Z]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\b(?:hf|npm)_[A-Za-z0-9]{20,}"
    r"|\bglpat-[A-Za-z0-9_-]{16,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{16,}"
    r"|(?i:\b(?:bearer|basic|token)\s+)(?=[A-Za-z._~+/-]{0,80}[0-9=])[A-Za-z0-9._~+/=-]{8,}"
    # Up to the last @ of an address: a password may hold one, and a user may have no name.
    r"|(?<=://)[^\s/@:]{0,200}:[^\s/]{1,2000}(?=@)"
    # A name and its value; a value with a digit is hardly a word of a sentence.
    r"|(?i:(?:password|passwd|passphrase|\bpass|pwd|secret|token|(?:api|access|private)[_ -]?key))"
    r"[\"']?\s{0,3}[=:]\s{0,3}(?=[^\s\d]{0,80}\d)\S{6,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$))",
    re.DOTALL,
)
_SIGNS_OF_SECRETS = (
    *("sk-", "k_live_", "k_test_", "akia", "asia", "aiza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    *("hf_", "npm_", "glpat-", "xox", "eyj", "bearer", "basic", "://", "pass", "pwd", "secret", "token", "key"),
    "-----begin",
)
"""Lower-case substrings: every secret that the pattern above matches contains one."""
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible letters and marks that Unicode does not classify as such."""


class Feedback(msgspec.Struct, frozen=True):
    """One rejection, as text for the model and as JSON for programs."""

    text: str
    code: str
    retryable: bool
    summary: str
    metadata: dict[str, Any]
    revise: RequestRevision | None

    @property
    def json_object(self) -> dict[str, Any]:
        """The same as JSON."""
        twin: dict[str, Any] = {
            "type": "verification_rejected",
            "code": self.code,
            "retryable": self.retryable,
            "summary": self.summary,
            "metadata": self.metadata,
        }
        return twin if self.revise is None else twin | msgspec.structs.asdict(self.revise)


class _MetadataName(msgspec.Struct, frozen=True):
    """What the name of a value says about it."""

    label: str
    is_secret: bool
    is_secret_text: bool


def _classify_name(name: str) -> _MetadataName:
    # As people read it: without invisible characters, and camel case split into words.
    words = _HUMP.sub("_", _strip_invisible(name[: MAX_ITEM * 4]))
    is_secret, is_secret_text = (one.search(words) is not None for one in (_SECRET_NAME, _SECRET_TEXT_NAME))
    return _MetadataName(label=_sanitize_line(name, MAX_ITEM), is_secret=is_secret, is_secret_text=is_secret_text)


_NAMELESS = _MetadataName("", is_secret=False, is_secret_text=False)
_classify_name_cached = lru_cache(maxsize=MAX_REMEMBERED)(_classify_name)


def _name_of(name: str) -> _MetadataName:
    # A long name is hardly used twice, so it is not cached.
    return _classify_name_cached(name) if len(name) <= MAX_ITEM else _classify_name(name)


def feedback(rejection: Rejection, revise: RequestRevision | None = None) -> Feedback:
    """Build the block for a rejection; `revise` has the rest of the budget, None where nothing is left."""
    code = _sanitize_code((rejection.code or "")[: MAX_CODE * 5])
    summary = _sanitize_text(rejection.message, MAX_MESSAGE) or "no reason was given"
    metadata = redact_metadata(rejection.metadata)
    # Continued lines are indented, so that only our own words start a line.
    parts = [
        "Summary: " + summary.replace("\n", "\n  "),
        *(line for name, value in metadata.items() for line in _format_item(_title(name), value)),
    ]
    retryable = "true" if rejection.retryable else "false"
    head = f'<verification_rejected code="{_escape_attribute(code)}" retryable="{retryable}">'
    ours = [*_attempt_lines(revise), "</verification_rejected>"]
    room = MAX_BLOCK - sum(len(line) + 1 for line in (head, *ours))
    return Feedback(
        text="\n".join([head, _escape("\n".join(parts), room), *ours]),
        code=code,
        retryable=rejection.retryable,
        summary=summary,
        metadata=metadata,
        revise=revise,
    )


def schema_error_feedback(problems: str, left: int) -> str:
    """Build the block for a payload that does not match the schema of the output."""
    head, tail = f'<output_invalid tries_left="{left}">', "</output_invalid>"
    body = _escape(_sanitize_text(problems, MAX_MESSAGE), MAX_BLOCK - len(head) - len(tail) - 2)
    return f"{head}\n{body}\n{tail}"


def redact_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make metadata safe to store and show: sorted, without secrets, limited in size."""
    retained: dict[str, Any] = {}
    room = MAX_METADATA_BYTES - len(msgspec.json.encode(_MORE))
    for key in sorted(metadata, key=_to_text):
        name = _name_of(_to_text(key))
        item = {name.label: _redact_value(metadata[key], name, MAX_DEPTH)}
        room -= 0 if item == _MORE else len(msgspec.json.encode(item))
        if room < 0:
            return retained | _MORE
        retained |= item
    return retained


# Any: metadata of a verifier's author, which becomes JSON here.
def _redact_value(value: Any, name: _MetadataName, depth: int) -> Any:
    if _is_secret(name, value):
        return REDACTED
    match value:
        case None | bool():
            return value
        case int() if abs(value) <= LARGEST_INTEGER:
            # Subclasses of int, such as those of numpy, become plain JSON numbers.
            return int(value)
        case float() if isfinite(value):
            return float(value)
        case Mapping() | list() | tuple() | set() | frozenset():
            return _redact_nested_safely(value, depth - 1) if depth else "…"
        case _:
            return _sanitize_text(_to_text(value), MAX_ITEM)


def _redact_nested_safely(value: Any, depth: int) -> Any:
    try:
        return _redact_nested(value, depth)
    except Exception:  # noqa: BLE001 - reading an author's own class may fail; the rejection must not be lost
        return f"a value of type {type(value).__name__}"


def _redact_nested(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        keys = sorted(value, key=_to_text)[:MAX_ITEMS]
        named = ((key, _name_of(_to_text(key))) for key in keys)
        return {name.label: _redact_value(value[key], name, depth) for key, name in named}
    items = sorted(value, key=_to_text) if isinstance(value, set | frozenset) else value
    if len(items) <= MAX_ITEMS:
        return [_redact_value(item, _NAMELESS, depth) for item in items]
    # The last item counts the rest, so that redacting twice gives the same.
    first = MAX_ITEMS - 1
    return [*(_redact_value(item, _NAMELESS, depth) for item in items[:first]), f"… and {len(items) - first} more"]


def _is_secret(name: _MetadataName, value: Any) -> bool:
    return name.is_secret or (name.is_secret_text and not isinstance(value, int | float | NoneType))


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    kind = f"a value of type {type(value).__name__}"
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - an author's own class may fail; the rejection must not be lost
        return kind
    # A memory address says nothing, and differs each time.
    return kind if _PLACE_IN_MEMORY.search(text) else text


def _format_item(name: str, value: Any) -> list[str]:
    """Format a value under its name: on the same line if it is simple, else below it."""
    match value:
        case dict() if value and not all(map(_is_scalar, value.values())):
            return [f"{name}:", *(f"  {line}" for line in _format_lines(value))]
        case list() if value:
            return [f"{name}:", *_format_lines(value)]
        case _:
            return [f"{name}: {_format_inline(value)}"]


def _format_lines(value: Any) -> list[str]:
    match value:
        case dict() if value:
            return [line for name, one in sorted(value.items()) for line in _format_item(name, one)]
        case list() if value:
            # The lines of one item are indented alike.
            return [
                f"{'  ' if place else '- '}{line}" for item in value for place, line in enumerate(_format_lines(item))
            ]
        case _:
            return [_format_inline(value)]


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _format_inline(value: Any) -> str:
    match value:
        case str():
            return " ".join(value.split())
        case dict() | list() if not value:
            return "none"
        case dict():
            return ", ".join(f"{name} {_format_inline(one)}" for name, one in sorted(value.items()))
        case _:
            return msgspec.json.encode(value).decode()


@lru_cache(maxsize=MAX_REMEMBERED)
def _title(name: str) -> str:
    """Format a name as the start of a line; without punctuation it cannot pass for a line of ours."""
    return " ".join(_NO_NAME.sub(" ", name).split()).capitalize() or "More"


def _attempt_lines(revise: RequestRevision | None) -> list[str]:
    if revise is None:
        return []
    left = revise.attempts_left
    lines = [f"Attempt {revise.attempt} was rejected; {left} {'is' if left == 1 else 'are'} left."]
    if revise.identical:
        lines.append("This is the candidate that was rejected before, unchanged. Submit a revised one.")
    elif revise.rejected_at is not None:
        lines.append(f"The same candidate was rejected at attempt {revise.rejected_at}.")
    return lines


def _sanitize_text(text: str, most: int) -> str:
    """Remove secrets and invisible characters from text, and truncate it."""
    # Long text is cut before the slow patterns run.
    limit = most * 4
    clean = redact_secrets(_strip_invisible(text[:limit]).strip())
    if len(text) > limit and len(clean) <= most:
        # The last word may be half of a secret, which the pattern cannot recognise.
        clean = _LAST_WORD.sub("…", clean, count=1)
    return _truncate(clean, most)


def _strip_invisible(text: str) -> str:
    # A quick check: most text has no invisible character.
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub("", "".join(sign for sign in text if sign in "\n\t" or _is_visible(sign)))


def redact_secrets(text: str) -> str:
    """Replace what looks like a secret."""
    return _SECRET.sub(REDACTED, text) if _may_hold_secrets(text) else text


def _may_hold_secrets(text: str) -> bool:
    """Check quickly for substrings of secrets: the full pattern is slow, and most text has none."""
    if not text.isascii():
        # Other scripts have letters whose lower case is one of these.
        return True
    small = text.lower()
    for sign in _SIGNS_OF_SECRETS:  # noqa: SIM110 - a generator takes twice as long
        if sign in small:
            return True
    return False


def _sanitize_line(text: str, most: int) -> str:
    return " ".join(_sanitize_text(text, most).split())


def _is_visible(sign: str) -> bool:
    return unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@lru_cache(maxsize=MAX_REMEMBERED)
def _sanitize_code(code: str) -> str:
    return _sanitize_line(code, MAX_CODE) or "rejected"


def _escape_attribute(text: str) -> str:
    return _escape(text).replace('"', "&quot;")


def _escape(text: str, most: int = MAX_BLOCK) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped if len(escaped) <= most else f"{_HALF_ESCAPE.sub('', escaped[: most - 1])}…"
