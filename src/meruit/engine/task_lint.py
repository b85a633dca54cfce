"""Proving a task before anyone is measured by it: what passes on the untouched world, and what no mistake can fail."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from meruit.engine.lint import LintFinding, Severity
from meruit.engine.verify import VerificationEngine
from meruit.engine.world_mutants import WorldMutant, world_mutants
from meruit.judge.plan import Rule
from meruit.model.record import Record
from meruit.model.task import Task
from meruit.model.verdict import Status, Verdict, VerificationResult
from meruit.model.world import FACTS, World, compacted, in_work
from meruit.registry import checks

MAX_SURVIVORS = 20
"""Mutants of one task that are named."""


class TaskReport(Record, frozen=True):
    """What was tried on one task, and what was found."""

    task: str
    ok: bool
    findings: list[LintFinding]
    nothing: str
    """The verdict on an agent that does nothing."""
    free: dict[str, float] = msgspec.field(default_factory=dict)
    """Criteria that an agent meets by doing nothing, and their weight."""
    gold: str | None = None
    """The verdict on the gold run, when there is one."""
    mutants_tried: int = 0
    failed_by: dict[str, str] = msgspec.field(default_factory=dict)
    """For each criterion the first mutant of the gold world that fails it."""
    survivors: list[str] = msgspec.field(default_factory=list)
    """Mutants of the gold world that pass all the same."""


def lint_task(
    engine: VerificationEngine, task: Task, before: World, facts: Mapping[str, Any], gold: World | None = None
) -> TaskReport:
    """Try a task's criteria on the untouched world, on a gold run's world, and on mutants of that."""
    prepared = engine.compile(task.success_criteria)
    given = {FACTS: {**facts, **task.facts}, **in_work(before)}

    def judged(after: World) -> VerificationResult:
        return engine.verify_sync("lint", given, in_work(compacted(before, after)), prepared, {})

    nothing = judged(before)
    findings = [*_about_nothing(nothing, prepared.plan.rules)]
    free = {one.criterion_id: one.weight for one in nothing.criterion_results if one.status is Status.MET}
    if gold is None:
        return TaskReport(task.id, _clean(findings), findings, str(nothing.verdict), free)
    good = judged(gold)
    if good.verdict is not Verdict.PASS:
        missed = ", ".join(one.criterion_id for one in good.criterion_results if one.status is not Status.MET)
        why = f"the gold run does not pass ({good.verdict}, score {good.score:g}): {missed}"
        findings.append(LintFinding(Severity.ERROR, "gold_fails", why))
        return TaskReport(task.id, False, findings, str(nothing.verdict), free, str(good.verdict))  # noqa: FBT003
    tried, failed_by, survivors = 0, dict[str, str](), list[WorldMutant]()
    for mutant in world_mutants(before, gold):
        tried += 1
        result = judged(mutant.world)
        for one in result.criterion_results:
            if one.status is Status.NOT_MET:
                failed_by.setdefault(one.criterion_id, mutant.name)
        if result.verdict is Verdict.PASS:
            survivors.append(mutant)
    findings += _about_mutants(good, failed_by, survivors)
    return TaskReport(
        task=task.id,
        ok=_clean(findings),
        findings=findings,
        nothing=str(nothing.verdict),
        free=free,
        gold=str(good.verdict),
        mutants_tried=tried,
        failed_by=failed_by,
        survivors=[one.name for one in survivors[:MAX_SURVIVORS]],
    )


def _clean(findings: list[LintFinding]) -> bool:
    return not any(finding.severity is Severity.ERROR for finding in findings)


def _about_nothing(result: VerificationResult, rules: tuple[Rule, ...]) -> Iterator[LintFinding]:
    if not rules:
        yield LintFinding(Severity.ERROR, "no_criteria", "the task has no criteria, so nobody can pass it")
    if result.verdict is Verdict.PASS or result.success:
        yield LintFinding(Severity.ERROR, "null_agent_passes", "an agent that does nothing passes")
    for rule, one in zip(rules, result.criterion_results, strict=True):
        if one.details is not None and "unsupported_assertion" in one.details:
            message = str(one.details.get("message", "this assertion cannot be run"))
            yield LintFinding(Severity.ERROR, "unsupported_assertion", message, one.criterion_id)
        elif one.status is Status.INDETERMINATE:
            yield LintFinding(Severity.ERROR, str(one.cause), one.error or "cannot be judged", one.criterion_id)
        elif one.status is Status.MET and not _is_guard(rule):
            message = "passes on the untouched world: a point for doing nothing"
            yield LintFinding(Severity.WARNING, "passes_on_nothing", message, one.criterion_id)


def _is_guard(rule: Rule) -> bool:
    """Whether the criterion forbids rather than asks, so that it passes as long as nothing is done."""
    assertion = rule.criterion.assertion
    if assertion is None:
        return False
    check = checks.find(assertion.check)
    count = assertion.settings.get("count")
    least = count.get("min", 0) if isinstance(count, Mapping) else count
    return (check is not None and check.last) or least == 0 or (isinstance(count, str) and count.startswith("<"))


def _about_mutants(
    good: VerificationResult, failed_by: Mapping[str, str], survivors: list[WorldMutant]
) -> Iterator[LintFinding]:
    for one in good.criterion_results:
        if one.status is Status.MET and one.criterion_id not in failed_by:
            message = "no mistake in the gold run's world fails it"
            yield LintFinding(Severity.WARNING, "never_fails", message, one.criterion_id)
    grave = [mutant for mutant in survivors if mutant.harm in ("undone", "twice", "touched", "deleted")]
    for mutant in grave[:MAX_SURVIVORS]:
        message = f"passes all the same with {mutant.name}; add a criterion that notices"
        severity = Severity.ERROR if mutant.harm == "undone" else Severity.WARNING
        yield LintFinding(severity, "mutant_passes", message)
    slight = len(survivors) - len(grave)
    if slight:
        some = ", ".join(mutant.name for mutant in survivors if mutant not in grave)[:300]
        yield LintFinding(Severity.WARNING, "fields_unasked", f"{slight:,} mutants with one field wrong pass: {some}")
