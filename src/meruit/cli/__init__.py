"""The command line. Results go to stdout, notes and errors to stderr; the exit code says how the command ended.

Read in this order:

- terminal.py - options and output that all commands share
- error_report.py - errors as text, or as JSON under `--json`
- commands/ - one file for each command; benchmarks/, evaluations/ and review/ - commands of one capability
- shared/ - work that several commands share
- views/ - results as tables
- demo/ - the stories of `meruit demo`
"""

import sys
from importlib import import_module
from typing import NoReturn

import click

from meruit.cli.terminal import ExitCode

COMMANDS = {
    "agent": "Run agents behind the verification gate and show their runs.",
    "audit": "Export proof bundles; check bundles, logs and witnesses.",
    "benchmark": "Run agents on benchmark tasks and judge the results.",
    "checks": "List the checks, or explain one with its settings.",
    "contract": "Award work to agents, submit the output, and settle.",
    "dataset": "Keep files of cases by name and version, and see what changed.",
    "db": "Show the state of the database and upgrade it.",
    "demo": "Run a demo: verdicts, a marketplace and token usage.",
    "doctor": "Test the sandbox, and show how the audit log stands.",
    "eval": "Judge many outputs at once and compare evaluations.",
    "governance": "List the plausibility rules and test them on a simulation.",
    "holds": "List held and disputed contracts; release or void held ones.",
    "import": "Import results of another tool as an evaluation.",
    "judge": "Calibrate judges by people's labels, and plan labels.",
    "keys": "Create, list and revoke API keys.",
    "ledger": "Show balances, statements and earnings, and verify the books.",
    "lint": "Test criteria or benchmark tasks before you use them.",
    "metrics": "List the metrics, or explain one with its parameters.",
    "outcome": "List, show, compare, export and erase recorded outcomes.",
    "playground": "Serve systems that agents can act on; reset or copy them.",
    "reconcile": "Compare recorded runs with the provider's token counts.",
    "report": "Report on agents: success, tokens and cost.",
    "rescore": "Judge recorded outcomes again by other criteria.",
    "review": "Let people label cases blind, and see how far they agree.",
    "schema": "Print the JSON Schema of a file format.",
    "serve": "Serve the HTTP API, and the console at `/` for a browser.",
    "usage": "Judge, record, list, explain and export token usage.",
    "verify": "Judge one piece of work by its criteria.",
    "view": "Show what is recorded, in a browser.",
    "work": "Publish work with criteria and terms, and list it.",
    "worker": "Run a worker that drives queued agent runs.",
}
"""Each command and its summary, so that `--help` need not load 31 files.

One file each in commands/, with a function of the same name, unless IN_PACKAGES says where it is.
"""
IN_PACKAGES = {
    "audit": ("auditing.group", "audit"),
    "benchmark": ("benchmarks.benchmark", "benchmark"),
    "dataset": ("evaluations.dataset", "dataset"),
    "eval": ("evaluations.group", "eval_group"),
    "import": ("evaluations.import_file", "import_command"),
    "judge": ("review.judge", "judge"),
    "review": ("review.review", "review"),
}
"""Commands of capabilities that have a package of commands: the module and the function."""


class LazyCommands(click.Group):
    """Load a command's file when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List every command, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Find the command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, function = IN_PACKAGES.get(cmd_name, (f"commands.{cmd_name}", cmd_name))
        command: click.Command = getattr(import_module(f"meruit.cli.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands without loading any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with; a usage error suggests the nearest name."""
        from meruit.suggestions import nearest

        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"no command is named {args[0]!r}{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a plugin that calls sys.exit must not choose the exit code."""
        try:
            return super().invoke(ctx)
        except SystemExit:
            from meruit.errors import PluginExit

            raise PluginExit("a plugin tried to end the program") from None


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 not passed, 2 bad usage or input, 3 could not verify, 4 a credential is missing or "
    "was refused, 130 interrupted. Under --json, an error is one line of JSON on stderr.",
)
@click.version_option(package_name="meruit")
def meruit() -> None:
    """Prove whether an AI agent's work was done, how well, and what is owed."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = meruit.main(args=words, prog_name="meruit", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    except Exception as fault:  # noqa: BLE001 - a defect must not end like work that did not pass
        code = _report_error(fault, words)
    sys.exit(code if isinstance(code, int) else ExitCode.PASSED)


def _report_error(fault: Exception, arguments: list[str]) -> ExitCode:
    """Print the error, as JSON under `--json`, and choose the exit code."""
    # Only a command that fails needs it, and `--help` should be quick.
    from meruit.cli.error_report import is_json_wanted, print_report, report_of
    from meruit.errors import MissingExtra

    if isinstance(fault, ImportError):
        fault = MissingExtra.of(fault) or fault
    report = report_of(fault, arguments)
    print_report(report, fault, as_json=is_json_wanted(arguments))
    return report.exit_code
