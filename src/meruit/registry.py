"""Finds plugins: a file in the plugin's package, or an entry point of an installed package."""

import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from meruit.errors import AssertionFaults, AuthorError, MeruitError, PluginSignature, UnknownName
from meruit.model.evidence import Checked, Measured, Missing, Provenance, Skipped, Value
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.suggestions import nearest, similar_names, suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    # Loading these takes longer than everything else here, and a registry only names them.
    from pydantic import BaseModel

    from meruit.model.contract import Terms
    from meruit.model.criterion import Assertion
    from meruit.model.environment import SourceKind
    from meruit.model.governance import Action, Dossier, Suspicion
    from meruit.model.metering import UsageSource
    from meruit.model.money import ContractTokenUse, Line, PricePart
    from meruit.model.verdict import VerificationResult

MEANT_AS_TYPE = 0.8
"""How alike a metric's unknown name must be to the name of a type to mean metrics of that type."""
MAX_OF_A_TYPE = 5
"""A type with more metrics than this suggests none of them."""

Finding = Value | Measured | Missing
Measure = Callable[[Work], Finding]


class Ask(msgspec.Struct, frozen=True):
    """What one criterion asks of a metric: its params, and the values that must be contained."""

    params: Mapping[str, Any] = {}
    wanted: tuple[str, ...] = ()


class Example(msgspec.Struct, frozen=True):
    """One work and the metric's value for it; shown in the docs and run as a test."""

    work: Work
    expect: Value | type[Missing]
    """The value, or `Missing` where there is none."""
    ask: Ask = Ask()


class InputProblem(msgspec.Struct, frozen=True):
    """What lint finds wrong with a work's input, as a criterion would read it."""

    code: str
    message: str
    proven: bool = False
    """Whether the criterion cannot be judged with this input."""


class Metric(msgspec.Struct, frozen=True):
    """A way to get a number out of work."""

    name: str
    family: str
    """The module it lives in; the extractor of that family computes it."""
    kind: MetricType
    """Its own type; authors may use another."""
    summary: str
    prepare: Callable[[Ask], Measure]
    """Prepares once for all works; raises AuthorError for invalid params."""
    params: Mapping[str, str]
    """The params it takes, each with its meaning."""
    takes_ask: bool
    """Whether its value depends on the criterion."""
    provenance: Provenance
    costly: bool
    """Whether its result is worth caching."""
    version: str
    examples: tuple[Example, ...]
    inspect_input: Callable[[Ask, Mapping[str, Any]], Iterable[InputProblem]] | None = None
    """What lint asks about a work's input, where a good input can still be read badly."""
    service: str | None = None
    """The service of the engine that answers it, for a metric that asks another system; None for a pure one."""


class CheckExample(msgspec.Struct, frozen=True):
    """One work and the check's score for it; shown in the docs and run as a test."""

    assertion: Mapping[str, Any]
    """As an author writes it, without `assert`."""
    work: Work
    expect: str | None
    """The score, as `1` or `2/3`; None where it cannot be judged."""


Run = Callable[[Work], Checked | Missing | Skipped]


class Check(msgspec.Struct, frozen=True):
    """A way to compare an assertion with the state of the environment."""

    name: str
    summary: str
    prepare: Callable[["Assertion"], Run]
    """Prepares once for all works; raises AuthorError for an invalid assertion."""
    version: str = "1"
    kinds: "frozenset[SourceKind]" = frozenset()
    """The kinds of source that it reads."""
    evidence: str = "fieldResults"
    """The name of its field results in the evidence."""
    last: bool = False
    """Whether it runs after all others, because it needs to know which items they expect."""
    settings: "type[BaseModel] | None" = None
    """The model of its settings; None where the check validates them itself."""
    reader: Any = None
    """Its reader of items, which `let` uses too."""
    examples: tuple[CheckExample, ...] = ()
    is_text: Callable[[Mapping[str, Any]], bool] = lambda _settings: False
    """Whether all values that an assertion with these settings reads are text, as those of HL7 and X12."""


class FlagExample(msgspec.Struct, frozen=True):
    """One dossier and the rule's answer; shown in the docs and run as a test."""

    dossier: "Dossier"
    expect: bool | None
    """Whether it is suspect; None where the rule lacks what it needs."""


class FlagRule(msgspec.Struct, frozen=True):
    """A rule that finds implausible outcomes."""

    name: str
    summary: str
    action: "Action"
    limits: Mapping[str, float]
    """Its default thresholds by name; the configuration may change them."""
    judge: "Callable[[Dossier, Mapping[str, float]], Sequence[Suspicion] | None]"
    """What is suspect; None where the dossier lacks what the rule needs."""
    version: str
    examples: tuple[FlagExample, ...]
    needs_history: bool = False
    """Whether it compares with earlier outcomes, so that it finds nothing where none are recorded."""


