"""The kinds of plugins: what each of them says about itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.model.evidence import Checked, Measured, Missing, Provenance, Skipped, Value
from meruit.model.kinds import MetricType
from meruit.model.work import Work

if TYPE_CHECKING:
    # Loading these takes longer than everything else here, and a plugin only names them.
    from pydantic import BaseModel

    from meruit.model.contract import Terms
    from meruit.model.criterion import Assertion
    from meruit.model.environment import SourceKind
    from meruit.model.governance import Action, Dossier, Suspicion
    from meruit.model.metering import UsageSource
    from meruit.model.money import ContractTokenUse, Line, PricePart
    from meruit.model.verdict import VerificationResult

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
