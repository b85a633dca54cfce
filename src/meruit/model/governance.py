"""Governance: whether an outcome is plausible, and the facts and flags behind that."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from meruit.model.evidence import Provenance
from meruit.model.kinds import MetricType
from meruit.model.record import Record
from meruit.model.text import escape_control_characters

if TYPE_CHECKING:
    from meruit.model.verdict import VerificationResult
    from meruit.model.work import Work

UNAVAILABLE = "governance_unavailable"
"""The flag of an outcome when the governance service did not answer."""
MAX_NAME_CHARS = 200
"""The longest name of a flag."""
MAX_FLAGS = 100
"""The most flags kept from an external service."""


class Action(StrEnum):
    """What a rule does to a suspect outcome: proof may invalidate, statistics only hold or flag."""

    INVALIDATE = "invalidate"
    HOLD = "hold"
    """Nothing is paid until a person has reviewed it."""
    FLAG = "flag"
    WITHHOLD = "withhold"
    """The bonus is not paid; the rest is."""
    REFUSE = "refuse"
    """The contract is refused."""


class Disposition(StrEnum):
    """The decision of governance about an outcome."""

    CLEAR = "clear"
    HOLD = "hold"
    INVALID = "invalid"


WORST = (Disposition.CLEAR, Disposition.HOLD, Disposition.INVALID)
"""In order of severity."""


def disposition_of(action: Action) -> Disposition:
    """The disposition that one action leads to."""
    match action:
        case Action.INVALIDATE:
            return Disposition.INVALID
        case Action.HOLD | Action.REFUSE:
            return Disposition.HOLD
        case Action.FLAG | Action.WITHHOLD:
            return Disposition.CLEAR


class Flag(Record, frozen=True):
    """One rule's suspicion, with its evidence."""

    rule: str
    """Its name on the result: the rule's own, or `anomaly:<metric>:3sigma` and the like."""
    version: str
    action: Action
    metric: str | None = None
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    """Numbers and names, never parts of the work."""
    statistic: float | None = None


class GovernanceResult(Record, frozen=True):
    """Plausible or not; never whether the criteria were met."""

    valid: bool
    flags: list[Flag | str] = msgspec.field(default_factory=list)
    disposition: Disposition | None = None
    """None where the service answers only valid or not."""
    confidence: float = 1.0
    """The share of the rules that had the data they need."""

    @property
    def conclusion(self) -> Disposition:
        """The disposition: the worst of validity, disposition and the flags' actions."""
        conclusions = [
            Disposition.CLEAR if self.valid else Disposition.INVALID,
            self.disposition or Disposition.CLEAR,
            *(disposition_of(flag.action) for flag in self.flags if isinstance(flag, Flag)),
        ]
        return max(conclusions, key=WORST.index)

    @property
    def names(self) -> list[str]:
        """The flags for a result: printable and of limited length."""
        named = (flag.rule if isinstance(flag, Flag) else flag for flag in self.flags)
        # Cut twice, because escaping lengthens the text.
        return [escape_control_characters(name[:MAX_NAME_CHARS])[:MAX_NAME_CHARS] for name in named]

    def limit_flags(self) -> Self:
        """Limit the number of flags; the disposition that follows from all of them stays."""
        if len(self.flags) <= MAX_FLAGS:
            return self
        return msgspec.structs.replace(self, flags=self.flags[:MAX_FLAGS], disposition=self.conclusion)


ALL_CLEAR = GovernanceResult(valid=True, disposition=Disposition.CLEAR)
"""The answer to work about which there is nothing to say."""


class GovernanceClient(Protocol):
    """A governance service; the outcome is held for review when it cannot be reached."""

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        """Judge the plausibility of the measured values in their context."""
        ...


class LocalGovernance(ABC):
    """A GovernanceClient in this process: the engine hands it the work itself, and need not await it."""

    version: str
    """Identifies its rules and their limits; recorded with every result."""
    remote: GovernanceClient | None = None
    """A service that is asked as well; the worse answer counts."""

    @abstractmethod
    def check(self, work: "Work", result: "VerificationResult") -> GovernanceResult:
        """Judge the plausibility of judged work."""

    def is_clear(self, _work: "Work", _result: "VerificationResult") -> bool:
        """Whether `check` would find nothing, where that is known at once from the work and the criteria's results."""
        return False

    @abstractmethod
    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        """Judge the plausibility of the measured values in their context."""


class MetricFact(Record, frozen=True):
    """One criterion's number, as governance uses it."""

    metric: str
    criterion_id: str
    value: float | None
    """None for a value that is not a number or was not measured."""
    kind: MetricType | None = None
    provenance: Provenance | None = None
    met: bool = False
    margin: float | None = None
    """How far a met value is past its threshold, relative to it; None without a one-sided threshold."""
    bonus_micros: int = 0
    """The bonus that it earned."""


