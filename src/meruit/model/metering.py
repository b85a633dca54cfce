"""What a run reports of its calls, what a provider's usage API returns, and what tokens cost."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from meruit.model.record import Record
from meruit.model.usage import Acknowledgement, Moment, Tokens, UsageRun, UsageStep, UsageVerdict, sum_tokens

MAX_STEPS = 10_000
MAX_CALLS = 100_000
"""Of one run."""
MAX_NAME = 200
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Label = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class PriceQuote(Record, frozen=True):
    """The prices of one model at the time of a run, from one version of one price table."""

    source: str
    """The table's name."""
    version: str
    table_sha256: str
    provider: str
    model: str
    """The name in the run."""
    matched: str
    """The name in the table."""
    at: Moment
    """The time of the call; prices change."""
    prices: dict[str, Decimal]
    """For a million tokens, by class: input, output, cached, cache_write; for a thousand requests: requests."""
    tier: str = "standard"
    band: str = ""
    """The band of context lengths that the prices are for; empty where there is only one."""
    currency: str = "USD"
    reason: str = ""
    """Why there is a quote after the first."""


class RunCosts(Record, frozen=True):
    """The three costs of a run; none overwrites another, and None means unknown."""

    quoted: Decimal | None = None
    """The frozen prices times the verified tokens."""
    billed: Decimal | None = None
    """What the provider bills, where the amount can be attributed to the run."""
    settled: Decimal | None = None
    """What the contract owed."""
    currency: str = "USD"


class CallState(StrEnum):
    """How a call of a model ended."""

    OK = "ok"
    FAILED = "failed"
    """Refused before anything was generated: the call counts, and used no tokens."""
    ABORTED = "aborted"
    """Broken off: only the provider knows what the call used."""


class AttributionKind(StrEnum):
    """What the provider groups its counts by."""

    KEY = "key"
    PROJECT = "project"
    """Or workspace."""
    SESSION = "session"
    REQUESTS = "requests"
    """By the id of each call."""
    WINDOW = "window"
    """By time alone."""


class AttributionKey(Record, frozen=True):
    """Where the provider counts the run's calls."""

    kind: AttributionKind = AttributionKind.WINDOW
    value: Label = ""
    """The provider's id of the key, project or session, never the secret itself; empty for the other two kinds."""


class MeteredCall(Record, frozen=True):
    """One call of a model."""

    at: Moment
    model: Label = ""
    tokens: Tokens | None = None
    """The counts in the response; None where it has none."""
    state: CallState = CallState.OK
    id: Label = ""
    """The provider's own id of the call."""
    tier: Label = ""
    """The service tier, where the response names one."""

    @property
    def may_be_billed(self) -> bool:
        """Whether the provider may bill the call: not one that was refused or used nothing."""
        return self.state is not CallState.FAILED if self.tokens is None else bool(self.tokens.total)


class MeteredStep(Record, frozen=True):
    """One step of a run, as it was recorded."""

    id: Name
    started_at: Moment | None = None
    ended_at: Moment | None = None
    succeeded: bool | None = None
    expects_usage: bool | None = None
    """False where it was declared beforehand to use no model."""
    calls: Annotated[tuple[MeteredCall, ...], msgspec.Meta(max_length=MAX_CALLS)] = ()
    tokens: Tokens | None = None
    """The total of the step, where its calls are not listed."""

    @property
    def local(self) -> Tokens | None:
        """The sum of the responses; None where a call that may have used tokens has no count."""
        if not self.calls:
            return self.tokens
        known = [one.tokens for one in self.calls if one.tokens is not None]
        unknown = any(one.tokens is None and one.state is not CallState.FAILED for one in self.calls)
        return None if unknown else sum_tokens(known)

    @property
    def by_model(self) -> dict[str, Tokens]:
        """The same by model; empty where a call that may have used tokens does not name its model."""
        found: dict[str, list[Tokens]] = {}
        for call in self.calls:
            if call.tokens is None and call.state is CallState.FAILED:
                continue
            if call.tokens is None or (call.tokens.total and not call.model):
                return {}
            if call.model:
                found.setdefault(call.model, []).append(call.tokens)
        return {model: sum_tokens(several) for model, several in found.items()}


