"""One case judged, and judged cases as a segment: all that needs no database, so that any process can do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self

import msgspec

from meruit.errors import InvalidCase
from meruit.evaluations.evaluation import MAX_NAME, MAX_TAGS, STATUS_LETTERS, Case, CaseSummary
from meruit.evaluations.segment import SALTS, CaseContent, PackedCase, entries_of, pack, pack_lines, write_line
from meruit.judge.bulk import Conclusion
from meruit.judge.result_template import ResultTemplate, encode_time
from meruit.judges.scope import VERIFICATION, JudgingScope, judging_for
from meruit.log.commitment import SALT_BYTES, commitment, commitment_to
from meruit.log.segment import MAX_CASES, segment_root, write_case
from meruit.model.canonical import payload_bytes
from meruit.model.evidence import Fault
from meruit.model.record import Record
from meruit.model.time import to_micros
from meruit.model.verdict import Bounds, Reason, ReasonCode, Verdict, VerificationResult
from meruit.model.work import Work
from meruit.store.store import ClockAndEntropy
from meruit.store.transaction import CHANCE_BYTES, id_from
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import BulkConclusions, VerificationEngine
from meruit.verify.measure import Digests

SEGMENT_BYTES = 8 * 1024 * 1024
"""A segment is recorded once its cases are this large together, even if there are fewer than 512."""


class JudgedCase(Record, frozen=True):
    """A case with its verdict, not yet recorded."""

    summary: CaseSummary
    packed: PackedCase
    entry: bytes
    """What the log's tree over the segment says of it."""
    result_json: bytes
    size: int
    """Of work and result, in bytes."""

    @property
    def result(self) -> VerificationResult:
        """The whole result."""
        return VerificationResult.from_json(self.result_json)


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """How judges are asked about the cases of an evaluation."""

    concurrency: int = 8
    """Cases at the same time."""
    max_tokens: int | None = None
    """Tokens of judges for the whole evaluation, where that is stricter than the settings."""


class CaseJudge:
    """Judges cases for one tenant."""

    def __init__(self, engine: VerificationEngine, tenant: str, surroundings: ClockAndEntropy) -> None:
        self.engine = engine
        self.surroundings = surroundings
        self._tenant = tenant
        self._conclusions: tuple[CompiledCriteria, BulkConclusions[CaseVerdict] | None] | None = None

    def judge(
        self,
        criteria: CompiledCriteria,
        case: Case,
        evaluation_id: str | None = None,
        limits: JudgeLimits = JudgeLimits(),  # noqa: B008 - frozen
    ) -> JudgedCase:
        """Judge one case; one without an output is inconclusive. Judges' tokens count for the evaluation."""
        check_case(case)
        outcome_id, salts = self._draw()
        written = WrittenWork.write(case)
        digests = written.digests()
        if case.output is None or case.error is not None:
            result = _result_without_output(case, outcome_id, criteria, self.surroundings.clock(), digests)
            return _to_judged(case, outcome_id, salts, written, digests, result)
        work = Work(output=case.output, input=case.input, metadata=case.metadata)
        if criteria.asked:
            scope = JudgingScope(
                tenant=self._tenant, account=evaluation_id or VERIFICATION, max_tokens=limits.max_tokens
            )
            with judging_for(scope):
                result = self.engine.verify_digested(outcome_id, criteria, work, digests)
            return _to_judged(case, outcome_id, salts, written, digests, result)
        conclusion = self._conclude(criteria, work, digests)
        if conclusion is None:
            result = self.engine.verify_digested(outcome_id, criteria, work, digests)
            return _to_judged(case, outcome_id, salts, written, digests, result)
        return _to_judged_alike(case, outcome_id, salts, written, digests, conclusion, self.engine.now())

    def adopt(self, case: Case, result: VerificationResult) -> JudgedCase:
        """A case that another process judged by the same criteria."""
        check_case(case)
        outcome_id, salts = self._draw()
        result = msgspec.structs.replace(result, contract_id=outcome_id)
        written = WrittenWork.write(case)
        return _to_judged(case, outcome_id, salts, written, written.digests(), result)

    def _draw(self) -> tuple[str, bytes]:
        """A new id and salts, drawn together."""
        around = self.surroundings
        drawn = around.entropy(CHANCE_BYTES + _SALTS_BYTES)
        return id_from("out", to_micros(around.clock()), drawn[:CHANCE_BYTES]), drawn[CHANCE_BYTES:]

    def _conclude(self, criteria: CompiledCriteria, work: Work, digests: Digests) -> "Conclusion[CaseVerdict] | None":
        """What follows from the evidence of the work, shared by all cases with equal evidence."""
        known = self._conclusions
        if known is None or known[0] is not criteria:
            known = self._conclusions = criteria, self.engine.conclusions(criteria, CaseVerdict.of)
        return None if known[1] is None else known[1].of(work, digests)


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """What a result says of its case in lists and in the log."""

    verdict: Verdict
    success: bool
    score: float
    exact: str
    bonus_micros: int
    penalty_micros: int
    statuses: str
    faults: tuple[Fault, ...]
    verdict_text: str
    success_json: bytes

    @classmethod
    def of(cls, result: VerificationResult) -> Self:
        """Of any result."""
        results = result.criterion_results
        return cls(
            verdict=result.verdict,
            success=result.success,
            score=result.score,
            exact=result.exact,
            bonus_micros=result.bonus_micros,
            penalty_micros=result.penalty_micros,
            statuses="".join([STATUS_LETTERS[one.status] for one in results]),
            # Without results of criteria there was no output to judge: nothing that the agent can be blamed for.
            faults=_faults(frozenset([one.fault for one in results])) if results else (Fault.SYSTEM,),
            verdict_text=result.verdict.value,
            success_json=b"true" if result.success else b"false",
        )


