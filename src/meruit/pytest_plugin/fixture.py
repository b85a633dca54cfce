"""What a test calls: `meruit.verify("criteria.yaml", output=…)`."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import msgspec
import pytest
from msgspec import UNSET

from meruit.app import build_engine
from meruit.config import Settings
from meruit.documents.authoring import parse_criteria
from meruit.errors import CouldNotVerify, CriteriaNotMet, InvalidCase, MeruitError, NotJsonSerializable
from meruit.evaluations.evaluation import MAX_NAME, Case
from meruit.evaluations.targets import public_input
from meruit.gate.candidate import to_json_value
from meruit.model.canonical import payload_bytes
from meruit.model.criterion import SuccessCriteria
from meruit.model.record import Record
from meruit.model.text import escape_control_characters
from meruit.model.verdict import Verdict, VerificationResult
from meruit.pytest_plugin import option_of
from meruit.pytest_plugin.failure import describe_verdict
from meruit.verify.faults import examine_with
from meruit.verify.load import load_criteria

if TYPE_CHECKING:
    from meruit.verify.catalogue import CompiledCriteria

INLINE = "inline"
"""The label of criteria that are written in the test itself."""
CriteriaSource = str | Path | Mapping[str, Any] | SuccessCriteria


class VerifiedCase(Record, frozen=True):
    """One verdict of a session, as a worker sends it to the process that records it."""

    test: str
    """The test's id, without the parameters."""
    call: str
    """The test's whole id and the number of the verdict in it: verdicts are recorded in this order."""
    case: Case
    label: str = INLINE
    """The name of the criteria file, without its ending."""
    criteria: str | None = None
    """In canonical form; None where the test ended before it asked for a verdict."""
    result: VerificationResult | None = None


class _NamedCriteria(NamedTuple):
    label: str
    compiled: "CompiledCriteria"


class SessionJudge:
    """The engine of a session, and the criteria that it has compiled."""

    def __init__(self, config: pytest.Config) -> None:
        self._settings = Settings.load(option_of(config, "config"))
        self.engine = build_engine(self._settings)
        self._files: dict[Path, _NamedCriteria] = {}

    def compile(self, source: CriteriaSource, folders: tuple[Path, ...]) -> _NamedCriteria:
        """Criteria from a file, which is looked for in each folder, or as they are; raises CriteriaError."""
        if not isinstance(source, str | Path):
            if not isinstance(source, SuccessCriteria):
                source = parse_criteria(source, **self._limits())
            return _NamedCriteria(INLINE, self.engine.compile_or_raise(source))
        places = [folder / source for folder in folders]
        file = next((place for place in places if place.is_file()), places[0])
        if file not in self._files:
            read = load_criteria(file, **self._limits())
            self._files[file] = _NamedCriteria(file.stem, self.engine.compile_or_raise(read, file.name))
        return self._files[file]

    # Any: keywords of two functions that share them.
    def _limits(self) -> dict[str, Any]:
        catalogue = self.engine.catalogue
        most = self._settings.verification.max_criteria_per_task
        return {"known_metrics": catalogue.names(), "max_criteria": most, "examine": examine_with(catalogue)}


JUDGE = pytest.StashKey[SessionJudge]()
VERIFIED = pytest.StashKey[list[VerifiedCase]]()
"""What a test had judged so far and is not reported yet."""


class CaseParts(TypedDict, total=False):
    """What a test may add to its case."""

    # Any: JSON.
    input: Mapping[str, Any] | str | None
    metadata: Mapping[str, Any] | None
    case_id: str | None


