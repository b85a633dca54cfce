"""Recorded runs in a JSON file: what a report can be made from without a store."""

from codecs import BOM_UTF8
from collections.abc import Iterator

import msgspec

from meruit.errors import DocumentError, Problem
from meruit.model.metering import UsageRecord
from meruit.model.record import Record
from meruit.model.usage import Observation, Tokens, UsagePolicy, UsageVerdict
from meruit.usage.decision import decide

COSTS = ("quoted", "billed", "settled")


class RunsFile(Record, frozen=True, forbid_unknown_fields=True):
    """Runs with all that is known of their tokens, and the looks at them."""

    records: tuple[UsageRecord, ...]
    attempts: dict[str, tuple[Observation, ...]] = msgspec.field(default_factory=dict)
    """By the run's id."""


def read_runs(data: bytes, name: str) -> RunsFile:
    """A list of records, or an object of records and attempts; DocumentError says what of it is neither.

    Where there are attempts, a verdict that does not follow from them is refused.
    """
    try:
        found = msgspec.json.decode(data.removeprefix(BOM_UTF8), type=tuple[UsageRecord, ...] | RunsFile)
    except msgspec.ValidationError as problem:
        why, _, where = str(problem).partition(" - at ")
        raise DocumentError(name, [Problem(where.strip("`").removeprefix("$").removeprefix("."), why)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise DocumentError(name, [Problem("", f"this is no JSON: {problem}")]) from None
    file = found if isinstance(found, RunsFile) else RunsFile(found)
    problems = [problem for record in file.records for problem in _problems(record, file.attempts)]
    if problems:
        raise DocumentError(name, problems)
    return file


def _problems(record: UsageRecord, attempts: dict[str, tuple[Observation, ...]]) -> Iterator[Problem]:
    place = f"run {record.run.id!r}"
    for kind in COSTS:
        cost = getattr(record.ledger, kind)
        if cost is not None and not (cost.is_finite() and cost >= 0):
            yield Problem(place, f"its {kind} cost is {cost}; write an amount from 0 on, or leave out what is unknown")
    if record.verdict.interval_min < 0:
        yield Problem(
            place, f"it was judged with {record.verdict.interval_min:g} minutes; no time is less than nothing"
        )
    elif record.run.id in attempts:
        # The rest of the policy is not told with a verdict: it is the specified one.
        policy = UsagePolicy(interval_min=record.verdict.interval_min)
        again = decide(record.run.for_judging, attempts[record.run.id], policy, record.acknowledged)
        if _claim_of(again) != _claim_of(record.verdict):
            said = f"its verdict is {_describe_claim(record.verdict)}, and its attempts say {_describe_claim(again)}; judge it again"
            yield Problem(place, said)
        elif _describe_weight(again) != _describe_weight(record.verdict):
            said = f"its verdict is of {_describe_weight(record.verdict)}, and its attempts say {_describe_weight(again)}; judge it again"
            yield Problem(place, said)


def _claim_of(verdict: UsageVerdict) -> tuple[str, str, Tokens | None]:
    return (verdict.status, verdict.code, verdict.tokens)


def _describe_weight(verdict: UsageVerdict) -> str:
    heard = f", told by a {verdict.reported_by}" if verdict.reported_by else ""
    return f"assurance {verdict.assurance}, withdrawn {verdict.withdrawn} times{heard}"


def _describe_claim(verdict: UsageVerdict) -> str:
    tokens = verdict.tokens
    counted = "" if tokens is None else f", {tokens.input:,} in / {tokens.output:,} out"
    return f"{verdict.status} ({verdict.code}{counted})"
