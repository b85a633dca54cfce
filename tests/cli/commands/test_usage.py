"""`meruit usage`: files are judged, recorded, put back and explained; what is wrong is told, and nothing half done."""

import json
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of, session_of
from tests.golden import check_golden

from meruit import open_records
from meruit.cli.shared import usage_files
from meruit.errors import FetchError
from meruit.model.usage import Assurance, Observation, Tokens
from meruit.store.store import Store
from meruit.usage.meter import metered_run
from meruit.usage.store.record_observations import RecordObservations, RunObservation

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]
EXAMPLES = Path(__file__).parents[3] / "examples" / "usage-files"
FIRST, SECOND = "2025-10-15T09:15:00+00:00", "2025-10-15T10:16:00+00:00"
WARNING = "⚠️ Data stable but incomplete: only 3/6 steps have tokens"
VERIFIED = "✅ Data stable across 61 minute interval"


@pytest.fixture(autouse=True)
def _usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)


def look(at: str, total: tuple[int, int] = (39114, 11961), have: int = 6, of: int = 6) -> dict[str, Any]:
    return {
        "timestamp": at,
        "total_tokens_in": total[0],
        "total_tokens_out": total[1],
        "steps_with_tokens": have,
        "total_steps": of,
    }


def metrics(*attempts: dict[str, Any], run_id: str | None = "run-1", **fields: Any) -> dict[str, Any]:
    named = {} if run_id is None else {"run_id": run_id}
    return {**named, "framework": "planner", **fields, "usage_api_reconciliation": {"attempts": [*attempts]}}


COMPLETE = metrics(look(FIRST), look(SECOND))
PARTIAL = metrics(look(FIRST, (21919, 6459), 3), look(SECOND, (21919, 6459), 3))


def copied(*runs: str) -> str:
    """The examples' files in the folder, and perhaps a manifest that names more runs; gives the manifest."""
    for name in ("run-1", "run-2"):
        target = Path("planner", name)
        target.mkdir(parents=True)
        (target / "metrics.json").write_bytes((EXAMPLES / "planner" / name / "metrics.json").read_bytes())
    listed = json.loads((EXAMPLES / "runs_manifest.json").read_bytes())
    listed["runs"] += [{"run_id": name, "framework": "planner"} for name in runs]
    Path("runs_manifest.json").write_text(json.dumps(listed))
    return "runs_manifest.json"


# Judging files.


@pytest.mark.parametrize(
    ("written", "exit_code", "status", "rule"),
    [
        (PARTIAL, 1, "warning", "incomplete"),
        (COMPLETE, 0, "verified", "stable"),
        (metrics(look(FIRST)), 3, "pending", "first"),
        (metrics(), 3, "pending", "not_started"),
        (metrics(look(FIRST, (0, 0), 0), look(SECOND, (0, 0), 0)), 3, "data_not_available", "zero_tokens"),
        (metrics(look(FIRST), look(SECOND, (39113, 11961))), 1, "warning", "decreased"),
        (metrics({"timestamp": FIRST, "error": "auth"}), 3, "data_not_available", "api_error"),
    ],
)
def test_the_observations_of_a_file_are_judged(
    run: Run, write: Write, written: dict[str, Any], exit_code: int, status: str, rule: str
) -> None:
    ended = run("usage", "decide", write("metrics.json", written))
    lines = ended.stdout.splitlines()
    assert (ended.returncode, lines[0], ended.stderr) == (exit_code, f"verification_status: {status}", "")
    found = json.loads(run("usage", "decide", "metrics.json", "--json").stdout)
    assert (found["verification_status"], found["code"], found["reported_by"]) == (status, rule, "file")
    assert lines[1] == f"verification_message: {found['verification_message']}"
    assert {"run_id", "code", "explanation", "assurance", "tokens", "withdrawn", "history"} <= {*found}
    assert ("assurance: C" in lines) is bool(found["compared"])
    assert Path("metrics.json").read_bytes() == json.dumps(written).encode()


@pytest.mark.golden
def test_a_verdict_on_a_file_reads_as_recorded(run: Run, write: Write) -> None:
    names = [write("partial.json", PARTIAL), write("complete.json", COMPLETE), write("none.json", metrics())]
    check_golden("cli/usage_decide", session_of(run, *(("usage", "decide", name) for name in names)))


