"""Criteria files become criteria, or every mistake in them is reported with its line."""

import json
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from tests.golden import check_golden

import meruit
from meruit.documents.authoring import parse_criteria, read_model
from meruit.documents.document import MAX_PROBLEMS, parse
from meruit.errors import ConfigError, CriteriaError, DocumentError, MeruitError, Problem
from meruit.model.kinds import Aggregation, ComparisonOperator, MetricType, Scale

# Both examples are also the demo's stories.
STORIES = Path(meruit.__file__).parent / "cli" / "demo" / "stories"
SUMMARIZATION = (STORIES / "summarisation" / "criteria.yaml").read_text(encoding="utf-8")
CLASSIFICATION = (STORIES / "classification" / "criteria.yaml").read_text(encoding="utf-8")

GOOD = {"metric": "accuracy", "metric_type": "percentage", "comparison": "gte", "threshold": 0.9}
METRICS = ("accuracy", "latency_ms", "output_length")


# Any, here and below: options and values go through as they are.
def refused(text: str | bytes, **options: Any) -> tuple[Problem, ...]:
    with pytest.raises(CriteriaError) as raised:
        parse_criteria(text, "c.yaml", **options)
    return raised.value.problems


def places(text: str | bytes, **options: Any) -> list[tuple[int | None, str]]:
    """Line and path of each problem."""
    return [(problem.line, problem.where) for problem in refused(text, **options)]


def sentences(text: str | bytes, **options: Any) -> str:
    return "".join(f"{problem}\n" for problem in refused(text, **options))


def written(**criterion: Any) -> str:
    return json.dumps({"criteria": [GOOD | criterion]})


class TestTheSpecifiedExamples:
    def test_the_summarization_task_loads(self) -> None:
        criteria = parse_criteria(SUMMARIZATION)
        first, second, third, fourth = criteria.criteria
        assert criteria.aggregation is Aggregation.ALL
        assert (first.metric, first.threshold, first.required, first.bonus) == ("accuracy", 0.9, True, 0.03)
        assert (second.comparison, second.threshold, second.required) == (ComparisonOperator.LTE, 2000, False)
        assert third.threshold == {"min": 100, "max": 500}
        assert (fourth.metric_type, fourth.threshold) == (MetricType.CONTAINS, ["summary", "conclusion"])

    def test_the_classification_task_loads(self) -> None:
        criteria = parse_criteria(CLASSIFICATION.encode())
        assert criteria.aggregation is Aggregation.WEIGHTED
        assert criteria.minimum_weighted_score == 0.75
        assert [criterion.weight for criterion in criteria.criteria] == [0.6, 0.4]
        assert [criterion.scale for criterion in criteria.criteria] == [Scale.FRACTION, Scale.FRACTION]

    def test_both_in_one_file_are_to_be_parted(self) -> None:
        line = SUMMARIZATION.count("\n") + 2
        [problem] = refused(SUMMARIZATION + CLASSIFICATION)
        assert (problem.line, problem.where) == (line, "success_criteria")
        assert "line 2" in problem.message


class TestGoodFiles:
    @given(st.decimals(0, 1, places=25))
    def test_a_threshold_is_what_was_written(self, threshold: Decimal) -> None:
        text = f"criteria: [{{metric: a, metric_type: numeric, comparison: gte, threshold: {threshold:f}}}]"
        assert Decimal(str(parse_criteria(text).criteria[0].threshold)) == threshold

    def test_json_and_yaml_say_the_same(self) -> None:
        text = json.dumps(parse(CLASSIFICATION, "a").value)
        assert parse_criteria(text, "c.json") == parse_criteria(CLASSIFICATION)

    def test_codes_in_assertions_stay_text(self) -> None:
        text = "criteria:\n- assert: field_equals\n  code: 01\n  country: NO\n  at: 10:15\n"
        assertion = parse_criteria(text).criteria[0].assertion
        assert assertion is not None
        assert assertion.settings == {"code": "01", "country": "NO", "at": "10:15"}

    def test_known_metrics_and_few_criteria_pass(self) -> None:
        assert len(parse_criteria(written(), known_metrics=METRICS, max_criteria=1).criteria) == 1

    def test_an_assertion_needs_no_known_metric(self) -> None:
        assert parse_criteria("criteria: [{assert: x}]", known_metrics=()).criteria[0].label == "x"


