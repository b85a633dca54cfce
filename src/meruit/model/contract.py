"""Work that a client publishes, its terms of payment, and an agent's contract on it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from meruit.model.access import AGENT_TRIES, MAX_AGENT_TRIES, AgentScore
from meruit.model.canonical import canonical, from_canonical
from meruit.model.criterion import Amount, Share, SuccessCriteria
from meruit.model.limits import MIN_CANARY
from meruit.model.money import CURRENCIES
from meruit.model.outcome import MAX_LABEL
from meruit.model.record import Record
from meruit.model.threshold import money, plain_json
from meruit.model.verdict import Verdict
from meruit.model.vote import MIN_LABELS
from meruit.model.work import PRIVATE_INPUTS

DISPUTE_HOURS = 24
MAX_DISPUTE_HOURS = 168
DEADLINE_HOURS = 168
MAX_MIN_LABELS = 1_000_000
MAX_DEADLINE_HOURS = 24 * 366
MAX_TEXT = 20_000
MAX_CANARIES = 100
USUAL_RULES = ("cpc", "cpa_bonus", "claimed_only", "bonus_on_failure", "cap", "cpa_penalty")
TOKENS_RULE = "tokens"
"""The rule that bills tokens; terms that price tokens need it."""
CAP_NAMES = ("max_cpa_total", "max_cpa_bonus", "max_bonus")
"""The accepted names of the cap on all bonuses."""
FINDING_CODE = "^[a-z][a-z0-9_]*$"
MAX_FINDING_CODE = 64
MAX_FINDINGS = 32
SEPARATE = frozenset({"input", "private", "success_criteria"})
"""Fields of a submission that are stored elsewhere: with the evidence, and with the criteria."""
RECORDED = {"recorded": True}
"""Validation context of recorded work: it stays readable even if it would be refused today."""


class ContractState(StrEnum):
    """State of a contract."""

    AWARDED = "awarded"
    EXECUTING = "executing"
    VERIFICATION_PENDING = "verification_pending"
    """The output was submitted; a person must review it, or it must be judged again, before money moves."""
    VERIFIED = "verified"
    SETTLED = "settled"
    FAILED = "failed"
    """The criteria were not met, or the contract was cancelled."""
    EXPIRED = "expired"
    DISPUTED = "disputed"


class LatencyFrom(StrEnum):
    """From when an agent's time counts."""

    INPUT = "input"
    """From its first read of the input; from the award where it never read it here, or had read it before."""
    AWARD = "award"
    START = "start"
    """From the start that the agent reports, when it likes; from the award where it reports none."""


class AgentTries(Record, frozen=True):
    """How often an agent may still have its work verified by the same criteria."""

    used: int
    left: int
    budget: int
    contract_id: str | None = None
    """The open contract whose terms set the budget; null where the service sets it."""


class LatencyBasis(Record, frozen=True):
    """From when an agent's time counts on a contract."""

    event: str
    """award, input_read or start."""
    at: datetime
    """By the service's clock."""


class Escrow(StrEnum):
    """Where a contract's money is."""

    HELD = "held"
    FROZEN = "frozen"
    """Held and disputed: nothing is paid until the dispute is resolved."""
    PAID = "paid"
    RELEASED = "released"
    """Back with the consumer."""


OPEN = frozenset({Escrow.HELD, Escrow.FROZEN})
"""States in which the escrow holds the whole amount."""


class BonusOnFailure(StrEnum):
    """What failed work may still earn."""

    PER_CRITERION = "per_criterion"
    NONE = "none"


class CapSplit(StrEnum):
    """Whose bonus goes first when the cap is reached."""

    IN_ORDER = "in_order"
    """The first criteria are paid in full."""
    PRO_RATA = "pro_rata"
    """Each bonus is reduced by the same share."""


class SettleWhen(StrEnum):
    """When a contract with a clear verdict is paid."""

    AT_ONCE = "at_once"
    ON_REQUEST = "on_request"


def _currency(value: Any) -> Any:
    if isinstance(value, str) and value in CURRENCIES:
        return value
    raise ValueError("expected the code of a currency, such as USD or EUR")


def _line(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("expected one line without control characters")
    return value


Currency = Annotated[str, BeforeValidator(_currency), WithJsonSchema({"enum": sorted(CURRENCIES)})]
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), BeforeValidator(_line)]
Reason = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), BeforeValidator(_line)]


