"""What an author must mend, found when criteria are read: params, patterns, schemas, expressions and code.

Nothing is judged here. Expressions are compiled, and code is loaded in its sandbox without being called.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from meruit.documents.authoring import CUSTOM, CriteriaFault, CriteriaParts, Examine, parts_of
from meruit.documents.document import MAX_PROBLEMS, sort_and_limit_problems
from meruit.documents.tree import Path, format_path
from meruit.errors import CriteriaError, Failure, MissingExtra, Problem, SandboxError
from meruit.model.criterion import CustomMetric, SuccessCriteria, SuccessCriterion
from meruit.model.kinds import YES_OR_NO, MetricType, Tier
from meruit.model.text import escape_control_characters
from meruit.registry import Ask
from meruit.sandbox.contract import SandboxResult, may_run_in_wider_tier
from meruit.verify.catalogue import Catalogue, ask_of
from meruit.verify.custom_code import Sandboxes

LOAD_TIMEOUT_MS = 2_000
"""How long one piece of code may take to load; the first that takes longer is the last that is loaded."""
MAX_TRIALS = 300
"""How often a metric is prepared, at most, to find out which of a criterion's params are at fault."""
_THRESHOLD: Path = ("threshold",)
_LINE = re.compile(r"\(line (\d+)\)$|\(line (\d+)\);")
_NEEDED = re.compile(r"\bneeds the param (\w+)")
_PLACE = re.compile(r"^(\d+):\d+: ")
"""Line and column at the beginning of a message about an expression."""


def examine_with(catalogue: Catalogue) -> Examine:
    """The examination of criteria by the engine that has this catalogue."""
    return partial(find_faults, catalogue)


def refuse_faults(catalogue: Catalogue, criteria: SuccessCriteria, name: str = "criteria") -> None:
    """Raise CriteriaError with every fault of criteria that a program built, so that no file has their lines."""
    found = find_faults(catalogue, parts_of(criteria))
    problems = [Problem(format_path(fault.path), fault.message) for fault in islice(found, MAX_PROBLEMS + 1)]
    if problems:
        raise CriteriaError(name, sort_and_limit_problems(problems))


def find_faults(catalogue: Catalogue, parts: CriteriaParts) -> Iterator[CriteriaFault]:
    """Every fault that shows before any work exists; what this installation does not run is not examined."""
    declared = frozenset(name for _, custom in parts.custom_metrics for name in custom.metrics)
    for number, criterion in parts.criteria:
        if criterion.metric is not None and criterion.expr is None:
            for path, why in _find_ask_faults(catalogue, criterion, declared):
                # A pattern may hold line breaks, and each fault gets one line.
                yield CriteriaFault(("criteria", number, *path), escape_control_characters(why))
    yield from _find_expression_faults(parts.criteria, catalogue.sandboxes)
    yield from _find_code_faults(parts.custom_metrics, catalogue.sandboxes)


# Any: what a param may be.
_Question = dict[Path, Any]
"""What a criterion asks: each param by its path, and what the threshold lists."""


class _Trials:
    """Puts questions to a criterion's metric, at most so many."""

    def __init__(self, catalogue: Catalogue, metric: str, declared: frozenset[str]) -> None:
        self._catalogue, self._metric, self._declared = catalogue, metric, declared
        self.left = MAX_TRIALS

    def explain(self, question: _Question) -> str | None:
        """Why the metric refuses the question; None where it does not."""
        self.left -= 1
        params = {str(path[-1]): value for path, value in question.items() if path != _THRESHOLD}
        ask = Ask(params, tuple(question.get(_THRESHOLD, ())))
        return self._catalogue.explain_bad_ask(self._metric, ask, self._declared)