def test_the_file_may_come_on_standard_input(run: Run) -> None:
    ended = run("usage", "decide", "-", "--json", stdin=json.dumps(PARTIAL).encode())
    assert (ended.returncode, json.loads(ended.stdout)["code"]) == (1, "incomplete")
    error = error_of(run, "usage", "decide", "-", stdin=b"{")
    assert (error["code"], error["where"]) == ("bad_document", "standard input:1")


def test_the_interval_and_its_anchor_can_be_chosen_and_a_shorter_one_is_told(run: Run, write: Write) -> None:
    three = [look(f"2025-10-15T{at}:00Z") for at in ("09:00", "09:30", "10:00")]
    file = write("metrics.json", metrics(*three))
    assert run("usage", "decide", file).returncode == 3
    assert run("usage", "decide", file, "--anchor", "span").returncode == 0
    ended = run("usage", "decide", file, "--interval", "30")
    assert (ended.returncode, "Judged with 30 minutes" in ended.stdout) == (0, True)
    for nonsense in ("nan", "-1", "1e9"):
        assert run("usage", "decide", file, "--interval", nonsense).returncode == 2


def test_a_withdrawn_verdict_is_told(run: Run, write: Write) -> None:
    file = write("metrics.json", metrics(look(FIRST), look(SECOND), look("2025-10-16T10:16:00Z", (40000, 12000))))
    ended = run("usage", "decide", file)
    assert (ended.returncode, "withdrawn: 1 ×" in ended.stdout) == (3, True)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"timestamp": "2025-10-15T09:15:00"}, "timestamp"),
        ({"total_tokens_in": -5}, "total_tokens_in"),
        ({"total_steps": None}, "attempts[0]"),
    ],
)
def test_a_bad_file_is_refused_with_the_place_of_the_problem(
    run: Run, write: Write, change: dict[str, Any], place: str
) -> None:
    write("metrics.json", metrics(look(FIRST) | change))
    error = error_of(run, "usage", "decide", "metrics.json", "--write")
    assert (error["code"], error["where"]) == ("bad_document", "metrics.json:1")
    assert [one["path"] for one in error["problems"] if one["path"].endswith(place)]
    assert error_of(run, "usage", "decide", "nowhere.json")["code"] == "unreadable_file"


# Putting verdicts back.


def test_the_verdict_is_put_into_the_file_and_its_manifest_and_all_else_stays(run: Run, write: Write) -> None:
    whole = PARTIAL | {"AEI": 0.12345678901234567, "nested": {"kept": [1, None]}}
    write("metrics.json", whole)
    Path("metrics.json").chmod(0o640)
    write("all.json", {"runs": [{"run_id": "other"}, {"run_id": "run-1", "note": "mine"}], "made": "by hand"})
    ended = run("usage", "decide", "metrics.json", "--write", "--manifest", "all.json", "--json")
    assert (ended.returncode, ended.stderr) == (1, "note: written to metrics.json, all.json\n")
    found = json.loads(Path("metrics.json").read_bytes())
    assert found["usage_api_reconciliation"].pop("verification_status") == "warning"
    assert found["usage_api_reconciliation"].pop("verification_message") == WARNING
    assert found["usage_api_reconciliation"].pop("imported") is True
    assert found == whole
    assert Path("metrics.json").stat().st_mode & 0o777 == 0o640
    assert json.loads(Path("all.json").read_bytes()) == {
        "runs": [
            {"run_id": "other"},
            {
                "run_id": "run-1",
                "note": "mine",
                "verification_status": "warning",
                "imported": True,
                "total_tokens_in": 21919,
                "total_tokens_out": 6459,
            },
        ],
        "made": "by hand",
    }
    before = Path("metrics.json").stat().st_ino
    run("usage", "decide", "metrics.json", "--write")
    assert Path("metrics.json").stat().st_ino == before
    assert sorted(one.name for one in Path.cwd().iterdir()) == ["all.json", "metrics.json"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("metrics.json", "--manifest", "all.json"), "usage"),
        (("-", "--write"), "usage"),
        (("metrics.json", "--write", "--manifest", "none.json"), "bad_document"),
        (("nameless.json", "--write", "--manifest", "all.json"), "usage"),
        (("all.json", "--write", "--manifest", "all.json"), "usage"),
        (("metrics.json", "--write", "--manifest", "twice.json"), "bad_document"),
    ],
)
def test_a_verdict_that_cannot_be_written_changes_no_file(
    run: Run, write: Write, arguments: tuple[str, ...], code: str
) -> None:
    write("metrics.json", PARTIAL)
    write("nameless.json", metrics(run_id=None))
    write("none.json", {"runs": []})
    write("twice.json", {"runs": [{"run_id": "run-1"}] * 2})
    write("all.json", {"runs": []})
    before = {one.name: one.read_bytes() for one in Path.cwd().iterdir()}
    assert error_of(run, "usage", "decide", *arguments)["code"] == code
    assert {one.name: one.read_bytes() for one in Path.cwd().iterdir()} == before


