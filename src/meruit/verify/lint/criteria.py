"""Proving criteria before anyone is judged by them: what passes by doing nothing, and what can never fail."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from meruit.judge.compare import EXACT_INTEGERS, FloatInterval, domain_of, items_to_contain
from meruit.judge.plan import CriterionRule, Plan
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Provenance
from meruit.model.kinds import SHARES, YES_OR_NO, Aggregation
from meruit.model.record import Record
from meruit.model.verdict import Status, Verdict, VerificationResult
from meruit.model.work import PRIVATE_INPUTS, Work
from meruit.registry import Ask, Metric, checks, metrics
from meruit.suggestions import nearest
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.custom_code import expr_owner
from meruit.verify.engine import VerificationEngine
from meruit.verify.lint.custom_code import OF_CODE, CustomCodeProblem, try_out
from meruit.verify.lint.inputs import find_unmet_needs
from meruit.verify.lint.judges import find_pointless_questions, try_injections
from meruit.verify.lint.mutations import Mutant, mutants
from meruit.verify.lint.reach import find_unreachable


class Severity(StrEnum):
    """Whether the criteria may be used as they are."""

    ERROR = "error"
    WARNING = "warning"


class LintFinding(Record, frozen=True):
    """One thing that is wrong with the criteria."""

    severity: Severity
    code: str
    message: str
    criterion_id: str | None = None


class LintReport(Record, frozen=True):
    """What was tried, and what was found."""

    ok: bool
    findings: list[LintFinding]
    null_agents: dict[str, str] = msgspec.field(default_factory=dict)
    """The verdict on each agent that does nothing."""
    gold: str | None = None
    """The verdict on the gold output, when one was given."""
    mutants_tried: int = 0
    failed_by: dict[str, str] = msgspec.field(default_factory=dict)
    """For each criterion the first mutant of the gold output that fails it."""
    injections_tried: int = 0
    """Outputs that gave a judge orders."""


class Gold(Record, frozen=True):
    """A piece of work known to be good."""

    output: Mapping[str, Any]
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


MISSING_INPUT = "missing_input"
"""The code of a criterion whose metric needs what the work's input does not have."""
AT_ONCE = {"duration_ms": 1, "ttfb_ms": 1, "processing_ms": 1}
"""An agent that does nothing does it fast."""


def lint(
    engine: VerificationEngine,
    criteria: SuccessCriteria,
    *,
    work_input: Mapping[str, Any] | None = None,
    gold: Gold | None = None,
    ask_judges: bool = False,
) -> LintReport:
    """Try the criteria on paper, on agents that do nothing, and on a gold output and its mutants.

    With `ask_judges`, judges are asked about all but the mutants, and about outputs that give them orders.
    """
    # Nothing here is claimed to have happened, so governance is not asked.
    engine = engine.without_governance()
    asking = engine.compile(criteria)
    silent = asking.without_services("the judge is not asked; --judges asks it")
    compiled = asking if ask_judges else silent
    given = work_input or {}
    findings = [*_on_paper(compiled), *_about_names(compiled.plan.criteria)]
    if work_input is not None:
        findings.extend(_input_findings(compiled, work_input))
    verdicts: dict[str, str] = {}
    metadata = AT_ONCE if gold is None else gold.metadata
    tried_on = Work(input=given, output={} if gold is None else gold.output, metadata=metadata)
    troubles = try_out(compiled, tried_on, good=gold is not None)
    findings.extend(_custom_code_findings(compiled.plan, troubles))
    idle: dict[str, VerificationResult] = {}
    for name, output in null_agents(given).items():
        idle[name] = result = engine.verify_sync("lint", given, output, compiled, metadata)
        verdicts[name] = str(result.verdict)
        if result.success or result.verdict is Verdict.PASS:
            message = f"an agent that returns {name} passes; add a criterion that it fails"
            findings.append(LintFinding(Severity.ERROR, "null_agent_passes", message))
    findings.extend(_idle_bonuses(compiled.plan, idle))
    findings.extend(LintFinding(Severity.ERROR, *found) for found in find_pointless_questions(asking))
    injected = 0
    if ask_judges:
        injected, obeyed = try_injections(engine, asking, given)
        findings.extend(LintFinding(Severity.ERROR, *found) for found in obeyed)
    if gold is None:
        return LintReport(_has_no_errors(findings), findings, verdicts, injections_tried=injected)
    result = engine.verify_sync("lint", given, gold.output, compiled, gold.metadata)
    judged = {rule.id for rule, _ in asking.judged_rules()}
    findings.extend(_gold_findings(result, set() if ask_judges else judged))
    if any(trouble.cause is Cause.TIMEOUT for trouble in troubles):
        # Hundreds of mutants would each take as long, and prove nothing.
        return LintReport(_has_no_errors(findings), findings, verdicts, str(result.verdict), injections_tried=injected)
    aimed = mutants(gold.output, gold.metadata, words=_words(compiled.plan, result), sizes=_sizes(compiled.plan))
    # Judges are not asked about hundreds of mutants.
    tried, failed_by = _try_mutants(engine, silent, given, aimed)
    # What failed on the gold output is reported already, and is not tested.
    broken = {one.criterion_id for one in result.criterion_results if one.cause in OF_CODE}
    findings.extend(_survivors(compiled.plan, {*failed_by, *broken, *judged}))
    return LintReport(
        ok=_has_no_errors(findings),
        findings=findings,
        null_agents=verdicts,
        gold=str(result.verdict),
        mutants_tried=tried,
        failed_by=failed_by,
        injections_tried=injected,
    )


