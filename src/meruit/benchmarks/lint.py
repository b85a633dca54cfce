"""Check a task before agents are measured by it: what passes when nothing is done, and which mistakes go unnoticed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from meruit.benchmarks.environment import asks_for_answer
from meruit.benchmarks.mutations import GRAVE, EnvironmentMutant, environment_mutants
from meruit.benchmarks.vital_fields import VitalField
from meruit.checks.matching.formulas import Formula, formulas_in
from meruit.checks.unchanged import is_allowed
from meruit.errors import AuthorError
from meruit.judge.plan import CriterionRule
from meruit.model.assertion import as_range
from meruit.model.environment import (
    ANSWER_SOURCE,
    FACTS_KEY,
    EnvironmentState,
    answer_snapshot,
    as_work_part,
    compact_state,
)
from meruit.model.record import Record
from meruit.model.task import Task
from meruit.model.verdict import Status, Verdict, VerificationResult
from meruit.registry import checks
from meruit.verify.engine import VerificationEngine
from meruit.verify.lint.criteria import LintFinding, Severity

MAX_SURVIVORS = 20
"""How many mutants of one task are named."""
MAX_LISTED = 300
"""The length of a list in a message."""


class TaskReport(Record, frozen=True):
    """The findings for one task."""

    task: str
    ok: bool
    findings: list[LintFinding]
    nothing: str
    """The verdict on an agent that does nothing."""
    free: dict[str, float] = msgspec.field(default_factory=dict)
    """Criteria that an agent meets by doing nothing, and their weight."""
    gold: str | None = None
    """The verdict on the gold run, if there is one."""
    mutants_tried: int = 0
    failed_by: dict[str, str] = msgspec.field(default_factory=dict)
    """For each criterion the first mutant of the gold environment that fails it."""
    survivors: list[str] = msgspec.field(default_factory=list)
    """The first mutants of the gold environment that still pass."""
    survived: int = 0
    """How many mutants still pass."""


class _Survivor(msgspec.Struct, frozen=True):
    """A mutant that passes, and the criteria that failed without effect."""

    mutant: EnvironmentMutant
    noticed: list[str]


def lint_task(
    engine: VerificationEngine,
    task: Task,
    before: EnvironmentState,
    facts: Mapping[str, Any],
    gold: EnvironmentState | None = None,
    gold_before: EnvironmentState | None = None,
) -> TaskReport:
    """Judge a task's criteria on the untouched environment, on a gold run's, and on mutants of that.

    `gold_before` is where the gold run started, if that was another environment.
    """
    engine = engine.without_governance()
    # Judges cost tokens, and there are many mutants.
    prepared = engine.compile(task.success_criteria).without_services("judges are not asked by lint")
    began = before if gold_before is None else gold_before

    def judge(was: EnvironmentState, now: EnvironmentState) -> VerificationResult:
        given = {FACTS_KEY: {**facts, **task.facts}, **as_work_part(was)}
        if asks_for_answer(task):
            now = {ANSWER_SOURCE: answer_snapshot(None), **now}
        return engine.verify_sync("lint", given, as_work_part(compact_state(was, now)), prepared, {})

    nothing = judge(before, before)
    findings = [
        *_null_agent_findings(nothing, prepared.plan.rules),
        *_agent_choice_findings(nothing, prepared.plan.rules),
    ]
    free = {one.criterion_id: one.weight for one in nothing.criterion_results if one.status is Status.MET}
    if gold is None:
        return TaskReport(
            task=task.id, ok=_is_clean(findings), findings=findings, nothing=str(nothing.verdict), free=free
        )
    good = judge(began, gold)
    if good.verdict is not Verdict.PASS:
        missed = ", ".join(one.criterion_id for one in good.criterion_results if one.status is not Status.MET)
        why = f"the gold run does not pass ({good.verdict}, score {good.score:g}): {missed}"
        findings.append(LintFinding(Severity.ERROR, "gold_fails", why))
        return TaskReport(
            task=task.id, ok=False, findings=findings, nothing=str(nothing.verdict), free=free, gold=str(good.verdict)
        )
    tried, failed_by, survivors = 0, dict[str, str](), list[_Survivor]()
    open_items = _OpenItems(prepared.plan.rules, good, len(gold))
    for mutant in environment_mutants(began, gold):
        if open_items.is_open(mutant):
            continue
        tried += 1
        result = judge(began, mutant.state)
        noticed = [one.criterion_id for one in result.criterion_results if one.status is Status.NOT_MET]
        for criterion_id in noticed:
            failed_by.setdefault(criterion_id, mutant.name)
        if result.verdict is Verdict.PASS:
            survivors.append(_Survivor(mutant, noticed))
    findings += _mutant_findings(good, failed_by, survivors)
    return TaskReport(
        task=task.id,
        ok=_is_clean(findings),
        findings=findings,
        nothing=str(nothing.verdict),
        free=free,
        gold=str(good.verdict),
        mutants_tried=tried,
        failed_by=failed_by,
        survivors=[one.mutant.name for one in survivors[:MAX_SURVIVORS]],
        survived=len(survivors),
    )


class _OpenItems:
    """Items that the author leaves open: `except` allows any change of them, and no criterion asks for them."""

    def __init__(self, rules: Sequence[CriterionRule], good: VerificationResult, sources: int) -> None:
        asserted = [rule.criterion.assertion for rule in rules]
        self._allowed = [
            (str(one.settings.get("from", "")), tuple(map(str, one.settings["except"])))
            for one in asserted
            if one is not None and isinstance(one.settings.get("except"), list)
        ]
        self._sources = sources
        self._chosen = {
            (details.get("source"), str(chosen["key"]))
            for details in (one.details or {} for one in good.criterion_results)
            for listed in ("selected", "also_selected")
            for chosen in details.get(listed, ())
        }

    def is_open(self, mutant: EnvironmentMutant) -> bool:
        """Whether a change of the mutant's item means nothing."""
        if mutant.key is None or (mutant.source, mutant.key) in self._chosen:
            return False
        return any(
            source in ("", mutant.source)
            and is_allowed(mutant.source, mutant.key, allowed, alone=bool(source) or self._sources == 1)
            for source, allowed in self._allowed
        )


