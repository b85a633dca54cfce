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
from meruit.checks.framework.assertion import DEFER_BUILD, FieldRule, PathRule, SelectionAssertion, fields_of
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext
from meruit.checks.framework.selection import decide
from meruit.checks.matching.matchers import Dialect, matcher
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
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
    return decide(asked, context, FAX, {})
