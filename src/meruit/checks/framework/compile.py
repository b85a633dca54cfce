"""Compiles an assertion once, to run it on any number of works; `state_check` registers a check."""

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
from meruit.checks.matching.formulas import Formula, check_templates, fill_templates, formulas_in
from meruit.checks.matching.matchers import holds_template
from meruit.checks.values.dates import parse_date_or_time
from meruit.documents.validation_messages import describe_error
from meruit.errors import AssertionFaults, AuthorError, SourceNotRead, UnknownFormulaValue, UnreadableContent
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
    is_text: Callable[[Mapping[str, Any]], bool] = lambda _settings: False,
) -> Callable[[Callable[[A, CheckContext], Finding]], Callable[[A, CheckContext], Finding]]:
    """Register the function below as the check that `assert: name` asks for.

    It gets the assertion, validated as `settings` and with every `${…}` filled in, and the context of its source.
    `evidence` is the name of its field results in the evidence. A check with `last` runs after all others; one that
    reads `several` sources needs no `from`. `is_text` takes the settings of an assertion, and says whether all values
    are text: a number in a file then means its text.
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
                is_text=is_text,
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
    """Compile an assertion; raises AuthorError with every problem."""
    asked = validate_settings(settings, assertion.settings)
    _check_lets(asked, kinds)
    prepared = _CompiledAssertion(assertion, asked, settings, kinds, decide, several)

    def run(work: Work) -> Finding:
        try:
            work_context = work.derive(build_work_context)
        except msgspec.ValidationError as problem:
            return Missing(f"the work has no readable environment state: {problem}", Cause.CHECK_ERROR, Fault.SYSTEM)
        known = work_context.names.get(asked.capture or "")
        finding = prepared.finding(work_context)
        if asked.capture is not None:
            if work_context.names.get(asked.capture) is not known:
                work_context.captured.add(asked.capture)
                work_context.uncaptured.pop(asked.capture, None)
            elif asked.capture not in work_context.captured:
                work_context.uncaptured[asked.capture] = finding
        return finding

    return run


class _CompiledAssertion(Generic[A]):
    """A compiled assertion, and the names that its formulas use."""

    def __init__(
        self,
        assertion: Assertion,
        asked: A,
        settings: type[A],
        kinds: frozenset[SourceKind],
        decide: Callable[[A, CheckContext], Finding],
        several: bool,  # noqa: FBT001 - passed through
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

    def finding(self, work_context: WorkContext) -> Finding:
        """Run the check."""
        wanted = self.asked.source or (work_context.first_source(self._kinds) if self._several else None)
        source = find_source(work_context, wanted, self._kinds)
        if isinstance(source, Missing):
            return source
        try:
            names = self._names(source, work_context)
            aside = self._finding_when_skipped(names, work_context) or _finding_without_capture(
                self._uses, work_context
            )
            if aside is not None:
                return aside
            meant = self._fill_assertion(names) if self._waits else self.asked
            return self._decide(
                meant,
                CheckContext(
                    source=source,
                    before=work_context.before.get(source),
                    after=work_context.after[source],
                    names=names,
                    work_context=work_context,
                ),
            )
        except SourceNotRead as problem:
            missing: Missing = problem.missing
            return missing
        except (UnknownFormulaValue, AuthorError) as problem:
            return _finding_without_capture(self._uses, work_context) or self._finding_when_uncomputable(
                problem, work_context
            )

    def _finding_when_uncomputable(self, problem: Exception, work_context: WorkContext) -> Finding:
        """A formula that fails on captured data is the agent's fault; any other failure is the author's."""
        if self._uses & work_context.captured:
            why = str(problem) if self.asked.evidence is EvidenceDisplay.PLAIN else REDACTED_REASON
            return Checked("0", {"why": why, "fields": []}, Fault.AGENT)
        return Missing(str(problem), Cause.AUTHOR_ERROR, Fault.AUTHOR)

    def _finding_when_skipped(self, names: Mapping[str, Any], work_context: WorkContext) -> Finding | None:
        if self._when is None:
            return None
        lost = _finding_without_capture(self._when.names, work_context)
        return lost or (None if self._when.value(names) else Skipped(f"{self._when.text} does not hold"))

    def _names(self, source: str, work_context: WorkContext) -> dict[str, Any]:
        names = dict(work_context.names)
        for name, let in self.asked.let.items():
            names[name] = _read_let(let, source, work_context, names)
        return names

    def _fill_assertion(self, names: Mapping[str, Any]) -> A:
        meant = validate_settings(self._settings, fill_templates(self._written, names))
        if meant.evidence is EvidenceDisplay.PLAIN:
            return meant
        # Values that were filled in come from the environment, so they must not be shown either.
        rules = {
            name: _as_written(getattr(self.asked, name), getattr(meant, name)) for name in self._settings.model_fields
        }
        return meant.model_copy(update=rules)


def _finding_without_capture(uses: AbstractSet[str], work_context: WorkContext) -> Finding | None:
    """The finding of a check that uses a name which an earlier check failed to capture."""
    name = min(uses & work_context.uncaptured.keys(), default=None)
    if name is None:
        return None
    why = f"nothing was captured as {name}"
    match work_context.uncaptured[name]:
        case Checked():
            return Checked("0", {"why": why, "fields": []}, Fault.AGENT)
        case Missing() as earlier:
            return Missing(f"{why}: {earlier.why}", earlier.cause, earlier.fault)
        case Skipped() as earlier:
            return Skipped(f"{why}: {earlier.why}")


# Any: the value of a setting.
def _as_written(written: Any, meant: Any) -> Any:
    """The rules of a setting, displayed as the author wrote them."""
    if isinstance(written, FieldRule) and isinstance(meant, FieldRule):
        return msgspec.structs.replace(
            meant, matcher=msgspec.structs.replace(meant.matcher, written=written.matcher.expected)
        )
    if isinstance(written, dict) and isinstance(meant, dict):
        return {key: _as_written(written.get(key), one) for key, one in meant.items()}
    return meant


def validate_settings(settings: type[M], written: Mapping[str, Any]) -> M:
    """Validate the settings of an assertion; raises AssertionFaults with every problem."""
    check_templates(dict(written))
    try:
        return settings.model_validate(dict(written))
    except ValidationError as refused:
        details = refused.errors(include_url=False)[:MAX_FAULTS]
    known = [field.alias or name for name, field in settings.model_fields.items()]
    raise AssertionFaults((_location_of(one), describe_error(one, known)) for one in details)


def _location_of(detail: ErrorDetails) -> tuple[str | int, ...]:
    """The path inside the assertion, without the extra step that pydantic adds for the key of a mapping."""
    return tuple(step for step in detail["loc"] if step != "[key]")


MAX_FAULTS = 20
"""The most faults reported for one assertion."""
MAX_KINDS_CHARS = 300
"""Characters of the reasons why no kind of source fits a `let`."""


def _check_lets(asked: StateAssertion, kinds: frozenset[SourceKind]) -> None:
    """Refuse a `let` that no source of a possible kind can answer."""
    faults = []
    for name, let in asked.let.items():
        is_own = len(kinds) == 1 and let.source in (None, asked.source)
        why = _why_unreadable(let, kinds if is_own else frozenset(SourceKind))
        if why is not None:
            faults.append((("let", name), why))
    if faults:
        raise AssertionFaults(faults[:MAX_FAULTS])


def _why_unreadable(let: Let, kinds: frozenset[SourceKind]) -> str | None:
    """Why no source of these kinds can give the value; None where one may."""
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
    return f"no kind of source fits: {'; '.join(f'{kind}: {why}' for kind, why in whys.items())[:MAX_KINDS_CHARS]}"


def _static_selector(selector: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The selector without its templates, which are filled in later; None where the rest is not enough."""
    if any(isinstance(value, str) and holds_template(value) for value in selector.values()):
        return None
    return {
        name: {key: one for key, one in value.items() if not holds_template(one)}
        if isinstance(value, Mapping)
        else value
        for name, value in selector.items()
    }