class Baseline(Record, frozen=True):
    """Statistics of an agent's values of one metric over the last 30 days."""

    n: int
    mean: float
    deviation: float


class Dealings(Record, frozen=True):
    """How often work was done and earned a bonus: by this pair, by each with others, by everyone.

    What the verdict decided counts, also while the payment is held.
    """

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
    """Facts from earlier outcomes, updated with each outcome instead of searched for."""

    replayed_in: str | None = None
    """A contract on another task for which this agent gave the same output, or nearly."""
    replayed_likeness: float = 1.0
    """How much of the two outputs is the same, estimated; that of one field is capped, because others differ."""
    shared_with: str | None = None
    """Another agent that gave the same output for another task, or nearly."""
    shared_likeness: float = 1.0
    """The same as `replayed_likeness`, for that output."""
    settled_under: str | None = None
    """Another contract that was settled on the same evidence."""
    latency_mismatches: int = 0
    """How often this agent claimed to be faster than it was observed to be."""
    near_duplicates: int = 0
    """Earlier attempts of this agent at the same input with nearly the same output."""
    near_tries: int = 0
    """Earlier tries of this agent at the same criteria with nearly the same words, for any input."""
    near_tries_failed: int = 0
    """How many of them did not pass."""
    margins: list[float] = msgspec.field(default_factory=list)
    """Of the last 60 values that met a threshold, the oldest first, this outcome's included."""
    accuracies: list[float] = msgspec.field(default_factory=list)
    """The last 60, this outcome's included."""
    baselines: dict[str, Baseline] = msgspec.field(default_factory=dict)
    """By metric, this outcome's left out."""
    dealings: Dealings = Dealings()
    """Before this outcome."""


class Dossier(Record, frozen=True):
    """The complete input of governance: numbers, names and hashes. The same dossier always gives the same flags."""

    contract_id: str = ""
    work_id: str | None = None
    agent_id: str | None = None
    consumer_id: str | None = None
    metrics: list[MetricFact] = msgspec.field(default_factory=list)
    claims: dict[str, float] = msgspec.field(default_factory=dict)
    """The metrics that the agent claims."""
    success: bool = False
    """Whether the criteria were met."""
    claimed_ms: float | None = None
    """The duration that the agent claims."""
    observed_ms: float | None = None
    """The observed duration."""
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
    """Whether the file that the task gives no reason to change is unchanged."""
    canaries: int = 0
    """How many strings were planted in references and rubrics."""
    leaked: list[str] = msgspec.field(default_factory=list)
    """SHA-256 of those of them that occur in the output."""
    output_chars: int = 0
    reference_similarity: float | None = None
    """Similarity of output and private reference, from 0 to 1; None without a reference."""
    impossible: bool = False
    """Whether the work was planted and contradicts itself, so that it cannot be passed honestly."""
    null_passes: list[str] = msgspec.field(default_factory=list)
    """Agents that do nothing and would pass."""
    claimed_may_earn: bool = False
    """Whether the terms let claims earn a bonus."""
    history: History = History()

    @property
    def earned_bonus(self) -> bool:
        """Whether the verdict gives a bonus that the terms do not withhold; a hold or release does not change it."""
        return any(
            fact.bonus_micros > 0 and (self.claimed_may_earn or fact.provenance is not Provenance.CLAIMED)
            for fact in self.metrics
        )


class Suspicion(Record, frozen=True):
    """What a rule found; name, version and usual action come from the rule."""

    evidence: dict[str, Any]
    metric: str | None = None
    statistic: float | None = None
    action: Action | None = None
    """Replaces the rule's usual action."""
    name: str | None = None
    """Replaces the rule's name."""


def as_statistic(number: int | Fraction) -> float | None:
    """A number for a flag's evidence; None where it is too large for a float."""
    try:
        return float(number)
    except OverflowError:
        return None


class Policy(Record, frozen=True):
    """Which rules run, and their limits; recorded with every result."""

    off: list[str] = msgspec.field(default_factory=list)
    limits: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    """By rule, those that differ from the rule's own."""


class RecordedOutput(Record, frozen=True):
    """The fingerprints under which an output is found when it is given again; they do not reveal it."""

    task: str
    output: str
    parts: tuple[str, ...]
    signature: str


class GovernanceCheck(Record, frozen=True):
    """The input and result of governance; stored, and committed to in the log."""

    dossier: Dossier
    policy: Policy | None
    """None when our own rules did not run."""
    rules: dict[str, str]
    """The rules that ran, with their versions."""
    remote: GovernanceResult | None
    """The answer of an external service."""
    result: GovernanceResult
    output: RecordedOutput | None = None
    """How the output is remembered; None where it is not: too short, invalid or a copy."""
