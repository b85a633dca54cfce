"""What the audit log says of a usage run, and how its rows differ from that. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from meruit.log.commitment import matches, usage_evidence_bytes
from meruit.log.entries import UsageEntry
from meruit.model.decoding import decode_json
from meruit.model.metering import MeteredRun
from meruit.model.usage import Acknowledgement, Observation, UsageStatus, UsageVerdict
from meruit.usage.observation import own_tokens
from meruit.usage.progress import UsageProgress, judge_all
from meruit.usage.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RecordedUsage:
    """A run as its rows have it."""

    body: bytes
    salt: bytes | None
    status: str
    verdict: bytes
    observations: Sequence[bytes]
    """In the order in which they were recorded."""


def find_usage_difference(run: RecordedUsage, entries: Sequence[UsageEntry]) -> str | None:
    """What the rows of a run say otherwise than the log; None where they agree.

    Observations that no entry commits to yet are not compared.
    """
    is_verified = run.status == UsageStatus.VERIFIED
    # Every change of a claim has an entry; what is not verified may change without one.
    if is_verified != bool(entries and entries[-1].status == UsageStatus.VERIFIED):
        return "status"
    ended = False
    for entry in entries:
        # A run may be recorded again while it is open, and only an ended one is verified.
        ended = ended or entry.status == UsageStatus.VERIFIED
        if len(run.observations) < entry.attempts:
            return f"observation {len(run.observations) + 1}"
        content = usage_evidence_bytes(run.body, run.observations[: entry.attempts])
        if ended and not matches(entry.evidence, run.salt or b"", content):
            return f"the run and its first {entry.attempts} observations"
    return None if not is_verified or _is_verdict_of(run, entries[-1].attempts) else "verdict"


def has_progress_of(run: RecordedUsage, progress: bytes, acknowledged: bytes | None) -> bool:
    """Whether the kept progress of a run is what its observations lead to; raises msgspec.DecodeError.

    Under another policy or schedule, progress is not used: all observations are read again.
    """
    kept = decode_json(progress, UsageProgress)
    metered = decode_json(run.body, MeteredRun).for_judging
    looks = [decode_json(body, Observation) for body in run.observations]
    accepted = decode_json(acknowledged or b"[]", tuple[Acknowledgement, ...])
    made = judge_all(metered, looks, accepted, kept.policy, Schedule(give_up_h=kept.give_up_h)).progress
    return made == kept


def _is_verdict_of(run: RecordedUsage, attempts: int) -> bool:
    """Whether the recorded verdict claims a count that an observation gives."""
    try:
        verdict = decode_json(run.verdict, UsageVerdict)
        metered = decode_json(run.body, MeteredRun).for_judging
        looks = [decode_json(body, Observation) for body in run.observations]
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    # The latest entry commits to the first observations; later ones may only repeat their count.
    committed = [own_tokens(metered, look) for look in looks[:attempts] if look.error is None]
    return verdict.status == run.status and verdict.tokens in committed
