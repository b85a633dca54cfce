"""JSON documents compared leaf by leaf."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from meruit.errors import AuthorError
from meruit.metrics.support.keywords import flag
from meruit.metrics.support.reference import ABSENT, MAX_CHARS, part_at, path_of
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.work import Work
from meruit.registry import Ask

MAX_LEAVES = 100_000
"""Leaves of a document that is compared."""
MAX_SHOWN = 20
"""Paths of each kind that evidence lists."""
MAX_IGNORED = 1_000

DOCUMENT_PARAMS = {
    "field": "the part of the output that is compared, as `answer` or `items.0`; a text there is read as JSON. By "
    "default the whole output, or its `text` where that is all it has",
    "reference": "the right document, where the work's input has no `reference`",
    "ignore": "paths that do not count, as [`id`, `items.*.price`]; `*` stands for any one step",
    "ignore_order": "true: lists are sorted before they are compared",
}

Path = tuple[str, ...]
Leaves = dict[Path, Any]

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LeafComparison:
    """The leaves of two documents, by path."""

    equal: int
    different: tuple[str, ...]
    missing: tuple[str, ...]
    """Leaves that only the reference has."""
    extra: tuple[str, ...]
    """Leaves that only the output has."""

    @property
    def reference_leaves(self) -> int:
        """How many leaves the reference has."""
        return self.equal + len(self.different) + len(self.missing)

    def to_details(self) -> dict[str, Any]:
        """What evidence keeps of it: how many, and the first paths that are wrong."""
        kinds = {"different": self.different, "missing": self.missing, "extra": self.extra}
        shown = {name: list(paths[:MAX_SHOWN]) for name, paths in kinds.items() if paths}
        return {"equal": self.equal, "counts": {name: len(paths) for name, paths in kinds.items()}, **shown}


def document_comparer(ask: Ask) -> Callable[[Work], LeafComparison | Missing]:
    """Compares a document of the output with the reference; raises AuthorError for invalid params."""
    path = path_of(ask) if "field" in ask.params else None
    ignored, sort = _paths_to_ignore(ask), flag(ask, "ignore_order")
    own: Leaves | None = None
    if "reference" in ask.params:
        leaves = _leaves(_parse_if_text(ask.params["reference"]), ignored, sort=sort)
        if not leaves:
            raise AuthorError("the param reference has nothing to compare with, too much, or is not JSON")
        own = leaves

    def compare(work: Work) -> LeafComparison | Missing:
        right = own if own is not None else _reference_leaves(work, ignored, sort=sort)
        if isinstance(right, Missing):
            return right
        document = _document(work, path)
        if isinstance(document, Missing):
            return document
        leaves = _leaves(document, ignored, sort=sort)
        if leaves is None:
            return _too_large("output", Fault.AGENT)
        return _compare_leaves(leaves, right)

    return compare


def _paths_to_ignore(ask: Ask) -> tuple[Path, ...]:
    value = ask.params.get("ignore", ())
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) and path for path in paths):
        raise AuthorError(f"the param ignore must be a list of paths, as items.*.price, not {value!r}")
    if len(paths) > MAX_IGNORED:
        raise AuthorError(f"the param ignore has {len(paths)} paths; the limit is {MAX_IGNORED}")
    return tuple(tuple(path.split(".")) for path in paths)


def _reference_leaves(work: Work, ignored: tuple[Path, ...], *, sort: bool) -> Leaves | Missing:
    if "reference" not in work.input:
        return Missing("the input has no reference to compare with", fault=Fault.AUTHOR)
    leaves = _leaves(_parse_if_text(work.input["reference"]), ignored, sort=sort)
    if leaves is None:
        return _too_large("reference", Fault.AUTHOR)
    return leaves or Missing("the input's reference has nothing to compare with", fault=Fault.AUTHOR)


def _too_large(which: str, fault: Fault) -> Missing:
    why = f"the {which} has more than {MAX_LEAVES} values, or is not JSON"
    return Missing(why, cause=Cause.TOO_COSTLY, fault=fault)


def _document(work: Work, path: Path | None) -> Any:
    """The part of the output that is compared; Missing where there is none, or its text is not JSON."""
    if path is None:
        only_text = len(work.output) == 1 and isinstance(work.output.get("text"), str)
        document = work.output["text"] if only_text else work.output
    else:
        document = part_at(work.output, path)
    if document is ABSENT:
        return Missing(f"the work lacks output.{'.'.join(path or ())}", fault=Fault.AGENT)
    if not isinstance(document, str):
        return document
    if len(document) > MAX_CHARS:
        return Missing(f"a text of {len(document)} characters is too long to be read as JSON", cause=Cause.TOO_COSTLY)
    # A text that is not JSON is compared as what it is: a text.
    return _parse_if_text(document)


def _parse_if_text(value: Any) -> Any:
    """A text that holds JSON as that JSON, with or without the fence that models put around it."""
    if not isinstance(value, str):
        return value
    fence = _FENCE.match(value)
    try:
        return orjson.loads(fence[1] if fence else value)
    except ValueError:
        return value


def _leaves(document: Any, ignored: tuple[Path, ...], *, sort: bool) -> Leaves | None:
    """Every value that is not a container, or an empty one, by its path; None where there are too many."""
    found: Leaves = {}
    waiting: list[tuple[Path, Any]] = [((), _sort_lists(document) if sort else document)]
    steps = 0
    while waiting:
        path, value = waiting.pop()
        steps += 1
        if steps > 2 * MAX_LEAVES:
            return None
        if any(_covers(pattern, path) for pattern in ignored):
            continue
        if isinstance(value, Mapping) and value:
            waiting.extend(((*path, str(name)), part) for name, part in value.items())
        elif isinstance(value, list | tuple) and value:
            waiting.extend(((*path, str(index)), part) for index, part in enumerate(value))
        else:
            found[path] = value
    return found


def _covers(pattern: Path, path: Path) -> bool:
    """Whether a path is the ignored one, or beneath it."""
    return len(pattern) <= len(path) and all(step in ("*", path[index]) for index, step in enumerate(pattern))


def _sort_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _sort_lists(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return sorted((_sort_lists(part) for part in value), key=_sort_key)
    return value


def _sort_key(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)


def _compare_leaves(given: Leaves, right: Leaves) -> LeafComparison:
    equal, different = 0, []
    for path, value in right.items():
        if path in given:
            if _is_equal(given[path], value):
                equal += 1
            else:
                different.append(path)
    return LeafComparison(
        equal=equal,
        different=_format_paths(different),
        missing=_format_paths(path for path in right if path not in given),
        extra=_format_paths(path for path in given if path not in right),
    )


def _format_paths(paths: Any) -> tuple[str, ...]:
    return tuple(sorted(".".join(path) or "(the whole)" for path in paths))


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two leaves are the same JSON: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    # 1 == 1.0 in Python as in JSON, and no two other types have equal values.
    return bool(one == other)
