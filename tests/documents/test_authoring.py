"""Criteria files become criteria, or every mistake in them is told with its line."""

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

import meruit
from meruit.documents.authoring import parse_criteria, read_model
from meruit.documents.document import MAX_PROBLEMS, parse
from meruit.errors import ConfigError, CriteriaError, DocumentError, MeruitError
from meruit.model.kinds import Aggregation, ComparisonOperator, MetricType, Scale

# The specification's two examples, to the letter, are also the demo's stories.
STORIES = Path(meruit.__file__).parent / "cli" / "demo" / "stories"
SUMMARIZATION = (STORIES / "summarisation" / "criteria.yaml").read_text(encoding="utf-8")
CLASSIFICATION = (STORIES / "classification" / "criteria.yaml").read_text(encoding="utf-8")

GOOD = {"metric": "accuracy", "metric_type": "percentage", "comparison": "gte", "threshold": 0.9}
METRICS = ("accuracy", "latency_ms", "output_length")


# Any, here and below: options and values go through as they are.
def told(text: str | bytes, **options: Any) -> list[str]:
    with pytest.raises(CriteriaError) as refused:
        parse_criteria(text, "c.yaml", **options)
    return [str(problem) for problem in refused.value.problems]


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
        assert told(SUMMARIZATION + CLASSIFICATION) == [
            (
                f"line {line}, success_criteria: duplicate key 'success_criteria': it is already on line 2; "
                "put each success_criteria in a file of its own"
            )
        ]


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

    def test_each_is_told_with_its_line(self) -> None:
        types = ", ".join(repr(str(kind)) for kind in MetricType)
        operators = ", ".join(repr(str(operator)) for operator in ComparisonOperator)
        inside = "success_criteria.criteria"
        assert told(self.TEXT, known_metrics=METRICS, max_criteria=3) == [
            (
                f"line 2, {inside}: 7 criteria; at most 3 are taken"
                " (verification.max_criteria_per_task in the configuration)"
            ),
            (
                f"line 3, {inside}[0].metric: Unknown metric: acuracy (did you mean 'accuracy'?);"
                " `meruit metrics` lists all"
            ),
            (f"line 4, {inside}[0].metric_type: expected one of {types}, got 'percentag' (did you mean 'percentage'?)"),
            f"line 5, {inside}[0].comparison: expected one of {operators}, got 'gtee' (did you mean 'gte'?)",
            f"line 6, {inside}[0]: unknown key 'treshold' (did you mean 'threshold'?)",
            (f"line 10, {inside}[1].threshold: Invalid threshold for metric: accuracy: expected a number, got a list"),
            f"line 11, {inside}[1].required: expected true or false, got text 'maybe'",
            f"line 12, {inside}[1].bonus: expected a number of at least 0, got -1",
            f"line 13, {inside}[1].id: expected text, got the number 5; quote it if it is meant as text",
            f"line 14, {inside}[2]: expected a mapping, got text 'text'",
            f"line 15, {inside}[3].assert: expected text, got the number 7; quote it if it is meant as text",
            f"line 16, {inside}[3].axis: expected text with at least 1 character, got text ''",
            f"line 17, {inside}[4]: metric 'latency_ms' also needs metric_type, comparison, threshold",
            f"line 18, {inside}[5].assertion: needs 'assert'",
            (f"line 19, {inside}[6].scale: one threshold is on the scale of 1 and one on that of 100; declare scale"),
            f"line 23, {inside}[6].missing: expected one of 'bounds', 'exclude', got the number 5",
            "line 24, success_criteria: unknown key 'agregation' (did you mean 'aggregation'?)",
            "line 25, success_criteria.minimum_weighted_score: expected a score between 0 and 1, got 2",
            "line 26: 'aggregation' stands beside success_criteria; move it inside",
        ]

    def test_the_error_names_the_file(self) -> None:
        with pytest.raises(CriteriaError, match=r"(?m)^c\.yaml: line 14, .*text 'text'$"):
            parse_criteria(self.TEXT, "c.yaml")

    @given(st.sets(st.integers(0, 9), min_size=1), st.booleans())
    def test_each_bad_criterion_is_told_on_its_own_line(self, bad: set[int], wrapped: bool) -> None:
        rows = ["success_criteria:"] if wrapped else []
        rows.append("  criteria:")
        lines = []
        for number in range(10):
            rows += [f"  - {key}: {value}" if key == "metric" else f"    {key}: {value}" for key, value in GOOD.items()]
            if number in bad:
                rows.append("    wieght: 1")
                lines.append(len(rows))
        with pytest.raises(CriteriaError) as refused:
            parse_criteria("\n".join(rows))
        assert [problem.line for problem in refused.value.problems] == lines

    def test_more_mistakes_than_anyone_reads_are_cut_before_they_cost_time(self) -> None:
        text = "criteria:\n" + "".join(f"- {{metric: acuracy{n}, zork{n}: 1}}\n" for n in range(5_000))
        began = time.process_time()
        found = told(text, known_metrics=[f"metric{n}" for n in range(100)])
        assert time.process_time() - began < 5
        assert len(found) == MAX_PROBLEMS + 1
        assert found[-1] == "and more; put these right first"


