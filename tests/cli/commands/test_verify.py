"""`meruit verify`: verdicts become exit codes, and whatever is wrong with a file is said, never thrown."""

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of

from meruit.cli.terminal import format_cell
from meruit.cli.views.verdict import print_verification
from meruit.metrics.support.extractor import MetricExtractor
from meruit.model.governance import GovernanceResult
from meruit.model.text import escape_control_characters
from meruit.verify.engine import VerificationEngine

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

WORDS = "criteria:\n  - {metric: word_count, metric_type: count, comparison: gte, threshold: 2}\n"


def criterion(**changes: Any) -> dict[str, Any]:
    return {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2, **changes}


@pytest.fixture
def verify(run: Run, write: Write) -> Run:
    """Verify an output, given as a value or as the bytes of its file."""

    def call(output: Any, *arguments: str, criteria: Any = WORDS) -> subprocess.CompletedProcess[str]:
        write("criteria.yaml", criteria)
        write("output.json", output)
        return run("verify", "criteria.yaml", "--output", "output.json", *arguments)

    return call


# How it ends.


@pytest.mark.parametrize(
    ("output", "code", "verdict"),
    [
        ({"text": "two words"}, 0, "verdict pass, success true"),
        ({"text": "one"}, 1, "verdict fail, success false"),
        ({"texd": "two words"}, 3, "verdict inconclusive, success false"),
    ],
)
def test_the_exit_code_is_the_verdict(verify: Run, output: Any, code: int, verdict: str) -> None:
    ended = verify(output)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert verdict in ended.stdout


def test_json_is_the_whole_result_and_nothing_else(verify: Run) -> None:
    ended = verify({"text": "two words"}, "--json", "--contract-id", "c-7")
    result = json.loads(ended.stdout)
    assert (result["contract_id"], result["success"], result["verdict"]) == ("c-7", True, "pass")
    assert ended.stdout.count("\n") == 1


def test_input_and_metadata_reach_the_metrics(verify: Run, write: Write) -> None:
    criteria = {
        "criteria": [
            criterion(metric="accuracy", metric_type="percentage", threshold=90),
            criterion(metric="latency_ms", metric_type="latency", comparison="lte", threshold=5),
        ]
    }
    write("input.json", {"ground_truth": ["a"]})
    write("meta.json", {"duration_ms": 3})
    ended = verify({"predictions": ["a"]}, "--input", "input.json", "--metadata", "meta.json", criteria=criteria)
    assert ended.returncode == 0
    assert "≥ 90" in ended.stdout


def test_an_output_may_come_from_standard_input(run: Run, write: Write) -> None:
    write("c.yaml", WORDS)
    assert run("verify", "c.yaml", "--output", "-", stdin=b'{"text": "two words"}').returncode == 0


def test_criteria_may_come_from_standard_input(run: Run, write: Write) -> None:
    write("o.json", {"text": "two words"})
    assert run("verify", "-", "--output", "o.json", stdin=WORDS.encode()).returncode == 0
    refused = run("verify", "-", "--output", "o.json", stdin=b"criteria: 3")
    assert (refused.returncode, refused.stderr.startswith("error: standard input: line 1")) == (2, True)


def test_standard_input_is_read_for_one_file_only(run: Run, write: Write) -> None:
    write("c.yaml", WORDS)
    error = error_of(run, "verify", "c.yaml", "--output", "-", "--input", "-", stdin=b"{}")
    assert error["code"] == "usage"


