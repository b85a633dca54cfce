"""Stored outputs judged into finished segments: the quick way, which writes what `CaseJudge` would write.

A case that is not plain (no output, not strict JSON, evidence that has to be judged for itself) is left to `CaseJudge`.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Self

import msgspec

from meruit.evaluations.case_judge import (
    SEGMENT_BYTES,
    CaseJudge,
    CaseVerdict,
    FinishedSegment,
    check_case,
    latency_of,
)
from meruit.evaluations.evaluation import MAX_NAME, Case, CaseSummary
from meruit.evaluations.segment import SALTS, PackedCase, pack_lines, write_line
from meruit.evaluations.summary import OPEN
from meruit.judge.result_template import encode_time
from meruit.log.commitment import PURPOSE, SALT_BYTES
from meruit.log.merkle import LEAF, Frontier, leaf_hash
from meruit.log.segment import MAX_CASES, write_case
from meruit.model.canonical import strict_bytes
from meruit.model.time import to_micros
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import Work, written_output
from meruit.store.transaction import CHANCE_BYTES, id_prefix
from meruit.verify.catalogue import CompiledCriteria

CLOCK_CASES = 16
"""Cases that are judged before the clock is read again."""
_DRAWN = CHANCE_BYTES + SALTS * SALT_BYTES
"""Random bytes of each case."""
_AT_INPUT, _AT_OUTPUT, _AT_METADATA, _AT_RESULT = (CHANCE_BYTES + place * SALT_BYTES for place in range(SALTS))
_NOTHING = sha256(b"{}").digest()
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _WrittenVerdict:
    """What a conclusion says of a case in lists and in the log, as far as that can be written before the case."""

    verdict: CaseVerdict
    entry: tuple[str, ...]
    """What is hashed into the log's tree: the pieces before and after what differs."""
    line_end: bytes
    """Of its line in the segment, after the result."""

    @classmethod
    def of(cls, result: VerificationResult) -> Self:
        """Of any result."""
        found = CaseVerdict.of(result)
        said = found.verdict_text, found.success_json, found.exact, found.bonus_micros, found.penalty_micros
        # Cut from what is written for a case of NUL, which JSON never holds.
        entry = write_case(b"\0", 0, "\0", 1, ("\0", "\0", "\0", "\0"), *said).decode()
        first, *before, after, end = entry.split("\0")
        middle, _, to_result = after.rpartition("0")
        line = write_line(b"", 0, "", 1, (b"", b"", b""), b"\0", *said, b'""')
        return cls(found, (f"{LEAF.decode()}{first}", *before, middle, to_result, end), line.partition(b"\0")[2])


