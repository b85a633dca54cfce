"""`metrics.json` and `runs_manifest.json`: what files say of runs, and of looks at the tokens that they used."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from meruit.documents.document import Document, parse
from meruit.documents.document_reader import DocumentReader
from meruit.documents.tree import Path
from meruit.documents.validation_messages import describe_value, short
from meruit.errors import DocumentError, FetchError, Problem, nearest
from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import MAX_STEPS, MeteredRun, UsageRecord
from meruit.model.record import Record
from meruit.model.usage import (
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

RECONCILIATION = "usage_api_reconciliation"
STATUS, MESSAGE = "verification_status", "verification_message"
ATTEMPTS, ACKNOWLEDGED = "attempts", "acknowledged"
METERED = "metered"
"""The key of the run as Meruit records it, in the files that it writes; where it is there, it is the run."""
EXTRAS = "meruit"
"""The key of what Meruit knows of an attempt beyond the specified fields."""
RUNS = "runs"
REPORTED_BY = "file"
"""Who says that an attempt was made, of all that are read here."""
RUN_COUNTS = {
    "input": "total_tokens_in",
    "output": "total_tokens_out",
    "requests": "total_api_calls",
    "cached": "total_cached_tokens",
    "cache_write": "total_cache_write_tokens",
    "reasoning": "total_reasoning_tokens",
}
"""What files call the counts of a whole run."""
STEP_COUNTS = {name: key.removeprefix("total_") for name, key in RUN_COUNTS.items()}
"""And those of a step."""
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
"""Fields of a run that files and records call alike."""

_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
_WRITER = msgspec.json.Encoder(decimal_format="number")


class ObservationExtras(Record, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of an attempt the specified fields have no room for."""

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


class MetricsFile(NamedTuple):
    """What a `metrics.json` says, as far as a verdict depends on it."""

    document: Document
    run_id: str | None
    run: UsageRun
    observations: tuple[Observation, ...]
    acknowledged: tuple[Acknowledgement, ...] = ()


class ManifestEntry(NamedTuple):
    """A run that a manifest names."""

    run_id: str
    framework: str | None
    line: int | None


class ManifestFile(NamedTuple):
    """What a `runs_manifest.json` says."""

    document: Document
    runs: tuple[ManifestEntry, ...]


# What is read.


def parse_json(text: str | bytes, name: str) -> Document:
    """Read a file that is JSON, whatever it is called; DocumentError with every problem and its line."""
    try:
        return parse(text, "metrics.json")._replace(name=name)
    except DocumentError as refused:
        raise DocumentError(name, refused.problems) from None


def is_manifest(document: Document) -> bool:
    """Whether a file lists runs, rather than telling of one."""
    value = document.value
    return isinstance(value, dict) and RUNS in value and not {RECONCILIATION, "run_id"} & value.keys()


def read_metrics(
    text: str | bytes | Document, name: str = "metrics.json", *, looked: bool = True, now: datetime | None = None
) -> MetricsFile:
    """Read what a verdict depends on, whatever else the file says; DocumentError with every problem of it.

    An attempt without an id is named by its time: the same one twice is one, and two that differ contradict each other.
    A file that does not say when the run ended is taken to have been looked at after its end. With `looked`, there must
    be a list of attempts, if only an empty one. Nobody has accepted anything after `now`, or, where that is not said,
    after the latest attempt.

    What a file says of attempts is hearsay, and marked so.
    """
    document = text if isinstance(text, Document) else parse_json(text, name)
    places = DocumentReader(document)
    attempts: tuple[Observation, ...] = ()
    acknowledged: tuple[Acknowledgement, ...] = ()
    run_id, run = None, UsageRun()
    if places.is_mapping(()):
        if places.is_mapping((RECONCILIATION,), needed=looked):
            attempts = _read_observations(places, needed=looked)
            acknowledged = _read_acknowledgements(places, max((one.at for one in attempts), default=_BEFORE_ALL), now)
        run_id, run = places.text(("run_id",)), _read_run(places, attempts)
    places.raise_if_invalid()
    return MetricsFile(document, run_id, run, attempts, acknowledged)


def mark_imported(attempt: Observation) -> Observation:
    """What is left of an attempt that a file tells of: it never stands for more than an attribution key that is shared."""
    assurance = max(attempt.assurance, Assurance.COHORT)
    return msgspec.structs.replace(attempt, reported_by=REPORTED_BY, assurance=assurance)


