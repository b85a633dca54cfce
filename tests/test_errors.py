"""The tree of exceptions: complete, drawn rightly, and the only place where exceptions are defined."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import meruit
from meruit import errors

SOURCES = Path(meruit.__file__).parent


def exceptions() -> dict[str, type[BaseException]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__
    }


def read_drawing() -> dict[str, str]:
    """The parent of every name in the drawing: the last name above it that is less indented, or before its colon."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in str(errors.__doc__).partition("\n\n")[2].partition("\n\n")[0].splitlines():
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if text.startswith("#"):
            continue
        above = [(depth, name) for depth, name in above if depth < indent]
        head, colon, listed = text.partition(":")
        if colon or not above:
            parents.setdefault(head, above[-1][1] if above else "")
            above.append((indent, head))
        for name in re.findall(r"\w+", listed if colon else text):
            if name != above[-1][1]:
                parents[name] = above[-1][1]
    return parents


def test_the_drawing_shows_every_exception_below_its_parent() -> None:
    drawn = read_drawing()
    assert {name: drawn.get(name) for name in exceptions() if name != "MeruitError"} == {
        name: kind.__bases__[0].__name__ for name, kind in exceptions().items() if name != "MeruitError"
    }
    assert set(drawn) - set(exceptions()) == {"Exception", "ValueError"}


@pytest.mark.parametrize(("name", "kind"), exceptions().items())
def test_every_error_of_a_caller_has_a_code_and_an_http_status(name: str, kind: type[BaseException]) -> None:
    assert kind.__doc__, name
    if issubclass(kind, errors.MeruitError):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code), name
        assert 400 <= kind.status < 600, name


def test_exceptions_are_defined_in_the_tree_alone() -> None:
    known = {*exceptions(), "Exception", "BaseException"}
    elsewhere = [
        f"{file.relative_to(SOURCES)}: {node.name}"
        for file in SOURCES.rglob("*.py")
        if file.name != "errors.py" or file.parent != SOURCES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(
            (name := ast.unparse(base).rpartition(".")[2]) in known or name.endswith(("Error", "Exception"))
            for base in node.bases
        )
    ]
    assert elsewhere == []
