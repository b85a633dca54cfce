"""Check `message-sent`: secure messages, by who they are to, whom they are about, and what they say."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pydantic import Field, TypeAdapter, field_validator

from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import DEFER_BUILD, FieldRule, PathRule, SelectionAssertion, fields_of
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext
from meruit.checks.framework.identity import row_identity
from meruit.checks.framework.selection import decide
from meruit.checks.matching.matchers import Dialect
from meruit.errors import AuthorError
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

_path = lru_cache(maxsize=4_096)(dotted.compile_path)
_RULES: TypeAdapter[dict[str, FieldRule]] = TypeAdapter(fields_of(Dialect.JSON, _path), config=DEFER_BUILD)
_IDENTITY_OPS = frozenset({"equals", "in"})


class MessageFolder(StrEnum):
    """Where a message is."""

    SENT = "sent"
    INBOX = "inbox"


class MessageSent(SelectionAssertion):
    """Which messages, and what they must say."""

    folder: MessageFolder = Field(default=MessageFolder.SENT, description="The folder that is read.")

    @field_validator("where", "fields")
    @classmethod
    def _rules(cls, written: Any) -> Any:
        return _RULES.validate_python(written)

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """Who gets it and whom it is about: a message to another reader is not the one that was asked for."""
        if path in ("to", "in_reply_to") and rule.matcher.op in _IDENTITY_OPS:
            return [(path, rule)]
        return row_identity(path, rule)


class MessageReader:
    """Reads messages."""

    def parse(self, item: Item) -> Any:
        """The message."""
        return dotted.read_json(item.content())

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a dotted path."""
        return dotted.values(document, _path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A dotted path."""
        return _path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Messages by `folder`."""
        for name in selector.keys() - {"folder"}:
            raise AuthorError(f"messages are not found by {name!r}{nearest(str(name), ['folder'])}, but by folder")
        folder = selector.get("folder")
        return lambda _item, one: folder is None or (isinstance(one, dict) and one.get("folder") == folder)


MESSAGES = MessageReader()


def _example(asked: Mapping[str, Any], message: bytes, expect: str) -> CheckExample:
    was = {"inbox": Snapshot(SourceKind.MESSAGES)}
    now = {"inbox": Snapshot(SourceKind.MESSAGES, [make_item("000001", message)])}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


_REPLY = {
    "changed": "created",
    "count": 1,
    "fields": {"to": "ann.smith", "patient": "Patient/ann", "body": {"contains": "fasting"}},
}


@state_check(
    "message-sent",
    reads=[SourceKind.MESSAGES],
    settings=MessageSent,
    reader=MESSAGES,
    examples=[
        _example(
            _REPLY,
            b'{"folder": "sent", "to": "ann.smith", "patient": "Patient/ann", "body": "Please come fasting."}',
            "1",
        ),
        _example(
            _REPLY,
            b'{"folder": "sent", "to": "bob.jones", "patient": "Patient/bob", "body": "Please come fasting."}',
            "0",
        ),
        _example(
            _REPLY, b'{"folder": "sent", "to": "ann.smith", "patient": "Patient/ann", "body": "See you soon."}', "2/3"
        ),
    ],
)
def message_sent(asked: MessageSent, context: CheckContext) -> Checked | Missing:
    """A secure message was sent to the right reader, about the right patient, and says what it must."""
    return decide(asked, context, MESSAGES, {"folder": asked.folder.value})
