"""How an assertion is compiled once and run on any number of works; the decorator by which a check is added."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from meruit.checks.framework.assertion import EvidenceDisplay, FieldRule, Let, StateAssertion
from meruit.checks.framework.context import (
    REDACTED_REASON,
    CheckContext,
    ItemReader,
    PublicReader,
    WorkContext,
    build_work_context,
    find_source,
    missing_if_unread,
)
from meruit.checks.matching.formulas import Formula, UnknownFormulaValue, check_templates, fill_templates, formulas_in
from meruit.checks.matching.matchers import holds_template
from meruit.checks.values.dates import parse_date_or_time
from meruit.documents.validation_messages import describe_error
from meruit.errors import AssertionFaults, AuthorError, UnreadableContent
from meruit.model.criterion import Assertion
from meruit.model.environment import SourceKind
from meruit.model.evidence import Cause, Checked, Fault, Missing, Skipped
from meruit.model.work import Work
from meruit.registry import Check, CheckExample, checks

A = TypeVar("A", bound=StateAssertion)
M = TypeVar("M", bound=BaseModel)
Finding = Checked | Missing | Skipped
Decide = Callable[[Any, CheckContext], Finding]


def state_check(  # noqa: PLR0913 - one a property of a check
    name: str,
    *,
    reads: Sequence[SourceKind],
    settings: type[A],
    evidence: str = "fieldResults",
    reader: PublicReader | None = None,
    examples: Sequence[CheckExample] = (),
    version: str = "1",
    last: bool = False,
    several: bool = False,
) -> Callable[[Callable[[A, CheckContext], Finding]], Callable[[A, CheckContext], Finding]]:
    """Register the function below as the check that `assert: name` asks for.

    It gets the assertion, validated as `settings` and with every `${…}` filled in, and the scene of its source.
    `evidence` is the specification's name for its field results. A check with `last` runs after all others; one that
    reads `several` sources at once needs not be told which.
    """
    kinds = frozenset(reads)

    def register(decide: Callable[[A, CheckContext], Finding]) -> Callable[[A, CheckContext], Finding]:
        summary = (decide.__doc__ or "").strip().split("\n", 1)[0]
        checks.put(
            Check(
                name=name,
                summary=summary,
                prepare=lambda assertion: prepare(assertion, settings, kinds, decide, several=several),
                version=version,
                kinds=kinds,
                evidence=evidence,
                last=last,
                settings=settings,
                reader=reader,
                examples=tuple(examples),
            )
        )
        return decide

    return register


def prepare(
    assertion: Assertion,
    settings: type[A],
    kinds: frozenset[SourceKind],
    decide: Callable[[A, CheckContext], Finding],
    *,
    several: bool = False,
) -> Callable[[Work], Finding]:
    """Compile an assertion; AuthorError with all that is wrong with it."""
    asked = validate_settings(settings, assertion.settings)
    _check_lets(asked, kinds)
    prepared = _CompiledAssertion(assertion, asked, settings, kinds, decide, several)

    def run(work: Work) -> Finding:
        try:
            book = work.derive(build_work_context)
        except msgspec.ValidationError as problem:
            return Missing(f"the work holds no world that could be read: {problem}", Cause.CHECK_ERROR, Fault.SYSTEM)
        known = book.names.get(asked.capture or "")
        finding = prepared.finding(book)
        if asked.capture is not None:
            if book.names.get(asked.capture) is not known:
                book.captured.add(asked.capture)
                book.uncaptured.pop(asked.capture, None)
            elif asked.capture not in book.captured:
                book.uncaptured[asked.capture] = finding
        return finding

    return run


class _CompiledAssertion(Generic[A]):
    """An assertion, understood, and what its formulas need."""

    def __init__(
        self,
        assertion: Assertion,
        asked: A,
        settings: type[A],
        kinds: frozenset[SourceKind],
        decide: Callable[[A, CheckContext], Finding],
        several: bool,  # noqa: FBT001 - as it was given
    ) -> None:
        self.asked = asked
        self._settings = settings
        self._kinds = kinds
        self._decide = decide
        self._several = several
        self._when = None if asked.when is None else Formula(asked.when)
        self._written = {name: value for name, value in assertion.settings.items() if name not in ("let", "when")}
        self._waits = holds_template(self._written)
        formulas = [*formulas_in(dict(assertion.settings)), *([] if self._when is None else [self._when])]
        self._uses = frozenset(name for one in formulas for name in one.names)

    def finding(self, book: WorkContext) -> Finding:
        """What the check has to say."""
        wanted = self.asked.source or (next(iter(book.sources()), None) if self._several else None)
        source = find_source(book, wanted, self._kinds)
        if isinstance(source, Missing):
            return source
        try:
            names = self._names(source, book)
            aside = self._finding_when_skipped(names, book) or _finding_without_capture(self._uses, book)
            if aside is not None:
                return aside
            meant = self._fill_assertion(names) if self._waits else self.asked
            return self._decide(meant, CheckContext(source, book.before.get(source), book.after[source], names, book))
        except _SourceNotRead as problem:
            return problem.missing
        except (UnknownFormulaValue, AuthorError) as problem:
            return _finding_without_capture(self._uses, book) or self._finding_when_uncomputable(problem, book)

    def _finding_when_uncomputable(self, problem: Exception, book: WorkContext) -> Finding:
        """The agent answers for what cannot be computed from what it left, and the author for the rest."""
        if self._uses & book.captured:
            why = str(problem) if self.asked.evidence is EvidenceDisplay.PLAIN else REDACTED_REASON
            return Checked("0", {"why": why, "fields": []}, Fault.AGENT)
        return Missing(str(problem), Cause.AUTHOR_ERROR, Fault.AUTHOR)

    def _finding_when_skipped(self, names: Mapping[str, Any], book: WorkContext) -> Finding | None:
        if self._when is None:
            return None
        lost = _finding_without_capture(self._when.names, book)
        return lost or (None if self._when.value(names) else Skipped(f"{self._when.text} does not hold"))

    def _names(self, source: str, book: WorkContext) -> dict[str, Any]:
        names = dict(book.names)
        for name, let in self.asked.let.items():
            names[name] = _read_let(let, source, book, names)
        return names

    def _fill_assertion(self, names: Mapping[str, Any]) -> A:
        meant = validate_settings(self._settings, fill_templates(self._written, names))
        if meant.evidence is EvidenceDisplay.PLAIN:
            return meant
        # What was filled in comes from the world, and is not shown either.
        rules = {
            name: _as_written(getattr(self.asked, name), getattr(meant, name)) for name in self._settings.model_fields
        }
        return meant.model_copy(update=rules)


def _finding_without_capture(uses: AbstractSet[str], book: WorkContext) -> Finding | None:
    """What follows for a check that uses what an earlier one was to capture and did not."""
    name = min(uses & book.uncaptured.keys(), default=None)
    if name is None:
        return None
    why = f"nothing was captured as {name}"
    match book.uncaptured[name]:
        case Checked():
            return Checked("0", {"why": why, "fields": []}, Fault.AGENT)
        case Missing() as earlier:
            return Missing(f"{why}: {earlier.why}", earlier.cause, earlier.fault)
        case Skipped() as earlier:
            return Skipped(f"{why}: {earlier.why}")


# Any: whatever a setting holds.
def _as_written(written: Any, meant: Any) -> Any:
    """The rules of a setting, each shown as its author wrote it."""
    if isinstance(written, FieldRule) and isinstance(meant, FieldRule):
        return meant._replace(matcher=meant.matcher._replace(written=written.matcher.expected))
    if isinstance(written, dict) and isinstance(meant, dict):
        return {key: _as_written(written.get(key), one) for key, one in meant.items()}
    return meant


def validate_settings(settings: type[M], written: Mapping[str, Any]) -> M:
    """The assertion as its check understands it; AuthorError with every problem."""
    check_templates(dict(written))
    try:
        return settings.model_validate(dict(written))
    except ValidationError as refused:
        details = refused.errors(include_url=False)[:MAX_FAULTS]
    known = [field.alias or name for name, field in settings.model_fields.items()]
    raise AssertionFaults((_location_of(one), describe_error(one, known)) for one in details)


def _location_of(detail: ErrorDetails) -> tuple[str | int, ...]:
    """Where in the assertion; pydantic marks the key of a mapping with a step of its own."""
    return tuple(step for step in detail["loc"] if step != "[key]")


MAX_FAULTS = 20
"""Of one assertion that are told."""
MAX_KINDS_CHARS = 300
"""Characters of what each kind of source would have to say against a `let`."""


def _check_lets(asked: StateAssertion, kinds: frozenset[SourceKind]) -> None:
    """Refuse values of the state before that no source which may be meant can be asked for."""
    faults = []
    for name, let in asked.let.items():
        is_own = len(kinds) == 1 and let.source in (None, asked.source)
        why = _why_unreadable(let, kinds if is_own else frozenset(SourceKind))
        if why is not None:
            faults.append((("let", name), why))
    if faults:
        raise AssertionFaults(faults[:MAX_FAULTS])


def _why_unreadable(let: Let, kinds: frozenset[SourceKind]) -> str | None:
    """Why a value can be read from no source of these kinds; None where it may be."""
    whys: dict[SourceKind, str] = {}
    for kind in sorted(kinds):
        try:
            reader = reader_of(kind)
            selector = _static_selector(let.selector)
            if selector is not None:
                reader.narrow(selector)
            for path in (let.path, let.pick.partition(" ")[2]):
                if path:
                    reader.check_path(path, selector or {})
        except AuthorError as problem:
            whys[kind] = str(problem)
        else:
            return None
    if len(whys) == 1:
        return next(iter(whys.values()))
    return (
        f"no kind of source is read so: {'; '.join(f'{kind}: {why}' for kind, why in whys.items())[:MAX_KINDS_CHARS]}"
    )


def _static_selector(selector: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A selector without what is filled in when the check runs; None where the rest says too little."""
    if any(isinstance(value, str) and holds_template(value) for value in selector.values()):
        return None
    return {
        name: {key: one for key, one in value.items() if not holds_template(one)}
        if isinstance(value, Mapping)
        else value
        for name, value in selector.items()
    }


