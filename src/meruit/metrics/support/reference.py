"""What an output is compared with: a part of the output, its references, and how texts are normalised."""

import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from meruit.errors import AuthorError
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.text import normalize_unicode
from meruit.model.work import Work
from meruit.registry import Ask
from meruit.suggestions import nearest

MAX_CHARS = 1_000_000
"""The longest text that is normalised: some normal forms make eighteen characters of one."""
MAX_REFERENCES = 1_000
MAX_PATH = 32
"""Steps of a path into the output."""
MAX_PREPARED = 1_024
"""How many references are remembered in their normal form."""

ABSENT = object()
"""What is found where a path leads nowhere; null is a value."""

FIELD_PARAM = {"field": "the part of the output that is compared, as `answer` or `items.0.name`; `text` by default"}
REFERENCE_PARAM = {
    "references": "what is right, one text or several, where the work's input has no `reference` or `references`"
}
NORMALIZE_PARAM = {
    "normalize": "a list of `strip`, `case`, `whitespace`, `punctuation`, `articles`, `accents`, `width`, or `squad`; "
    "[] compares character by character"
}

_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _drop_punctuation(text: str) -> str:
    text = text.translate(_ASCII_PUNCTUATION)
    return text if text.isascii() else "".join(char for char in text if unicodedata.category(char)[0] != "P")


def _drop_accents(text: str) -> str:
    if text.isascii():
        return text
    parts = normalize_unicode("NFD", text)
    return normalize_unicode("NFC", "".join(char for char in parts if unicodedata.category(char) != "Mn"))


def _join_whitespace(text: str) -> str:
    return " ".join(text.split())


def _drop_articles(text: str) -> str:
    return re.sub(r"\b(a|an|the)\b", " ", text, flags=re.IGNORECASE)


# In the order in which they are applied, whatever the author's order: each leaves the later ones less to do.
STEPS: Mapping[str, Callable[[str], str]] = {
    "width": lambda text: normalize_unicode("NFKC", text),
    "case": str.casefold,
    "accents": _drop_accents,
    "punctuation": _drop_punctuation,
    "articles": _drop_articles,
    "whitespace": _join_whitespace,
    "strip": str.strip,
}
SQUAD = ("case", "punctuation", "articles", "whitespace")
"""What the scorer of SQuAD does; most question-answering benchmarks follow it."""


def normalizer(ask: Ask, default: Sequence[str]) -> Callable[[str], str]:
    """The function that brings a text into the form that is compared; raises AuthorError for an unknown step."""
    value = ask.params.get("normalize", default)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise AuthorError(f"the param normalize must be a list of names, not {value!r}")
    chosen: set[str] = set()
    for name in names:
        if name != "squad" and name not in STEPS:
            known = [*STEPS, "squad"]
            raise AuthorError(f"normalize has no step {name!r}{nearest(name, known)}; it takes {', '.join(known)}")
        chosen |= {*SQUAD} if name == "squad" else {name}
    steps = [step for name, step in STEPS.items() if name in chosen]

    def normalize(text: str) -> str:
        # The same character may be written in two ways (é, or e and an accent), which no reader can tell apart.
        if steps and not text.isascii():
            text = normalize_unicode("NFC", text)
        for step in steps:
            text = step(text)
        return text

    return normalize


# Parts of the output.


def path_of(ask: Ask, default: str = "text") -> tuple[str, ...]:
    """The path that the param `field` names; raises AuthorError for one that is not a path."""
    value = ask.params.get("field", default)
    if not isinstance(value, str) or not all(value.split(".")):
        raise AuthorError(f"the param field must be names joined by dots, as items.0.name, not {value!r}")
    path = tuple(value.split("."))
    if len(path) > MAX_PATH:
        raise AuthorError(f"the param field has {len(path)} steps; the limit is {MAX_PATH}")
    return path


def part_at(document: Any, path: Sequence[str]) -> Any:
    """The value at a path, or ABSENT."""
    for step in path:
        if isinstance(document, Mapping):
            document = document.get(step, ABSENT)
        elif isinstance(document, list | tuple) and step.isascii() and step.isdigit() and len(step) < MAX_PATH:
            document = document[int(step)] if int(step) < len(document) else ABSENT
        else:
            return ABSENT
    return document


def text_at(work: Work, path: Sequence[str]) -> str | Missing:
    """The text at a path of the output; a number or a truth value as JSON writes it."""
    value = part_at(work.output, path)
    where = f"output.{'.'.join(path)}"
    if value is ABSENT or value is None:
        return Missing(f"there is no {where}", fault=Fault.AGENT)
    text = _to_text(value)
    if text is None:
        return Missing(f"{where} is not a text but {type(value).__name__}", cause=Cause.WRONG_TYPE, fault=Fault.AGENT)
    return _within_limit(text, where)


def _to_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float):
        return None
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # A whole number of more than 64 bits.
        return repr(value)


def _within_limit(text: str, where: str) -> str | Missing:
    if len(text) <= MAX_CHARS:
        return text
    why = f"{where} has {len(text)} characters, and at most {MAX_CHARS} are compared"
    return Missing(why, cause=Cause.TOO_COSTLY, fault=Fault.SYSTEM)


# References.


def reference_reader(ask: Ask, normalize: Callable[[str], str]) -> Callable[[Work], tuple[str, ...] | Missing]:
    """Reads the references in their normal form: the criterion's own, or else those of the work's input."""
    remember = lru_cache(MAX_PREPARED)(normalize)
    own = None
    if "references" in ask.params:
        own = normalize_references(ask.params["references"], "the param references", remember)

    def read(work: Work) -> tuple[str, ...] | Missing:
        if own is not None:
            return own
        for name in ("references", "reference"):
            value = work.input.get(name)
            if value is not None:
                try:
                    return normalize_references(value, f"input.{name}", remember)
                except AuthorError as problem:
                    return Missing(str(problem), cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)
        return Missing("the input has no reference to compare with", fault=Fault.AUTHOR)

    return read


def normalize_references(value: Any, where: str, normalize: Callable[[str], str]) -> tuple[str, ...]:
    """The normal forms of one text or several, each once; raises AuthorError for what no answer can equal."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise AuthorError(f"{where} is empty; list at least one")
    if len(values) > MAX_REFERENCES:
        raise AuthorError(f"{where} has {len(values)} entries; the limit is {MAX_REFERENCES}")
    return tuple(dict.fromkeys(_reference(item, where, normalize) for item in values))


def _reference(item: Any, where: str, normalize: Callable[[str], str]) -> str:
    text = _to_text(item)
    if text is None:
        raise AuthorError(f"{where} may have only texts, numbers and truth values, not {type(item).__name__}")
    limited = _within_limit(text, where)
    if isinstance(limited, Missing):
        raise AuthorError(limited.why)
    normal = normalize(text)
    if not normal:
        why = "is empty" if not text else f"has a text that normalize leaves nothing of ({text[:40]!r})"
        raise AuthorError(f"{where} {why}; every text would be compared with nothing")
    return normal
