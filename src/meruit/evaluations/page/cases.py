"""The cases of a page: a slim row each, and their work in compressed parts that a browser opens one by one."""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from meruit.evaluations.evaluation import STATUS_LETTERS, CaseSummary, EvaluationRecord
from meruit.evaluations.reader import CaseDetail, CaseFilter, Evaluations
from meruit.evaluations.summary import OPEN
from meruit.model.criterion import SuccessCriteria
from meruit.model.verdict import CriterionResult

MAX_ROWS = 50_000
"""Cases that a page lists; failing ones come first where there are more."""
MAX_WORK_BYTES = 8_000_000
"""Bytes of the page for the work of cases; failing ones come first, and the list says what was left out."""
PART_CASES = 64
"""Cases of one compressed part."""
MAX_TEXT = 20_000
"""Characters of one text or one piece of evidence."""
SNIPPET = 140
"""Characters of an output in the list."""

CaseKey = tuple[str, int]


class Side(msgspec.Struct, frozen=True):
    """One evaluation of a page."""

    evaluation: EvaluationRecord
    criteria: SuccessCriteria
    cases: dict[CaseKey, CaseSummary]
    """Every listed case."""
    places: Sequence[int]
    """Where in the status letters of a case each criterion of the page stands; -1 where it does not."""


class PageCases(msgspec.Struct, frozen=True):
    """What the list of a page is made of, each piece compressed and in base64."""

    rows: str
    """The index: names, criteria, and a row for each case."""
    parts: list[str]
    listed: int
    total: int
    without_work: int
    """Listed cases whose work is left out because the page would be too large."""


def list_cases(reader: Evaluations, evaluation: EvaluationRecord) -> dict[CaseKey, CaseSummary]:
    """The cases to list, in order; where there are too many, those that fail come first."""
    found = {(one.case_id, one.repeat): one for one in islice(reader.cases(evaluation), MAX_ROWS)}
    if evaluation.cases > MAX_ROWS:
        failing = islice(reader.cases(evaluation, CaseFilter(failing=True)), MAX_ROWS)
        first = {(one.case_id, one.repeat): one for one in failing}
        found = dict(islice((first | found).items(), MAX_ROWS))
    return found


def pack_cases(reader: Evaluations, sides: Sequence[Side], criteria: Sequence[Mapping[str, Any]]) -> PageCases:
    """Pack the cases of one evaluation, or those of two beside each other."""
    keys = [*dict.fromkeys(key for side in sides for key in side.cases)][:MAX_ROWS]
    order = sorted(range(len(keys)), key=lambda place: _is_calm(sides, keys[place]))
    parts: list[str] = []
    where: dict[CaseKey, tuple[int, int, list[str]]] = {}
    room = MAX_WORK_BYTES
    for start in range(0, len(order), PART_CASES):
        some = [keys[place] for place in order[start : start + PART_CASES]]
        works = [_work_of(reader, side, some) for side in sides]
        packed = _pack([[_shorten(work.get(key)) for work in works] for key in some])
        for place, key in enumerate(some):
            where[key] = (len(parts), place, [_snippet(work.get(key)) for work in works])
        room -= len(packed)
        if room < 0:
            for key in some:
                where[key] = (-1, -1, where[key][2])
            break
        parts.append(packed)
    rows = [_row(sides, key, where.get(key, (-1, -1, []))) for key in keys]
    index = {"criteria": criteria, "rows": rows, "names": [side.evaluation.name for side in sides]}
    without = sum(where.get(key, (-1,))[0] < 0 for key in keys)
    total = max(side.evaluation.cases for side in sides)
    return PageCases(rows=_pack(index), parts=parts, listed=len(keys), total=total, without_work=without)


def _is_calm(sides: Sequence[Side], key: CaseKey) -> int:
    """Where the work of a case comes: flips first, then failures, then what passes everywhere."""
    found = [side.cases.get(key) for side in sides]
    passed = [one is not None and one.success for one in found]
    if len(sides) > 1 and passed[0] != passed[1]:
        return 0
    return 2 if all(passed) else 1