def to_metered_run(file: MetricsFile) -> MeteredRun:
    """The run, to be recorded; DocumentError where the file says too little of it.

    What a step used is the run's own account only as long as nobody has looked: later it may be what was found then.
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
    # Where nothing is wrong, there is one.
    assert run is not None  # noqa: S101
    return run


def read_manifest(text: str | bytes | Document, name: str = "runs_manifest.json") -> ManifestFile:
    """Read which runs a manifest names; DocumentError with every problem of it."""
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
            entries[run_id] = ManifestEntry(run_id, framework, document.line_of(path))
    places.raise_if_invalid()
    return ManifestFile(document, tuple(entries.values()))


def _read_run(places: DocumentReader, attempts: Sequence[Observation]) -> UsageRun:
    """The part of a run that decides."""
    if places.value_at((METERED,)) is not None:
        metered = places.record((METERED,), MeteredRun)
        if metered is not None and places.value_at(("run_id",)) not in (None, metered.id):
            places.add_problem(("run_id",), f"it is {metered.id!r} in {METERED}; write the same")
        return UsageRun() if metered is None else metered.for_judging
    ended_at = _read_time(places, (), ENDS)
    if ended_at is None:
        ended_at = min((one.at for one in attempts), default=_BEFORE_ALL)
    steps = tuple(
        UsageStep(name, places.flag((*path, "expects_usage")), _read_success(places, path))
        for name, path in _read_steps(places, ("steps",))
    )
    if not steps:
        # A file that lists no step of its own knows those that were counted.
        seen = dict.fromkeys(name for one in attempts for name in one.steps or ())
        steps = tuple(UsageStep(name) for name in seen)
    return UsageRun(ended_at, steps, places.flag(("declares_no_usage",)) or False)


def _read_steps(places: DocumentReader, path: Path, *, named_all: bool = False) -> list[tuple[str, Path]]:
    """Each step's name, or its number in the list where it need not have one; and where it stands."""
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
        places.add_problem(path, f"{len(named):,} steps; at most {MAX_STEPS:,} are taken")
    return [*named.items()]


# Any: the record's own reader sees to the types.
def _step_fields(places: DocumentReader, name: str, path: Path, *, own: bool) -> dict[str, Any]:
    tokens = _read_tokens(places, path, STEP_COUNTS)
    # Nothing at all is what is written before anything is known.
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
    said = [places.value_at((*path, key)) for key in ("succeeded", "success")]
    return next((one for one in said if isinstance(one, bool)), None)


def _read_observations(places: DocumentReader, *, needed: bool) -> tuple[Observation, ...]:
    listed = places.items((RECONCILIATION, ATTEMPTS), needed=needed)
    read = [_read_observation(places, path) for path in listed]
    return tuple(one for one in read if one is not None)


def _read_acknowledgements(
    places: DocumentReader, latest: datetime, now: datetime | None
) -> tuple[Acknowledgement, ...]:
    """A person's words, each with its name and reason; none of a time that nobody has lived to see."""
    found: list[Acknowledgement] = []
    for path in places.items((RECONCILIATION, ACKNOWLEDGED)):
        one = places.record(path, Acknowledgement)
        if one is None:
            continue
        if not one.by.strip():
            places.add_problem((*path, "by"), "a count is accepted by somebody; say by whom")
        if not one.reason.strip():
            places.add_problem((*path, "reason"), "a count is accepted for a reason; say why it is right")
        if one.at > (latest if now is None else max(now, latest)):
            until = "the latest attempt" if now is None else "now"
            places.add_problem((*path, "at"), f"it is later than {until}; nobody accepts what is still to come")
        found.append(one)
    return tuple(found)


def _read_observation(places: DocumentReader, path: Path) -> Observation | None:
    faults = places.problem_count
    at = places.moment((*path, "timestamp"), needed=True)
    error = _read_error(places, path)
    looked = error is None
    total = _read_tokens(places, path, RUN_COUNTS, needed=looked) if looked else None
    have, of = (places.count((*path, key), MAX_STEPS, needed=looked) for key in ("steps_with_tokens", "total_steps"))
    beyond = places.record((*path, EXTRAS), ObservationExtras) or ObservationExtras()
    name = places.text((*path, "id"))
    steps = _read_step_tokens(places, (*path, "steps"), total)
    if places.problem_count > faults or at is None:
        return None
    # What the steps leave over is in none of them, whatever else is said.
    left_over = 0 if total is None or steps is None else total.total - sum_tokens(steps.values()).total
    read = Observation(
        name or "",
        at,
        total,
        steps,
        have if beyond.counted else None,
        of if beyond.counted else None,
        max(left_over, beyond.unattributed),
        beyond.models,
        beyond.cohort,
        beyond.assurance,
        beyond.watermark,
        error,
        beyond.detail,
        beyond.digest,
        beyond.by_model,
    )
    return mark_imported(read if name else msgspec.structs.replace(read, id=_default_id(read)))


def _default_id(attempt: Observation) -> str:
    """By its time, as a source counts one thing at a time; a look that failed may be repeated at once."""
    at = attempt.at.isoformat()
    return at if attempt.error is None else f"{at} {attempt.error} {sha256(attempt.to_json()).hexdigest()[:8]}"


def _read_error(places: DocumentReader, path: Path) -> FetchError | None:
    said = places.text((*path, "error"))
    if said is None:
        return None
    try:
        return FetchError(said)
    except ValueError:
        kinds = [*map(str, FetchError)]
        places.add_problem(
            (*path, "error"), f"expected one of {', '.join(kinds)}, got {describe_value(said)}{nearest(said, kinds)}"
        )
        return None