def _is_clean(findings: list[LintFinding]) -> bool:
    return not any(finding.severity is Severity.ERROR for finding in findings)


def _null_agent_findings(result: VerificationResult, rules: tuple[CriterionRule, ...]) -> Iterator[LintFinding]:
    if not rules:
        yield LintFinding(Severity.ERROR, "no_criteria", "the task has no criteria, so no agent can pass it")
    if result.verdict is Verdict.PASS or result.success:
        yield LintFinding(Severity.ERROR, "null_agent_passes", "an agent that does nothing passes")
    elif result.verdict is not Verdict.FAIL and result.score > 0:
        message = f"an agent that does nothing earns a score of {result.score:.3g}"
        advice = "; give what forbids `weight: 0` and `required: true`, where that should be nothing"
        yield LintFinding(Severity.WARNING, "points_for_nothing", message + advice)
    for rule, one in zip(rules, result.criterion_results, strict=True):
        if one.details is not None and "unsupported_assertion" in one.details:
            message = str(one.details.get("message", "this assertion cannot be run"))
            yield LintFinding(Severity.ERROR, "unsupported_assertion", message, one.criterion_id)
        elif one.status is Status.INDETERMINATE:
            yield LintFinding(Severity.ERROR, str(one.cause), one.error or "cannot be judged", one.criterion_id)
        elif one.status is Status.MET and not _is_guard(rule):
            message = "passes when nothing is done, which gives a point for doing nothing"
            yield LintFinding(Severity.WARNING, "passes_on_nothing", message, one.criterion_id)


def _is_guard(rule: CriterionRule) -> bool:
    """Return whether the criterion forbids something, so that it passes while nothing is done."""
    assertion = rule.criterion.assertion
    if assertion is None:
        return False
    check = checks.find(assertion.check)
    return (check is not None and check.last) or rule.criterion.is_guard


def _agent_choice_findings(result: VerificationResult, rules: Sequence[CriterionRule]) -> Iterator[LintFinding]:
    """Find conditions by which an agent can choose what it is judged by."""
    problems = [
        (one.criterion_id, rule.criterion.assertion.settings)
        for rule, one in zip(rules, result.criterion_results, strict=True)
        if rule.criterion.assertion is not None
    ]
    made = {str(one["capture"]) for _, one in problems if "capture" in one and _may_be_made(one)}
    for criterion_id, one in problems:
        if one.get("match") == "first" and _may_be_made(one) and not _is_one(one.get("count")):
            message = (
                "`match: first` looks at the first by key, which an agent can make: ask for `count: 1` or `match: all`"
            )
            yield LintFinding(Severity.WARNING, "agent_chooses_first", message, criterion_id)
        if chosen := _condition_names(one) & made:
            message = f"`when` depends on {min(chosen)}, captured from what the agent made, so the agent can skip it"
            advice = "; read it from the state before with `let`, or ask for it in `fields`"
            yield LintFinding(Severity.WARNING, "agent_chooses_when", message + advice, criterion_id)


