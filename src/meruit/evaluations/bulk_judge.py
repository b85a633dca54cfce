"""Stored outputs judged into finished segments: the quick way, which writes what `CaseJudge` would write.

A case that is not plain (no output, not strict JSON, evidence that has to be judged for itself) is left to `CaseJudge`.
"""

from binascii import hexlify
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
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
from meruit.evaluations.segment import SALTS, PackedCase, write_line
from meruit.evaluations.summary import OPEN
from meruit.judge.bulk import NumberlessConclusion
from meruit.judge.result_template import ResultTemplate, encode_time
from meruit.judge.segment_blob import WHOLE, join_blob
from meruit.log.commitment import PURPOSE, SALT_BYTES
from meruit.log.merkle import LEAF, Frontier, leaf_hash
from meruit.log.segment import MAX_CASES, write_case
from meruit.model.canonical import strict_bytes
from meruit.model.time import to_micros
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import Work, written_output
from meruit.store.transaction import CHANCE_BYTES, id_prefix
from meruit.verify.catalogue import CompiledCriteria

CLOCK_CASES = 64
"""Cases that are judged before the clock is read again: a few milliseconds."""
_CHANCE_DIGITS = 2 * CHANCE_BYTES
_CASE_SALTS = SALTS * SALT_BYTES
_cut_salts = Struct(f"{SALT_BYTES}s" * SALTS).unpack_from
_encode = msgspec.json.Encoder().encode


def _digest(part: bytes) -> tuple[bytes, bytes]:
    """The digest of a part of the work, and the same in hex."""
    digest = sha256(part).digest()
    return digest, hexlify(digest)


_NOTHING = _digest(b"{}")


@dataclass(frozen=True, slots=True)
class _WrittenVerdict:
    """What a conclusion says of a case in lists and in the log, as far as that can be written before the case."""

    verdict: CaseVerdict
    entry: tuple[str, ...]
    """What is hashed into the log's tree: the pieces before and after what differs."""
    line_end: bytes
    """Of its line in the segment, after the result; with the bracket."""

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
        line_end = b"%b]" % line.partition(b"\0")[2]
        return cls(found, (f"{LEAF.decode()}{first}", *before, middle, to_result, end), line_end)


_Form = tuple[int, bytes, bytes, bytes, bytes, bytes, bytes]
"""The number of the template, what a line says of the time and the numbers, and the pieces of the result."""


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
        self._lines: list[bytes] = []
        self._leaves: list[bytes] = []
        self._templates: dict[ResultTemplate, int] = {}
        self._forms: dict[tuple[NumberlessConclusion[_WrittenVerdict], bytes], _Form] = {}
        """For the same numbers, as JSON, at the same time."""
        self._size = 0
        self._chances, self._salts = "", bytearray()

    def take(self) -> FinishedSegment | None:
        """The segment of what has gathered; None where that is nothing."""
        count = len(self._summaries)
        if not count:
            return None
        root = Frontier(0, ()).extend(self._leaves).root()
        blob = join_blob([*self._templates], self._lines, bytes(self._salts[: count * _CASE_SALTS]))
        made = FinishedSegment(summaries=tuple(self._summaries), root=root, blob=blob)
        self._begin()
        return made

    def add(self, case: Case) -> FinishedSegment | None:
        """Judge a case; the segment that it fills, where it fills one. Raises InvalidCase."""
        if not self._add_plain(case):
            judged = self._judge.judge(self._criteria, case)
            self._keep_packed(judged.packed)
            self._summaries.append(judged.summary)
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
        output_hex = hexlify(of_output)
        of_input, input_hex = _digest(input_) if given else _NOTHING
        of_metadata, metadata_hex = _digest(metadata) if facts else _NOTHING
        work = Work(made, given, facts, {written_output: output})
        found = self._conclusions.without_numbers(work, (input_hex, output_hex, metadata_hex))
        if found is None:
            return False
        conclusion, numbers = found
        summaries, shared = self._summaries, conclusion.shared
        place = len(summaries)
        if place % CLOCK_CASES == 0 or not self._chances:
            self._prepare(place)
        encoded = _encode(numbers)
        form = self._forms.get((conclusion, encoded)) or self._make_form(conclusion, encoded)
        number, known, start, middle, to_made, to_facts, result_end = form
        name_json, repeat = _encode(name), case.repeat
        outcome = self._prefix + self._chances[place * _CHANCE_DIGITS : (place + 1) * _CHANCE_DIGITS]
        outcome_bytes = outcome.encode()
        result = b"".join(
            (start, outcome_bytes, middle, input_hex, to_made, output_hex, to_facts, metadata_hex, result_end)
        )
        # As `write_line` and `write_case` write them.
        line = b'[%d,%b,%d,"%b",1,%b,%b,%b,%b%b' % (
            *(number, name_json, repeat, outcome_bytes, input_, output, metadata, known, shared.line_end),
        )
        to_case, to_input, to_metadata, to_outcome, to_output, to_repeat, to_result, end = shared.entry
        input_salt, output_salt, metadata_salt, result_salt = _cut_salts(self._salts, place * _CASE_SALTS)
        entry = (
            f"{to_case}{name_json.decode()}{to_input}"
            f"{sha256(PURPOSE + input_salt + of_input).hexdigest()}{to_metadata}"
            f"{sha256(PURPOSE + metadata_salt + of_metadata).hexdigest()}{to_outcome}"
            f"{outcome}{to_output}"
            f"{sha256(PURPOSE + output_salt + of_output).hexdigest()}{to_repeat}"
            f"{repeat}{to_result}"
            f"{sha256(PURPOSE + result_salt + sha256(result).digest()).hexdigest()}{end}"
        )
        verdict = shared.verdict
        summaries.append(
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
        self._lines.append(line)
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

    def _prepare(self, place: int) -> None:
        """Random bytes for all cases of a segment, and the time for the next few."""
        if not self._chances:
            drawn = self._surroundings.entropy((CHANCE_BYTES + _CASE_SALTS) * MAX_CASES)
            self._chances = drawn[: CHANCE_BYTES * MAX_CASES].hex()
            # What the cases before this one drew for themselves stays.
            self._salts += drawn[CHANCE_BYTES * MAX_CASES + len(self._salts) :]
        if place % CLOCK_CASES == 0 or not self._prefix:
            self._prefix = id_prefix("out", to_micros(self._surroundings.clock()))
            self._at = encode_time(self._engine.now())
            self._forms.clear()

    def _make_form(self, conclusion: NumberlessConclusion[_WrittenVerdict], encoded: bytes) -> _Form:
        """What cases have in common that end alike with the same numbers, at this time."""
        number = self._templates.setdefault(conclusion.template, len(self._templates))
        numbers = encoded[1:-1].split(b",") if len(encoded) > len(b"[]") else []
        known = b"[%b,%b" % (self._at, encoded[1:]) if numbers else self._at
        made = self._forms[conclusion, encoded] = number, known, *conclusion.pieces(self._at, numbers)
        return made

    def _keep_packed(self, case: PackedCase) -> None:
        """Keep a case that was judged for itself."""
        number = WHOLE if case.template is None else self._templates.setdefault(case.template, len(self._templates))
        self._lines.append(b"[%d,%b]" % (number, case.line))
        start = len(self._summaries) * _CASE_SALTS
        self._salts[start : start + _CASE_SALTS] = case.tail