def test_closed_standard_input_is_an_empty_file(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("c.yaml", WORDS)
    monkeypatch.setattr("meruit.files.sys", type("closed", (), {"stdin": None}))
    error = error_of(run, "verify", "c.yaml", "--output", "-")
    assert (error["code"], error["where"]) == ("bad_document", "standard input")


# Files that cannot be judged.


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[1]", "list"),
        (b'"done"', '{"text": "…"}'),
        (b"3", "number"),
        (b"3.5", "number"),
        (b"true", "or false"),
        (b"null", "null"),
        (b'{"text": NaN}', "line 1 column 10"),
        (b'{"n": 1e999}', "infinity"),
        (b'{"n": ' + b"9" * 5000 + b"}", "infinity"),
        (b'{"text": "a", "text": "b"}', "'text'"),
        (b'{"a": [{"b": 1, "b": 1}]}', "'b'"),
        (b'{"text": "caf\xe9"}', "UTF-8"),
        ('{"text": "x"}'.encode("utf-16"), "UTF-8"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth"),
        (b'{"a": 1,}', "line 1"),
    ],
)
def test_an_output_that_is_not_a_json_object_is_refused(verify: Run, content: bytes, value: str) -> None:
    ended = verify(content)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: output.json: ")
    assert value in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_byte_order_mark_is_no_mistake(verify: Run) -> None:
    assert verify(b'\xef\xbb\xbf{"text": "two words"}').returncode == 0


def test_ten_megabytes_are_judged(verify: Run) -> None:
    ended = verify({"text": "word " * 2_000_000})
    assert (ended.returncode, "2000000" in ended.stdout) == (0, True)


def test_an_endless_file_is_refused(verify: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.files.MAX_FILE_BYTES", 2**20)
    write("c.yaml", WORDS)
    ended = verify({"text": "two words"}, "--input", "/dev/zero")
    assert (ended.returncode, ended.stderr) == (2, "error: /dev/zero: more than 1 MiB\n")


@pytest.mark.parametrize("option", ["--output", "--input", "--metadata", "--config"])
@pytest.mark.parametrize("file", [".", "nowhere.json", "", "no\udcff.json"])
def test_a_file_that_cannot_be_read_is_named(verify: Run, option: str, file: str) -> None:
    ended = verify({"text": "two words"}, option, file, "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    error = json.loads(ended.stderr)["error"]
    code = "bad_config" if option == "--config" else "unreadable_file"
    assert (error["code"], error["where"]) == (code, file or "''")


def test_a_file_without_permission_is_named(verify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    # Path.write_bytes opens too, so the files are written by hand.
    for name, text in (("criteria.yaml", WORDS), ("output.json", "{}")):
        with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123 - Path.open is out of order here
            file.write(text)
    monkeypatch.setattr(Path, "write_bytes", lambda *_: None)
    ended = verify({}, "--json")
    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["code"], error["where"]) == (2, "unreadable_file", "criteria.yaml")
    assert os.strerror(errno.EACCES) in error["message"]


# Criteria that cannot be used.


def test_a_file_with_three_mistakes_names_all_three(verify: Run) -> None:
    ended = verify(
        {},
        criteria="""\
criteria:
  - metric: word_cout
    metric_type: count
    comparison: gte
    treshold: 3
  - metric: accuracy
    metric_type: percentage
    comparison: above
    threshold: 0.9
""",
    )
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert all(line.startswith("error: criteria.yaml: line ") for line in lines)
    for mistake in (
        "line 2, criteria[0].metric: Unknown metric: word_cout (did you mean 'word_count'?)",
        "'treshold' (did you mean 'threshold'?)",
        "got 'above'",
    ):
        assert mistake in ended.stderr


def test_more_criteria_than_allowed_are_refused_by_the_key_that_allows_them(verify: Run) -> None:
    ended = verify({}, criteria={"criteria": [criterion()] * 1000})
    assert ended.returncode == 2
    assert "1,000 criteria; at most 100 " in ended.stderr


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"metric": "accuracy", "metric_type": "percentage", "threshold": 150}, ("100",)),
        ({"metric_type": "percentage", "comparison": "in_range", "threshold": {"min": 0.5, "max": 90}}, ("scale",)),
        ({"comparison": "in_range", "threshold": {"min": 5, "max": 3}}, ("5", "3")),
        ({"threshold": None}, ("threshold",)),
        ({"id": "x" * 5, "weight": 0}, ("weight",)),
    ],
)
def test_a_criterion_that_cannot_be_judged_is_refused(
    verify: Run, changes: dict[str, Any], values: tuple[str, ...]
) -> None:
    ended = verify({}, "--json", criteria={"criteria": [criterion(**changes)]})
    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["code"]) == (2, "bad_criteria")
    assert all(value in error["message"] for value in values)


