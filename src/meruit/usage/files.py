"""Read and write `metrics.json` and `runs_manifest.json`: runs and their observations in files."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec

from meruit.documents.document import Document, parse
from meruit.documents.document_reader import DocumentReader
from meruit.documents.tree import Path
from meruit.documents.validation_messages import describe_value, short
from meruit.errors import DocumentError, FetchError, Problem
from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import MAX_STEPS, MeteredRun, UsageRecord
from meruit.model.record import Record
from meruit.model.usage import (
    BY_FILE,
    Acknowledgement,
    Assurance,
    Cohort,
    Count,
    Moment,
    Observation,
    Tokens,
    UsageRun,
    UsageStep,
    UsageVerdict,
    sum_tokens,
)
from meruit.suggestions import nearest

RECONCILIATION = "usage_api_reconciliation"
STATUS, MESSAGE = "verification_status", "verification_message"
IMPORTED = "imported"
"""Whether the status rests on observations that were read from a file."""
ATTEMPTS, ACKNOWLEDGED = "attempts", "acknowledged"
METERED = "metered"
"""The key of the recorded run in files that Meruit writes; it takes precedence over the other fields."""
EXTRAS = "meruit"
"""The key of the fields that Meruit adds to an attempt."""
RUNS = "runs"
RUN_COUNTS = {
    "input": "total_tokens_in",
    "output": "total_tokens_out",
    "requests": "total_api_calls",
    "cached": "total_cached_tokens",
    "cache_write": "total_cache_write_tokens",
    "reasoning": "total_reasoning_tokens",
}
"""The names of a run's counts in files."""
STEP_COUNTS = {name: key.removeprefix("total_") for name, key in RUN_COUNTS.items()}
"""The names of a step's counts in files."""
STEP_NAMES = ("step", "step_number", "id", "name")
STARTS = ("started_at", "start_time", "start_timestamp")
ENDS = ("ended_at", "end_time", "end_timestamp")
SHARED_FIELDS = (
    "source",
    "attribution_key",
    "declares_no_usage",
    "task",
    "success",
    "score",
    "contract_id",
    "outcome_id",
)
"""Fields of a run with the same name in files and in records."""

_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
_WRITER = msgspec.json.Encoder(decimal_format="number")