class TestEveryMistakeAtOnce:
    TEXT = """success_criteria:
  criteria:
    - metric: acuracy
      metric_type: percentag
      comparison: gtee
      treshold: 0.9
    - metric: accuracy
      metric_type: percentage
      comparison: gte
      threshold: [1]
      required: maybe
      bonus: -1
      id: 5
    - text
    - assert: 7
      axis: ''
    - metric: latency_ms
    - assertion: {}
    - metric: accuracy
      metric_type: percentage
      comparison: in_range
      threshold: {min: 0.5, max: 50}
      missing: 5
  agregation: all
  minimum_weighted_score: 2
aggregation: all
"""

    def test_each_is_reported_with_its_line(self) -> None:
        inside = "success_criteria.criteria"
        assert places(self.TEXT, known_metrics=METRICS, max_criteria=3) == [
            (2, inside),
            (3, f"{inside}[0].metric"),
            (4, f"{inside}[0].metric_type"),
            (5, f"{inside}[0].comparison"),
            (6, f"{inside}[0]"),
            (10, f"{inside}[1].threshold"),
            (11, f"{inside}[1].required"),
            (12, f"{inside}[1].bonus"),
            (13, f"{inside}[1].id"),
            (14, f"{inside}[2]"),
            (15, f"{inside}[3].assert"),
            (16, f"{inside}[3].axis"),
            (17, f"{inside}[4]"),
            (18, f"{inside}[5].assertion"),
            (19, f"{inside}[6].scale"),
            (23, f"{inside}[6].missing"),
            (24, "success_criteria"),
            (25, "success_criteria.minimum_weighted_score"),
            (26, ""),
        ]

    def test_names_and_thresholds_are_refused_in_the_specified_words(self) -> None:
        found = refused(self.TEXT, known_metrics=METRICS, max_criteria=3)
        assert found[1].message.startswith("Unknown metric: acuracy")
        assert found[5].message.startswith("Invalid threshold for metric: accuracy")

    @pytest.mark.golden
    def test_each_is_explained(self) -> None:
        check_golden("documents/criteria_mistakes", sentences(self.TEXT, known_metrics=METRICS, max_criteria=3))

    def test_the_error_names_the_file(self) -> None:
        with pytest.raises(CriteriaError, match=r"(?m)^c\.yaml: line 14, success_criteria\.criteria\[2\]: "):
            parse_criteria(self.TEXT, "c.yaml")

    @given(st.sets(st.integers(0, 9), min_size=1), st.booleans())
    def test_each_bad_criterion_is_reported_on_its_own_line(self, bad: set[int], wrapped: bool) -> None:
        rows = ["success_criteria:"] if wrapped else []
        rows.append("  criteria:")
        lines = []
        for number in range(10):
            rows += [f"  - {key}: {value}" if key == "metric" else f"    {key}: {value}" for key, value in GOOD.items()]
            if number in bad:
                rows.append("    wieght: 1")
                lines.append(len(rows))
        assert [line for line, _where in places("\n".join(rows))] == lines

    def test_only_the_first_mistakes_are_reported_before_they_cost_time(self) -> None:
        text = "criteria:\n" + "".join(f"- {{metric: acuracy{n}, zork{n}: 1}}\n" for n in range(5_000))
        began = time.process_time()
        found = places(text, known_metrics=[f"metric{n}" for n in range(100)])
        assert time.process_time() - began < 30
        assert len(found) == MAX_PROBLEMS + 1
        assert found[-1] == (None, "")


