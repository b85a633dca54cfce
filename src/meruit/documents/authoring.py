"""Turns documents into validated models, and reports every problem at once in the author's words."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from meruit.documents.document import MAX_PROBLEMS, Document, parse, sort_and_limit_problems
from meruit.documents.metric_defaults import fill_metric_defaults
from meruit.documents.tree import DUPLICATE, Path, format_path
from meruit.documents.validation_messages import ABOUT_A_KEY, describe_error, describe_value, short
from meruit.errors import CriteriaError, DocumentError, MeruitError, Problem
from meruit.model.criterion import Assertion, CustomMetric, SuccessCriteria, SuccessCriterion
from meruit.model.limits import MAX_CUSTOM_METRICS
from meruit.registry import MetricNames, checks, faults_of, metrics

if TYPE_CHECKING:
    # Criteria alone need neither, and both take a moment to load.
    from meruit.model.contract import WorkSubmission
    from meruit.model.task import Benchmark

M = TypeVar("M", bound=BaseModel)

WRAPPER = "success_criteria"
"""The optional outer key of a criteria file."""

CUSTOM = "custom_metrics"
"""The key of the metrics that a file defines itself."""
CODE_FILE = "code_file"
ASSERTION = "assertion"
_RULES = frozenset({"fields", "where", "correlate_by"})
"""The settings of an assertion that hold matchers."""
_LITERAL = frozenset({"equals", "expected", "in", "not_in", "not", "set", "any", "all", "none", "one_of", "all_of"})
"""The matchers that compare for equality, or hold others that may."""

Gather = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
"""Reads the files that a seed names, except those that are attached already."""


class CriteriaParts(msgspec.Struct, frozen=True):
    """The parts of criteria that are valid by themselves, each with its position, even where others are not."""

    criteria: list[tuple[int, SuccessCriterion]]
    custom_metrics: list[tuple[int, CustomMetric]]


class CriteriaFault(msgspec.Struct, frozen=True):
    """What an engine finds wrong with valid criteria: params, patterns, schemas, expressions, code."""

    path: Path
    """Inside the criteria."""
    message: str
    text_line: int | None = None
    """The line of the text at the path, where the text has several."""


Examine = Callable[[CriteriaParts], Iterable[CriteriaFault]]
"""Finds what an engine could not do with the criteria as they are written."""

ExamineBenchmark = Callable[["Benchmark"], Iterable[tuple[Path, str]]]
"""Finds faults of assertions that only the whole benchmark shows; a path is that of a criterion and inside it."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_EXAMPLE = "criteria: [{metric: accuracy, comparison: gte, threshold: 0.9}]"


def read_model(
    document: Document, model: type[M], *, error: type[DocumentError] = DocumentError, prefix: Path = ()
) -> M:
    """Validate the document; the prefix is the path where the model's content begins."""
    try:
        return model.model_validate(document.value)
    except ValidationError as refused:
        # Suggestions cost time, so they are made only for the problems that are reported.
        details = refused.errors(include_url=False)[: MAX_PROBLEMS + 1]
    raise error(document.name, sort_and_limit_problems(_problem(document, model, detail, prefix) for detail in details))


