"""Check `fax-sent`: documents that were faxed, by number, pages and text."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
from pydantic import TypeAdapter, field_validator

from meruit.checks.formats import json_path as dotted
from meruit.checks.formats.fax_pages import read_pages
from meruit.checks.framework.assertion import (
    DEFER_BUILD,
    FieldRule,
    MatchMode,
    PathRule,
    SelectionAssertion,
    fields_of,
)
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext
from meruit.checks.framework.selection import MAX_LISTED, decide
from meruit.checks.matching.compare import Judge
from meruit.checks.matching.matchers import Dialect, matcher
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Cause, Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

FIELDS = ("to", "from", "subject", "status", "at", "format", "pages", "pictures", "text", "page", "size", "sha256")
"""What an assertion may ask of a fax; `page[0]` is the text of the first page, `text` that of all."""
_NOT_DIALLED = re.compile(r"[\s().\-/]+")
_IDENTITY_OPS = frozenset({"equals", "in"})


def normalize_number(written: str) -> str:
    """A fax number without spaces, brackets, dots and dashes."""
    return _NOT_DIALLED.sub("", written)


@lru_cache(maxsize=4_096)
def _path(written: str) -> Any:
    first = re.split(r"[.\[]", written, maxsplit=1)[0]
    if first not in FIELDS:
        raise AuthorError(f"a fax has no {first!r}{nearest(first, FIELDS)}; it has {', '.join(FIELDS)}")
    return dotted.compile_path(written)


_RULES: TypeAdapter[dict[str, FieldRule]] = TypeAdapter(fields_of(Dialect.JSON, _path), config=DEFER_BUILD)


class FaxSent(SelectionAssertion):
    """Which faxes, and what they must hold."""

    @field_validator("where", "fields")
    @classmethod
    def _rules(cls, written: Any) -> Any:
        found = _RULES.validate_python(written)
        return {path: _normalize_rule(rule) if path in ("to", "from") else rule for path, rule in found.items()}

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The number: a fax to another one is not the fax that was asked for."""
        return [(path, rule)] if path == "to" and rule.matcher.op in _IDENTITY_OPS else []


def _normalize_rule(rule: FieldRule) -> FieldRule:
    """Compare numbers as they are dialled, not as they are written."""
    wanted = rule.matcher.expected
    if rule.matcher.op == "equals" and isinstance(wanted, str):
        return msgspec.structs.replace(rule, matcher=matcher(normalize_number(wanted), Dialect.JSON))
    if rule.matcher.op == "in" and all(isinstance(one, str) for one in wanted):
        return msgspec.structs.replace(
            rule, matcher=matcher({"in": [normalize_number(one) for one in wanted]}, Dialect.JSON)
        )
    return rule


