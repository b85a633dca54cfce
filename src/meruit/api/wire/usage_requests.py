"""Parse reported usage runs, from requests or files; usage blocks are read by the rules of each provider."""

from meruit.api.wire.usage import CallRequest, StepRequest, UsageRunRequest
from meruit.errors import AuthorError, InvalidUsageReport, MeteringError
from meruit.model.metering import AttributionKey, MeteredCall, MeteredRun, MeteredStep
from meruit.usage.meter import parse_attribution_key
from meruit.usage.providers.support.usage_blocks import tokens_of


def parse_run(data: UsageRunRequest, run_id: str) -> MeteredRun:
    """Parse the run of a request; raises InvalidUsageReport."""
    steps = tuple(parse_step(one, f"steps[{index}]") for index, one in enumerate(data.steps))
    seen = set[str]()
    for index, one in enumerate(steps):
        if one.id in seen:
            raise InvalidUsageReport(f"steps[{index}].id", f"{one.id!r} is a duplicate; each step needs its own id")
        seen.add(one.id)
    same = {
        name: getattr(data, name)
        for name in data.__struct_fields__
        if name in MeteredRun.__struct_fields__ and name not in ("id", "attribution_key", "steps")
    }
    return MeteredRun(id=run_id, attribution_key=_parse_attribution_key(data.attribution_key), steps=steps, **same)


def _parse_attribution_key(attribution_key: AttributionKey) -> AttributionKey:
    try:
        return parse_attribution_key(attribution_key)
    except MeteringError as wrong:
        raise InvalidUsageReport("attribution_key", str(wrong)) from None


def parse_step(data: StepRequest, where: str = "") -> MeteredStep:
    """Parse one step; raises InvalidUsageReport."""
    inside = f"{where}." if where else ""
    if data.calls and data.tokens is not None:
        raise InvalidUsageReport(f"{inside}tokens", "give `calls` or `tokens` (their total), not both")
    if data.started_at is not None and data.ended_at is not None and data.ended_at < data.started_at:
        raise InvalidUsageReport(f"{inside}ended_at", "must not be before started_at")
    calls = tuple(_parse_call(one, f"{inside}calls[{index}]") for index, one in enumerate(data.calls))
    return MeteredStep(
        id=data.id,
        started_at=data.started_at,
        ended_at=data.ended_at,
        succeeded=data.succeeded,
        expects_usage=data.expects_usage,
        calls=calls,
        tokens=data.tokens,
    )


def _parse_call(data: CallRequest, where: str) -> MeteredCall:
    """Parse a call, its usage block by the rules of its provider; raises InvalidUsageReport."""
    if data.usage is None:
        return MeteredCall(
            at=data.at, model=data.model, tokens=data.tokens, state=data.state, id=data.id, tier=data.tier
        )
    if data.tokens is not None:
        raise InvalidUsageReport(where, "give `usage` (the original block) or `tokens`, not both")
    try:
        tokens = tokens_of(data.usage)
    except AuthorError as wrong:
        raise InvalidUsageReport(f"{where}.usage", str(wrong)) from None
    return MeteredCall(at=data.at, model=data.model, tokens=tokens, state=data.state, id=data.id, tier=data.tier)
