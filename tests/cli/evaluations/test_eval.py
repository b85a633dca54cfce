"""`meruit eval`: from a file of outputs to a comparison."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.at_hand import program
from tests.cli.conftest import Run
from tests.cli.refusals import error_of

CRITERIA = {
    "criteria": [
        {"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True},
        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3, "required": False},
    ]
}
Write = Callable[[str, Any], str]


@pytest.fixture
def files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criteria, and the outputs of two models: the second is right twice as often."""
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)
    write("criteria.json", CRITERIA)
    for model, right in (("a", 3), ("b", 6)):
        rows = [
            {
                "id": f"q{number}",
                "prompt": "?",
                "reference": "yes",
                "output": "yes" if number % 10 < right else "no",
                "tags": {"lang": "en" if number % 2 else "fr"},
            }
            for number in range(60)
        ]
        write(f"{model}.jsonl", "\n".join(map(json.dumps, rows)))


def evaluated(run: Run, model: str, *options: str) -> Any:
    ended = run("eval", "run", "criteria.json", f"{model}.jsonl", "--name", model, "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_file_becomes_an_evaluation(run: Run, files: None) -> None:
    found = evaluated(run, "a", "--tag", "model=m-1")
    assert found["evaluation"]["status"] == "finished"
    assert found["evaluation"]["tags"] == {"model": "m-1"}
    assert found["summary"]["overall"]["passed"] == 18
    assert found["summary"]["tags"]["lang"]["fr"]["cases"] == 30
    listed = json.loads(run("eval", "list", "--json").stdout)
    assert [one["name"] for one in listed["evaluations"]] == ["a"]
    assert listed["next"] is None


def test_failing_cases_are_listed_by_combined_filters(run: Run, files: None) -> None:
    evaluated(run, "a")
    shown = json.loads(
        run(
            "eval", "show", "a", "--failing", "--tag", "lang=fr", "--criterion", "exact_match", "--limit", "2", "--json"
        ).stdout
    )
    assert [one["summary"]["case_id"] for one in shown["cases"]] == ["q4", "q6"]
    assert shown["cases"][0]["output"] == {"text": "no"}
    after = run("eval", "show", "a", "--failing", "--tag", "lang=fr", "--after", str(shown["next"]), "--json")
    assert json.loads(after.stdout)["cases"][0]["summary"]["case_id"] == "q8"
    text = run("eval", "show", "a", "--failing").stdout
    assert "q3" in text
    assert run("eval", "show", "a", "--verdict", "inconclusive").stdout == ""
    assert len(json.loads(run("eval", "show", "a", "--limit", "3", "--json").stdout)["cases"]) == 3


def test_two_evaluations_are_compared_case_by_case(run: Run, files: None) -> None:
    evaluated(run, "a")
    evaluated(run, "b")
    (compared,) = json.loads(run("eval", "compare", "a", "b", "--json").stdout)["comparisons"]
    assert compared["overall"]["difference"] == pytest.approx(0.3)
    assert (len(compared["fixed"]), compared["broken"]) == (18, [])
    assert compared["overall"]["p"] < 0.001
    text = run("eval", "compare", "a", "b").stdout
    assert "+30.0" in text
    assert "fixed (18)" in text
    assert "broken" not in text


def test_evaluations_without_common_cases_are_told_apart(run: Run, files: None, write: Write) -> None:
    evaluated(run, "a")
    write("other.jsonl", '{"id": "elsewhere", "reference": "yes", "output": "yes"}')
    evaluated(run, "other")
    text = run("eval", "compare", "a", "other").stdout
    assert "id" in text
    assert "detectable" not in text


def test_the_exit_code_says_what_a_pipeline_asked(run: Run, files: None) -> None:
    def code(name: str, model: str, *options: str) -> int:
        return run("eval", "run", "criteria.json", f"{model}.jsonl", "--name", name, *options).returncode

    assert code("one", "a") == 0
    assert code("two", "b", "--fail-under", "0.5") == 0
    assert code("three", "b", "--fail-under", "0.5", "--strict") == 1
    assert code("four", "b", "--fail-under", "0.7") == 1
    assert code("five", "b", "--baseline", "one") == 0
    assert code("six", "a", "--baseline", "five") == 1
    assert code("seven", "a", "--baseline", "five", "--max-drop", "31") == 0


def test_nothing_judged_is_exit_code_3(run: Run, files: None, write: Write) -> None:
    write("empty.jsonl", '{"id": "a", "reference": "yes"}')
    ended = run("eval", "run", "criteria.json", "empty.jsonl", "--name", "e")
    assert ended.returncode == 3
    # Why the first case is open, and how to list all of them.
    assert "eval show e --verdict inconclusive" in ended.stderr
    write("none.jsonl", "")
    assert error_of(run, "eval", "run", "criteria.json", "none.jsonl", "--name", "m", exit_code=3)["code"] == "no_cases"
    assert run("eval", "run", "criteria.json", "a.jsonl", "--name", "m").returncode == 0


def test_an_unfinished_baseline_is_refused(run: Run, files: None, write: Write) -> None:
    evaluated(run, "a")
    write("broken.jsonl", '{"id": 1, ')
    assert run("eval", "run", "criteria.json", "broken.jsonl", "--name", "x").returncode == 2
    refused = error_of(run, "eval", "run", "criteria.json", "b.jsonl", "--name", "b", "--baseline", "x")
    assert refused["code"] == "not_comparable"
    compared = run("eval", "compare", "a", "x", "--json")
    assert json.loads(compared.stdout)["unfinished"] == ["x"]
    assert "x is not finished" in run("eval", "compare", "a", "x").stderr


def test_reports_that_cannot_be_written_stop_a_run_early(run: Run, files: None, tmp_path: Path) -> None:
    before = {*tmp_path.iterdir()}
    for option, file in (("--junit", "no/such/a.xml"), ("--ctrf", ".")):
        assert run("eval", "run", "criteria.json", "a.jsonl", "--name", "a", option, file).returncode == 2
    assert {*tmp_path.iterdir()} == before
    evaluated(run, "a", "--junit", "a.xml", "--ctrf", "/dev/null")


def test_rescoring_says_that_evaluations_are_not_covered(run: Run, files: None) -> None:
    evaluated(run, "a")
    assert "eval run" in run("rescore", "criteria.json", "--all", "--reason", "r").stderr


def test_a_target_makes_the_outputs(run: Run, files: None, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    write("target_of_eval.py", "async def answer(given):\n    return 'yes'\n")
    write("questions.jsonl", "\n".join(json.dumps({"id": n, "prompt": "?", "reference": "yes"}) for n in range(5)))
    ended = run(
        "eval",
        "run",
        "criteria.json",
        "questions.jsonl",
        "--name",
        "t",
        "--target",
        "target_of_eval:answer",
        "--repeat",
        "2",
        "--json",
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["summary"]["pass_hat_k"] == {"1": 1.0, "2": 1.0}
    text = run("eval", "show", "t").stdout
    assert "pass^k" in text


@pytest.mark.parametrize(
    "options",
    [
        ("--strict",),
        ("--repeat", "2"),
        ("--max-cost", "5"),
        ("--rate", "5"),
        ("--max-drop", "2"),
        ("--body", "{}"),
        ("--target", "a:b", "--command", "c"),
        ("--map", "nonsense"),
        ("--tag", "nonsense"),
        ("--baseline", "unknown"),
        ("--format", "xls"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(run: Run, files: None, options: tuple[str, ...]) -> None:
    ended = run("eval", "run", "criteria.json", "a.jsonl", "--name", "x", *options)
    assert (ended.returncode, ended.stdout) == (2, "")


def test_a_case_without_an_output_says_so(run: Run, files: None, write: Write) -> None:
    write("questions.jsonl", '{"id": "q", "prompt": "?", "reference": "yes"}')
    ended = run("eval", "run", "criteria.json", "questions.jsonl", "--name", "x")
    assert ended.returncode == 3
    assert "--map output.text=" in ended.stderr


def test_a_target_that_prints_leaves_json_whole(
    run: Run, files: None, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    write("target_that_prints.py", "def answer(given):\n    print('hello')\n    return 'yes'\n")
    write("questions.jsonl", '{"id": "q", "prompt": "?", "reference": "yes"}')
    ended = run(
        "eval",
        "run",
        "criteria.json",
        "questions.jsonl",
        "--name",
        "t",
        "--target",
        "target_that_prints:answer",
        "--json",
    )
    assert json.loads(ended.stdout)["summary"]["overall"]["passed"] == 1
    assert "hello" in ended.stderr


def test_a_name_is_free_after_a_fault_of_its_file(run: Run, files: None, write: Write) -> None:
    write("broken.jsonl", '{"id": 1, ')
    assert run("eval", "run", "criteria.json", "broken.jsonl", "--name", "x").returncode == 2
    evaluated(run, "a")
    assert run("eval", "run", "criteria.json", "a.jsonl", "--name", "x").returncode == 0


def test_what_is_unknown_is_exit_code_2(run: Run, files: None) -> None:
    evaluated(run, "a")
    for arguments in (("show", "b"), ("show", "a", "--criterion", "exact"), ("compare", "a", "b")):
        ended = run("eval", *arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
    finished = run("eval", "run", "criteria.json", "a.jsonl", "--name", "a", "--json")
    assert json.loads(finished.stderr)["error"]["code"] == "evaluation_conflict"


def test_an_unfinished_run_goes_on(run: Run, files: None, write: Write) -> None:
    rows = Path("a.jsonl").read_text().split("\n")
    write("broken.jsonl", "\n".join([*rows[:5], rows[0]]))
    refused = run("eval", "run", "criteria.json", "broken.jsonl", "--name", "x")
    assert refused.returncode == 2
    (listed,) = json.loads(run("eval", "list", "--json").stdout)["evaluations"]
    assert (listed["name"], listed["status"]) == ("x", "running")


def test_a_run_does_not_go_on_with_other_columns(run: Run, files: None, write: Write) -> None:
    rows = [{"id": f"q{number}", "reference": "yes", "a": "yes", "b": "no"} for number in range(1_600)]
    write("two.jsonl", "\n".join([*map(json.dumps, rows), "{"]))
    for _ in range(2):
        assert run("eval", "run", "criteria.json", "two.jsonl", "--name", "x", "--map", "output=a").returncode == 2
    (listed,) = json.loads(run("eval", "list", "--json").stdout)["evaluations"]
    assert listed["cases"] > 0
    for columns in (("--map", "output=b"), ("--map", "output=a,id=b"), ()):
        other = run("eval", "run", "criteria.json", "two.jsonl", "--name", "x", "--json", *columns)
        assert json.loads(other.stderr)["error"]["code"] == "evaluation_conflict"


@pytest.mark.parametrize("added", ["group=g", "tags.topic=t", "claimed=p", "cost=usd", "repeat=n"])
def test_a_run_does_not_go_on_with_more_columns(run: Run, files: None, write: Write, added: str) -> None:
    facts = {"g": "one", "t": "maths", "p": "pass", "usd": 0.5, "n": 1}
    rows = [{"q": f"q{number}", "a": "yes", **facts} for number in range(1_600)]
    write("two.jsonl", "\n".join([*map(json.dumps, rows), "{"]))
    first = ("eval", "run", "criteria.json", "two.jsonl", "--name", "x", "--json", "--map")
    codes = [
        json.loads(run(*first, columns).stderr.splitlines()[-1])["error"]["code"]
        for columns in ("id=q,output=a", f"id=q,output=a,{added}", "id=q,output=a")
    ]
    assert codes == ["bad_document", "evaluation_conflict", "bad_document"]


def test_lists_are_printed_for_people(run: Run, files: None) -> None:
    assert run("eval", "list", "--data", "nowhere").returncode == 2
    evaluated(run, "a")
    evaluated(run, "b", "--tag", "model=m")
    text = run("eval", "list", "--limit", "1")
    assert "model=m" in text.stdout
    assert "--before" in text.stderr


def test_an_evaluation_is_exported_by_format_or_ending(run: Run, files: None, tmp_path: Path) -> None:
    evaluated(run, "a")
    assert run("eval", "export", "a", "--format", "ctrf").stdout.startswith('{"reportFormat":"CTRF"')
    assert run("eval", "export", "a", "-o", "a.xml").returncode == 0
    assert (tmp_path / "a.xml").read_text().startswith("<?xml")
    for options, said in (
        (("-o", "a.txt"), "--format"),
        (("--format", "junti"), "'junit'"),
        (("--format", "junit", "-o", "no/such/folder.xml"), "cannot be written"),
    ):
        ended = run("eval", "export", "a", *options)
        assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr


def test_results_of_another_tool_are_imported(run: Run, files: None, write: Write) -> None:
    write("rows.csv", "id,prompt,output,reference,claimed\na,?,yes,yes,pass\nb,?,no,yes,pass\n")
    ended = run("import", "rows.csv", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["evaluation"]["name"], found["format"], found["new"]) == ("rows", "rows", True)
    assert found["summary"]["overall"]["passed"] == 2
    assert "nothing is made twice" in run("import", "rows.csv").stderr
    judged = run("import", "rows.csv", "--criteria", "criteria.json", "--name", "judged")
    assert "1 of 2 verdicts differ" in judged.stdout
    shown = run("eval", "show", "judged", "--disputed").stdout.splitlines()
    assert [line.split()[:3] for line in shown] == [["case", "verdict", "claimed"], ["b", "partial", "pass"]]


def test_an_import_that_cannot_be_says_why(run: Run, files: None, write: Write) -> None:
    write("note.txt", "hello")
    write("crash.json", {"evalId": "e", "results": {"prompts": [], "results": [{"testIdx": 0, "failureReason": 2}]}})
    for path, code in (("note.txt", "import_format_unknown"), ("-", "meruit_error"), ("none.json", "meruit_error")):
        ended = run("import", path, "--json")
        assert ended.returncode == 2
        assert code in ended.stdout + ended.stderr or code == "meruit_error"
    assert run("import", "crash.json").returncode == 3


def test_a_pipeline_gets_reports_a_summary_and_annotations(
    run: Run, files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(run, "b")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ended = run(
        "eval",
        "run",
        "criteria.json",
        "a.jsonl",
        "--name",
        "a",
        "--baseline",
        "b",
        "--max-drop",
        "2",
        "--fail-under",
        "0.9",
        "--junit",
        "junit.xml",
        "--ctrf",
        "ctrf.json",
        "--json",
    )
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["summary"]["overall"]["passed"] == 18
    assert ended.stderr.count("::error file=criteria.json") == 2
    assert Path("junit.xml").read_text().count("<testcase") == 60
    assert json.loads(Path("ctrf.json").read_text())["results"]["summary"]["tests"] == 60
    assert "Broken (18)" in Path("step.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/folder.md")
    assert run("eval", "run", "criteria.json", "a.jsonl", "--name", "c").returncode == 2


def test_the_action_runs_its_own_commands(files: None, write: Write) -> None:
    root = Path(__file__).parents[3]
    action = yaml.safe_load((root / "action.yml").read_text())
    script = action["runs"]["steps"][1]
    sent = {"criteria": "criteria.json", "data": "b.jsonl", "name": "n", "arguments": "--fail-under 0.7 --strict"}
    sent |= {"data-folder": "records", "junit": "out.xml"}
    assert {*sent, "version"} == action["inputs"].keys()
    named = {name: sent[value.split("inputs.")[1].split(" ")[0]] for name, value in script["env"].items()}
    assert "${{" not in script["run"]
    bin_folder = str(Path(program()).parent)
    ended = subprocess.run(
        ["bash", "-e", "-c", script["run"]],
        env={**named, "PATH": f"{bin_folder}:/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert Path("out.xml").read_text().count("<testcase") == 60


def test_a_page_holds_an_evaluation_or_a_comparison(run: Run, files: None) -> None:
    for model in ("a", "b"):
        evaluated(run, model)
    alone = json.loads(run("eval", "page", "a", "-o", "a.html", "--json").stdout)
    assert alone == {"file": "a.html", "bytes": Path("a.html").stat().st_size}
    both = run("eval", "page", "a", "b", "-o", "both.html")
    assert (both.returncode, both.stdout) == (0, "")
    # Only one of them has both names.
    assert [">b<" in Path(file).read_text() for file in ("a.html", "both.html")] == [False, True]
