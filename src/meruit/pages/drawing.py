"""A chart as data: shapes that templates/chart.html writes as SVG.

Horizontal positions are percentages and vertical ones are pixels, so a chart stretches with its page and its text
does not. A style is a class of the stylesheet.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Stroke:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str
    kind: ClassVar[str] = "stroke"


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str = ""
    kind: ClassVar[str] = "box"


@dataclass(frozen=True, slots=True)
class Dot:
    """A circle."""

    x: float
    y: float
    radius: float
    style: str
    title: str = ""
    kind: ClassVar[str] = "dot"


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside a point."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    style: str = ""
    shift: float = 0.0
    """Pixels to the right of `x`."""
    kind: ClassVar[str] = "label"


Shape = Stroke | Box | Dot | Label


@dataclass(frozen=True, slots=True)
class Drawing:
    """One chart."""

    title: str
    finding: str
    """What a reader sees in it, for those who hear the page."""
    height: float
    shapes: tuple[Shape, ...]
    tone: str = ""
    """The tone of the whole drawing: `pass`, `partial`, `fail`, `open` or `error`."""
