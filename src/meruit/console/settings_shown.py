"""Settings as a page shows them: each with its value, whether it is the default, and secrets hidden."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

HIDDEN = "hidden"
_SECRET = re.compile(r"secret|password|passwd|token$|api_?key$|credential", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting."""

    name: str
    value: str
    is_default: bool


def list_settings(settings: BaseModel) -> dict[str, list[ShownSetting]]:
    """The settings in force by section."""
    usual = type(settings)()
    return {
        section: [*_walk(getattr(settings, section), getattr(usual, section), section)]
        for section in type(settings).model_fields
    }


# Any: settings have values of many types.
def _walk(value: Any, usual: Any, name: str) -> Iterator[ShownSetting]:
    if isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _walk(getattr(value, field), getattr(usual, field, None), f"{name}.{field}")
    elif isinstance(value, dict) and value:
        known = usual if isinstance(usual, dict) else {}
        for key, one in value.items():
            yield from _walk(one, known.get(key), f"{name}.{key}")
    else:
        yield ShownSetting(name, _show(name, value), value == usual)


def _show(name: str, value: Any) -> str:
    if value is None:
        return "not set"
    if _SECRET.search(name.rpartition(".")[2]):
        return HIDDEN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list | frozenset | set | dict):
        text = ", ".join(str(one) for one in value) or "none"
    else:
        text = str(value)
    return _USER_INFO.sub(f"{HIDDEN}@", text)