def _to_judged(
    case: Case, outcome_id: str, salts: bytes, written: "WrittenWork", digests: Digests, result: VerificationResult
) -> JudgedCase:
    """A judged case from its own result."""
    result_json = result.to_json()
    return _keep(case, outcome_id, salts, written, digests, CaseVerdict.of(result), None, result_json, result_json)


def _to_judged_alike(
    case: Case,
    outcome_id: str,
    salts: bytes,
    written: "WrittenWork",
    digests: Digests,
    conclusion: Conclusion[CaseVerdict],
    now: datetime,
) -> JudgedCase:
    """A judged case from a conclusion that it shares with others."""
    template, at = conclusion.template, encode_time(now)
    result_json = template.fill_in(f'"{outcome_id}"'.encode(), at, *[f'"{digest}"'.encode() for digest in digests])
    return _keep(case, outcome_id, salts, written, digests, conclusion.shared, template, at, result_json)


def _keep(  # noqa: PLR0913 - all that is kept of a case
    case: Case,
    outcome_id: str,
    salts: bytes,
    written: "WrittenWork",
    digests: Digests,
    verdict: CaseVerdict,
    template: ResultTemplate | None,
    in_line: bytes,
    result_json: bytes,
) -> JudgedCase:
    case_json = _to_json(case.id)
    given, made, facts = digests
    own, bonus, penalty = verdict.exact, verdict.bonus_micros, verdict.penalty_micros
    line = write_line(
        case_json,
        case.repeat,
        outcome_id,
        1,
        (written.input, written.output, written.metadata),
        in_line,
        verdict.verdict_text,
        verdict.success_json,
        own,
        bonus,
        penalty,
        _to_json(case.error_message) if case.error_message else b'""',
    )
    commitments = (
        commitment_to(salts[_OF_INPUT], given or ""),
        commitment_to(salts[_OF_OUTPUT], made or ""),
        commitment_to(salts[_OF_METADATA], facts or ""),
        commitment(salts[_OF_RESULT], result_json),
    )
    entry = write_case(
        case_json,
        case.repeat,
        outcome_id,
        1,
        commitments,
        verdict.verdict_text,
        verdict.success_json,
        own,
        bonus,
        penalty,
    )
    summary = CaseSummary(
        case_id=case.id,
        repeat=case.repeat,
        seq=0,
        outcome_id=outcome_id,
        version=1,
        verdict=verdict.verdict,
        success=verdict.success,
        score=verdict.score,
        statuses=verdict.statuses,
        group=case.group,
        tags=case.tags,
        claimed=case.claimed,
        error=case.error,
        faults=verdict.faults,
        latency_ms=latency_of(case.metadata),
        cost_micros=case.cost_micros,
    )
    return JudgedCase(
        summary=summary,
        packed=PackedCase(template, line, salts),
        entry=entry,
        result_json=result_json,
        size=written.size + len(result_json),
    )


def latency_of(metadata: Mapping[str, Any]) -> float | None:
    """How long the output took, where its metadata say so."""
    latency = metadata.get("duration_ms") if metadata else None
    return float(latency) if isinstance(latency, int | float) and not isinstance(latency, bool) else None


_to_json = msgspec.json.Encoder().encode
_SALTS_BYTES = SALTS * SALT_BYTES
_OF_INPUT, _OF_OUTPUT, _OF_METADATA, _OF_RESULT = (
    slice(place * SALT_BYTES, (place + 1) * SALT_BYTES) for place in range(SALTS)
)


class FinishedSegment(msgspec.Struct, frozen=True):
    """Judged cases as they are recorded together."""

    summaries: tuple[CaseSummary, ...]
    root: bytes
    """Of the tree over the cases."""
    blob: bytes


