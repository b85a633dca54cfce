"""JUnit XML, as pytest writes it and CI systems show it."""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from meruit.evaluations.evaluation import STATUS_LETTERS
from meruit.evaluations.export import EvaluationExport, case_name, is_open, shorten, unmet
from meruit.evaluations.reader import CaseDetail
from meruit.registry import exporters

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may hold, not even escaped."""
_WORDS = {letter: status.value for status, letter in STATUS_LETTERS.items()}


@exporters.add("junit", ending=".xml")
def write_junit(exported: EvaluationExport) -> Iterator[str]:
    """JUnit XML for CI: one test for each case; what could not be judged is an error, not a failure."""
    evaluation, summary = exported.evaluation, exported.summary
    overall, latency = summary.overall, summary.latency_ms
    counts = (
        f"tests={_attr(overall.cases)} failures={_attr(overall.failed)} errors={_attr(overall.open)} "
        f"time={_attr(0.0 if latency is None else latency.mean * latency.cases / 1_000)}"
    )
    name = _attr(evaluation.name)
    yield f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites name={name} {counts}>\n'
    yield f'<testsuite name={name} {counts} skipped="0" timestamp="{evaluation.started_at:%Y-%m-%dT%H:%M:%S+00:00}">\n'
    facts = {"evaluation": evaluation.id, "criteria": evaluation.criteria_digest}
    if overall.rate is not None:
        facts["pass_rate"] = f"{overall.rate:.6g}"
    yield _properties(facts | {f"tag.{tag}": value for tag, value in evaluation.tags.items()})
    ids = exported.criteria.ids
    for case in exported.cases():
        yield _test(case, evaluation.name, ids)
    yield "</testsuite>\n</testsuites>\n"


def _test(case: CaseDetail, suite: str, criteria: tuple[str, ...]) -> str:
    one = case.summary
    facts = {"outcome": one.outcome_id, "verdict": one.verdict.value, "score": f"{one.score:.6g}"}
    if one.claimed is not None:
        facts["claimed"] = one.claimed
    facts |= {f"tag.{tag}": value for tag, value in one.tags.items()}
    facts |= {f"criterion.{name}": _WORDS[letter] for name, letter in zip(criteria, one.statuses, strict=False)}
    seconds = _attr((one.latency_ms or 0.0) / 1_000)
    head = f"<testcase classname={_attr(suite)} name={_attr(case_name(case))} time={seconds}>\n{_properties(facts)}"
    if is_open(case):
        kind = _attr(one.error.value if one.error is not None else one.verdict.value)
        return f"{head}<error type={kind} {_problem(case)}</error>\n</testcase>\n"
    if not one.success:
        return f"{head}<failure type={_attr(one.verdict.value)} {_problem(case)}</failure>\n</testcase>\n"
    return f"{head}</testcase>\n"


def _problem(case: CaseDetail) -> str:
    """The message of a failure and its text: the reasons, then the work."""
    reasons = unmet(case)
    lines = [*reasons]
    for part in ("input", "output"):
        for name, value in (getattr(case, part) or {}).items():
            lines.append(f"{part}.{name}: {shorten(str(value))}")
    return f"message={_attr(shorten('; '.join(reasons)))}>{escape(_clean(chr(10).join(lines)))}"


def _properties(facts: dict[str, str]) -> str:
    listed = "".join(f"<property name={_attr(name)} value={_attr(value)}/>" for name, value in facts.items())
    return f"<properties>{listed}</properties>\n"


def _attr(value: str | float) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return quoteattr(_clean(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
