"""Every hostile snippet, in the order in which a worker meets them."""

from . import answering, breaking, exhausting, reaching
from .snippet import Snippet

SNIPPETS: tuple[Snippet, ...] = (
    *reaching.SNIPPETS,
    *breaking.SNIPPETS,
    *exhausting.SNIPPETS,
    *answering.SNIPPETS,
)