class TokenRates(BaseModel):
    """Rates per million tokens."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    input_per_million: Amount
    output_per_million: Amount = Field(description="Includes reasoning tokens.")
    cached_per_million: Amount | None = Field(
        default=None, description="Input read from a cache; default: as other input."
    )


class Terms(BaseModel):
    """Terms of payment of a contract."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    currency: Currency = "USD"
    cpc_rate: Amount | None = Field(default=None, description="Paid for each completed contract; the award may set it.")
    max_cpa_total: Amount | None = Field(default=None, description="The most that bonuses add up to; 0 means none.")
    max_penalty_rate: Share = Field(default=1, description="Penalties take at most this share of the CPC.")
    bonus_on_failure: BonusOnFailure = BonusOnFailure.PER_CRITERION
    cap_split: CapSplit = CapSplit.IN_ORDER
    claimed_may_earn: StrictBool = Field(default=False, description="Whether values that the agent claims may earn.")
    settle: SettleWhen = Field(
        default=SettleWhen.AT_ONCE, description="When a clear verdict is paid: at once, or on request."
    )
    latency_from: LatencyFrom = Field(
        default=LatencyFrom.INPUT,
        description="From when the agent's time counts: its first read of the input, the award, or its own start.",
    )
    pay_per_run: StrictBool = Field(
        default=False, description="Whether each payment is for one run: work that names no run_id is held."
    )
    min_kappa: Share | None = Field(
        default=None,
        description="The least kappa, between a judge and people, by which a judged criterion is paid without review.",
    )
    min_labels: int | None = Field(
        default=None,
        ge=1,
        le=MAX_MIN_LABELS,
        strict=True,
        description=f"Random labels that each judge needs (default with min_kappa: {MIN_LABELS}).",
    )
    agent_tries: int = Field(
        default=AGENT_TRIES,
        ge=0,
        le=MAX_AGENT_TRIES,
        strict=True,
        description="How often the agent may have its work verified by the same criteria before it completes.",
    )
    agent_score: AgentScore = Field(
        default=AgentScore.COARSE,
        description="What the agent sees of the score until it is paid: 0, 0.5 or 1, only the verdict, or all of it.",
    )
    dispute_window_hours: int = Field(default=DISPUTE_HOURS, ge=1, le=MAX_DISPUTE_HOURS, strict=True)
    deadline_hours: int = Field(default=DEADLINE_HOURS, ge=1, le=MAX_DEADLINE_HOURS, strict=True)
    platform_fee_rate: Share = Field(
        default=0, description="Share of the price for the platform; the agent gets the rest."
    )
    token_rates: TokenRates | None = Field(default=None, description="Rates at which verified tokens are paid.")
    tokens_at_cost: StrictBool = Field(
        default=False, description="Whether verified tokens are paid at the provider's prices."
    )
    max_token_cost: Amount | None = Field(default=None, description="The most that tokens add up to; held in escrow.")
    rules: tuple[str, ...] = Field(
        default=USUAL_RULES, min_length=1, max_length=32, description="Settlement rules, in their order."
    )

    @property
    def prices_tokens(self) -> bool:
        """Whether the price depends on tokens, which must be verified."""
        return self.token_rates is not None or self.tokens_at_cost

    @property
    def labels_asked_for(self) -> int | None:
        """Random labels that each judge of a paid criterion needs; None where the terms do not ask."""
        return MIN_LABELS if self.min_labels is None and self.min_kappa is not None else self.min_labels

    @model_validator(mode="before")
    @classmethod
    def _usual_rules(cls, data: Any) -> Any:
        """Add the rule for tokens to the usual rules where the terms price tokens and name no rules."""
        if not isinstance(data, Mapping) or "rules" in data:
            return data
        priced = data.get("token_rates") is not None or data.get("tokens_at_cost") is True
        return {**data, "rules": (*USUAL_RULES, TOKENS_RULE)} if priced else data

    @field_validator("rules")
    @classmethod
    def _each_once(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name, times in Counter(rules).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"the rule {twice!r} is listed twice, and would pay twice")
        return rules