def _find_ask_faults(
    catalogue: Catalogue, criterion: SuccessCriterion, declared: frozenset[str]
) -> Iterator[tuple[Path, str]]:
    """The faults of params and threshold.

    A metric reports its first fault only. The part at fault is the one without which it reports something else, or
    nothing; that part is left out, and the metric is asked again.
    """
    asked, trials = ask_of(criterion), _Trials(catalogue, criterion.metric or "", declared)
    question: _Question = {("params", name): value for name, value in asked.params.items()}
    if asked.wanted:
        question[_THRESHOLD] = [*asked.wanted]
    positions = {path: [*range(len(value))] for path, value in question.items() if isinstance(value, list)}
    why, found = trials.explain(question), False
    while why is not None and not _needs_absent_param(why, question) and trials.left > 0:
        path = next((one for one in question if trials.explain(_without(question, one)) != why), None)
        if path is None:
            break
        found = True
        item = _find_item(trials, question, path, why)
        if item is None:
            yield path, why
            question = _without(question, path)
        else:
            yield (*path, positions[path].pop(item)), why
            question = {**question, path: question[path][:item] + question[path][item + 1 :]}
        why = trials.explain(question)
    if why is not None and not found:
        yield next(iter(question), _THRESHOLD)[:1], why


def _needs_absent_param(why: str, question: _Question) -> bool:
    """Whether the fault is that a param is missing, so that no other part is at fault."""
    needed = _NEEDED.search(why)
    return needed is not None and ("params", needed[1]) not in question


def _find_item(trials: _Trials, question: _Question, path: Path, why: str) -> int | None:
    """The index of the one item of a list that is at fault; None where the whole is."""
    listed = question[path]
    if not isinstance(listed, list) or not 1 < len(listed) <= trials.left:
        return None
    rest = (listed[:index] + listed[index + 1 :] for index in range(len(listed)))
    return next((index for index, one in enumerate(rest) if trials.explain({**question, path: one}) != why), None)


def _without(question: _Question, path: Path) -> _Question:
    return {one: value for one, value in question.items() if one != path}


def _find_expression_faults(
    criteria: Sequence[tuple[int, SuccessCriterion]], sandboxes: Sandboxes
) -> Iterator[CriteriaFault]:
    written = [(number, one, one.expr) for number, one in criteria if one.expr is not None]
    if not written or not sandboxes.allows(Tier.EXPR):
        return
    # Most criteria bring no expression, and need not wait until its engine is loaded.
    from meruit.sandbox import expression

    try:
        expression.engine()
    except MissingExtra:
        return  # Compiling the criteria says which extra.
    for number, criterion, code in written:
        path = ("criteria", number, "expr")
        try:
            is_truth = expression.check(code)
        except SandboxError as wrong:
            place = _PLACE.match(str(wrong))
            yield CriteriaFault(path=path, message=str(wrong), text_line=None if place is None else int(place[1]))
            continue
        if is_truth and criterion.metric_type not in YES_OR_NO | {MetricType.CUSTOM}:
            why = (
                f"the expression gives true or false, which is not {criterion.metric_type}; write metric_type: boolean"
            )
            yield CriteriaFault(path, f"{why}, or `(…) ? 1 : 0`")


def _find_code_faults(customs: Sequence[tuple[int, CustomMetric]], sandboxes: Sandboxes) -> Iterator[CriteriaFault]:
    for number, custom in customs:
        if not sandboxes.allows(custom.tier):
            continue  # Compiling the criteria says what the operator has to allow.
        try:
            failed = sandboxes.load(custom.code, custom.tier, LOAD_TIMEOUT_MS)
        except MissingExtra:
            return  # Compiling the criteria says which extra.
        if failed is None or failed.failure is Failure.SANDBOX_UNAVAILABLE:
            continue
        message = f"{failed.message}{_suggest_wider_tier(custom, failed, sandboxes)}"
        line = _LINE.search(failed.message)
        text_line = None if line is None else int(line[1] or line[2])
        yield CriteriaFault(
            path=(CUSTOM, number, "code"), message=f"tier {custom.tier}: {message}", text_line=text_line
        )
        if failed.failure is Failure.TIMEOUT:
            return


def _suggest_wider_tier(custom: CustomMetric, failed: SandboxResult, sandboxes: Sandboxes) -> str:
    """The tier that can run what this one cannot; no tier runs what is not Python, or defines no metric."""
    if custom.tier is not Tier.PYTHON or not may_run_in_wider_tier(failed):
        return ""
    if not sandboxes.allows(Tier.PYTHON_FULL):
        return "; the tier python-full may run it; your operator must allow it"
    wider = sandboxes.load(custom.code, Tier.PYTHON_FULL, LOAD_TIMEOUT_MS)
    if wider is None:
        return "; python-full runs it: write tier: python-full"
    return f"; the tier python-full does not run it either: {wider.message}"