@dataclass(frozen=True, slots=True)
class SettlementContext:
    """What a settlement rule goes by."""

    result: "VerificationResult"
    terms: "Terms"
    lines: "tuple[Line, ...]" = ()
    """What the rules before this one have put on the bill."""
    usage: "tuple[ContractTokenUse, ...]" = ()
    """The tokens of the contract's runs; empty where the terms do not price tokens."""

    def sum_of(self, part: "PricePart") -> int:
        """The lines of one part so far, in millionths."""
        return sum(line.micros for line in self.lines if line.part is part)

    def bonus_by_criterion(self) -> dict[str | None, int]:
        """The bonus of each criterion so far, in millionths."""
        from meruit.model.money import PricePart

        found: dict[str | None, int] = {}
        for line in self.lines:
            if line.part is PricePart.BONUS:
                found[line.criterion_id] = found.get(line.criterion_id, 0) + line.micros
        return found


class SettlementRule(msgspec.Struct, frozen=True):
    """A step from a verdict to a bill."""

    name: str
    summary: str
    apply: "Callable[[SettlementContext], Sequence[Line]]"
    """Returns the lines that it adds to the bill."""
    after: tuple[str, ...] = ()
    """Rules whose lines it reads; terms that name one of them after this rule are refused."""


class UsageProvider(msgspec.Struct, frozen=True):
    """A kind of API or file that reports used tokens."""

    name: str
    summary: str
    open: "Callable[..., UsageSource]"
    """Takes this provider, the account, and what `sources.usage.opening` gives; AuthorError for what cannot be."""
    base_url: str = ""
    """Its default URL; empty where the account must set one."""
    key_variable: str = ""
    """The default environment variable of its key; empty where it needs no key."""
    is_file: bool = False
    self_reported: bool = False
    """Whether it only repeats the callers' own counts, which verifies nothing."""
    options: Mapping[str, str] = {}
    """What an account may set, each with its meaning."""


class UsageFollower(msgspec.Struct, frozen=True):
    """What is done, in the same transaction, when usage is recorded for a contract's runs."""

    name: str
    summary: str
    follow: Callable[..., None]
    """Takes the transaction, the tenant, who records, and the contract's id."""


class Exporter(msgspec.Struct, frozen=True):
    """A format that evaluations are written in."""

    name: str
    summary: str
    write: Callable[..., Iterable[str | bytes]]
    """Takes an `EvaluationExport` and yields the file piece by piece."""
    ending: str
    """The usual ending of its files, as `.xml`."""


class ImportExample(msgspec.Struct, frozen=True):
    """Files of another tool and what they claim; shown in the docs and run as a test."""

    files: Mapping[str, str]
    """Their contents by name; several make a folder."""
    expect: Mapping[str, str | None]
    """The claimed verdict of each case; None where there is none."""


class Importer(msgspec.Struct, frozen=True):
    """A format of another tool's results."""

    name: str
    summary: str
    recognise: Callable[..., bool]
    """Takes an `ImportSource`: whether its content is of this format."""
    read: Callable[..., Iterable[Any]]
    """Takes an `ImportSource` and yields its pieces: facts of the run, cases with claims, notes."""
    last: bool = False
    """Whether others are asked first, because many files fit it."""
    examples: tuple[ImportExample, ...] = ()


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


class CheckRegistry(Registry[Check]):
    """The state checks, and the decorator that adds one."""

    def add(self, name: str, *, version: str = "1") -> Callable[[Function], Function]:
        """Register the function below as the check that `assert: name` asks for."""

        def register(function: Function) -> Function:
            summary = (function.__doc__ or "").strip().split("\n", 1)[0]
            self.put(
                Check(
                    name=name, summary=summary, prepare=lambda assertion: partial(function, assertion), version=version
                )
            )
            return function

        return register


def faults_of(assertion: "Assertion") -> Sequence[tuple[tuple[str | int, ...], str]]:
    """The faults of an assertion, each with its path; empty where it is valid."""
    check = checks.find(assertion.check)
    if check is None:
        return [(("assert",), f"no check is named {assertion.check!r}{nearest(assertion.check, checks.names())}")]
    try:
        check.prepare(assertion)
    except AssertionFaults as refused:
        return refused.faults
    except AuthorError as refused:
        return [((), str(refused))]
    return []


class FlagRegistry(Registry[FlagRule]):
    """The rules of governance, and the decorator that adds one."""

    def add(
        self,
        name: str,
        *,
        action: "Action",
        examples: "list[tuple[Dossier, bool | None]]",
        limits: Mapping[str, float] | None = None,
        version: str = "1",
        needs_history: bool = False,
    ) -> Callable[[Function], Function]:
        """Register the function below under a name; it takes a Dossier and the limits in force.

        One that reads `dossier.history` sets `needs_history`: it runs where records are kept.
        """

        def register(function: Function) -> Function:
            summary = (function.__doc__ or "").strip().split("\n", 1)[0]
            several = tuple(FlagExample(*example) for example in examples)
            self.put(
                FlagRule(
                    name=name,
                    summary=summary,
                    action=action,
                    limits=limits or {},
                    judge=function,
                    version=version,
                    examples=several,
                    needs_history=needs_history,
                )
            )
            return function

        return register


