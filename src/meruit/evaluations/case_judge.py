"""One case judged, and judged cases as a segment: all that needs no database, so that any process can do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, Self

import msgspec

from meruit.errors import InvalidCase
from meruit.evaluations.evaluation import MAX_NAME, MAX_TAGS, STATUS_LETTERS, Case, CaseSummary
from meruit.evaluations.segment import SALTS, CaseContent, entries_of, pack
from meruit.judges.scope import VERIFICATION, JudgingScope, judging_for
from meruit.log.commitment import SALT_BYTES
from meruit.log.segment import MAX_CASES, segment_root
from meruit.model.canonical import payload_bytes
from meruit.model.evidence import Fault
from meruit.model.verdict import Bounds, Reason, ReasonCode, Verdict, VerificationResult
from meruit.model.work import Work
from meruit.store.store import ClockAndEntropy
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine
from meruit.verify.measure import Digests

SEGMENT_BYTES = 8 * 1024 * 1024
"""A segment is recorded once its cases are this large together, even if there are fewer than 512."""


class JudgedCase(NamedTuple):
    """A case with its verdict, not yet recorded."""

    case: Case
    summary: CaseSummary
    content: CaseContent
    result: VerificationResult
    size: int


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
        self._engine = engine
        self._tenant = tenant
        self._surroundings = surroundings

    def judge(
        self,
        criteria: CompiledCriteria,
        case: Case,
        evaluation_id: str | None = None,
        limits: JudgeLimits = JudgeLimits(),  # noqa: B008 - frozen
    ) -> JudgedCase:
        """Judge one case; one without an output is inconclusive. Judges' tokens count for the evaluation."""
        check_case(case)
        outcome_id = self._surroundings.new_id("out")
        written = WrittenWork.write(case)
        if case.output is None or case.error is not None:
            result = _result_without_output(case, outcome_id, criteria, self._surroundings.clock(), written)
            return self._to_judged(case, outcome_id, result, written)
        work = Work(output=case.output, input=case.input, metadata=case.metadata)
        engine, digests = self._engine, written.digests()
        if criteria.asked:
            scope = JudgingScope(self._tenant, evaluation_id or VERIFICATION, limits.max_tokens)
            with judging_for(scope):
                result = engine.verify_digested(outcome_id, criteria, work, digests)
        else:
            result = engine.verify_digested(outcome_id, criteria, work, digests)
        return self._to_judged(case, outcome_id, result, written)

    def adopt(self, case: Case, result: VerificationResult) -> JudgedCase:
        """A case that another process judged by the same criteria."""
        check_case(case)
        outcome_id = self._surroundings.new_id("out")
        result = msgspec.structs.replace(result, contract_id=outcome_id)
        return self._to_judged(case, outcome_id, result, WrittenWork.write(case))

    def _to_judged(self, case: Case, outcome_id: str, result: VerificationResult, written: "WrittenWork") -> JudgedCase:
        result_json = result.to_json()
        content = CaseContent(
            case=case.id,
            repeat=case.repeat,
            outcome=outcome_id,
            version=1,
            input=msgspec.Raw(written.input),
            output=msgspec.Raw(written.output),
            metadata=msgspec.Raw(written.metadata),
            result=msgspec.Raw(result_json),
            salts=self._surroundings.entropy(SALTS * SALT_BYTES).hex(),
            verdict=result.verdict.value,
            success=result.success,
            score=result.exact,
            bonus_micros=result.bonus_micros,
            penalty_micros=result.penalty_micros,
            error_message=case.error_message,
        )
        latency = case.metadata.get("duration_ms")
        results = result.criterion_results
        summary = CaseSummary(
            case_id=case.id,
            repeat=case.repeat,
            seq=0,
            outcome_id=outcome_id,
            version=1,
            verdict=result.verdict,
            success=result.success,
            score=result.score,
            statuses="".join([STATUS_LETTERS[one.status] for one in results]),
            group=case.group,
            tags=case.tags,
            claimed=case.claimed,
            error=case.error,
            # Without results of criteria there was no output to judge: nothing that the agent can be blamed for.
            faults=_faults(frozenset([one.fault for one in results])) if results else (Fault.SYSTEM,),
            latency_ms=float(latency) if isinstance(latency, int | float) and not isinstance(latency, bool) else None,
            cost_micros=case.cost_micros,
        )
        return JudgedCase(case, summary, content, result, written.size + len(result_json))


class FinishedSegment(NamedTuple):
    """Judged cases as they are recorded together."""

    summaries: tuple[CaseSummary, ...]
    root: bytes
    """Of the tree over the cases."""
    blob: bytes


def finish_segment(judged: Sequence[JudgedCase]) -> FinishedSegment:
    """The segment of up to 512 judged cases."""
    return pack_segment([one.summary for one in judged], [one.content for one in judged])


def pack_segment(summaries: Sequence[CaseSummary], contents: Sequence[CaseContent]) -> FinishedSegment:
    """The same from what is kept of each case."""
    return FinishedSegment(tuple(summaries), segment_root(entries_of(contents)), pack(contents))


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


class WrittenWork(NamedTuple):
    """The work of a case as it is kept: written once, for its digests and for its segment."""

    input: bytes
    output: bytes
    metadata: bytes

    @classmethod
    def write(cls, case: Case) -> Self:
        """Write the work; raises InvalidCase for what is not JSON."""
        return cls(
            *(_payload(case, "input", case.input), _payload(case, "output", case.output or {})),
            _payload(case, "metadata", case.metadata),
        )

    def digests(self) -> Digests:
        """The digests of the parts, as the engine takes them."""
        return Digests(*[_NO_WORK if part == b"{}" else sha256(part).hexdigest() for part in self])

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
    case: Case, outcome_id: str, criteria: CompiledCriteria, now: datetime, written: WrittenWork
) -> VerificationResult:
    """The inconclusive result of a case that has no output."""
    digests = written.digests()
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
