"""Recorded runs in a JSON file, for a report without a store."""

from codecs import BOM_UTF8
from collections.abc import Iterator

import msgspec

from meruit.errors import DocumentError, Problem
from meruit.model.decoding import decode_json
from meruit.model.metering import UsageRecord
from meruit.model.record import Record
from meruit.model.usage import BY_FILE, Observation, Tokens, UsagePolicy, UsageVerdict
from meruit.usage.decision import decide

COSTS = ("quoted", "billed", "settled")


class RunsFile(Record, frozen=True, forbid_unknown_fields=True):
    """Records of runs, and their observations."""

    records: tuple[UsageRecord, ...]
    attempts: dict[str, tuple[Observation, ...]] = msgspec.field(default_factory=dict)
    """By the run's id."""


def read_runs(data: bytes, name: str) -> RunsFile:
    """Read a list of records, or an object of records and attempts; raises DocumentError with every problem.

    A verdict that does not follow from the run's attempts is refused. Counts and observations are marked as imported:
    the provider was not asked, even where the file says so.
    """
    try:
        found = decode_json(data.removeprefix(BOM_UTF8), tuple[UsageRecord, ...] | RunsFile)
    except msgspec.ValidationError as problem:
        why, _, where = str(problem).partition(" - at ")
        raise DocumentError(name, [Problem(where.strip("`").removeprefix("$").removeprefix("."), why)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise DocumentError(name, [Problem("", f"not valid JSON: {problem}")]) from None
    file = found if isinstance(found, RunsFile) else RunsFile(found)
    problems = [problem for record in file.records for problem in _problems(record, file.attempts)]
    if problems:
        raise DocumentError(name, problems)
    return RunsFile(
        tuple(map(_mark_imported, file.records)),
        {run_id: tuple(map(_mark_observation, several)) for run_id, several in file.attempts.items()},
    )


def _mark_imported(record: UsageRecord) -> UsageRecord:
    """Mark the count of a record as read from a file; a run without a count has nothing to mark."""
    verdict = record.verdict
    if verdict.reported_by or (verdict.tokens is None and not verdict.compared):
        return record
    return msgspec.structs.replace(record, verdict=msgspec.structs.replace(verdict, reported_by=BY_FILE))


def _mark_observation(observation: Observation) -> Observation:
    return observation if observation.reported_by else msgspec.structs.replace(observation, reported_by=BY_FILE)


def _problems(record: UsageRecord, attempts: dict[str, tuple[Observation, ...]]) -> Iterator[Problem]:
    place = f"run {record.run.id!r}"
    for kind in COSTS:
        cost = getattr(record.ledger, kind)
        if cost is not None and not (cost.is_finite() and cost >= 0):
            yield Problem(
                place, f"the {kind} cost is {cost}; write an amount of at least 0, or leave out an unknown one"
            )
    if record.verdict.interval_min < 0:
        yield Problem(
            place, f"the interval of the verdict is {record.verdict.interval_min:g} minutes; it must be at least 0"
        )
    elif record.run.id in attempts:
        # A verdict has only the interval of its policy; the rest is the default.
        policy = UsagePolicy(interval_min=record.verdict.interval_min)
        again = decide(record.run.for_judging, attempts[record.run.id], policy, record.acknowledged)
        if _claim_of(again) != _claim_of(record.verdict):
            yield Problem(place, _mismatch(_describe_claim(record.verdict), _describe_claim(again)))
        elif _describe_weight(again) != _describe_weight(record.verdict):
            yield Problem(place, _mismatch(_describe_weight(record.verdict), _describe_weight(again)))


def _mismatch(given: str, computed: str) -> str:
    return f"the verdict is {given}, but its attempts give {computed}; compute it again"


def _claim_of(verdict: UsageVerdict) -> tuple[str, str, Tokens | None]:
    return (verdict.status, verdict.code, verdict.tokens)


def _describe_weight(verdict: UsageVerdict) -> str:
    imported = f", reported by a {verdict.reported_by}" if verdict.reported_by else ""
    return f"assurance {verdict.assurance}, withdrawn {verdict.withdrawn} times{imported}"


def _describe_claim(verdict: UsageVerdict) -> str:
    tokens = verdict.tokens
    counted = "" if tokens is None else f", {tokens.input:,} in / {tokens.output:,} out"
    return f"{verdict.status} ({verdict.code}{counted})"
