"""What a run did at its provider, by its own account; and what the provider says was done there."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from meruit.model.prices import PriceQuote, RunCosts
from meruit.model.record import Record
from meruit.model.usage import Acknowledgement, Moment, Tokens, UsageRun, UsageStep, UsageVerdict, sum_tokens

MAX_STEPS = 10_000
MAX_CALLS = 100_000
"""Of one run."""
MAX_NAME = 200
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Label = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class CallState(StrEnum):
    """How a call of a model ended."""

    OK = "ok"
    FAILED = "failed"
    """Refused before anything was generated; it counts, and used nothing."""
    ABORTED = "aborted"
    """Broken off: what it used, only the provider knows."""


class AttributionKind(StrEnum):
    """By what the provider can tell one user's calls from another's."""

    KEY = "key"
    PROJECT = "project"
    """Or workspace."""
    SESSION = "session"
    REQUESTS = "requests"
    """By the id of each call."""
    WINDOW = "window"
    """By nothing but the time."""


class AttributionKey(Record, frozen=True):
    """Where the run's calls are found again at its provider."""

    kind: AttributionKind = AttributionKind.WINDOW
    value: Label = ""
    """The provider's id of the key, project or session, never the secret itself; empty for the other two kinds."""


class MeteredCall(Record, frozen=True):
    """One call of a model."""

    at: Moment
    model: Label = ""
    tokens: Tokens | None = None
    """What the response said; None where it did not."""
    state: CallState = CallState.OK
    id: Label = ""
    """The provider's own id of the call."""
    tier: Label = ""
    """The service tier, where the response named one."""

    @property
    def may_be_billed(self) -> bool:
        """Whether its provider may name its model: not of what was refused, or used nothing."""
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
    """What the step used altogether, where its calls are not listed."""

    @property
    def local(self) -> Tokens | None:
        """What the responses said; None where one that may have used something did not."""
        if not self.calls:
            return self.tokens
        known = [one.tokens for one in self.calls if one.tokens is not None]
        unknown = any(one.tokens is None and one.state is not CallState.FAILED for one in self.calls)
        return None if unknown else sum_tokens(known)

    @property
    def by_model(self) -> dict[str, Tokens]:
        """The same by model; nothing where a call that may have used something does not name its own."""
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
    """A run as it was recorded: whose it is, where its calls are found again, and what came of it."""

    id: Name
    framework: Name
    """The agent or framework, by which runs are compared."""
    source: Name = "default"
    """The configured account at a provider that counts it."""
    attribution_key: AttributionKey = AttributionKey()
    started_at: Moment | None = None
    ended_at: Moment | None = None
    """None while it is open."""
    steps: Annotated[tuple[MeteredStep, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()
    declares_no_usage: bool = False
    task: Label = ""
    """What it was to do; runs of one task are compared with each other."""
    success: bool | None = None
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    contract_id: Label = ""
    outcome_id: Label = ""

    @property
    def for_judging(self) -> UsageRun:
        """The part that decides."""
        return UsageRun(
            self.ended_at,
            tuple(
                UsageStep(
                    one.id,
                    one.expects_usage,
                    one.succeeded,
                    one.local,
                    tuple(sorted({call.model for call in one.calls if call.model and call.may_be_billed})),
                    one.by_model,
                )
                for one in self.steps
            ),
            self.declares_no_usage,
        )

    @property
    def local(self) -> Tokens | None:
        """What all steps say; None where one that may have used something does not, or there is none."""
        return self.for_judging.local

    @property
    def calls(self) -> list[MeteredCall]:
        """Of all steps, in order."""
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
    """In US dollars, where the row tells it."""


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
    """A span of time to be asked for; the end is exclusive."""

    start: Moment
    end: Moment


class Page(Record, frozen=True):
    """One page of an answer."""

    at: Moment
    """By the provider's clock, where it says."""
    rows: tuple[UsageRow, ...] = ()
    costs: tuple[CostRow, ...] = ()
    watermark: Moment | None = None
    """Up to when the provider says that it has counted."""
    raw: bytes = b""
    """As it came, to be kept by its content."""


class UsageAccount(BaseModel):
    """An account at a provider, as the configuration names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str = Field(min_length=1, description="The kind of API: `meruit usage sources` lists all.")
    base_url: str | None = Field(default=None, description="Where it is, when not at the provider's usual address.")
    key_variable: str | None = Field(default=None, description="The environment variable that holds the key.")
    file: str | None = Field(default=None, description="Of sources that are files: the file or folder.")
    options: dict[str, str] = Field(default_factory=dict, description="What else this kind of API takes.")


class UsageSource(Protocol):
    """Something that counts tokens for others."""

    @property
    def kinds(self) -> frozenset[AttributionKind]:
        """By what it can tell one user's calls from another's."""
        ...

    @property
    def bucket(self) -> timedelta:
        """The width of its spans of time; zero where it knows each call."""
        ...

    @property
    def longest(self) -> timedelta:
        """The longest window that one question may have."""
        ...

    def usage(self, window: Window) -> AsyncIterator[Page]:
        """All that was counted in a window, page by page; raises FetchFailed."""
        ...

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """What is known of these calls; one that is not known yet has no row. Raises FetchFailed."""
        ...

    def costs(self, window: Window) -> AsyncIterator[Page]:
        """What is billed for a window; nothing where the provider does not say. Raises FetchFailed."""
        ...


class UsageRecord(Record, frozen=True):
    """A run with all that is known of its tokens."""

    run: MeteredRun
    seq: int
    """Its place among all runs."""
    attempts: int
    """How many looks are kept; whoever adds one names this number."""
    verdict: UsageVerdict
    next_observation_at: Moment | None = None
    """None where nobody looks any more by itself."""
    last_observation_at: Moment | None = None
    """When it was looked at last, an early equal look included, which is no attempt."""
    exhausted: bool = False
    acknowledged: tuple[Acknowledgement, ...] = ()
    waits: str = ""
    """What it waits for where that is not time: `credential`, `person`."""
    quotes: tuple[PriceQuote, ...] = ()
    """The prices of its models; a later one of a model says why there is one."""
    ledger: RunCosts = RunCosts()


NAMED = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
"""Kinds of attribution keys that the provider has an id for."""


_SECRET = "sk-"  # noqa: S105 - how providers' secrets begin, and none itself


def attribution_key_problem(attribution_key: AttributionKey) -> str:
    """What keeps it from being an attribution key, and what to do; empty where it is one."""
    value = attribution_key.value.strip()
    if attribution_key.kind in NAMED and not value:
        return f"the attribution key {attribution_key.kind} needs the provider's id of it, as {attribution_key.kind}:ID"
    if attribution_key.kind not in NAMED and attribution_key.value:
        return f"the attribution key {attribution_key.kind} takes no value"
    if value.lower().startswith(_SECRET):
        return "the attribution key looks like a key itself; give the provider's id of the key, never the secret"
    return ""
