"""Lists that a criterion wants to find in an output, and the share that was found."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from meruit.errors import AuthorError
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure
from meruit.suggestions import nearest

MAX_WANTED = 1_000
"""Keywords, patterns or fields in one list."""
MAX_WANTED_CHARS = 2_000
"""Length of each."""
MAX_PREPARED = 32
"""How many lists of inputs a metric remembers prepared."""


_TEXT = frozenset({str})


class PresenceSearch(msgspec.Struct, frozen=True):
    """A list to search for, and the prepared search."""

    wanted: tuple[str, ...]
    find: Callable[[Work], list[str] | Missing]


def check_params(ask: Ask, metric: str, known: Mapping[str, str]) -> None:
    """Refuse a param that the metric does not have."""
    for name in ask.params:
        if name not in known:
            raise AuthorError(f"{metric} has no param {name!r}{nearest(str(name), known)}; it takes {', '.join(known)}")


def flag(ask: Ask, name: str) -> bool:
    """A param that is true or false, and false when not given."""
    value = ask.params.get(name, False)
    if not isinstance(value, bool):
        raise AuthorError(f"the param {name} must be true or false, not {value!r}")
    return value


def choice(ask: Ask, name: str, known: Sequence[str]) -> str:
    """A param that is one of a few words; the first of them when not given."""
    value = ask.params.get(name, known[0])
    if value not in known:
        raise AuthorError(f"the param {name} is one of {', '.join(known)}, not {value!r}{nearest(str(value), known)}")
    return str(value)


def _distinct_texts(value: Any, name: str) -> tuple[str, ...]:
    """The distinct texts of a list, or of one text alone."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise AuthorError(f"{name} is empty, so it can never fail; list at least one")
    if len(values) > MAX_WANTED:
        raise AuthorError(f"{name} has {len(values)} entries; the limit is {MAX_WANTED}")
    return tuple(dict.fromkeys(_text_of(item, name) for item in values))


def _text_of(item: Any, name: str) -> str:
    # Other numbers lose their spelling: 1.10 arrives as 1.1, which is also part of 1.15.
    if isinstance(item, bool) or not isinstance(item, str | int):
        raise AuthorError(
            f"{name} may have only texts and whole numbers, not {type(item).__name__}; quote it, as in '1.10'"
        )
    try:
        text = str(item)
    except ValueError:
        raise AuthorError(f"{name} has a number with too many digits; quote it") from None
    if not text.strip():
        raise AuthorError(f"{name} has an empty text, which every output contains; remove it")
    if len(text) > MAX_WANTED_CHARS:
        raise AuthorError(f"{name} has a text of {len(text)} characters; the limit is {MAX_WANTED_CHARS}")
    return text


def _texts_of_criterion(ask: Ask, *params: str) -> tuple[str, ...] | None:
    """What the criterion itself lists: in its threshold, or else in its params."""
    if ask.wanted:
        return _distinct_texts(ask.wanted, "the threshold")
    given = [name for name in params if name in ask.params]
    if len(given) > 1:
        raise AuthorError(f"use one of {' and '.join(given)}, not both")
    return _distinct_texts(ask.params[given[0]], f"the param {given[0]}") if given else None


def _listed(given: Mapping[str, Any], inputs: tuple[str, ...]) -> str | None:
    """The first of these inputs that lists something."""
    for name in inputs:
        if name in given and given[name] not in (None, []):
            return name
    return None


def measure_share(
    ask: Ask, params: tuple[str, ...], inputs: tuple[str, ...], make: Callable[[tuple[str, ...]], PresenceSearch]
) -> Measure:
    """Measure the share found of what the criterion lists, or else of what the work's input lists."""
    asked = _texts_of_criterion(ask, *params)
    # Works of one kind often list the same in their input.
    prepare = lru_cache(MAX_PREPARED)(make)

    @lru_cache(MAX_PREPARED)
    def prepare_texts(texts: tuple[str, ...], name: str) -> PresenceSearch:
        return make(_distinct_texts(texts, name))

    def search_of(value: Any, name: str) -> PresenceSearch:
        # Texts need not be examined again; other equal values, as 1 and true, are not the same.
        if value.__class__ is list and _TEXT.issuperset(map(type, value)):
            return prepare_texts(tuple(value), name)
        return prepare(_distinct_texts(value, name))

    def measure(work: Work) -> Finding:
        listed = _listed(work.input, inputs)
        if listed is None:
            places = ", ".join((*(f"params.{name}" for name in params), *(f"input.{name}" for name in inputs)))
            return Missing(f"no list to search for; set one as {places}", fault=Fault.AUTHOR)
        try:
            search = search_of(work.input[listed], f"input.{listed}")
        except AuthorError as problem:
            return Missing(str(problem), cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)
        return _measure_search(search, work)

    if asked is None:
        return measure
    prepared = make(asked)
    return partial(_measure_search, prepared)


def _measure_search(search: PresenceSearch, work: Work) -> Finding:
    found, wanted = search.find(work), search.wanted
    if isinstance(found, Missing):
        return found
    missing = [] if len(found) == len(wanted) else [text for text in wanted if text not in found]
    return Measured(len(found) / len(wanted), {"found": found, "missing": missing})
