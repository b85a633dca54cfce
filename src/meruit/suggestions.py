"""Find the known names that a mistyped name may mean."""

import difflib
import re
from collections.abc import Iterable, Sequence

MAX_SUGGESTIONS = 3
"""Names that a message suggests."""
SHORT_WORD = 3
"""Up to this many letters another letter makes another word: `cpa` is not a mistyped `cpc`."""
MEANT_FROM = 0.6
"""How alike a name must be to be suggested, as difflib measures it."""

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'accuracy'?)`, or nothing when no known name is close."""
    return suggest(similar_names(name, known))


def suggest(names: Sequence[str]) -> str:
    """The end of a message that suggests these names; empty without any."""
    *others, last = map(repr, names) if names else [""]
    return f" (did you mean {', '.join(others)}{' or ' if others else ''}{last}?)" if names else ""


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """The known names that may be meant, of the same kind where names show one by how they begin.

    The same but for case and separators; else what the name is the beginning of (`f1`: f1_score); else the most alike,
    among those with the same first word if there are any (`rouge_score`: rouge1, rouge2, rougeL, not bleu_score).
    """
    parts, names = _parts(name), {one: _parts(one) for one in known}
    same = [one for one, others in names.items() if parts and "".join(others) == "".join(parts)]
    begun = [one for one, others in names.items() if parts and others[: len(parts)] == parts]
    if same or begun:
        return (same or begun)[:MAX_SUGGESTIONS]
    kin = [one for one, others in names.items() if len(parts) > 1 and others[:1] == parts[:1]]
    kin = kin if parts and len(parts[0]) > SHORT_WORD else []
    close = difflib.get_close_matches(name, kin or [*names], n=MAX_SUGGESTIONS, cutoff=MEANT_FROM)
    meant = [one for one in close if not _is_another(parts, names[one])][:1]
    return meant or (kin if len(kin) <= MAX_SUGGESTIONS else [])


def _parts(name: str) -> tuple[str, ...]:
    """The words of a name: `rougeL` and `rouge_l` are both `rouge`, `l`."""
    return tuple(part.lower() for part in _PARTS.findall(name))


def _is_another(parts: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether two names of several words differ in a short one, as `max_cpa` and `max_cpc` do."""
    if len(parts) != len(others) or len(parts) == 1:
        return False
    return any(one != other and len(one) == len(other) <= SHORT_WORD for one, other in zip(parts, others, strict=True))