class BulkJudge:
    """Judges cases by one set of criteria, and gathers them until a segment is full."""

    def __init__(self, judge: CaseJudge, criteria: CompiledCriteria) -> None:
        self._judge, self._criteria = judge, criteria
        self._engine, self._surroundings = judge.engine, judge.surroundings
        self._conclusions = None if criteria.asked else judge.engine.conclusions(criteria, _WrittenVerdict.of)
        self.judged = self.passed = self.open = self.spent_micros = 0
        self._prefix, self._at = "", b""
        self._begin()

    def _begin(self) -> None:
        self._summaries: list[CaseSummary] = []
        self._packed: list[PackedCase] = []
        self._leaves: list[bytes] = []
        self._size = 0
        self._drawn = b""

    def take(self) -> FinishedSegment | None:
        """The segment of what has gathered; None where that is nothing."""
        if not self._summaries:
            return None
        root = Frontier(0, ()).extend(self._leaves).root()
        made = FinishedSegment(summaries=tuple(self._summaries), root=root, blob=pack_lines(self._packed))
        self._begin()
        return made

    def add(self, case: Case) -> FinishedSegment | None:
        """Judge a case; the segment that it fills, where it fills one. Raises InvalidCase."""
        if not self._add_plain(case):
            judged = self._judge.judge(self._criteria, case)
            self._summaries.append(judged.summary)
            self._packed.append(judged.packed)
            self._leaves.append(leaf_hash(judged.entry))
            self._size += judged.size
            self._count(judged.summary.success, judged.summary.verdict, judged.summary.cost_micros)
        return self.take() if len(self._summaries) >= MAX_CASES or self._size >= SEGMENT_BYTES else None

    # In one piece: this is all that most cases go through, and a call costs as much as most of what it does.
    def _add_plain(self, case: Case) -> bool:
        """Judge a plain case; false, and nothing done, where it is not one."""
        name, given, made, facts = case.id, case.input, case.output, case.metadata
        if made is None or case.error is not None or self._conclusions is None:
            return False
        if case.tags or case.group is not None or case.repeat or not name.isalnum() or len(name) > MAX_NAME:
            check_case(case)
        try:
            output = strict_bytes(made)
            input_ = strict_bytes(given) if given else b"{}"
            metadata = strict_bytes(facts) if facts else b"{}"
        except (TypeError, RecursionError):
            return False
        if output is None or input_ is None or metadata is None:
            return False
        of_output = sha256(output).digest()
        of_input, of_metadata = sha256(input_).digest() if given else _NOTHING, _NOTHING
        if facts:
            of_metadata = sha256(metadata).digest()
        digests = of_input.hex(), of_output.hex(), of_metadata.hex()
        found = self._conclusions.without_numbers(Work(made, given, facts, {written_output: output}), digests)
        if found is None:
            return False
        conclusion, numbers = found
        drawn, shared = self._draw(), conclusion.shared
        outcome, at, name_json, repeat = self._prefix + drawn[:CHANCE_BYTES].hex(), self._at, _encode(name), case.repeat
        numbers_json = _encode(numbers)
        result = conclusion.write(outcome, at, numbers_json[1:-1].split(b","), digests)
        known = b"[%b,%b" % (at, numbers_json[1:]) if numbers else at
        # As `write_line` and `write_case` write them.
        work = input_, output, metadata
        line = b'%b,%d,"%b",1,%b,%b%b' % (name_json, repeat, outcome.encode(), b",".join(work), known, shared.line_end)
        to_case, to_input, to_metadata, to_outcome, to_output, to_repeat, to_result, end = shared.entry
        entry = (
            f"{to_case}{name_json.decode()}{to_input}"
            f"{sha256(PURPOSE + drawn[_AT_INPUT:_AT_OUTPUT] + of_input).hexdigest()}{to_metadata}"
            f"{sha256(PURPOSE + drawn[_AT_METADATA:_AT_RESULT] + of_metadata).hexdigest()}{to_outcome}"
            f"{outcome}{to_output}"
            f"{sha256(PURPOSE + drawn[_AT_OUTPUT:_AT_METADATA] + of_output).hexdigest()}{to_repeat}"
            f"{repeat}{to_result}"
            f"{sha256(PURPOSE + drawn[_AT_RESULT:] + sha256(result).digest()).hexdigest()}{end}"
        )
        verdict = shared.verdict
        self._summaries.append(
            CaseSummary(
                name,
                repeat,
                0,
                outcome,
                1,
                verdict.verdict,
                verdict.success,
                verdict.score,
                verdict.statuses,
                case.group,
                case.tags,
                case.claimed,
                None,
                verdict.faults,
                latency_of(facts) if facts else None,
                case.cost_micros,
            )
        )
        self._packed.append(PackedCase(conclusion.template, line, drawn[CHANCE_BYTES:]))
        self._leaves.append(sha256(entry.encode()).digest())
        self._size += len(line) + len(result)
        self._count(verdict.success, verdict.verdict, case.cost_micros)
        return True

    def _count(self, success: bool, verdict: Verdict, cost_micros: int | None) -> None:  # noqa: FBT001 - for each case
        self.judged += 1
        if success:
            self.passed += 1
        elif verdict in OPEN:
            self.open += 1
        if cost_micros is not None:
            self.spent_micros += cost_micros

    def _draw(self) -> bytes:
        """Random bytes of a case: fetched for a whole segment at once, as the time is for a few cases."""
        place = len(self._summaries)
        if not self._drawn:
            self._drawn = self._surroundings.entropy(_DRAWN * MAX_CASES)
        if place % CLOCK_CASES == 0 or not self._prefix:
            self._prefix = id_prefix("out", to_micros(self._surroundings.clock()))
            self._at = encode_time(self._engine.now())
        return self._drawn[place * _DRAWN : (place + 1) * _DRAWN]
