"""Runs untrusted patterns in an engine whose time is linear in the text."""

from collections.abc import Iterable
from functools import lru_cache

# RE2 comes without types.
from typing import Any

from meruit.errors import AuthorError
from meruit.model.evidence import Cause, Fault, Missing

MAX_CACHED_PATTERNS = 256
MAX_PATTERN_BYTES = 1 << 20
"""Memory for each compiled pattern."""
MAX_PATTERN_WORK = 2_000_000_000
"""States of a pattern times bytes of text: about two seconds at worst."""


@lru_cache(maxsize=MAX_CACHED_PATTERNS)
def compile_pattern(text: str, *, ignore_case: bool) -> Any:
    """Compile a pattern; raises AuthorError for an invalid one."""
    # Imported here, because the import takes milliseconds.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_PATTERN_BYTES
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(text, options=options)
    except UnicodeEncodeError:
        raise AuthorError(f"the pattern {text!r} has half of a surrogate pair; remove it") from None
    except re2.error as problem:
        reason = problem.args[0].decode(errors="replace")
        raise AuthorError(
            f"the pattern {text!r} is refused: {reason}; patterns are written in the syntax of RE2, "
            "which has no look-around and no backreferences"
        ) from None


def matching_patterns(text: bytes, patterns: Iterable[tuple[str, Any]], *, full: bool = False) -> list[str] | Missing:
    """Which patterns match, each given with its name."""
    work, found = 0, []
    for name, machine in patterns:
        work += machine.programsize * len(text)
        if work > MAX_PATTERN_WORK:
            return Missing(
                "the patterns are too large for an output of this length; simplify them",
                cause=Cause.TOO_COSTLY,
                fault=Fault.AUTHOR,
            )
        if (machine.fullmatch if full else machine.search)(text):
            found.append(name)
    return found
