"""Build HTML and SVG from values: every text that is not Markup is escaped."""

import html
from collections.abc import Iterable

from meruit.model.text import escape_control_characters

LONGEST = 600
"""The most characters of one text."""
Child = str | Iterable["Child"] | None
"""The content of an element: text, markup, several of them, or nothing."""


class Markup(str):
    """Text that is markup; any other text is untrusted."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Escape untrusted text for content and attributes, without control characters."""
    if isinstance(text, Markup):
        return text
    shown = escape_control_characters(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
    # Attributes are always in double quotes, so single quotes need no escape.
    return Markup(html.escape(shown, quote=False).replace('"', "&quot;"))


def join_markup(*children: Child) -> Markup:
    """Join markup and texts."""
    return Markup("".join(_flatten(children)))


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """Build an element; `class_` is the attribute class, `aria_label` is aria-label, None is omitted."""
    return Markup(f"{_opening_tag(name, attributes)}{join_markup(*children)}</{name}>")


def void_tag(name: str, /, **attributes: str | float | None) -> Markup:
    """Build an element without content."""
    return Markup(_opening_tag(name, attributes))


def isolate_bidi(text: str) -> Markup:
    """Isolate the writing direction of an untrusted name."""
    return tag("bdi", text)


def _flatten(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str):
            yield escape(child)
        elif child is not None:
            yield from _flatten(child)


def _opening_tag(name: str, attributes: dict[str, str | float | None]) -> str:
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>"


def _value(value: str | float) -> str:
    # A tenth of a pixel is enough, and is the same on every machine.
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
