"""Commands, options and exit codes in a golden file: none is renamed or lost without a diff that a person reads."""

from collections.abc import Iterator

import click
import pytest
from tests.golden import check_golden

from meruit.cli import meruit
from meruit.cli.terminal import ExitCode

pytestmark = pytest.mark.golden


def lines_of(command: click.Command, path: str, context: click.Context) -> Iterator[str]:
    """A command, its options and arguments, and the commands below it."""
    options = sorted("/".join(one.opts) for one in command.params if isinstance(one, click.Option))
    arguments = [f"<{one.name}>" for one in command.params if isinstance(one, click.Argument)]
    yield " ".join([path, *arguments, *options])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from lines_of(below, f"{path} {name}", context)


def test_commands_options_and_exit_codes() -> None:
    codes = [f"exit code {int(code)}: {code.name.lower()}" for code in ExitCode]
    check_golden("commands", "\n".join([*lines_of(meruit, "meruit", click.Context(meruit)), *codes]) + "\n")
