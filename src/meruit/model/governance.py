"""Whether an outcome can be believed: what is known about it, what makes it suspect, and who may be asked."""

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any, Protocol, Self

import msgspec

from meruit.model.evidence import Provenance
from meruit.model.kinds import MetricType
from meruit.model.record import Record
from meruit.model.text import escape_control_characters

UNAVAILABLE = "governance_unavailable"
"""The flag of an outcome that somebody who was asked said nothing about."""
MAX_NAME_CHARS = 200
"""How much of a flag's name is shown."""
MAX_FLAGS = 100
"""How many flags of a stranger are kept."""


class Action(StrEnum):
    """What a rule does to an outcome it finds suspect: proof may invalidate, statistics only hold or flag."""

    INVALIDATE = "invalidate"
    HOLD = "hold"
    """Nothing is paid until a person has looked."""
    FLAG = "flag"
    WITHHOLD = "withhold"
    """The bonus is not paid; the rest is."""
    REFUSE = "refuse"
    """The contract is not even made."""


class Disposition(StrEnum):
    """What governance makes of an outcome."""

    CLEAR = "clear"
    HOLD = "hold"
    INVALID = "invalid"


WORST = (Disposition.CLEAR, Disposition.HOLD, Disposition.INVALID)
"""The worst last."""


def disposition_of(action: Action) -> Disposition:
    """What an outcome comes to by one action."""
    match action:
        case Action.INVALIDATE:
            return Disposition.INVALID
        case Action.HOLD | Action.REFUSE:
            return Disposition.HOLD
        case Action.FLAG | Action.WITHHOLD:
            return Disposition.CLEAR


class Flag(Record, frozen=True):
    """One rule's suspicion, with all that it rests on."""

    rule: str
    """Its name on the result: the rule's own, or `anomaly:<metric>:3sigma` and the like."""
    version: str
    action: Action
    metric: str | None = None
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    """Numbers and names, never a part of the work."""
    statistic: float | None = None


class GovernanceResult(Record, frozen=True):
    """Plausible or not; never whether the criteria were met."""

    valid: bool
    flags: list[Flag | str] = msgspec.field(default_factory=list)
    disposition: Disposition | None = None
    """None where whoever answers knows only valid and not."""
    confidence: float = 1.0
    """How much of what could be checked was: the share of the rules that had what they need."""

    @property
    def conclusion(self) -> Disposition:
        """What follows: the worst of validity, disposition and what the flags do."""
        said = [
            Disposition.CLEAR if self.valid else Disposition.INVALID,
            self.disposition or Disposition.CLEAR,
            *(disposition_of(flag.action) for flag in self.flags if isinstance(flag, Flag)),
        ]
        return max(said, key=WORST.index)

    @property
    def names(self) -> list[str]:
        """The flags as a result lists them: printable, and no longer than anybody reads."""
        named = (flag.rule if isinstance(flag, Flag) else flag for flag in self.flags)
        # Cut twice: what is spelled out grows.
        return [escape_control_characters(name[:MAX_NAME_CHARS])[:MAX_NAME_CHARS] for name in named]

    def limit_flags(self) -> Self:
        """The same with no more flags than are kept of a stranger; what follows from all of them stands."""
        if len(self.flags) <= MAX_FLAGS:
            return self
        return msgspec.structs.replace(self, flags=self.flags[:MAX_FLAGS], disposition=self.conclusion)


class GovernanceClient(Protocol):
    """Whoever answers; the outcome is held for review when it cannot be reached."""

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        """Judge the plausibility of the measured values in their context."""
        ...


class MetricFact(Record, frozen=True):
    """One criterion's number, as governance looks at it."""

    metric: str
    criterion_id: str
    value: float | None
    """None for what is no number, or was not measured."""
    kind: MetricType | None = None
    provenance: Provenance | None = None
    met: bool = False
    margin: float | None = None
    """How far a met value lies past its threshold, relative to it; None without a one-sided number to reach."""
    bonus_micros: int = 0
    """What it earned."""


class Baseline(Record, frozen=True):
    """What an agent's values of one metric were like in the last 30 days."""

    n: int
    mean: float
    deviation: float