def parse_criteria(
    text: str | bytes | Mapping[str, Any],
    name: str = "criteria",
    *,
    known_metrics: Collection[str] | None = None,
    max_criteria: int | None = None,
    read_code: Callable[[str], str] | None = None,
    assertions_too: bool = False,
    examine: Examine | None = None,
) -> SuccessCriteria:
    """Read a criteria file, or a mapping that a program parsed; raises CriteriaError with every problem and its line.

    With `assertions_too`, each assertion is validated by its check too. `read_code` reads a `code_file` and raises
    MeruitError when it cannot; without it, no file is read. `examine` finds faults of params, expressions and code.
    """
    try:
        document = Document(name=name, value=dict(text), lines={}) if isinstance(text, Mapping) else parse(text, name)
    except DocumentError as refused:
        raise CriteriaError(name, map(_advise_separate_files, refused.problems)) from None
    whole = document.value
    prefix: Path = (WRAPPER,) if isinstance(whole, dict) and WRAPPER in whole else ()
    content = whole[WRAPPER] if prefix else whole
    problems: list[Problem] = []
    if prefix:
        problems = [_sibling_key_problem(document, key) for key in whole if key != WRAPPER]
        document = msgspec.structs.replace(document, value={WRAPPER: content})
    if not isinstance(content, dict):
        expected = f"expected a mapping, got {describe_value(content)}; for example {_EXAMPLE}"
        raise CriteriaError(
            name,
            sort_and_limit_problems(
                [*problems, Problem(where=format_path(prefix), message=expected, line=document.line_of(prefix))]
            ),
        )
    content = _fill_criteria(content)
    document = msgspec.structs.replace(document, value={WRAPPER: content} if prefix else content)
    beyond = [*_find_raw_problems(content, prefix, known_metrics, max_criteria)]
    _keep_written_numbers(document, content.get("criteria"), (*prefix, "criteria"))
    if assertions_too:
        beyond += islice(find_assertion_faults(content.get("criteria"), (*prefix, "criteria")), MAX_PROBLEMS + 1)
    if read_code is not None:
        document, unread = _with_code(document, prefix, read_code)
        beyond += unread
    problems += [Problem(where=format_path(path), message=fault, line=document.line_of(path)) for path, fault in beyond]
    criteria: SuccessCriteria | None = None
    try:
        criteria = read_model(document, SuccessCriteria, error=CriteriaError, prefix=prefix)
    except CriteriaError as refused:
        problems += refused.problems
    if examine is not None:
        read = document.value[WRAPPER] if prefix else document.value
        parts = parts_of(criteria) if criteria is not None else _find_valid_parts(read, max_criteria)
        problems += _examine_parts(document, prefix, parts, examine, content)
    if criteria is not None and not problems:
        return criteria
    raise CriteriaError(name, sort_and_limit_problems(problems))


# Any: the document has not been validated yet.
def _fill_criteria(content: dict[str, Any]) -> dict[str, Any]:
    """The criteria with what their metrics say about them."""
    declared = frozenset(name for _, name in _custom_metric_names(content))
    return {
        key: fill_metric_defaults(value, declared) if key == "criteria" else value for key, value in content.items()
    }


def parts_of(criteria: SuccessCriteria) -> CriteriaParts:
    """All parts of valid criteria."""
    return CriteriaParts([*enumerate(criteria.criteria)], [*enumerate(criteria.custom_metrics)])


# Any: the document is not valid as a whole.
def _find_valid_parts(content: Any, max_criteria: int | None) -> CriteriaParts:
    """The criteria and custom metrics that are valid by themselves; what is beyond a limit is refused anyway."""
    content = content if isinstance(content, Mapping) else {}

    def read(key: str, model: type[M], limit: int | None) -> Iterator[tuple[int, M]]:
        listed = content.get(key)
        for number, one in enumerate(listed[:limit] if isinstance(listed, list) else ()):
            try:
                yield number, model.model_validate(one)
            except ValidationError:
                continue  # Reported already.

    return CriteriaParts(
        [*read("criteria", SuccessCriterion, max_criteria)], [*read(CUSTOM, CustomMetric, MAX_CUSTOM_METRICS)]
    )


def _examine_parts(
    document: Document, prefix: Path, parts: CriteriaParts, examine: Examine, written: dict[str, Any]
) -> Iterator[Problem]:
    """The faults as problems of the document; those of code in a file of its own name that file."""
    files: dict[Path, Any] = {
        (CUSTOM, number, "code"): custom[CODE_FILE]
        for number, custom in _custom_metrics(written)
        if CODE_FILE in custom
    }
    loadable = [(number, custom) for number, custom in parts.custom_metrics if custom.code != _UNREAD]
    parts = msgspec.structs.replace(parts, custom_metrics=loadable)
    for fault in islice(examine(parts), MAX_PROBLEMS + 1):
        path = (*prefix, *fault.path)
        message = f"{files[fault.path]}: {fault.message}" if fault.path in files else fault.message
        yield Problem(where=format_path(path), message=message, line=document.line_in_text(path, fault.text_line))


