"""`meruit report`, as a shell calls it."""

import html
import json
import os
import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.refusals import error_of
from tests.reports.worlds import NOON, recorded

from meruit.cli.commands.report import ReportOptions, _reproduce_command
from meruit.cli.terminal import StoreAddress
from meruit.model.metering import MeteredRun, MeteredStep, UsageRecord
from meruit.model.usage import Assurance, Observation, Tokens, UsageCode, UsagePolicy, UsageStatus
from meruit.usage.decision import decide

Run = Callable[..., subprocess.CompletedProcess[str]]
TWO = (("a", UsageStatus.VERIFIED), ("b", UsageStatus.PENDING))


def several() -> list[UsageRecord]:
    return [
        recorded(agent, f"t{task}", success=agent == "scout" or task > 2, cost=cost if task % 2 else f"{cost}5")
        for agent, cost in (("plodder", "0.1"), ("scout", "0.3"))
        for task in range(6)
    ] + [recorded("scout", "t0", 2, status=UsageStatus.WARNING, message="only 3/6 steps have tokens")]


@pytest.fixture
def runs() -> str:
    Path("runs.json").write_bytes(msgspec.json.encode(several()))
    return "runs.json"


def test_a_page_and_its_data_lie_side_by_side(run: Run, runs: str) -> None:
    done = run("report", "build", "-o", "report.html", "--include-imported", "--from", runs)
    assert (done.returncode, done.stdout) == (0, "")
    assert [int(one) for one in re.findall(r"\b\d+\b", done.stderr)] == [13, 12, 1]
    page = Path("report.html").read_text(encoding="utf-8")
    data = json.loads(Path("report.json").read_bytes())
    assert data["digest"] in page
    assert "3/6" in data["excluded"][0]["message"]
    assert "meruit report build -o report.html --include-imported --from runs.json" in page


def test_figures_from_a_file_are_imported_not_verified(run: Run, runs: str) -> None:
    done = run("report", "build", "-o", "report.html", "--from", runs)
    data = json.loads(Path("report.json").read_bytes())
    assert (data["runs"], data["verified"], data["imported"], data["include_imported"]) == (13, 0, 13, False)
    assert "--include-imported" in done.stderr
    assert {one["imported"] for one in data["excluded"]} == {True}
    assert [one["by_code"] for one in data["exclusions"]] == [{"imported": 6}, {"imported": 6, "incomplete": 1}]
    assert (data["points"], data["prices"], {one["billed"] for one in data["waterfalls"]}) == ([], [], {0})
    assert {one["verified"] for one in data["ledger"]} == {False}


def test_asking_for_imported_figures_is_repeated_by_the_page(run: Run, runs: str) -> None:
    run("report", "build", "-o", "report.html", "--from", runs, "--include-imported")
    data = json.loads(Path("report.json").read_bytes())
    assert (data["verified"], data["imported"], data["include_imported"]) == (12, 13, True)
    header = Path("report.html").read_text(encoding="utf-8").partition("<section")[0]
    assert header.count("--include-imported") >= 2


def test_the_same_runs_give_the_same_bytes_wherever_they_go(run: Run, runs: str) -> None:
    run("report", "build", "-o", "one.html", "--from", runs)
    Path(runs).write_bytes(msgspec.json.encode([*reversed(several())]))
    Path("folder").mkdir()
    run("report", "build", "-o", "folder/two.html", "--from", runs)
    for kind in ("html", "json"):
        assert Path(f"one.{kind}").read_bytes() == Path(f"folder/two.{kind}").read_bytes()


def record_two(data: str | None = None) -> None:
    """Record a run that the provider verifies, and one that it does not yet."""
    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.usage.store.record_observations import RecordObservations, RunObservation
    from meruit.usage.store.record_runs import RecordRun

    store = open_store(location_of(data, None), make=True)
    try:
        ended = NOON + timedelta(minutes=5)
        for agent in ("a", "b"):
            steps = (MeteredStep("s", NOON, ended, succeeded=True, tokens=Tokens(90, 10, 1)),)
            made = MeteredRun(f"{agent}-1", agent, started_at=NOON, ended_at=ended, steps=steps, task="t", success=True)
            store.recorder.write(RecordRun("default", "test", made))
            for hours in (1, 3) if agent == "a" else (1,):
                at = ended + timedelta(hours=hours)
                look = Observation(f"{agent}{hours}", at, Tokens(90, 10, 1), assurance=Assurance.ATTRIBUTION_KEY)
                store.recorder.write(RecordObservations("default", [RunObservation(made.id, look)], UsagePolicy()))
    finally:
        store.close()