@pytest.mark.parametrize("key", ["a\x1b[2Jb", "a\nerror: all is well"])
def test_a_hostile_key_cannot_write_on_the_terminal(verify: Run, key: str) -> None:
    ended = verify({}, criteria={"criteria": [criterion(**{key: 1})]})
    assert ended.returncode == 2
    assert "\x1b" not in ended.stderr
    assert ended.stderr.count("error: ") == ended.stderr.count("error: criteria.yaml") + key.count("error: ")


def patterned(**params: Any) -> dict[str, Any]:
    return criterion(metric="matches_pattern", metric_type="contains", threshold=1, params=params)


def shaped(schema: Any) -> dict[str, Any]:
    return criterion(
        metric="matches_schema",
        metric_type="matches_schema",
        comparison="eq",
        threshold=True,
        params={"schema": schema},
    )


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        (patterned(pattern="(((a{1000}){1000}){1000})"), "repetition"),
        (patterned(pattern="(?=a)"), "look-around"),
        (patterned(pattern="(a\nerror: all is well"), r"'(a\nerror: all is well'"),
        (patterned(patern="a"), "'pattern'"),
        (shaped({"$ref": "https://example.org/x"}), "https://example.org/x"),
        (shaped({"$ref": "#"}), "itself"),
        (shaped({"type": "nonsense"}), "/type"),
        (shaped({}), "everything"),
        (criterion(params={"language": "en"}), "word_count"),
    ],
)
def test_params_that_cannot_work_are_refused_before_judging(verify: Run, asked: Any, value: str) -> None:
    ended = verify({"text": "a" * 1000}, criteria={"criteria": [asked]})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: criteria.yaml: line 1, criteria[0].params.")
    assert value in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_each_criterion_that_cannot_work_is_named_on_a_line_of_its_own(run: Run, write: Write) -> None:
    words = criterion(metric="output_length", comparison="contains_all", threshold=["word"])
    criteria = {"criteria": [shaped({}), criterion(), shaped({}), patterned(pattern="("), words]}
    write("output.json", {"text": "a"})
    ended = run("verify", "-", "--output", "output.json", stdin=json.dumps(criteria).encode())
    assert ended.returncode == 2
    assert [line.split(": ")[:3] for line in ended.stderr.splitlines()] == [
        ["error", "standard input", "line 1, criteria[0].params.schema"],
        ["error", "standard input", "line 1, criteria[2].params.schema"],
        ["error", "standard input", "line 1, criteria[3].params.pattern"],
        ["error", "standard input", "line 1, criteria[4].threshold"],
    ]


def test_an_unknown_assertion_is_refused_with_its_place(verify: Run) -> None:
    criteria = {"criteria": [criterion(), {"assert": "no_such_check", "of": "the world"}]}
    ended = verify({"text": "two words"}, "--json", criteria=criteria)
    (problem,) = json.loads(ended.stderr)["error"]["problems"]
    assert (ended.returncode, problem["path"], "'no_such_check'" in problem["message"]) == (
        2,
        "criteria[1].assert",
        True,
    )


def test_a_bad_assertion_is_refused_with_file_and_line(run: Run, write: Write) -> None:
    write("output.json", {"text": "a"})
    text = "criteria:\n- assert: state-unchanged\n  when: k +\n- assert: state-unchanged\n  excpt: [a]\n"
    error = error_of(run, "verify", write("criteria.yaml", text), "--output", "output.json")
    assert [(one["where"], one["path"]) for one in error["problems"]] == [
        ("criteria.yaml:3", "criteria[0].when"),
        ("criteria.yaml:5", "criteria[1].excpt"),
    ]
    assert "'except'" in error["problems"][1]["message"]


