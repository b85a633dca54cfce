"""The registries of the other plugins, each with the decorator that adds one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from meruit.errors import PluginSignature
from meruit.registry.loading import Function, Registry
from meruit.registry.plugins import (
    Check,
    Exporter,
    FlagExample,
    FlagRule,
    Importer,
    ImportExample,
    SettlementRule,
    UsageFollower,
    UsageProvider,
)
from meruit.suggestions import nearest

if TYPE_CHECKING:
    from meruit.model.governance import Action, Dossier


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
