"""Matchers: what a value must be, as an author writes it, compiled once.

A matcher looks at every value that its path found. One that fits is enough, unless the author says `all`, `none` or a
negation; and a path that found nothing satisfies only those that ask for absence.
"""

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from meruit.checks import concepts, ordering
from meruit.checks.equality import Dialect, among, equals, same, same_set
from meruit.checks.er7 import HL7_NULL
from meruit.checks.formulas import GivenText
from meruit.checks.judging import (
    NOTHING,
    Given,
    Judge,
    Odd,
    Some,
    Values,
    listed,
    parts_of,
    shown,
    text_of,
    together,
)
from meruit.checks.numerals import numeral, plainly
from meruit.checks.ordering import within
from meruit.checks.spoken import follows, words
from meruit.model.errors import AuthorError, nearest

__all__ = [
    "MAX_DEPTH",
    "MAX_PATTERN",
    "NOTHING",
    "OPERATORS",
    "WORDS",
    "Dialect",
    "Matcher",
    "Values",
    "holds_template",
    "matcher",
    "same",
    "shown",
    "within",
]

MAX_PATTERN = 2_000
"""Characters of a regular expression."""
MAX_DEPTH = 20
"""How deep matchers may stand inside matchers."""


# Any, in this file: what stands in a document, or whatever an author wrote.
class Matcher(NamedTuple):
    """What the values at a path must be."""

    op: str
    expected: Any
    """As the author wrote it, every `${…}` filled in."""
    judge: Judge
    later: bool = False
    """Whether it holds a `${…}` that is only known when the check runs."""
    written: Any = None
    """How it is shown, where what was filled in must not be."""


def matcher(written: Any, dialect: Dialect = Dialect.JSON, depth: int = 0) -> Matcher:
    """Compile what an author wrote; AuthorError for what cannot be meant."""
    if depth > MAX_DEPTH:
        raise AuthorError(f"matchers stand more than {MAX_DEPTH} deep inside each other")
    if holds_template(written):
        return Matcher("later", written, _not_yet, later=True)
    if isinstance(written, Given) or not isinstance(written, str | list | tuple | Mapping):
        return Matcher("equals", written, equals(written, dialect))
    if isinstance(written, str):
        is_word = written in _BARE
        return Matcher(
            written if is_word else "equals", written, _BARE[written] if is_word else equals(written, dialect)
        )
    if not isinstance(written, Mapping):
        raise AuthorError("a list is no matcher: write {in: […]}, {set: […]} or {equals: […]}")
    if not written:
        raise AuthorError("an empty mapping is no matcher; for example {equals: …} or {exists: true}")
    judges = [_operator(name, given, dialect, depth + 1) for name, given in written.items()]
    if len(judges) > 1:
        return Matcher("all_of", dict(written), together(judges))
    ((name, expected),) = written.items()
    return Matcher(name, expected, judges[0])


def holds_template(written: Any) -> bool:
    """Whether a `${…}` stands somewhere in it."""
    return any(isinstance(part, str) and not isinstance(part, Given) and "${" in part for part in parts_of(written))


def _operator(name: Any, given: Any, dialect: Dialect, depth: int) -> Judge:
    compile_it = OPERATORS.get(name) if isinstance(name, str) else None
    if compile_it is None:
        known = nearest(str(name), OPERATORS)
        raise AuthorError(f"no matcher is called {name!r:.80}{known}; to compare with a mapping write {{equals: …}}")
    return compile_it(given, dialect, depth)


def _not_yet(_values: Values) -> str | None:
    return "its ${…} was never filled in"


# Text