def test_a_file_that_changed_meanwhile_is_not_overwritten(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("metrics.json", PARTIAL)
    judge = usage_files.judge_files

    def slow(*arguments: Any) -> Any:
        judged = judge(*arguments)
        write("metrics.json", COMPLETE)
        return judged

    monkeypatch.setattr(usage_files, "judge_files", slow)
    assert "metrics.json" in error_of(run, "usage", "decide", "metrics.json", "--write")["message"]
    assert json.loads(Path("metrics.json").read_bytes()) == COMPLETE


def test_every_run_of_a_manifest_is_judged_and_written(run: Run) -> None:
    manifest = copied()
    ended = run("usage", "decide", manifest)
    assert (ended.returncode, [line.split()[2:5] for line in ended.stdout.splitlines()[1:]]) == (
        1,
        [["warning", "a", "file"], ["verified", "a", "file"]],
    )
    told = json.loads(run("usage", "decide", manifest, "--json", "--write").stdout)
    assert {one["reported_by"] for one in told["runs"]} == {"file"}
    assert [one["verification_status"] for one in told["runs"]] == ["warning", "verified"]
    listed = json.loads(Path(manifest).read_bytes())["runs"]
    assert [(one["verification_status"], one["total_tokens_in"]) for one in listed] == [
        ("warning", 21919),
        ("verified", 39114),
    ]
    assert json.loads(Path("planner/run-2/metrics.json").read_bytes())["usage_api_reconciliation"][
        "verification_message"
    ].startswith("✅")


@pytest.mark.parametrize("command", ["decide", "record"])
def test_every_absent_run_of_a_manifest_is_named(run: Run, command: str) -> None:
    manifest = copied("gone", "../../etc", "..", "é" * 200)
    error = error_of(run, "usage", command, manifest, *(["--write"] if command == "decide" else []))
    names = ("'gone'", "planner/gone/metrics.json", "'../../etc'", "'..'", "éééé")
    shown = run("usage", command, manifest).stderr
    assert all(name in shown for name in names)
    assert "run-1" not in shown
    assert error["message"]
    assert not Path("meruit-data").exists()
    whole = json.loads(Path("planner/run-1/metrics.json").read_bytes())
    assert whole["usage_api_reconciliation"]["verification_status"] == "pending"


def test_every_bad_file_of_a_manifest_is_reported(run: Run) -> None:
    manifest = copied()
    Path("planner/run-1/metrics.json").write_text("{}")
    whole = json.loads(Path("planner/run-2/metrics.json").read_bytes())
    Path("planner/run-2/metrics.json").write_text(json.dumps(whole | {"run_id": "another"}))
    error = error_of(run, "usage", "decide", manifest)
    assert error["code"] == "bad_document"
    files = ["planner/run-1/metrics.json", "planner/run-2/metrics.json"]
    assert [one["path"] for one in error["problems"]] == files
    assert "'another'" in error["problems"][1]["message"]


@pytest.mark.parametrize("field", ["run_id", "framework"])
def test_a_run_that_differs_from_its_manifest_is_not_recorded(run: Run, field: str) -> None:
    manifest = copied()
    whole = json.loads(Path("planner/run-2/metrics.json").read_bytes())
    Path("planner/run-2/metrics.json").write_text(json.dumps(whole | {field: "another"}))
    message = error_of(run, "usage", "record", manifest)["message"]
    assert all(part in message for part in ("planner/run-2/metrics.json", field, "'another'"))
    assert json.loads(run("usage", "list", "--json").stdout or "{}").get("usage_runs", []) == []


def test_a_manifests_runs_may_lie_in_a_folder_of_theirs(run: Run, write: Write) -> None:
    Path("runs/planner/a").mkdir(parents=True)
    Path("b").mkdir()
    write("runs/planner/a/metrics.json", COMPLETE | {"run_id": "a"})
    write("b/metrics.json", metrics(look(FIRST), look(SECOND), run_id=None))
    write("all.json", {"runs": [{"run_id": "a", "framework": "planner"}, {"run_id": "b"}]})
    assert run("usage", "decide", "all.json").returncode == 0


# Recording.


def with_store(do: Callable[[Store], Any]) -> Any:
    store = open_records("meruit-data")
    try:
        return do(store)
    finally:
        store.close()


def test_files_are_recorded_with_their_observations(run: Run) -> None:
    ended = run("usage", "record", copied())
    assert ended.returncode == 0
    assert [line.split()[3] for line in ended.stdout.splitlines()[1:]] == ["warning", "verified"]
    again = json.loads(run("usage", "record", "planner/run-2/metrics.json", "--json").stdout)["usage_runs"]
    assert [(one["attempts"], one["verdict"]["status"]) for one in again] == [(2, "verified")]
    lines = run("usage", "list").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["run", "framework"], ["run-2", "planner"], ["run-1", "planner"]]
    page = json.loads(run("usage", "list", "--limit", "1", "--json").stdout)
    assert [one["run"]["id"] for one in page["usage_runs"]] == ["run-2"]
    ended = run("usage", "list", "--limit", "1", "--before", str(page["next"]))
    assert "run-1" in ended.stdout
    assert "--before " in ended.stderr
    assert "run-1" in run("usage", "list", "--status", "warning", "--task", "todo-app").stdout
    assert "run-" not in run("usage", "list", "--framework", "other").stdout
    assert "run-" not in run("usage", "list", "--source", "other").stdout
    shown = json.loads(run("usage", "show", "run-1", "--json").stdout)
    assert (shown["run"]["id"], len(shown["observations"])) == ("run-1", 2)
    assert error_of(run, "usage", "show", "unknown")["code"] == "not_found"