def _read_let(let: Let, source: str, work_context: WorkContext, names: Mapping[str, Any]) -> Any:
    """Read a value from the state before the run."""
    where = let.source or source
    if where not in work_context.sources():
        raise AuthorError(f"let: unknown source {where!r}; the task has {', '.join(work_context.sources())}")
    snapshot = work_context.before.get(where)
    missing = missing_if_unread(where, snapshot, "before")
    if missing is not None or snapshot is None:
        raise SourceNotRead(missing or Missing(f"{where} was not read", Cause.CHECK_ERROR, Fault.SYSTEM))
    reader = reader_of(snapshot.kind)
    fits = reader.narrow(fill_templates(dict(let.selector), names))
    found = [
        document
        for one in sorted(snapshot.items, key=lambda item: item.key)
        if not isinstance(document := work_context.document(where, one, reader), UnreadableContent)
        and fits(one, document)
    ]
    values = reader.values(_pick_document(found, let, reader), let.path)
    if len(values) != 1:
        raise UnknownFormulaValue(
            f"{let.path} has {len(values):,} values in the state before the run; exactly one is needed"
        )
    return values[0]


def _pick_document(found: list[Any], let: Let, reader: ItemReader) -> Any:
    how, _, path = let.pick.partition(" ")
    if not found or (how == "only" and len(found) > 1):
        raise UnknownFormulaValue(f"{len(found):,} items of the state before the run fit; pick is {let.pick}")
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
    """The reader of items of that kind."""
    for check in checks:
        if kind in check.kinds and check.reader is not None:
            # The registry types readers as Any.
            return check.reader  # type: ignore[no-any-return]
    raise AuthorError(f"no installed check reads {kind}")
