"""HTML and SVG out of plain values: whatever is not markup already is escaped, so that nothing can be forgotten."""

import html
from collections.abc import Iterable

from meruit.model.text import visible

LONGEST = 600
"""Characters of one text."""
Child = str | Iterable["Child"] | None
"""What stands in an element: text, markup, several of them, or nothing."""


class Markup(str):
    """Text that is markup; any other text is a stranger's."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Anybody's text, harmless wherever it stands: no markup, no control characters, no end of a quotation."""
    if isinstance(text, Markup):
        return text
    shown = visible(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
    # Attributes stand in double quotes, always: single ones end nothing.
    return Markup(html.escape(shown, quote=False).replace('"', "&quot;"))


def joined(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; None is left out, floats are rounded."""
    return Markup(f"{_opening(name, attributes)}{joined(*children)}</{name}>")


def void(name: str, /, **attributes: str | float | None) -> Markup:
    """An element that never has content."""
    return Markup(_opening(name, attributes))


def named(text: str) -> Markup:
    """A stranger's name, whose direction of writing stays its own."""
    return tag("bdi", text)


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str):
            yield escaped(child)
        elif child is not None:
            yield from _flat(child)


def _opening(name: str, attributes: dict[str, str | float | None]) -> str:
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>"


def _value(value: str | float) -> str:
    # A tenth of a pixel is enough, and the same on every machine.
    return escaped(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
