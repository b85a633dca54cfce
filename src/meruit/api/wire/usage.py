"""Requests and replies of `/v1/usage/runs`."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.wire.common import PRINTABLE, Body, Label, Reason, anchor_pattern
from meruit.model.metering import (
    MAX_CALLS,
    MAX_NAME,
    MAX_STEPS,
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredRun,
    PriceQuote,
    RunCosts,
    UsageRecord,
)
from meruit.model.record import Record
from meruit.model.usage import Acknowledgement, Moment, Observation, Tokens, UsageCode, UsageStatus, UsageVerdict
from meruit.usage.cost import UnknownCost, quote_cost

Score = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(max_length=MAX_NAME, pattern=f"{anchor_pattern('')}|{PRINTABLE}")]
"""A label that may be empty."""
# A run id ends the path of the run, and clients rewrite these in paths.
RunName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_NAME,
        pattern=PRINTABLE.replace("^", r"^(?!\.{1,2}$)(?!.*/)", 1),
        description="No slashes, because it ends the path of the run.",
    ),
]


class TokensRequest(Tokens, frozen=True, forbid_unknown_fields=True):
    """Token counts; unknown names are refused, because their counts would be lost."""


class AttributionKeyRequest(AttributionKey, frozen=True, forbid_unknown_fields=True):
    """How the calls of the run are found at its provider."""

    kind: AttributionKind = AttributionKind.WINDOW
    value: Text = ""
    """The provider's id of the key, project or session, never the secret; empty for the other kinds."""


class CallRequest(Body, frozen=True):
    """One call of a model."""

    at: Moment
    model: Text = ""
    # Any: each provider has its own usage block.
    usage: dict[str, Any] | None = None
    """The usage block of the response, unchanged; read by the rules of its provider."""
    tokens: TokensRequest | None = None
    state: CallState = CallState.OK
    id: Text = ""
    tier: Text = ""


class StepRequest(Body, frozen=True):
    """One step of a run; it replaces an earlier step with the same id."""

    id: Label
    started_at: Moment | None = None
    ended_at: Moment | None = None
    succeeded: bool | None = None
    expects_usage: bool | None = None
    """False when the step is declared in advance to use no model."""
    calls: Annotated[list[CallRequest], Meta(max_length=MAX_CALLS)] = msgspec.field(default_factory=list)
    tokens: TokensRequest | None = None
    """Total of the step, if its calls are not listed."""


class UsageRunRequest(Body, frozen=True):
    """A usage run, complete or just started."""

    framework: Label
    """Agent or framework; runs are compared by it."""
    id: RunName | None = None
    """Chosen by the client (default: created by the service)."""
    source: Label = "default"
    """The configured provider account (default: default)."""
    attribution_key: AttributionKeyRequest = AttributionKeyRequest()
    started_at: Moment | None = None
    """Start of the run (default for a new run: now); usage is counted from then on."""
    ended_at: Moment | None = None
    """Null while the run is open."""
    steps: Annotated[list[StepRequest], Meta(max_length=MAX_STEPS)] = msgspec.field(default_factory=list)
    declares_no_usage: bool = False
    task: Text = ""
    success: bool | None = None
    score: Score | None = None
    contract_id: Text = ""
    outcome_id: Text = ""


class EndRequest(Body, frozen=True):
    """The end of a run."""

    ended_at: Moment | None = None
    """Default: now."""
    success: bool | None = None
    score: Score | None = None


class AcknowledgeRequest(Body, frozen=True):
    """Why a count that fell is accepted."""

    reason: Reason


class UsageBrief(Record, frozen=True):
    """The token usage of a run in brief."""

    id: str
    seq: int
    framework: str
    source: str
    task: str
    ended_at: datetime | None
    verification_status: UsageStatus
    verification_message: str
    imported: bool
    """Whether the status rests on observations from a file, so that the provider was not asked."""
    code: UsageCode
    total_tokens_in: int | None
    total_tokens_out: int | None
    steps_with_tokens: int
    total_steps: int
    withdrawn: int
    attempts: int
    """How many observations are recorded."""
    early: int
    """How many of them were equal to the one before, and too early to count."""
    next_observation_at: datetime | None


class UsageDetail(UsageBrief, frozen=True, kw_only=True):
    """The token usage of a run with its evidence."""

    run: MeteredRun
    local: Tokens | None
    """The run's own count."""
    verdict: UsageVerdict
    observations: list[Observation]
    waits: str
    """What the run waits for, if it is not time."""
    exhausted: bool
    acknowledged: tuple[Acknowledgement, ...]
    quotes: tuple[PriceQuote, ...]
    ledger: RunCosts
    cost_unknown: UnknownCost | None
    """Why the quoted cost is missing; null where it is known."""
    cost_unknown_why: str
    shared_with: list[str]
    """Other tenants whose runs are counted together with this one, because the operator says that they share it."""


class UsagePage(Record, frozen=True):
    """Usage runs, newest first."""

    usage_runs: list[UsageBrief]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


def to_brief(record: UsageRecord) -> UsageBrief:
    """Convert a record to its brief form."""
    return UsageBrief(**_brief_fields(record))


def to_detail(record: UsageRecord, observations: list[Observation], shared_with: list[str]) -> UsageDetail:
    """Convert a record with its observations."""
    cost = quote_cost(record.run, record.verdict, record.quotes)
    is_known = record.ledger.quoted is not None
    return UsageDetail(
        **_brief_fields(record),
        run=record.run,
        local=record.run.local,
        verdict=record.verdict,
        observations=observations,
        waits=record.waits,
        shared_with=shared_with,
        exhausted=record.exhausted,
        acknowledged=record.acknowledged,
        quotes=record.quotes,
        ledger=record.ledger,
        cost_unknown=None if is_known else cost.code,
        cost_unknown_why="" if is_known else cost.why,
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
        "imported": verdict.is_imported,
        "code": verdict.code,
        "total_tokens_in": None if verdict.tokens is None else verdict.tokens.input,
        "total_tokens_out": None if verdict.tokens is None else verdict.tokens.output,
        "steps_with_tokens": verdict.steps_with_tokens,
        "total_steps": verdict.total_steps,
        "withdrawn": verdict.withdrawn,
        "attempts": record.attempts,
        "early": verdict.early,
        "next_observation_at": record.next_observation_at,
    }
