"""Load criteria and the work that they judge from files."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from meruit.documents.authoring import Examine, parse_criteria
from meruit.errors import DocumentError, MeruitError, Problem
from meruit.files import display_name, find_beside, read_bytes
from meruit.model.criterion import SuccessCriteria
from meruit.model.limits import MAX_CODE_BYTES
from meruit.verify.catalogue import Catalogue
from meruit.verify.custom_code import CustomCode
from meruit.verify.faults import examine_with

MAX_KEY_SHOWN = 60


def load_criteria(
    path: str | Path,
    *,
    known_metrics: list[str] | None = None,
    max_criteria: int | None = None,
    examine: Examine | None = None,
) -> SuccessCriteria:
    """Load criteria from a YAML or JSON file; raises CriteriaError with every problem, each with its line.

    A custom metric's `code_file` is read from the file's own folder; criteria on standard input have none. Without
    `examine`, which is `examine_with` of an engine's catalogue, only expressions and code are examined.
    """
    text = read_bytes(path)
    return parse_criteria(
        text,
        display_name(path),
        known_metrics=known_metrics,
        max_criteria=max_criteria,
        read_code=None if str(path) == "-" else partial(_read_code_beside, Path(path).parent),
        assertions_too=True,
        examine=examine if examine is not None else examine_with(Catalogue({}, CustomCode())),
    )


def load_payload(path: str | Path) -> dict[str, Any]:
    """Load a JSON object from a file, or from standard input for `-`; raises DocumentError for anything else."""
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
        # orjson reports where the JSON is not valid; json keeps every digit of an integer.
        orjson.loads(text)
        payload: Any = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except UnicodeDecodeError as problem:
        raise DocumentError(display_name(path), [Problem("", f"not UTF-8: {problem}")]) from None
    except (ValueError, RecursionError) as problem:
        wrong = f"not JSON: {problem}" if content.strip() else "the file is empty"
        raise DocumentError(display_name(path), [Problem("", wrong)]) from None
    if not isinstance(payload, dict):
        hint = ' such as {"text": "…"}' if isinstance(payload, str) else ""
        wrong = f"expected a JSON object{hint}, got {_KINDS[type(payload)]}"
        raise DocumentError(display_name(path), [Problem("", wrong)])
    return payload


def _read_code_beside(folder: Path, name: str) -> str:
    """Read the code of a custom metric from the folder of its criteria."""
    file = find_beside(folder, name)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_CODE_BYTES + 1)
        if len(content) > MAX_CODE_BYTES:
            raise MeruitError(f"{name!r} is larger than {MAX_CODE_BYTES // 1024} KiB")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise MeruitError(f"{name!r} is not UTF-8: {problem.reason} at offset {problem.start}") from None
    except OSError as problem:
        raise MeruitError(f"{name!r} cannot be read: {problem.strerror or problem}") from None


_KINDS = {
    str: "a text",
    list: "a list",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; a key that occurs twice would read differently to different readers."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:MAX_KEY_SHOWN]!r} occurs twice in one object")
    return members
