"""The extractor interface: an object that extracts several metrics at once."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meruit.model.evidence import Measured, Missing, Provenance, Value
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Metric, metrics


class MetricExtractor(ABC):
    """Base class for extracting metrics from task outputs; subclass it to bring your own."""

    version: str = "1"
    """Change it when the same work would give other numbers: cached results are keyed by it."""
    provenance: Provenance = Provenance.COMPUTED
    """Where its values come from; use CLAIMED for what the agent says about itself."""

    @abstractmethod
    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Mapping[str, Finding]:
        """The metrics of one piece of work; omit what cannot be measured, or return `Missing` with the reason."""

    @abstractmethod
    def supported_metrics(self) -> list[str]:
        """Every name that `extract` may return."""


class MetricService(ABC):
    """Answers a metric that asks another system, such as model judges; an engine is given its services by name."""

    @abstractmethod
    def open(self, metric: str, ask: Ask) -> MetricExtractor:
        """The extractor that answers one question about any work; raises AuthorError for one that cannot be asked."""


class LazyServices(Mapping[str, MetricService]):
    """The services of an engine by name, each built when it is first asked for."""

    def __init__(self, build: Mapping[str, Callable[[], MetricService]]) -> None:
        self._build = dict(build)
        self._built: dict[str, MetricService] = {}
        self._building = threading.Lock()
        self._actions: dict[str, list[Callable[[MetricService], None]]] = {}

    def __getitem__(self, name: str) -> MetricService:
        """The service of that name."""
        build = self._build[name]
        with self._building:
            if name not in self._built:
                self._built[name] = build()
                for act in self._actions.get(name, ()):
                    act(self._built[name])
            return self._built[name]

    def when_built(self, name: str, act: Callable[[MetricService], None]) -> None:
        """Have something done with a service: at once where it is built already, else as soon as it is."""
        with self._building:
            self._actions.setdefault(name, []).append(act)
            if name in self._built:
                act(self._built[name])

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        return iter(self._build)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._build)


def version_of(extractor: MetricExtractor) -> str:
    """The version of an extractor; one that is not built on our base class may have none."""
    return str(getattr(extractor, "version", MetricExtractor.version))


def provenance_of(extractor: MetricExtractor) -> Provenance:
    """Where an extractor's values come from: computed, unless it says otherwise."""
    return getattr(extractor, "provenance", MetricExtractor.provenance)


def is_extractor_class(found: object) -> bool:
    """Whether it is a class of extractors, built on our base class or on one of the same form."""
    return isinstance(found, type) and all(
        callable(getattr(found, name, None)) for name in ("extract", "supported_metrics")
    )


class Family(MetricExtractor):
    """An extractor of all metrics of one file."""

    family: str

    def __init__(self, family: str | None = None) -> None:
        if family is not None:
            self.family = family

    def supported_metrics(self) -> list[str]:
        """Every name that `extract` may return."""
        return self.member_names()

    def member_names(self) -> list[str]:
        """The names of its metrics, whose file need not be loaded for them."""
        return sorted(name for name, family in metrics.families().items() if family == self.family)

    def members(self) -> list[Metric]:
        """Its metrics; the engine runs only those that it needs."""
        return [metrics.get(name) for name in self.member_names()]

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Mapping[str, Value]:
        """Every metric of the family that this work allows to be measured."""
        work = Work(input=task_input, output=task_output, metadata=metadata)
        found: dict[str, Value] = {}
        for metric in self.members():
            finding = metric.prepare(Ask())(work)
            if isinstance(finding, Measured):
                found[metric.name] = finding.value
            elif not isinstance(finding, Missing):
                found[metric.name] = finding
        return found
