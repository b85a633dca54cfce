"""The tokens that a contract paid for: what the log says of each run, and what its observations show."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import product
from typing import TypeAlias

import msgspec

from meruit.audit.bundle import USAGE, Annotations, RunProof, UsageFile, short
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.commitment import SALT_BYTES, commitment_to, salt_of
from meruit.log.entries import Entry, UsageEntry
from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import MeteredRun
from meruit.model.usage import Acknowledgement, Anchor, Observation, UsagePolicy, UsageStatus, UsageVerdict
from meruit.usage.decision import decide

UsageHistory: TypeAlias = Mapping[str, Sequence[tuple[int, UsageEntry]]]
"""What the log says of each run, by index, in order."""
MAX_ENTRIES = 2_000
"""Of one run, that a bundle carries."""
_SPECIFIED = UsagePolicy()
_LENIENT = [
    UsagePolicy(anchor=anchor, totals_only=totals_only, tolerance=MOST_TOKENS)
    for anchor, totals_only in product(Anchor, (False, True))
]
"""Policies that operators may choose and still pay by; a stricter one has fewer observations that count."""


class RunUsageProof(msgspec.Struct, frozen=True):
    """A run as the log spoke for it at some moment, judged again."""

    run: MeteredRun
    observations: int
    verdict: UsageVerdict
    as_specified: bool
    """Whether the default rules verify it, and not only rules that an operator chose."""


class _RunEvidence(msgspec.Struct, frozen=True):
    run: MeteredRun
    observations: list[Observation]


class UsageProofs:
    """What runs used, by the observations in the bundle, each read once."""

    def __init__(self, file: UsageFile | None, story: UsageHistory) -> None:
        self._file, self._story = file, story
        self._read: dict[str, _RunEvidence] = {}

    def prove(self, run_id: str, before: int) -> RunUsageProof:
        """Decide a run by the observations that the log committed to before an index; raises BundleFlaw.

        Only a count that the log called verified then, and that such rules verify, can have been paid.
        """
        earlier = [entry for index, entry in self._story.get(run_id, ()) if index < before]
        if self._file is None or not earlier or earlier[-1].status != UsageStatus.VERIFIED:
            raise _settlement_flaw(f"the log did not call the tokens of run {short(run_id)} verified when it paid")
        read, count = self._of(run_id, self._file), earlier[-1].attempts
        # A person who accepts a count that fell has seen every observation recorded by then, and no later one.
        accepted = [
            Acknowledgement(max(one.at for one in read.observations[: entry.attempts]), entry.by, entry.reason)
            for entry in earlier
            if entry.by
        ]
        # Imported observations are not paid by, and some rules leave them out of the comparison.
        looks, judged = read.observations[:count], read.run.for_judging
        asked = [one for one in looks if not one.reported_by]
        for place, (some, policy) in enumerate(product((looks, asked), (_SPECIFIED, *_LENIENT))):
            verdict = decide(judged, some, policy, accepted)
            if verdict.status is UsageStatus.VERIFIED and not verdict.reported_by:
                return RunUsageProof(run=read.run, observations=count, verdict=verdict, as_specified=place == 0)
        raise _settlement_flaw(
            f"no rules verify the tokens of run {short(run_id)} by what the log says that its provider counted"
        )

    def _of(self, run_id: str, file: UsageFile) -> _RunEvidence:
        if run_id not in self._read:
            self._read[run_id] = _read_run(run_id, file.runs[run_id])
        return self._read[run_id]


def usage_history(entries: Mapping[int, Entry], tenant: str, about: Annotations) -> UsageHistory:
    """What the entries say of runs, complete by the counts in the statement; raises BundleFlaw."""
    story: dict[str, list[tuple[int, UsageEntry]]] = {}
    for index, entry in entries.items():
        if isinstance(entry, UsageEntry):
            earlier = story.setdefault(entry.run, [])
            _check_next(index, entry, tenant, earlier)
            earlier.append((index, entry))
    counts = {run: len(earlier) for run, earlier in story.items()}
    if counts != about.usage:
        run = min(name for name in counts | about.usage if counts.get(name) != about.usage.get(name))
        raise _sequence_flaw(f"the log has other entries of run {short(run)} than the statement says")
    return story


def _check_next(index: int, entry: UsageEntry, tenant: str, earlier: Sequence[tuple[int, UsageEntry]]) -> None:
    if entry.tenant != tenant:
        raise _sequence_flaw(f"entry {index} is about another tenant's run")
    if entry.number != len(earlier) + 1:
        raise _sequence_flaw(f"entry {index} is number {entry.number} of its run, after number {len(earlier)}")
    if entry.number > MAX_ENTRIES:
        raise _sequence_flaw(f"there are more than {MAX_ENTRIES:,} entries of run {short(entry.run)}")
    if entry.attempts < (earlier[-1][1].attempts if earlier else 1):
        raise _sequence_flaw(
            f"entry {index} is based on fewer observations than the entry before it; observations are never removed"
        )


def check_usage(file: UsageFile | None, story: UsageHistory) -> None:
    """Check that runs and observations are those that the log commits to; raises BundleFlaw."""
    proofs = {} if file is None else file.runs
    if proofs.keys() != story.keys() or (file is not None and not proofs):
        raise BundleFlaw(AuditStep.BLOBS, f"{USAGE} is missing, or is about other runs than the log")
    for run, proof in proofs.items():
        earlier = [entry for _, entry in story[run]]
        if len(proof.observations) != earlier[-1].attempts:
            raise BundleFlaw(
                AuditStep.BLOBS, f"{USAGE} has other observations of run {short(run)} than the log commits to"
            )
        salt, digests = salt_of(proof.salt), _digests(proof)
        for entry in earlier:
            if len(salt) != SALT_BYTES or entry.evidence != commitment_to(salt, digests[entry.attempts]):
                raise BundleFlaw(AuditStep.BLOBS, f"run {short(run)} or its observations are not what was committed to")


def _digests(proof: RunProof) -> list[str]:
    """Digests of what is committed to with one observation, with two, and so on; each byte is hashed once."""
    content = sha256(proof.run)
    digests = [content.hexdigest()]
    for look in proof.observations:
        content.update(b"\n" + look)
        digests.append(content.hexdigest())
    return digests


def _read_run(run_id: str, proof: RunProof) -> _RunEvidence:
    """Read a run and its observations in their one recorded form: another form could hide something from a reader."""
    try:
        read = _RunEvidence(MeteredRun.from_json(proof.run), [Observation.from_json(one) for one in proof.observations])
        same = [read.run.to_json(), *(one.to_json() for one in read.observations)] == [proof.run, *proof.observations]
    except (ValueError, RecursionError) as problem:
        raise _settlement_flaw(f"run {short(run_id)} or an observation of it cannot be read: {problem}") from None
    if not same:
        raise _settlement_flaw(f"run {short(run_id)} or an observation of it is not in its recorded form")
    return read


def _sequence_flaw(what: str) -> BundleFlaw:
    return BundleFlaw(AuditStep.SEQUENCE, what)


def _settlement_flaw(what: str) -> BundleFlaw:
    return BundleFlaw(AuditStep.SETTLEMENT, what)
