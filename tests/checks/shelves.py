"""A check of shelves of JSON, small enough to see what all checks of items have in common."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import Fields, SelectionAssertion, fields_of
from meruit.checks.framework.compile import Finding, prepare
from meruit.checks.framework.context import CheckContext
from meruit.checks.framework.selection import FieldResult, decide
from meruit.checks.matching.matchers import Dialect
from meruit.errors import AuthorError
from meruit.model.criterion import Assertion
from meruit.model.environment import FACTS_KEY, Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import Check

if TYPE_CHECKING:
    JsonFields = Fields
else:
    JsonFields = fields_of(Dialect.JSON, dotted.compile_path)
ROWS = frozenset({SourceKind.ROWS})


class Shelf(SelectionAssertion):
    """Books by what they are called."""

    book: str | None = None
    pages: int | None = None
    where: JsonFields = Field(default_factory=dict)
    fields: JsonFields = Field(default_factory=dict)


class Books:
    """Read as JSON; `book/1` is a book."""

    def parse(self, item: Item) -> Any:
        return dotted.read_json(item.content())

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        return dotted.values(document, dotted.compile_path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> None:
        dotted.compile_path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        if selector.keys() - {"book"}:
            raise AuthorError(f"books are found by book, not by {sorted(selector)}")
        wanted = selector.get("book")
        return lambda one, _document: wanted is None or one.key.startswith(f"{wanted}/")


BOOKS = Books()


def shelf(asked: Shelf, scene: CheckContext) -> Checked | Missing:
    """A shelf holds these books."""

    def more(document: Any) -> list[FieldResult]:
        found = document.get("pages")
        why = None if found == asked.pages else f"has {found} pages"
        return [] if asked.pages is None else [FieldResult("pages", "pages", asked.pages, found, why)]

    return decide(asked, scene, BOOKS, {} if asked.book is None else {"book": asked.book}, more)


SHELF = Check(
    # The first by name, so that `let` reads by its reader.
    name="a-shelf",
    summary="A shelf holds these books.",
    prepare=lambda assertion: prepare(assertion, Shelf, ROWS, shelf),
    kinds=ROWS,
    settings=Shelf,
    reader=BOOKS,
)


def snapshot(books: Mapping[str, bytes | str], **more: Any) -> Snapshot:
    return Snapshot(
        SourceKind.ROWS,
        [make_item(key, one if isinstance(one, bytes) else one.encode()) for key, one in books.items()],
        **more,
    )


def work(
    before: Mapping[str, bytes | str] | Snapshot | None,
    after: Mapping[str, bytes | str] | Snapshot,
    facts: Mapping[str, Any] | None = None,
) -> Work:
    """A shelf called `a`, before and after."""
    worlds = [one if isinstance(one, Snapshot) or one is None else snapshot(one) for one in (before, after)]
    given, done = (as_work_part({} if one is None else {"a": one}) for one in worlds)
    return Work(input=given | ({} if facts is None else {FACTS_KEY: dict(facts)}), output=done)


def run(on: Work, /, **asked: Any) -> Finding:
    """What the check has to say."""
    return SHELF.prepare(Assertion.model_validate({"assert": "a-shelf", **asked}))(on)


def scored(on: Work, /, **asked: Any) -> tuple[str, Mapping[str, Any]]:
    """Its score, and its evidence."""
    finding = run(on, **asked)
    assert isinstance(finding, Checked), finding
    return finding.score, finding.details or {}