class MeteredRun(Record, frozen=True):
    """A run as it was recorded: its agent, where the provider counts its calls, its steps and its result."""

    id: Name
    framework: Name
    """The agent or framework, by which runs are compared."""
    source: Name = "default"
    """The configured account that the run's calls are counted in."""
    attribution_key: AttributionKey = AttributionKey()
    started_at: Moment | None = None
    ended_at: Moment | None = None
    """None while it is open."""
    steps: Annotated[tuple[MeteredStep, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()
    declares_no_usage: bool = False
    task: Label = ""
    """The task of the run; runs of one task are compared with each other."""
    success: bool | None = None
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    contract_id: Label = ""
    outcome_id: Label = ""

    @property
    def for_judging(self) -> UsageRun:
        """The part that the verdict depends on."""
        return UsageRun(
            self.ended_at,
            tuple(
                UsageStep(
                    id=one.id,
                    expects_usage=one.expects_usage,
                    succeeded=one.succeeded,
                    local=one.local,
                    models=tuple(sorted({call.model for call in one.calls if call.model and call.may_be_billed})),
                    by_model=one.by_model,
                )
                for one in self.steps
            ),
            self.declares_no_usage,
        )

    @property
    def local(self) -> Tokens | None:
        """The sum of all steps; None where a step that may have used tokens has no count, or the run has no steps."""
        return self.for_judging.local

    @property
    def calls(self) -> list[MeteredCall]:
        """The calls of all steps, in order."""
        return [call for step in self.steps for call in step.calls]


class UsageRow(Record, frozen=True):
    """What a provider counted in one span of time, for one attribution key and model, or for one call."""

    start: Moment
    end: Moment
    """Exclusive; of one call, the moment itself."""
    tokens: Tokens
    model: str = ""
    key: str = ""
    project: str = ""
    session: str = ""
    request_id: str = ""
    """Of one call's row."""
    cost: Decimal | None = None
    """In US dollars, where the row has a cost."""


class CostRow(Record, frozen=True):
    """What a provider bills for a span of time."""

    start: Moment
    end: Moment
    amount: Decimal
    currency: str = "USD"
    key: str = ""
    project: str = ""
    session: str = ""
    item: str = ""
    """The line of the bill."""


class Window(Record, frozen=True):
    """A span of time; the end is exclusive."""

    start: Moment
    end: Moment


class Page(Record, frozen=True):
    """One page of a response."""

    at: Moment
    """By the provider's clock, where the response has a date."""
    rows: tuple[UsageRow, ...] = ()
    costs: tuple[CostRow, ...] = ()
    watermark: Moment | None = None
    """The time up to which the provider has counted."""
    raw: bytes = b""
    """The page as it was received, stored by its digest."""


class UsageAccount(BaseModel):
    """An account at a provider, as the settings describe it."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    provider: str = Field(min_length=1, description="The kind of API: `meruit usage sources` lists all.")
    base_url: str | None = Field(default=None, description="Where it is, when not at the provider's usual address.")
    key_variable: str | None = Field(default=None, description="The environment variable that holds the key.")
    file: str | None = Field(default=None, description="Of sources that are files: the file or folder.")
    options: dict[str, str] = Field(default_factory=dict, description="What else this kind of API takes.")
    shared_by: tuple[str, ...] = Field(
        default=(),
        max_length=1_000,
        description="Tenants whose runs the provider counts together (default: none; each tenant is judged by itself).",
    )

    def sharers(self, tenant: str) -> tuple[str, ...]:
        """The tenants whose runs count together with those of this one, which is among them."""
        return self.shared_by if tenant in self.shared_by else (tenant,)


class UsageSource(Protocol):
    """The usage API of one account, or a file that stands for one."""

    @property
    def kinds(self) -> frozenset[AttributionKind]:
        """The kinds of attribution key that it counts by."""
        ...

    @property
    def bucket(self) -> timedelta:
        """The width of its spans of time; zero where it has a record of each call."""
        ...

    @property
    def longest(self) -> timedelta:
        """The longest window of one request."""
        ...

    def usage(self, window: Window) -> AsyncIterator[Page]:
        """Yield all counts of a window, page by page; raises FetchFailed."""
        ...

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Yield the rows of these calls; a call that is not recorded yet has none. Raises FetchFailed."""
        ...

    def costs(self, window: Window) -> AsyncIterator[Page]:
        """Yield the costs of a window; none where the provider does not report them. Raises FetchFailed."""
        ...


class UsageRecord(Record, frozen=True):
    """A recorded run with its verdict, its schedule and its costs."""

    run: MeteredRun
    seq: int
    """The position in the order of recording."""
    attempts: int
    """How many observations are recorded."""
    verdict: UsageVerdict
    next_observation_at: Moment | None = None
    """None where the reconciler does not observe the run by itself any more."""
    last_observation_at: Moment | None = None
    """The last observation, including one that came too early to be recorded."""
    exhausted: bool = False
    acknowledged: tuple[Acknowledgement, ...] = ()
    waits: str = ""
    """What the run waits for instead of a time: `credential`, `person`."""
    quotes: tuple[PriceQuote, ...] = ()
    """The frozen prices of its models; a later quote of a model has a reason."""
    ledger: RunCosts = RunCosts()


NAMED = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
"""Kinds of attribution keys that the provider has an id for."""


_SECRET = "sk-"  # noqa: S105 - how providers' secrets begin, and none itself


def attribution_key_problem(attribution_key: AttributionKey) -> str:
    """Describe why the attribution key is not valid, and what to do; empty where it is valid."""
    value = attribution_key.value.strip()
    if attribution_key.kind in NAMED and not value:
        return f"the attribution key {attribution_key.kind} needs the provider's id: write {attribution_key.kind}:ID"
    if attribution_key.kind not in NAMED and attribution_key.value:
        return f"the attribution key {attribution_key.kind} takes no value"
    if value.lower().startswith(_SECRET):
        return "the attribution key looks like a secret key; give the provider's id of the key, never the secret"
    return ""