@pytest.mark.golden
def test_a_recorded_run_reads_as_recorded(run: Run) -> None:
    run("usage", "record", copied())
    check_golden("cli/usage_show", run("usage", "show", "run-1").stdout)


def test_a_run_of_an_unknown_account_gets_a_note(run: Run, write: Write) -> None:
    write("metrics.json", COMPLETE)
    assert "'default'" in run("usage", "record", "metrics.json").stderr
    config = write("settings.yaml", "usage: {accounts: {default: {provider: openai}}}")
    assert run("usage", "record", "metrics.json", "--config", config).stderr == ""
    write("metrics.json", COMPLETE | {"run_id": "run-2", "source": "openai-prod"})
    assert "'openai-prod'" in run("usage", "record", "metrics.json", "--config", config).stderr


def test_a_run_in_the_format_of_the_api_is_recorded(run: Run, write: Write) -> None:
    whole = {
        "id": "mine",
        "framework": "planner",
        "attribution_key": {"kind": "key", "value": "key_1"},
        "ended_at": "2025-10-15T09:00:00Z",
        "success": True,
        "score": 0.5,
        "contract_id": "con_1",
        "outcome_id": "out_1",
        "started_at": "2025-10-15T08:00:00Z",
        "steps": [{"id": "plan", "succeeded": True, "tokens": {"input": 10, "output": 5, "requests": 1, "cached": 2}}],
    }
    assert run("usage", "record", write("run.json", whole)).returncode == 0
    shown = run("usage", "show", "mine").stdout
    for part in ("key:key_1", "10 in, 5 out, 1 requests, 2 cached", "score: 0.5", "outcome: out_1"):
        assert part in shown
    assert "score" in error_of(run, "usage", "record", write("bad.json", whole | {"score": 7}))["message"]
    error = error_of(run, "usage", "record", write("other.json", whole | {"task": "else"}))
    assert error["code"] == "wrong_state"


CALL = {"at": "2025-10-15T08:30:00Z", "model": "m", "usage": {"prompt_tokens": 1000, "completion_tokens": 80}}


