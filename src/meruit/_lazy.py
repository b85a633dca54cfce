"""Public names of a package, each loaded from its module when it is first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the package's `__getattr__` and `__dir__`; `homes` lists the names of each module below `meruit`."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"meruit.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(home_of)