def parse_work(
    text: str | bytes | Mapping[str, Any],
    name: str = "work",
    *,
    known_metrics: Collection[str] | None = None,
    max_criteria: int | None = None,
    examine: Examine | None = None,
) -> "WorkSubmission":
    """Read work that a client publishes; raises DocumentError with every problem and its line."""
    document = Document(name=name, value=dict(text), lines={}) if isinstance(text, Mapping) else parse(text, name)
    content = document.value.get(WRAPPER) if isinstance(document.value, dict) else None
    prefix: Path = (WRAPPER,)
    if isinstance(content, dict) and content.keys() == {WRAPPER}:
        # A pasted criteria file brings its outer key a second time; the model accepts that.
        content, prefix = content[WRAPPER], (WRAPPER, WRAPPER)
    if isinstance(content, dict):
        content = _fill_criteria(content)
        filled = {WRAPPER: content} if len(prefix) > 1 else content
        document = msgspec.structs.replace(document, value=document.value | {WRAPPER: filled})
    problems = [
        Problem(where=format_path(path), message=fault, line=document.line_of(path))
        for path, fault in (
            _find_raw_problems(content, prefix, known_metrics, max_criteria) if isinstance(content, dict) else ()
        )
    ]
    from meruit.model.contract import WorkSubmission

    work: WorkSubmission | None = None
    try:
        work = read_model(document, WorkSubmission)
    except DocumentError as refused:
        problems += refused.problems
    if examine is not None and isinstance(content, dict):
        criteria = None if work is None else work.success_criteria
        parts = parts_of(criteria) if criteria is not None else _find_valid_parts(content, max_criteria)
        problems += _examine_parts(document, prefix, parts, examine, content)
    if work is not None and not problems:
        return work
    raise DocumentError(name, sort_and_limit_problems(problems))


def locate_problems(text: str | bytes, name: str, problems: Iterable[Problem]) -> list[Problem]:
    """Add the lines of a work file to problems that were found after it was read."""
    document = parse(text, name)
    content = document.value.get(WRAPPER) if isinstance(document.value, dict) else None
    twice = isinstance(content, dict) and content.keys() == {WRAPPER}
    located = list[Problem]()
    for problem in problems:
        steps = [int(number) if number else step for step, number in _STEP.findall(problem.where)]
        path = (*steps[:1], WRAPPER, *steps[1:]) if twice and steps[:1] == [WRAPPER] else tuple(steps)
        located.append(problem._replace(line=document.line_of(path)))
    return sort_and_limit_problems(located)


def parse_benchmark(
    text: str | bytes | Mapping[str, Any] | Document,
    name: str = "benchmark",
    *,
    gather: Gather | None = None,
    examine: ExamineBenchmark | None = None,
) -> "Benchmark":
    """Read a benchmark; raises DocumentError with every problem and its line, those of its assertions included.

    `examine` finds what is wrong with a valid benchmark as a whole. `gather` takes a seed and the benchmark's own
    attachments, reads the other files that the seed names, and raises MeruitError for a file that it cannot read.
    """
    if isinstance(text, Document):
        document = text
    else:
        document = Document(name=name, value=dict(text), lines={}) if isinstance(text, Mapping) else parse(text, name)
    problems = list[Problem]()
    whole = document.value if isinstance(document.value, dict) else {}
    if isinstance(listed := whole.get("tasks"), list):
        whole = whole | {"tasks": [_fill_criteria(task) if isinstance(task, dict) else task for task in listed]}
        document = msgspec.structs.replace(document, value=whole)
    listed = whole.get("tasks")
    tasks = [
        (number, one) for number, one in enumerate(listed if isinstance(listed, list) else ()) if isinstance(one, dict)
    ]
    for number, task in tasks:
        place = ("tasks", number, "criteria")
        _keep_written_numbers(document, task.get("criteria"), place)
        problems += [
            Problem(where=format_path(path), message=fault, line=document.line_of(path))
            for path, fault in islice(find_assertion_faults(task.get("criteria"), place), MAX_PROBLEMS + 1)
        ]
    if gather is not None:
        # The model reports attachments that are not a mapping.
        own = whole.get("attachments", {})
        given: Mapping[str, Any] = own if isinstance(own, dict) else {}
        attached, unread = _attachments(document, tasks, lambda seed: gather(seed, given))
        problems += unread
        if attached and given is own:
            document = msgspec.structs.replace(document, value=whole | {"attachments": {**attached, **given}})
    from meruit.model.task import Benchmark

    try:
        benchmark = read_model(document, Benchmark)
    except DocumentError as refused:
        problems += refused.problems
    else:
        if examine is not None:
            located = (
                (_path_as_written(whole, path), fault) for path, fault in islice(examine(benchmark), MAX_PROBLEMS)
            )
            problems += [
                Problem(where=format_path(path), message=fault, line=document.line_of(path)) for path, fault in located
            ]
        if not problems:
            return benchmark
    raise DocumentError(name, sort_and_limit_problems(problems))


def _path_as_written(whole: dict[str, Any], path: Path) -> Path:
    """The path in the file of a part of an assertion: the file may have the assertion under a key of its own."""
    task, criterion = path[1], path[3]
    nested = ASSERTION in whole["tasks"][task]["criteria"][criterion]
    return (*path[:4], ASSERTION, *path[4:]) if nested else path


