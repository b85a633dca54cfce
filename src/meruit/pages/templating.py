"""The Jinja2 environment of all pages."""

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import ParamSpec

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup, escape

from meruit.model.text import escape_control_characters
from meruit.pages import number_format

_Arguments = ParamSpec("_Arguments")

LONGEST = 600
"""The most characters of one text; `whole` shows a text in full."""


def build_environment(package: str) -> Environment:
    """Build the environment for the templates of a package; shared ones are under `pages/`."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PrefixLoader({"pages": PackageLoader("meruit.pages")})]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        whole=_show_whole,
        lines=_show_lines,
        px=_format_px,
        percent=_format_percent,
        count=number_format.format_count,
        share=_keep_percent(number_format.format_share),
        number=number_format.format_number,
        money=number_format.format_money,
        p=number_format.format_p,
        difference=_typeset_minus(number_format.format_difference),
        factor=number_format.format_factor,
        places=number_format.format_places,
        interval=_typeset_minus(_keep_percent(number_format.format_interval)),
        sentence=_keep_percent(str),
    )
    made.globals.update(stylesheet=read_stylesheet, stylesheet_hash=hash_stylesheet)
    return made


@cache
def read_stylesheet() -> Markup:
    """Read the one stylesheet of all pages, for a page that is one file."""
    # Our own file, not a user's text.
    return Markup(files("meruit.pages").joinpath("static", "meruit.css").read_text(encoding="utf-8"))  # noqa: S704


@cache
def hash_stylesheet() -> str:
    """Hash the stylesheet as a content security policy names it, so that the page allows this style and no other."""
    digest = hashlib.sha256(read_stylesheet().encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _make_safe(value: object) -> object:
    """Shorten a text and escape its control characters; markup stays as it is."""
    # Most values are such texts, and a page has thousands of them.
    if value.__class__ is str and len(value) <= LONGEST and value.isprintable():
        return value
    if isinstance(value, Markup):
        return value
    if value is None:
        raise TypeError("a template writes None; say in words what is missing")
    text = str(value)
    return escape_control_characters(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _show_whole(text: str) -> Markup:
    return escape(escape_control_characters(text))


def _show_lines(text: str) -> Markup:
    """A whole text for an element that keeps its lines, such as `pre`."""
    lines = text.replace("\r\n", "\n").split("\n")
    return escape("\n".join(escape_control_characters(line.replace("\t", "    ")) for line in lines))


def _keep_percent(form: Callable[_Arguments, str]) -> Callable[_Arguments, str]:
    """Keep a number and its percent sign on one line."""

    def keep(*values: _Arguments.args, **names: _Arguments.kwargs) -> str:
        return form(*values, **names).replace(" %", "\u00a0%")

    return keep


def _typeset_minus(form: Callable[_Arguments, str]) -> Callable[_Arguments, str]:
    """Write a minus as long as a plus, so that signs line up."""

    def typeset(*values: _Arguments.args, **names: _Arguments.kwargs) -> str:
        return form(*values, **names).replace("-", "\u2212")

    return typeset


def _format_px(value: float) -> str:
    # A tenth of a pixel is enough, and is the same on every machine.
    return f"{value:.1f}".removesuffix(".0")


def _format_percent(value: float) -> str:
    return f"{f'{value:.2f}'.rstrip('0').rstrip('.')}%"