def prove_broken(compiled: CompiledCriteria, work_input: Mapping[str, Any]) -> list[LintFinding]:
    """The errors that hold for any output on this input: found without an agent, and without running custom code."""
    found = (*_on_paper(compiled), *_input_findings(compiled, work_input))
    return [finding for finding in found if finding.severity is Severity.ERROR]


def null_agents(work_input: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Make outputs that took no work: nothing, an empty text, an echo of what the input shows an agent."""
    seen = {key: value for key, value in work_input.items() if key not in PRIVATE_INPUTS}
    echo = " ".join(value for value in seen.values() if isinstance(value, str))
    return {"{}": {}, "an empty text": {"text": ""}, "an echo of the input": {**seen, "text": echo}}


def _has_no_errors(findings: Iterable[LintFinding]) -> bool:
    return not any(finding.severity is Severity.ERROR for finding in findings)


def _on_paper(compiled: CompiledCriteria) -> Iterator[LintFinding]:
    """What shows without running anything."""
    plan = compiled.plan
    for rule, slot in zip(plan.rules, compiled.slot_of, strict=True):
        flaw = compiled.slots[slot].flaw
        if flaw is not None:
            yield LintFinding(Severity.ERROR, str(flaw.cause), flaw.why, rule.id)
        elif rule.criterion.assertion is not None and checks.find(rule.subject) is None:
            known = nearest(rule.subject, checks.names())
            message = f"no check is named {rule.subject!r}{known}, so this assertion always fails"
            yield LintFinding(Severity.ERROR, "unsupported_assertion", message, rule.id)
        else:
            ours = compiled.slots[slot].owner is None
            metric = metrics.find(rule.subject) if ours else None
            yield from _type_findings(rule, metric)
            yield from _range_findings(rule, metric)
            yield from _money_findings(rule)
    for code, message, criterion_id in find_unreachable(plan):
        yield LintFinding(Severity.ERROR, code, message, criterion_id)
    yield from _duplicates(plan)
    yield from _aggregation_findings(plan)


def _about_names(criteria: SuccessCriteria) -> Iterator[LintFinding]:
    """What declared metrics and named expressions are called, and whether a criterion uses them."""
    asked = {criterion.metric for criterion in criteria.criteria if criterion.expr is None}
    for number, custom in enumerate(criteria.custom_metrics):
        for name in custom.metrics:
            if name not in asked:
                message = f"custom_metrics[{number}] computes {name!r}, which no criterion uses"
                yield LintFinding(Severity.WARNING, "unused_metric", message)
    for criterion, identity in zip(criteria.criteria, criteria.ids, strict=True):
        if criterion.expr is not None and metrics.find(criterion.subject) is not None:
            message = f"the expr is called {criterion.subject!r}, like a metric that it is not; give it another name"
            yield LintFinding(Severity.WARNING, "misleading_name", message, identity)


def _input_findings(compiled: CompiledCriteria, work_input: Mapping[str, Any]) -> Iterator[LintFinding]:
    """What this input lacks, or has in a form that metrics read badly."""
    proven = set[str | None]()
    for finding in _about_input(compiled, work_input):
        if finding.severity is Severity.ERROR:
            proven.add(finding.criterion_id)
        yield finding
    for criterion_id, why in find_unmet_needs(compiled, work_input):
        if criterion_id not in proven:
            message = f"{why}; without it, no output can be judged by this"
            yield LintFinding(Severity.ERROR, MISSING_INPUT, message, criterion_id)


def _about_input(compiled: CompiledCriteria, work_input: Mapping[str, Any]) -> Iterator[LintFinding]:
    """What the metrics would read badly of this input, such as letters that a tokenizer drops."""
    for rule, slot in zip(compiled.plan.rules, compiled.slot_of, strict=True):
        asked = compiled.slots[slot]
        metric = metrics.find(rule.subject) if asked.measure is not None else None
        if metric is None or metric.inspect_input is None or rule.criterion.assertion is not None:
            continue
        for problem in metric.inspect_input(Ask(rule.criterion.params), work_input):
            severity = Severity.ERROR if problem.proven else Severity.WARNING
            yield LintFinding(severity, problem.code, problem.message, rule.id)


def _custom_code_findings(plan: Plan, troubles: Iterable[CustomCodeProblem]) -> Iterator[LintFinding]:
    """What the criteria's own code did when it was tried."""
    criterion_of = {expr_owner(rule.id): rule.id for rule in plan.rules if rule.criterion.expr is not None}
    for owner, cause, message in troubles:
        criterion = criterion_of.get(owner)
        text = message if criterion is not None else f"{owner}: {message}"
        yield LintFinding(Severity.ERROR, str(cause), text, criterion)


def _type_findings(rule: CriterionRule, metric: Metric | None) -> Iterator[LintFinding]:
    declared = rule.criterion.metric_type
    if metric is not None and declared in SHARES and metric.kind not in SHARES | YES_OR_NO:
        message = f"{rule.subject} is not a share; its metric_type is {metric.kind}, not {declared}"
        yield LintFinding(Severity.ERROR, "wrong_type", message, rule.id)


def _range_findings(rule: CriterionRule, metric: Metric | None) -> Iterator[LintFinding]:
    if rule.bracket is None:
        return
    possible = rule.bracket.possible
    # A share that is not computed here may be on either scale.
    if metric is not None and (metric.provenance is Provenance.COMPUTED or metric.kind not in SHARES):
        natural = domain_of(metric.kind)
        possible = FloatInterval(max(possible.low, natural.low), min(possible.high, natural.high))
    meets = rule.bracket.meets
    none_inside = not _overlap(meets, possible, whole=rule.bracket.whole)
    all_inside = meets.low <= possible.low and possible.high <= meets.high
    never_met, never_fails = (all_inside, none_inside) if meets.negated else (none_inside, all_inside)
    if never_met:
        yield LintFinding(Severity.ERROR, "never_met", f"no possible value of {rule.subject} meets this", rule.id)
    elif never_fails:
        yield LintFinding(Severity.ERROR, "never_fails", f"every possible value of {rule.subject} meets this", rule.id)


def _overlap(one: FloatInterval, other: FloatInterval, *, whole: bool) -> bool:
    low, high = max(one.low, other.low), min(one.high, other.high)
    if whole and math.isfinite(low) and math.isfinite(high):
        return math.ceil(low) <= math.floor(high)
    return low <= high


def _money_findings(rule: CriterionRule) -> Iterator[LintFinding]:
    if rule.provenance is Provenance.CLAIMED and rule.bonus:
        message = f"{rule.subject} is what the agent says of itself; a bonus on it pays for the claim"
        yield LintFinding(Severity.WARNING, "claimed_bonus", message, rule.id)


def _idle_bonuses(plan: Plan, idle: Mapping[str, VerificationResult]) -> Iterator[LintFinding]:
    """Bonuses that failed work earns by doing nothing; terms may withhold them."""
    for rule in plan.rules:
        earns = (name for name, result in idle.items() if result.criterion_results[rule.position].status is Status.MET)
        agent = next(earns, None) if rule.bonus else None
        if agent is not None:
            message = f"an agent that returns {agent} earns this bonus; terms with bonus_on_failure: none withhold it"
            yield LintFinding(Severity.WARNING, "idle_bonus", message, rule.id)


def _duplicates(plan: Plan) -> Iterator[LintFinding]:
    seen: dict[str, str] = {}
    for rule in plan.rules:
        written = rule.criterion.model_dump_json(exclude={"id", "name"})
        if written in seen:
            message = f"says the same as {seen[written]!r}, so that it counts twice"
            yield LintFinding(Severity.WARNING, "duplicate", message, rule.id)
        seen.setdefault(written, rule.id)


def _aggregation_findings(plan: Plan) -> Iterator[LintFinding]:
    criteria = plan.criteria
    gated = any(rule.gates for rule in plan.rules)
    if not plan.rules:
        yield LintFinding(Severity.ERROR, "no_criteria", "there are no criteria, and nothing passes by default")
    elif plan.aggregation is Aggregation.ALL and not gated:
        yield LintFinding(Severity.ERROR, "nothing_required", "no criterion is required, so `all` asks for nothing")
    elif plan.aggregation is Aggregation.WEIGHTED and plan.minimum[0] == 0 and not gated:
        yield LintFinding(Severity.ERROR, "never_fails", "a minimum score of 0 is always reached")
    if criteria.minimum_weighted_score is not None and plan.aggregation is not Aggregation.WEIGHTED:
        message = f"minimum_weighted_score does nothing under {plan.aggregation!s}"
        yield LintFinding(Severity.WARNING, "unused", message)


def _gold_findings(result: VerificationResult, not_asked: set[str]) -> Iterator[LintFinding]:
    if result.success and result.verdict is Verdict.PASS:
        return
    if not_asked and all(one.met for one in result.criterion_results if one.criterion_id not in not_asked):
        message = "the judge was not asked about the gold output; --judges asks it"
        yield LintFinding(Severity.WARNING, "judge_not_asked", message)
        return
    reasons = "; ".join(reason.message for reason in result.reasons) or "the score is too low"
    message = f"the gold output does not pass ({result.verdict}, success {result.success}): {reasons}"
    yield LintFinding(Severity.ERROR, "gold_fails", message)


def _words(plan: Plan, gold: VerificationResult) -> list[str]:
    """What the criteria speak of: texts in thresholds, and what metrics looked for in the gold output in vain."""
    spoken = [word for rule in plan.rules for word in items_to_contain(rule.criterion)]
    lacking = [(judged.details or {}).get("missing") for judged in gold.criterion_results]
    spoken += [text for found in lacking if isinstance(found, list) for text in found if isinstance(text, str)]
    # Of a pattern, its words are what it is likely to match.
    return [word for word in dict.fromkeys(spoken + [_SYNTAX.sub(" ", text).strip() for text in spoken]) if word]


_SYNTAX = re.compile(r"\\[A-Za-z]|\(\?[a-z]*[:)]|[\\^$()|?*+]")
"""What patterns are written with, apart from words."""


def _sizes(plan: Plan) -> list[int]:
    """Whole numbers that fail criteria: the first past what is allowed, and the last of what is forbidden."""
    intervals = [rule.bracket.meets for rule in plan.rules if rule.bracket is not None]
    ends = [(high, negated) for _, high, negated in intervals if abs(high) < EXACT_INTEGERS]
    return list(dict.fromkeys(math.floor(high) + (not negated) for high, negated in ends))


def _try_mutants(
    engine: VerificationEngine, compiled: CompiledCriteria, work_input: Mapping[str, Any], tried_on: Iterable[Mutant]
) -> tuple[int, dict[str, str]]:
    """Which mutant first fails each criterion; stops once every criterion has failed."""
    failed_by: dict[str, str] = {}
    tried = 0
    for mutant in tried_on:
        tried += 1
        result = engine.verify_sync("lint", work_input, mutant.output, compiled, mutant.metadata)
        for judged in result.criterion_results:
            if judged.status is Status.NOT_MET:
                failed_by.setdefault(judged.criterion_id, mutant.name)
        if len(failed_by) == len(compiled.plan.rules):
            break
    return tried, failed_by


def _survivors(plan: Plan, reported: set[str]) -> Iterator[LintFinding]:
    for rule in plan.rules:
        if rule.id not in reported:
            message = "no mutant of the gold output fails this: does it ask for anything?"
            yield LintFinding(Severity.ERROR, "survived", message, rule.id)