class FaxReader:
    """Reads faxes."""

    def parse(self, item: Item) -> Any:
        """The fax: who, when, how it ended, and what its pages say."""
        content = item.content()
        if item.body is None:
            raise UnreadableContent.at("was not kept", content, 0)
        pages = read_pages(content)
        sent = {name: item.facts.get(name) for name in ("subject", "status", "at")}
        return {
            **{name: normalize_number(str(item.facts.get(name) or "")) or None for name in ("to", "from")},
            **sent,
            "format": pages.format.value,
            "pages": len(pages.texts),
            "pictures": pages.pictures,
            "text": " ".join(text for text in pages.texts if text),
            "page": list(pages.texts),
            "size": len(content),
            "sha256": sha256(content).hexdigest(),
        }

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a path."""
        return dotted.values(document, _path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A path that begins with a field of a fax."""
        return _path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Faxes by `to`."""
        for name in selector.keys() - {"to"}:
            raise AuthorError(f"faxes are not found by {name!r}{nearest(str(name), ['to'])}, but by to")
        number = selector.get("to")
        return lambda _item, fax: number is None or fax["to"] == normalize_number(str(number))


_BLANK_PAGE = bytes.fromhex(
    "49492a000a000000ff00"  # header, one byte of picture
    "0400"  # four tags: width, length, offset and size of the picture
    "000103000100000008000000010103000100000001000000110104000100000008000000170104000100000001000000"
    "00000000"
)
"""A TIFF of one page."""
FAX = FaxReader()


def _example(asked: Mapping[str, Any], number: str, expect: str) -> CheckExample:
    sent = make_item("000001", _BLANK_PAGE, facts={"to": number, "status": "sent"})
    was, now = {"fax": Snapshot(SourceKind.FAX)}, {"fax": Snapshot(SourceKind.FAX, [sent])}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


_TO_CARDIOLOGY = {"changed": "created", "count": 1, "fields": {"to": "+1 555 010 0199", "pages": 1, "status": "sent"}}


@state_check(
    "fax-sent",
    reads=[SourceKind.FAX],
    settings=FaxSent,
    reader=FAX,
    examples=[
        _example(_TO_CARDIOLOGY, "+15550100199", "1"),
        _example(_TO_CARDIOLOGY, "+15550100198", "0"),
        _example(_TO_CARDIOLOGY | {"fields": {"to": "+15550100199", "pages": 2}}, "+15550100199", "1/2"),
    ],
)
def fax_sent(asked: FaxSent, context: CheckContext) -> Checked | Missing:
    """A document was faxed to a number, with the pages and the text that it must have."""
    if _asks_for_text(asked) and (depends := _find_unread_pictures(asked, context)) is not None:
        return depends
    return decide(asked, context, FAX, {})


# Text in pictures. It is not read, so a check that depends on it has no result: neither a pass nor a failure.

_OF_TEXT = re.compile(r"(text|page)\b")
_SURE_OPS = frozenset({"contains", "says"})
"""Matchers that text in pictures cannot undo: what was found elsewhere in the fax stays found."""
_SEVERAL_OPS = frozenset({"all_of", "one_of"})


class _PictureText(str):
    """Text that was read of pages of which some are pictures, in an attempt."""

    __slots__ = ()


class _PictureReader(FaxReader):
    """Reads faxes for an attempt, with text marked that pictures may add to."""

    def parse(self, item: Item) -> Any:
        fax = super().parse(item)
        if not fax["pictures"]:
            return fax
        pages = [text or _PictureText() for text in fax["page"]]
        return fax | {"text": _PictureText(fax["text"]), "page": pages}


_PICTURES = _PictureReader()


def _asks_for_text(asked: FaxSent) -> bool:
    return any(_OF_TEXT.match(path) for path in (*asked.where, *asked.fields))


def _find_unread_pictures(asked: FaxSent, context: CheckContext) -> Missing | None:
    """The finding where the result depends on text in pictures: judged as if that text fitted, and as if not."""
    several = [decide(_suppose(asked, fits=fits), context.attempt(), _PICTURES, {}) for fits in (False, True)]
    if any(isinstance(one, Missing) for one in several):
        return None
    low, high = ((one.score, (one.details or {}).get("selected")) for one in several if isinstance(one, Checked))
    sure = asked.count.high is None and asked.match is MatchMode.BEST and low[0] == "1"
    if low == high or sure:
        return None
    unread = [
        one.key
        for one in context.after.items
        if isinstance(fax := context.work_context.document(context.source, one, FAX), dict) and fax["pictures"]
    ]
    why = f"{context.source}: the text of {', '.join(unread[:3])} is in pictures, which are not read; look at the pages"
    return Missing(why, Cause.UNREAD_FORM, Fault.SYSTEM, {"pictures": unread[:MAX_LISTED]})


def _suppose(asked: FaxSent, *, fits: bool) -> FaxSent:
    """The assertion for one attempt: every text in a picture fits, or none does."""

    def wrap(rules: Mapping[str, FieldRule]) -> dict[str, FieldRule]:
        return {path: _suppose_rule(rule, fits=fits) if _OF_TEXT.match(path) else rule for path, rule in rules.items()}

    return asked.model_copy(update={"where": wrap(asked.where), "fields": wrap(asked.fields)})


def _suppose_rule(rule: FieldRule, *, fits: bool) -> FieldRule:
    asked, is_sure = rule.matcher, _is_sure({rule.matcher.op: rule.matcher.expected})

    def suppose(judge: Judge) -> Judge:
        def answer(values: tuple[Any, ...]) -> str | None:
            why = judge(values)
            if not _is_in_picture(values) or (why is None and is_sure):
                return why
            return None if fits else "is in a picture"

        return answer

    supposed = msgspec.structs.replace(asked, judge=suppose(asked.judge), seems=suppose(asked.seems))
    return msgspec.structs.replace(rule, matcher=supposed)


# Any, below: values of a fax, and a matcher as its author wrote it.
def _is_in_picture(values: Any) -> bool:
    return isinstance(values, _PictureText) or (
        isinstance(values, list | tuple) and any(_is_in_picture(one) for one in values)
    )


def _is_sure(written: Any) -> bool:
    """Whether more text cannot change that a matcher fits."""
    if not isinstance(written, Mapping):
        return False
    return all(
        op in _SURE_OPS
        or (op in _SEVERAL_OPS and isinstance(given, list | tuple) and all(_is_sure(one) for one in given))
        for op, given in written.items()
    )
