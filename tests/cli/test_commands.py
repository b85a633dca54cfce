"""What holds for every command: exit codes, streams, colours, pipes, and the small commands."""

import contextlib
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

import meruit.cli
from meruit.cli import COMMANDS, LazyCommands
from meruit.cli.commands.demo import CASES
from meruit.cli.terminal import ExitCode, print_error
from meruit.registry import metrics

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

WORDS = "criteria:\n  - {metric: word_count, metric_type: count, comparison: gte, threshold: 2}\n"
VERIFY = ("verify", "c.yaml", "--output", "o.json")


@pytest.fixture
def _work(write: Write) -> None:
    write("c.yaml", WORDS)
    write("o.json", {"text": "two words"})


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command line in a process of its own, which does not outlive the test."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([sys.executable, "-m", "meruit", *arguments], **streams) as process:
        try:
            yield process
        finally:
            process.kill()


# Help and usage.


@pytest.mark.parametrize("arguments", [("--help",), ("-h",)])
def test_help_lists_every_command_and_every_exit_code(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(re.search(rf"^  {command} ", ended.stdout, re.MULTILINE) for command in COMMANDS)
    told = " ".join(ended.stdout.split())
    for code in ("0 passed", "1 not passed", "2 bad usage or input", "3 could not verify", "130 interrupted"):
        assert code in told


def every_command() -> Iterator[tuple[str, ...]]:
    context = click.Context(meruit.cli.meruit)
    for name in COMMANDS:
        yield from below((name,), meruit.cli.meruit.get_command(context, name))


def below(path: tuple[str, ...], command: click.Command | None) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    for name, inner in command.commands.items():
        yield from below((*path, name), inner)


@pytest.mark.parametrize("command", [*every_command()], ids=" ".join)
def test_every_command_explains_itself_and_knows_json(run: Run, command: tuple[str, ...]) -> None:
    ended = run(*command, "--help")
    assert ended.returncode == 0
    assert "--json" in ended.stdout


def test_the_version_is_printed(run: Run) -> None:
    assert re.fullmatch(r"meruit, version \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("verfy",), "'verify'"),
        (("zzz",), "'zzz'\n"),
        (("verify",), "Missing argument 'CRITERIA.yaml'"),
        (("verify", "c.yaml"), "Missing option '--output'"),
        (("verify", "c.yaml", "--outputt", "x"), "--output"),
        (("--nonsense",), "--nonsense"),
        (("schema", "nonsense"), "'nonsense'"),
        (("metrics", "acuracy"), "'accuracy'"),
        (("metrics", ""), "''"),
        (("metrics", "\x1b[31m"), r"\x1b[31m"),
    ],
)
def test_bad_usage_is_explained_on_stderr(run: Run, arguments: tuple[str, ...], complaint: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert complaint in ended.stderr


def test_no_command_at_all_shows_the_help(run: Run) -> None:
    ended = run()
    assert (ended.returncode, "Commands:" in ended.stderr) == (2, True)


def test_an_unknown_command_has_no_file() -> None:
    group = LazyCommands("meruit")
    assert group.get_command(click.Context(group), "nonsense") is None


def test_the_shell_can_complete_a_command() -> None:
    environment = os.environ | {
        "_MERUIT_COMPLETE": "bash_complete",
        "COMP_WORDS": "meruit ver",
        "COMP_CWORD": "1",
    }
    with started(env=environment) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out.split(), err) == (0, [b"plain,verify"], b"")


# The small commands.


def test_metrics_lists_every_metric_with_what_it_is(run: Run) -> None:
    ended = run("metrics")
    assert ended.returncode == 0
    heading, *rows = ended.stdout.splitlines()
    assert heading.split()[:3] == ["metric", "type", "provenance"]
    # What asks an endpoint is listed also where the settings name none.
    by_name = {row.split()[0]: row for row in rows[:-1]}
    assert [*by_name] == sorted([*metrics.names(), "embedding_similarity"])
    assert rows[-1].startswith("off: embedding_similarity: ")
    assert all(metric.summary in by_name[metric.name] for metric in metrics)
    assert run("metrics", "embedding_similarity").stdout.startswith("embedding_similarity (percentage, provider): ")


