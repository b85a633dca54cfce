"""The tokens that a contract paid for, for a stranger: what the log says of each run, and what its looks come to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from meruit.model.metering import MeteredRun
from meruit.model.usage import Acknowledgement, Attempt, UsagePolicy, UsageStatus, UsageVerdict
from meruit.trust.bundle import USAGE, Annotations, RunProof, UsageFile, short
from meruit.trust.commitment import matches, salt_of
from meruit.trust.entries import Entry, UsageEntry
from meruit.trust.findings import Flaw, Step
from meruit.trust.usage import decide

UsageStory: TypeAlias = Mapping[str, Sequence[tuple[int, UsageEntry]]]
"""What the log says of each run, by its place in the log, the first word first."""
_SPECIFIED = UsagePolicy()


class Proven(NamedTuple):
    """A run as the log spoke for it at some moment, judged again by the specified rules."""

    run: MeteredRun
    looks: int
    verdict: UsageVerdict


def committed(run: bytes, looks: Iterable[bytes]) -> bytes:
    """What the audit log commits to: the run, and the looks that were kept by then, in their order."""
    return b"\n".join((run, *looks))


def usage_story(entries: Mapping[int, Entry], tenant: str, about: Annotations) -> UsageStory:
    """What the entries tell of runs, nothing left out that the statement speaks for; raises Flaw."""
    story: dict[str, list[tuple[int, UsageEntry]]] = {}
    for index, entry in entries.items():
        if isinstance(entry, UsageEntry):
            if entry.tenant != tenant:
                raise _wrong(f"entry {index} tells of another tenant's run")
            told = story.setdefault(entry.run, [])
            if entry.number != len(told) + 1:
                raise _wrong(f"entry {index} is number {entry.number} of its run, after number {len(told)}")
            told.append((index, entry))
    counts = {run: len(told) for run, told in story.items()}
    if counts != about.usage:
        run = min(name for name in counts | about.usage if counts.get(name) != about.usage.get(name))
        raise _wrong(f"the log tells of run {short(run)} otherwise than the statement says")
    return story


def check_usage(file: UsageFile | None, story: UsageStory) -> None:
    """That runs and looks are those that the log speaks for; raises Flaw."""
    proofs = {} if file is None else file.runs
    if proofs.keys() != story.keys() or (file is not None and not proofs):
        raise Flaw(Step.BLOBS, f"{USAGE} is missing, or tells of other runs than the log")
    for run, proof in proofs.items():
        told = [entry for _, entry in story[run]]
        if len(proof.looks) != max(entry.attempts for entry in told):
            raise Flaw(Step.BLOBS, f"{USAGE} holds other looks at run {short(run)} than the log speaks for")
        for entry in told:
            content = committed(proof.run, proof.looks[: entry.attempts])
            if not matches(entry.evidence, salt_of(proof.salt), content):
                raise Flaw(Step.BLOBS, f"run {short(run)} or the looks at it are not what was committed to")


def proven(file: UsageFile | None, story: UsageStory, run_id: str, before: int) -> Proven:
    """What the looks at a run come to that the log spoke for before a place in it; raises Flaw.

    Only a count that the log called verified then can have been paid.
    """
    told = [entry for index, entry in story.get(run_id, ()) if index < before]
    if file is None or not told or told[-1].status != UsageStatus.VERIFIED:
        raise Flaw(Step.SETTLEMENT, f"the log did not call the tokens of run {short(run_id)} verified when it paid")
    proof, looks = file.runs[run_id], told[-1].attempts
    try:
        run, attempts = _read(proof)
    except (ValueError, RecursionError) as problem:
        raise Flaw(Step.SETTLEMENT, f"run {short(run_id)} cannot be read: {problem}") from None
    # Who accepts a count that fell has seen every look that was kept by then, and none that was still to come.
    accepted = [
        Acknowledgement(max(one.at for one in attempts[: entry.attempts]), entry.by, entry.reason)
        for entry in told
        if entry.by
    ]
    return Proven(run, looks, decide(run.for_judging, attempts[:looks], _SPECIFIED, accepted))


def _read(proof: RunProof) -> tuple[MeteredRun, list[Attempt]]:
    return MeteredRun.from_json(proof.run), [Attempt.from_json(one) for one in proof.looks]


def _wrong(what: str) -> Flaw:
    return Flaw(Step.SEQUENCE, what)