def test_a_contract_id_that_no_json_can_hold_is_refused(verify: Run) -> None:
    ended = verify({"text": "two words"}, "--json", "--contract-id", "c\udcff")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--contract-id" in ended.stderr


# The settings.


def test_settings_are_taken_from_the_named_file(verify: Run, write: Write) -> None:
    write("s.yaml", "verification: {max_criteria_per_task: 1}")
    ended = verify({"text": "a b"}, "--config", "s.yaml", criteria={"criteria": [criterion(), criterion()]})
    assert (ended.returncode, "at most 1 " in ended.stderr) == (2, True)


def test_the_settings_can_ask_that_outcomes_are_kept(verify: Run, write: Write, run: Run) -> None:
    write("s.yaml", "verification: {store_outcomes: true}")
    ended = verify({"text": "two words"}, "--config", "s.yaml", "--json")
    assert ended.returncode == 0
    result = json.loads(ended.stdout)
    assert ended.stderr == f"note: recorded as {result['contract_id']} in meruit-data/meruit.db\n"
    (kept,) = json.loads(run("outcome", "list", "--json").stdout)["outcomes"]
    assert (kept["id"], kept["verdict"]) == (result["contract_id"], result["verdict"])


def test_nothing_is_kept_unless_somebody_asks(verify: Run, write: Write, tmp_path: Path) -> None:
    write("s.yaml", "verification: {store_outcomes: true}")
    assert verify({"text": "two words"}).stderr == ""
    assert verify({"text": "two words"}, "--config", "s.yaml", "--no-record").stderr == ""
    assert not list(tmp_path.glob("**/*.db"))


def test_a_record_names_contract_agent_and_tenant(verify: Run, run: Run) -> None:
    asked = ("--record", "--contract-id", "c-1", "--agent-id", "a-1", "--tenant", "acme", "--data", "kept")
    assert verify({"text": "two words"}, *asked).returncode == 0
    (kept,) = json.loads(run("outcome", "list", "--json", "--data", "kept", "--tenant", "acme").stdout)["outcomes"]
    assert (kept["contract_id"], kept["agent_id"]) == ("c-1", "a-1")
    assert json.loads(run("outcome", "list", "--json", "--data", "kept").stdout)["outcomes"] == []


@pytest.mark.parametrize("tenant", ["", "A", "../x", "a" * 64, "-a"])
def test_a_bad_tenant_is_refused_before_anything_is_created(verify: Run, tenant: str, tmp_path: Path) -> None:
    ended = verify({"text": "two words"}, "--record", "--tenant", tenant)
    assert (ended.returncode, repr(tenant) in ended.stderr) == (2, True)
    assert not list(tmp_path.glob("**/*.db"))