def test_metrics_explains_one_with_its_params(run: Run) -> None:
    ended = run("metrics", "contains_keywords")
    assert ended.stdout.startswith("contains_keywords (contains, computed): ")
    assert "  params.whole_word: " in ended.stdout


@pytest.mark.parametrize("which", ["criteria", "settings", "result"])
def test_a_schema_is_json_either_way(run: Run, which: str) -> None:
    indented, compact = run("schema", which), run("schema", which, "--json")
    assert (indented.returncode, compact.returncode) == (0, 0)
    assert json.loads(indented.stdout) == json.loads(compact.stdout)
    assert compact.stdout.count("\n") == 1 < indented.stdout.count("\n")
    assert json.loads(compact.stdout)["$id"] == f"urn:meruit:{which}:1"


def test_the_demo_tells_the_specifications_stories(run: Run) -> None:
    ended = run("demo")
    assert (ended.returncode, ended.stderr) == (0, "")
    stories = ended.stdout.partition("== marketplace:")[0]
    told = re.findall(r"^verdict (\w+), success (\w+)", stories, re.MULTILINE)
    assert told == [
        ("pass", "true"),
        ("fail", "false"),
        ("inconclusive", "false"),
        ("pass", "true"),
        ("partial", "false"),
    ]
    assert all(f"the {case.agent} agent: {case.description}" in ended.stdout for case in CASES)


def test_the_demos_files_can_be_verified_as_its_note_says(run: Run) -> None:
    ended = run("demo", "--json", "--write", "my stories")
    # The last two are the marketplace and the bill.
    assert len(json.loads(ended.stdout)) == len(CASES) + 2
    assert ended.stderr.startswith("note: ")
    command = ended.stderr.splitlines()[0].split("try: meruit ")[1]
    assert run(*shlex.split(command)).returncode == ExitCode.COULD_NOT_VERIFY


def test_the_demo_leaves_what_it_finds(run: Run) -> None:
    mine = Path("stories/summarisation/silent.json")
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert run("demo", "--write", "stories").returncode == 0
    assert mine.read_text() == "mine"
    assert Path("stories/classification/criteria.yaml").is_file()


@pytest.mark.parametrize("folder", ["file/inside", "file", "", "/proc/nowhere"])
def test_a_folder_that_the_demo_cannot_write_is_refused_first(run: Run, folder: str) -> None:
    Path("file").write_text("")
    ended = run("demo", "--write", folder)
    if folder:
        assert (ended.returncode, ended.stdout) == (2, "")
        assert f" {folder}: " in ended.stderr
    else:
        assert ended.returncode == 0


# Streams.


@pytest.mark.usefixtures("_work")
@pytest.mark.parametrize(
    "arguments",
    [
        VERIFY,
        ("lint", "c.yaml"),
        ("lint", "c.yaml", "--gold", "o.json"),
        ("metrics",),
        ("metrics", "accuracy"),
        ("schema", "criteria"),
        ("demo", "--write", "stories"),
    ],
)
def test_json_is_one_document_on_one_line_of_stdout(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, "--json")
    assert ended.returncode == 0
    assert ended.stdout.endswith("\n")
    assert ended.stdout.count("\n") == 1
    json.loads(ended.stdout)
    assert all(line.startswith("note: ") for line in ended.stderr.splitlines())


