"""An evaluation, or two compared, as one HTML file: summary first, then every case with filters."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from meruit.errors import MeruitError
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.page.cases import Side, list_cases, pack_cases
from meruit.evaluations.page.plot import draw_differences, tone_of
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.summary import EvaluationSummary, Rate
from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.kinds import COMPARISON_SIGNS
from meruit.pages.number_format import format_interval, format_share
from meruit.pages.templating import build_environment

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_TAG_ROWS = 40
"""Values of one tag that the summary shows; the list filters by all of them."""
MAX_THRESHOLD = 80
"""Characters of a threshold."""


def render_evaluation(reader: Evaluations, evaluation: EvaluationRecord) -> bytes:
    """The page of one evaluation."""
    summary, criteria = reader.summary(evaluation), reader.criteria(evaluation)
    side = Side(
        evaluation=evaluation, criteria=criteria, cases=list_cases(reader, evaluation), places=range(len(criteria.ids))
    )
    cases = pack_cases(reader, [side], _describe_criteria([criteria]))
    return _render(
        "evaluation.html",
        evaluation=evaluation,
        summary=summary,
        answer=_answer(summary),
        aside=_aside(summary, criteria),
        cases=cases,
    )


def render_comparison(reader: Evaluations, first: EvaluationRecord, second: EvaluationRecord) -> bytes:
    """The page of two evaluations, case by case."""
    if first.id == second.id:
        raise MeruitError(f"{first.name!r} cannot be compared with itself; name another evaluation")
    compared = reader.compare(first, second)
    criteria = [reader.criteria(one) for one in (first, second)]
    described = _describe_criteria(criteria)
    sides = [
        Side(evaluation=one, criteria=own, cases=list_cases(reader, one), places=_places(own, described))
        for one, own in zip((first, second), criteria, strict=True)
    ]
    differences = {"all": compared.overall, **compared.criteria}
    scale, rows = draw_differences([*differences.values()])
    return _render(
        "comparison.html",
        evaluations=(first, second),
        summaries=[reader.summary(one) for one in (first, second)],
        compared=compared,
        differences=differences,
        scale=scale,
        plots=rows,
        cases=pack_cases(reader, sides, described),
    )


def _render(template: str, **names: Any) -> bytes:
    return _environment().get_template(template).render(**names).encode()


@cache
def _environment() -> "Environment":
    made = build_environment("meruit.evaluations.page")
    made.globals.update(
        script=_read_static("cases.js"),
        script_hash=_hash(_read_static("cases.js")),
        look=_read_static("cases.css"),
        look_hash=_hash(_read_static("cases.css")),
        tone_of=tone_of,
        rate_words=_rate_words,
        tag_rows=_tag_rows,
        max_tag_rows=MAX_TAG_ROWS,
    )
    return made


def _read_static(name: str) -> Markup:
    # Our own file, not a user's text.
    return Markup(files("meruit.evaluations.page").joinpath("static", name).read_text(encoding="utf-8"))  # noqa: S704


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _rate_words(rate: Rate) -> str:
    if rate.rate is None:
        return "nothing was judged"
    return format_share(rate.rate) + (f", {format_interval(rate.interval, 'share')}" if rate.interval else "")


def _tag_rows(values: Mapping[str, Rate]) -> list[tuple[str, Rate]]:
    """The values of a tag, those with most cases first."""
    return sorted(values.items(), key=lambda one: (-one[1].cases, one[0]))[:MAX_TAG_ROWS]


def _answer(summary: EvaluationSummary) -> str:
    overall = summary.overall
    judged = overall.passed + overall.failed
    if overall.rate is None:
        return f"None of {overall.cases:,} cases could be judged."
    sentence = f"{overall.passed:,} of {judged:,} cases pass: {format_share(overall.rate)}"
    if overall.interval is None:
        return f"{sentence}."
    low, high = 100 * overall.interval.low, 100 * overall.interval.high
    return f"{sentence}, and between {low:.1f} and {high:.1f} % for cases like these."


def _aside(summary: EvaluationSummary, criteria: SuccessCriteria) -> str:
    """What explains most failures, in one sentence: a criterion that counts for success, if any fails."""
    optional = {name for name, one in zip(criteria.ids, criteria.criteria, strict=True) if one.required is False}
    worst = max(summary.criteria.items(), key=lambda one: (one[0] not in optional, one[1].failed), default=None)
    if worst is None or not worst[1].failed:
        return ""
    name, rate = worst
    share = f"{rate.failed:,} case{'s do' if rate.failed != 1 else ' does'} not meet it"
    return f"The criterion that fails most is {name}: {share}."


def _describe_criteria(several: Sequence[SuccessCriteria]) -> list[dict[str, Any]]:
    """The criteria of the page, those of the first evaluation first."""
    found: dict[str, dict[str, Any]] = {}
    for criteria in several:
        for name, one in zip(criteria.ids, criteria.criteria, strict=True):
            found.setdefault(name, {"id": name, "wanted": _threshold(one), "optional": one.required is False})
    return [*found.values()]


def _threshold(one: SuccessCriterion) -> str:
    if one.comparison is None:
        return ""
    sign = COMPARISON_SIGNS[one.comparison]
    threshold = one.threshold
    if isinstance(threshold, bool):
        held = str(threshold).lower()
    elif isinstance(threshold, Mapping):
        held = f"{threshold.get('min', '–')} to {threshold.get('max', '–')}"
    else:
        held = str(threshold)
    return f"{sign} {held}"[:MAX_THRESHOLD]


def _places(criteria: SuccessCriteria, described: Sequence[Mapping[str, Any]]) -> list[int]:
    own = criteria.ids
    return [own.index(one["id"]) if one["id"] in own else -1 for one in described]