def _attachments(
    document: Document, tasks: list[tuple[int, dict[str, Any]]], gather: Callable[[Any], Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Problem]]:
    """Read the files that the tasks' seeds name; returns them and the problems. Each seed is read once."""
    attached, problems, done = dict[str, Any](), list[Problem](), list[Any]()
    for number, task in tasks:
        seeds = task.get("seed")
        for place, seed in enumerate(seeds if isinstance(seeds, list) else [seeds]):
            # The model reports a seed that is neither a name nor a mapping.
            if not isinstance(seed, str | Mapping) or seed in done:
                continue
            done.append(seed)
            path: Path = ("tasks", number, "seed", place) if isinstance(seeds, list) else ("tasks", number, "seed")
            try:
                attached |= gather(seed)
            except DocumentError as refused:
                # These problems have lines of the seed's file; an inline seed has no file.
                named = f"{refused.name}: " if isinstance(seed, str) else ""
                line = document.line_of(path)
                problems += [
                    Problem(where=format_path(path), message=f"{named}{one}", line=line) for one in refused.problems
                ]
            except MeruitError as refused:
                problems.append(Problem(where=format_path(path), message=str(refused), line=document.line_of(path)))
    return attached, problems


def _advise_separate_files(problem: Problem) -> Problem:
    """Add what to do about two criteria sets in one file."""
    if problem.where == WRAPPER and problem.message.startswith(DUPLICATE):
        return problem._replace(message=f"{problem.message}; put each {WRAPPER} in a file of its own")
    return problem


def _sibling_key_problem(document: Document, key: str) -> Problem:
    return Problem(
        where="", message=f"{short(repr(key))} is outside of {WRAPPER}; move it inside", line=document.line_of((key,))
    )


# Any, here and below: the document has not been validated yet.
def _find_raw_problems(
    content: dict[str, Any], prefix: Path, known_metrics: Collection[str] | None, max_criteria: int | None
) -> Iterator[tuple[Path, str]]:
    """Find problems in the raw document, so that they are reported even when validation fails."""
    criteria, declared = content.get("criteria"), _custom_metric_names(content)
    for number, name in declared:
        if known_metrics is not None and name in known_metrics:
            yield (*prefix, CUSTOM, number, "metrics"), f"a built-in metric is named {short(name)}; use another name"
    if not isinstance(criteria, list):
        return
    place = (*prefix, "criteria")
    if not criteria:
        yield place, "the list of criteria is empty; add at least one"
    if max_criteria is not None and len(criteria) > max_criteria:
        limit = f"at most {max_criteria} are allowed (verification.max_criteria_per_task in the configuration)"
        yield place, f"{len(criteria):,} criteria; {limit}"
    if known_metrics is not None:
        known = dict.fromkeys([*known_metrics, *(name for _, name in declared)])
        off = known_metrics.switched_off if isinstance(known_metrics, MetricNames) else {}
        unknown = (
            (number, criterion["metric"])
            for number, criterion in enumerate(criteria)
            if isinstance(criterion, Mapping)
            # The metric of an expression is the name that it gives itself.
            and "expr" not in criterion
            and isinstance(criterion.get("metric"), str)
            and criterion["metric"] not in known
        )
        for number, metric in islice(unknown, MAX_PROBLEMS + 1):
            if metric in off:
                yield (*place, number, "metric"), f"the metric {short(metric)} is switched off: {off[metric]}"
                continue
            named = f"{short(metric)}{metrics.suggest(metric, known)}"
            yield (*place, number, "metric"), f"Unknown metric: {named}; `meruit metrics` lists all"


def find_assertion_faults(criteria: Any, place: Path) -> Iterator[tuple[Path, str]]:
    """Let the checks validate the assertions of a list of criteria, before the criteria are read."""
    for here, written in _assertions_as_written(criteria, place):
        # In flat form, the criterion's own keys are beside those of its assertion.
        foreign = frozenset[str]() if here[-1] == ASSERTION else SuccessCriterion.COMMON
        try:
            assertion = Assertion.model_validate({key: one for key, one in written.items() if key not in foreign})
        except ValidationError:
            continue  # The model reports it.
        for path, fault in faults_of(assertion):
            yield (*here, *path), fault