class TestWholeFiles:
    @pytest.mark.parametrize(
        ("text", "line", "where", "got"),
        [
            ("- metric: a", 1, "", "a list"),
            ("hello", 1, "", "text 'hello'"),
            ("7", 1, "", "the number 7"),
            ("\nsuccess_criteria:", 2, "success_criteria", "nothing"),
            ("success_criteria: [1]", 1, "success_criteria", "a list"),
            ("success_criteria: true", 1, "success_criteria", "true"),
        ],
    )
    def test_a_file_that_is_not_a_mapping_gets_an_example_that_works(
        self, text: str, line: int, where: str, got: str
    ) -> None:
        [problem] = refused(text)
        expectation, example = problem.message.split("; for example ")
        assert (problem.line, problem.where) == (line, where)
        assert expectation.endswith(f", got {got}")
        assert parse_criteria(example).criteria[0].metric == "accuracy"

    def test_a_file_without_criteria_is_refused(self) -> None:
        assert places("\ncriteria: []") == [(2, "criteria")]
        assert places("aggregation: all") == [(1, "")]
        assert places("criteria:") == [(1, "criteria")]
        assert places("success_criteria: {}") == [(1, "success_criteria")]

    def test_a_file_that_cannot_be_read_is_a_criteria_error_too(self) -> None:
        assert places("") == [(None, "")]
        assert places("criteria: [1e999]") == [(1, "criteria[0]")]

    def test_mistakes_about_the_whole_have_the_line_of_the_whole(self) -> None:
        text = "\n\ncriteria:\n" + "- {id: x, assert: y}\n" * 2
        [problem] = refused(text)
        assert (problem.line, problem.where) == (3, "")
        assert "'x'" in problem.message

    def test_a_long_value_is_cut(self) -> None:
        [problem] = refused(written(required="x" * 500))
        assert len(str(problem)) < 130
        assert problem.message.endswith("xxx…")
        [unknown] = refused(written(metric="m" * 500), known_metrics=METRICS)
        assert len(str(unknown)) < 150


class TestCodeOfOnesOwn:
    TEXT = """success_criteria:
  custom_metrics:
    - metrics: [mine, yours]
      code: |
        def metric(input, output, metadata):
            return {"mine": 1, "yours": 2}
  criteria:
    - {metric: mine, metric_type: count, comparison: gte, threshold: 1}
    - {expr: size(output.text), metric_type: count, comparison: gte, threshold: 1}
    - {metric: own_name, expr: size(output.text), metric_type: count, comparison: gte, threshold: 1}
"""

    def test_metrics_that_the_file_declares_are_known(self) -> None:
        read = parse_criteria(self.TEXT, known_metrics=METRICS)
        assert read.custom_metrics[0].metrics == ("mine", "yours")
        assert read.custom_metrics[0].code.endswith('return {"mine": 1, "yours": 2}\n')
        assert read.ids == ("mine", "size(output.text)", "own_name")

    def test_an_unknown_metric_suggests_declared_metrics_too(self) -> None:
        text = self.TEXT.replace("metric: mine,", "metric: minne,")
        (problem,) = refused(text, known_metrics=METRICS)
        assert (problem.line, problem.where) == (8, "success_criteria.criteria[0].metric")
        assert problem.message.startswith("Unknown metric: minne")
        assert "'mine'" in problem.message

    def test_a_declared_name_that_is_taken_is_refused(self) -> None:
        [problem] = refused(self.TEXT.replace("yours", "latency_ms"), known_metrics=METRICS)
        assert (problem.line, problem.where) == (3, "success_criteria.custom_metrics[0].metrics")
        assert "latency_ms" in problem.message

    WRONG = """
custom_metrics:
  - metrics: [a, a]
    tier: expr
    code: ''
  - metrics: 5
    cod: x
  - text
  - metrics: [b, 7]
    code: x
criteria:
  - expr: ''
  - expr: "1"
    metric_type: count
    comparison: contains_all
    threshold: [a]
"""

    def test_every_mistake_is_reported_with_its_line(self) -> None:
        assert places(self.WRONG, known_metrics=METRICS) == [
            (3, "custom_metrics[0].metrics"),
            (4, "custom_metrics[0].tier"),
            (5, "custom_metrics[0].code"),
            (6, "custom_metrics[1].metrics"),
            (6, "custom_metrics[1]"),
            (7, "custom_metrics[1]"),
            (8, "custom_metrics[2]"),
            (9, "custom_metrics[3].metrics[1]"),
            (12, "criteria[0].expr"),
            (13, "criteria[1]"),
        ]

    @pytest.mark.golden
    def test_every_mistake_is_explained(self) -> None:
        check_golden("documents/custom_metric_mistakes", sentences(self.WRONG, known_metrics=METRICS))

    @pytest.mark.parametrize("customs", [5, "x", None, {"metrics": ["a"]}])
    def test_custom_metrics_that_are_not_a_list_are_refused(self, customs: Any) -> None:
        text = json.dumps({"criteria": [GOOD], "custom_metrics": customs})
        assert places(text, known_metrics=METRICS, read_code=str) == [(1, "custom_metrics")]