@pytest.mark.usefixtures("_work")
@pytest.mark.parametrize("arguments", [("verify", "no.yaml", "--output", "o.json"), ("lint", "no.yaml")])
def test_what_cannot_be_done_leaves_stdout_empty_even_for_json(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    error = json.loads(ended.stderr)["error"]
    assert (error["code"], error["where"]) == ("unreadable_file", "no.yaml")


@pytest.mark.usefixtures("_work")
def test_colours_are_for_terminals_that_want_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in run(*VERIFY).stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    painted = run(*VERIFY).stdout
    assert "\x1b[32mmet\x1b[0m" in painted
    assert "\x1b[32mpass\x1b[0m" in painted
    assert run("verify", "no.yaml", "--output", "o.json").stderr.startswith("\x1b[31merror\x1b[0m: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run(*VERIFY).stdout
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b[" in run(*VERIFY).stdout


@pytest.mark.usefixtures("_work")
def test_a_painted_table_keeps_its_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(*VERIFY).stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert re.sub(r"\x1b\[\d*m", "", run(*VERIFY).stdout) == plain


@pytest.mark.usefixtures("_work")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_unicode_gets_question_marks(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    with pytest.raises(SystemExit) as ended:
        meruit.cli.main([*VERIFY])
    assert ended.value.code == 0
    assert b"? 2" in written.getvalue()


@pytest.mark.usefixtures("_work")
@pytest.mark.parametrize(("arguments", "code"), [(("metrics",), 0), (VERIFY, 0), (("metrics", "no"), 2)])
def test_streams_closed_beforehand_change_no_exit_code(
    arguments: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        meruit.cli.main([*arguments])
    assert ended.value.code == code


@pytest.mark.usefixtures("_work")
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_reader_that_leaves_changes_no_exit_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr(sys, name, gone)
        with pytest.raises(SystemExit) as passed:
            meruit.cli.main([*VERIFY, "--json"])
        with pytest.raises(SystemExit) as refused:
            meruit.cli.main(["metrics", "no"])
    assert (passed.value.code, refused.value.code) == (0, 2)


@pytest.mark.parametrize("arguments", [("metrics",), ("schema", "criteria", "--json")])
def test_a_broken_pipe_is_no_error(arguments: tuple[str, ...]) -> None:
    with started(*arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) == 0


@pytest.mark.usefixtures("_work")
def test_a_full_disk_is_not_a_failure_of_the_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("meruit.cli.commands.verify.print_json", refuse)
    ended = run(*VERIFY, "--json")
    assert (ended.returncode, json.loads(ended.stderr)["error"]["code"]) == (3, "io_error")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to offer")
def test_a_disk_that_is_really_full_is_named() -> None:
    with Path("/dev/full").open("wb") as full, started("metrics", stdout=full) as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 3
    assert os.strerror(errno.ENOSPC).encode() in err


def test_a_complaint_of_two_lines_is_two_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("one\ntwo\rthree")
    assert capsys.readouterr().err == "error: one\nerror: two\\rthree\n"


# Interruption.


@pytest.mark.usefixtures("_work")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, click.Abort])
def test_an_interruption_is_130(run: Run, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]) -> None:
    def stop(*_: object, **__: object) -> None:
        raise interrupt

    monkeypatch.setattr("meruit.cli.shared.engine.build_engine", stop)
    ended = run(*VERIFY)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")


def test_an_interruption_outside_any_command_is_130_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(meruit.cli.meruit, "main", stop)
    assert run("metrics").returncode == 130


def heed_interruptions() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def open_for(reader: subprocess.Popen[bytes], pipe: str) -> int:
    """The writing end of a named pipe, once the process has begun to read; nobody waits for one that has ended."""
    while reader.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
    raise AssertionError("ended before it read anything")


def press_ctrl_c(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT until the process ends: one just before a blocking call is handled only when the next one arrives."""
    for _ in range(600):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
            return


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("option", ["--json", "--no-record"])
def test_ctrl_c_is_130_and_prints_nothing(option: str) -> None:
    os.mkfifo("slow.yaml")
    # The test runner may ignore SIGINT, as `nohup` does, and children inherit that.
    with started("verify", "slow.yaml", "--output", "o.json", option, preexec_fn=heed_interruptions) as process:
        writer = open_for(process, "slow.yaml")
        press_ctrl_c(process)
        out, err = process.communicate(timeout=300)
        os.close(writer)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


SLOW_EXIT = """
import atexit, os, signal, sys, time
from meruit.__main__ import run

def clean_up():
    print("cleaned up", flush=True)
    {second}

atexit.register(clean_up)
import meruit.cli
def interrupted():
    raise KeyboardInterrupt
meruit.cli.main = interrupted
run()
"""


@pytest.mark.parametrize("second", ["pass", "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"])
def test_a_second_ctrl_c_during_cleanup_is_130_too(second: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW_EXIT.format(second=second)], capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"cleaned up\n", b"")


INTERRUPTED_IMPORT = """
import sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "meruit.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from meruit.__main__ import run
run()
"""


def test_ctrl_c_while_modules_load_is_130() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_python_m_meruit_is_the_command_line() -> None:
    with started("metrics", "accuracy") as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, b"")
    assert out.startswith(b"accuracy (accuracy, computed): ")