class TestWholeFiles:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("- metric: a", "line 1: expected a mapping, got a list"),
            ("hello", "line 1: expected a mapping, got text 'hello'"),
            ("7", "line 1: expected a mapping, got the number 7"),
            ("\nsuccess_criteria:", "line 2, success_criteria: expected a mapping, got nothing"),
            ("success_criteria: [1]", "line 1, success_criteria: expected a mapping, got a list"),
            ("success_criteria: true", "line 1, success_criteria: expected a mapping, got true"),
        ],
    )
    def test_what_is_no_mapping_is_answered_with_an_example_that_works(self, text: str, found: str) -> None:
        [problem] = told(text)
        expectation, example = problem.split("; for example ")
        assert expectation == found
        assert parse_criteria(example).criteria[0].metric == "accuracy"

    def test_no_criteria_are_no_criteria(self) -> None:
        assert told("\ncriteria: []") == ["line 2, criteria: no criteria: nothing could fail"]
        assert told("aggregation: all") == ["line 1: needs 'criteria'"]
        assert told("criteria:") == ["line 1, criteria: expected a list, got nothing"]
        assert told("success_criteria: {}") == ["line 1, success_criteria: needs 'criteria'"]

    def test_a_file_that_cannot_be_read_is_a_criteria_error_too(self) -> None:
        assert told("") == ["the file is empty"]
        assert told("criteria: [1e999]")[0].startswith("line 1, criteria[0]: expected a number")

    def test_mistakes_about_the_whole_have_the_line_of_the_whole(self) -> None:
        text = "\n\ncriteria:\n" + "- {id: x, assert: y}\n" * 2
        assert told(text) == ["line 3: two criteria share the id 'x'"]

    def test_a_long_value_is_cut(self) -> None:
        [problem] = told(written(required="x" * 500))
        assert len(problem) < 130
        assert problem.endswith("xxx…")
        [unknown] = told(written(metric="m" * 500), known_metrics=METRICS)
        assert len(unknown) < 150


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

    def test_metrics_that_nobody_declares_are_compared_with_those_too(self) -> None:
        text = self.TEXT.replace("metric: mine,", "metric: minne,")
        (problem,) = told(text, known_metrics=METRICS)
        assert problem.startswith("line 8, success_criteria.criteria[0].metric: Unknown metric: minne (did you mean 'm")

    def test_a_declared_name_that_is_taken_is_told_and_what_to_do(self) -> None:
        assert told(self.TEXT.replace("yours", "latency_ms"), known_metrics=METRICS) == [
            (
                "line 3, success_criteria.custom_metrics[0].metrics: latency_ms is a metric already; "
                "give yours another name"
            )
        ]

    def test_every_mistake_is_told_with_its_line(self) -> None:
        text = """
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
        assert told(text, known_metrics=METRICS) == [
            "line 3, custom_metrics[0].metrics: the metric 'a' is listed twice",
            "line 4, custom_metrics[0].tier: an expression is no custom metric: write `expr:` on the criterion instead",
            "line 5, custom_metrics[0].code: expected text with at least 1 character, got text ''",
            "line 6, custom_metrics[1].metrics: expected a list, got the number 5",
            "line 6, custom_metrics[1]: needs 'code'",
            "line 7, custom_metrics[1]: unknown key 'cod' (did you mean 'code'?)",
            "line 8, custom_metrics[2]: expected a mapping, got text 'text'",
            "line 9, custom_metrics[3].metrics[1]: expected text, got the number 7; quote it if it is meant as text",
            "line 12, criteria[0].expr: expected text with at least 1 character, got text ''",
            (
                "line 13, criteria[1]: an expr gives a number, in which contains_all finds nothing; "
                "compare it with gte, lte or eq"
            ),
        ]

    @pytest.mark.parametrize("customs", [5, "x", None, {"metrics": ["a"]}])
    def test_what_is_no_list_of_custom_metrics_is_refused(self, customs: Any) -> None:
        text = json.dumps({"criteria": [GOOD], "custom_metrics": customs})
        (problem,) = told(text, known_metrics=METRICS, read_code=str)
        assert problem.startswith("line 1, custom_metrics: expected a list, got ")


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
        (problem,) = told(self.written({"metrics": ["b"], "code_file": "b"}))
        assert problem.endswith(
            "custom_metrics[0]: code_file is read only beside a criteria file; put the code itself in `code`"
        )

    def test_code_and_a_file_of_it_are_one_too_many(self) -> None:
        both = {"metrics": ["b"], "code": "x", "code_file": "b"}
        (problem,) = told(self.written(both), read_code=str)
        assert problem == "line 16, custom_metrics[0].code_file: either code or code_file, not both"

    def test_neither_code_nor_a_file_is_one_too_few(self) -> None:
        (problem,) = told(self.written({"metrics": ["b"]}), read_code=str)
        assert problem.endswith("custom_metrics[0]: needs 'code'")

    def test_what_the_reader_will_not_read_is_told_beside_all_else(self) -> None:
        def never(name: str) -> str:
            raise MeruitError(f"no {name}")

        customs = (
            {"metrics": ["b"], "code_file": "b"},
            {"metrics": [], "code_file": 3},
            {"metrics": ["d"], "code": ""},
        )
        assert told(self.written(*customs), read_code=never) == [
            "line 15, custom_metrics[0].code_file: no b",
            (
                "line 18, custom_metrics[1].metrics: "
                "expected a list with at least 1 item after validation, not 0, got a list"
            ),
            "line 19, custom_metrics[1].code_file: expected text, got the number 3",
            "line 25, custom_metrics[2].code: expected text with at least 1 character, got text ''",
        ]

    def test_no_more_files_are_read_than_custom_metrics_are_taken(self) -> None:
        read: list[str] = []

        def remembered(name: str) -> str:
            read.append(name)
            return "code"

        customs = ({"metrics": [f"m{number}"], "code_file": f"{number}"} for number in range(1_000))
        assert (
            "custom_metrics: expected a list with at most 64 items"
            in told(self.written(*customs), read_code=remembered)[0]
        )
        assert len(read) == 64

    def test_what_is_wrong_with_the_code_read_is_told_on_the_line_of_the_file(self) -> None:
        (problem,) = told(self.written({"metrics": ["b"], "code_file": "b"}), read_code=lambda _name: " ")
        assert problem == "line 15, custom_metrics[0].code: the code is empty"


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
    def told(self, text: str) -> list[str]:
        with pytest.raises(ConfigError) as refused:
            read_model(parse(text, "s.yaml"), Settings, error=ConfigError)
        return [str(problem) for problem in refused.value.problems]

    def test_a_good_document_is_the_model(self) -> None:
        document = parse("sources: {a: {kind: sftp, port: 1}}\ntheOther: y", "s.yaml")
        settings = read_model(document, Settings)
        assert (settings.sources, settings.other) == ({"a": Source(kind="sftp", port=1)}, "y")

    def test_the_error_is_a_document_error_unless_told_otherwise(self) -> None:
        with pytest.raises(
            DocumentError, match=r"^s\.yaml: line 1: unknown key 'tiemout' \(did you mean 'timeout'\?\)$"
        ):
            read_model(parse("tiemout: 1", "s.yaml"), Settings)

    def test_hints_come_from_the_model_at_that_place(self) -> None:
        text = "sources:\n  a:\n    knd: sftp\n    kind: stfp\nmain:\n  hots: []\n  port: 0\nteOther: x\n"
        assert self.told(text) == [
            "line 3, sources.a: unknown key 'knd' (did you mean 'kind'?)",
            "line 4, sources.a.kind: expected one of 'files', 'sftp', got 'stfp' (did you mean 'sftp'?)",
            "line 5, main: needs 'kind'",
            "line 6, main: unknown key 'hots' (did you mean 'hosts'?)",
            "line 7, main.port: expected a number greater than 0, got the number 0",
            "line 8: unknown key 'teOther' (did you mean 'theOther'?)",
        ]

    def test_the_branches_of_a_union_do_not_show(self) -> None:
        assert self.told("timeout: x") == [
            "line 1, timeout: expected a whole number, got text 'x'",
            "line 1, timeout: expected a list, got text 'x'",
        ]
        assert self.told("timeout: [1,\n x]")[-1] == "line 2, timeout[1]: expected a whole number, got text 'x'"

    def test_other_complaints_are_put_in_the_same_words(self) -> None:
        text = "theOther: '1'\nratio: 3\nfree:\n  a: {}\nmain: {kind: sftp, hosts: [a, b, c]}\n"
        assert self.told(text) == [
            "line 1, theOther: String should match pattern '^[a-z]+$'",
            "line 2, ratio: a ratio lies below 1",
            "line 4, free.a: expected a whole number, got a mapping",
            "line 5, main.hosts: expected a list with at most 2 items after validation, not 3, got a list",
        ]

    def test_a_default_that_is_refused_is_shown_as_python_has_it(self) -> None:
        class Wrong(BaseModel):
            pair: int = Field(default=(1, 2), validate_default=True)

        with pytest.raises(DocumentError, match=r"line 1, pair: expected a whole number, got \(1, 2\)$"):
            read_model(parse("{}", "s.yaml"), Wrong)