class SettlementRegistry(Registry[SettlementRule]):
    """The settlement rules, and the decorator that adds one."""

    def add(self, name: str, *, after: Sequence[str] = ()) -> Callable[[Function], Function]:
        """Register the function below under the name by which terms ask for it; it takes a SettlementContext.

        `after` names the rules whose lines it reads. Terms must name them before this one, or not at all.
        """

        def register(function: Function) -> Function:
            summary = (function.__doc__ or "").strip().split("\n", 1)[0]
            self.put(SettlementRule(name=name, summary=summary, apply=function, after=tuple(after)))
            return function

        return register

    def put(self, plugin: SettlementRule) -> None:
        """Register a rule; raises PluginSignature for one that does not take a context alone."""
        import inspect

        signature = inspect.signature(plugin.apply)
        try:
            signature.bind(None)
        except TypeError:
            raise PluginSignature(
                f"the settlement rule {plugin.name!r} takes {signature}; it must take one SettlementContext: read "
                "context.result, context.terms, context.lines and context.usage"
            ) from None
        super().put(plugin)


class UsageRegistry(Registry[UsageProvider]):
    """The kinds of APIs and files that count tokens, and the decorator that adds one."""

    def add(
        self,
        name: str,
        *,
        base_url: str = "",
        key_variable: str = "",
        is_file: bool = False,
        self_reported: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Callable[[Function], Function]:
        """Register the class or function below under the name by which accounts ask for it."""

        def register(function: Function) -> Function:
            summary = (function.__doc__ or "").strip().split("\n", 1)[0]
            provider = UsageProvider(
                name=name,
                summary=summary,
                open=function,
                base_url=base_url,
                key_variable=key_variable,
                is_file=is_file,
                self_reported=self_reported,
                options=options or {},
            )
            self.put(provider)
            return function

        return register


class UsageFollowerRegistry(Registry[UsageFollower]):
    """What follows recorded usage, and the decorator that adds a follower."""

    def add(self, name: str) -> Callable[[Function], Function]:
        """Register the function below."""

        def register(function: Function) -> Function:
            self.put(
                UsageFollower(name=name, summary=(function.__doc__ or "").strip().split("\n", 1)[0], follow=function)
            )
            return function

        return register


class ExporterRegistry(Registry[Exporter]):
    """The formats that evaluations are written in, and the decorator that adds one."""

    def suggest(self, name: str, known: Iterable[str]) -> str:
        """Suggest the nearest, and list all: there are few."""
        return f"{nearest(name, known)}; there are {', '.join(self.names())}"

    def by_ending(self, name: str) -> Exporter | None:
        """The format that the name of a file ends in, the longest ending first; None where there is none."""
        several = [one for one in self if name.casefold().endswith(one.ending)]
        return max(several, key=lambda one: len(one.ending), default=None)

    def add(self, name: str, *, ending: str) -> Callable[[Function], Function]:
        """Register the function below under the name by which `--format` asks for it."""

        def register(function: Function) -> Function:
            self.put(
                Exporter(
                    name=name, summary=(function.__doc__ or "").strip().split("\n", 1)[0], write=function, ending=ending
                )
            )
            return function

        return register


class ImporterRegistry(Registry[Importer]):
    """The formats of other tools' results, and the decorator that adds one."""

    def suggest(self, name: str, known: Iterable[str]) -> str:
        """Suggest the nearest, and list all: there are few."""
        return f"{nearest(name, known)}; there are {', '.join(self.names())}"

    def add(
        self,
        name: str,
        *,
        recognise: Callable[..., bool],
        examples: list[tuple[Mapping[str, str], Mapping[str, str | None]]],
        last: bool = False,
    ) -> Callable[[Function], Function]:
        """Register the function below, which takes an `ImportSource` and yields pieces."""

        def register(function: Function) -> Function:
            summary = (function.__doc__ or "").strip().split("\n", 1)[0]
            several = tuple(ImportExample(*example) for example in examples)
            self.put(
                Importer(name=name, summary=summary, recognise=recognise, read=function, last=last, examples=several)
            )
            return function

        return register


metrics = MetricRegistry("metrics", "; `meruit metrics` lists all")
checks = CheckRegistry("checks", "; `meruit checks` lists all")
flags = FlagRegistry("governance.flags", "; `meruit governance rules` lists all")
settlement_rules = SettlementRegistry("contracts.rules", "; `meruit ledger rules` lists all")
usage_sources = UsageRegistry("usage.providers", "; `meruit usage sources` lists all", "usage source")
usage_followers = UsageFollowerRegistry("contracts.usage_followers", noun="usage follower")
exporters = ExporterRegistry("evaluations.exporters", noun="export format")
importers = ImporterRegistry("evaluations.importers", noun="import format")
