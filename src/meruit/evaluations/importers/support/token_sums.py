"""Tokens of operations within each other: spans of a trace, observations of Langfuse. Each call is counted once."""

from collections.abc import Iterable
from dataclasses import dataclass

from meruit.evaluations.importers.support.pieces import TokenClasses


@dataclass(frozen=True, slots=True)
class CountedOperation:
    """A span or an observation, and what it says that it used."""

    id: str
    parent: str
    tokens: TokenClasses
    reply: str | None = None
    """The id of the model's reply, which two records of one call share."""
    is_call: bool = False
    """Whether it is known to be one call of a model; others may sum up the calls below them."""
    is_embedding: bool = False


class _Calls:
    """Calls by their reply, and how many tokens they have together."""

    __slots__ = ("by_reply", "total")

    def __init__(self) -> None:
        self.by_reply: dict[str, TokenClasses] = {}
        self.total = 0

    def add(self, reply: str, tokens: TokenClasses) -> None:
        """Count a call; of two records of one, the one that knows more of the cache."""
        before = self.by_reply.get(reply, TokenClasses())
        best = max(before, tokens, key=lambda one: (one.cache_read + one.cache_write, one.total))
        self.by_reply[reply] = best
        self.total += best.total - before.total

    def merge(self, other: "_Calls") -> "_Calls":
        """Both together; the smaller one is added to the larger, so that a long chain costs no more than its spans."""
        large, small = (self, other) if len(self.by_reply) >= len(other.by_reply) else (other, self)
        for reply, tokens in small.by_reply.items():
            large.add(reply, tokens)
        return large


def sum_tokens(operations: Iterable[CountedOperation]) -> TokenClasses:
    """Tokens of all calls.

    An operation around calls often repeats theirs: then it is left out. If it has more than the calls below it, it is a
    call itself, or it knows of calls that were not recorded. Embeddings are not among what an operation repeats.
    """
    known = {one.id: one for one in operations}
    children: dict[str, list[CountedOperation]] = {}
    for one in known.values():
        children.setdefault(one.parent, []).append(one)
    # Operations that name each other as parents are not below any root, and are not counted.
    ordered = [one for one in known.values() if one.parent not in known]
    for one in ordered:
        ordered += children.get(one.id, ())
    embeddings, below = _Calls(), dict[str, _Calls]()
    for one in reversed(ordered):
        calls = _Calls()
        for child in children.get(one.id, ()):
            calls = calls.merge(below.pop(child.id))
        if one.is_embedding:
            embeddings.add(one.reply or one.id, one.tokens)
        elif one.tokens.total:
            calls = _count(one, calls)
        below[one.id] = calls
    whole = embeddings
    for calls in below.values():
        whole = whole.merge(calls)
    return sum(whole.by_reply.values(), TokenClasses())


def _count(one: CountedOperation, calls: _Calls) -> _Calls:
    """The calls below an operation, with its own where it does not repeat theirs."""
    reply = one.reply or one.id
    others = calls.total - calls.by_reply.get(reply, TokenClasses()).total
    if others and others >= one.tokens.total:
        return calls
    # What is not a call itself has the calls below in its own tokens.
    counted = calls if one.is_call or not others else _Calls()
    counted.add(reply, one.tokens)
    return counted