class Dealings(Record, frozen=True):
    """How often work was done and earned a bonus: by this pair, by each with others, by everyone."""

    pair: int = 0
    pair_bonus: int = 0
    agent: int = 0
    """All of the agent's outcomes, with this consumer or another."""
    agent_bonus: int = 0
    consumer: int = 0
    consumer_bonus: int = 0
    market: int = 0
    market_bonus: int = 0


class History(Record, frozen=True):
    """What earlier outcomes say about this one; kept as it goes, never searched for."""

    replayed_in: str | None = None
    """A contract on another task for which this agent gave the same output."""
    shared_with: str | None = None
    """Another agent that gave the same output for another task."""
    settled_under: str | None = None
    """Another contract that was settled on the same evidence."""
    latency_mismatches: int = 0
    """How often this agent claimed to be faster than it was seen to be."""
    near_duplicates: int = 0
    """Earlier attempts of this agent at the same input with nearly the same output."""
    margins: list[float] = msgspec.field(default_factory=list)
    """Of the last 60 values that met a threshold, the oldest first, this outcome's included."""
    accuracies: list[float] = msgspec.field(default_factory=list)
    """The last 60, this outcome's included."""
    baselines: dict[str, Baseline] = msgspec.field(default_factory=dict)
    """By metric, this outcome's left out."""
    dealings: Dealings = Dealings()
    """Before this outcome."""


class Dossier(Record, frozen=True):
    """All that governance goes by: numbers, names and hashes. Whoever has it comes to the same flags."""

    contract_id: str = ""
    work_id: str | None = None
    agent_id: str | None = None
    consumer_id: str | None = None
    metrics: list[MetricFact] = msgspec.field(default_factory=list)
    claims: dict[str, float] = msgspec.field(default_factory=dict)
    """What the agent says that its metrics are."""
    success: bool = False
    """Whether the criteria were met."""
    claimed_ms: float | None = None
    """How long the agent says it took."""
    observed_ms: float | None = None
    """How long it was seen to take."""
    output_tokens: float | None = None
    """As claimed."""
    started_at: float | None = None
    """As claimed, in seconds since 1970."""
    ended_at: float | None = None
    received_at: float | None = None
    """When the output arrived here."""
    claimed_tokens: float | None = None
    provider_tokens: float | None = None
    usage_reconciled: bool = False
    """Whether the provider's count is final."""
    evaluator_before: dict[str, str] | None = None
    """SHA-256 of tests, reference and evaluator by name, before the agent ran."""
    evaluator_after: dict[str, str] | None = None
    canary_intact: bool | None = None
    """Whether the file that nobody had reason to touch is untouched."""
    canaries: int = 0
    """How many strings were planted in references and rubrics."""
    leaked: list[str] = msgspec.field(default_factory=list)
    """SHA-256 of those of them that occur in the output."""
    output_chars: int = 0
    reference_similarity: float | None = None
    """Of output and private reference, from 0 to 1; None where there is no reference."""
    impossible: bool = False
    """Whether the work was planted and contradicts itself, so that nobody can pass it honestly."""
    null_passes: list[str] = msgspec.field(default_factory=list)
    """Agents that do nothing and would pass."""
    claimed_may_earn: bool = False
    """Whether the terms let claims earn a bonus."""
    history: History = History()


class Suspicion(Record, frozen=True):
    """What a rule found; its name, version and usual action are the rule's own."""

    evidence: dict[str, Any]
    metric: str | None = None
    statistic: float | None = None
    action: Action | None = None
    """Another than the rule's usual one."""
    name: str | None = None
    """Another than the rule's own."""


def as_statistic(number: int | Fraction) -> float | None:
    """A number as a flag shows it; None where no float is so large."""
    try:
        return float(number)
    except OverflowError:
        return None


class Policy(Record, frozen=True):
    """Which rules are asked, and by which limits; recorded with every answer."""

    off: list[str] = msgspec.field(default_factory=list)
    limits: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    """By rule, those that differ from the rule's own."""


class GovernanceCheck(Record, frozen=True):
    """What governance went by, and what it said; kept, and committed to in the log."""

    dossier: Dossier
    policy: Policy | None
    """None when our own rules were not asked."""
    rules: dict[str, str]
    """Those that were asked, with their versions."""
    remote: GovernanceResult | None
    """What somebody else answered who was asked."""
    result: GovernanceResult