def _row(sides: Sequence[Side], key: CaseKey, where: tuple[int, int, Sequence[str]]) -> list[Any]:
    """The row of a case; `cases.js` reads it by position."""
    part, place, snippets = where
    known = next(one for side in sides if (one := side.cases.get(key)) is not None)
    ends = [
        None if (one := side.cases.get(key)) is None else _end(side, one, snippets[number] if snippets else "")
        for number, side in enumerate(sides)
    ]
    return [key[0], key[1], known.group or "", known.tags, part, place, ends]


def _end(side: Side, one: CaseSummary, snippet: str) -> list[Any]:
    letters = "".join(one.statuses[place] if 0 <= place < len(one.statuses) else "-" for place in side.places)
    passed = 2 if one.verdict in OPEN else int(one.success)
    return [
        *(one.verdict.value, passed, round(one.score, 4), letters, one.latency_ms, one.cost_micros),
        *(one.claimed, None if one.error is None else one.error.value, snippet),
    ]


def _work_of(reader: Evaluations, side: Side, keys: Sequence[CaseKey]) -> dict[CaseKey, CaseDetail]:
    wanted = {key for key in keys if key in side.cases}
    if not wanted:
        return {}
    chosen = CaseFilter(case_ids=tuple({case_id for case_id, _ in wanted}))
    found = ((one.summary.case_id, one.summary.repeat, one) for one in reader.details(side.evaluation, chosen))
    return {(case_id, repeat): one for case_id, repeat, one in found if (case_id, repeat) in wanted}


def _snippet(detail: CaseDetail | None) -> str:
    if detail is None:
        return ""
    if detail.output is None or detail.error_message:
        return detail.error_message[:SNIPPET] or "erased"
    text = detail.output.get("text")
    shown = text if isinstance(text, str) else msgspec.json.encode(detail.output).decode()
    return " ".join(shown[: 4 * SNIPPET].split())[:SNIPPET]


def _shorten(detail: CaseDetail | None) -> dict[str, Any] | None:
    """What a page shows of a case: its work, and what was found for each criterion."""
    if detail is None:
        return None
    found: dict[str, Any] = {
        "outcome": detail.summary.outcome_id,
        "input": _cut(detail.input),
        "output": _cut(detail.output),
        "metadata": _cut(detail.metadata),
        "error": detail.error_message[:MAX_TEXT],
        "erased": detail.result is None,
    }
    if detail.result is not None:
        found["reasons"] = [reason.message[:MAX_TEXT] for reason in detail.result.reasons]
        found["criteria"] = [*_criteria(detail.result.criterion_results)]
    return found


def _criteria(results: Sequence[CriterionResult]) -> Iterator[dict[str, Any]]:
    for one in results:
        found: dict[str, Any] = {"id": one.criterion_id, "status": STATUS_LETTERS[one.status]}
        if one.value is not None:
            found["value"] = _cut(one.value_on_scale)
        elif one.comparison is None:
            found["value"] = round(one.score, 4)
        if one.error:
            found["error"] = one.error[:MAX_TEXT]
        if one.details:
            found["evidence"] = _cut(one.details)
        yield found


# Any: whatever a user's work holds.
def _cut(value: Any) -> Any:
    """The value with long texts cut, and as a cut text itself where it is large all the same."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}… ({len(value):,} characters)"
    if not isinstance(value, Mapping | list | tuple):
        return value
    written = msgspec.json.encode(value)
    if len(written) <= MAX_TEXT:
        return value
    if isinstance(value, Mapping) and any(isinstance(one, str) for one in value.values()):
        shorter = {name: _cut(one) for name, one in value.items()}
        if len(msgspec.json.encode(shorter)) <= 3 * MAX_TEXT:
            return shorter
    return f"{written[:MAX_TEXT].decode(errors='ignore')}… ({len(written):,} bytes)"


def _pack(value: Any) -> str:
    return base64.b64encode(zlib.compress(msgspec.json.encode(value), 6)).decode()