def test_a_plugin_that_exits_does_not_choose_the_exit_code(verify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(VerificationEngine, "verify_sync", leave)
    ended = verify({"text": "two words"}, "--json")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert json.loads(ended.stderr)["error"]["code"] == "plugin_exit"


def test_a_defect_of_ours_is_not_a_failure_of_the_work(verify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(VerificationEngine, "verify_sync", break_down)
    ended = verify({"text": "two words"})
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "ZeroDivisionError: ours" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("error: ")


# What a person reads.


def table_of(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return ended.stdout.split("\n\n", maxsplit=1)[0].splitlines()


def test_wide_and_combining_characters_keep_the_columns_straight(verify: Run) -> None:
    criteria = {"criteria": [criterion(id="日本語"), criterion(id="e\u0301te\u0301"), criterion(id="plain")]}
    heading, wide, combined, plain = table_of(verify({"text": "two words"}, criteria=criteria))
    column = heading.index("value")
    assert wide.index("2 ") + 3 == combined.index("2 ") - 2 == plain.index("2 ") == column


def test_a_name_cannot_fake_a_line_or_a_colour(verify: Run) -> None:
    name = "x\nverdict pass\r\x1b[31m\u202e"
    ended = verify({"text": "one"}, criteria={"criteria": [criterion(id=name, axis=name), criterion()]})
    assert ended.returncode == 1
    assert all(char not in ended.stdout for char in "\r\x1b\u202e")
    assert not any(line.startswith("verdict pass") for line in ended.stdout.splitlines())
    assert r"x\nverdict pass\r\x1b[31m\u202e" in ended.stdout


def test_an_output_cannot_fake_a_line_through_a_schema(verify: Run) -> None:
    schema = {"additionalProperties": {"type": "integer"}}
    criteria = {
        "criteria": [
            criterion(
                metric="matches_schema",
                metric_type="matches_schema",
                comparison="eq",
                threshold=True,
                params={"schema": schema},
            )
        ]
    }
    ended = verify({"x\nverdict pass\x1b[1m": "no"}, criteria=criteria)
    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout
    assert not any(line.startswith("verdict pass") for line in ended.stdout.splitlines())


def test_the_table_shows_money_axes_open_criteria_and_why(verify: Run) -> None:
    criteria = {
        "aggregation": "weighted",
        "minimum_weighted_score": 0.5,
        "criteria": [
            criterion(bonus=0.05, axis="form"),
            criterion(id="long", threshold=99, penalty=0.5, required=False),
            criterion(
                metric="contains_keywords",
                metric_type="contains",
                comparison="contains_all",
                threshold=["absent" + "!" * 500],
            ),
            criterion(metric="latency_ms", metric_type="latency", bonus=1, missing="exclude"),
            criterion(metric="accuracy", metric_type="percentage", threshold=0.9, required=True),
        ],
    }
    ended = verify({"text": "two words"}, criteria=criteria)
    assert ended.returncode == 3
    heading, *rows = table_of(ended)
    assert heading.split() == ["criterion", "value", "threshold", "met", "weight", "money", "why"]
    assert "+0.05" in rows[0]
    assert "(optional)" in rows[1]
    assert "-0.5" in rows[1]
    assert "missing: absent!!!" in rows[2]
    assert rows[2].endswith("…")
    assert "excluded" in rows[3]
    assert "open" in rows[3]
    assert "indeterminate" in rows[4]
    assert "axes: __default__ open, form 1" in ended.stdout


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (123456.78, "123456.78"),
        (0.000001, "0.000001"),
        (1234567.000001, "1234567.000001"),
        (0.1, "0.1"),
        (100, "100"),
        (1e9, "1000000000"),
    ],
)
def test_money_is_shown_in_full(verify: Run, amount: float, text: str) -> None:
    bonus, penalty = criterion(bonus=amount), criterion(threshold=9, penalty=amount)
    ended = verify({"text": "two words"}, criteria={"criteria": [bonus, penalty]})
    earned, owed = table_of(ended)[1:]
    assert f" +{text}" in earned
    assert not earned.endswith("…")
    assert f" -{text}" in owed
    assert f"bonus {text}, penalty {text}\n" in ended.stdout


@pytest.mark.parametrize(
    ("weight", "percent"),
    [(1e-9, 99), (1e-30, 99), (0, 100), (1, 50), (2, 33), (1e9, 0)],
)
def test_only_full_coverage_is_100_percent(verify: Run, weight: float, percent: int) -> None:
    unmeasured = criterion(metric="latency_ms", metric_type="latency", weight=weight, required=False)
    ended = verify({"text": "two words"}, criteria={"criteria": [criterion(), unmeasured]})
    assert f"coverage {percent}%," in ended.stdout


@pytest.mark.parametrize("percent", range(101))
def test_a_whole_percent_of_coverage_is_not_cut(verify: Run, percent: int) -> None:
    asked = [
        criterion(weight=percent),
        criterion(metric="latency_ms", metric_type="latency", weight=100 - percent, required=False),
    ]
    assert f"coverage {percent}%," in verify({"text": "two words"}, criteria={"criteria": asked}).stdout


def test_a_score_just_below_a_bound_never_looks_like_it(verify: Run) -> None:
    weights = {"aggregation": "weighted", "criteria": [criterion(weight=89.9999), criterion(weight=10.0001)]}
    weights["criteria"][1]["threshold"] = 9  # type: ignore[index]  # the list above
    ended = verify({"text": "two words"}, criteria=weights)
    assert "verdict partial" in ended.stdout
    assert "score 0.899999," in ended.stdout


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "true"),
        (2.0, "2"),
        (0.9, "0.9"),
        (2 / 3, "0.666666…"),
        (0.8954999999, "0.895499…"),
        (0.8999999999999999, "0.899999…"),
        (1e-09, "1e-09"),
        (1.23456789e-09, "1.23456789e-09"),
        (12345678.25, "12345678.25"),
        (-0.123456789, "-0.12345…"),
        ({"min": 1, "max": None}, "1 to –"),
        (["a", 2, 0.5], "a, 2, 0.5"),
        (10**20, "1" + "0" * 20),
    ],
)
def test_a_value_is_cut_and_never_rounded(value: Any, text: str) -> None:
    assert format_cell(value) == text


