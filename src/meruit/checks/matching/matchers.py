"""Matchers: what a value must be, as an author writes it, compiled once.

A matcher reads every value at its path. One that fits is enough, unless the author writes `all`, `none` or a
negation. A path without values satisfies only matchers that ask for absence.

A required value must match exactly. A forbidden value must not even seem to match, with look-alike and invisible
characters replaced. So each matcher has two judges, and a negation uses the other one.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from meruit.checks.formats.hl7v2 import HL7_NULL
from meruit.checks.matching import coding as concepts
from meruit.checks.matching import ordering
from meruit.checks.matching.compare import (
    NOTHING,
    AnyValueJudge,
    Judge,
    TemplateValue,
    Values,
    WrongKindReason,
    combine_judges,
    format_value,
    list_of,
    parts_of,
    text_of,
)
from meruit.checks.matching.equality import Dialect, among, equals, same, same_set
from meruit.checks.matching.formulas import TemplateText
from meruit.checks.matching.ordering import within
from meruit.checks.values.confusables import unmask_value
from meruit.checks.values.decimals import format_decimal, numeral
from meruit.checks.values.speech import follows, words
from meruit.errors import AuthorError
from meruit.suggestions import nearest

__all__ = [
    "MAX_DEPTH",
    "MAX_PATTERN",
    "NOTHING",
    "OPERATORS",
    "WORDS",
    "Dialect",
    "Matcher",
    "Values",
    "format_value",
    "holds_template",
    "matcher",
    "same",
    "within",
]

MAX_PATTERN = 2_000
"""Characters of a regular expression."""
MAX_DEPTH = 20
"""The deepest nesting of matchers."""


# Any, in this file: a value of a document, or what an author wrote.
class Matcher(msgspec.Struct, frozen=True):
    """What the values at a path must be."""

    op: str
    expected: Any
    """As the author wrote it, every `${…}` filled in."""
    judge: Judge
    """Whether the values match."""
    seems: Judge
    """Whether the values seem to match to a person who reads them."""
    later: bool = False
    """Whether it has a `${…}` that is filled in when the check runs."""
    written: Any = None
    """What the evidence shows, where the filled-in value must not be shown."""


class Judges(NamedTuple):
    """Two judges: whether values match, and whether they seem to."""

    judge: Judge
    seems: Judge


def matcher(written: Any, dialect: Dialect = Dialect.JSON, depth: int = 0) -> Matcher:
    """Compile what an author wrote; raises AuthorError when it is not valid."""
    if depth > MAX_DEPTH:
        raise AuthorError(f"matchers are nested more than {MAX_DEPTH} deep")
    if holds_template(written):
        return Matcher(op="later", expected=written, judge=_not_yet, seems=_not_yet, later=True)
    if isinstance(written, str) and not isinstance(written, TemplateValue) and written in _BARE:
        return Matcher(op=written, expected=written, judge=_BARE[written], seems=_BARE[written])
    if isinstance(written, TemplateValue) or not isinstance(written, list | tuple | Mapping):
        return Matcher("equals", written, *_operator("equals", written, dialect, depth))
    if not isinstance(written, Mapping):
        raise AuthorError("a list is not a matcher: write {in: […]}, {set: […]} or {equals: […]}")
    if not written:
        raise AuthorError("an empty mapping is not a matcher; for example {equals: …} or {exists: true}")
    several = [_operator(name, given, dialect, depth + 1) for name, given in written.items()]
    if len(several) > 1:
        return Matcher("all_of", dict(written), *_combine(several))
    ((name, expected),) = written.items()
    return Matcher(name, expected, *several[0])


def holds_template(written: Any) -> bool:
    """Whether it has a `${…}` at any depth."""
    return any(
        isinstance(part, str) and not isinstance(part, TemplateValue) and "${" in part for part in parts_of(written)
    )


def _operator(name: Any, given: Any, dialect: Dialect, depth: int) -> Judges:
    compile_it = OPERATORS.get(name) if isinstance(name, str) else None
    if compile_it is None:
        known = nearest(str(name), OPERATORS)
        raise AuthorError(f"unknown matcher {name!r:.80}{known}; to compare with a mapping write {{equals: …}}")
    made = compile_it(given, dialect, depth)
    if isinstance(made, Judges):
        return made
    return Judges(made, _lookalike_judge(compile_it, made, given, dialect, depth) if name in _OF_TEXT else made)


def _lookalike_judge(compile_it: "Compile", judge: Judge, given: Any, dialect: Dialect, depth: int) -> Judge:
    """The judge that reads text without look-alike and invisible characters."""
    read = unmask_value(given)
    try:
        of_read = judge if read == given else compile_it(read, dialect, depth)
    except AuthorError:
        of_read = judge  # A pattern may be invalid once its full-width brackets are replaced.
    if isinstance(judge, AnyValueJudge) and isinstance(of_read, AnyValueJudge):
        test, test_read = judge.test, of_read.test

        def seems(value: Any) -> str | None:
            why = test(value)
            return why if why is None or test_read(unmask_value(value)) is not None else None

        return AnyValueJudge(seems)
    # Only operators that make one judge come here.
    as_read: Any = of_read
    return lambda values: None if judge(values) is None else as_read(unmask_value(values))


def _combine(several: Sequence[Judges]) -> Judges:
    return Judges(combine_judges([one.judge for one in several]), combine_judges([one.seems for one in several]))


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
        # RE2 takes linear time, so untrusted text cannot keep it busy.
        pattern = re2.compile(given.pattern if isinstance(given, TemplateText) else given, options)
    except re2.error as problem:
        # The library's message is bytes.
        why = b"".join(problem.args).decode("utf-8", "replace")
        raise AuthorError(f"{given!r:.80} is not a valid regular expression: {why}") from None
    except UnicodeEncodeError:
        raise AuthorError(f"{given!r:.80} has half of a surrogate pair") from None

    def test(value: Any) -> str | None:
        number = None if isinstance(value, str) else numeral(value)
        text = value if number is None else format_decimal(number)
        if not isinstance(text, str):
            return WrongKindReason(f"is {format_value(value)}, which is not text")
        # Half of a surrogate pair, which no pattern can match, becomes a question mark.
        whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
        return None if pattern.fullmatch(whole) else f"is {format_value(value)}"

    return AnyValueJudge(test)


def _contains(given: Any, _dialect: Dialect, _depth: int) -> Judge:
    wanted = text_of("contains", given)
    return AnyValueJudge(
        lambda value: None if any(wanted in text for text in concepts.words_of(value)) else f"is {format_value(value)}"
    )


def _says(given: Any, _dialect: Dialect, _depth: int) -> Judge:
    wanted = words(text_of("says", given))
    if not wanted:
        raise AuthorError(f"{given!r:.80} has no words")

    def test(value: Any) -> str | None:
        found = any(follows(words(text), wanted) for text in concepts.words_of(value))
        return None if found else f"says {format_value(value)}"

    return AnyValueJudge(test)


# Presence


def _says_something(value: Any) -> str | None:
    return f"is {format_value(value)}" if value in (None, "", [], {}) or value is HL7_NULL else None


def _absent(values: Values) -> str | None:
    if not values:
        return None
    return f"is {format_value(values[0])}" + ("; to allow null too, write null" if values[0] is None else "")


def _empty(values: Values) -> str | None:
    if not values:
        return f"{NOTHING}, which is not the same as empty"
    return next((f"is {format_value(value)}" for value in values if value not in ("", [], {})), None)


def _hl7_null(values: Values) -> str | None:
    return next((f"is {format_value(value)}" for value in values if value is not HL7_NULL), None) if values else NOTHING


_BARE: dict[str, Judge] = {
    "exists": AnyValueJudge(_says_something),
    "absent": _absent,
    "empty": _empty,
    "hl7_null": _hl7_null,
}
"""What may be written as one word; to compare with such a word write {equals: absent}."""


WORDS = frozenset(_BARE)
"""Their names."""


def _presence(name: str) -> Callable[[Any, Dialect, int], Judge]:
    opposite = {"exists": _BARE["absent"], "absent": _BARE["exists"]}.get(name) or _negate_judge(
        _BARE[name], _BARE[name]
    )

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


def _negate(judges: Judges) -> Judges:
    """Negate the judges; absence does not fulfil a negation."""
    return Judges(_negate_judge(judges.seems, judges.judge), _negate_judge(judges.judge, judges.judge))


def _negate_judge(judge: Judge, plain: Judge) -> Judge:
    def deny(values: Values) -> str | None:
        if not values:
            return f"{NOTHING}; to allow that too, write one_of: [absent, …]"
        why = judge(values)
        if why is None:
            hint = "" if plain(values) is None else ", which matches without its look-alike and invisible characters"
            return f"is {format_value(values[0] if len(values) == 1 else values)}{hint}"
        return why if isinstance(why, WrongKindReason) else None

    return deny


def _not(given: Any, dialect: Dialect, depth: int) -> Judges:
    denied = matcher(given, dialect, depth)
    if denied.judge is _BARE["exists"]:
        raise AuthorError("write absent instead of not exists")
    return _negate(_judges(denied))


def _not_in(given: Any, dialect: Dialect, depth: int) -> Judges:
    return _negate(_operator("in", list_of("not_in", given), dialect, depth))


def _judges(one: Matcher) -> Judges:
    return Judges(one.judge, one.seems)


def _any(given: Any, dialect: Dialect, depth: int) -> Judges:
    def some(judge: Judge) -> Judge:
        return judge if isinstance(judge, AnyValueJudge) else AnyValueJudge(lambda value: judge((value,)))

    return Judges(*map(some, _judges(matcher(given, dialect, depth))))


def _all(given: Any, dialect: Dialect, depth: int) -> Judges:
    return Judges(*map(_each, _judges(matcher(given, dialect, depth))))


def _each(judge: Judge) -> Judge:
    def every(values: Values) -> str | None:
        if not values:
            return NOTHING
        return next((why for value in values if (why := judge((value,))) is not None), None)

    return every


def _none(given: Any, dialect: Dialect, depth: int) -> Judges:
    def no(denied: Judge) -> Judge:
        # Unlike `not`, it accepts absence.
        return lambda values: next((why for value in values if (why := denied((value,))) is not None), None)

    return Judges(*map(no, _negate(_judges(matcher(given, dialect, depth)))))


def _one_of(given: Any, dialect: Dialect, depth: int) -> Judges:
    several = [matcher(one, dialect, depth) for one in list_of("one_of", given)]
    return Judges(_either([one.judge for one in several]), _either([one.seems for one in several]))


def _either(judges: Sequence[Judge]) -> Judge:
    def either(values: Values) -> str | None:
        whys = [judge(values) for judge in judges]
        if None in whys:
            return None
        return next((why for why in whys if isinstance(why, WrongKindReason)), whys[0])

    if all(isinstance(judge, AnyValueJudge) for judge in judges):
        return AnyValueJudge(lambda value: either((value,)))
    return either


def _all_of(given: Any, dialect: Dialect, depth: int) -> Judges:
    return _combine([_judges(matcher(one, dialect, depth)) for one in list_of("all_of", given)])


Compile = Callable[[Any, Dialect, int], Judge | Judges]
"""Compiles the value of an operator into a judge."""
OPERATORS: dict[str, Compile] = {
    "equals": equals,
    "in": lambda given, dialect, _: among("in", given, dialect),
    "not_in": _not_in,
    "not": _not,
    "matches": _matches,
    "contains": _contains,
    "says": _says,
    **{name: _presence(name) for name in _BARE},
    "count": _count,
    "gt": lambda given, *_: ordering.order_judge("gt", operator.gt, given),
    "gte": lambda given, *_: ordering.order_judge("gte", operator.ge, given),
    "lt": lambda given, *_: ordering.order_judge("lt", operator.lt, given),
    "lte": lambda given, *_: ordering.order_judge("lte", operator.le, given),
    "between": lambda given, *_: ordering.between(given),
    "near": lambda given, *_: ordering.near(given),
    "same_day": lambda given, *_: ordering.same_day(given),
    "before": lambda given, *_: ordering.time_judge("before", operator.lt, given),
    "after": lambda given, *_: ordering.time_judge("after", operator.gt, given),
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
_OF_TEXT = frozenset({"equals", "in", "matches", "contains", "says", "coding", "ref", "set"})
"""Matchers of text; numbers, dates and presence need no test for look-alike characters."""
