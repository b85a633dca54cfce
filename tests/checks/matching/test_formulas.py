"""A little arithmetic, exact, and nothing else."""

import ast
import contextlib
import time
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.checks.matching.formulas import Formula, TemplateMapping, TemplateText, check_templates, fill_templates
from meruit.errors import AuthorError, UnknownFormulaValue

NAMES: Mapping[str, Any] = {
    "k": Decimal("2.7"),
    "n": 3,
    "text": "3.1",
    "word": "oral",
    "flag": True,
    "patient": {"ssn": "123", "names": ["Ann", "Bea"], "_birthDate": 1, "codes": [Decimal("1.0"), 2]},
}


def value(text: str) -> Any:
    return Formula(text).value(NAMES)


SUMS = st.recursive(
    st.decimals(0, 100, places=3).map(lambda number: f"{number:f}"),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=8,
)


def exactly(part: ast.AST) -> Fraction:
    """What a sum comes to, reckoned by another way."""
    if isinstance(part, ast.Constant):
        return Fraction(repr(part.value))
    assert isinstance(part, ast.BinOp)
    left, right = exactly(part.left), exactly(part.right)
    match part.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case _:
            return left / right


@given(SUMS)
def test_sums_come_to_what_they_come_to_with_fractions(text: str) -> None:
    try:
        wanted = exactly(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        with pytest.raises(AuthorError, match="by zero"):
            value(text)
        return
    found = Fraction(value(text))
    assert abs(found - wanted) <= abs(wanted) / 10**58


def test_a_dose_comes_out_to_the_digit() -> None:
    assert value("(3.5 - k) / 0.1 * 10") == 80
    assert value("0.1 + 0.2") == Decimal("0.3")
    assert value("1.00000000000000000000000001 - 1") == Decimal("1E-26")
    assert str(value("k * 10")) == "27"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("k < 3.5", True),
        ("text < 3.5", True),
        ("text == 3.1", True),
        ("1 < n <= 3", True),
        ("1 < n < 3", False),
        ("word == 'oral' and not n == 4", True),
        ("word in ['iv', 'oral']", True),
        ("'ra' in word", True),
        ("2 in patient.codes and 1 in patient.codes", True),
        ("3 not in patient.codes", True),
        ("flag == 1", False),
        ("flag == true", True),
        ("flag != True", False),
        ("null == false", False),
        ("patient.names[1]", "Bea"),
        ('patient["_birthDate"]', 1),
        ("min(k, n, 9) + max(1, 2)", Decimal("4.7")),
        ("round(2.345, 2)", Decimal("2.34")),
        ("round(2.5)", 2),
        ("abs(-n)", 3),
        ("+n", 3),
        ("text * 2", Decimal("6.2")),
        ("n == 'three'", False),
        ("'a' < 'b'", True),
    ],
)
def test_what_formulas_can_say(text: str, found: Any) -> None:
    assert value(text) == found
    assert type(value(text)) is type(found) or isinstance(value(text), Decimal)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "k +", "import os", "k = 1", "(k := 1)", "lambda: 1", "f'{k}'", "b'a'", "1j", "..."),
        *("[x for x in k]", "{1: 2}", "{1}", "(1, 2)", "k if n else 0", "await k", "yield", "*k", "k[0:1]"),
        *("k.__class__", "__import__('os')", "_k", "patient._birthDate", "eval('1')", "open('/etc/passwd')"),
        *("k.real()", "min(key=1)", "max(*n)", "min.__call__(1)", "print(1)", "(min)(1)()", "patient['a']()"),
        *("2 ** 10", "10 ** 10 ** 10", "1 << 9", "7 // 2", "7 % 2", "~1", "1 & 2", "k @ n", "k is n"),
        *("'a' * 1000000000", "1000 * 'a'", "'a' + 'b'", "[1] * 9", "-[1] + [2] * 3", "abs('a')", "'%s' % k"),
        *("1e999", "9" * 300, "0." + "1" * 300, "1e-999", "'\\x00'", "k\0", "k" * 501, "(" * 250 + ")" * 250),
        *("-" * 300 + "1", "not " * 110 + "k", "+".join(["k"] * 120), "k#" + "a" * 500),
    ],
)
def test_everything_else_is_refused_when_it_is_written(text: str) -> None:
    started = time.process_time()
    with pytest.raises(AuthorError):
        Formula(text)
    assert time.process_time() - started < 30


@given(st.text(max_size=60) | st.text("()[]{}kn.,+-*/<>=!'\"0123456789 _abs", max_size=60))
def test_any_text_is_a_formula_or_the_authors_error(text: str) -> None:
    try:
        formula = Formula(text)
    except AuthorError:
        return
    with contextlib.suppress(AuthorError, UnknownFormulaValue):
        formula.value(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "nobody",
        "patient.phone",
        "patient.names[2]",
        "patient.names[-1]",
        "patient.names['a']",
        "word * 2",
        "word < 3",
        "k.ssn",
        "-word",
        "patient.names[0.5]",
    ],
)
def test_what_the_state_lacks_is_unknown(text: str) -> None:
    with pytest.raises(UnknownFormulaValue):
        value(text)


@pytest.mark.parametrize(
    "text", ["1 / 0", "n < word and n < null", "word < null", "min(1)", "round(1, 2, 3)", "round(1, 0.5)", "3 in word"]
)
def test_what_cannot_be_computed_says_so(text: str) -> None:
    with pytest.raises((AuthorError, UnknownFormulaValue)):
        value(text)


@pytest.mark.parametrize("text", ["round(1, 999999999)", "round(1 / 3, -999999999)", " * ".join(["1e200"] * 30)])
def test_no_formula_can_keep_anybody_busy(text: str) -> None:
    started = time.process_time()
    with pytest.raises(AuthorError):
        value(text)
    assert time.process_time() - started < 30


def test_a_formula_knows_what_it_needs() -> None:
    assert Formula("min(k, patient.ssn) < n and true").names == {"k", "patient", "n"}


def test_a_whole_template_becomes_the_value_and_a_part_its_text() -> None:
    written = {"a": "${k}", "b": ["${n} mg", "plain"], "c": {"d": "${patient.names}"}, "e": 5}
    found = fill_templates(written, NAMES)
    assert found == {"a": Decimal("2.7"), "b": ["3 mg", "plain"], "c": {"d": ["Ann", "Bea"]}, "e": 5}
    assert isinstance(found["b"][0], TemplateText)
    assert isinstance(fill_templates("${patient}", NAMES), TemplateMapping)


@pytest.mark.parametrize(
    "written", ["${", "${k", "a ${k} ${", "${k +}", ["${lambda: 1}"], {"a": {"b": "${}"}}, {"${": 1}]
)
def test_a_template_that_is_none_is_refused(written: Any) -> None:
    with pytest.raises(AuthorError):
        check_templates(written)


@given(
    st.text("${}ab.+1 ", max_size=20),
    st.dictionaries(st.text("ab", min_size=1), st.text() | st.integers() | st.booleans()),
)
def test_filling_in_never_fails_but_for_the_author(written: str, names: dict[str, Any]) -> None:
    try:
        check_templates(written)
        fill_templates(written, names)
    except (AuthorError, UnknownFormulaValue):
        pass


def test_what_is_filled_in_is_not_filled_in_again() -> None:
    assert fill_templates("${word}", {"word": "${k}", "k": 1}) == "${k}"
