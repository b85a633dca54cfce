"""The verdicts of a session as an evaluation.

Each verdict travels with the report of its test, from a worker of pytest-xdist too. The process that the session was
started in keeps it in a journal at once, and records all of them at the end. If it is killed before that, the next
session in the same folder records what the journal holds.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import pytest

from meruit.app import open_store
from meruit.config import location_of
from meruit.documents.sanitize import describe
from meruit.errors import DocumentError, EvaluationConflict, MeruitError, NotFound
from meruit.evaluations.case_judge import SegmentBuffer, check_name, check_tags
from meruit.evaluations.evaluation import MAX_NAME, CaseError, EvaluationRecord, EvaluationStatus
from meruit.evaluations.reader import EvaluationFilter, Evaluations
from meruit.evaluations.service import Evaluator
from meruit.evaluations.targets import MAX_ERROR_CHARS
from meruit.model.access import DEFAULT_TENANT
from meruit.model.decoding import decode_json
from meruit.outcomes.records import criteria_from
from meruit.outcomes.service import Registrar
from meruit.pytest_plugin import option_of
from meruit.pytest_plugin.fixture import JUDGE, VERIFIED, SessionJudge, VerifiedCase, case_of, name_of_test, shorten_id
from meruit.pytest_plugin.journal import SessionHeader, SessionJournal, find_left_behind
from meruit.store.store import Store

ATTRIBUTE = "meruit_verified"
"""Where a report carries verdicts: texts, which every kind of worker can send."""
DEFAULT_NAME = "pytest-{time}"
PARTIAL = "partial"
"""The tag of sessions that did not run to their end."""


class SessionRecorder:
    """Keeps the verdicts of a session as they come, and records them when it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._found: list[VerifiedCase] = []
        self._lines: list[str] = []
        try:
            self._location = location_of(option_of(config, "data"))
            written = option_of(config, "name") or DEFAULT_NAME
            time = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            self._name = written.replace("{time}", time)
            self._tags = dict(map(_parse_tag, [*config.getini("meruit_tags"), *config.getoption("meruit_tags")]))
            check_name(self._name, "the evaluation")
            check_tags(self._tags, "the evaluation")
            # A name without the time may be used again by the session that is to make up for a killed one.
            left = self._name if "{time}" in written else f"{self._name[: MAX_NAME - len(time) - 1]} {time}"
            header = SessionHeader(left, {**self._tags, PARTIAL: "yes"})
            self._journal = SessionJournal(self._location.folder, time, header)
            if not self._is_worker:
                self._record_left_behind()
                self._refuse_known_name()
        except MeruitError as problem:
            raise pytest.UsageError(str(problem)) from None

    def _refuse_known_name(self) -> None:
        """Before the tests: what they cost would be lost."""
        with closing(self._open()) as store:
            several = _reader(store).page(EvaluationFilter(text=self._name), limit=1_000)
        taken = next((one.name for one in several if self._name in (one.name, _without_label(one.name))), None)
        if taken is not None:
            raise EvaluationConflict(
                f"there is an evaluation named {taken!r} already; choose another name with --meruit-name, in which "
                "{time} is the time"
            )

    def _open(self) -> Store:
        return open_store(self._location, make=True)

    def _record_left_behind(self) -> None:
        """Record what sessions that were killed have left behind."""
        for left in find_left_behind(self._location.folder):
            try:
                self._record(left.verdicts, left.header, "recorded for a session that was killed:")
            except MeruitError as problem:
                self._lines.append(f"ERROR {left.file} of a session that was killed is not recorded: {problem}")
            else:
                left.file.unlink(missing_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the verdicts of a test to its report; a case whose test raised before any has none, and says why."""
        report = yield
        verified = item.stash.get(VERIFIED, [])
        if report.failed and call.when != "teardown" and not verified and call.excinfo is not None:
            verified = [*_error_of(item, call.excinfo.value)]
        if verified:
            setattr(report, ATTRIBUTE, [msgspec.json.encode(one).decode() for one in verified])
            item.stash[VERIFIED] = []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a report carries; it comes here from every worker."""
        if not self._is_worker and hasattr(report, ATTRIBUTE):
            found = [decode_json(one, VerifiedCase) for one in getattr(report, ATTRIBUTE)]
            self._journal.add(found)
            self._found += found

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Record the evaluation; a session whose verdicts cannot be recorded does not end well."""
        if self._is_worker or not self._found:
            return
        is_partial = exitstatus == pytest.ExitCode.INTERRUPTED or bool(session.shouldstop or session.shouldfail)
        header = SessionHeader(self._name, {**self._tags, PARTIAL: "yes"} if is_partial else self._tags)
        try:
            self._journal.change_header(header)
            self._record(self._found, header, "recorded")
        except MeruitError as problem:
            self._lines.append(f"ERROR the verdicts are not recorded: {problem}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        self._journal.remove()

    def pytest_unconfigure(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    def _record(self, found: Sequence[VerifiedCase], header: SessionHeader, what: str) -> None:
        groups, lost = group_verdicts(found)
        if lost:
            self._lines.append(f"{lost} cases ended before any verdict, by no known criteria; they are not recorded")
        judge = self._config.stash.get(JUDGE, None) or SessionJudge(self._config)
        with closing(self._open()) as store:
            evaluator, reader = Evaluator(Registrar(judge.engine, store), DEFAULT_TENANT), _reader(store)
            for group in groups:
                name = header.name if len(groups) == 1 else f"{header.name} ({group.label})"
                done = _record_group(evaluator, name, group, header.tags, go_on=found is not self._found)
                overall = reader.summary(done).overall
                shown = "nothing was judged" if overall.rate is None else f"pass rate {overall.rate:.1%}"
                self._lines.append(f"{what} {overall.cases} cases as {name} ({done.id}): {shown}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was recorded."""
        if self._lines:
            terminalreporter.section("meruit")
            for line in self._lines:
                terminalreporter.write_line(line, red=line.startswith("ERROR"))


def _reader(store: Store) -> Evaluations:
    return Evaluations(store, DEFAULT_TENANT)


def _record_group(
    evaluator: Evaluator, name: str, group: "CriteriaGroup", tags: Mapping[str, str], *, go_on: bool
) -> EvaluationRecord:
    """Record verdicts by the same criteria; with `go_on`, a process that was killed may have recorded some or all."""
    if go_on:
        with suppress(NotFound):
            known = evaluator.find(name)
            if known.status is EvaluationStatus.FINISHED:
                return known
    compiled = evaluator.compile(criteria_from(group.criteria.encode()))
    started = evaluator.start(name, compiled, tags=tags, planned=len(group.cases))
    by_key = {(one.case.id, one.case.repeat): one for one in group.cases}
    buffer = SegmentBuffer()
    for case in evaluator.missing(started, [one.case for one in group.cases]):
        result = by_key[case.id, case.repeat].result
        # What was judged is not judged again: its metrics may have asked other systems.
        judged = evaluator.judge(compiled, case) if result is None else evaluator.adopt(case, result)
        if segment := buffer.add(judged):
            evaluator.record(started, segment)
    if segment := buffer.take():
        evaluator.record(started, segment)
    return evaluator.finish(started)


def _parse_tag(written: str) -> tuple[str, str]:
    name, separator, value = (part.strip() for part in written.partition("="))
    if not separator:
        raise MeruitError(f"a tag is NAME=VALUE, as model=m-2, not {written!r}")
    return name, value


def _without_label(name: str) -> str:
    return name.rpartition(" (")[0] if name.endswith(")") else name


def _error_of(item: pytest.Item, problem: BaseException) -> Iterator[VerifiedCase]:
    """A case without a verdict. Criteria or files that are wrong are an error of the test, not of its target."""
    case = case_of(item)
    if case is not None and not isinstance(problem, DocumentError):
        message = describe(problem)[:MAX_ERROR_CHARS]
        failed = msgspec.structs.replace(case, output=None, error=CaseError.TARGET_ERROR, error_message=message)
        yield VerifiedCase(test=name_of_test(item), call=f"{item.nodeid} 1", case=failed)


class CriteriaGroup(NamedTuple):
    """The verdicts of a session by the same criteria."""

    label: str
    criteria: str
    cases: list[VerifiedCase]


def group_verdicts(found: Sequence[VerifiedCase]) -> tuple[list[CriteriaGroup], int]:
    """The verdicts by their criteria, in an order that is the same whichever worker was first; and how many have none.

    A case that ended before its verdict belongs to the criteria by which the same test judged others.
    """
    by_criteria: dict[str, list[VerifiedCase]] = defaultdict(list)
    used: dict[str, set[str]] = defaultdict(set)
    for one in found:
        if one.criteria is not None:
            by_criteria[one.criteria].append(one)
            used[one.test].add(one.criteria)
    without = [one for one in found if one.criteria is None]
    lost = [one for one in without if not used[one.test]]
    labels = _labels({criteria: min(one.label for one in cases) for criteria, cases in by_criteria.items()})
    for one in without:
        for criteria in used[one.test]:
            by_criteria[criteria].append(one)
    groups = [
        CriteriaGroup(label=labels[key], criteria=key, cases=_with_own_ids(cases)) for key, cases in by_criteria.items()
    ]
    return sorted(groups), len(lost)


def _labels(written: dict[str, str]) -> dict[str, str]:
    """A label for each set of criteria; those of files of the same name are numbered, in the order of their content."""
    shared: dict[str, list[str]] = defaultdict(list)
    for criteria, label in written.items():
        shared[label].append(criteria)
    return {
        criteria: label if len(several) == 1 else f"{label} {number}"
        for label, several in shared.items()
        for number, criteria in enumerate(sorted(several), 1)
    }


def _with_own_ids(cases: Sequence[VerifiedCase]) -> list[VerifiedCase]:
    """The cases in order, each with an id of its own; the same case of the same test once more is another try."""
    ordered = sorted(cases, key=lambda one: (one.test, one.call))
    tests = defaultdict[str, set[str]](set)
    for one in ordered:
        tests[one.case.id].add(one.test)
    taken: set[tuple[str, int]] = set()
    several: list[VerifiedCase] = []
    for one in ordered:
        case, repeat = one.case, one.case.repeat
        identity = case.id if len(tests[case.id]) == 1 else shorten_id(f"{case.id} [{one.test}]")
        while (identity, repeat) in taken:
            repeat += 1
        taken.add((identity, repeat))
        tags = {"test": shorten_id(one.test), **case.tags}
        own = msgspec.structs.replace(case, id=identity, repeat=repeat, tags=tags)
        several.append(msgspec.structs.replace(one, case=own))
    return several
