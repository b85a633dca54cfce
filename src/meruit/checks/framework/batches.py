"""Items that hold several documents, as a batch of messages does: each document is a candidate by itself."""

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
    """A document whose values have paths; where it was captured, a formula names them so: `${sent["MSH-10"]}`."""

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
    """How authors say which documents they mean."""

    def selection_rules(self) -> Fields:
        """All that a document must be to be meant, whichever setting says so."""


class DocumentBatch:
    """The documents of one item that holds several, or none."""

    def __init__(self, documents: Sequence[PathDocument]) -> None:
        self.documents = documents


class BatchReader:
    """How items are read that may hold several documents."""

    def __init__(
        self,
        split: Callable[[bytes], Sequence[PathDocument]],
        selector: type[Any],
        compile_path: Callable[[str], object],
    ) -> None:
        # A type with Any: a model that is Correlated too, which no type can say.
        self._split = split
        self._compile_path = compile_path
        self._selector = selector

    def parse(self, item: Item) -> PathDocument | DocumentBatch:
        """The one document in an item, or the batch that it is; raises Unreadable."""
        documents = self._split(item.content())
        return documents[0] if len(documents) == 1 else DocumentBatch(documents)

    def values(self, document: PathDocument | DocumentBatch, path: str) -> tuple[Any, ...]:
        """Everything at a path."""
        if isinstance(document, DocumentBatch):
            # Only `let` comes here: a check looks at each by itself. Which one is meant would be a guess.
            raise AuthorError(f"{path} stands in a batch of {len(document.documents)}; let reads items that hold one")
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
    asked: SelectionAssertion, meant: Fields, scene: CheckContext, reader: BatchReader, more: More
) -> Checked | Missing:
    """Select, count, match and score, each document of a batch by itself: `000001#2` is the second of `000001`.

    What is meant is looked for as `where` is, so that the evidence shows what keeps the nearest from being meant.
    """
    apart = _BatchSplitter(scene, reader)
    before = None if scene.before is None else apart.split(scene.before)
    parted = scene._replace(before=before, after=apart.split(scene.after))
    finding = decide(asked.model_copy(update={"where": meant}), parted, apart, {}, more)
    looked_for = scene.work_context.selected.get(scene.source, set())
    # A batch is as expected only if all of it is: one message that nobody looks for is collateral.
    scene.work_context.select(
        scene.source, [whole for whole, parts in apart.parts.items() if looked_for.issuperset(parts)]
    )
    return finding


class _BatchSplitter:
    """Reads the parts of items as if they were items."""

    def __init__(self, scene: CheckContext, reader: ItemReader) -> None:
        self.parts: dict[str, list[str]] = {}
        """The keys of the documents of each batch."""
        self._scene = scene
        self._reader = reader
        self._documents: dict[tuple[str, str], PathDocument | UnreadableContent] = {}

    def split(self, snapshot: Snapshot) -> Snapshot:
        """The same with an item for each document."""
        return msgspec.structs.replace(snapshot, items=[part for one in snapshot.items for part in self._items(one)])

    def _items(self, item: Item) -> Iterator[Item]:
        document = self._scene.work_context.document(self._scene.source, item, self._reader)
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
        """The document of a part; raises Unreadable."""
        document = self._documents[item.key, item.version]
        if isinstance(document, UnreadableContent):
            raise document
        return document

    def values(self, document: PathDocument, path: str) -> tuple[Any, ...]:
        """Everything at a path."""
        return document.at(path)

    def narrow(self, _selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """All of them."""
        return lambda _item, _document: True
