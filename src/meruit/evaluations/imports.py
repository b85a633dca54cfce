"""Results of other tools as evaluations: recognise the file, survey it, then record its cases with their claims.

Without criteria, an evaluation is judged by what its origin claims, and every criterion says so: its metric is
`claimed_success`, whose provenance is *claimed*. With criteria, our engine judges the same work, and the claim stands
beside its verdict.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from meruit.errors import ImportDamaged, ImportFormatUnknown, ImportWithoutClaims, NotFound
from meruit.evaluations.evaluation import MAX_TAGS, Case, EvaluationRecord, EvaluationStatus
from meruit.evaluations.importers.support.pieces import Claim, ImportedCase, ImportNote, Piece, RunFacts, name_of
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.run import Report, check_same_reading, run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.verdict import Verdict
from meruit.model.work import ORIGIN
from meruit.registry import Importer, importers
from meruit.verify.catalogue import CompiledCriteria

FULL_MARKS = 1.0
"""The claimed score from which a case counts as passed, where its origin has a number and no verdict."""
MAX_CHECKS = 50
"""Named verdicts of an origin that become criteria."""
PARTIAL_TAG = "partial"


@dataclass(frozen=True, slots=True)
class ImportSurvey:
    """What a first reading finds, before anything is recorded."""

    format: str
    digest: str
    cases: int = 0
    claimed: int = 0
    """Cases whose origin has a verdict."""
    errors: int = 0
    between: int = 0
    """Cases with a claimed score between 0 and full marks, and no verdict."""
    checks: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    planned: int | None = None
    notes: tuple[str, ...] = ()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class ImportResult:
    """An evaluation that was imported, now or before."""

    evaluation: EvaluationRecord
    survey: ImportSurvey
    is_new: bool
    """False where the same file was imported under this name before; nothing was made twice."""


def recognise(source: ImportSource, format_name: str | None = None) -> Importer:
    """The importer of that name, or else the one that knows the content; raises ImportFormatUnknown, naming all."""
    if format_name is not None:
        return importers.get(format_name)
    # Plain rows fit many files, so they come last.
    for importer in sorted(importers, key=lambda one: one.last):
        if importer.recognise(source):
            return importer
    if source.head.startswith(b"evalId:"):
        raise ImportFormatUnknown(
            f"{str(source.path)!r} is YAML of promptfoo, which is not read; write JSON instead, with "
            "`promptfoo export eval latest -o results.json`"
        )
    raise ImportFormatUnknown(
        f"{str(source.path)!r} has no format that is known; there are {', '.join(importers.names())}: "
        "name one with --format"
    )


def survey(source: ImportSource, importer: Importer, pass_score: float = FULL_MARKS) -> ImportSurvey:
    """Read the whole source once: what it holds, and whether it is whole; raises ImportDamaged."""
    found = ImportSurvey(importer.name, source.digest())
    checks: dict[str, None] = {}
    notes: list[str] = []
    cases = claimed = errors = between = 0
    pieces: Iterable[Piece] = importer.read(source)
    for piece in pieces:
        match piece:
            case RunFacts():
                found = replace(found, tags={**found.tags, **piece.tags}, planned=piece.planned or found.planned)
            case ImportNote():
                notes.append(piece.message)
                found = replace(found, is_partial=found.is_partial or piece.partial)
            case ImportedCase():
                cases += 1
                errors += piece.case.error is not None
                claimed += piece.case.error is None and _verdict(piece.claim, pass_score) is not None
                between += piece.claim.success is None and 0 < (piece.claim.score or 0) < pass_score
                checks.update(dict.fromkeys(piece.claim.checks))
    if found.planned is not None and cases < found.planned:
        notes.append(f"{cases} of {found.planned} cases are in the file")
    if between:
        notes.append(
            f"{between} cases have a score between 0 and {pass_score:g} and no verdict: they count as failed; "
            "--pass-score sets another limit"
        )
    if not cases:
        raise ImportDamaged(f"{str(source.path)!r} holds no cases" + "".join(f"; {note}" for note in notes))
    return replace(
        found,
        cases=cases,
        claimed=claimed,
        errors=errors,
        between=between,
        checks=tuple(checks),
        notes=tuple(notes),
    )


def criteria_of_claims(found: ImportSurvey) -> dict[str, Any]:
    """Criteria over what the origin claims: its verdict decides, its named verdicts are shown."""
    whole = {"metric": "claimed_success", "metric_type": "boolean", "comparison": "eq", "threshold": True}
    named = [
        {**whole, "id": name_of(f"claimed {name}"), "params": {"name": name}, "required": False, "weight": 0}
        for name in found.checks[:MAX_CHECKS]
    ]
    return {"criteria": [{**whole, "id": "claimed"}, *named]}


def import_source(  # noqa: PLR0913 - one a choice
    evaluator: Evaluator,
    source: ImportSource,
    importer: Importer,
    *,
    name: str,
    criteria: CompiledCriteria | None = None,
    tags: Mapping[str, str] | None = None,
    pass_score: float = FULL_MARKS,
    report: Report | None = None,
) -> ImportResult:
    """Record what a file or folder holds; the same one under the same name is recorded once."""
    found = survey(source, importer, pass_score)
    if criteria is None and not found.claimed and found.errors < found.cases:
        raise ImportWithoutClaims(
            f"{str(source.path)!r} ({found.format}) claims no verdicts; give --criteria to judge its cases, "
            "or --map claimed=COLUMN"
        )
    compiled = evaluator.compile(criteria_of_claims(found)) if criteria is None else criteria
    marks = {**found.tags, **({PARTIAL_TAG: "yes"} if found.is_partial else {}), "format": found.format}
    all_tags = dict([*{**marks, **(tags or {})}.items()][:MAX_TAGS])
    known = _find_existing(evaluator, name)
    if known is not None and known.status is EvaluationStatus.FINISHED:
        same = (found.digest, compiled.digest, all_tags)
        if (known.dataset_digest, known.criteria_digest, dict(known.tags)) == same:
            return ImportResult(known, found, is_new=False)
    started = evaluator.start(
        name, compiled, tags=all_tags, dataset_digest=found.digest, planned=found.cases, replaces_empty=True
    )
    if started.cases:
        check_same_reading(evaluator.reader, started, _cases(source, importer, pass_score), has_target=False)
    done = run_cases(evaluator, started, compiled, _cases(source, importer, pass_score), report=report)
    return ImportResult(done, found, is_new=True)


def _find_existing(evaluator: Evaluator, name: str) -> EvaluationRecord | None:
    try:
        return evaluator.find(name)
    except NotFound:
        return None


def _cases(source: ImportSource, importer: Importer, pass_score: float) -> Iterator[Case]:
    """The cases with their claims; one whose id came before is another try of it."""
    tries: dict[int, int] = {}
    for piece in importer.read(source):
        if not isinstance(piece, ImportedCase):
            continue
        case = with_claim(piece, importer.name, pass_score)
        # Hashes, because a million ids would take three times as much memory.
        key = hash((case.id, case.repeat))
        if key in tries:
            key = hash(case.id)
            case = msgspec.structs.replace(case, repeat=max(tries.get(key, 0), case.repeat) + 1)
            tries[hash((case.id, case.repeat))] = 0
        else:
            tries[key] = 0
        tries[hash(case.id)] = max(tries.get(hash(case.id), 0), case.repeat)
        yield case


def with_claim(piece: ImportedCase, format_name: str, pass_score: float = FULL_MARKS) -> Case:
    """The case with what its origin claims: in its row, and whole in its metadata."""
    claim = piece.claim
    success = None if piece.case.error is not None else _verdict(claim, pass_score)
    origin = {
        "format": format_name,
        "success": success,
        "score": claim.score,
        "checks": dict(claim.checks),
        "scores": dict(claim.scores),
        "reasons": dict(claim.reasons),
    }
    fields = {key: value for key, value in origin.items() if value not in (None, {})}
    claimed = None if success is None else (Verdict.PASS if success else Verdict.FAIL).value
    # A case without an output has nothing to judge but the claim itself.
    output = {} if piece.case.output is None and piece.case.error is None else piece.case.output
    metadata = {**piece.case.metadata, ORIGIN: fields}
    return msgspec.structs.replace(piece.case, claimed=claimed, metadata=metadata, output=output)


def _verdict(claim: Claim, pass_score: float) -> bool | None:
    """The origin's verdict, or else what its number between 0 and 1 comes to; outside of that it means nothing."""
    if claim.success is not None:
        return claim.success
    return None if claim.score is None or not 0 <= claim.score <= 1 else claim.score >= pass_score
