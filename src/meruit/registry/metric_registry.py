"""The metrics: found by the text of their files, so that only those that are asked for are loaded."""

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from meruit.model.evidence import Provenance
from meruit.model.kinds import MetricType
from meruit.registry.loading import Function, Registry, find_entry_points
from meruit.registry.plugins import Ask, Example, InputProblem, Measure, Metric
from meruit.suggestions import similar_names, suggest

MEANT_AS_TYPE = 0.8
"""How alike a metric's unknown name must be to the name of a type to mean metrics of that type."""
MAX_OF_A_TYPE = 5
"""A type with more metrics than this suggests none of them."""


class MetricNames(list[str]):
    """The names of the metrics that an engine computes, and where the others are switched off."""

    def __init__(self, names: Iterable[str], switched_off: Mapping[str, str] | None = None) -> None:
        super().__init__(names)
        self.switched_off = dict(switched_off or {})
        """Why a metric is not computed, by its name: the setting that says so."""


_ADDED = re.compile(rb'^@metrics\.add\(\s*"([^"\\\\]+)"', re.MULTILINE)
_ADDING = b"metrics.add("


class MetricRegistry(Registry[Metric]):
    """The metrics, and the decorator that adds one."""

    def find(self, name: str) -> Metric | None:
        """The metric of that name, or None; of ours, only the file that defines it is loaded."""
        if name not in self._found:
            home = self.families().get(name)
            if home is not None and name not in self._found:
                importlib.import_module(f"meruit.{self.package}.{home}")
        return self._found.get(name)

    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self.families())

    def families(self) -> Mapping[str, str]:
        """The family of each metric. The text of our own files states it, so that they need not be loaded.

        Everything is loaded where another package adds metrics.
        """
        if not self._loaded:
            with self._loading:
                if self._written is None:
                    self._written = self._read_names()
        families = self._written or {}
        added = {metric.name: metric.family for metric in self._found.values()}
        for name in added.keys() & families.keys():
            if added[name] != families[name]:
                # The file that should define it finds the name taken, and says so.
                importlib.import_module(f"meruit.{self.package}.{families[name]}")
        return {**families, **added}

    _written: Mapping[str, str] | None = None
    """The families that the text of our files states; None until it is read."""

    def _read_names(self) -> Mapping[str, str]:
        package = f"meruit.{self.package}"
        spec = find_spec(package)
        folders = (spec.submodule_search_locations if spec is not None else None) or ()
        if find_entry_points(package) or not all(map(os.path.isdir, folders)):
            self._load()
            return {}
        written: dict[str, str] = {}
        for folder in folders:
            for file in sorted(Path(folder).glob("*.py")):
                text, family = file.read_bytes(), file.stem
                names = _ADDED.findall(text)
                if len(names) == text.count(_ADDING):
                    written.update(dict.fromkeys((name.decode() for name in names), family))
                else:
                    # A name that the text does not spell out.
                    importlib.import_module(f"{package}.{family}")
        return written

    def suggest(self, name: str, known: Iterable[str]) -> str:
        """Suggest metrics; for the name of a type, such as `rouge_score`, all metrics of that type."""
        import difflib

        names = [*known]
        of_kind: dict[str, list[str]] = {}
        for metric in self:
            if metric.name in names:
                of_kind.setdefault(metric.kind, []).append(metric.name)
        meant = similar_names(name, names)
        kind = difflib.get_close_matches(name, of_kind, n=1, cutoff=MEANT_AS_TYPE)
        alike = of_kind[kind[0]] if kind else meant
        if len(alike) > MAX_OF_A_TYPE or (meant and {*meant} <= {*alike}):
            alike = meant
        return suggest(alike)

    def add(  # noqa: PLR0913 - each is a field of the metric
        self,
        name: str,
        *,
        kind: MetricType,
        examples: list[tuple[Any, ...]],
        params: Mapping[str, str] | None = None,
        provenance: Provenance = Provenance.COMPUTED,
        costly: bool = False,
        version: str = "1",
        inspect_input: Callable[[Ask, Mapping[str, Any]], Iterable[InputProblem]] | None = None,
        service: str | None = None,
    ) -> Callable[[Function], Function]:
        """Register the function below under a name.

        Without `params` it takes a Work and returns what it found. With `params` it takes an Ask, does its
        preparation once, and returns the function of Work. A metric with a `service` is answered by that service of
        the engine; its function validates the Ask and says what is missing where the engine has no such service.
        """

        def register(function: Function) -> Function:
            takes_ask = params is not None
            self.put(
                Metric(
                    name=name,
                    family=function.__module__.removeprefix("meruit.metrics."),
                    kind=kind,
                    summary=(function.__doc__ or "").strip().split("\n", 1)[0],
                    prepare=function if takes_ask else lambda _ask: cast("Measure", function),
                    params=params or {},
                    takes_ask=takes_ask,
                    provenance=provenance,
                    costly=costly,
                    version=version,
                    examples=tuple(Example(*example) for example in examples),
                    inspect_input=inspect_input,
                    service=service,
                )
            )
            return function

        return register