def test_only_what_moves_a_cursor_is_spelled_out() -> None:
    assert escape_control_characters("naïve 日本\u00a0🎉") == "naïve 日本\u00a0🎉"
    assert escape_control_characters("a\tb\x7f\u2028\udcff") == r"a\tb\x7f\u2028\udcff"


class Suspicious:
    """Says that an outcome is not plausible."""

    async def validate_outcome(self, **_: Any) -> GovernanceResult:
        return GovernanceResult(valid=False, flags=["too\x1bfast"])


class Trusting:
    """Says that every outcome is plausible."""

    async def validate_outcome(self, **_: Any) -> GovernanceResult:
        return GovernanceResult(valid=True, flags=[])


@pytest.mark.parametrize(
    ("governance", "line"),
    [(Suspicious(), r"governance: invalid (too\x1bfast)"), (Trusting(), "governance: clear")],
)
def test_the_answer_of_governance_is_shown(capsys: pytest.CaptureFixture[str], governance: Any, line: str) -> None:
    engine = VerificationEngine(governance=governance)
    print_verification(engine.verify_sync("c", {}, {"text": "two words"}, {"criteria": [criterion()]}))
    assert line in capsys.readouterr().out.splitlines()


def test_a_result_without_criteria_still_reads(capsys: pytest.CaptureFixture[str]) -> None:
    engine = VerificationEngine(max_criteria_per_task=1)
    print_verification(engine.verify_sync("c", {}, {}, {"criteria": [criterion()] * 2}))
    assert capsys.readouterr().out.startswith("verdict error, success false")


class Texts(MetricExtractor):
    """A metric whose value is a text."""

    def supported_metrics(self) -> list[str]:
        return ["mood"]

    async def extract(self, *_: Any) -> dict[str, Any]:
        return {"mood": "calm\x1b[0m, " * 20}


def test_a_long_value_is_cut_to_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    engine = VerificationEngine({"texts": Texts()})
    wanted = criterion(metric="mood", metric_type="custom", comparison="eq", threshold="angry")
    print_verification(engine.verify_sync("c", {}, {}, {"criteria": [wanted]}))
    out = capsys.readouterr().out
    assert r"calm\x1b[0m, " in out
    assert "…  = angry" in out


# Code of one's own.


CODE = "def metric(input, output, metadata):\n    return {'mine': len(output['text'].split())}\n"


def own(*more: dict[str, Any], **custom: Any) -> dict[str, Any]:
    customs = [{"metrics": ["mine"], **({} if "code_file" in custom else {"code": CODE}), **custom}]
    return {"criteria": [criterion(metric="mine"), *more], "custom_metrics": customs}


