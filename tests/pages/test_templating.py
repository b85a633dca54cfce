"""Templates: any text comes out as text, a name that is not there is an error, and one stylesheet is all they need."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from meruit.pages.drawing import Box, Dot, Drawing, Label, Stroke
from meruit.pages.templating import LONGEST, build_environment, hash_stylesheet, read_stylesheet

ENVIRONMENT = build_environment("meruit.pages")


class Seen(HTMLParser):
    """What a browser would build."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@given(st.text(max_size=300))
def test_any_text_comes_out_as_text(text: str) -> None:
    found = Seen()
    found.feed(ENVIRONMENT.from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text))
    found.close()
    assert found.tags == ["p"]
    assert [name for name, _ in found.attributes] == ["title"]
    assert "".join(found.text) == dict(found.attributes)["title"]


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\n", "\u202e", "\u2066", "\x7f"])
def test_no_control_character_is_written(character: str) -> None:
    text = f"a{character}b"
    for template in ("{{ text }}", "{{ text|whole }}", "{{ [text]|join }}"):
        assert character not in ENVIRONMENT.from_string(template).render(text=text)


def test_a_long_text_is_cut_unless_the_whole_is_asked_for() -> None:
    assert len(ENVIRONMENT.from_string("{{ text }}").render(text="y" * 5_000)) == LONGEST
    assert ENVIRONMENT.from_string("{{ text|whole }}").render(text="<" * 5_000) == "&lt;" * 5_000


@pytest.mark.parametrize("package", ["meruit.pages", "meruit.reports"])
def test_every_template_can_be_compiled_and_marks_nothing_safe(package: str) -> None:
    environment = build_environment(package)
    assert environment.loader is not None
    for name in environment.list_templates():
        environment.get_template(name)
        source, _, _ = environment.loader.get_source(environment, name)
        assert not re.search(r"\|\s*safe\b|autoescape", source), name


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        ENVIRONMENT.from_string("{{ nothing }}").render()


def test_none_is_never_written() -> None:
    with pytest.raises(TypeError):
        ENVIRONMENT.from_string("{{ text }}").render(text=None)


def test_a_number_stays_beside_its_percent_sign() -> None:
    assert ENVIRONMENT.from_string("{{ 0.5|share }}").render() == "50.0\u00a0%"


def test_the_stylesheet_loads_nothing_and_fits_its_hash() -> None:
    style = read_stylesheet()
    assert not re.search(r"url\(|@import|</style|https?:", style)
    assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", hash_stylesheet())
    assert style.count("{") == style.count("}")


def test_every_colour_is_a_token() -> None:
    _, _, rules = read_stylesheet().partition("/* ---- base ---- */")
    assert {*re.findall(r"#[0-9a-f]{3,6}\b", rules)} <= {"#fff"}


def test_a_drawing_is_written_with_percentages_across() -> None:
    shapes = (
        Stroke(0, 1, 33.333, 2.25, "grid"),
        Box(1, 2, 3, 4, "f", "<b>"),
        Dot(50, 7, 4.5, "on"),
        Label(100, 9, "a & b", "end", "strong", -9),
    )
    chart = ENVIRONMENT.from_string('{% import "pages/chart.html" as charts %}{{ charts.chart(drawing) }}')
    svg = chart.render(drawing=Drawing("T", "found", 20, shapes, "pass"))
    assert 'x2="33.33%"' in svg
    assert "<title>&lt;b&gt;</title></rect>" in svg
    assert '<circle cx="50%" cy="7" r="4.5" class="on"></circle>' in svg
    assert 'dx="-9" class="end strong">a &amp; b</text>' in svg
    assert 'role="img" aria-label="T: found"' in svg
