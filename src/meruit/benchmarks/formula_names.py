"""Find names in the formulas of a benchmark that nothing defines: facts, `let` and `capture` do."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.checks.matching.formulas import ANY_VALUE, Formula, formulas_in
from meruit.documents.document import parse
from meruit.documents.tree import Path
from meruit.errors import AuthorError, DocumentError
from meruit.model.criterion import Assertion
from meruit.model.task import Benchmark, Task
from meruit.registry import checks
from meruit.suggestions import nearest

MAX_NAMED = 10
"""How many known names a message lists."""


def find_unknown_names(benchmark: Benchmark) -> Iterator[tuple[Path, str]]:
    """Yield each formula that uses an unknown name: its path, from the benchmark to inside the assertion, and why."""
    # Many tasks share a seed.
    known: dict[str, Mapping[str, Any] | None] = {}
    for number, task in enumerate(benchmark.tasks):
        facts = _facts(benchmark, task, known)
        if facts is None:
            continue
        assertions = [one.assertion for one in task.criteria]
        for place, assertion in enumerate(assertions):
            if assertion is None:
                continue
            before = assertions if _is_last(assertion) else assertions[:place]
            names = {**facts, **dict.fromkeys(_captures(before), ANY_VALUE)}
            later = _captures(assertions[place:]) - names.keys()
            for path, why in _unknown_in(assertion.settings, names, later):
                yield ("tasks", number, "criteria", place, *path), why


# Any, in this file: settings and facts are JSON.
def _facts(benchmark: Benchmark, task: Task, known: dict[str, Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The facts of a task and its seeds; None where a seed cannot be read, which is reported elsewhere."""
    found: dict[str, Any] = {}
    for seed in task.seeds:
        if isinstance(seed, str) and seed not in known:
            known[seed] = _seed_facts(benchmark, seed)
        given = known[seed] if isinstance(seed, str) else seed.get("facts")
        if given is None and isinstance(seed, str):
            return None
        found |= given if isinstance(given, Mapping) else {}
    return found | task.facts


def _seed_facts(benchmark: Benchmark, name: str) -> Mapping[str, Any] | None:
    try:
        written = parse(benchmark.attachment(name), name).value
    except (KeyError, DocumentError):
        return None
    facts = written.get("facts") if isinstance(written, Mapping) else None
    return facts if isinstance(facts, Mapping) else {}


def _is_last(assertion: Assertion) -> bool:
    check = checks.find(assertion.check)
    return check is not None and check.last


def _captures(assertions: list[Assertion | None]) -> set[str]:
    return {str(one.settings["capture"]) for one in assertions if one is not None and "capture" in one.settings}


def _unknown_in(settings: Mapping[str, Any], names: dict[str, Any], later: set[str]) -> Iterator[tuple[Path, str]]:
    lets = settings.get("let")
    # A value may be read by those before it.
    for name, let in (lets if isinstance(lets, Mapping) else {}).items():
        yield from _unknown_below(let, ("let", name), names, later)
        names[name] = ANY_VALUE
    for key, value in settings.items():
        if key == "when" and isinstance(value, str):
            yield from (((key,), why) for why in _why_unknown(value, names, later, whole=True))
        elif key != "let":
            yield from _unknown_below(value, (key,), names, later)


def _unknown_below(value: Any, path: Path, names: Mapping[str, Any], later: set[str]) -> Iterator[tuple[Path, str]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _unknown_below(one, (*path, key), names, later)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            yield from _unknown_below(one, (*path, place), names, later)
    elif isinstance(value, str) and "${" in value:
        yield from ((path, why) for why in _why_unknown(value, names, later))


def _why_unknown(text: str, names: Mapping[str, Any], later: set[str], *, whole: bool = False) -> Iterator[str]:
    try:
        formulas = [Formula(text)] if whole else list(formulas_in(text))
    except AuthorError:
        return  # Its check reports it.
    for formula in formulas:
        for reference, siblings in formula.unknown(names):
            *outer, name = reference.rpartition(".")
            if outer[0]:
                yield f"{formula.text!r}: {outer[0]} has no {name!r}{nearest(name, siblings)}"
            elif name in later:
                yield f"{formula.text!r}: {name!r} is captured only later; put that criterion first"
            else:
                yield f"{formula.text!r}: unknown name {name!r}{nearest(name, siblings)}; {_suggest_known(siblings)}"


def _suggest_known(names: list[str]) -> str:
    if not names:
        return "define it in the task's facts, with let, or by capture"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"known here: {', '.join(names[:MAX_NAMED])}{more}"