def _read_step_tokens(places: DocumentReader, path: Path, total: Tokens | None) -> dict[str, Tokens] | None:
    """What each step used, as one look found it."""
    if places.value_at(path) is None:
        return None
    faults = places.problem_count
    read = {
        name: _read_tokens(places, place, STEP_COUNTS, needed=True)
        for name, place in _read_steps(places, path, named_all=True)
    }
    steps = {name: one for name, one in read.items() if one is not None}
    together = sum_tokens(steps.values())
    if places.problem_count == faults and total is not None:
        for whole, part, key in ((total.input, together.input, "input"), (total.output, together.output, "output")):
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
    """A time that files know under several names."""
    said = [(name, at) for name in names if (at := places.moment((*path, name))) is not None]
    for name, at in said[1:]:
        if at != said[0][1]:
            places.add_problem((*path, name), f"it is another time than {said[0][0]!r}; leave one of them out")
    return said[0][1] if said else None


# What is written.


def with_verdict(file: MetricsFile, verdict: UsageVerdict) -> bytes:
    """The file with what may be claimed; everything else stays as it is."""
    whole = dict(file.document.value)
    part = dict(whole.get(RECONCILIATION) or {})
    whole[RECONCILIATION] = _status_fields(verdict) | {
        key: one for key, one in part.items() if key not in (STATUS, MESSAGE)
    }
    return _encode(whole)


def manifest_with(file: ManifestFile, verdicts: Mapping[str, UsageVerdict]) -> bytes:
    """The manifest with what may be claimed of each run; raises DocumentError for runs that it does not name."""
    absent = verdicts.keys() - {one.run_id for one in file.runs}
    if absent:
        said = [Problem(RUNS, f"does not name run {short(repr(one))}; add it") for one in sorted(absent)]
        raise DocumentError(file.document.name, said)
    whole = dict(file.document.value)
    whole[RUNS] = [
        one | _manifest_fields(verdicts[known.run_id]) if known.run_id in verdicts else one
        for known, one in zip(file.runs, whole[RUNS], strict=True)
    ]
    return _encode(whole)


def write_metrics(record: UsageRecord, attempts: Iterable[Observation]) -> bytes:
    """A recorded run as a `metrics.json` that is read back as hearsay, and without any other loss."""
    run, verdict = record.run, record.verdict
    looks = sorted(attempts, key=lambda one: (one.at, one.id))
    split = next((one.steps for one in reversed(looks) if one.steps is not None), None)
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
            ATTEMPTS: [_observation_fields(one, verdict) for one in looks],
            **({ACKNOWLEDGED: record.acknowledged} if record.acknowledged else {}),
        },
        METERED: run,
    }
    return _encode({key: one for key, one in whole.items() if one is not None})


def write_manifest(records: Iterable[UsageRecord]) -> bytes:
    """A manifest of recorded runs."""
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
def _observation_fields(look: Observation, verdict: UsageVerdict) -> dict[str, Any]:
    counted = look.steps_with_tokens is not None
    beyond = ObservationExtras(
        look.unattributed,
        look.models,
        look.cohort,
        look.assurance,
        look.watermark,
        look.detail,
        look.digest,
        counted,
        look.by_model,
    )
    written: dict[str, Any] = {"id": look.id, "timestamp": look.at, **_token_fields(look.total, RUN_COUNTS)}
    if look.error is None or counted:
        written["steps_with_tokens"] = look.steps_with_tokens if counted else verdict.steps_with_tokens
        written["total_steps"] = look.total_steps if counted else verdict.total_steps
    if look.steps is not None:
        written["steps"] = [{"step": name, **_token_fields(one, STEP_COUNTS)} for name, one in look.steps.items()]
    if look.error is not None:
        written["error"] = look.error
    return written | {EXTRAS: beyond}


def _status_fields(verdict: UsageVerdict) -> dict[str, Any]:
    return {STATUS: verdict.status, MESSAGE: verdict.message}


def _manifest_fields(verdict: UsageVerdict) -> dict[str, Any]:
    """What a manifest repeats of a run; a count that is not known overwrites none."""
    counts = (
        {}
        if verdict.tokens is None
        else _token_fields(verdict.tokens, {name: RUN_COUNTS[name] for name in ("input", "output")})
    )
    return {STATUS: verdict.status, **counts}


def _token_fields(tokens: Tokens | None, keys: Mapping[str, str]) -> dict[str, int | None]:
    """Counts under their names in files; input and output always, the others where they are known."""
    said = {} if tokens is None else tokens.to_dict()
    return {
        key: said.get(name) for name, key in keys.items() if name in ("input", "output") or said.get(name) is not None
    }


def _encode(value: Any) -> bytes:
    return msgspec.json.format(_WRITER.encode(value), indent=2) + b"\n"
