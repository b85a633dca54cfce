"""What can go wrong and whose mistake it is: the caller's errors, each saying what to do next.

A failed piece of work is a verdict and a broken world is an indeterminate criterion; neither is an exception.
"""

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class MeruitError(Exception):
    """Anything a caller did that we cannot act on."""


class UnknownName(MeruitError):
    """A plugin was asked for that is not installed."""


class AuthorError(MeruitError):
    """A criterion asks for something that cannot be computed as written."""


class AssertionFaults(AuthorError):
    """An assertion does not say what its check understands; carries every fault and its place inside the assertion."""

    def __init__(self, faults: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "; ".join(f"{'.'.join(map(str, place))}: {why}" if place else why for place, why in self.faults)
        )


class ExtractorConflict(MeruitError):
    """Two extractors claim one metric name."""


class Problem(NamedTuple):
    """One thing wrong with a file, and where."""

    where: str
    """The path inside the document, as `criteria[2].threshold`; empty for the whole."""
    message: str
    line: int | None = None

    def __str__(self) -> str:
        """`line 7, criteria[2].threshold: …`."""
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.where) if part)
        return f"{place}: {self.message}" if place else self.message


class DocumentError(MeruitError):
    """A file does not say what it must; carries every problem at once."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.name = name
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{name}: {problem}" for problem in self.problems))


class ConfigError(DocumentError):
    """The configuration holds something this version does not honour."""


class CriteriaError(DocumentError):
    """The criteria hold something that cannot be judged."""


class Unreachable(MeruitError):
    """The world did not answer; trying again may help."""


class Unavailable(CriteriaError):
    """The criteria are sound, and ask for what this installation does not do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'accuracy'?)`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