class MeruitFixture:
    """The fixture `meruit`: judges what a test has made by criteria."""

    def __init__(self, judge: SessionJudge, node: pytest.Item) -> None:
        self._judge = judge
        self._node = node
        self._folders = (node.path.parent, node.config.rootpath)
        self._case = case_of(node)
        self._calls = 0

    @property
    def given(self) -> dict[str, Any]:
        """The input of the case without its references: what an agent may see."""
        __tracebackhide__ = True
        if self._case is None:
            raise InvalidCase(f"{self._node.name} has no case; mark it with @pytest.mark.meruit_dataset(FILE)")
        return public_input(self._case)

    # Any: whatever a test has made that JSON can hold.
    def verify(self, criteria: CriteriaSource, output: Any = UNSET, **parts: Unpack[CaseParts]) -> VerificationResult:
        """Judge an output, or the recorded one of the case, and fail the test unless the criteria are met.

        The file of criteria is looked for beside the test and in the root folder. A test of a dataset judges by the
        input and the metadata of its case; what is given here is added to them. Raises CriteriaNotMet, or
        CouldNotVerify where what could not be measured decides.
        """
        __tracebackhide__ = True
        result, case = self._judge_output(criteria, output, **parts)
        if result.success:
            return result
        could_not = result.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR)
        raise (CouldNotVerify if could_not else CriteriaNotMet)(describe_verdict(result, case))

    # Any: as of verify.
    def judge(self, criteria: CriteriaSource, output: Any = UNSET, **parts: Unpack[CaseParts]) -> VerificationResult:
        """The same, but any verdict is returned; assert what you need of it."""
        __tracebackhide__ = True
        return self._judge_output(criteria, output, **parts)[0]

    def _judge_output(
        self,
        criteria: CriteriaSource,
        output: Any,
        input: Mapping[str, Any] | str | None = None,  # noqa: A002 - as the work calls it
        metadata: Mapping[str, Any] | None = None,
        case_id: str | None = None,
    ) -> tuple[VerificationResult, Case]:
        __tracebackhide__ = True
        self._calls += 1
        try:
            label, compiled = self._judge.compile(criteria, self._folders)
            case = self._make_case(output, input, metadata, case_id)
        except MeruitError as problem:
            # Where it was found is of no use to the author of the test.
            raise problem.with_traceback(None) from None
        work = case.output if case.output is not None else {}
        result = self._judge.engine.verify_sync(case.id, case.input, work, compiled, case.metadata)
        self._node.stash.setdefault(VERIFIED, []).append(
            VerifiedCase(
                test=name_of_test(self._node),
                call=f"{self._node.nodeid} {self._calls}",
                case=case,
                label=label,
                criteria=compiled.body.decode(),
                result=result,
            )
        )
        return result, case

    def _make_case(
        self,
        output: Any,
        given: Mapping[str, Any] | str | None,
        metadata: Mapping[str, Any] | None,
        case_id: str | None,
    ) -> Case:
        base = self._case or Case(shorten_id(self._node.nodeid))
        number = f" ({self._calls})" if self._calls > 1 else ""
        if output is UNSET:
            if base.output is None:
                raise InvalidCase(f"{base.id} has no recorded output; pass what your agent made as output=…")
            output = base.output
        try:
            made = to_json_value(output)
        except NotJsonSerializable as problem:
            raise InvalidCase(f"the output is not plain JSON: {problem}") from None
        if isinstance(given, str):
            given = {"prompt": given}
        parts = {
            "input": {**base.input, **(given or {})},
            "output": made if isinstance(made, dict) else {"text" if isinstance(made, str) else "output": made},
            "metadata": {**base.metadata, **(metadata or {})},
        }
        for name, part in parts.items():
            if payload_bytes(part) is None:
                raise InvalidCase(f"the {name} is not plain JSON (NaN, a date, or nested too deeply)")
        return msgspec.structs.replace(base, id=case_id or shorten_id(base.id + number), **parts)


def open_fixture(request: pytest.FixtureRequest) -> MeruitFixture:
    """The fixture of one test; the engine is built for the first one of a session."""
    stash = request.config.stash
    if JUDGE not in stash:
        stash[JUDGE] = SessionJudge(request.config)
    return MeruitFixture(stash[JUDGE], request.node)


def case_of(node: pytest.Item) -> Case | None:
    """The case that a test is run for; None for a test without a dataset."""
    callspec = getattr(node, "callspec", None)
    found = None if callspec is None else callspec.params.get("case")
    return found if isinstance(found, Case) else None


def name_of_test(node: pytest.Item) -> str:
    """The id of a test without its parameters."""
    name = getattr(node, "originalname", None) or node.name
    return node.nodeid.removesuffix(node.name) + name


def shorten_id(text: str) -> str:
    """A text as the id of a case: printable, and with a digest where it is too long."""
    shown = escape_control_characters(text)
    if len(shown) <= MAX_NAME:
        return shown
    mark = f"…{sha256(text.encode()).hexdigest()[:12]}"
    return shown[: MAX_NAME - len(mark)] + mark
