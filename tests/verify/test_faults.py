"""Faults of params, expressions and code: all found when criteria are read, each with its path and line."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from meruit import CustomCode, MetricExtractor, Status, Tier, VerificationEngine
from meruit.documents.authoring import parse_criteria, parse_work
from meruit.errors import CriteriaError, DocumentError, Failure, MissingExtra, Problem
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Fault
from meruit.sandbox import expression, interpreter
from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.sandbox import Sandbox
from meruit.verify import faults
from meruit.verify.faults import examine_with, refuse_faults
from meruit.verify.load import load_criteria

BASE = {"metric_type": "numeric", "comparison": "gte", "threshold": 1}
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
CODE = "def metric(input, output, metadata):\n    return {'mine': 1}\n"
ENGINE = VerificationEngine()
EVERYTHING = VerificationEngine(custom=CustomCode(tiers=frozenset(Tier)))


def read(text: Any, engine: VerificationEngine = ENGINE) -> list[Problem]:
    """The problems of criteria, in the order in which they are reported."""
    catalogue = engine.catalogue
    try:
        parse_criteria(text, "c.yaml", known_metrics=catalogue.names(), examine=examine_with(catalogue))
    except CriteriaError as refused:
        return [*refused.problems]
    return []


def places(text: Any, engine: VerificationEngine = ENGINE) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.where) for problem in read(text, engine)]


def with_code(code: str, tier: str = "python") -> dict[str, Any]:
    custom = {"metrics": ["mine"], "code": code, "tier": tier}
    return {"criteria": [{**BASE, "metric": "mine"}], "custom_metrics": [custom]}


def asked(metric: str, params: Any = None, **more: Any) -> dict[str, Any]:
    given = {} if params is None else {"params": params}
    return {"criteria": [{"metric": metric, "metric_type": "contains", **BASE, **given, **more}]}


WRONG = """\
aggregation: most
custom_metrics:
  - metrics: [a]
    code: |

      def metric(input, output, metadata):
          x = (1
          return {"a": 1}
  - metrics: [b]
    code: "len(output['text'])"
criteria:
  - metric: matches_pattern
    metric_type: contains
    comparison: gte
    threshold: 1
    params:
      full: yes
      patternz: x
      patterns: [ok, "(", fine, "[a"]
  - metric: matches_schema
    metric_type: matches_schema
    comparison: eq
    threshold: true
    params:
      schema: {type: objekt}
  - {expr: "size(output.text", metric_type: count, comparison: gte, threshold: 1}
  - expr: |
      size(output.text) +
        nothing
    metric_type: count
    comparison: gte
    threshold: 1
  - {metric: word_cout, metric_type: count, comparison: gte, treshold: 1}
"""


def test_every_mistake_of_a_file_is_in_one_list_with_its_line() -> None:
    assert places(WRONG) == [
        (1, "aggregation"),
        (8, "custom_metrics[0].code"),
        (10, "custom_metrics[1].code"),
        (17, "criteria[0].params.full"),
        (18, "criteria[0].params.patternz"),
        (19, "criteria[0].params.patterns[1]"),
        (19, "criteria[0].params.patterns[3]"),
        (25, "criteria[1].params.schema"),
        (26, "criteria[2].expr"),
        (29, "criteria[3].expr"),
        (33, "criteria[4].metric"),
        (33, "criteria[4]"),
    ]


def test_work_that_is_published_is_examined_in_the_same_list() -> None:
    indented = "".join(f"  {line}\n" for line in WRONG.splitlines())
    text = f"titel: Count\nsuccess_criteria:\n{indented}"
    catalogue = ENGINE.catalogue
    with pytest.raises(DocumentError) as refused:
        parse_work(text, "w.yaml", known_metrics=catalogue.names(), examine=examine_with(catalogue))
    found = [(problem.line, problem.where) for problem in refused.value.problems]
    expected = [((line or 0) + 2, f"success_criteria.{where}") for line, where in places(WRONG)]
    assert [one for one in found if one[1].startswith("success_criteria")] == expected
    assert (1, "") in found


def test_criteria_without_faults_are_read() -> None:
    whole = with_code(CODE)
    whole["criteria"] += [WORDS, {**BASE, "expr": "size(output.text)"}, asked("contains_keywords")["criteria"][0]]
    assert read(whole) == []


def test_criteria_that_a_program_built_are_examined_too() -> None:
    built = SuccessCriteria.model_validate({"criteria": [{**BASE, "expr": "size("}, {**WORDS, "params": {"a": 1}}]})
    with pytest.raises(CriteriaError) as refused:
        refuse_faults(ENGINE.catalogue, built)
    assert [one.where for one in refused.value.problems] == ["criteria[1].params.a", "criteria[0].expr"]
    refuse_faults(ENGINE.catalogue, SuccessCriteria.model_validate({"criteria": [WORDS]}))


# Params, patterns, schemas.


@pytest.mark.parametrize(
    ("whole", "where"),
    [
        (asked("word_count", {"a": 1, "b": 2}), ["params"]),
        (asked("matches_pattern", {"pattern": "(", "patterns": ["a"]}), ["params.pattern"]),
        (asked("matches_pattern", {"patterns": []}), ["params.patterns"]),
        (asked("matches_pattern", {"patterns": ["("]}), ["params.patterns"]),
        (asked("matches_pattern", {"patterns": ["(", "(", "a"]}), ["params.patterns"]),
        (
            asked("matches_pattern", threshold=["a", "(", "[b"], comparison="contains_any"),
            ["threshold[1]", "threshold[2]"],
        ),
        (asked("word_count", threshold=["a"], comparison="contains_all"), ["threshold"]),
        (asked("has_required_fields", {"fields": ["a", 1.5], "null_ok": 1}), ["params.fields[1]", "params.null_ok"]),
        # What is missing is not the fault of what is there.
        (asked("judge", {"question": "q", "choices": ["a", "b"]}), ["params"]),
        (asked("judge", {"question": 7, "choices": ["a", "b"], "judge": "j"}), ["params.question"]),
    ],
)
def test_the_part_of_a_question_that_is_at_fault_is_named(whole: dict[str, Any], where: list[str]) -> None:
    assert sorted(problem.where for problem in read(whole)) == [f"criteria[0].{one}" for one in where]


def test_the_search_for_the_part_at_fault_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_TRIALS", 5)
    whole = asked("matches_pattern", {"patterns": ["(", *map(str, range(99))]})
    assert [problem.where for problem in read(whole)] == ["criteria[0].params.patterns"]
    unknown = {f"p{number}": 1 for number in range(20)}
    assert 1 <= len(read(asked("matches_pattern", unknown))) < 5


def test_params_of_what_others_compute_are_refused() -> None:
    class Own(MetricExtractor):
        async def extract(self, *_: Any) -> dict[str, float]:
            return {"own": 1.0}

        def supported_metrics(self) -> list[str]:
            return ["own"]

    engine = VerificationEngine({"own": Own()})
    assert [one.where for one in read(asked("own", {"a": 1}), engine)] == ["criteria[0].params.a"]
    assert read(asked("own"), engine) == []
    whole = with_code(CODE)
    whole["criteria"][0]["params"] = {"a": 1}
    assert [one.where for one in read(whole)] == ["criteria[0].params.a"]
    whole["criteria"][0] = {**BASE, "metric": "mine", "comparison": "contains_all", "threshold": ["a"]}
    assert [one.where for one in read(whole)] == ["criteria[0].threshold"]


# Expressions.


@pytest.mark.parametrize("code", ["size(", "nothing", "'text'", "null", "[1]", "1 + 'a'", "unknown(1)"])
def test_an_expression_that_never_gives_a_value_is_refused(code: str) -> None:
    assert places({"criteria": [{**BASE, "expr": code}]}) == [(None, "criteria[0].expr")]


@pytest.mark.parametrize("kind", ["boolean", "matches_schema", "custom"])
def test_a_boolean_type_takes_a_boolean_expression(kind: str) -> None:
    wanted = {"expr": "output.total > 100.0", "metric_type": kind, "comparison": "eq", "threshold": True}
    assert read({"criteria": [wanted]}) == []
    for total, met in ((150.0, True), (50.0, False)):
        (judged,) = ENGINE.verify_sync("c", {}, {"total": total}, {"criteria": [wanted]}).criterion_results
        assert (judged.met, judged.value) == (met, met)


def test_a_field_that_is_true_meets_a_boolean_criterion() -> None:
    wanted = {"expr": "output.done", "metric_type": "boolean", "comparison": "eq", "threshold": True}
    (judged,) = ENGINE.verify_sync("c", {}, {"done": True}, {"criteria": [wanted]}).criterion_results
    assert (judged.met, judged.value) == (True, True)
    (judged,) = ENGINE.verify_sync(
        "c", {}, {"done": True}, {"criteria": [{**BASE, "expr": "output.done"}]}
    ).criterion_results
    assert (judged.status, judged.cause, judged.fault) == (Status.INDETERMINATE, Cause.WRONG_TYPE, Fault.AUTHOR)


@pytest.mark.parametrize("kind", ["numeric", "count", "latency", "percentage"])
def test_another_type_does_not_take_a_boolean_expression(kind: str) -> None:
    wanted = {**BASE, "expr": "output.total > 100.0", "metric_type": kind}
    assert places({"criteria": [wanted]}) == [(None, "criteria[0].expr")]
    assert read({"criteria": [{**wanted, "expr": "output.total > 100.0 ? 1 : 0"}]}) == []


# Code.


@pytest.mark.parametrize("tier", ["python", "python-full"])
@pytest.mark.parametrize(
    "code",
    ["def metric(:\n", "return {'mine': 1}", "x = output['a']", "x = 1", "def metric(output):\n    return {}", "1 / 0"],
)
def test_code_that_cannot_be_used_is_refused(code: str, tier: str) -> None:
    (problem,) = read(with_code(code, tier), EVERYTHING)
    assert problem.where == "custom_metrics[0].code"
    assert "python-full runs it" not in problem.message
    assert "may run it" not in problem.message


@pytest.mark.parametrize("code", ["return {'mine': 1}", "x = len(output['text'])", "mine = 1"])
def test_top_level_code_is_told_to_define_a_metric(code: str) -> None:
    (problem,) = read(with_code(code))
    assert "def metric(input, output, metadata)" in problem.message


def test_what_only_the_wider_tier_runs_is_told_which_one() -> None:
    code = "import fractions\n" + CODE
    (problem,) = read(with_code(code))
    assert "operator" in problem.message
    (problem,) = read(with_code(code), EVERYTHING)
    assert problem.message.endswith("tier: python-full")
    (problem,) = read(with_code("import nowhere\n" + CODE), EVERYTHING)
    assert "either" in problem.message


def test_code_in_a_file_of_its_own_is_named_by_that_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("\n\ndef metric(:\n")
    text = "custom_metrics:\n  - metrics: [mine]\n    code_file: mine.py\ncriteria:\n"
    (tmp_path / "c.yaml").write_text(f"{text}  - {{metric: mine, metric_type: count, comparison: gte, threshold: 1}}\n")
    with pytest.raises(CriteriaError) as refused:
        load_criteria(tmp_path / "c.yaml")
    (problem,) = refused.value.problems
    assert (problem.line, problem.where) == (3, "custom_metrics[0].code")
    assert problem.message.startswith("mine.py: ")
    assert "(line 3)" in problem.message


def test_code_that_does_not_load_in_time_is_the_last_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def slow(self: Sandbox, code: str, timeout_ms: int) -> SandboxResult:
        loaded.append(code)
        assert timeout_ms == faults.LOAD_TIMEOUT_MS
        return SandboxResult(None, {}, Failure.TIMEOUT, "no answer")

    monkeypatch.setattr(Sandbox, "load_sync", slow)
    customs = [{"metrics": [f"m{number}"], "code": f"{CODE}# {number}"} for number in range(9)]
    assert len(read({"criteria": [WORDS], "custom_metrics": customs})) == 1
    assert len(loaded) == 1


def test_what_does_not_run_here_is_not_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_code("def metric(:\n")
    whole["criteria"].append({**BASE, "expr": "size("})
    assert read(whole, VerificationEngine(custom=None)) == []
    assert read(with_code("def metric(:\n", "python-full")) == []
    monkeypatch.setattr(
        Sandbox, "load_sync", lambda *_: SandboxResult(None, {}, Failure.SANDBOX_UNAVAILABLE, "no walls here")
    )
    assert read(with_code("def metric(:\n")) == []


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    for module in (expression, interpreter):
        module.engine.cache_clear()
    yield
    for module in (expression, interpreter):
        module.engine.cache_clear()


@pytest.mark.usefixtures("without_extra")
def test_a_missing_extra_is_named_when_criteria_are_compiled() -> None:
    engine = VerificationEngine()
    for whole in (with_code("def metric(:\n"), {"criteria": [{**BASE, "expr": "size("}]}):
        catalogue = engine.catalogue
        criteria = parse_criteria(whole, known_metrics=catalogue.names(), examine=examine_with(catalogue))
        with pytest.raises(MissingExtra, match="custom"):
            engine.compile_or_raise(criteria)