class _SourceNotRead(Exception):
    """A source that a `let` needs could not be read."""

    def __init__(self, missing: Missing) -> None:
        self.missing = missing


def _read_let(let: Let, source: str, book: WorkContext, names: Mapping[str, Any]) -> Any:
    """A value of the state before."""
    where = let.source or source
    if where not in book.sources():
        raise AuthorError(f"let: no source is called {where!r}; the task has {', '.join(book.sources())}")
    snapshot = book.before.get(where)
    missing = missing_if_unread(where, snapshot, "before")
    if missing is not None or snapshot is None:
        raise _SourceNotRead(missing or Missing(f"{where} was not read", Cause.CHECK_ERROR, Fault.SYSTEM))
    reader = reader_of(snapshot.kind)
    fits = reader.narrow(fill_templates(dict(let.selector), names))
    found = [
        document
        for one in sorted(snapshot.items, key=lambda item: item.key)
        if not isinstance(document := book.document(where, one, reader), UnreadableContent) and fits(one, document)
    ]
    values = reader.values(_pick_document(found, let, reader), let.path)
    if len(values) != 1:
        raise UnknownFormulaValue(f"{let.path} has {len(values):,} values in the state before")
    return values[0]


def _pick_document(found: list[Any], let: Let, reader: ItemReader) -> Any:
    how, _, path = let.pick.partition(" ")
    if not found or (how == "only" and len(found) > 1):
        raise UnknownFormulaValue(f"{len(found):,} items of the state before fit; pick says {let.pick}")
    if how in ("only", "first", "last"):
        return found[-1 if how == "last" else 0]
    dated = [(reader.values(document, path), document) for document in found]
    known = [
        (at, document)
        for values, document in dated
        if values and (at := parse_date_or_time(str(values[0]))) is not None
    ]
    if not known:
        raise UnknownFormulaValue(f"none of {len(found):,} items has a date at {path}")
    return (max if how == "latest" else min)(known, key=lambda pair: pair[0].instant())[1]


def reader_of(kind: SourceKind) -> PublicReader:
    """How items of that kind are read."""
    for check in checks:
        if kind in check.kinds and check.reader is not None:
            # The registry knows of readers only that they are objects.
            return check.reader  # type: ignore[no-any-return]
    raise AuthorError(f"no check reads {kind}, so no value can be taken from it")
