"""HTML and SVG out of plain values: whatever is not markup already is escaped, so that nothing can be forgotten."""

import html
from collections.abc import Iterable

from meruit.model.text import escape_control_characters

LONGEST = 600
"""Characters of one text."""
Child = str | Iterable["Child"] | None
"""What stands in an element: text, markup, several of them, or nothing."""


class Markup(str):
    """Text that is markup; any other text is a stranger's."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Anybody's text, harmless wherever it stands: no markup, no control characters, no end of a quotation."""
    if isinstance(text, Markup):
        return text
    shown = escape_control_characters(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
    # Attributes stand in double quotes, always: single ones end nothing.
    return Markup(html.escape(shown, quote=False).replace('"', "&quot;"))


def join_markup(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(_flatten(children)))


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; None is left out, floats are rounded."""
    return Markup(f"{_opening_tag(name, attributes)}{join_markup(*children)}</{name}>")


def void_tag(name: str, /, **attributes: str | float | None) -> Markup:
    """An element that never has content."""
    return Markup(_opening_tag(name, attributes))


def isolate_bidi(text: str) -> Markup:
    """A stranger's name, whose direction of writing stays its own."""
    return tag("bdi", text)


def _flatten(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str):
            yield escape(child)
        elif child is not None:
            yield from _flatten(child)


def _opening_tag(name: str, attributes: dict[str, str | float | None]) -> str:
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>"


def _value(value: str | float) -> str:
    # A tenth of a pixel is enough, and the same on every machine.
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