class ObservationExtras(Record, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields that Meruit adds to an attempt in a file."""

    unattributed: Count = 0
    models: tuple[str, ...] = ()
    cohort: Cohort | None = None
    assurance: Assurance = Assurance.COHORT
    watermark: Moment | None = None
    detail: str = ""
    digest: str = ""
    counted: bool = True
    """False where `steps_with_tokens` and `total_steps` were derived when the file was written."""
    by_model: dict[str, Tokens] | None = None
    early: bool = False
    reported_by: str = ""
    """`file` where the observation was imported before it was written."""


class MetricsFile(msgspec.Struct, frozen=True):
    """The part of a `metrics.json` that the verdict depends on."""

    document: Document
    run_id: str | None
    run: UsageRun
    observations: tuple[Observation, ...]
    acknowledged: tuple[Acknowledgement, ...] = ()


class ManifestEntry(msgspec.Struct, frozen=True):
    """A run in a manifest."""

    run_id: str
    framework: str | None
    line: int | None


class ManifestFile(msgspec.Struct, frozen=True):
    """A `runs_manifest.json`."""

    document: Document
    runs: tuple[ManifestEntry, ...]


# Reading.


def parse_json(text: str | bytes, name: str) -> Document:
    """Parse a file as JSON by any name; raises DocumentError with every problem and its line."""
    try:
        return msgspec.structs.replace(parse(text, "metrics.json"), name=name)
    except DocumentError as refused:
        raise DocumentError(name, refused.problems) from None


def is_manifest(document: Document) -> bool:
    """Whether a file is a list of runs, rather than one run."""
    value = document.value
    return isinstance(value, dict) and RUNS in value and not {RECONCILIATION, "run_id"} & value.keys()


def read_metrics(
    text: str | bytes | Document, name: str = "metrics.json", *, with_attempts: bool = True, now: datetime | None = None
) -> MetricsFile:
    """Read what the verdict depends on, and ignore other fields; raises DocumentError with every problem.

    An attempt without an id gets its time as id, so that two different attempts of one time are a conflict. Without
    an end time, the run is taken to have ended by the first attempt. `with_attempts` requires a list of attempts, which
    may be empty. An acknowledgement may not be later than `now`, or than the latest attempt without `now`.

    Observations from a file are marked as imported.
    """
    document = text if isinstance(text, Document) else parse_json(text, name)
    places = DocumentReader(document)
    observations: tuple[Observation, ...] = ()
    acknowledged: tuple[Acknowledgement, ...] = ()
    run_id, run = None, UsageRun()
    if places.is_mapping(()):
        if places.is_mapping((RECONCILIATION,), needed=with_attempts):
            observations = _read_observations(places, needed=with_attempts)
            acknowledged = _read_acknowledgements(
                places, max((one.at for one in observations), default=_BEFORE_ALL), now
            )
        run_id, run = places.text(("run_id",)), _read_run(places, observations)
    places.raise_if_invalid()
    return MetricsFile(document=document, run_id=run_id, run=run, observations=observations, acknowledged=acknowledged)


def mark_imported(observation: Observation) -> Observation:
    """Mark an observation as read from a file; its assurance is COHORT at best."""
    assurance = max(observation.assurance, Assurance.COHORT)
    return msgspec.structs.replace(observation, reported_by=BY_FILE, assurance=assurance)


def to_metered_run(file: MetricsFile) -> MeteredRun:
    """Build the run to record; raises DocumentError where fields are missing.

    The counts of steps are the run's own only in a file without attempts: later they may come from an attempt.
    """
    places = DocumentReader(file.document)
    if places.value_at((METERED,)) is not None:
        run = places.record((METERED,), MeteredRun)
    else:
        flat = {name: value for name in SHARED_FIELDS if (value := places.value_at((name,))) is not None}
        fields = {
            "id": places.text(("run_id",), needed=True),
            "framework": places.text(("framework",), needed=True),
            "started_at": _read_time(places, (), STARTS),
            "ended_at": _read_time(places, (), ENDS) or min((one.at for one in file.observations), default=None),
            "steps": [_step_fields(places, *one, own=not file.observations) for one in _read_steps(places, ("steps",))],
        }
        places.raise_if_invalid()
        run = places.convert(fields | flat, (), MeteredRun)
    places.raise_if_invalid()
    # Without problems there is a run.
    assert run is not None  # noqa: S101
    return run


def read_manifest(text: str | bytes | Document, name: str = "runs_manifest.json") -> ManifestFile:
    """Read the runs of a manifest; raises DocumentError with every problem."""
    document = text if isinstance(text, Document) else parse_json(text, name)
    places = DocumentReader(document)
    entries: dict[str, ManifestEntry] = {}
    for path in places.items((RUNS,), needed=True) if places.is_mapping(()) else ():
        run_id, framework = places.text((*path, "run_id"), needed=True), places.text((*path, "framework"))
        _read_tokens(places, path, RUN_COUNTS)
        if run_id in entries:
            line = entries[run_id].line
            places.add_problem((*path, "run_id"), f"{short(repr(run_id))} is listed twice, first on line {line}")
        elif run_id is not None:
            entries[run_id] = ManifestEntry(run_id=run_id, framework=framework, line=document.line_of(path))
    places.raise_if_invalid()
    return ManifestFile(document, tuple(entries.values()))


def _read_run(places: DocumentReader, observations: Sequence[Observation]) -> UsageRun:
    """Read the part of a run that the verdict depends on."""
    if places.value_at((METERED,)) is not None:
        metered = places.record((METERED,), MeteredRun)
        if metered is not None and places.value_at(("run_id",)) not in (None, metered.id):
            places.add_problem(("run_id",), f"differs from {metered.id!r} in {METERED}; write the same id")
        return UsageRun() if metered is None else metered.for_judging
    ended_at = _read_time(places, (), ENDS)
    if ended_at is None:
        ended_at = min((one.at for one in observations), default=_BEFORE_ALL)
    steps = tuple(
        UsageStep(name, places.flag((*path, "expects_usage")), _read_success(places, path))
        for name, path in _read_steps(places, ("steps",))
    )
    if not steps:
        # Without its own steps, the run has those of its attempts.
        seen = dict.fromkeys(name for one in observations for name in one.steps or ())
        steps = tuple(UsageStep(name) for name in seen)
    return UsageRun(ended_at, steps, places.flag(("declares_no_usage",)) or False)


def _read_steps(places: DocumentReader, path: Path, *, named_all: bool = False) -> list[tuple[str, Path]]:
    """Read the name and the path of each step; the name may be its number in the list."""
    named: dict[str, Path] = {}
    for number, place in enumerate(places.items(path), start=1):
        usual = STEP_NAMES[0] if named_all else None
        key = next((key for key in STEP_NAMES if places.value_at((*place, key)) is not None), usual)
        name = str(number) if key is None else places.text((*place, key), needed=True)
        if name in named:
            places.add_problem(place, f"step {short(repr(name))} is listed twice")
        elif name is not None:
            named[name] = place
    if len(named) > MAX_STEPS:
        places.add_problem(path, f"{len(named):,} steps; at most {MAX_STEPS:,} are allowed")
    return [*named.items()]


# Any: the decoder of the record checks the types.
def _step_fields(places: DocumentReader, name: str, path: Path, *, own: bool) -> dict[str, Any]:
    tokens = _read_tokens(places, path, STEP_COUNTS)
    # Zero is written before the counts are known.
    known = tokens if own and tokens is not None and tokens.total else None
    return {
        "id": name,
        "started_at": _read_time(places, path, STARTS),
        "ended_at": _read_time(places, path, ENDS),
        "succeeded": _read_success(places, path),
        "expects_usage": places.flag((*path, "expects_usage")),
        "tokens": None if known is None else known.to_dict(),
    }


def _read_success(places: DocumentReader, path: Path) -> bool | None:
    found = [places.value_at((*path, key)) for key in ("succeeded", "success")]
    return next((one for one in found if isinstance(one, bool)), None)


def _read_observations(places: DocumentReader, *, needed: bool) -> tuple[Observation, ...]:
    listed = places.items((RECONCILIATION, ATTEMPTS), needed=needed)
    read = [_read_observation(places, path) for path in listed]
    return tuple(one for one in read if one is not None)


def _read_acknowledgements(
    places: DocumentReader, latest: datetime, now: datetime | None
) -> tuple[Acknowledgement, ...]:
    """Read the acknowledgements, each with a name and a reason, and not in the future."""
    found: list[Acknowledgement] = []
    for path in places.items((RECONCILIATION, ACKNOWLEDGED)):
        one = places.record(path, Acknowledgement)
        if one is None:
            continue
        if not one.by.strip():
            places.add_problem((*path, "by"), "is empty; give the name of the person who accepts the count")
        if not one.reason.strip():
            places.add_problem((*path, "reason"), "is empty; give the reason why the lower count is right")
        if one.at > (latest if now is None else max(now, latest)):
            until = "the latest attempt" if now is None else "now"
            places.add_problem((*path, "at"), f"is later than {until}; give the time of the acknowledgement")
        found.append(one)
    return tuple(found)


def _read_observation(places: DocumentReader, path: Path) -> Observation | None:
    faults = places.problem_count
    at = places.moment((*path, "timestamp"), needed=True)
    error = _read_error(places, path)
    succeeded = error is None
    # The steps of an attempt say what it counted, where its totals do not.
    needed = succeeded and places.value_at((*path, "steps")) is None
    is_summed = succeeded and not needed and not _has_totals(places, path)
    total = _read_tokens(places, path, RUN_COUNTS, needed=not is_summed) if succeeded and not is_summed else None
    have, of = (places.count((*path, key), MAX_STEPS, needed=needed) for key in ("steps_with_tokens", "total_steps"))
    extras = places.record((*path, EXTRAS), ObservationExtras) or ObservationExtras()
    name = places.text((*path, "id"))
    steps = _read_step_tokens(places, (*path, "steps"), total)
    if places.problem_count > faults or at is None:
        return None
    if is_summed and steps is not None:
        total = sum_tokens(steps.values())
    if steps is not None and have is None and of is None:
        # The steps that are listed are those that were counted.
        have, of = sum(one.total > 0 for one in steps.values()), len(steps)
    # Tokens beyond the sum of the steps are unattributed.
    left_over = 0 if total is None or steps is None else total.total - sum_tokens(steps.values()).total
    read = Observation(
        id=name or "",
        at=at,
        total=total,
        steps=steps,
        steps_with_tokens=have if extras.counted else None,
        total_steps=of if extras.counted else None,
        unattributed=max(left_over, extras.unattributed),
        models=extras.models,
        cohort=extras.cohort,
        assurance=extras.assurance,
        watermark=extras.watermark,
        error=error,
        detail=extras.detail,
        digest=extras.digest,
        by_model=extras.by_model,
        early=extras.early,
    )
    return mark_imported(read if name else msgspec.structs.replace(read, id=_default_id(read)))


def _has_totals(places: DocumentReader, path: Path) -> bool:
    """Whether an attempt has any total of input or output."""
    return any(places.value_at((*path, RUN_COUNTS[name])) is not None for name in ("input", "output"))


def _default_id(observation: Observation) -> str:
    """Name an observation by its time; a failed one also by its content, because it may be repeated at once."""
    at = observation.at.isoformat()
    return (
        at if observation.error is None else f"{at} {observation.error} {sha256(observation.to_json()).hexdigest()[:8]}"
    )


def _read_error(places: DocumentReader, path: Path) -> FetchError | None:
    found = places.text((*path, "error"))
    if found is None:
        return None
    try:
        return FetchError(found)
    except ValueError:
        kinds = [*map(str, FetchError)]
        places.add_problem(
            (*path, "error"), f"expected one of {', '.join(kinds)}, got {describe_value(found)}{nearest(found, kinds)}"
        )
        return None


def _read_step_tokens(places: DocumentReader, path: Path, total: Tokens | None) -> dict[str, Tokens] | None:
    """Read the tokens of each step in one attempt."""
    if places.value_at(path) is None:
        return None
    faults = places.problem_count
    read = {
        name: _read_tokens(places, place, STEP_COUNTS, needed=True)
        for name, place in _read_steps(places, path, named_all=True)
    }
    steps = {name: one for name, one in read.items() if one is not None}
    total_of_steps = sum_tokens(steps.values())
    if places.problem_count == faults and total is not None:
        for whole, part, key in (
            (total.input, total_of_steps.input, "input"),
            (total.output, total_of_steps.output, "output"),
        ):
            if part > whole:
                places.add_problem(
                    path, f"the steps' {STEP_COUNTS[key]} add up to {part:,}, {RUN_COUNTS[key]} is only {whole:,}"
                )
    return steps


def _read_tokens(places: DocumentReader, path: Path, keys: Mapping[str, str], *, needed: bool = False) -> Tokens | None:
    counts = {
        name: places.count((*path, key), MOST_TOKENS, needed=needed and name in ("input", "output"))
        for name, key in keys.items()
    }
    if counts["input"] is None or counts["output"] is None:
        return None
    return Tokens(**{name: count for name, count in counts.items() if count is not None})


def _read_time(places: DocumentReader, path: Path, names: tuple[str, ...]) -> datetime | None:
    """Read a time that has several names in files."""
    found = [(name, at) for name in names if (at := places.moment((*path, name))) is not None]
    for name, at in found[1:]:
        if at != found[0][1]:
            places.add_problem((*path, name), f"differs from {found[0][0]!r}; remove one of them")
    return found[0][1] if found else None


# Writing.


def with_verdict(file: MetricsFile, verdict: UsageVerdict) -> bytes:
    """Return the file with the status and message of a verdict; all other fields are unchanged."""
    whole = dict(file.document.value)
    part = dict(whole.get(RECONCILIATION) or {})
    whole[RECONCILIATION] = _status_fields(verdict) | {
        key: one for key, one in part.items() if key not in (STATUS, MESSAGE, IMPORTED)
    }
    return _encode(whole)


def manifest_with(file: ManifestFile, verdicts: Mapping[str, UsageVerdict]) -> bytes:
    """Return the manifest with the status of each run; raises DocumentError for runs that it does not list."""
    absent = verdicts.keys() - {one.run_id for one in file.runs}
    if absent:
        found = [Problem(RUNS, f"run {short(repr(one))} is missing; add it") for one in sorted(absent)]
        raise DocumentError(file.document.name, found)
    whole = dict(file.document.value)
    whole[RUNS] = [
        one | _manifest_fields(verdicts[known.run_id]) if known.run_id in verdicts else one
        for known, one in zip(file.runs, whole[RUNS], strict=True)
    ]
    return _encode(whole)


def write_metrics(record: UsageRecord, observations: Iterable[Observation]) -> bytes:
    """Write a recorded run as a `metrics.json`; reading it returns the same, with observations marked as imported."""
    run, verdict = record.run, record.verdict
    ordered = sorted(observations, key=lambda one: (one.at, one.id))
    split = next((one.steps for one in reversed(ordered) if one.steps is not None), None)
    whole = {
        "run_id": run.id,
        "framework": run.framework,
        "task": run.task or None,
        "start_time": run.started_at,
        "end_time": run.ended_at,
        "success": run.success,
        "score": run.score,
        **_token_fields(verdict.tokens, RUN_COUNTS),
        "steps_with_tokens": verdict.steps_with_tokens,
        "total_steps": verdict.total_steps,
        "steps": [
            {"step": one.id, **_token_fields(one.local if split is None else split.get(one.id, Tokens()), STEP_COUNTS)}
            | ({} if one.succeeded is None else {"success": one.succeeded})
            for one in run.steps
        ],
        RECONCILIATION: {
            **_status_fields(verdict),
            ATTEMPTS: [_observation_fields(one, verdict) for one in ordered],
            **({ACKNOWLEDGED: record.acknowledged} if record.acknowledged else {}),
        },
        METERED: run,
    }
    return _encode({key: one for key, one in whole.items() if one is not None})


def write_manifest(records: Iterable[UsageRecord]) -> bytes:
    """Write a manifest of recorded runs."""
    entries = [
        {
            "run_id": one.run.id,
            "framework": one.run.framework,
            **_manifest_fields(one.verdict),
            MESSAGE: one.verdict.message,
        }
        for one in records
    ]
    return _encode({RUNS: entries})


# Any: JSON.
def _observation_fields(observation: Observation, verdict: UsageVerdict) -> dict[str, Any]:
    counted = observation.steps_with_tokens is not None
    extras = ObservationExtras(
        unattributed=observation.unattributed,
        models=observation.models,
        cohort=observation.cohort,
        assurance=observation.assurance,
        watermark=observation.watermark,
        detail=observation.detail,
        digest=observation.digest,
        counted=counted,
        by_model=observation.by_model,
        early=observation.early,
        reported_by=observation.reported_by,
    )
    written: dict[str, Any] = {
        "id": observation.id,
        "timestamp": observation.at,
        **_token_fields(observation.total, RUN_COUNTS),
    }
    if observation.error is None or counted:
        written["steps_with_tokens"] = observation.steps_with_tokens if counted else verdict.steps_with_tokens
        written["total_steps"] = observation.total_steps if counted else verdict.total_steps
    if observation.steps is not None:
        written["steps"] = [
            {"step": name, **_token_fields(one, STEP_COUNTS)} for name, one in observation.steps.items()
        ]
    if observation.error is not None:
        written["error"] = observation.error
    return written | {EXTRAS: extras}


def _status_fields(verdict: UsageVerdict) -> dict[str, Any]:
    return {STATUS: verdict.status, MESSAGE: verdict.message, IMPORTED: bool(verdict.reported_by)}


def _manifest_fields(verdict: UsageVerdict) -> dict[str, Any]:
    """The fields of a run in a manifest; an unknown count does not overwrite a known one."""
    counts = (
        {}
        if verdict.tokens is None
        else _token_fields(verdict.tokens, {name: RUN_COUNTS[name] for name in ("input", "output")})
    )
    return {STATUS: verdict.status, IMPORTED: bool(verdict.reported_by), **counts}


def _token_fields(tokens: Tokens | None, keys: Mapping[str, str]) -> dict[str, int | None]:
    """The counts under their names in files: input and output always, the others where they are known."""
    found = {} if tokens is None else tokens.to_dict()
    return {
        key: found.get(name) for name, key in keys.items() if name in ("input", "output") or found.get(name) is not None
    }


def _encode(value: Any) -> bytes:
    return msgspec.json.format(_WRITER.encode(value), indent=2) + b"\n"