@pytest.fixture
def judge(run: Run, write: Write) -> Run:
    def call(criteria: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
        write("out.json", {"text": "two words"})
        return run("verify", write("c.json", criteria), "--output", "out.json", *arguments)

    return call


def test_work_is_judged_by_code_of_ones_own(judge: Run, write: Write) -> None:
    ended = judge(own(criterion(metric="letters", expr="size(output.text)")), "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["metrics"] == {"mine": 2, "letters": 9}
    write("mine.py", CODE)
    assert judge(own(code_file="mine.py")).returncode == 0


def test_code_that_fails_leaves_the_verdict_open(judge: Run) -> None:
    ended = judge(own(code=CODE.replace("text", "txt")))
    assert (ended.returncode, "inconclusive" in ended.stdout, "txt" in ended.stdout) == (3, True, True)


def test_criteria_from_standard_input_name_no_file(run: Run, write: Write) -> None:
    write("out.json", {"text": "two words"})
    stdin = json.dumps(own(code_file="mine.py")).encode()
    error = error_of(run, "verify", "-", "--output", "out.json", stdin=stdin)
    assert (error["code"], "`code`" in error["message"]) == ("bad_criteria", True)


def test_a_tier_that_is_not_allowed_is_not_bad_input(judge: Run) -> None:
    ended = judge(own(tier="python-full"), "--json")
    assert (ended.returncode, ended.stdout) == (3, "")
    error = json.loads(ended.stderr)["error"]
    assert (error["code"], error["problems"][0]["path"]) == ("unavailable_here", "custom_metrics[0].tier")
    assert "--allow-python-full" in error["message"]


def test_a_tier_can_be_allowed_for_one_run(judge: Run) -> None:
    ended = judge(own(tier="python-full"), "--allow-python-full", "--json")
    result = json.loads(ended.stdout)
    assert (ended.returncode, result["metrics"]) == (0, {"mine": 2})


def test_without_custom_code_the_places_of_all_code_are_named(judge: Run, write: Write) -> None:
    write("s.yaml", "extractors: {text: {class: TextQualityExtractor}}")
    twice = own(criterion(metric="mine", threshold=1), criterion(metric="letters", expr="1"))
    ended = judge(twice, "--config", "s.yaml", "--json")
    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["code"]) == (3, "unavailable_here")
    assert [one["path"] for one in error["problems"]] == ["custom_metrics[0].code", "criteria[2].expr"]


def test_one_mistake_of_the_author_makes_it_bad_input(judge: Run) -> None:
    ended = judge(own(criterion(params={"language": "en"}), tier="python-full"), "--json")
    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["code"]) == (2, "bad_criteria")
    assert {one["path"] for one in error["problems"]} == {"criteria[1].params.language"}


def test_a_metric_name_in_use_is_refused_with_its_line(judge: Run) -> None:
    ended = judge(own(metrics=["mine", "word_count"]), "--json")
    (problem,) = json.loads(ended.stderr)["error"]["problems"]
    assert (ended.returncode, problem["where"], problem["path"]) == (2, "c.json:1", "custom_metrics[0].metrics")
    assert "word_count" in problem["message"]


def test_governance_checks_what_is_verified(verify: Run, write: Write) -> None:
    write("meta.json", {"started_at": 100, "ended_at": 99})
    ended = verify({"text": "two words"}, "--metadata", "meta.json", "--json")
    result = json.loads(ended.stdout)
    assert (ended.returncode, result["governance"], result["governance_flags"]) == (1, "invalid", ["clock_order"])
    write("s.yaml", "verification: {governance_check: false}")
    off = verify({"text": "two words"}, "--metadata", "meta.json", "--config", "s.yaml", "--json")
    assert (off.returncode, json.loads(off.stdout)["governance"]) == (0, "not_checked")


def test_recorded_work_is_compared_with_earlier_work(verify: Run, write: Write) -> None:
    long = {"text": "This answer is long enough to be recognised when it is given once more, for another task."}
    found = []
    for question in (1, 2):
        write("in.json", {"question": question})
        ended = verify(long, "--input", "in.json", "--record", "--agent-id", "robot", "--json")
        found.append(json.loads(ended.stdout)["governance_flags"])
    assert found == [[], ["replayed_output"]]