class Budget(BaseModel):
    """What the consumer is willing to spend."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    max_cpc: Amount | None = Field(default=None, description="The most that an award may pay for completion.")
    max_cpa_total: Amount | None = Field(default=None, description="The most that bonuses add up to; 0 means none.")

    @model_validator(mode="before")
    @classmethod
    def _one_cap(cls, data: Any) -> Any:
        """Accept the cap under each of its names; refuse two that differ."""
        if not isinstance(data, Mapping):
            return data
        rest = dict(data)
        given = {name: rest.pop(name) for name in CAP_NAMES if name in rest}
        nested = rest.pop("cpa_bonus", None)
        if isinstance(nested, Mapping) and nested.keys() == {"max_total"}:
            given["cpa_bonus.max_total"] = nested["max_total"]
        elif nested is not None:
            raise ValueError("cpa_bonus may have only max_total")
        given = {name: value for name, value in given.items() if value is not None}
        # 5, 5.0 and "5.00" are the same amount.
        if len(given) > 1 and len({money(value) for value in given.values()}) > 1:
            raise ValueError(f"{' and '.join(given)} are the same cap but differ; set one of them")
        return rest | ({"max_cpa_total": next(iter(given.values()))} if given else {})


class WorkSubmission(BaseModel):
    """Work as a client publishes it; agents see only the title, description, price terms and public input."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    title: Label
    description: str = Field(default="", max_length=MAX_TEXT, description="Instructions for the agent.")
    domain: Label | None = None
    consumer_id: Label | None = Field(default=None, description="Who pays (default: the tenant).")
    input: Annotated[dict[str, Any], BeforeValidator(plain_json)] = Field(
        default_factory=dict, description="The agent's input; references and schemas in it stay private."
    )
    private: Annotated[dict[str, Any], BeforeValidator(plain_json)] = Field(
        default_factory=dict, description="More input, for the verifier only; agents never see it."
    )
    success_criteria: SuccessCriteria | None = Field(
        default=None, description="Criteria with bonuses and penalties; optional."
    )
    budget: Budget = Field(default_factory=Budget)
    terms: Terms = Field(default_factory=Terms)
    canaries: tuple[Annotated[str, Field(min_length=MIN_CANARY, max_length=MAX_LABEL)], ...] = Field(
        default=(),
        max_length=MAX_CANARIES,
        description="Strings planted in references; an output that has one has seen them.",
    )
    impossible: StrictBool = Field(
        default=False, description="Whether this is planted work that cannot be passed honestly."
    )
    accept_null_agent: Reason | None = Field(
        default=None, description="Why criteria are intended that an agent passes by doing nothing; recorded."
    )
    accept_findings: tuple[Annotated[str, Field(pattern=FINDING_CODE, max_length=MAX_FINDING_CODE)], ...] = Field(
        default=(),
        max_length=MAX_FINDINGS,
        description="Codes of proven errors of the criteria that are intended, such as never_met; recorded.",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        caps = {self.budget.max_cpa_total, self.terms.max_cpa_total} - {None}
        if len(caps) > 1:
            raise ValueError(
                "budget.max_cpa_total and terms.max_cpa_total are the same cap but differ; set one of them"
            )
        if self.success_criteria is not None and not self.success_criteria.criteria:
            raise ValueError("success_criteria is empty; omit it for work that is paid by completion alone")
        return self

    @field_validator("title", "accept_null_agent")
    @classmethod
    def _require_text(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is not None and not text.strip() and info.context != RECORDED:
            raise ValueError("expected text, got only spaces")
        return text

    @model_validator(mode="after")
    def _publishable(self, info: ValidationInfo) -> Self:
        """Refuse contradictory terms, and private data that agents would see."""
        if info.context == RECORDED:
            return self
        most, rate = self.budget.max_cpc, self.terms.cpc_rate
        if most is not None and rate is not None and rate > most:
            raise ValueError(
                f"terms.cpc_rate is {rate}, above the budget.max_cpc of {most}, so no agent could be awarded it"
            )
        twice = sorted(self.input.keys() & self.private.keys())
        if twice:
            raise ValueError(f"{twice[0]!r} is in input and in private; write it once")
        open_to_all = {name: value for name, value in self.input.items() if name not in PRIVATE_INPUTS}
        deeper = next(
            (name for value in open_to_all.values() for name in _names(value) if name in PRIVATE_INPUTS), None
        )
        if deeper is not None:
            raise ValueError(f"{deeper!r} inside input would be shown to agents; move it to private")
        return self

    def input_for_judge(self) -> dict[str, Any]:
        """The whole input, public and private."""
        return {**self.input, **self.private}

    def terms_in_force(self) -> Terms:
        """The terms, with the budget's cap among them."""
        cap = self.budget.max_cpa_total
        return self.terms if cap is None else self.terms.model_copy(update={"max_cpa_total": cap})


def _names(value: Any) -> Iterator[str]:
    """The keys at any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield from part
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)


class StoredWorkSubmission(msgspec.Struct, frozen=True):
    """Work as it is stored, and as contracts commit to it."""

    submission: WorkSubmission
    """Without criteria and input."""
    private: frozenset[str]
    """Names of the input that agents never see, besides PRIVATE_INPUTS."""
    input_commitment: str
    """The salted hash of the whole input; empty where none is stored."""


def work_body(submission: WorkSubmission, input_commitment: str) -> bytes:
    """The stored bytes of work; the commitment stands for the input, which lies elsewhere."""
    return canonical(
        {
            **submission.model_dump(exclude={*SEPARATE}),
            "private_names": sorted(submission.private),
            "input_commitment": input_commitment,
        }
    )


def parse_stored_work(body: bytes) -> StoredWorkSubmission:
    """Read back what `work_body` wrote; raises ValueError for anything else."""
    document = from_canonical(body)
    # Any: nothing of it is validated yet.
    parts: dict[str, Any] = document if isinstance(document, dict) else {"private_names": None}
    names, committed = parts.pop("private_names", []), parts.pop("input_commitment", "")
    if not isinstance(names, list) or not all(isinstance(text, str) for text in (*names, committed)):
        raise ValueError("this is not stored work")
    submission = WorkSubmission.model_validate(document, context=RECORDED)
    return StoredWorkSubmission(submission, frozenset(names), committed)


class Execution(BaseModel):
    """The input of `calculate_cost`; any object with these attributes works."""

    model_config = ConfigDict(defer_build=True, from_attributes=True, frozen=True)

    class Agent(BaseModel):
        """The agent that did it."""

        model_config = ConfigDict(defer_build=True, from_attributes=True, frozen=True)

        class Pricing(BaseModel):
            """What it charges."""

            model_config = ConfigDict(defer_build=True, from_attributes=True, frozen=True)

            cpc_rate: Amount

        pricing: Pricing

    class Task(BaseModel):
        """The task that it did."""

        model_config = ConfigDict(defer_build=True, from_attributes=True, frozen=True)

        class Budget(BaseModel):
            """What may be spent on it."""

            model_config = ConfigDict(defer_build=True, from_attributes=True, frozen=True)

            max_cpa_total: Amount | None = None
            max_penalty_rate: Share = 1

        budget: Budget = Field(default_factory=Budget)

    agent: Agent
    task: Task = Field(default_factory=Task)


class Contract(Record, frozen=True):
    """One agent's contract on one work."""

    id: str
    seq: int
    """Its position among all contracts, for paging."""
    work_id: str
    agent_id: str
    consumer_id: str
    domain: str | None
    state: ContractState
    escrow: Escrow
    currency: str
    hold_micros: int
    terms: bytes
    """In canonical form; fixed at the award."""
    awarded_at: datetime
    expires_at: datetime
    input_read_at: datetime | None = None
    """When the agent was first given the input of the work; the time of the award if it had it before."""
    started_at: datetime | None = None
    completed_at: datetime | None = None
    settled_at: datetime | None = None
    outcome_id: str | None = None
    completion: str | None = None
    """Identifies a completion, so that a repeated one is recognised."""
    evidence: str | None = None
    """Identifies the run behind the completion, where known."""
    settlement: int = 0
    """The number of the live settlement; 0 when there is none."""
    settlements: int = 0
    """How many there were."""
    version: int = 0
    """The version of the verdict that was settled last."""
    total_micros: int = 0
    """Of the live settlement."""
    disputed_from: ContractState | None = None
    disputes: int = 0
    hold_reason: str = ""
    """Why the payment was held."""
    provider_id: str | None = None
    """Who runs the agent, where that was named at the award."""


class AgentWork(Record, frozen=True):
    """What an agent may see of its work: no criteria, no references, nothing planted."""

    id: str
    title: str
    description: str
    domain: str | None
    input: dict[str, Any]
    currency: str
    cpc_rate: str | None
    dispute_window_hours: int
    deadline_hours: int
    latency_from: LatencyFrom = LatencyFrom.INPUT
    """From when the agent's time counts."""
    pay_per_run: bool = False
    """Whether work without a `run_id` is held."""
    agent_tries: int = AGENT_TRIES
    """How often the agent may have its work verified by the same criteria before it completes."""
    agent_score: AgentScore = AgentScore.COARSE
    """What the agent sees of the score until it is paid."""


class AgentContract(Record, frozen=True):
    """What an agent may see of its contract: state, verdict and payment."""

    id: str
    work_id: str
    agent_id: str
    state: ContractState
    currency: str
    cpc_rate: str
    awarded_at: datetime
    expires_at: datetime
    completed_at: datetime | None
    settled_at: datetime | None
    outcome_id: str | None
    verdict: Verdict | None
    success: bool | None
    score: float | None
    """Rounded down to 0, 0.5 or 1, or null, until the contract is paid; the terms say which."""
    total: str | None
    """The price that was paid; None before payment."""
    fee: str | None
    """The platform's part of it."""
    payout: str | None
    """The agent's part of it."""
    started_at: datetime | None = None
    input_read_at: datetime | None = None
    latency_basis: LatencyBasis | None = None
    """From when the agent's time counts."""
