"""Finds plugins: a file in the plugin's package, or an entry point of an installed package."""

import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from meruit.errors import MeruitError, UnknownName
from meruit.registry.plugins import (
    Check,
    Exporter,
    FlagRule,
    Importer,
    Metric,
    SettlementRule,
    UsageFollower,
    UsageProvider,
)
from meruit.suggestions import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

P = TypeVar("P", Metric, Check, FlagRule, SettlementRule, UsageProvider, UsageFollower, Exporter, Importer)
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Generic[P]):
    """The plugins of one package, loaded on first use."""

    def __init__(self, package: str, advice: str = "", noun: str = "") -> None:
        self.package = package
        self._noun = noun or package.rpartition(".")[2].removesuffix("s")
        self._advice = advice
        self._found: dict[str, P] = {}
        self._loaded = False
        self._loading = threading.RLock()
        self._failure: MeruitError | None = None

    def put(self, plugin: P) -> None:
        """Register a plugin; refuses a second one of the same name."""
        if plugin.name in self._found:
            raise MeruitError(f"two {self.package} are named {plugin.name!r}; rename one")
        self._found[plugin.name] = plugin

    def find(self, name: str) -> P | None:
        """The plugin of that name, or None."""
        self._load()
        return self._found.get(name)

    def get(self, name: str) -> P:
        """The plugin of that name, or an error that names the nearest."""
        plugin = self.find(name)
        if plugin is None:
            raise UnknownName(f"no {self._noun} is named {name!r}{self.suggest(name, self.names())}{self._advice}")
        return plugin

    def suggest(self, name: str, known: Iterable[str]) -> str:
        """The end of a message that suggests which of the known names may be meant; empty where none is close."""
        return nearest(name, known)

    def names(self) -> list[str]:
        """Every name, sorted."""
        self._load()
        return sorted(self._found)

    def __iter__(self) -> Iterator[P]:
        """Every plugin, by name."""
        self._load()
        return iter([self._found[name] for name in sorted(self._found)])

    def _load(self) -> None:
        if self._loaded:
            return
        # Several threads may build engines at once; none may see only some of the plugins.
        with self._loading:
            if self._failure is not None:
                raise self._failure
            # A slow import, which most verifications can do without.
            import pkgutil

            package = f"meruit.{self.package}"
            spec = find_spec(package)
            if spec is not None:
                for module in pkgutil.iter_modules(spec.submodule_search_locations):
                    importlib.import_module(f"{package}.{module.name}")
            for point in find_entry_points(package):
                try:
                    point.load()
                except Exception as problem:
                    self._failure = MeruitError(
                        f"the plugin {point.name!r} ({point.value}) cannot be loaded: {problem}; repair or uninstall it"
                    )
                    raise self._failure from problem
            self._loaded = True


def find_entry_points(group: str) -> "Iterable[EntryPoint]":
    """The entry points of installed packages in a group.

    Python's own search takes longer to load than a verification, and most installations have no entry point of ours.
    So it is asked only where a file of some package names the group, or where that is not known.
    """
    groups = _groups_installed((*sys.path,))
    if groups is not None and group not in groups:
        return ()
    from importlib import metadata

    return metadata.entry_points(group=group)


@lru_cache(maxsize=1)
def _groups_installed(path: tuple[str, ...]) -> frozenset[str] | None:
    """The groups that have an entry point in the folders of the path; None where packages may be elsewhere too."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    found = set[str]()
    for folder in path:
        if folder.endswith(".egg") or Path(folder).is_file():
            return None
        try:
            packages = [one.path for one in os.scandir(folder or ".") if one.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for package in packages:
            # Not through Path, which takes longer than the reading, and there may be hundreds.
            with suppress(OSError), open(f"{package}/entry_points.txt", "rb") as file:  # noqa: PTH123
                found.update(group.decode(errors="replace").strip() for group in _GROUP.findall(file.read()))
    return frozenset(found)


_GROUP = re.compile(rb"^\s*\[([^\]\n]+)\]", re.MULTILINE)