# Any, here and below: as an author wrote it.
def _may_be_made(assertion: Mapping[str, Any]) -> bool:
    """Return whether the selection may match items that the agent made; unchanged items are not."""
    return assertion.get("changed") != "none"


def _is_one(count: Any) -> bool:
    try:
        return count is not None and as_range(count).high == 1
    except ValueError:
        return False


def _condition_names(assertion: Mapping[str, Any]) -> set[str]:
    """Return the names that a condition depends on, including those that its values are read from."""
    when, lets = assertion.get("when"), assertion.get("let")
    lets = lets if isinstance(lets, Mapping) else {}
    try:
        names = set(Formula(when).names) if isinstance(when, str) else set[str]()
        # A value may be read by earlier ones.
        for name in reversed(list(lets)):
            if name in names:
                names.remove(name)
                names.update(used for formula in formulas_in(lets[name]) for used in formula.names)
    except AuthorError:
        return set()  # A criterion that cannot run is reported elsewhere.
    return names


def _mutant_findings(
    good: VerificationResult, failed_by: Mapping[str, str], survivors: list[_Survivor]
) -> Iterator[LintFinding]:
    for one in good.criterion_results:
        if one.status is Status.MET and one.criterion_id not in failed_by:
            message = "no mutant of the gold run fails it"
            yield LintFinding(Severity.WARNING, "never_fails", message, one.criterion_id)
    grave = [one.mutant for one in survivors if _is_grave(one.mutant)]
    # Errors come first, so that none of them is left out.
    grave.sort(key=lambda mutant: not _is_error(mutant))
    for mutant in grave[:MAX_SURVIVORS]:
        about = "" if mutant.vital is None else f", which is {_A_VITAL[mutant.vital]}"
        message = f"still passes with {mutant.name}{about}; add a criterion that fails then"
        yield LintFinding(Severity.ERROR if _is_error(mutant) else Severity.WARNING, "mutant_passes", message)
    if len(grave) > MAX_SURVIVORS:
        message = f"still passes with {_mutants(len(grave) - MAX_SURVIVORS)} more like these"
        severity = Severity.ERROR if _is_error(grave[MAX_SURVIVORS]) else Severity.WARNING
        yield LintFinding(severity, "mutant_passes", message)
    yield from _field_findings([one for one in survivors if not _is_grave(one.mutant)])


_A_VITAL = {
    VitalField.IDENTITY: "an identity",
    VitalField.CODE: "a code",
    VitalField.QUANTITY: "a quantity",
    VitalField.UNIT: "a unit",
}


def _is_grave(mutant: EnvironmentMutant) -> bool:
    """Return whether criteria must notice the mutant; another field may be left open on purpose."""
    return mutant.harm in GRAVE or mutant.vital is not None


def _is_error(mutant: EnvironmentMutant) -> bool:
    return mutant.harm == "undone" or mutant.vital is not None


def _field_findings(slight: list[_Survivor]) -> Iterator[LintFinding]:
    """Find fields that may be wrong: those that no criterion checks, and those whose criterion fails without effect."""
    unasked = [one.mutant.name for one in slight if not one.noticed]
    if unasked:
        verb = "passes" if len(unasked) == 1 else "pass"
        message = f"{_mutants(len(unasked))} with one field wrong {verb}: {_list_names(unasked)}"
        yield LintFinding(Severity.WARNING, "fields_unasked", message)
    missed: dict[str, list[str]] = {}
    for one in slight:
        for criterion_id in one.noticed:
            missed.setdefault(criterion_id, []).append(one.mutant.name)
    for criterion_id, names in missed.items():
        message = f"fails without effect with {_mutants(len(names))}: {_list_names(names)}"
        advice = "; make it required, or give it `credit: all` or more weight"
        yield LintFinding(Severity.WARNING, "missed_to_no_effect", message + advice, criterion_id)


def _mutants(number: int) -> str:
    return "1 mutant" if number == 1 else f"{number:,} mutants"


def _list_names(names: Sequence[str]) -> str:
    """Format as many names as fit, and how many more there are."""
    text = names[0]
    for number, name in enumerate(names[1:], start=1):
        if len(text) + len(name) > MAX_LISTED:
            return f"{text} and {len(names) - number:,} more"
        text += f", {name}"
    return text
