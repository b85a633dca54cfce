"""How an assertion is compiled once and run on any number of works; the decorator by which a check is added."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from meruit.checks.assertion import Let, StateAssertion
from meruit.checks.formulas import Formula, Unknown, filled
from meruit.checks.matchers import holds_template
from meruit.checks.moments import moment
from meruit.checks.scene import Book, Reader, Scene, find_source, open_book, unread
from meruit.checks.unreadable import Unreadable
from meruit.model.criterion import Assertion
from meruit.model.errors import AssertionFaults, AuthorError, nearest
from meruit.model.evidence import Cause, Checked, Fault, Missing, Skipped
from meruit.model.work import Work
from meruit.model.world import SourceKind
from meruit.registry import Check, CheckExample, checks

A = TypeVar("A", bound=StateAssertion)
Finding = Checked | Missing | Skipped
Decide = Callable[[Any, Scene], Finding]


def state_check(  # noqa: PLR0913 - one a property of a check
    name: str,
    *,
    reads: Sequence[SourceKind],
    settings: type[A],
    evidence: str = "fieldResults",
    reader: Reader | None = None,
    examples: Sequence[CheckExample] = (),
    version: str = "1",
    last: bool = False,
    several: bool = False,
) -> Callable[[Callable[[A, Scene], Finding]], Callable[[A, Scene], Finding]]:
    """Register the function below as the check that `assert: name` asks for.

    It gets the assertion, validated as `settings` and with every `${…}` filled in, and the scene of its source.
    `evidence` is the specification's name for its field results. A check with `last` runs after all others; one that
    reads `several` sources at once needs not be told which.
    """
    kinds = frozenset(reads)

    def register(decide: Callable[[A, Scene], Finding]) -> Callable[[A, Scene], Finding]:
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
    decide: Callable[[A, Scene], Finding],
    *,
    several: bool = False,
) -> Callable[[Work], Finding]:
    """Compile an assertion; AuthorError with all that is wrong with it."""
    asked = understood(settings, assertion.settings)
    waits = holds_template({name: value for name, value in assertion.settings.items() if name != "let"})
    when = None if asked.when is None else Formula(asked.when)

    def run(work: Work) -> Finding:
        try:
            book = work.derive(open_book)
        except msgspec.ValidationError as problem:
            return Missing(f"the work holds no world that could be read: {problem}", Cause.CHECK_ERROR, Fault.SYSTEM)
        wanted = asked.source or (next(iter(sorted(book.after)), None) if several else None)
        source = find_source(book, wanted, kinds)
        if isinstance(source, Missing):
            return source
        try:
            names = book.names | {name: _read(let, source, book) for name, let in asked.let.items()}
            if when is not None and not when.value(names):
                return Skipped(f"{asked.when} does not hold in the state before")
            meant = understood(settings, filled(dict(assertion.settings), names)) if waits else asked
        except Unknown as nothing:
            return _unknown(nothing, book)
        except AuthorError as problem:
            return Missing(str(problem), Cause.AUTHOR_ERROR, Fault.AUTHOR)
        except _Unread as problem:
            return problem.missing
        scene = Scene(source, book.before.get(source), book.after[source], names, book)
        finding = decide(meant, scene)
        if asked.capture is not None and asked.capture not in book.names:
            book.uncaptured[asked.capture] = finding
        return finding

    return run


def _unknown(nothing: Unknown, book: Book) -> Finding:
    """What it means that a name stands for nothing: the state before lacks it, or an earlier check found nothing."""
    earlier = book.uncaptured.get(nothing.name)
    if isinstance(earlier, Checked):
        return Checked("0", {"why": f"nothing was captured as {nothing.name}", "fields": []}, Fault.AGENT)
    if isinstance(earlier, Missing):
        return Missing(f"nothing was captured as {nothing.name}: {earlier.why}", earlier.cause, earlier.fault)
    if isinstance(earlier, Skipped):
        return Skipped(f"nothing was captured as {nothing.name}: {earlier.why}")
    return Missing(str(nothing), Cause.AUTHOR_ERROR, Fault.AUTHOR)


def understood(settings: type[A], written: Mapping[str, Any]) -> A:
    """The assertion as its check understands it; AuthorError with every problem."""
    try:
        return settings.model_validate(dict(written))
    except ValidationError as refused:
        details = refused.errors(include_url=False)[:MAX_FAULTS]
    known = [field.alias or name for name, field in settings.model_fields.items()]
    raise AssertionFaults((one["loc"], _told(one, known)) for one in details)


def _told(detail: ErrorDetails, known: list[str]) -> str:
    if detail["type"] == "extra_forbidden":
        name = str(detail["loc"][-1])
        return f"there is no setting {name!r}{nearest(name, known)}"
    return detail["msg"].removeprefix("Value error, ")


MAX_FAULTS = 20
"""Of one assertion that are told."""


class _Unread(Exception):
    """A source that a `let` needs could not be read."""

    def __init__(self, missing: Missing) -> None:
        self.missing = missing


def _read(let: Let, source: str, book: Book) -> Any:
    """A value of the state before."""
    where = let.source or source
    snapshot = book.before.get(where)
    missing = unread(where, snapshot, "before")
    if missing is not None or snapshot is None:
        raise _Unread(missing or Missing(f"{where} was not read", Cause.CHECK_ERROR, Fault.SYSTEM))
    reader = reader_of(snapshot.kind)
    fits = reader.narrow(let.selector)
    found = [
        document
        for one in sorted(snapshot.items, key=lambda item: item.key)
        if not isinstance(document := book.document(where, one, reader), Unreadable) and fits(one, document)
    ]
    values = reader.values(_picked(found, let, reader), let.path)
    if len(values) != 1:
        raise Unknown(f"{let.path} has {len(values):,} values in the state before")
    return values[0]


def _picked(found: list[Any], let: Let, reader: Reader) -> Any:
    how, _, path = let.pick.partition(" ")
    if not found or (how == "only" and len(found) > 1):
        raise Unknown(f"{len(found):,} items of the state before fit; pick says {let.pick}")
    if how in ("only", "first", "last"):
        return found[-1 if how == "last" else 0]
    dated = [(reader.values(document, path), document) for document in found]
    known = [(at, document) for values, document in dated if values and (at := moment(str(values[0]))) is not None]
    if not known:
        raise Unknown(f"none of {len(found):,} items has a date at {path}")
    return (max if how == "latest" else min)(known, key=lambda pair: pair[0].inside(UTC).at.timestamp())[1]


def reader_of(kind: SourceKind) -> Reader:
    """How items of that kind are read."""
    for check in checks:
        if kind in check.kinds and check.reader is not None:
            # The registry knows of readers only that they are objects.
            return check.reader  # type: ignore[no-any-return]
    raise AuthorError(f"no check reads {kind}, so no value can be taken from it")
