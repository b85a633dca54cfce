"""A document becomes a validated model, or every problem of it is told at once, in the author's words."""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from meruit.documents.complaints import ABOUT_A_KEY, found, message, short
from meruit.documents.document import MAX_PROBLEMS, Document, parse, told
from meruit.documents.tree import DUPLICATE, Path, spelled
from meruit.model.criterion import SuccessCriteria
from meruit.model.errors import CriteriaError, DocumentError, Problem, nearest

M = TypeVar("M", bound=BaseModel)

WRAPPER = "success_criteria"
"""The key that may stand around all criteria of a file."""

_EXAMPLE = "criteria: [{metric: accuracy, metric_type: percentage, comparison: gte, threshold: 0.9}]"


def read_model(
    document: Document, model: type[M], *, error: type[DocumentError] = DocumentError, prefix: Path = ()
) -> M:
    """Validate what the document says; the prefix is where the model's own content begins."""
    try:
        return model.model_validate(document.value)
    except ValidationError as refused:
        # A suggestion costs time, and nobody reads more of them than are told.
        details = refused.errors(include_url=False)[: MAX_PROBLEMS + 1]
    raise error(document.name, told(_problem(document, model, detail, prefix) for detail in details))


def parse_criteria(
    text: str | bytes,
    name: str = "criteria",
    *,
    known_metrics: Collection[str] | None = None,
    max_criteria: int | None = None,
) -> SuccessCriteria:
    """Read a criteria file; CriteriaError with every problem of it and its line."""
    try:
        document = parse(text, name)
    except DocumentError as refused:
        raise CriteriaError(name, map(_of_its_own, refused.problems)) from None
    whole = document.value
    prefix: Path = (WRAPPER,) if isinstance(whole, dict) and WRAPPER in whole else ()
    content = whole[WRAPPER] if prefix else whole
    problems: list[Problem] = []
    if prefix:
        problems = [_beside(document, key) for key in whole if key != WRAPPER]
        document = document._replace(value={WRAPPER: content})
    if not isinstance(content, dict):
        wish = f"expected a mapping, got {found(content)}; for example {_EXAMPLE}"
        raise CriteriaError(name, told([*problems, Problem(spelled(prefix), wish, document.line_of(prefix))]))
    problems += [
        Problem(spelled(path), fault, document.line_of(path))
        for path, fault in _beyond_the_model(content.get("criteria"), prefix, known_metrics, max_criteria)
    ]
    try:
        criteria = read_model(document, SuccessCriteria, error=CriteriaError, prefix=prefix)
    except CriteriaError as refused:
        problems += refused.problems
    else:
        if not problems:
            return criteria
    raise CriteriaError(name, told(problems))


def _of_its_own(problem: Problem) -> Problem:
    """Add what to do about two criteria sets in one file, as the specification prints them."""
    if problem.where == WRAPPER and problem.message.startswith(DUPLICATE):
        return problem._replace(message=f"{problem.message}; put each {WRAPPER} in a file of its own")
    return problem


def _beside(document: Document, key: str) -> Problem:
    return Problem("", f"{short(repr(key))} stands beside {WRAPPER}; move it inside", document.line_of((key,)))


# Any: the document has not been validated yet.
def _beyond_the_model(
    criteria: Any, prefix: Path, known_metrics: Collection[str] | None, max_criteria: int | None
) -> Iterator[tuple[Path, str]]:
    """Find what only the raw document shows, so that it is told even where validation fails."""
    if not isinstance(criteria, list):
        return
    place = (*prefix, "criteria")
    if not criteria:
        yield place, "no criteria: nothing could fail"
    if max_criteria is not None and len(criteria) > max_criteria:
        limit = f"at most {max_criteria} are taken (verification.max_criteria_per_task in the configuration)"
        yield place, f"{len(criteria):,} criteria; {limit}"
    if known_metrics is not None:
        unknown = (
            (number, criterion["metric"])
            for number, criterion in enumerate(criteria)
            if isinstance(criterion, Mapping)
            and isinstance(criterion.get("metric"), str)
            and criterion["metric"] not in known_metrics
        )
        for number, metric in islice(unknown, MAX_PROBLEMS + 1):
            named = f"{short(metric)}{nearest(metric, known_metrics)}"
            yield (*place, number, "metric"), f"Unknown metric: {named}; `meruit metrics` lists all"


def _problem(document: Document, model: type[BaseModel], detail: ErrorDetails, prefix: Path) -> Problem:
    path, known = _located(document, model, detail["loc"], prefix)
    line = document.line_of(path)
    if detail["type"] in ABOUT_A_KEY and path[-1:] == detail["loc"][-1:]:
        # The message names the key; the place is the mapping that lacks it or should not have it.
        path = path[:-1]
    return Problem(spelled(path), message(detail, known), line)


def _located(document: Document, model: type[BaseModel], loc: Path, prefix: Path) -> tuple[Path, Collection[str]]:
    """Follow pydantic's location to a path in the file, and to the keys that the model knows there.

    Pydantic adds steps that no file has: a union's branches, or the assertion of a criterion in flat form.
    """
    path, value = prefix, document.value
    for step in prefix:
        value = value[step]
    models = [model]
    fields = _fields(models)
    for position, step in enumerate(loc, start=1):
        fields = _fields(models)
        if _has(value, step):
            path, value = (*path, step), value[step]
        elif step in fields and position == len(loc):
            path = (*path, step)
        if step in fields:
            models = _models(fields[step].annotation)
    return path, [str(name) for name in fields]


# Any: the document may hold anything at that place.
def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, Mapping) and step in value


def _fields(models: list[type[BaseModel]]) -> dict[str | int, FieldInfo]:
    return {
        alias if isinstance(alias := field.validation_alias, str) else name: field
        for model in models
        for name, field in model.model_fields.items()
    }


# Any: an annotation may be any type expression.
def _models(annotation: Any) -> list[type[BaseModel]]:
    """Find the models inside an annotation such as `tuple[Model, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
