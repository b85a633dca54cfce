"""One check, asked of the worlds of one source: what the tests of several checks have in common."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from meruit.documents.authoring import parse_criteria
from meruit.model.criterion import Assertion
from meruit.model.environment import FACTS_KEY, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing, Skipped
from meruit.model.verdict import CriterionResult
from meruit.model.work import Work
from meruit.registry import checks, faults_of
from meruit.verify.engine import VerificationEngine

Held = TypeVar("Held")
Details = Mapping[str, Any]


# Any, in this file: assertions, facts and evidence are JSON.
def held(check: str, done: Work, asked: Mapping[str, Any]) -> Checked | Missing | Skipped:
    """What a check has to say of a work."""
    return checks.get(check).prepare(Assertion.model_validate({"assert": check, **asked}))(done)


def results(criteria: Any, done: Work) -> list[CriterionResult]:
    """What the engine makes of criteria."""
    return VerificationEngine().verify_sync("c", done.input, done.output, criteria, {}).criterion_results


def failing(details: Details) -> list[str]:
    """The paths of the fields that do not fit."""
    return [one["path"] for one in details["fields"] if not one["passed"]]


class Sending(NamedTuple):
    """A check of what is sent, message by message."""

    check: str
    source: str
    kind: SourceKind

    def work(self, *sent: bytes, before: tuple[bytes, ...] = (), facts: Mapping[str, Any] | None = None) -> Work:
        """Messages that were sent after those before."""
        was, now = (
            {self.source: Snapshot(self.kind, [make_item(f"{place:06}", one) for place, one in enumerate(several, 1)])}
            for several in (before, (*before, *sent))
        )
        return Work(input=as_work_part(was) | {FACTS_KEY: facts or {}}, output=as_work_part(now))

    def held(self, done: Work, **asked: Any) -> Checked | Missing | Skipped:
        """What the check has to say."""
        return held(self.check, done, asked)

    def found(self, done: Work, **asked: Any) -> tuple[str, Details]:
        """Its score, and its evidence."""
        finding = self.held(done, **asked)
        assert isinstance(finding, Checked), finding
        assert finding.details is not None
        return finding.score, finding.details

    def judged(self, written: str, *sent: bytes) -> CriterionResult:
        """What the engine makes of one criterion, as an author writes it."""
        (result,) = results(parse_criteria(written, assertions_too=True), self.work(*sent))
        return result


class Holding(NamedTuple, Generic[Held]):
    """A check of what a system holds, before and after."""

    check: str
    source: str
    snapshot: Callable[[Held], Snapshot]
    nothing: Held

    def work(self, before: Held, after: Held) -> Work:
        """A system that held the one and holds the other."""
        was, now = ({self.source: self.snapshot(one)} for one in (before, after))
        return Work(input=as_work_part(was), output=as_work_part(now))

    def found(self, asked: Mapping[str, Any], after: Held, before: Held | None = None) -> Checked | Missing | Skipped:
        """What the check has to say."""
        return held(self.check, self.work(self.nothing if before is None else before, after), asked)

    def checked(self, asked: Mapping[str, Any], after: Held, before: Held | None = None) -> tuple[str, dict[str, Any]]:
        """Its score, and its evidence."""
        finding = self.found(asked, after, before)
        assert isinstance(finding, Checked), finding
        return finding.score, dict(finding.details or {})

    def refused(self, asked: Mapping[str, Any]) -> str:
        """What it has against an assertion, each with its place."""
        faults = faults_of(Assertion.model_validate({"assert": self.check, **asked}))
        return "; ".join(f"{'.'.join(map(str, place))}: {why}" for place, why in faults)


def judged(criteria: list[dict[str, Any]], done: Work) -> list[CriterionResult]:
    """What the engine makes of criteria, as they are parsed."""
    return results({"criteria": criteria}, done)