def _matches(given: Any, _dialect: Dialect, _depth: int) -> Judge:
    import re2  # a library of its own, and few authors need it

    if not isinstance(given, str) or len(given) > MAX_PATTERN:
        raise AuthorError(f"matches takes a regular expression of at most {MAX_PATTERN:,} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        # Linear in the text, whatever the pattern: nobody's message can keep it busy.
        pattern = re2.compile(given.pattern if isinstance(given, GivenText) else given, options)
    except re2.error as problem:
        # It explains itself in bytes.
        why = b"".join(problem.args).decode("utf-8", "replace")
        raise AuthorError(f"{given!r:.80} is no regular expression: {why}") from None
    except UnicodeEncodeError:
        raise AuthorError(f"{given!r:.80} holds half a character") from None

    def test(value: Any) -> str | None:
        number = None if isinstance(value, str) else numeral(value)
        text = value if number is None else plainly(number)
        if not isinstance(text, str):
            return Odd(f"is {shown(value)}, which is no text")
        # Half a character, which no pattern can name, becomes a question mark.
        whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
        return None if pattern.fullmatch(whole) else f"is {shown(value)}"

    return Some(test)


def _contains(given: Any, _dialect: Dialect, _depth: int) -> Judge:
    wanted = text_of("contains", given)
    return Some(
        lambda value: None if any(wanted in text for text in concepts.words_of(value)) else f"is {shown(value)}"
    )


def _says(given: Any, _dialect: Dialect, _depth: int) -> Judge:
    wanted = words(text_of("says", given))
    if not wanted:
        raise AuthorError(f"{given!r:.80} holds no word that could be said")

    def test(value: Any) -> str | None:
        said = any(follows(words(text), wanted) for text in concepts.words_of(value))
        return None if said else f"says {shown(value)}"

    return Some(test)


# Presence


def _says_something(value: Any) -> str | None:
    return f"is {shown(value)}" if value in (None, "", [], {}) or value is HL7_NULL else None


def _absent(values: Values) -> str | None:
    if not values:
        return None
    return f"is {shown(values[0])}" + ("; where null is fine too, write null" if values[0] is None else "")


def _empty(values: Values) -> str | None:
    if not values:
        return f"{NOTHING}, which is not the same as empty"
    return next((f"is {shown(value)}" for value in values if value not in ("", [], {})), None)


def _hl7_null(values: Values) -> str | None:
    return next((f"is {shown(value)}" for value in values if value is not HL7_NULL), None) if values else NOTHING


_BARE: dict[str, Judge] = {
    "exists": Some(_says_something),
    "absent": _absent,
    "empty": _empty,
    "hl7_null": _hl7_null,
}
"""What may be written as one word; to compare with such a word write {equals: absent}."""


WORDS = frozenset(_BARE)
"""Their names."""


def _presence(name: str) -> Callable[[Any, Dialect, int], Judge]:
    opposite = {"exists": _BARE["absent"], "absent": _BARE["exists"]}.get(name) or _denied(_BARE[name])

    def compile_it(given: Any, _dialect: Dialect, _depth: int) -> Judge:
        if not isinstance(given, bool):
            raise AuthorError(f"{name} takes true or false")
        return _BARE[name] if given else opposite

    return compile_it


def _count(given: Any, _dialect: Dialect, depth: int) -> Judge:
    number = None if isinstance(given, str) else numeral(given)
    if not isinstance(given, Mapping) and (number is None or number < 0 or Fraction(number).denominator > 1):
        raise AuthorError("count takes a whole number, or a matcher of one, as {gte: 1}")
    wanted = matcher(given, Dialect.JSON, depth)
    return lambda values: None if wanted.judge((len(values),)) is None else f"has {len(values):,} values"


# Several


def _denied(judge: Judge) -> Judge:
    """The opposite of what another says of all that was found; nothing is not something else."""

    def deny(values: Values) -> str | None:
        if not values:
            return f"{NOTHING}; where that is fine too, write one_of: [absent, …]"
        why = judge(values)
        if why is None:
            return f"is {shown(values[0] if len(values) == 1 else values)}"
        return why if isinstance(why, Odd) else None

    return deny


def _not(given: Any, dialect: Dialect, depth: int) -> Judge:
    denied = matcher(given, dialect, depth)
    if denied.judge is _BARE["exists"]:
        raise AuthorError("not exists is written absent")
    return _denied(denied.judge)


def _any(given: Any, dialect: Dialect, depth: int) -> Judge:
    judge = matcher(given, dialect, depth).judge
    return judge if isinstance(judge, Some) else Some(lambda value: judge((value,)))


def _all(given: Any, dialect: Dialect, depth: int) -> Judge:
    judge = matcher(given, dialect, depth).judge

    def every(values: Values) -> str | None:
        if not values:
            return NOTHING
        return next((why for value in values if (why := judge((value,))) is not None), None)

    return every


def _none(given: Any, dialect: Dialect, depth: int) -> Judge:
    denied = _denied(matcher(given, dialect, depth).judge)
    # Unlike `not`, it is content with nothing: that is what it asks for.
    return lambda values: next((why for value in values if (why := denied((value,))) is not None), None)


def _one_of(given: Any, dialect: Dialect, depth: int) -> Judge:
    judges = [matcher(one, dialect, depth).judge for one in listed("one_of", given)]

    def either(values: Values) -> str | None:
        whys = [judge(values) for judge in judges]
        if None in whys:
            return None
        return next((why for why in whys if isinstance(why, Odd)), whys[0])

    if all(isinstance(judge, Some) for judge in judges):
        return Some(lambda value: either((value,)))
    return either


def _all_of(given: Any, dialect: Dialect, depth: int) -> Judge:
    return together([matcher(one, dialect, depth).judge for one in listed("all_of", given)])


OPERATORS: dict[str, Callable[[Any, Dialect, int], Judge]] = {
    "equals": equals,
    "in": lambda given, dialect, _: among("in", given, dialect),
    "not_in": lambda given, dialect, _: _denied(among("not_in", given, dialect)),
    "not": _not,
    "matches": _matches,
    "contains": _contains,
    "says": _says,
    **{name: _presence(name) for name in _BARE},
    "count": _count,
    "gt": lambda given, *_: ordering.ordered("gt", operator.gt, given),
    "gte": lambda given, *_: ordering.ordered("gte", operator.ge, given),
    "lt": lambda given, *_: ordering.ordered("lt", operator.lt, given),
    "lte": lambda given, *_: ordering.ordered("lte", operator.le, given),
    "between": lambda given, *_: ordering.between(given),
    "near": lambda given, *_: ordering.near(given),
    "same_day": lambda given, *_: ordering.same_day(given),
    "before": lambda given, *_: ordering.timed("before", operator.lt, given),
    "after": lambda given, *_: ordering.timed("after", operator.gt, given),
    "around": lambda given, *_: ordering.around(given),
    "coding": lambda given, *_: concepts.coding(given),
    "ref": lambda given, *_: concepts.reference(given),
    "quantity": lambda given, *_: concepts.quantity(given),
    "any": _any,
    "all": _all,
    "none": _none,
    "one_of": _one_of,
    "all_of": _all_of,
    "set": same_set,
}
"""Every matcher that an author can write."""
