"""Good work, damaged in many small ways: criteria worth having notice."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

MAX_PLACES = 200
"""How many places of an output are damaged, at most."""
MAX_DEPTH = 6
MAX_TEXT = 200_000
"""How long a text is blown up, in characters."""
MAX_ITEMS = 20_000
HUGE = 1_000_000_000
"""Added to a number that is made too large, since a thousand times a very small one is still small."""

Path = tuple[str | int, ...]


class Mutant(NamedTuple):
    """A damaged copy, and what was done to it."""

    name: str
    output: Mapping[str, Any]
    metadata: Mapping[str, Any]


def mutants(output: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Mutant]:
    """Every mutant of one piece of work, the gravest first; the original is never changed."""
    for name, damage in _LEAF_DAMAGE.items():
        yield Mutant(f"every value {name}", _map_leaves(output, damage), metadata)
    for path in _places(output):
        where = ".".join(map(str, path))
        for name, damaged in _damaged(_at(output, path)):
            yield Mutant(f"{where} {name}", _replaced(output, path, damaged), metadata)
        yield Mutant(f"{where} dropped", _dropped(output, path), metadata)
    yield from _metadata_mutants(output, metadata)


def _metadata_mutants(output: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Mutant]:
    for key, value in metadata.items():
        for name, damaged in _damaged(value):
            yield Mutant(f"metadata.{key} {name}", output, {**metadata, key: damaged})


def _damaged(value: Any) -> Iterator[tuple[str, Any]]:
    """What can be done to one value."""
    match value:
        case bool():
            yield "negated", not value
        case int() | float():
            yield "set to 0", 0
            yield "set to 1", 1
            yield "made huge", abs(value) * 1000 + HUGE
            yield "made negative", -abs(value) * 1000 - HUGE
        case str():
            words = value.split()
            yield "emptied", ""
            yield "cut in half", value[: len(value) // 2]
            yield "with its words reversed", " ".join(reversed(words))
            yield "replaced", " ".join("¤" * max(len(word), 1) for word in words) or "¤"
            yield "blown up", _blown_up(value)
        case list():
            yield "emptied", []
            yield "cut in half", value[: len(value) // 2]
            yield "blown up", value * max(2, min(100, MAX_ITEMS // max(len(value), 1)))
        case _:
            yield "nulled", None
            yield "turned into text", "¤"


def _blown_up(text: str) -> str:
    unit = text + " ¤ "
    return unit * max(2, min(100, MAX_TEXT // len(unit)))


def _spoil(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return "¤" if isinstance(value, str) else value


_LEAF_DAMAGE: dict[str, Callable[[Any], Any]] = {
    "spoilt": _spoil,
    "set to 0": lambda value: 0 if isinstance(value, int | float) and not isinstance(value, bool) else value,
    "set to 1": lambda value: 1 if isinstance(value, int | float) and not isinstance(value, bool) else value,
}


def _places(output: Mapping[str, Any]) -> Iterator[Path]:
    """Where there is something to damage, breadth first and bounded."""
    waiting: list[tuple[Path, Any]] = [((key,), value) for key, value in islice(output.items(), MAX_PLACES)]
    for count, (path, value) in enumerate(waiting):
        if count >= MAX_PLACES:
            return
        yield path
        if len(path) < MAX_DEPTH and len(waiting) < MAX_PLACES:
            inside: Iterable[tuple[Any, Any]] = ()
            if isinstance(value, Mapping):
                inside = value.items()
            elif isinstance(value, list):
                inside = enumerate(value)
            waiting.extend(((*path, step), inner) for step, inner in islice(inside, MAX_PLACES))


def _map_leaves(value: Any, damage: Callable[[Any], Any], depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: _map_leaves(inner, damage, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_leaves(inner, damage, depth + 1) for inner in value]
    return damage(value)


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _replaced(value: Any, path: Path, new: Any) -> Any:
    """A copy with one place changed; only what lies on the way is copied."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    # The path was read off this very value, so its steps fit.
    copy[step] = _replaced(value[step], rest, new)  # type: ignore[index]
    return copy


def _dropped(value: Any, path: Path) -> Any:
    parent = _at(value, path[:-1])
    copy = dict(parent) if isinstance(parent, Mapping) else list(parent)
    # As above.
    del copy[path[-1]]  # type: ignore[arg-type]
    return _replaced(value, path[:-1], copy)
