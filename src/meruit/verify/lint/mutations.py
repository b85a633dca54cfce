"""Good work, damaged in many small ways: criteria worth having notice."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

MAX_PLACES = 200
"""How many places of an output are damaged, at most."""
MAX_DEPTH = 6
MAX_TEXT = 200_000
"""How long a text is blown up, in characters."""
MAX_ITEMS = 20_000
MAX_SIZE = 2_000_000
"""The most characters, words or items that a text or list is brought to because a criterion speaks of so many."""
MAX_AIMED = 1_000
"""How many mutants are made for the words and sizes of criteria, at most."""
MAX_ALONE = 20
"""How many of the words take a text's place, at most."""
HUGE = 1_000_000_000
"""Added to a number that is made too large, since a thousand times a very small one is still small."""

Path = tuple[str | int, ...]
Damage = Callable[[Any], Iterator[tuple[str, Any]]]
"""What can be done to one value: each with a name for it."""


class Mutant(msgspec.Struct, frozen=True):
    """A damaged copy, and what was done to it."""

    name: str
    output: Mapping[str, Any]
    metadata: Mapping[str, Any]


def mutants(
    output: Mapping[str, Any], metadata: Mapping[str, Any], *, words: Sequence[str] = (), sizes: Sequence[int] = ()
) -> Iterator[Mutant]:
    """Every mutant of one piece of work, the gravest first; the original is never changed.

    Words that criteria speak of are put in, and numbers, texts and lists are brought to the sizes that fail criteria.
    """
    for name, damage in _LEAF_DAMAGE.items():
        yield Mutant(name=f"every value {name}", output=_map_leaves(output, damage), metadata=metadata)
    yield from _everywhere(output, metadata, _mutations_of)
    for path in _places(output):
        yield Mutant(name=f"{_path_text(path)} dropped", output=_drop_at(output, path), metadata=metadata)
    yield Mutant(name="with more fields", output={**dict.fromkeys(("¤", *words), "¤"), **output}, metadata=metadata)
    aimed = _everywhere(output, metadata, lambda value: _mutations_aimed_at(value, words, sizes))
    yield from islice(aimed, MAX_AIMED)


def _everywhere(output: Mapping[str, Any], metadata: Mapping[str, Any], damage: Damage) -> Iterator[Mutant]:
    for path in _places(output):
        for name, damaged in damage(_at(output, path)):
            yield Mutant(
                name=f"{_path_text(path)} {name}", output=_replace_at(output, path, damaged), metadata=metadata
            )
    for key, value in metadata.items():
        for name, damaged in damage(value):
            yield Mutant(name=f"metadata.{key} {name}", output=output, metadata={**metadata, key: damaged})


def _mutations_of(value: Any) -> Iterator[tuple[str, Any]]:
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
            yield "blown up", _blow_up(value)
        case list():
            yield "emptied", []
            yield "cut in half", value[: len(value) // 2]
            yield "blown up", value * max(2, min(100, MAX_ITEMS // max(len(value), 1)))
        case _:
            yield "nulled", None
            yield "turned into text", "¤"


def _mutations_aimed_at(value: Any, words: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """What can be done to one value because criteria speak of these words and sizes."""
    fitting = [size for size in sizes if 0 < size <= MAX_SIZE]
    match value:
        case int() | float() if not isinstance(value, bool):
            yield from ((f"set to {size}", size) for size in sizes)
        case str():
            if words:
                yield "with the words of criteria added", " ".join((value, *words))
            for size in fitting:
                parts = value.split()[:size]
                yield f"brought to {size} characters", value[:size].ljust(size, "¤")
                yield f"brought to {size} words", " ".join(parts + ["¤"] * (size - len(parts)))
            yield from ((f"replaced by {word!r}", word) for word in islice(words, MAX_ALONE))
        case list():
            for size in fitting:
                yield f"brought to {size} items", value[:size] + [None] * (size - len(value))
        case _:
            pass


def _blow_up(text: str) -> str:
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


def _path_text(path: Path) -> str:
    return ".".join(map(str, path))


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _replace_at(value: Any, path: Path, new: Any) -> Any:
    """A copy with one place changed; only what lies on the way is copied."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    # The path was read off this very value, so its steps fit.
    copy[step] = _replace_at(value[step], rest, new)  # type: ignore[index]
    return copy


def _drop_at(value: Any, path: Path) -> Any:
    parent = _at(value, path[:-1])
    copy = dict(parent) if isinstance(parent, Mapping) else list(parent)
    # As above.
    del copy[path[-1]]  # type: ignore[arg-type]
    return _replace_at(value, path[:-1], copy)
