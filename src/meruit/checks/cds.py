"""Check `cds-card`: decision support that was shown, and whether the agent accepted or overrode it."""

from collections.abc import Callable, Mapping, Sequence
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
_SELECTORS = ("hook", "service")


class CdsCard(SelectionAssertion):
    """Which cards of decision support, and how they must have ended."""

    hook: str | None = Field(default=None, min_length=1, description="The hook that showed it, as order-select.")
    service: str | None = Field(default=None, min_length=1, description="The service that it came from.")

    @field_validator("where", "fields")
    @classmethod
    def _rules(cls, written: Any) -> Any:
        return _RULES.validate_python(written)

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The patient that the hook was called for."""
        return row_identity(path, rule)


class CardReader:
    """Reads cards."""

    def parse(self, item: Item) -> Any:
        """The card as it was shown, and what the agent did with it."""
        return dotted.read_json(item.content())

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a dotted path."""
        return dotted.values(document, _path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A dotted path."""
        return _path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Cards by `hook` and `service`."""
        for name in selector.keys() - {*_SELECTORS}:
            raise AuthorError(
                f"cards are not found by {name!r}{nearest(str(name), _SELECTORS)}, but by hook or service"
            )
        wanted = {name: value for name, value in selector.items() if value is not None}
        return lambda _item, card: isinstance(card, dict) and all(card.get(name) == one for name, one in wanted.items())


CARDS = CardReader()


def _example(asked: Mapping[str, Any], card: bytes, expect: str) -> CheckExample:
    was = {"cds": Snapshot(SourceKind.CDS)}
    now = {"cds": Snapshot(SourceKind.CDS, [make_item("000001", card)])}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


_HEEDED = {"hook": "order-select", "count": 1, "fields": {"patient": "ann", "outcome": "accepted"}}


@state_check(
    "cds-card",
    reads=[SourceKind.CDS],
    settings=CdsCard,
    reader=CARDS,
    examples=[
        _example(_HEEDED, b'{"hook": "order-select", "patient": "ann", "outcome": "accepted"}', "1"),
        _example(_HEEDED, b'{"hook": "order-select", "patient": "ann", "outcome": null}', "1/2"),
        _example(_HEEDED, b'{"hook": "order-select", "patient": "bob", "outcome": "accepted"}', "0"),
    ],
)
def cds_card(asked: CdsCard, context: CheckContext) -> Checked | Missing:
    """Decision support was shown for the right patient, and was accepted or overridden as it should be."""
    return decide(asked, context, CARDS, {"hook": asked.hook, "service": asked.service})