def test_a_response_s_usage_block_counts_in_a_file_as_it_does_over_http(run: Run, write: Write) -> None:
    whole = {"id": "mine", "framework": "planner", "steps": [{"id": "s", "calls": [CALL]}]}
    assert run("usage", "record", write("run.json", whole)).returncode == 0
    assert "own count: 1,000 in, 80 out" in run("usage", "show", "mine").stdout


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"sucess": True}, "`sucess`"),
        ({"steps": [{"id": "s", "calls": [{**CALL, "uusage": {}}]}]}, "`uusage`"),
        ({"steps": [{"id": "s", "calls": [{**CALL, "tokens": {"input": 1}}]}]}, "steps[0].calls[0]"),
        ({"id": "a b\n"}, "id: "),
    ],
)
def test_an_unknown_or_bad_field_of_a_file_is_named(run: Run, write: Write, change: dict[str, Any], name: str) -> None:
    whole = {"id": "mine", "framework": "planner", "steps": [{"id": "s", "calls": [CALL]}]}
    assert name in error_of(run, "usage", "record", write("run.json", whole | change))["message"]


def test_all_files_are_recorded_or_none(run: Run, write: Write) -> None:
    write("good.json", COMPLETE)
    write("bad.json", metrics(look(FIRST), run_id=None))
    write("worse.json", "{")
    message = error_of(run, "usage", "record", "good.json", "bad.json", "worse.json")["message"]
    assert "bad.json: line 1: " in message
    assert "'run_id'" in message
    assert "worse.json: line 1: " in message
    assert "'run-1'" in error_of(run, "usage", "record", "good.json", "good.json")["message"]
    assert run("usage", "record", "good.json", "--tenant", "No!").returncode == 2
    assert not Path("meruit-data").exists()
    assert run("usage", "record").returncode == 2
    assert run("usage", "list").returncode == 2


def test_an_observation_in_the_future_is_refused(run: Run, write: Write) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    write("metrics.json", metrics(look(FIRST), look(tomorrow), framework="planner"))
    assert tomorrow in error_of(run, "usage", "record", "metrics.json")["message"]
    # `decide` records nothing; it prints a note.
    assert tomorrow in run("usage", "decide", "metrics.json").stderr


def test_a_run_that_was_left_open_is_ended(run: Run) -> None:
    def leave(store: Store) -> None:
        metered_run("planner", run_id="died", store=store).__enter__()

    with_store(leave)
    assert "run_open" in run("usage", "explain", "died").stdout
    error = error_of(run, "usage", "end", "died", "--at", "2025-10-15T09:00:00")
    assert (error["code"], "--at" in error["message"]) == ("usage", True)
    assert run("usage", "end", "died").returncode == 0
    found = json.loads(run("usage", "end", "died", "--json").stdout)
    assert found["run"]["ended_at"] is not None
    assert run("usage", "end", "died", "--at", "2199-10-15T09:00:00Z").returncode == 2


# Explaining and accepting.


@pytest.mark.golden
def test_an_explanation_reads_as_recorded(run: Run) -> None:
    run("usage", "record", copied())
    check_golden("cli/usage_explain", session_of(run, ("usage", "explain", "run-1")))


def test_a_verdict_is_explained_with_its_rule_and_what_comes_next(run: Run) -> None:
    run("usage", "record", copied())
    ended = run("usage", "explain", "run-1", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["code"], len(found["compared"])) == (1, "incomplete", 2)
    assert (found["next_look"]["at"], found["next_look"]["is_due"]) == ("2025-10-16T08:58:03Z", True)
    assert "next observation: now" in run("usage", "explain", "run-1").stdout
    ended = run("usage", "explain", "run-2", "--json")
    told = json.loads(ended.stdout)
    assert (ended.returncode, told["verification_status"], told["code"]) == (0, "verified", "stable")
    assert [one["at"] for one in told["compared"]] == ["2025-10-16T09:15:00Z", "2025-10-16T10:16:00Z"]
    # A file says so; the provider must confirm it.
    assert (told["next_look"]["at"], told["next_look"]["is_due"]) == ("2025-10-16T11:16:00Z", True)


