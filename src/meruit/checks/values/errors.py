"""Bytes that are not what they should be: why, where, and how they begin."""

from typing import Self

HEAD_BYTES = 64
"""So much of the content is shown."""


class UnreadableContent(Exception):
    """Content that is not of the format it was sent as."""

    def __init__(self, why: str, offset: int, head: str) -> None:
        super().__init__(f"{why}, at byte {offset}; it begins with {head!r}")
        self.why = why
        self.offset = offset
        self.head = head
        """The first bytes, the unprintable ones escaped."""

    @classmethod
    def at(cls, why: str, content: bytes, offset: int) -> Self:
        """What is wrong with the content, and at which byte."""
        return cls(why, offset, content[:HEAD_BYTES].decode("latin-1").encode("unicode_escape").decode("ascii"))
