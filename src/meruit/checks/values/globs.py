"""Paths with wildcards."""

import re
from collections.abc import Callable
from functools import lru_cache

from meruit.errors import AuthorError

MAX_GLOB = 1_000
"""Characters of a path."""

_GLOB = re.compile(
    r"(?P<folders>\*\*/)|(?P<all>\*\*)|(?P<some>\*)|(?P<one>\?)|\[(?P<not>!?)(?P<set>[^\]/]+)\]|(?P<plain>.)", re.DOTALL
)


@lru_cache(maxsize=1_024)
def glob(pattern: str) -> Callable[[str], bool]:
    """Whether a path is meant: `*` and `?` do not cross a slash, `**` does, `[abc]` is one of these characters."""
    import re2  # slow to load; takes linear time on any file name

    relative = pattern.removeprefix("/")
    if not relative or len(relative) > MAX_GLOB or relative.endswith("/") or ".." in relative.split("/"):
        raise AuthorError(f"{pattern!r} is not a valid file path; for example outbound/roster_*.json")
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    try:
        whole = re2.compile("".join(_expression(found, relative) for found in _GLOB.finditer(relative)), options)
    except re2.error as problem:
        raise AuthorError(f"{pattern!r} is not a valid file path: {problem}") from None
    return lambda path: whole.fullmatch(path) is not None


def literal(pattern: str) -> str:
    """A glob of a text in which those characters that stand for themselves have a backslash before them."""
    return re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], pattern, flags=re.DOTALL)


def _expression(found: re.Match[str], pattern: str) -> str:
    match found.lastgroup:
        case "folders":
            # Also none at all: a/**/b is a/b, too.
            return "(?:.*/)?" if found.start() == 0 or pattern[found.start() - 1] == "/" else ".*/"
        case "all":
            return ".*"
        case "some":
            return "[^/]*"
        case "one":
            return "[^/]"
        case "set":
            return _one_of(found["set"], pattern, negated=bool(found["not"]))
        case _:
            if found["plain"] == "[":
                raise AuthorError(f"{pattern!r} has a [ without its ]; for a bracket itself write [[]")
            return re.escape(found["plain"])


def _one_of(several: str, pattern: str, *, negated: bool) -> str:
    ends = re.findall(r"(.)-(.)", several, re.DOTALL)
    if any(low > high or low < "/" < high for low, high in ends):
        raise AuthorError(f"{pattern!r}: [{several}] has a range that is empty or holds a slash")
    inside = re.sub(r"[\\^\[\]]", r"\\\g<0>", several)
    return f"[^{inside}/]" if negated else f"[{inside}]"