@pytest.mark.parametrize(
    ("minutes", "code"), [((0, 30, 60), "gap"), ((0, 60), "stable"), ((0, 30, 90), "stable"), ((0, 30), "gap")]
)
def test_judging_and_recording_a_file_agree(run: Run, write: Write, minutes: tuple[int, ...], code: str) -> None:
    begun = datetime(2025, 10, 15, 9, 15, tzinfo=UTC)
    name = write("metrics.json", metrics(*(look((begun + timedelta(minutes=one)).isoformat()) for one in minutes)))
    judged = json.loads(run("usage", "decide", name, "--json").stdout)
    (recorded,) = json.loads(run("usage", "record", name, "--json").stdout)["usage_runs"]
    assert (judged["code"], recorded["verdict"]["code"]) == (code, code)
    assert (recorded["attempts"], recorded["verdict"]["early"]) == (len(minutes), 0)
    assert json.loads(run("usage", "explain", "run-1", "--json").stdout)["next_look"]["is_due"]


def test_what_comes_from_a_file_is_shown_as_imported_everywhere(run: Run, write: Write) -> None:
    name = write("metrics.json", COMPLETE)
    assert "imported" in run("usage", "record", name).stdout
    for command in (
        ("usage", "list"),
        ("reconcile", "--list"),
        ("usage", "show", "run-1"),
        ("usage", "explain", "run-1"),
    ):
        assert "imported" in run(*command).stdout
    (listed,) = json.loads(run("reconcile", "--list", "--json").stdout)["runs"]
    assert (listed["verification_status"], listed["imported"]) == ("verified", True)
    (entry,) = json.loads(run("usage", "export", "--manifest").stdout)["runs"]
    assert (entry["verification_status"], entry["imported"]) == ("verified", True)
    exported = json.loads(run("usage", "export", "run-1").stdout)["usage_api_reconciliation"]
    assert exported["imported"] is True
    assert [one["meruit"]["reported_by"] for one in exported["attempts"]] == ["file", "file"]
    report = json.loads(run("report", "build", "--json").stdout)
    assert (report["verified"], report["imported"]) == (0, 1)
    included = json.loads(run("report", "build", "--json", "--include-imported").stdout)
    assert (included["verified"], included["include_imported"]) == (1, True)


def test_a_run_without_a_price_says_why(run: Run, write: Write) -> None:
    run("usage", "record", write("metrics.json", COMPLETE))
    assert json.loads(run("usage", "show", "run-1", "--json").stdout)["cost_unknown"] == "no_model"
    assert "quoted unknown" in run("usage", "show", "run-1").stdout


def test_an_observation_that_is_due_later_is_not_overdue(run: Run) -> None:
    with_store(lambda store: metered_run("planner", run_id="fresh", store=store).__enter__().__exit__(None, None, None))
    ended = run("usage", "explain", "fresh")
    assert "next observation: now" not in ended.stdout
    assert "assurance" not in ended.stdout
    assert json.loads(run("usage", "explain", "fresh", "--json").stdout)["next_look"]["at"] is not None


def test_open_runs_with_the_same_attribution_key_are_named(run: Run, write: Write) -> None:
    def leave(store: Store) -> None:
        for name, attribution_key in (("died", "key:k"), ("also", ""), ("elsewhere", "key:other")):
            metered_run("planner", run_id=name, attribution_key=attribution_key or "window", store=store).__enter__()

    def open_beside(name: str) -> list[str]:
        names: list[str] = json.loads(run("usage", "explain", name, "--json").stdout)["open_beside"]
        assert (" usage end " in run("usage", "explain", name).stdout) is bool(names)
        return names

    with_store(leave)
    late = {"attribution_key": {"kind": "key", "value": "k"}, "end_time": "2199-01-01T00:00:00Z"}
    for name, more in (("mine", late), ("before", late | {"end_time": "2025-10-15T09:00:00Z"})):
        run("usage", "record", write("metrics.json", metrics(run_id=name, **more)))
    assert open_beside("mine") == ["also", "died"]
    assert ": also, died;" in run("usage", "explain", "mine").stdout
    assert open_beside("before") == []
    assert open_beside("elsewhere") == ["elsewhere", "also"]
    calls = {"attribution_key": {"kind": "requests"}, "end_time": "2199-01-01T00:00:00Z"}
    run("usage", "record", write("metrics.json", metrics(run_id="by calls", **calls)))
    assert open_beside("by calls") == []


