"""The command line. Results go to stdout, talk to stderr; the exit code says how it ended."""

import sys
import traceback
from importlib import import_module
from typing import NoReturn

import click

from meruit.cli.terminal import ExitCode, print_error

COMMANDS = (
    "agent",
    "audit",
    "benchmark",
    "checks",
    "contract",
    "db",
    "demo",
    "doctor",
    "governance",
    "holds",
    "keys",
    "ledger",
    "lint",
    "metrics",
    "outcome",
    "playground",
    "reconcile",
    "report",
    "rescore",
    "schema",
    "serve",
    "usage",
    "verify",
    "work",
    "worker",
)
"""One file each in commands/, with a function of the same name."""


class LazyCommands(click.Group):
    """Loads a command's file when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every command, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"meruit.cli.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with, or say which is nearest."""
        from meruit.errors import nearest

        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"no command is named {args[0]!r}{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; its code is what it returns, whatever a plugin inside it does."""
        try:
            return super().invoke(ctx)
        except SystemExit:
            print_error("a plugin tried to end the program")
            return ExitCode.COULD_NOT_VERIFY


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 not passed, 2 bad usage or input, 3 could not verify, 4 a credential is missing or "
    "was refused, 130 interrupted.",
)
@click.version_option(package_name="meruit")
def meruit() -> None:
    """Prove whether an AI agent's work was done, how well, and what is owed."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    from meruit.errors import MeruitError, Unavailable, Unreachable

    try:
        code = meruit.main(args=arguments, prog_name="meruit", standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        code = ExitCode.BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    except MeruitError as problem:
        print_error(str(problem))
        code = ExitCode.COULD_NOT_VERIFY if isinstance(problem, Unavailable | Unreachable) else ExitCode.BAD_INPUT
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        print_error(f"could not go on: {where}{problem.strerror or problem}")
        code = ExitCode.COULD_NOT_VERIFY
    except Exception as fault:  # noqa: BLE001 - a fault of our own must not end like work that did not pass
        odd = (
            _first_undecodable(sys.argv[1:] if arguments is None else arguments)
            if isinstance(fault, UnicodeError)
            else None
        )
        if odd is not None:
            print_error(f"{odd!a} is no text in UTF-8; write it so")
            code = ExitCode.BAD_INPUT
        else:
            traceback.print_exc()
            print_error("this is a fault of Meruit's, not of the work; please report it with the lines above")
            code = ExitCode.COULD_NOT_VERIFY
    sys.exit(code if isinstance(code, int) else ExitCode.PASSED)


def _first_undecodable(arguments: list[str]) -> str | None:
    """The first word whose bytes are no text; Python keeps them as signs that nothing can write."""
    return next((word for word in arguments if any("\ud800" <= sign <= "\udfff" for sign in word)), None)