class TestCodeInAFile:
    def written(self, *customs: dict[str, Any], wrapped: bool = False) -> str:
        whole = {"criteria": [GOOD], "custom_metrics": list(customs)}
        return json.dumps({"success_criteria": whole} if wrapped else whole, indent=1)

    @pytest.mark.parametrize("wrapped", [True, False])
    def test_the_code_takes_the_place_of_the_file(self, wrapped: bool) -> None:
        inline, beside = {"metrics": ["a"], "code": "code of a"}, {"metrics": ["b"], "code_file": "b"}
        read = parse_criteria(self.written(inline, beside, wrapped=wrapped), read_code="code of {}".format)
        assert [custom.code for custom in read.custom_metrics] == ["code of a", "code of b"]
        same = self.written(inline, {"metrics": ["b"], "code": "code of b"}, wrapped=wrapped)
        assert parse_criteria(same) == read

    def test_without_a_reader_it_is_refused(self) -> None:
        (problem,) = refused(self.written({"metrics": ["b"], "code_file": "b"}))
        assert (problem.where, "code_file" in problem.message) == ("custom_metrics[0]", True)

    def test_code_and_a_file_of_it_are_one_too_many(self) -> None:
        both = {"metrics": ["b"], "code": "x", "code_file": "b"}
        assert places(self.written(both), read_code=str) == [(16, "custom_metrics[0].code_file")]

    def test_neither_code_nor_a_file_is_one_too_few(self) -> None:
        (problem,) = refused(self.written({"metrics": ["b"]}), read_code=str)
        assert (problem.where, "'code'" in problem.message) == ("custom_metrics[0]", True)

    def test_a_file_that_cannot_be_read_is_reported_with_the_rest(self) -> None:
        def never(name: str) -> str:
            raise MeruitError(f"no {name}")

        customs = (
            {"metrics": ["b"], "code_file": "b"},
            {"metrics": [], "code_file": 3},
            {"metrics": ["d"], "code": ""},
        )
        assert places(self.written(*customs), read_code=never) == [
            (15, "custom_metrics[0].code_file"),
            (18, "custom_metrics[1].metrics"),
            (19, "custom_metrics[1].code_file"),
            (25, "custom_metrics[2].code"),
        ]
        assert refused(self.written(*customs), read_code=never)[0].message == "no b"

    def test_no_more_files_are_read_than_custom_metrics_are_taken(self) -> None:
        read: list[str] = []

        def remembered(name: str) -> str:
            read.append(name)
            return "code"

        customs = ({"metrics": [f"m{number}"], "code_file": f"{number}"} for number in range(1_000))
        first, *_ = refused(self.written(*customs), read_code=remembered)
        assert (first.where, "64 items" in first.message) == ("custom_metrics", True)
        assert len(read) == 64

    def test_mistakes_in_a_code_file_have_the_line_that_names_it(self) -> None:
        text = self.written({"metrics": ["b"], "code_file": "b"})
        assert places(text, read_code=lambda _name: " ") == [(15, "custom_metrics[0].code")]