def test_a_failed_request_is_shown_and_what_it_waits_for(run: Run, write: Write) -> None:
    run("usage", "record", write("metrics.json", metrics(end_time="2025-10-15T09:00:00Z")))
    failed = Observation("x", datetime(2025, 10, 15, 10, tzinfo=UTC), error=FetchError.AUTH, detail="401 " + "x" * 99)
    with_store(lambda store: store.recorder.write(RecordObservations("default", [RunObservation("run-1", failed)])))
    shown = run("usage", "show", "run-1").stdout
    line = next(one for one in shown.splitlines() if one.startswith("2025-10-15 10:00:00"))
    # A failed request has no assurance.
    assert line.split()[2:8] == ["–", "–", "–", "–", "–", "auth:"]
    assert "assurance: " not in shown
    ended = run("usage", "explain", "run-1", "--json")
    upcoming = json.loads(ended.stdout)["next_look"]
    assert (ended.returncode, upcoming["at"], upcoming["waits"]) == (3, None, "credential")


def test_a_count_that_fell_is_verified_once_acknowledged(run: Run, write: Write) -> None:
    fell = metrics(
        look(FIRST), look("2025-10-15T11:00:00Z", (39000, 11961)), look("2025-10-15T12:00:00Z", (39000, 11961))
    )
    run("usage", "record", write("metrics.json", fell))
    assert run("usage", "explain", "run-1").returncode == 1
    assert run("usage", "acknowledge", "run-1", "--reason", " ").returncode == 2
    assert run("usage", "acknowledge", "run-1").returncode == 2
    reason = "a correction by mail"
    ended = run("usage", "acknowledge", "run-1", "--reason", reason)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "verification_status: verified")
    assert error_of(run, "usage", "acknowledge", "run-1", "--reason", "another")["code"] == "wrong_state"
    assert reason in run("usage", "show", "run-1").stdout
    # The acknowledgement comes after its observations, in an exported file too.
    assert run("usage", "export", "run-1", "-o", "out.json").returncode == 0
    assert run("usage", "decide", "out.json").returncode == 0
    assert "a person" in run("usage", "explain", "run-1").stdout
    found = json.loads(run("usage", "acknowledge", "run-1", "--reason", reason, "--json").stdout)
    assert found["acknowledged"][0]["by"] == "command line"


def test_the_settings_policy_is_that_of_the_records(run: Run, write: Write) -> None:
    config = write("settings.yaml", "usage: {policy: {interval_min: 30}}")
    both = metrics(look("2025-10-15T09:00:00Z"), look("2025-10-15T09:30:00Z"))
    told = json.loads(run("usage", "record", write("metrics.json", both), "--config", config, "--json").stdout)
    assert told["usage_runs"][0]["verdict"]["status"] == "verified"


# Exporting.


def test_a_recorded_run_comes_out_as_a_file_that_is_judged_alike(run: Run) -> None:
    run("usage", "record", copied())
    ended = run("usage", "export", "run-1", "-o", "out.json")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "note: written to out.json\n")
    part = json.loads(Path("out.json").read_bytes())["usage_api_reconciliation"]
    assert (part["verification_status"], part["verification_message"]) == ("warning", WARNING)
    wanted = {"timestamp", "total_tokens_in", "total_tokens_out", "steps_with_tokens", "total_steps", "steps"}
    assert all(wanted <= {*one} for one in part["attempts"])
    judged = run("usage", "decide", "out.json")
    assert judged.stdout.splitlines()[:2] == ["verification_status: warning", f"verification_message: {WARNING}"]
    recorded = json.loads(run("usage", "show", "run-1", "--json").stdout)
    run("usage", "record", "out.json", "--data", "elsewhere")
    other = json.loads(run("usage", "show", "run-1", "--json", "--data", "elsewhere").stdout)
    assert (other["run"], other["observations"], other["verdict"]) == (
        recorded["run"],
        recorded["observations"],
        recorded["verdict"],
    )
    assert json.loads(run("usage", "export", "run-1").stdout)["run_id"] == "run-1"
    assert json.loads(run("usage", "export", "run-1", "-o", "x.json", "--json").stdout) == {"file": "x.json"}


