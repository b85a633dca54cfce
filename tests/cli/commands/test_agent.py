"""`meruit agent`: run, listed, shown, followed, cancelled and resumed."""

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of
from tests.cli.scripted_agents import EVIDENCE, Doubted, Number

from meruit import open_records
from meruit.errors import VerificationWaiting
from meruit.gate.gate import Gate
from meruit.gate.runner.local import hold_worker_lock
from meruit.gate.verdict import Passed
from meruit.model.chat import Usage

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]
HERE = "tests.cli.scripted_agents"


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def queued(run: Run, name: str, *more: str) -> str:
    """The id of a run that nobody drives."""
    ended = run("agent", "run", f"{HERE}:{name}", "--query", "count", "--no-wait", "--json", *more)
    assert ended.returncode == 0, ended.stderr
    return str(json.loads(ended.stdout)["id"])


def work(run: Run) -> None:
    """Drive all that can be driven."""
    assert run("worker", f"{HERE}:agents", "--until-idle").returncode == 0


def shown(run: Run, run_id: str) -> Any:
    return json.loads(run("agent", "show", run_id, "--json").stdout)


# Running


def test_a_run_shows_each_rejection_and_the_verified_result(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:writer", "--query", "count")
    assert ended.returncode == 0
    assert json.loads(ended.stdout) == {"number": 3, "checked_against": EVIDENCE}
    lines = ended.stderr.splitlines()
    assert re.match(r"note: .*run_", lines[0])
    progress = [line for line in lines if re.match(r"turn|rejected|verified", line)]
    assert [line.split()[0] for line in progress if "turn" not in line] == ["rejected,", "rejected,", "verified,"]
    assert [line.split(":")[0] for line in progress if "verify" in line] == ["turn 1", "turn 2", "turn 3"]
    assert [re.search(r"(\d) of 5 .*\[small\]", line)[1] for line in progress if "[small]" in line] == ["1", "2"]  # type: ignore[index]


def test_a_result_that_is_text_is_printed_as_it_is(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:plain", "--query", "say")
    assert (ended.returncode, ended.stdout) == (0, "two\nlines\n")


def test_a_run_that_waits_says_how_to_resume_it(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:patient", "--query", "count", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["status"]) == (0, "completed")
    assert "nobody's word" in ended.stderr
    assert f" agent resume {found['id']} VALUE`" in ended.stderr


@pytest.mark.parametrize(
    ("name", "options", "code", "ending"),
    [
        ("hasty", (), 1, "attempts"),
        ("writer", ("--max-attempts", "1"), 1, "attempts"),
        ("unlucky", (), 3, "system_error"),
        ("endless", ("--max-seconds", "0.05"), 1, "deadline"),
        ("lost", (), 1, "member"),
    ],
)
def test_the_exit_code_tells_a_bad_output_from_an_error(
    run: Run, name: str, options: tuple[str, ...], code: int, ending: str
) -> None:
    ended = run("agent", "run", f"{HERE}:{name}", "--query", "count", *options)
    assert (ended.returncode, ended.stdout) == (code, "")
    (found,) = [one for one in json.loads(run("agent", "list", "--json").stdout)["agent_runs"] if one["agent"] == name]
    assert found["ending"].startswith(ending)
    assert found["id"] in ended.stderr


@pytest.mark.parametrize(
    ("name", "why"),
    [("hasty", ": 2 is too small"), ("lost", ": only: 2 is too small"), ("clumsy", ": n: Field required")],
)
def test_a_failure_is_one_plain_line(run: Run, name: str, why: str) -> None:
    told = run("agent", "run", f"{HERE}:{name}", "--query", "count").stderr.splitlines()
    (line,) = [line for line in told if line.startswith("error: ")]
    assert line == told[-1]
    assert line.endswith(f"attempts used){why}")


def test_other_runs_of_the_same_agent_are_left_to_their_worker(run: Run) -> None:
    other = queued(run, "writer")
    assert run("agent", "run", f"{HERE}:writer", "--query", "count").returncode == 0
    assert shown(run, other)["status"] == "queued"


def test_the_run_counts_before_the_agent_and_is_recorded_whole(run: Run, write: Write) -> None:
    ended = run(
        "agent",
        "run",
        f"{HERE}:hasty",
        "--input",
        write("ask.txt", "count!"),
        "--payload",
        '{"a": 1}',
        "--max-attempts",
        "3",
        "--json",
    )
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["status"], found["request"]["payload"]) == (0, "completed", {"a": 1})
    assert found["request"]["query"] == "count!"
    assert [one["outcome"] for one in found["submissions"]] == ["rejected", "rejected", "passed"]
    assert found["verification"]["attempts_used"] == 2
    assert shown(run, found["id"]) == found


def test_a_teams_members_are_told_apart(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:pair", "--query", "count")
    assert ended.returncode == 0
    assert json.loads(ended.stdout) == {"first": {"number": 3, "checked_against": EVIDENCE}, "second": "two\nlines"}
    assert "first: rejected, 1 of 5 attempts used [small]: 1 is too small" in ended.stderr
    team = json.loads(run("agent", "list", "--agent", "pair", "--json").stdout)["agent_runs"][0]["id"]
    members = json.loads(run("agent", "list", "--parent", team, "--json").stdout)["agent_runs"]
    assert {one["id"] for one in members} == {f"{team}.first", f"{team}.second"}
    table = run("agent", "show", team).stdout
    assert "first   success  writer" in table
    assert "attempts    2 used\n" in table
    (line,) = [line for line in run("agent", "list").stdout.splitlines() if line.startswith(f"{team} ")]
    assert line.endswith("  completed  2")
    kinds = [json.loads(line)["subject"] for line in run("agent", "events", team, "--json").stdout.splitlines()]
    assert {team, f"{team}.first", f"{team}.second"} == {*kinds}


def test_what_cannot_be_asked_is_refused_before_anything_is_made(run: Run, write: Write) -> None:
    place = f"{HERE}:writer"
    for arguments, said in (
        ((place,), "--query"),
        ((place, "--query", "a", "--input", "b"), "--query"),
        ((place, "--query", " "), "empty"),
        ((place, "--input", "nowhere.txt"), "nowhere.txt"),
        ((place, "--input", write("bytes", b"\xff\xfe")), "UTF-8"),
        ((place, "--query", "a", "--payload", "[1]"), "--payload"),
        ((place, "--query", "a", "--max-attempts", "0"), "--max-attempts"),
        *(((place, "--query", "a", "--max-seconds", wrong), "--max-seconds") for wrong in ("nan", "inf", "-1", "0")),
        ((place, "--query", "a", "--tenant", "No Tenant"), "'No Tenant'"),
        (
            (f"{HERE}:agents", "--query", "a"),
            f"{HERE}:hasty, {HERE}:unlucky, ",
        ),
    ):
        ended = run("agent", "run", *arguments)
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        assert said in ended.stderr
    assert not Path("meruit-data").exists()


def test_where_a_worker_has_the_file_the_run_is_refused_unless_it_knows_the_agent(run: Run) -> None:
    run("db", "upgrade")
    with hold_worker_lock(Path("meruit-data")):
        ended = run("agent", "run", f"{HERE}:writer", "--query", "count")
    assert ended.returncode == 2
    assert "meruit-data" in ended.stderr
    assert json.loads(run("agent", "list", "--json").stdout)["agent_runs"] == []


def test_an_interrupted_run_is_queued_again(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:interrupted", "--query", "count")
    assert (ended.returncode, ended.stdout) == (130, "")
    assert f"`meruit worker {HERE}:interrupted`" in ended.stderr
    (left,) = json.loads(run("agent", "list", "--json").stdout)["agent_runs"]
    assert left["status"] == "queued"


# Afterwards


def test_a_queued_run_is_listed_and_driven_by_a_worker(run: Run) -> None:
    run_id = queued(run, "hasty")
    assert [
        one["id"] for one in json.loads(run("agent", "list", "--status", "queued", "--json").stdout)["agent_runs"]
    ] == [run_id]
    work(run)
    ended = run("agent", "list")
    assert "failed" in ended.stdout
    assert "2 of 2" in ended.stdout
    assert "attempts" in ended.stdout.splitlines()[1]
    assert "--before " in run("agent", "list", "--limit", "1").stderr


def test_a_run_without_a_worker_says_so(run: Run) -> None:
    run_id = queued(run, "writer")
    assert "no worker" in run("agent", "list").stdout
    text = run("agent", "show", run_id).stdout
    assert "'writer'" in text
    assert "`meruit worker " in text
    assert shown(run, run_id)["has_worker"] is False
    assert json.loads(run("agent", "list", "--json").stdout)["agents_without_worker"] == ["writer"]
    assert run("worker", f"{HERE}:writer", "--until-idle").returncode == 0
    assert "no worker" not in run("agent", "list").stdout + run("agent", "show", run_id).stdout
    assert json.loads(run("agent", "list", "--json").stdout)["agents_without_worker"] == []


def test_without_records_the_command_that_records_is_named(run: Run) -> None:
    error = error_of(run, "agent", "list")
    assert (error["code"], " agent run`" in error["message"]) == ("store_error", True)


def test_a_paused_run_shows_its_last_error_and_next_try(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:troubled", "--query", "count")
    assert ended.returncode == 130
    assert "away" in ended.stderr
    (left,) = json.loads(run("agent", "list", "--json").stdout)["agent_runs"]
    text = run("agent", "show", left["id"]).stdout
    assert re.search(r"^last error  .*away", text, re.MULTILINE)
    assert re.search(r"^next try    20", text, re.MULTILINE)


def test_show_tells_each_turn_with_what_was_answered(run: Run) -> None:
    run_id = queued(run, "hasty")
    work(run)
    text = run("agent", "show", run_id).stdout
    for said in ("status      failed: attempts", "asked       count", "attempts    2 of 2 used", "turn 2"):
        assert said in text
    assert '  → agent_output {"n":1}\n  ← rejected, attempt 1 [small]\n    <verification_rejected' in text


def test_events_are_printed_in_their_order_and_followed_to_the_end(run: Run) -> None:
    run_id = queued(run, "writer")
    work_on = run("worker", f"{HERE}:by_name", "--until-idle")
    assert work_on.returncode == 0
    followed = run("agent", "events", run_id, "--follow", "--json")
    lines = [json.loads(line) for line in followed.stdout.splitlines()]
    kinds = [one["event"]["event_type"] for one in lines]
    assert kinds[:3] == ["agent_run.queued", "agent_run.started", "verification_started"]
    assert kinds.count("verification_attempt_counted") == 2
    assert kinds[-2:] == ["verification_passed", "agent_run.completed"]
    assert run("agent", "events", run_id, "--json").stdout == followed.stdout
    people = run("agent", "events", run_id).stdout
    assert f"verification_rejected  {run_id}  attempt=1 attempts_used=1 max_attempts=5 code=small" in people


def test_a_waiting_run_continues_with_the_value_given(run: Run) -> None:
    run_id = queued(run, "asker")
    work(run)
    assert (shown(run, run_id)["waiting_for"], shown(run, run_id)["note"]) == ("1.0", "a person's word")
    text = run("agent", "show", run_id).stdout
    assert " a person's word: `" in text
    assert f" agent resume {run_id} VALUE`" in text
    assert "a person's word" in run("agent", "list").stdout
    error = error_of(run, "agent", "resume", run_id, "yes", "--key", "9.9")
    assert (error["code"], "'1.0'" in error["message"]) == ("wrong_state", True)
    assert run("agent", "resume", run_id, "yes").stdout == f"{run_id}  queued\n"
    assert error_of(run, "agent", "resume", run_id, "yes")["code"] == "wrong_state"
    again = run("agent", "resume", run_id, '"yes"', "--key", "1.0", "--json")
    assert json.loads(again.stdout)["status"] == "queued"
    assert run("agent", "resume", run_id, "no", "--key", "1.0").returncode == 2
    work(run)
    assert shown(run, run_id)["result"]["number"] == 3
    assert re.search(r"  → approval {}\n  ← .*a person's word\n  ← .*: yes\n", run("agent", "show", run_id).stdout)


def test_what_tools_replied_stands_below_their_calls(run: Run) -> None:
    run_id = queued(run, "curious")
    work(run)
    assert '  → weather {"place":"Rome"}\n  ← sunny in Rome\n' in run("agent", "show", run_id).stdout


def test_cancelling_an_ended_run_changes_nothing(run: Run) -> None:
    run_id = queued(run, "hasty")
    work(run)
    ended = run("agent", "cancel", run_id)
    assert (ended.returncode, ended.stdout) == (0, f"{run_id}  failed\n")
    assert ended.stderr.startswith("note: ")


def test_a_cancelled_run_is_driven_no_more(run: Run) -> None:
    run_id = queued(run, "endless")
    assert run("agent", "cancel", run_id).stdout == f"{run_id}  cancelled\n"
    work(run)
    assert json.loads(run("agent", "cancel", run_id, "--json").stdout)["status"] == "cancelled"


@pytest.mark.parametrize("command", [("show",), ("events",), ("events", "--follow"), ("cancel",)])
def test_an_unknown_run_is_not_found(run: Run, command: tuple[str, ...]) -> None:
    run("db", "upgrade")
    error = error_of(run, "agent", command[0], "run_nothing", *command[1:])
    assert (error["code"], "'run_nothing'" in error["message"]) == ("not_found", True)


# A verifier that waits


def test_a_verifier_waits_for_an_answer_of_the_command_line(run: Run) -> None:
    run_id = queued(run, "doubter")
    work(run)
    waits = shown(run, run_id)
    assert (waits["status"], waits["waiting_for"], waits["note"]) == ("waiting", "verify:1:0", "is 1 right?")
    assert waits["verification"]["attempts_used"] == 0
    assert "verify waits: is 1 right?" in run("agent", "show", run_id).stdout
    for _ in range(2):
        assert run("agent", "resume", run_id, "no", "--key", "verify:1:0").returncode == 0
    assert run("agent", "resume", run_id, "yes", "--key", "verify:1:0").returncode == 2
    work(run)
    assert shown(run, run_id)["verification"]["attempts_used"] == 1
    assert run("agent", "resume", run_id, "yes").returncode == 0
    work(run)
    found = shown(run, run_id)
    assert (found["status"], found["result"], found["verification"]["attempts_used"]) == ("completed", 2, 1)
    printed = run("agent", "show", run_id).stdout
    assert [line.strip() for line in printed.splitlines() if "given" in line] == ["← given: no", "← given: yes"]
    kinds = [line.split()[1] for line in run("agent", "events", run_id).stdout.splitlines()]
    assert (kinds.count("agent_run.waiting"), kinds.count("agent_run.resumed")) == (2, 2)


def test_a_verifier_that_gets_no_answer_in_time_judges_nothing(run: Run) -> None:
    ended = run("agent", "run", f"{HERE}:hopeless", "--query", "count")
    assert ended.returncode == 3
    (found,) = json.loads(run("agent", "list", "--json").stdout)["agent_runs"]
    assert (found["ending"], found["verification"]["attempts_used"]) == ("system_error", 0)
    assert "no answer came in time" in run("agent", "show", found["id"]).stdout


# Names


def test_every_name_that_is_suggested_works(run: Run) -> None:
    refused = run("agent", "run", f"{HERE}:crew", "--query", "count")
    assert refused.returncode == 2
    names = shlex.split(refused.stderr.partition("name one of them: ")[2].replace(",", " "))
    assert names == [f"{HERE}:the doubter", f"{HERE}:hopeless"]
    for name in names:
        assert run("agent", "run", name, "--query", "count", "--detach").returncode == 0


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [("the doubtr", "the doubter"), ("doubtr", "doubter"), ("writr", "writer"), ("nothin", None)],
)
def test_what_holds_no_agent_is_not_suggested(run: Run, wrong: str, suggested: str | None) -> None:
    refused = run("agent", "run", f"{HERE}:{wrong}", "--query", "count")
    found = re.search(r"did you mean '([^']*)'", refused.stderr)
    assert (refused.returncode, None if found is None else found[1]) == (2, suggested)


def test_two_agents_of_one_name_are_told_apart_by_variable(run: Run, write: Write) -> None:
    write("lookalikes.py", "from meruit import Agent\none = Agent('twin')\ntwo = Agent('twin')\n")
    assert run("agent", "run", "lookalikes.py:twin", "--query", "x", "--detach").returncode == 2
    assert run("agent", "run", "lookalikes.py:two", "--query", "x", "--detach").returncode == 0


def test_the_name_of_an_agent_may_have_a_colon(run: Run, write: Write) -> None:
    write("colons.py", "from meruit import Agent\none = Agent('team:one')\n")
    assert run("agent", "run", "colons.py:team:one", "--query", "x", "--detach").returncode == 0


# Runs of a host's own loop


def test_a_run_in_a_hosts_own_loop_is_shown_with_query_feedback_and_tokens(run: Run) -> None:
    with closing(open_records("meruit-data")) as store:
        gate = Gate(Number, store=store, run_id="r", agent="bridged", query="count to three")
        asyncio.run(gate.submit({"n": 1}, submission_id="a", usage=Usage(70, 8, 0, 1)))
        asyncio.run(gate.submit({"n": 2}, submission_id="b", usage=Usage(150, 16, 0, 2)))
    printed = run("agent", "show", "r").stdout
    facts = dict(line.split(maxsplit=1) for line in printed.splitlines()[:7])
    assert (facts["asked"], facts["tokens"]) == ("count to three", "150 in, 16 out")
    assert "worker" not in facts["status"]
    assert [line.strip() for line in printed.splitlines() if "→" in line] == ['→ {"n":1}', '→ {"n":2}']
    assert printed.count('<verification_rejected code="small"') == 2
    listed = json.loads(run("agent", "list", "--json").stdout)
    assert (listed["agents_without_worker"], listed["agent_runs"][0]["is_hosted"]) == ([], True)
    assert "worker" not in run("agent", "list").stdout
    with closing(open_records("meruit-data")) as store:
        asyncio.run(Gate(Number, store=store, run_id="r").submit({"n": 3}, submission_id="c"))
    done = shown(run, "r")
    assert (done["status"], done["usage"]["input_tokens"], done["is_hosted"]) == ("completed", 150, False)


def test_a_hosts_wait_is_shown_and_answered(run: Run) -> None:
    with closing(open_records("meruit-data")) as store:
        gate = Gate(Doubted, store=store, run_id="r")
        with pytest.raises(VerificationWaiting):
            asyncio.run(gate.submit({"n": 1}))
    printed = run("agent", "show", "r").stdout
    assert "is 1 right?" in printed
    assert '→ {"n":1}' in printed
    assert run("agent", "resume", "r", "yes").stdout.split() == ["r", "running"]
    assert "given: yes" in run("agent", "show", "r").stdout
    with closing(open_records("meruit-data")) as store:
        assert asyncio.run(Gate(Doubted, store=store, run_id="r").resume()) == Passed(1, 1)
