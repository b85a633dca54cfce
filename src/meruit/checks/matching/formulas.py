"""Formulas over the state before the run: simple arithmetic, interpreted from its syntax tree and never run as code."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final

from meruit.checks.matching.compare import TemplateValue, parts_of
from meruit.checks.values.decimals import format_decimal, numeral
from meruit.errors import AuthorError, UnknownFormulaValue

MAX_FORMULA = 500
"""Characters of one formula."""
MAX_NODES = 200
"""Parts of one formula."""
MAX_BITS = 4_000
"""The longest numerator or denominator while computing; real formulas stay far below."""
MAX_PLACES = 100
"""Decimal places to which a number can be rounded."""
_RESULT = Context(prec=60)
_TEMPLATE = re.compile(r"\$\{([^{}]*)\}")

# Any, in this file: a value of a document, or what an author wrote.
_ARITHMETIC: dict[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ORDER: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "round": lambda number, places=Fraction(0): _round_to_places(number, places),
}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_SIGNS = (ast.Load, ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_PARTS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Name, ast.Attribute, ast.Subscript, ast.List)
_FINE = (*_SIGNS, *_PARTS, *_ARITHMETIC, *_ORDER)


ANY_VALUE: Final = object()
"""Stands for a value that is not known before the check runs."""


class Formula:
    """A compiled expression; raises AuthorError for one that is not valid."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if not self.text or len(self.text) > MAX_FORMULA:
            raise AuthorError(f"a formula must have 1 to {MAX_FORMULA} characters")
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise AuthorError(f"{self.text!r} is not a valid formula; for example (3.5 - k) / 0.1 * 10") from None
        parts = list(ast.walk(self._tree))
        if len(parts) > MAX_NODES or "\\" in self.text:
            raise AuthorError(f"{self.text!r} has too many parts, or a backslash")
        self._numbers: dict[ast.Constant, Fraction] = {}
        for part in parts:
            self._allow(part)
        named = {part.id for part in parts if isinstance(part, ast.Name)}
        self.names = frozenset(named - _WORDS.keys() - _FUNCTIONS.keys())
        """The names that it uses."""

    def value(self, names: Mapping[str, Any]) -> Any:
        """Compute a Decimal, text, truth value or part of a document; raises UnknownFormulaValue or AuthorError."""
        try:
            found = self._value(self._tree, names)
        except ZeroDivisionError:
            raise AuthorError(f"{self.text}: division by zero") from None
        except (TypeError, ValueError, ArithmeticError):
            raise AuthorError(f"{self.text} cannot be computed from these values") from None
        if isinstance(found, Fraction):
            return _RESULT.divide(Decimal(found.numerator), Decimal(found.denominator))
        return found

    def unknown(self, names: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
        """Yield each reference that these names cannot give, once, and the names that are known there."""
        seen = set[str]()
        for part in ast.walk(self._tree):
            chain = _chain(part)
            found: Any = names
            for place, step in enumerate(chain):
                if found is ANY_VALUE or (step in self._reserved and not place):
                    break
                if not _has_member(found, step):
                    reference = ".".join(map(str, chain[: place + 1]))
                    if reference not in seen:
                        seen.add(reference)
                        yield reference, sorted(map(str, found)) if isinstance(found, Mapping) else []
                    break
                found = found[step]

    _reserved = frozenset({*_WORDS, *_FUNCTIONS})

    def _allow(self, part: ast.AST) -> None:
        match part:
            case ast.Constant(value=bool() | None | str()):
                pass
            case ast.Constant(value=int() | float()):
                self._numbers[part] = self._literal(part)
            case ast.Attribute(attr=name) | ast.Name(id=name) if name.startswith("_"):
                raise AuthorError(
                    f'{self.text!r}: a name must not begin with an underscore; a member may, as in a["{name}"]'
                )
            case ast.BinOp(left=one, right=other):
                self._check_numbers(one, other)
            case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
                self._check_numbers(*given)
            case _ if isinstance(part, _FINE):
                pass
            case _:
                raise AuthorError(
                    f"{self.text!r} uses {type(part).__name__}, which formulas do not support; "
                    "use numbers, names, + - * /, comparisons, and, or, not, min, max, abs, round"
                )

    def _literal(self, part: ast.Constant) -> Fraction:
        """The number as written: 0.1 is a tenth."""
        number = numeral(part.value if isinstance(part.value, int) else self._source_of(part))
        if number is None:
            raise AuthorError(f"{self.text!r}: {self._source_of(part)} is not a usable number")
        return Fraction(number)

    def _check_numbers(self, *several: ast.expr) -> None:
        for one in several:
            if isinstance(one, ast.List) or (isinstance(one, ast.Constant) and isinstance(one.value, str)):
                raise AuthorError(f"{self.text!r} calculates with {self._source_of(one)}, which is not a number")

    def _source_of(self, part: ast.expr) -> str:
        return ast.get_source_segment(self.text, part) or self.text

    def _value(self, part: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one a kind of part
        match part:
            case ast.Constant():
                return self._numbers.get(part, part.value)
            case ast.Name(id=name) if name in _WORDS:
                return _WORDS[name]
            case ast.Name(id=name):
                if name not in names:
                    raise UnknownFormulaValue(f"unknown name {name}")
                return _to_exact(names[name])
            case ast.Attribute(value=inner, attr=name):
                return self._member(self._value(inner, names), name, part)
            case ast.Subscript(value=inner, slice=place):
                return self._member(self._value(inner, names), self._value(place, names), part)
            case ast.List(elts=several):
                return [self._value(one, names) for one in several]
            case _:
                return self._compute(part, names)

    def _compute(self, part: ast.expr, names: Mapping[str, Any]) -> Any:
        match part:
            case ast.BinOp(left=left, op=op, right=right):
                return _limit_size(_ARITHMETIC[type(op)](self._number(left, names), self._number(right, names)))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return not self._value(inner, names)
            case ast.UnaryOp(op=op, operand=inner):
                return -self._number(inner, names) if isinstance(op, ast.USub) else self._number(inner, names)
            case ast.BoolOp(op=op, values=several):
                judged = (bool(self._value(one, names)) for one in several)
                return all(judged) if isinstance(op, ast.And) else any(judged)
            case ast.Compare(left=left, ops=ops, comparators=others):
                found = [self._value(one, names) for one in (left, *others)]
                return all(_compare(op, one, other) for op, one, other in zip(ops, found[:-1], found[1:], strict=True))
            case ast.Call(func=ast.Name(id=name), args=given):
                return _limit_size(_FUNCTIONS[name](*(self._number(one, names) for one in given)))
            case _:
                raise AuthorError(f"{self._source_of(part)} is not part of a formula")

    def _number(self, part: ast.expr, names: Mapping[str, Any]) -> Fraction:
        found = self._value(part, names)
        number = found if isinstance(found, Fraction) else _read(found)
        if number is None:
            raise UnknownFormulaValue(f"{self._source_of(part)} is not a number")
        return number

    def _member(self, found: Any, name: Any, part: ast.expr) -> Any:
        if isinstance(found, Mapping) and isinstance(name, str) and name in found:
            return _to_exact(found[name])
        if isinstance(found, list) and isinstance(name, Fraction) and name.denominator == 1 and 0 <= name < len(found):
            return _to_exact(found[int(name)])
        raise UnknownFormulaValue(f"{self._source_of(part)} does not exist")


def _chain(part: ast.AST) -> tuple[str | int, ...]:
    """The name and the members that a part refers to, as far as they are written out; empty for other parts."""
    match part:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=inner, attr=name) | ast.Subscript(value=inner, slice=ast.Constant(value=str(name))):
            return (*outer, name) if (outer := _chain(inner)) else ()
        case ast.Subscript(value=inner, slice=ast.Constant(value=int(place))):
            return (*outer, place) if (outer := _chain(inner)) else ()
        case _:
            return ()


def _has_member(found: Any, step: str | int) -> bool:
    if isinstance(found, list):
        return isinstance(step, int) and 0 <= step < len(found)
    return isinstance(found, Mapping) and step in found


def _to_exact(found: Any) -> Any:
    """Make numbers exact; text stays text until a formula calculates with it."""
    if isinstance(found, bool) or not isinstance(found, int | float | Decimal):
        return found
    number = _read(found)
    if number is None:
        raise UnknownFormulaValue("a value is a number that cannot be calculated with")
    return number


def _read(found: Any) -> Fraction | None:
    number = numeral(found)
    return None if number is None else Fraction(number)


def _round_to_places(number: Fraction, places: Fraction) -> Fraction:
    if places.denominator != 1 or abs(places) > MAX_PLACES:
        raise AuthorError(f"round takes a whole number of places, at most {MAX_PLACES}")
    return Fraction(round(number, int(places)))


def _limit_size(found: Fraction) -> Fraction:
    if max(found.numerator.bit_length(), found.denominator.bit_length()) > MAX_BITS:
        raise AuthorError("the formula gives a number that is too long")
    return found


def _compare(sign: ast.cmpop, left: Any, right: Any) -> bool:
    match sign:
        case ast.Eq() | ast.NotEq():
            return _equal(left, right) is isinstance(sign, ast.Eq)
        case ast.In() | ast.NotIn():
            holds = any(_equal(left, one) for one in right) if isinstance(right, list) else left in right
            return holds is isinstance(sign, ast.In)
        case _:
            if isinstance(left, Fraction) or isinstance(right, Fraction):
                left, right = (one if isinstance(one, Fraction) else _require_number(one) for one in (left, right))
            return _ORDER[type(sign)](left, right)


def _require_number(found: Any) -> Fraction:
    number = _read(found)
    if number is None:
        raise UnknownFormulaValue(f"{found!r:.80} is not a number")
    return number


def _equal(left: Any, right: Any) -> bool:
    """Compare values; HL7 and X12 write numbers as text, so a number is also compared with the number in a text."""
    left, right = _to_exact(left), _to_exact(right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Fraction) is not isinstance(right, Fraction):
        left, right = (one if isinstance(one, Fraction) else _read(one) for one in (left, right))
    return bool(left == right)


def formulas_in(written: Any) -> Iterator[Formula]:
    """Every `${…}` at any depth; raises AuthorError for one that is not a valid formula."""
    for text in parts_of(written):
        if isinstance(text, str) and not isinstance(text, TemplateValue) and "${" in text:
            yield from map(Formula, _TEMPLATE.findall(text))
            if "${" in _TEMPLATE.sub("", text):
                raise AuthorError(f"{text!r:.80}: a ${{ without its closing brace")


def check_templates(written: Any) -> None:
    """Refuse a `${…}` at any depth that is not a valid formula."""
    for _ in formulas_in(written):
        pass


class TemplateText(TemplateValue, str):
    """A text with something filled in."""

    __slots__ = ("pattern",)
    pattern: str
    """The same as a regular expression, with the filled-in part escaped."""


class TemplateMapping(TemplateValue, dict[str, Any]):
    """A mapping that was filled in."""


class TemplateList(TemplateValue, list[Any]):
    """A list that was filled in."""


def fill_templates(written: Any, names: Mapping[str, Any]) -> Any:
    """Replace every `${…}`: alone it becomes the value itself, inside a text it becomes text."""
    match written:
        case str():
            return _fill_text(written, names) if "${" in written else written
        case Mapping():
            return {key: fill_templates(value, names) for key, value in written.items()}
        case list() | tuple():
            return [fill_templates(value, names) for value in written]
        case _:
            return written


def _fill_text(written: str, names: Mapping[str, Any]) -> Any:
    whole = _TEMPLATE.fullmatch(written)
    if whole is not None:
        value = Formula(whole[1]).value(names)
        if isinstance(value, Mapping | list):
            return TemplateMapping(value) if isinstance(value, Mapping) else TemplateList(value)
        if not isinstance(value, str):
            return value

    def compute_text(found: re.Match[str]) -> str:
        return _as_text(Formula(found[1]).value(names))

    text = TemplateText(_TEMPLATE.sub(compute_text, written))
    text.pattern = _TEMPLATE.sub(lambda found: re.escape(compute_text(found)), written)
    return text


def _as_text(value: Any) -> str:
    return format_decimal(value) if isinstance(value, Decimal) else str(value)