class Source(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["files", "sftp"]
    port: int = Field(default=22, gt=0, le=65535)
    hosts: list[str] = Field(default=[], max_length=2)


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sources: dict[str, Source] = {}
    timeout: int | list[int] = 5
    ratio: float = Field(default=0.5, allow_inf_nan=False)
    main: Source | None = None
    other: Annotated[str, Field(validation_alias="theOther", pattern="^[a-z]+$")] = "x"
    free: dict[str, int] = {}

    @field_validator("ratio")
    @classmethod
    def _below_one(cls, ratio: float) -> float:
        if ratio >= 1:
            raise AssertionError("a ratio lies below 1")
        return ratio


class TestAnyModel:
    def refused(self, text: str) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as raised:
            read_model(parse(text, "s.yaml"), Settings, error=ConfigError)
        return raised.value.problems

    def test_a_good_document_is_the_model(self) -> None:
        document = parse("sources: {a: {kind: sftp, port: 1}}\ntheOther: y", "s.yaml")
        settings = read_model(document, Settings)
        assert (settings.sources, settings.other) == ({"a": Source(kind="sftp", port=1)}, "y")

    def test_the_error_is_a_document_error_by_default(self) -> None:
        with pytest.raises(DocumentError, match=r"^s\.yaml: line 1: .*'tiemout' .*'timeout'"):
            read_model(parse("tiemout: 1", "s.yaml"), Settings)

    def test_hints_come_from_the_model_at_that_place(self) -> None:
        text = "sources:\n  a:\n    knd: sftp\n    kind: stfp\nmain:\n  hots: []\n  port: 0\nteOther: x\n"
        assert [(problem.line, problem.where, _quoted(problem)[-1:]) for problem in self.refused(text)] == [
            (3, "sources.a", ["kind"]),
            (4, "sources.a.kind", ["sftp"]),
            (5, "main", ["kind"]),
            (6, "main", ["hosts"]),
            (7, "main.port", []),
            (8, "", ["theOther"]),
        ]

    def test_the_branches_of_a_union_do_not_show(self) -> None:
        assert [(problem.line, problem.where) for problem in self.refused("timeout: x")] == [(1, "timeout")] * 2
        last = self.refused("timeout: [1,\n x]")[-1]
        assert (last.line, last.where) == (2, "timeout[1]")

    OTHER = "theOther: '1'\nratio: 3\nfree:\n  a: {}\nmain: {kind: sftp, hosts: [a, b, c]}\n"

    def test_other_mistakes_have_their_lines(self) -> None:
        assert [(problem.line, problem.where) for problem in self.refused(self.OTHER)] == [
            (1, "theOther"),
            (2, "ratio"),
            (4, "free.a"),
            (5, "main.hosts"),
        ]

    @pytest.mark.golden
    def test_other_mistakes_are_explained_in_our_words(self) -> None:
        check_golden("documents/model_mistakes", "".join(f"{one}\n" for one in self.refused(self.OTHER)))

    def test_a_default_that_is_refused_is_shown_as_python_has_it(self) -> None:
        class Wrong(BaseModel):
            pair: int = Field(default=(1, 2), validate_default=True)

        with pytest.raises(DocumentError, match=r"line 1, pair: .*\(1, 2\)$"):
            read_model(parse("{}", "s.yaml"), Wrong)


def _quoted(problem: Problem) -> list[str]:
    return re.findall(r"'(\w+)'", problem.message)
