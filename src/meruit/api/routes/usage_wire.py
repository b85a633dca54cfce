"""Usage runs as they go over the wire."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.wire import PRINTABLE, Body, Label, Reason, anchor_pattern
from meruit.model.metering import (
    MAX_CALLS,
    MAX_NAME,
    MAX_STEPS,
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredRun,
    UsageRecord,
)
from meruit.model.prices import PriceQuote, RunCosts
from meruit.model.record import Record
from meruit.model.usage import Acknowledgement, Moment, Observation, Tokens, UsageCode, UsageStatus, UsageVerdict

Score = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(max_length=MAX_NAME, pattern=f"{anchor_pattern('')}|{PRINTABLE}")]
"""A label that may be empty."""
# A run is read at an address that ends in its id: no client sends these as they are.
RunName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_NAME,
        pattern=PRINTABLE.replace("^", r"^(?!\.{1,2}$)(?!.*/)", 1),
        description="Without slashes, as it ends the run's address.",
    ),
]


class TokensRequest(Tokens, frozen=True, forbid_unknown_fields=True):
    """Counts; one whose name we do not know would be a count that is lost."""


class AttributionKeyRequest(AttributionKey, frozen=True, forbid_unknown_fields=True):
    """Where the run's calls are found again at its provider."""

    kind: AttributionKind = AttributionKind.WINDOW
    value: Text = ""
    """The provider's id of the key, project or session, never the secret itself; empty for the other two kinds."""


class CallRequest(Body, frozen=True):
    """One call of a model."""

    at: Moment
    model: Text = ""
    # Any: a provider's usage block in its own words, where `tokens` is not given.
    usage: dict[str, Any] | None = None
    """The response's usage block as it came; read by the rules of its provider."""
    tokens: TokensRequest | None = None
    state: CallState = CallState.OK
    id: Text = ""
    tier: Text = ""


class StepRequest(Body, frozen=True):
    """One step of a run; what was said of it before is replaced."""

    id: Label
    started_at: Moment | None = None
    ended_at: Moment | None = None
    succeeded: bool | None = None
    expects_usage: bool | None = None
    """False where it is declared beforehand to use no model."""
    calls: Annotated[list[CallRequest], Meta(max_length=MAX_CALLS)] = msgspec.field(default_factory=list)
    tokens: TokensRequest | None = None
    """What it used altogether, where its calls are not listed."""


class UsageRunRequest(Body, frozen=True):
    """A run, whole or just begun."""

    framework: Label
    """The agent or framework, by which runs are compared."""
    id: RunName | None = None
    """Yours to choose; one of ours when not given."""
    source: Label = "default"
    """The configured account that counts it."""
    attribution_key: AttributionKeyRequest = AttributionKeyRequest()
    started_at: Moment | None = None
    """Now when not given for a run that begins: what it used is looked for from then on."""
    ended_at: Moment | None = None
    """None while it is open."""
    steps: Annotated[list[StepRequest], Meta(max_length=MAX_STEPS)] = msgspec.field(default_factory=list)
    declares_no_usage: bool = False
    task: Text = ""
    success: bool | None = None
    score: Score | None = None
    contract_id: Text = ""
    outcome_id: Text = ""


class EndRequest(Body, frozen=True):
    """How a run ended."""

    ended_at: Moment | None = None
    """Now when not given."""
    success: bool | None = None
    score: Score | None = None


class AcknowledgeRequest(Body, frozen=True):
    """A person accepts a count that fell."""

    reason: Reason


class UsageBrief(Record, frozen=True):
    """Where a run's tokens stand."""

    id: str
    seq: int
    framework: str
    source: str
    task: str
    ended_at: datetime | None
    verification_status: UsageStatus
    verification_message: str
    code: UsageCode
    total_tokens_in: int | None
    total_tokens_out: int | None
    steps_with_tokens: int
    total_steps: int
    withdrawn: int
    attempts: int
    next_observation_at: datetime | None


class UsageDetail(UsageBrief, frozen=True, kw_only=True):
    """All that is known of a run's tokens."""

    run: MeteredRun
    local: Tokens | None
    """What the run says of itself."""
    verdict: UsageVerdict
    observations: list[Observation]
    waits: str
    """What it waits for where that is not time."""
    exhausted: bool
    acknowledged: tuple[Acknowledgement, ...]
    quotes: tuple[PriceQuote, ...]
    ledger: RunCosts


class UsagePage(Record, frozen=True):
    """Runs, newest first."""

    usage_runs: list[UsageBrief]
    next: int | None
    """Give it as `before` for the next page; None at the end."""


def to_brief(record: UsageRecord) -> UsageBrief:
    """Where it stands."""
    return UsageBrief(**_brief_fields(record))


def to_detail(record: UsageRecord, observations: list[Observation]) -> UsageDetail:
    """All of it."""
    return UsageDetail(
        **_brief_fields(record),
        run=record.run,
        local=record.run.local,
        verdict=record.verdict,
        observations=observations,
        waits=record.waits,
        exhausted=record.exhausted,
        acknowledged=record.acknowledged,
        quotes=record.quotes,
        ledger=record.ledger,
    )


# Any: fields by name.
def _brief_fields(record: UsageRecord) -> dict[str, Any]:
    run, verdict = record.run, record.verdict
    return {
        "id": run.id,
        "seq": record.seq,
        "framework": run.framework,
        "source": run.source,
        "task": run.task,
        "ended_at": run.ended_at,
        "verification_status": verdict.status,
        "verification_message": verdict.message,
        "code": verdict.code,
        "total_tokens_in": None if verdict.tokens is None else verdict.tokens.input,
        "total_tokens_out": None if verdict.tokens is None else verdict.tokens.output,
        "steps_with_tokens": verdict.steps_with_tokens,
        "total_steps": verdict.total_steps,
        "withdrawn": verdict.withdrawn,
        "attempts": record.attempts,
        "next_observation_at": record.next_observation_at,
    }
