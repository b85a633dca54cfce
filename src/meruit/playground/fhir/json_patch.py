"""JSON Patch (RFC 6902): a few changes to a document, all or none."""

import copy
import reprlib
from typing import Any

from meruit.errors import BadPatch, TooDeep
from meruit.playground.fhir.json import write

MAX_OPERATIONS = 1_000
"""Of one patch."""
MAX_COPIED_BYTES = 16 * 1024 * 1024
"""Of all that one patch copies, as JSON: a list that is copied into itself doubles each time."""

# Any, in this file: a document is any JSON.
_NEEDS = {"add": "value", "replace": "value", "test": "value", "move": "from", "copy": "from", "remove": "path"}


def apply_patch(document: Any, operations: Any) -> Any:
    """Copy the document with every operation applied; raises BadPatch for the first that cannot be."""
    if not isinstance(operations, list) or len(operations) > MAX_OPERATIONS:
        raise BadPatch(f"a JSON Patch is a list of at most {MAX_OPERATIONS:,} operations")
    holder = {"": copy.deepcopy(document)}
    copied = 0
    for number, operation in enumerate(operations):
        try:
            copied += _apply(holder, operation, bytes_left=MAX_COPIED_BYTES - copied)
        except (LookupError, TypeError, ValueError, TooDeep) as problem:
            raise BadPatch(f"operation {number} cannot be applied: {problem}") from None
    return holder[""]


def _apply(holder: dict[str, Any], operation: Any, *, bytes_left: int) -> int:
    """Do one operation; returns how many bytes it copied."""
    verb = operation["op"]
    if verb not in _NEEDS:
        raise ValueError(f"{verb!r} is not one of {', '.join(_NEEDS)}")
    operation[_NEEDS[verb]]
    path = _steps(operation["path"])
    match verb:
        case "add":
            _add(holder, path, operation["value"])
        case "remove":
            _take(holder, path)
        case "replace":
            _take(holder, path)
            _add(holder, path, operation["value"])
        case "move":
            _add(holder, path, _take(holder, _steps(operation["from"])))
        case "copy":
            found = _at(holder, _steps(operation["from"]))
            if (size := len(write(found))) > bytes_left:
                raise ValueError(f"a patch may copy {MAX_COPIED_BYTES:,} bytes")
            _add(holder, path, copy.deepcopy(found))
            return size
        case _:
            if (found := _at(holder, path)) != operation["value"]:
                raise ValueError(f"the test of {operation['path']!r} found {reprlib.repr(found)}")
    return 0


def _steps(pointer: str) -> list[str]:
    """Split `/a/b~1c` into steps."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON Pointer; begin it with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]


def _at(within: Any, steps: list[str]) -> Any:
    for step in steps:
        within = within[_index(step, len(within) - 1) if isinstance(within, list) else step]
    return within


def _index(step: str, last: int) -> int:
    if not (step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")) or int(step) > last:
        raise ValueError(f"the list has no index {step!r}")
    return int(step)


def _add(holder: dict[str, Any], steps: list[str], value: Any) -> None:
    within, step = _at(holder, steps[:-1]), steps[-1]
    if isinstance(within, list):
        within.insert(len(within) if step == "-" else _index(step, len(within)), value)
    elif isinstance(within, dict):
        within[step] = value
    else:
        raise ValueError(f"nothing can be put at {step!r} of {reprlib.repr(within)}")  # noqa: TRY004 - of the document, not of ours


def _take(holder: dict[str, Any], steps: list[str]) -> Any:
    within, step = _at(holder, steps[:-1]), steps[-1]
    if isinstance(within, list):
        return within.pop(_index(step, len(within) - 1))
    if isinstance(within, dict):
        return within.pop(step)
    raise ValueError(f"there is nothing at {step!r} of {reprlib.repr(within)}")