def test_what_was_exported_and_is_recorded_again_is_no_second_look(run: Run, write: Write) -> None:
    run("usage", "record", write("metrics.json", metrics(end_time="2025-10-15T09:00:00Z", steps=[{"step": "s"}])))
    looks = [
        Observation(
            f"l{hour}", datetime(2025, 10, 15, hour, tzinfo=UTC), Tokens(9, 1, 1), assurance=Assurance.ATTRIBUTION_KEY
        )
        for hour in (10, 12)
    ]
    with_store(
        lambda store: store.recorder.write(
            RecordObservations("default", [RunObservation("run-1", one) for one in looks])
        )
    )
    before = json.loads(run("usage", "show", "run-1", "--json").stdout)
    run("usage", "export", "run-1", "-o", "out.json")
    assert run("usage", "record", "out.json").returncode == 0
    after = json.loads(run("usage", "show", "run-1", "--json").stdout)
    assert (after["observations"], after["verdict"]) == (before["observations"], before["verdict"])
    assert (after["verdict"]["assurance"], after["verdict"]["reported_by"]) == ("B", "")
    whole = json.loads(Path("out.json").read_bytes())
    whole["usage_api_reconciliation"]["attempts"][0]["total_tokens_in"] = 8
    told = json.loads(run("usage", "record", write("other.json", whole), "--json").stdout)["usage_runs"]
    assert told[0]["verdict"]["code"] == "conflicting_evidence"


def test_recorded_runs_come_out_as_a_manifest(run: Run) -> None:
    run("usage", "record", copied())
    listed = json.loads(run("usage", "export", "--manifest").stdout)["runs"]
    assert [(one["run_id"], one["verification_status"], one["total_tokens_out"]) for one in listed] == [
        ("run-1", "warning", 6459),
        ("run-2", "verified", 11961),
    ]
    assert json.loads(run("usage", "export", "--manifest", "--framework", "other").stdout) == {"runs": []}


@pytest.mark.parametrize("arguments", [(), ("run-1", "--manifest"), ("run-1", "--framework", "x")])
def test_an_export_is_of_one_run_or_of_all(run: Run, arguments: tuple[str, ...]) -> None:
    assert error_of(run, "usage", "export", *arguments)["code"] == "usage"


def test_a_run_recorded_from_python_is_listed_with_its_steps(run: Run) -> None:
    def measure(store: Store) -> None:
        with metered_run("planner", run_id="measured", store=store) as meter, meter.step("plan") as step:
            step.add({"prompt_tokens": 10, "completion_tokens": 5})

    with_store(measure)
    shown = run("usage", "show", "measured").stdout
    assert "own count: 10 in, 5 out, 1 requests" in shown
    assert ["plan", "–", "true", "1", "10", "5"] in [line.split() for line in shown.splitlines()]
    total = Observation("x", datetime.now(UTC) + timedelta(minutes=1), Tokens(10, 5, 1))
    with_store(lambda store: store.recorder.write(RecordObservations("default", [RunObservation("measured", total)])))
    assert run("usage", "explain", "measured").returncode == 3


def test_the_kinds_of_sources_are_listed(run: Run) -> None:
    ended = run("usage", "sources")
    assert ended.returncode == 0
    assert any(line.startswith("openai ") for line in ended.stdout.splitlines())
    told = json.loads(run("usage", "sources", "--json").stdout)
    assert {"name", "summary", "base_url", "key_variable", "is_file", "options"} <= {*told[0]}


def test_a_manifest_that_names_no_run_verifies_nothing(run: Run) -> None:
    Path("manifest.json").write_text('{"runs": []}')
    done = run("usage", "decide", "manifest.json")
    assert (done.returncode, "manifest.json" in done.stderr) == (3, True)


@pytest.mark.parametrize("command", ["usage list --framework", "usage show"])
def test_an_argument_that_is_not_text_is_named(run: Run, command: str) -> None:
    assert run("usage", "record", copied()).returncode == 0
    error = error_of(run, *command.split(), os.fsdecode(b"\xff"))
    assert (error["code"], "'\\udcff'" in error["message"]) == ("usage", True)


def test_a_place_beyond_any_list_is_refused(run: Run) -> None:
    assert run("usage", "record", copied()).returncode == 0
    assert len(json.loads(run("usage", "list", "--json", "--before", str(2**63 - 1)).stdout)["usage_runs"]) == 2
    done = run("usage", "list", "--before", str(2**64))
    assert done.returncode == 2
    assert "--before" in done.stderr
