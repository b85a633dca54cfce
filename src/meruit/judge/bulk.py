"""Judging many works by one plan: works with equal evidence share one conclusion. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from meruit.judge.plan import Plan
from meruit.judge.result_template import ResultTemplate, template_of
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.evidence import Evidence, Measured
from meruit.model.verdict import VerificationResult

MAX_CONCLUSIONS = 4_096
MAX_CONCLUSION_BYTES = 32 * 1024 * 1024
"""Of templates that are remembered; with more, all are forgotten and begin again."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_WRITER = msgspec.json.Encoder(order="deterministic")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conclusion(Generic[T]):
    """What follows from some evidence, for every work that has it."""

    template: ResultTemplate
    result: VerificationResult
    """Without id, time and digests: never handed out as a work's own."""
    shared: T
    """What the caller derives from the result, made once."""


class Conclusions(Generic[T]):
    """The conclusions of one plan, by evidence.

    `derive` is given a result without id, time and digests, and must not hand it out as a work's own. `finish` makes
    it what all works with this evidence get.
    """

    def __init__(
        self,
        plan: Plan,
        versions: dict[str, str],
        derive: Callable[[VerificationResult], T],
        finish: Callable[[VerificationResult], VerificationResult] = lambda result: result,
    ) -> None:
        self._plan, self._versions, self._derive, self._finish = plan, versions, derive, finish
        self._known: dict[bytes, Conclusion[T]] = {}
        self._size = 0

    def of(self, evidence: Sequence[Evidence]) -> Conclusion[T] | None:
        """What follows from the evidence; None where that has to be concluded for the work alone."""
        if not _has_one_form(evidence):
            return None
        # As JSON, because 1, 1.0 and True are equal in Python and are not the same value.
        key = _WRITER.encode(evidence)
        found = self._known.get(key)
        return found if found is not None else self._conclude(key, evidence)

    def _conclude(self, key: bytes, evidence: Sequence[Evidence]) -> Conclusion[T] | None:
        result = conclude(self._plan, evidence, Circumstances("", _NEVER, versions=self._versions.copy()))
        result = self._finish(result)
        template = template_of(result)
        if template is None:
            return None
        made = Conclusion(template, result, self._derive(result))
        size = len(key) + len(template.judged) + len(template.summary)
        if len(self._known) >= MAX_CONCLUSIONS or self._size + size > MAX_CONCLUSION_BYTES:
            self._known.clear()
            self._size = 0
        self._known[key] = made
        self._size += size
        return made


def _has_one_form(evidence: Sequence[Evidence]) -> bool:
    """Whether equal JSON means equal evidence: NaN and infinity are written alike."""
    for found in evidence:
        value = found.value if isinstance(found, Measured) else found
        if isinstance(value, list) or (isinstance(value, float) and not math.isfinite(value)):
            return False
    return True