def _assertions_as_written(criteria: Any, place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The assertions of a list of criteria, each with its path in the file."""
    for number, criterion in enumerate(criteria if isinstance(criteria, list) else ()):
        if not isinstance(criterion, dict):
            continue
        flat = "assert" in criterion and ASSERTION not in criterion
        written = criterion if flat else criterion.get(ASSERTION)
        if isinstance(written, dict):
            yield (*place, number) if flat else (*place, number, ASSERTION), written


def _keep_written_numbers(document: Document, criteria: Any, place: Path) -> None:
    """Replace numbers that are compared with text by their own text: YAML reads 450.00 as 450."""
    if not document.numbers:
        return
    for here, written in _assertions_as_written(criteria, place):
        check = checks.find(str(written.get("assert")))
        if check is None or not check.is_text(written):
            continue
        for path, text in document.numbers.items():
            if path[: len(here)] == here and _is_literal(path[len(here) :]):
                holder: Any = document.value
                for step in path[:-1]:
                    holder = holder[step]
                holder[path[-1]] = text


def _is_literal(path: Path) -> bool:
    """Whether a value of an assertion is compared for equality, by its path in the assertion."""
    start = next((place for place, step in enumerate(path) if step in _RULES), None)
    if start is None:
        return False
    # After the setting comes the path of a field, or in a list its position.
    return len(path) > start + 1 and all(isinstance(step, int) or step in _LITERAL for step in path[start + 2 :])


def _custom_metrics(content: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The custom metrics of a file that are mappings, with their positions."""
    customs = content.get(CUSTOM)
    listed = enumerate(customs) if isinstance(customs, list) else ()
    return [(number, custom) for number, custom in listed if isinstance(custom, dict)]


def _custom_metric_names(content: dict[str, Any]) -> list[tuple[int, str]]:
    """Every name that a custom metric of the file declares, with the metric's position."""
    return [
        (number, name)
        for number, custom in _custom_metrics(content)
        if isinstance(names := custom.get("metrics"), list)
        for name in names
        if isinstance(name, str)
    ]


def _with_code(
    document: Document, prefix: Path, read_code: Callable[[str], str]
) -> tuple[Document, list[tuple[Path, str]]]:
    """Replace each `code_file` by the code in it; returns the new document and the problems."""
    content: dict[str, Any] = document.value[WRAPPER] if prefix else document.value
    lines, faults = dict(document.lines), list[tuple[Path, str]]()
    customs = content.get(CUSTOM)
    replaced: dict[int, dict[str, Any]] = {}
    for number, custom in _custom_metrics(content):
        if CODE_FILE not in custom:
            continue
        place = (*prefix, CUSTOM, number)
        # A file with too many custom metrics is refused anyway, so the rest is not read.
        code, fault = _code_of(custom, read_code) if number < MAX_CUSTOM_METRICS else (_UNREAD, "")
        if fault:
            faults.append(((*place, CODE_FILE), fault))
        replaced[number] = {key: value for key, value in custom.items() if key != CODE_FILE} | {"code": code}
        # A problem in the code is reported on the line that names its file.
        lines[*place, "code"] = lines[*place, CODE_FILE]
    if not replaced:
        return document, faults
    content = content | {CUSTOM: [replaced.get(number, custom) for number, custom in enumerate(customs or [])]}
    return Document(name=document.name, value={WRAPPER: content} if prefix else content, lines=lines), faults


def _code_of(custom: dict[str, Any], read_code: Callable[[str], str]) -> tuple[str, str]:
    """Read the file that a custom metric names; returns the code and the problem, one of them empty."""
    file = custom[CODE_FILE]
    if "code" in custom:
        return _UNREAD, f"use either code or {CODE_FILE}, not both"
    if not isinstance(file, str):
        return _UNREAD, f"expected text, got {describe_value(file)}"
    try:
        return read_code(file), ""
    except MeruitError as refused:
        return _UNREAD, str(refused)


_UNREAD = "unread"
"""Placeholder for code that could not be read."""


def _problem(document: Document, model: type[BaseModel], detail: ErrorDetails, prefix: Path) -> Problem:
    path, known = _locate(document, model, detail["loc"], prefix)
    line = document.line_of(path)
    if detail["type"] in ABOUT_A_KEY and path[-1:] == detail["loc"][-1:]:
        # The message names the key; the path is that of the mapping.
        path = path[:-1]
    return Problem(where=format_path(path), message=describe_error(detail, known), line=line)


def _locate(document: Document, model: type[BaseModel], loc: Path, prefix: Path) -> tuple[Path, Collection[str]]:
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


# Any: the document may hold anything there.
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
