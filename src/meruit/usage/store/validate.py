"""Check what is to be recorded: runs, observations and acknowledgements; encode it."""

from datetime import UTC, datetime

from meruit.errors import InvalidUsage
from meruit.model.metering import AttributionKind, MeteredRun, attribution_key_problem
from meruit.model.usage import Acknowledgement, Observation
from meruit.usage.store.rows import EncodedObservation, EncodedRun, decode_observation

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Times outside of these are refused."""


def validate_run(run: MeteredRun) -> EncodedRun:
    """Check a run, and encode it; raises InvalidUsage."""
    try:
        body = run.to_json()
        found = MeteredRun.from_json(body)
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"run {run.id!r}: {problem}") from None
    if any("\0" in text for text in _text_columns(found)):
        raise InvalidUsage(f"run {run.id!r} has a null character in a name; remove it")
    ids = [step.id for step in found.steps]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise InvalidUsage(f"run {run.id!r} has two steps {twice!r}; give each step its own id")
    _check_time(f"run {run.id!r}", found.started_at, found.ended_at)
    if found.started_at is not None and found.ended_at is not None and found.ended_at < found.started_at:
        raise InvalidUsage(f"run {run.id!r} ends before it starts")
    for step in found.steps:
        if step.started_at is not None and step.ended_at is not None and step.ended_at < step.started_at:
            raise InvalidUsage(f"run {run.id!r}: step {step.id!r} ends before it starts")
    why_not = attribution_key_problem(found.attribution_key)
    if why_not:
        raise InvalidUsage(f"run {run.id!r}: {why_not}")
    return EncodedRun(run=found, body=body, for_judging=found.for_judging)


def validate_observation(observation: Observation) -> EncodedObservation:
    """Check an observation, and encode it; raises InvalidUsage."""
    try:
        encoded = decode_observation(observation.to_json())
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"observation {observation.id!r}: {problem}") from None
    if not encoded.observation.id or "\0" in encoded.observation.id:
        raise InvalidUsage(f"observation {observation.id!r} needs an id without null characters")
    _check_time(f"observation {observation.id!r}", encoded.observation.at)
    return encoded


def check_ack(ack: Acknowledgement) -> None:
    """Check an acknowledgement; raises InvalidUsage."""
    try:
        Acknowledgement.from_json(ack.to_json())
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"the acknowledgement of {ack.by!r}: {problem}") from None
    if not ack.by.strip() or not ack.reason.strip():
        raise InvalidUsage("an acknowledgement needs a name and a reason; both are recorded permanently")
    _check_time("an acknowledgement", ack.at)


def _text_columns(run: MeteredRun) -> tuple[str, ...]:
    """The texts that have their own column."""
    calls = [call.id for call in run.calls] if run.attribution_key.kind is AttributionKind.REQUESTS else []
    return (run.id, run.framework, run.source, run.attribution_key.value, run.task, run.contract_id, *calls)


def _check_time(what: str, *moments: datetime | None) -> None:
    for one in moments:
        if one is not None and not EARLIEST <= one < LATEST:
            raise InvalidUsage(
                f"{what} has an impossible time ({one.isoformat()}); give the time with its year and zone"
            )
