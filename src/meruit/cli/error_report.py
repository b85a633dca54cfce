"""How a failed command reports its error: lines of text for people, one line of JSON for programs."""

import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from meruit.cli.terminal import ExitCode, print_error, say
from meruit.errors import (
    BodyError,
    DocumentError,
    MeruitError,
    NoCases,
    PluginExit,
    Problem,
    Unavailable,
    Unreachable,
)

USAGE = "usage"
HINTS = {
    "bad_config": "correct the settings file; `meruit schema settings` describes it",
    "bad_criteria": "correct the criteria; `meruit schema criteria` describes them",
    "bad_document": "correct the file, then run the command again",
    "broken_criteria": "mend the criteria, or insist with --accept-finding CODE",
    "not_found": "check the id and --tenant; the `list` command of the same group shows what is recorded",
    "source_error": "check that the system can be reached, then retry",
    "store_error": "check --data and --database-url; `meruit db status` describes the database",
    "unavailable": "check that the database is running, then retry",
    "unavailable_here": "`meruit doctor` shows what this machine can run",
    "unreachable": "retry later",
    "unreadable_file": "check the path and its permissions",
}
"""By the error's code, what to do next."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as a program reads it."""

    exit_code: ExitCode
    code: str
    message: str
    where: str | None = None
    """`FILE:LINE`, a path, or nothing where no file is at fault."""
    hint: str | None = None
    """What to do next."""
    problems: tuple[dict[str, Any], ...] = ()
    """Everything that is wrong with a document."""
    trace: str | None = None
    """Where in Meruit it happened, for a report to its authors."""

    def to_json(self) -> str:
        """The report on one line, in ASCII, so that any stream can carry it."""
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "hint": self.hint,
        }
        if self.problems:
            error["problems"] = self.problems
        if self.trace is not None:
            error["traceback"] = self.trace
        return json.dumps({"error": error})


def is_json_wanted(arguments: Sequence[str]) -> bool:
    """Whether the arguments have `--json` as an option; a usage error may come before it is parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def report_of(fault: Exception, arguments: Sequence[str]) -> ErrorReport:
    """Describe an exception that ended a command."""
    match fault:
        case click.ClickException():
            return _of_usage(fault)
        case MeruitError():
            return _of_meruit(fault)
        case OSError():
            return ErrorReport(
                ExitCode.COULD_NOT_VERIFY,
                "io_error",
                fault.strerror or str(fault),
                where=None if fault.filename is None else str(fault.filename),
                hint="check free space and permissions, then retry",
            )
        case UnicodeError() if (word := _first_undecodable(arguments)) is not None:
            return ErrorReport(
                ExitCode.BAD_INPUT, USAGE, f"{word!a} is not UTF-8 text", hint="write the argument in UTF-8"
            )
        case _:
            return _of_defect(fault)


def print_report(report: ErrorReport, fault: Exception, *, as_json: bool) -> None:
    """Write the error on stderr."""
    if as_json:
        say(report.to_json(), err=True)
    elif isinstance(fault, click.ClickException):
        fault.show()
    elif isinstance(fault, MeruitError):
        print_error(report.message if not report.problems else str(fault))
    elif isinstance(fault, OSError):
        print_error(f"could not continue: {f'{report.where}: ' if report.where else ''}{report.message}")
    else:
        if report.trace is not None:
            say(report.trace.rstrip(), err=True)
        print_error(f"{report.message}; {report.hint}")


def _of_usage(fault: click.ClickException) -> ErrorReport:
    context = getattr(fault, "ctx", None)
    command = "meruit" if context is None else context.command_path
    is_help = isinstance(fault, click.exceptions.NoArgsIsHelpError)
    message = "no command is given" if is_help else fault.format_message()
    return ErrorReport(ExitCode.BAD_INPUT, USAGE, message, hint=f"run `{command} --help`")


def _of_meruit(fault: MeruitError) -> ErrorReport:
    could_not = isinstance(fault, Unavailable | Unreachable | PluginExit | NoCases)
    code = fault.code or MeruitError.code
    where, message, problems = getattr(fault, "where", None), str(fault), tuple[Problem, ...]()
    if isinstance(fault, DocumentError) and fault.problems:
        problems, first = fault.problems, fault.problems[0]
        where = _place(fault.name, first.line)
        message = f"{fault.name}: {first}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    elif isinstance(fault, BodyError):
        problems = fault.problems
    name = fault.name if isinstance(fault, DocumentError) else None
    return ErrorReport(
        ExitCode.COULD_NOT_VERIFY if could_not else ExitCode.BAD_INPUT,
        code,
        message,
        where=where,
        hint=HINTS.get(code),
        problems=tuple(_problem_to_dict(name, one) for one in problems),
    )


def _problem_to_dict(name: str | None, problem: Problem) -> dict[str, str | None]:
    shown = {"where": _place(name, problem.line), "path": problem.where or None, "message": problem.message}
    return {**shown, "code": problem.code} if problem.code else shown


def _of_defect(fault: Exception) -> ErrorReport:
    """An exception that no command should raise; it must not end like work that did not pass."""
    frames = traceback.extract_tb(fault.__traceback__)
    return ErrorReport(
        ExitCode.COULD_NOT_VERIFY,
        "internal_error",
        "this is a defect in Meruit, not in the work",
        where=f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None,
        hint="report it with the traceback",
        trace="".join(traceback.format_exception(fault)),
    )


def _place(name: str | None, line: int | None) -> str | None:
    return name if line is None or name is None else f"{name}:{line}"


def _first_undecodable(arguments: Sequence[str]) -> str | None:
    """The first argument whose bytes are not text; Python keeps such bytes as lone surrogates."""
    return next((word for word in arguments if any("\ud800" <= sign <= "\udfff" for sign in word)), None)
