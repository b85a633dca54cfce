"""Token usage as text: a verdict, a run, and the explanation of its status."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from meruit.cli.terminal import ExitCode, escape_control_characters, format_cell, print_table, say
from meruit.model.metering import UsageRecord
from meruit.model.usage import Observation, Tokens, UsageStatus, UsageVerdict
from meruit.usage.cost import quote_cost
from meruit.usage.files import MetricsFile
from meruit.usage.schedule import NextObservation

LONGEST_CELL = 60
UNKNOWN = "–"


class UsageFileVerdict(msgspec.Struct, frozen=True):
    """A file and the verdict on the run in it."""

    path: str
    content: bytes
    file: MetricsFile
    verdict: UsageVerdict
    run_id: str | None
    framework: str | None = None


def exit_code_of(statuses: Iterable[UsageStatus]) -> ExitCode:
    """Exit code: 0 all verified, 1 a warning, 3 pending or no data."""
    seen = {*statuses}
    if seen <= {UsageStatus.VERIFIED}:
        return ExitCode.PASSED
    return ExitCode.NOT_PASSED if UsageStatus.WARNING in seen else ExitCode.COULD_NOT_VERIFY


# Any, here and below: JSON.
def verdict_to_dict(run_id: str | None, verdict: UsageVerdict) -> dict[str, Any]:
    """A verdict as JSON, its first two fields named as in the files."""
    rest = verdict.to_dict()
    status, message = rest.pop("status"), rest.pop("message")
    return {"run_id": run_id, "verification_status": status, "verification_message": message, **rest}


def verdicts_to_json(judged: Sequence[UsageFileVerdict], *, several: bool) -> bytes:
    """The verdicts on files, as JSON."""
    each = [verdict_to_dict(one.run_id, one.verdict) for one in judged]
    return msgspec.json.encode({"runs": each} if several else each[0])


def print_file_verdicts(judged: Sequence[UsageFileVerdict]) -> None:
    """Print several verdicts on files, a line each."""
    rows = [
        (
            one.run_id or one.path,
            one.framework or UNKNOWN,
            one.verdict.status,
            f"a {one.verdict.reported_by}",
            one.verdict.message,
        )
        for one in judged
    ]
    print_table(("run", "framework", "status", "reported by", "why"), rows, painted=2)


def print_verdict(verdict: UsageVerdict) -> None:
    """Print a verdict: status and message as in the files, then the basis."""
    _print_labels(
        {
            "verification_status": verdict.status,
            "verification_message": verdict.message,
            "code": verdict.code,
            "explanation": verdict.explanation,
            "tokens": None if verdict.tokens is None else format_tokens(verdict.tokens),
            "steps": f"{verdict.steps_with_tokens} of {verdict.total_steps} have tokens",
            # Without observations, the assurance is none.
            "assurance": verdict.assurance if verdict.compared else None,
            "evidence": f"imported: reported by a {verdict.reported_by}; the provider was not asked"
            if verdict.reported_by
            else None,
            "early": f"{verdict.early} equal observations came too early to count" if verdict.early else None,
            "withdrawn": f"{verdict.withdrawn} ×" if verdict.withdrawn else None,
        }
    )


def print_runs(found: Sequence[UsageRecord]) -> None:
    """Print recorded runs, a line each."""
    rows = [
        (
            one.run.id,
            one.run.framework,
            one.run.task or UNKNOWN,
            one.verdict.status,
            count_source(one.verdict),
            *_in_and_out(one.verdict.tokens),
            f"{one.verdict.steps_with_tokens}/{one.verdict.total_steps}",
            one.verdict.message,
        )
        for one in found
    ]
    headings = ("run", "framework", "task", "status", "counted by", "tokens in", "tokens out", "steps", "why")
    print_table(headings, rows, painted=3)


def count_source(verdict: UsageVerdict) -> str:
    """Who counted the tokens of a verdict, in a word."""
    if not verdict.compared:
        return UNKNOWN
    return f"{verdict.reported_by} (imported)" if verdict.reported_by else "provider"


def print_run(record: UsageRecord, attempts: Sequence[Observation]) -> None:
    """Print everything recorded about a run."""
    run = record.run
    _print_labels(
        {
            "run": run.id,
            "framework": run.framework,
            "task": run.task or None,
            "source": run.source,
            "attribution key": f"{run.attribution_key.kind}:{run.attribution_key.value}"
            if run.attribution_key.value
            else run.attribution_key.kind,
            "started": None if run.started_at is None else f"{_moment(run.started_at)} UTC",
            "ended": "not yet" if run.ended_at is None else f"{_moment(run.ended_at)} UTC",
            "success": None if run.success is None else format_cell(run.success),
            "score": None if run.score is None else format_cell(run.score),
            "contract": run.contract_id or None,
            "outcome": run.outcome_id or None,
            "own count": "unknown" if run.local is None else format_tokens(run.local),
            "cost": _costs(record),
        }
    )
    print_verdict(record.verdict)
    if run.steps:
        say()
        rows = [
            (
                one.id,
                format_cell(one.expects_usage),
                format_cell(one.succeeded),
                str(len(one.calls)),
                *_in_and_out(one.local),
            )
            for one in run.steps
        ]
        print_table(("step", "expects usage", "succeeded", "calls", "own in", "own out"), rows)
    if attempts:
        say()
        print_observations(attempts)
    if record.acknowledged:
        say()
        print_table(
            ("accepted (UTC)", "by", "why"), [(_moment(one.at), one.by, one.reason) for one in record.acknowledged]
        )


def print_observations(attempts: Sequence[Observation]) -> None:
    """Print observations, a line each."""
    rows = [
        (
            _moment(one.at),
            *_in_and_out(one.total),
            format_cell(None if one.total is None else one.total.requests),
            # A failed request has no assurance.
            UNKNOWN if one.total is None else str(one.assurance),
            UNKNOWN if one.total is None else f"{one.reported_by} (imported)" if one.reported_by else "provider",
            ("too early to count: " if one.early else "")
            + _truncate(one.id if one.error is None else f"{one.error}: {one.detail or 'no details'}"),
        )
        for one in attempts
    ]
    print_table(("observed (UTC)", "tokens in", "tokens out", "requests", "assurance", "counted by", "attempt"), rows)


class UsageExplanation(msgspec.Struct, frozen=True):
    """The status of a run and its basis."""

    record: UsageRecord
    compared: Sequence[Observation]
    next_observation: NextObservation
    now: datetime
    open_beside: Sequence[str]
    """A few open runs that share its attribution key; the run itself if it is open."""


def print_explanation(explained: UsageExplanation) -> None:
    """Print why a run has its status, and what would change it."""
    record, compared, upcoming = explained.record, explained.compared, explained.next_observation
    verdict = record.verdict
    say(escape_control_characters(f"run {record.run.id} of {record.run.framework}"))
    print_verdict(verdict)
    waits = f"; it waits for a {upcoming.waits}" if upcoming.waits else ""
    say(
        escape_control_characters(f"next observation: {format_due(upcoming.at, explained.now)} ({upcoming.why}{waits})")
    )
    if explained.open_beside:
        several = ", ".join(explained.open_beside)
        say(
            escape_control_characters(
                f"open runs with its attribution key: {several}; end finished ones with `meruit usage end RUN`"
            )
        )
    if compared:
        say()
        apart = "" if verdict.minutes is None else f", {verdict.minutes:g} minutes apart"
        say(f"compared{apart}:")
        print_observations(compared)
    if verdict.history:
        say()
        rows = [(_moment(one.at), one.status, one.code, one.observation_id or "a person") for one in verdict.history]
        print_table(("since (UTC)", "status", "rule", "attempt"), rows, painted=1)


def format_due(at: datetime | None, now: datetime) -> str:
    """When a run is observed next; what is overdue is due now."""
    if at is None:
        return "none planned"
    return f"now, due since {_moment(at)} UTC: run `meruit reconcile`" if at <= now else f"{_moment(at)} UTC"


def format_tokens(tokens: Tokens) -> str:
    """`1,234 in, 56 out`, and other known counts."""
    known = {"requests": tokens.requests, "cached": tokens.cached, "reasoning": tokens.reasoning}
    more = [f"{count:,} {name}" for name, count in known.items() if count is not None]
    return ", ".join([f"{tokens.input:,} in", f"{tokens.output:,} out", *more])


def _costs(record: UsageRecord) -> str | None:
    ledger = record.ledger
    known = {"quoted": ledger.quoted, "billed": ledger.billed, "settled": ledger.settled}
    costs = [f"{name} {amount} {ledger.currency}" for name, amount in known.items() if amount is not None]
    if ledger.quoted is None and record.verdict.status is UsageStatus.VERIFIED:
        costs.append(f"quoted unknown: {quote_cost(record.run, record.verdict, record.quotes).why}")
    return ", ".join(costs) or None


def _print_labels(lines: dict[str, str | None]) -> None:
    for name, value in lines.items():
        if value is not None:
            say(f"{name}: {escape_control_characters(value)}")


def _in_and_out(tokens: Tokens | None) -> tuple[str, str]:
    return (UNKNOWN, UNKNOWN) if tokens is None else (f"{tokens.input:,}", f"{tokens.output:,}")


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _truncate(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