# The command on the page.


def printed_command(page: str) -> str:
    found = re.search(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    assert found is not None
    return html.unescape(found.group(1))


def run_printed(page: str, folder: Path, stdin: bytes = b"", **variables: str) -> None:
    """Run the command as a reader would copy it from the page."""
    done = subprocess.run(
        ["bash", "-c", printed_command(page)],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=300,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", **variables},
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--include-imported", "--cost", "settled"),
        ("--framework", "scout", "--question", 'How\'s "scout" & $HOME <b>?\nAnd why\\not \u202e?'),
    ],
    ids=["plain", "imported", "quoted"],
)
@pytest.mark.parametrize("name", ["runs.json", "report.json", "a folder/it's.json"])
def test_the_printed_command_makes_the_same_page(
    run: Run, runs: str, meruit_at_hand: Path, name: str, options: tuple[str, ...]
) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(runs).rename(name)
    assert run("report", "build", "-o", "first.html", "--from", name, *options).returncode == 0
    page = Path("first.html").read_text(encoding="utf-8")
    run_printed(page, meruit_at_hand)
    again = "report-again" if name == "report.json" else "report"
    assert Path(f"{again}.html").read_text(encoding="utf-8") == page
    assert Path(f"{again}.json").read_bytes() == Path("first.json").read_bytes()


def test_the_printed_command_reads_standard_input_again(run: Run, runs: str, meruit_at_hand: Path) -> None:
    content = Path(runs).read_bytes()
    page = run("report", "build", "-o", "-", "--from", "-", stdin=content).stdout
    run_printed(page, meruit_at_hand, stdin=content)
    assert Path("report.html").read_text(encoding="utf-8") == page


def test_the_printed_command_finds_the_same_records(run: Run, meruit_at_hand: Path) -> None:
    record_two("the data")
    page = run("report", "build", "-o", "-", "--data", "the data").stdout
    run_printed(page, meruit_at_hand)
    assert Path("report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db/x", '"$MERUIT_DATABASE_URL"'),
        ("postgresql://db/x?user=ann&password=secret", '"$MERUIT_DATABASE_URL"'),
        ("postgresql://ann@db/x", "postgresql://ann@db/x"),
    ],
)
def test_the_printed_command_has_no_password(url: str, shown: str) -> None:
    wanted = ReportOptions((), "quoted", None, include_imported=False)
    command = _reproduce_command(None, StoreAddress(None, url, "default"), wanted)
    assert command == f"meruit report build -o report.html --database-url {shown}"


@pytest.mark.parametrize("link", ["", "symbolic", "hard"])
@pytest.mark.parametrize("name", ["out.json", "out.html"])
def test_what_is_read_is_not_written_over(run: Run, runs: str, name: str, link: str) -> None:
    before = Path(runs).read_bytes()
    match link:
        case "symbolic":
            Path(name).symlink_to(runs)
        case "hard":
            Path(name).hardlink_to(runs)
        case _:
            runs = f"../{Path.cwd().name}/{Path(runs).rename(name)}"
    error = error_of(run, "report", "build", "-o", "out.html", "--from", runs)
    assert (error["code"], error["message"].split()[0]) == ("usage", name)
    assert Path(name).read_bytes() == Path(runs).read_bytes() == before
    assert sorted(one.name for one in Path.cwd().iterdir()) == sorted({name, Path(runs).name})


