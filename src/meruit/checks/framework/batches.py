"""Items that hold several documents, such as a batch of messages: each document is a candidate of its own."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from meruit.checks.framework.assertion import Fields, SelectionAssertion
from meruit.checks.framework.compile import validate_settings
from meruit.checks.framework.context import CheckContext, ItemReader
from meruit.checks.framework.selection import More, decide
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.environment import Item, Snapshot
from meruit.model.evidence import Checked, Missing


# Any, in this file: a value in a document.
class PathDocument(Mapping[str, Any]):
    """A document whose values have paths; when captured, formulas read them as `${sent["MSH-10"]}`."""

    @abstractmethod
    def at(self, path: str) -> tuple[Any, ...]:
        """Everything at a path."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Paths of whole segments, one for each name."""

    def __getitem__(self, path: str) -> Any:
        """The value at a path, or a list of several; KeyError where there is none."""
        found = self.at(path)
        if not found:
            raise KeyError(path)
        return found[0] if len(found) == 1 else list(found)

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self.names())

    def __len__(self) -> int:
        """How many names."""
        return len(self.names())


class DocumentSelector(Protocol):
    """Settings that select documents."""

    def selection_rules(self) -> Fields:
        """The rules of all settings that select documents."""


class DocumentBatch:
    """The documents of one item that holds several, or none."""

    def __init__(self, documents: Sequence[PathDocument]) -> None:
        self.documents = documents


class BatchReader:
    """Reads items that may hold several documents."""

    def __init__(
        self,
        split: Callable[[bytes], Sequence[PathDocument]],
        selector: type[Any],
        compile_path: Callable[[str], object],
    ) -> None:
        # Any: a model that is also a DocumentSelector, which the type system cannot express.
        self._split = split
        self._compile_path = compile_path
        self._selector = selector

    def parse(self, item: Item) -> PathDocument | DocumentBatch:
        """The document of an item, or its batch; raises UnreadableContent."""
        documents = self._split(item.content())
        return documents[0] if len(documents) == 1 else DocumentBatch(documents)

    def values(self, document: PathDocument | DocumentBatch, path: str) -> tuple[Any, ...]:
        """Everything at a path."""
        if isinstance(document, DocumentBatch):
            # Only `let` comes here: a check reads each document by itself. Choosing one would be a guess.
            raise AuthorError(
                f"{path} is in a batch of {len(document.documents)}; let reads only items with one document"
            )
        return document.at(path)

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A path into one document."""
        return self._compile_path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Which items hold a document that a selector means."""
        asked: DocumentSelector = validate_settings(self._selector, selector)
        try:
            meant = asked.selection_rules()
        except ValueError as problem:
            raise AuthorError(str(problem)) from None

        def fits(_item: Item, document: PathDocument | DocumentBatch) -> bool:
            several = document.documents if isinstance(document, DocumentBatch) else (document,)
            return any(all(rule.matcher.judge(one.at(path)) is None for path, rule in meant.items()) for one in several)

        return fits


def decide_each(
    asked: SelectionAssertion, meant: Fields, context: CheckContext, reader: BatchReader, more: More
) -> Checked | Missing:
    """Select, count, match and score each document of a batch by itself: `000001#2` is the second of `000001`.

    The selection rules are applied as `where` is, so that the evidence shows why the nearest candidates do not fit.
    """
    apart = _BatchSplitter(context, reader)
    before = None if context.before is None else apart.split(context.before)
    parted = msgspec.structs.replace(context, before=before, after=apart.split(context.after))
    finding = decide(asked.model_copy(update={"where": meant}), parted, apart, {}, more)
    looked_for = context.work_context.selected.get(context.source, set())
    # A batch is expected only if all of its messages are: one unexpected message is collateral.
    context.work_context.select(
        context.source, [whole for whole, parts in apart.parts.items() if looked_for.issuperset(parts)]
    )
    return finding


class _BatchSplitter:
    """Reads the parts of items as if they were items."""

    def __init__(self, context: CheckContext, reader: ItemReader) -> None:
        self.parts: dict[str, list[str]] = {}
        """The keys of the documents of each batch."""
        self._context = context
        self._reader = reader
        self._documents: dict[tuple[str, str], PathDocument | UnreadableContent] = {}

    def split(self, snapshot: Snapshot) -> Snapshot:
        """The same with an item for each document."""
        return msgspec.structs.replace(snapshot, items=[part for one in snapshot.items for part in self._items(one)])

    def _items(self, item: Item) -> Iterator[Item]:
        document = self._context.work_context.document(self._context.source, item, self._reader)
        if not isinstance(document, DocumentBatch):
            self._documents[item.key, item.version] = document
            yield item
            return
        width = len(str(len(document.documents)))
        keys = [f"{item.key}#{number:0{width}}" for number in range(1, len(document.documents) + 1)]
        if keys:
            self.parts[item.key] = keys
        for key, one in zip(keys, document.documents, strict=True):
            self._documents[key, item.version] = one
            yield msgspec.structs.replace(item, key=key)

    def parse(self, item: Item) -> PathDocument:
        """The document of a part; raises UnreadableContent."""
        document = self._documents[item.key, item.version]
        if isinstance(document, UnreadableContent):
            raise document
        return document

    def values(self, document: PathDocument, path: str) -> tuple[Any, ...]:
        """Everything at a path."""
        return document.at(path)

    def narrow(self, _selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Accept all items."""
        return lambda _item, _document: True