def finish_segment(judged: Sequence[JudgedCase]) -> FinishedSegment:
    """The segment of up to 512 judged cases."""
    root = segment_root([one.entry for one in judged])
    return FinishedSegment(
        summaries=tuple([one.summary for one in judged]), root=root, blob=pack_lines([one.packed for one in judged])
    )


def pack_segment(summaries: Sequence[CaseSummary], contents: Sequence[CaseContent]) -> FinishedSegment:
    """The same from what is kept of each case."""
    return FinishedSegment(summaries=tuple(summaries), root=segment_root(entries_of(contents)), blob=pack(contents))


class SegmentBuffer:
    """Gathers judged cases until a segment is full."""

    def __init__(self) -> None:
        self._cases: list[JudgedCase] = []
        self._size = 0

    def add(self, judged: JudgedCase) -> list[JudgedCase]:
        """Add a case; a full segment where it fills one, else nothing."""
        self._cases.append(judged)
        self._size += judged.size
        return self.take() if len(self._cases) >= MAX_CASES or self._size >= SEGMENT_BYTES else []

    def take(self) -> list[JudgedCase]:
        """What has gathered so far."""
        taken, self._cases, self._size = self._cases, [], 0
        return taken


def check_name(name: str, what: str) -> None:
    """Refuse a name that is empty, too long, or has control characters."""
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidCase(f"the name of {what} has 1 to {MAX_NAME} printable characters, not {name[:80]!r}")


def check_tags(tags: Mapping[str, str], what: str) -> None:
    """Refuse too many tags, and names or values that cannot be shown."""
    if not tags:
        return
    if len(tags) > MAX_TAGS:
        raise InvalidCase(f"{what} has {len(tags)} tags; the limit is {MAX_TAGS}")
    for name, value in tags.items():
        check_name(name, f"a tag of {what}")
        check_name(value, f"the tag {name!r} of {what}")


def check_case(case: Case) -> None:
    """Refuse a case whose id, group or tags cannot be kept."""
    check_name(case.id, "a case")
    check_tags(case.tags, f"the case {case.id!r}")
    if case.group is not None:
        check_name(case.group, f"the group of case {case.id!r}")
    if case.repeat < 0:
        raise InvalidCase(f"the case {case.id!r} has the repeat {case.repeat}; repeats are counted from 0")


@lru_cache(maxsize=64)
def _faults(found: frozenset[Fault]) -> tuple[Fault, ...]:
    """Who is responsible for what was not met or not measured, in alphabetical order."""
    return tuple(sorted(found - {Fault.NONE}))


class WrittenWork(msgspec.Struct, frozen=True):
    """The work of a case as it is kept: written once, for its digests and for its segment."""

    input: bytes
    output: bytes
    metadata: bytes

    @classmethod
    def write(cls, case: Case) -> Self:
        """Write the work; raises InvalidCase for what is not JSON."""
        return cls(
            _payload(case, "input", case.input),
            _payload(case, "output", case.output or {}),
            _payload(case, "metadata", case.metadata),
        )

    def digests(self) -> Digests:
        """The digests of the parts, as the engine takes them."""
        return Digests(
            *[
                _NO_WORK if part == b"{}" else sha256(part).hexdigest()
                for part in (self.input, self.output, self.metadata)
            ]
        )

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.input) + len(self.output) + len(self.metadata)


_NO_WORK = sha256(b"{}").hexdigest()


def _payload(case: Case, name: str, part: Mapping[str, Any]) -> bytes:
    if not part:
        return b"{}"
    written = payload_bytes(part)
    if written is None:
        raise InvalidCase(f"the {name} of case {case.id!r} is not plain JSON (NaN, a date, or nested too deeply)")
    return written


def _result_without_output(
    case: Case, outcome_id: str, criteria: CompiledCriteria, now: datetime, digests: Digests
) -> VerificationResult:
    """The inconclusive result of a case that has no output."""
    why = case.error_message or "the case has no output to judge"
    return VerificationResult(
        contract_id=outcome_id,
        success=False,
        metrics={},
        criterion_results=[],
        weighted_score=None,
        bonus=0.0,
        penalty=0.0,
        governance_flags=[],
        verified_at=now,
        verdict=Verdict.INCONCLUSIVE,
        score=0.0,
        exact="0",
        axes={},
        bounds=Bounds(0.0, 1.0),
        coverage=0.0,
        reasons=[Reason(ReasonCode.NO_OUTPUT, why)],
        criteria_digest=criteria.digest,
        input_digest=digests.input,
        output_digest=digests.output,
        metadata_digest=digests.metadata,
    )