def test_standard_input_that_is_a_file_is_not_written_over_either(runs: str, meruit_at_hand: Path) -> None:
    with Path(runs).open("rb") as file:
        done = subprocess.run(
            [meruit_at_hand / "meruit", "report", "build", "-o", "runs.html", "--from", "-"],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert (done.returncode, Path("runs.html").exists()) == (2, False)
    assert "Error: runs.json " in done.stderr


def test_a_page_and_its_data_appear_together_or_not_at_all(run: Run, runs: str) -> None:
    Path("x.json").mkdir()
    assert run("report", "build", "-o", "x.html", "--from", runs).returncode != 0
    assert sorted(one.name for one in Path.cwd().iterdir()) == ["runs.json", "x.json"]


def test_data_are_printed_for_programs(run: Run, runs: str) -> None:
    done = run("report", "build", "--json", "--from", runs, "--framework", "scout", "--question", "How is scout?")
    found = json.loads(done.stdout)
    assert (found["question"], found["runs"]) == ("How is scout?", 7)
    assert (
        found["command"]
        == "meruit report build -o report.html --framework scout --question 'How is scout?' --from runs.json"
    )


def test_a_page_may_come_from_a_pipe_and_go_to_one(run: Run, runs: str) -> None:
    done = run("report", "build", "-o", "-", "--from", "-", stdin=Path(runs).read_bytes())
    assert done.returncode == 0
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.endswith("</html>\n")


def test_a_file_that_some_editor_marked_as_text_is_read_all_the_same(run: Run, runs: str) -> None:
    plain = run("report", "build", "--json", "--from", "-", stdin=Path(runs).read_bytes())
    marked = run("report", "build", "--json", "--from", "-", stdin=b"\xef\xbb\xbf" + Path(runs).read_bytes())
    assert (marked.returncode, marked.stdout) == (0, plain.stdout)


def test_two_agents_are_compared_in_the_order_of_their_names(run: Run, runs: str) -> None:
    done = run("report", "compare", "scout", "plodder", "--include-imported", "--from", runs)
    assert done.returncode == 0
    assert re.search(r"^cost +verified +6 .*× 2\.\d+ ", done.stdout, re.MULTILINE)
    assert re.search(r"^success +finished +6 +100\.0 % +50\.0 % +\+50\.0 ", done.stdout, re.MULTILINE)
    assert re.search(r"^scout +7 +6 +1 +incomplete 1$", done.stdout, re.MULTILINE)
    again = json.loads(
        run("report", "compare", "scout", "plodder", "--include-imported", "--from", runs, "--json").stdout
    )
    assert {(one["a"], one["b"]) for one in again["comparisons"]} == {("scout", "plodder")}


def test_nothing_verified_in_common_is_nothing_to_compare(run: Run, write: Callable[[str, Any], str]) -> None:
    records = [recorded("a", "t1"), recorded("b", "t2", success=None), recorded("b", "t1", status=UsageStatus.PENDING)]
    name = write("runs.json", msgspec.json.encode(records))
    done = run("report", "compare", "a", "b", "--from", name)
    assert done.returncode == 3


def test_one_of_two_alone_is_nothing_to_compare_with(run: Run, write: Callable[[str, Any], str]) -> None:
    records = [recorded(agent, f"t{task}", status=status) for task in range(6) for agent, status in TWO]
    done = run(
        "report", "compare", "a", "b", "--include-imported", "--from", write("runs.json", msgspec.json.encode(records))
    )
    assert done.returncode == 3
    found = json.loads(run("report", "compare", "a", "b", "--include-imported", "--from", "runs.json", "--json").stdout)
    assert found["tasks_compared"] == 0
    assert not any(one["compared"] for one in found["task_lines"])
    alone = json.loads(
        run("report", "build", "--framework", "a", "--from", "runs.json", "--include-imported", "--json").stdout
    )
    assert alone["tasks_compared"] == 6


def test_tasks_that_are_in_no_ratio_are_counted_with_the_reason(run: Run, write: Callable[[str, Any], str]) -> None:
    costs = ["0.5", "0", "0", "0.25", "1", None, "0.75"]
    records = [
        recorded(agent, f"t{task}", cost=cost if agent == "a" else "0.5")
        for agent in ("a", "b")
        for task, cost in enumerate(costs)
    ]
    done = run(
        "report", "compare", "a", "b", "--include-imported", "--from", write("runs.json", msgspec.json.encode(records))
    )
    assert done.returncode == 0
    assert re.search(r"^cost +verified +4 ", done.stdout, re.MULTILINE)
    assert re.search(r"^cost: 3 tasks .*: 2 took nothing, of 1 .*unknown$", done.stdout, re.MULTILINE)
    assert "tokens: " not in done.stdout
    run("report", "build", "-o", "page.html", "--include-imported", "--from", "runs.json")
    assert re.search(r"3 tasks [^<]*: 2 took nothing, of 1 [^<]*unknown", Path("page.html").read_text(encoding="utf-8"))
    free = [recorded(agent, "t", cost="0" if agent == "a" else None) for agent in ("a", "b")]
    free += [recorded(agent, f"u{task}", cost="0.5") for agent in ("a", "b") for task in range(2)]
    done = run(
        "report", "compare", "a", "b", "--include-imported", "--from", write("runs.json", msgspec.json.encode(free))
    )
    assert re.search(r"^cost: 1 task .*: of 1 .*unknown$", done.stdout, re.MULTILINE)


# What a file claims of its runs.


def looked_at(looks: tuple[float, ...] = (1, 3), **changes: Any) -> tuple[UsageRecord, list[Observation]]:
    used = Tokens(90, 10, 1)
    ended = NOON + timedelta(minutes=5)
    made = MeteredRun("a-1", "a", ended_at=ended, steps=(MeteredStep("s", tokens=used),), task="t", success=True)
    attempts = [
        Observation(f"look {hours:g}", ended + timedelta(hours=hours), used, assurance=Assurance.ATTRIBUTION_KEY)
        for hours in looks
    ]
    verdict = decide(made.for_judging, attempts, UsagePolicy(interval_min=changes.get("interval_min", 60.0)))
    return UsageRecord(made, 1, len(attempts), msgspec.structs.replace(verdict, **changes)), attempts


def in_file(record: UsageRecord, attempts: list[Observation]) -> bytes:
    return msgspec.json.encode({"records": [record], "attempts": {record.run.id: attempts}})


@pytest.mark.parametrize(
    ("looks", "changes", "said"),
    [
        ((1,), {"status": UsageStatus.VERIFIED, "code": UsageCode.STABLE}, "pending (first, 90 in / 10 out)"),
        ((), {"status": UsageStatus.VERIFIED, "code": UsageCode.STABLE}, "pending (not_started)"),
        ((1, 3), {"tokens": Tokens(9, 1, 1)}, "verified (stable, 9 in / 1 out)"),
        ((1, 3), {"status": UsageStatus.PENDING, "code": UsageCode.FIRST}, "verified (stable, 90 in / 10 out)"),
        ((1, 1.5), {"status": UsageStatus.VERIFIED, "code": UsageCode.STABLE}, "pending (gap"),
        (
            (1, 3),
            {"assurance": Assurance.REQUEST},
            "assurance A, withdrawn 0 times",
        ),
        ((1, 3), {"withdrawn": 2}, "withdrawn 2 times"),
        ((1, 3), {"reported_by": "file"}, "by a file"),
        ((1, 3), {"interval_min": -1.0}, "-1 minutes"),
    ],
)
def test_a_verdict_that_contradicts_its_attempts_is_refused(
    run: Run, write: Callable[[str, Any], str], looks: tuple[float, ...], changes: dict[str, Any], said: str
) -> None:
    write("runs.json", in_file(*looked_at(looks, **changes)))
    for arguments in (("build", "-o", "x.html"), ("build",)):
        error = error_of(run, "report", *arguments, "--from", "runs.json")
        (problem,) = error["problems"]
        assert (error["code"], problem["where"], problem["path"]) == ("bad_document", "runs.json", "run 'a-1'")
        assert said in problem["message"]
    assert not Path("x.html").exists()


@pytest.mark.parametrize(("looks", "changes"), [((1, 3), {}), ((1,), {}), ((), {}), ((1, 1.5), {"interval_min": 30.0})])
def test_a_verdict_that_follows_from_its_attempts_is_reported(
    run: Run, write: Callable[[str, Any], str], looks: tuple[float, ...], changes: dict[str, Any]
) -> None:
    write("runs.json", in_file(*looked_at(looks, **changes)))
    found = json.loads(run("report", "build", "--json", "--from", "runs.json").stdout)
    assert (found["on_trust"], any("unchecked" in one for one in found["notes"])) == (0, False)


def test_verdicts_without_attempts_are_reported_as_unchecked(run: Run, write: Callable[[str, Any], str]) -> None:
    record, attempts = looked_at()
    both = {"records": [record, recorded("b")], "attempts": {"a-1": attempts}}
    run("report", "build", "-o", "x.html", "--from", write("runs.json", msgspec.json.encode(both)))
    header = Path("x.html").read_text(encoding="utf-8").partition("<section")[0]
    assert "1 of 2 runs" in header
    assert json.loads(Path("x.json").read_bytes())["on_trust"] == 1


@pytest.mark.parametrize("amount", ["-0.01", "NaN", "Infinity", "-Infinity", "sNaN"])
@pytest.mark.parametrize("kind", ["quoted", "billed", "settled"])
def test_a_cost_below_nothing_or_beyond_number_is_refused_by_name(run: Run, amount: str, kind: str) -> None:
    Path("runs.json").write_bytes(changed(f"ledger.{kind}", amount))
    error = error_of(run, "report", "build", "-o", "x.html", "--from", "runs.json")
    (problem,) = error["problems"]
    assert (error["code"], problem["path"]) == ("bad_document", "run 'plodder/t0/1'")
    assert f"{kind} cost is {amount};" in problem["message"]
    assert not Path("x.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("build", "-o", "x.json"), "usage", "-o"),
        (("build", "-o", "-"), "usage", "`-o -` and --json"),
        (("compare", "a", "a"), "usage", "A and B"),
        (("compare", "scout", "ploder", "--from", "runs.json"), "bad_report", "'plodder'"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_a_bad_report_is_refused(run: Run, arguments: tuple[str, ...], code: str, named: str) -> None:
    error = error_of(run, "report", *arguments)
    assert error["code"] == code
    assert named in error["message"]
    assert not Path("x.html").exists()


def test_a_page_needs_a_name_and_a_file_must_exist(run: Run) -> None:
    done = run("report", "build")
    assert (done.returncode, done.stdout, "FILE.html" in done.stderr) == (2, "", True)
    error = error_of(run, "report", "build", "-o", "x.html", "--from", "gone.json", exit_code=3)
    assert (error["code"], error["where"], Path("x.html").exists()) == ("io_error", "gone.json", False)


def changed(path: str, value: object) -> bytes:
    """Valid runs with one thing in the first of them that is not."""
    whole = json.loads(msgspec.json.encode(several()))
    place = whole[0]
    *way, last = path.split(".")
    for step in way:
        place = place[step]
    place[last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("content", "path", "named"),
    [
        (b"{", None, "not valid JSON"),
        (b'{"runs": []}', None, "`runs`"),
        (changed("run.ended_at", "2026-03-01T12:05:00"), "[0].run.ended_at", "timezone"),
        (changed("verdict.tokens", {"input": -5}), "[0].verdict.tokens.input", ">= 0"),
        (changed("verdict.status", "perhaps"), "[0].verdict.status", "'perhaps'"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(run: Run, content: bytes, path: str | None, named: str) -> None:
    Path("runs.json").write_bytes(content)
    error = error_of(run, "report", "build", "-o", "x.html", "--from", "runs.json")
    (problem,) = error["problems"]
    assert (error["code"], problem["where"], problem["path"]) == ("bad_document", "runs.json", path)
    assert named in problem["message"]
    assert not Path("x.html").exists()


@pytest.mark.parametrize(("content", "named"), [(b"[]", ""), (changed("run.id", "plodder/t1/1"), "'plodder/t1/1'")])
def test_runs_that_make_no_report_are_refused(run: Run, content: bytes, named: str) -> None:
    Path("runs.json").write_bytes(content)
    error = error_of(run, "report", "build", "-o", "x.html", "--from", "runs.json")
    assert (error["code"], named in error["message"], Path("x.html").exists()) == ("bad_report", True, False)


def test_recorded_runs_are_reported_on_without_a_file(run: Run) -> None:
    record_two()
    found = json.loads(run("report", "build", "--json").stdout)
    assert (found["runs"], found["verified"]) == (2, 1)
    assert found["excluded"][0]["run"] == "b-1"
    assert len(found["timeline"]["rows"][1]["observations"]) == 2
    alone = json.loads(run("report", "build", "--json", "--framework", "a").stdout)
    assert alone["runs"] == 1
    missing = error_of(run, "report", "build", "--framework", "c")
    assert (missing["code"], "'c'" in missing["message"]) == ("bad_report", True)


@pytest.mark.parametrize("target", ["", "/"])
def test_a_page_needs_a_name(run: Run, runs: str, target: str) -> None:
    error = error_of(run, "report", "build", "-o", target, "--from", runs)
    assert (error["code"], error["message"].split()[0]) == ("usage", "-o")
